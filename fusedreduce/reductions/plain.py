"""Sums, products, extremes and their positions, any and all."""

from __future__ import annotations

import torch

from fusedreduce.declare import All, Any, ArgMax, ArgMin, Max, Min, Prod, Reduction, Sum, state

INF = float("inf")


class Total(Reduction):
    """sum_j x_j.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Total, torch.tensor([1.0, 3.0]))
    tensor(4.)
    """

    total = Sum(lambda x: x)

    def finish(total):
        return total

    def definition(x):
        return torch.sum(x)


class Mean(Reduction):
    """sum_j x_j / n.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Mean, torch.tensor([1.0, 3.0]))
    tensor(2.)
    """

    n = Sum(lambda x: 1.0)
    total = Sum(lambda x: x)

    def finish(n, total):
        return total / n

    def definition(x):
        return torch.mean(x)


class Product(Reduction):
    """prod_j x_j.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Product, torch.tensor([2.0, 3.0]))
    tensor(6.)
    """

    p = Prod(lambda x: x)

    def finish(p):
        return p

    def definition(x):
        return torch.prod(x)


class ProductAndZeros(Reduction):
    """prod_j x_j as the product of those that are not 0 and how many are: it can be undone.

    Without x_i it is nonzero / x_i when zeros = 0, nonzero when x_i is the only 0, and 0 otherwise.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(ProductAndZeros, torch.tensor([2.0, 0.0, 3.0]))
    {'product': tensor(0.), 'nonzero': tensor(6.), 'zeros': tensor(1)}
    """

    p = Prod(lambda x: torch.where(x == 0, 1.0, x))
    zeros = Sum(lambda x: x == 0)

    def finish(p, zeros):
        return {"product": torch.where(zeros > 0, 0.0, p), "nonzero": p, "zeros": zeros}

    def definition(x):
        p, zeros = torch.prod(torch.where(x == 0, 1.0, x)), torch.sum(x == 0)
        return {"product": torch.where(zeros > 0, 0.0, p), "nonzero": p, "zeros": zeros}


class CompensatedSum(Reduction):
    """sum_j x_j with the rounding error of every addition kept (Knuth's TwoSum, Neumaier 1974).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(CompensatedSum, torch.tensor([1e8, 1.0, -1e8]))
    tensor(1.)
    """

    s, lost = state(0.0, 0.0)

    def lift(x):
        return x, 0.0

    def merge(a, b):
        s = a.s + b.s
        v = s - a.s
        return s, a.lost + b.lost + ((a.s - (s - v)) + (b.s - v))

    def finish(s, lost):
        return torch.where(torch.isfinite(s), s + lost, s)

    def definition(x):
        return torch.sum(x)


class Largest(Reduction):
    """max_j x_j and the first position where it stands.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Largest, torch.tensor([1.0, 3.0, 3.0]))
    {'value': tensor(3.), 'index': tensor(1)}
    """

    m = Max(lambda x: x)
    at = ArgMax(lambda x: x)

    def finish(m, at):
        return {"value": m, "index": at}

    def definition(x):
        return {"value": torch.amax(x)}


class Smallest(Reduction):
    """min_j x_j and the first position where it stands.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Smallest, torch.tensor([1.0, 3.0]), outputs="index")
    tensor(0)
    """

    m = Min(lambda x: x)
    at = ArgMin(lambda x: x)

    def finish(m, at):
        return {"value": m, "index": at}

    def definition(x):
        return {"value": torch.amin(x)}


class Argmax(Reduction):
    """The first position j of max_j x_j.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Argmax, torch.tensor([1.0, 3.0, 3.0]))
    tensor(1)
    """

    at = ArgMax(lambda x: x)

    def finish(at):
        return at


class Argmin(Reduction):
    """The first position j of min_j x_j.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Argmin, torch.tensor([1.0, 3.0, 1.0]))
    tensor(0)
    """

    at = ArgMin(lambda x: x)

    def finish(at):
        return at


class TopTwo(Reduction):
    """The largest x_j and the second largest: equal where the largest stands twice.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(TopTwo, torch.tensor([1.0, 3.0, 2.0]))
    {'first': tensor(3.), 'second': tensor(2.)}
    """

    first, second = state(-INF, -INF)

    def lift(x):
        return x, -INF

    def merge(a, b):
        runner = torch.maximum(a.second, b.second)
        low = torch.minimum(a.first, b.first)
        return torch.maximum(a.first, b.first), torch.maximum(low, runner)

    def finish(first, second):
        return {"first": first, "second": second}


class AnyOf(Reduction):
    """any_j (x_j != 0).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(AnyOf, torch.tensor([0.0, 3.0]))
    tensor(True)
    """

    found = Any(lambda x: x != 0)

    def finish(found):
        return found

    def definition(x):
        return torch.any(x != 0)


class AllOf(Reduction):
    """all_j (x_j != 0).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(AllOf, torch.tensor([0.0, 3.0]))
    tensor(False)
    """

    ok = All(lambda x: x != 0)

    def finish(ok):
        return ok

    def definition(x):
        return torch.all(x != 0)
