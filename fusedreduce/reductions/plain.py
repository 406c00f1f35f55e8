"""What torch has by itself: sum, product, maximum, minimum, their positions, any, all."""

from __future__ import annotations

from fusedreduce.declare import All, Any, ArgMax, ArgMin, Max, Min, Prod, Reduction, Sum


class Total(Reduction):
    """sum_j x_j.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Total, torch.tensor([1.0, 3.0]))
    tensor(4.)
    """

    total = Sum(lambda x: x)

    def finish(total):
        return total


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


class Product(Reduction):
    """prod_j x_j.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Product, torch.tensor([2.0, 3.0]))
    tensor(6.)
    """

    p = Prod(lambda x: x)

    def finish(p):
        return p


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


class AnyOf(Reduction):
    """any_j (x_j != 0).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(AnyOf, torch.tensor([0.0, 3.0]))
    tensor(True)
    """

    found = Any(lambda x: x != 0)

    def finish(found):
        return found


class AllOf(Reduction):
    """all_j (x_j != 0).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(AllOf, torch.tensor([0.0, 3.0]))
    tensor(False)
    """

    ok = All(lambda x: x != 0)

    def finish(ok):
        return ok
