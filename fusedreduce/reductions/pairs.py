"""Two streams side by side: covariance, correlation, cosine similarity."""

from __future__ import annotations

import torch

from fusedreduce.declare import First, Max, Reduction, Reference, Sum


class Covariance(Reduction):
    """sum_j (x_j - mean x) (y_j - mean y) / n, by products shifted to both running means.

    `y` has the shape of x (..., N), or broadcasts against it.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Covariance, torch.tensor([1.0, 3.0]), y=torch.tensor([4.0, 2.0]))
    tensor(-1.)
    """

    n = Sum(lambda x: 1.0)
    rx, ry = First(lambda x: x), First(lambda y: y)
    dx, dy = Sum(lambda x, rx: x - rx), Sum(lambda y, ry: y - ry)
    mx = Reference(lambda n, rx, dx: rx + dx / n)
    my = Reference(lambda n, ry, dy: ry + dy / n)
    ex, ey = Sum(lambda x, mx: x - mx), Sum(lambda y, my: y - my)
    exy = Sum(lambda x, y, mx, my: (x - mx) * (y - my))

    def finish(n, ex, ey, exy):
        return (exy - ex * ey / n) / n

    def definition(x, y):
        return torch.mean((x - torch.mean(x)) * (y - torch.mean(y)))


class Correlation(Covariance):
    """Pearson's r: sum (x - mean x) (y - mean y) / sqrt(sum (x - mean x)^2 sum (y - mean y)^2).

    `y` has the shape of x (..., N), or broadcasts against it. A constant stream has none: 0 / 0.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Correlation, torch.tensor([1.0, 3.0]), y=torch.tensor([4.0, 2.0]))
    tensor(-1.)
    """

    exx = Sum(lambda x, mx: (x - mx) ** 2)
    eyy = Sum(lambda y, my: (y - my) ** 2)

    def finish(n, ex, ey, exy, exx, eyy):
        sx, sy = torch.sqrt(exx - ex * ex / n), torch.sqrt(eyy - ey * ey / n)
        return (exy - ex * ey / n) / sx / sy

    def definition(x, y):
        u, v = x - torch.mean(x), y - torch.mean(y)
        return torch.sum(u * v) / torch.sqrt(torch.sum(u * u)) / torch.sqrt(torch.sum(v * v))


class CosineSimilarity(Reduction):
    """sum_j x_j y_j / (|x| |y|), each vector relative to its largest size: never overflows.

    `y` has the shape of x (..., N), or broadcasts against it. With a vector of zeros it is 0.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(CosineSimilarity, torch.tensor([3e30, 4e30]), y=torch.tensor([0.0, 1e-30]))
    tensor(0.8000)
    """

    kx = Max(lambda x: torch.abs(x), identity=0.0, neutral=1.0)
    ky = Max(lambda y: torch.abs(y), identity=0.0, neutral=1.0)
    qx = Sum(lambda x, kx: (x / kx) ** 2)
    qy = Sum(lambda y, ky: (y / ky) ** 2)
    d = Sum(lambda x, y, kx, ky: (x / kx) * (y / ky))

    def finish(qx, qy, d):
        return torch.where((qx == 0) | (qy == 0), 0.0, d / torch.sqrt(qx * qy))

    def definition(x, y):
        xx, yy = torch.sum(x * x), torch.sum(y * y)
        return torch.where((xx == 0) | (yy == 0), 0.0, torch.sum(x * y) / torch.sqrt(xx * yy))
