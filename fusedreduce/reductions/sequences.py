"""Where the order of the elements counts: linear recurrences, the best slice, a run of losses.

None states a `definition`: one that knows the order is checked on few elements, never proved for
all. tests/laws/library.py has them.
"""

from __future__ import annotations

import torch

from fusedreduce.declare import Reduction, state

INF = float("inf")


class AffineComposition(Reduction):
    """y -> a_n (... (a_1 y + c_1) ...) + c_n = slope y + shift: a linear recurrence in one pass.

    Blelloch 1990. Not commutative: a_1, c_1 come first. `a` and `c` have one shape (..., N).

    >>> import torch, fusedreduce as fr
    >>> a, c = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0])
    >>> fr.reduce(AffineComposition, a, c=c)
    {'slope': tensor(6.), 'shift': tensor(4.)}
    """

    slope, shift = state(1.0, 0.0)

    def lift(a, c):
        return a, c

    def merge(a, b):
        return b.slope * a.slope, b.slope * a.shift + b.shift

    def finish(slope, shift):
        return {"slope": slope, "shift": shift}


class MaxSubarray(Reduction):
    """max over i <= j of x_i + ... + x_j (Kadane; the merge is the halves of Bentley 1984).

    Not commutative. The state: the whole, the best beginning, the best end, the best anywhere.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(MaxSubarray, torch.tensor([2.0, -5.0, 3.0, -1.0, 2.0]))
    tensor(4.)
    """

    total, head, tail, best = state(0.0, -INF, -INF, -INF)

    def lift(x):
        return x, x, x, x

    def merge(a, b):
        head, tail = (
            torch.maximum(a.head, a.total + b.head),
            torch.maximum(b.tail, a.tail + b.total),
        )
        best = torch.maximum(torch.maximum(a.best, b.best), a.tail + b.head)
        return a.total + b.total, head, tail, best

    def finish(best):
        return best


class LossStatistics(Reduction):
    """mean and largest of the finite x_j, the last x_j, and how many are not finite.

    For the losses of a run in the order of steps: not commutative.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(LossStatistics, torch.tensor([3.0, float("nan"), 1.0]))
    {'mean': tensor(2.), 'last': tensor(1.), 'largest': tensor(3.), 'nonfinite': tensor(1)}
    """

    n, total, last, largest, nonfinite = state(0, 0.0, 0.0, -INF, 0)

    def lift(x):
        ok = torch.isfinite(x)
        return 1, torch.where(ok, x, 0.0), x, torch.where(ok, x, -INF), torch.where(ok, 0, 1)

    def merge(a, b):
        last, largest = torch.where(b.n > 0, b.last, a.last), torch.maximum(a.largest, b.largest)
        return a.n + b.n, a.total + b.total, last, largest, a.nonfinite + b.nonfinite

    def finish(n, total, last, largest, nonfinite):
        mean = total / (n - nonfinite)
        return {"mean": mean, "last": last, "largest": largest, "nonfinite": nonfinite}
