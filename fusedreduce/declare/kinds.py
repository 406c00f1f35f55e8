"""Field kinds: what stands on the right-hand side in the body of a declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusedreduce import trace
from fusedreduce.declare.record import NO_POSITION
from fusedreduce.errors import DeclarationError, message

Function = Callable[..., Any]
INFINITY = float("inf")


class Declared:
    """A field as written in the body of a class: its kind, its functions, where it stands."""

    kind = ""
    identity: float | int | bool = 0.0
    neutral = 0.0

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.correct: Function | None = None
        self.line = trace.user_line()

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"fr.{self.kind}(...)"


class _Ordered(Declared):
    default = 0.0

    def __init__(
        self, fn: Function, *, identity: float | None = None, neutral: float = 0.0
    ) -> None:
        super().__init__(fn)
        self.identity = self.default if identity is None else _number(identity, "identity")
        self.neutral = _number(neutral, "neutral")


class Max(_Ordered):
    """max_j fn(x_j): a reference, or a value of its own.

    identity  what nothing has: -inf. Give a larger one when all values are (0.0 for a scale).
    neutral   what a term reads while the maximum is at its identity or infinite: 0.0 for a
              reference that is subtracted, 1.0 for one that divides.

    >>> import torch, fusedreduce as fr
    >>> class Largest(fr.Reduction):
    ...     m = fr.Max(lambda x: x)
    ...     def finish(m):
    ...         return m
    >>> fr.reduce(Largest, torch.tensor([1.0, 3.0, 2.0]))
    tensor(3.)
    """

    kind = "Max"
    default = -INFINITY


class Min(_Ordered):
    """min_j fn(x_j), with identity +inf; else as `Max`.

    >>> import torch, fusedreduce as fr
    >>> class Smallest(fr.Reduction):
    ...     m = fr.Min(lambda x: x)
    ...     def finish(m):
    ...         return m
    >>> fr.reduce(Smallest, torch.tensor([1.0, 3.0, 2.0]))
    tensor(1.)
    """

    kind = "Min"
    default = INFINITY


class Sum(Declared):
    """sum_j fn(x_j, references): the workhorse.

    correct(field, old, new)  moves the field from the references `old` (the whole state before) to
    `new` (the new references). Left out, it is derived from the term when the term admits one.

    >>> import torch, fusedreduce as fr
    >>> class Total(fr.Reduction):
    ...     s = fr.Sum(lambda x: x)
    ...     def finish(s):
    ...         return s
    >>> fr.reduce(Total, torch.tensor([1.0, 3.0, 2.0]))
    tensor(6.)
    """

    kind = "Sum"

    def __init__(self, fn: Function, correct: Function | None = None) -> None:
        super().__init__(fn)
        self.correct = correct


class Prod(Declared):
    """prod_j fn(x_j); identity 1.

    >>> import torch, fusedreduce as fr
    >>> class Product(fr.Reduction):
    ...     p = fr.Prod(lambda x: x)
    ...     def finish(p):
    ...         return p
    >>> fr.reduce(Product, torch.tensor([2.0, 3.0]))
    tensor(6.)
    """

    kind = "Prod"
    identity = 1.0


class Any_(Declared):
    """any_j fn(x_j), of a boolean; identity False.

    >>> import torch, fusedreduce as fr
    >>> class HasNegative(fr.Reduction):
    ...     found = fr.Any(lambda x: x < 0)
    ...     def finish(found):
    ...         return found
    >>> fr.reduce(HasNegative, torch.tensor([2.0, -3.0]))
    tensor(True)
    """

    kind = "Any"
    identity = False


class All(Declared):
    """all_j fn(x_j), of a boolean; identity True.

    >>> import torch, fusedreduce as fr
    >>> class Finite(fr.Reduction):
    ...     ok = fr.All(lambda x: torch.isfinite(x))
    ...     def finish(ok):
    ...         return ok
    >>> fr.reduce(Finite, torch.tensor([2.0, -3.0]))
    tensor(True)
    """

    kind = "All"
    identity = True


class First(Declared):
    """fn of the element with the smallest position: a value of the data, exact as a shift.

    >>> import torch, fusedreduce as fr
    >>> class Head(fr.Reduction):
    ...     r = fr.First(lambda x: x)
    ...     def finish(r):
    ...         return r
    >>> fr.reduce(Head, torch.tensor([7.0, 3.0]))
    tensor(7.)
    """

    kind = "First"
    identity = 0.0


class ArgMax(Declared):
    """The position j of the largest fn(x_j): the smallest on a tie; a NaN counts as largest.

    >>> import torch, fusedreduce as fr
    >>> class Where(fr.Reduction):
    ...     at = fr.ArgMax(lambda x: x)
    ...     def finish(at):
    ...         return at
    >>> fr.reduce(Where, torch.tensor([1.0, 3.0, 3.0]))
    tensor(1)
    """

    kind = "ArgMax"
    identity = -INFINITY
    position_identity = NO_POSITION


class ArgMin(Declared):
    """The position j of the smallest fn(x_j); else as `ArgMax`.

    >>> import torch, fusedreduce as fr
    >>> class Where(fr.Reduction):
    ...     at = fr.ArgMin(lambda x: x)
    ...     def finish(at):
    ...         return at
    >>> fr.reduce(Where, torch.tensor([1.0, 3.0, 0.5]))
    tensor(2)
    """

    kind = "ArgMin"
    identity = INFINITY
    position_identity = NO_POSITION


class Reference(Declared):
    """A bound reference: a value computed from other fields, such as mean = total / n.

    >>> import torch, fusedreduce as fr
    >>> class Spread(fr.Reduction):
    ...     n = fr.Sum(lambda x: 1.0)
    ...     t = fr.Sum(lambda x: x)
    ...     mean = fr.Reference(lambda n, t: t / n)
    ...     e = fr.Sum(lambda x, mean: x - mean)
    ...     e2 = fr.Sum(lambda x, mean: (x - mean) ** 2)
    ...     def finish(n, e2):
    ...         return e2 / n
    >>> fr.reduce(Spread, torch.tensor([1.0, 3.0]))
    tensor(1.)
    """

    kind = "Reference"

    def __init__(self, fn: Function, *, neutral: float = 0.0) -> None:
        super().__init__(fn)
        self.neutral = _number(neutral, "neutral")


class Payload:
    """A vector per key (attention's v): a `Sum` of p(score, state) * payload is a matmul.

    >>> import fusedreduce as fr
    >>> class WeightedSum(fr.Reduction):
    ...     v = fr.Payload()
    ...     o = fr.Sum(lambda x, v: x * v)
    ...     def finish(o):
    ...         return o
    >>> WeightedSum.record.payloads
    ('v',)
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class StateField:
    """One field of a general form, with its identity."""

    def __init__(self, identity: float | int | bool, line: str) -> None:
        self.identity = identity
        self.line = line

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


def state(*identities: float | int | bool) -> Any:
    """The fields of a general form, each given by its identity; one field for one argument.

    >>> import fusedreduce as fr
    >>> class Total(fr.Reduction):
    ...     total = fr.state(0.0)
    ...     def lift(x):
    ...         return x
    ...     def merge(a, b):
    ...         return a.total + b.total
    ...     def finish(total):
    ...         return total
    >>> Total.record.form
    'general'
    """
    line = trace.user_line()
    if not identities:
        raise trace.refuse("fr.state() without an identity", do="write fr.state(0.0) for one field")
    made = tuple(StateField(_number(v, "identity"), line) for v in identities)
    return made[0] if len(made) == 1 else made


def _number(value: Any, what: str) -> Any:
    if not isinstance(value, (bool, int, float)):
        raise DeclarationError(
            message(
                f"{what} is not a number",
                expected="a Python number",
                came=repr(value),
                where=trace.user_line(),
            )
        )
    return value
