"""The class people subclass; read at once, so that mistakes show where they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusedreduce.declare.build import build
from fusedreduce.declare.kinds import Declared, Payload, StateField
from fusedreduce.declare.record import Record
from fusedreduce.errors import DeclarationError, message

_PARTS = ("lift", "merge", "finish", "empty", "domain", "definition", "grad", "jointly_gauge")


class Reduction:
    """A summary state and the rule for correcting it; subclass, declare fields, write `finish`.

    Two forms. *Corrected*: fields (`fr.Max`, `fr.Sum`, ...) whose terms may read references, and
    corrections that move a sum from one reference to another. *General*: `fr.state(identities)`
    with `lift` and an associative `merge`. Both may state `empty`, `domain`, `definition`, `grad`.

    The class attribute `record` holds what was read. Mistakes raise `DeclarationError` at the class
    statement.

    >>> import torch, fusedreduce as fr
    >>> class LogSumExp(fr.Reduction):
    ...     m = fr.Max(lambda x: x)
    ...     s = fr.Sum(lambda x, m: torch.exp(x - m),
    ...                correct=lambda s, old, new: s * torch.exp(old.m - new.m))
    ...     def finish(m, s):
    ...         return m + torch.log(s)
    >>> LogSumExp.record.operands
    ('x',)
    >>> fr.reduce(LogSumExp, torch.tensor([1000.0, 1000.0]))
    tensor(1000.6932)
    """

    record: ClassVar[Record]
    parts: ClassVar[tuple[type[Reduction], ...]] = ()
    __declared__: ClassVar[Mapping[str, Declared | Payload | StateField]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "record" in cls.__dict__:  # made by `join`, not written
            return
        declared: dict[str, Declared | Payload | StateField] = {}
        for base in reversed(cls.__mro__):
            declared |= {
                name: value
                for name, value in base.__dict__.items()
                if isinstance(value, (Declared, Payload, StateField))
            }
        cls.__declared__ = declared
        cls.record = build(cls.__qualname__, declared, {p: _raw(cls, p) for p in _PARTS})

    def __new__(cls, *args: Any, **kwargs: Any) -> Reduction:
        raise DeclarationError(
            message(
                f"{cls.__name__}() makes an instance of a declaration",
                expected="the class itself",
                do=f"write fr.reduce({cls.__name__}, x)",
            )
        )


def _raw(cls: type, name: str) -> Any:
    """The attribute as written in the body: a function stays a function."""
    for base in cls.__mro__:
        if name in base.__dict__:
            value = base.__dict__[name]
            return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    return None


def require_reduction(R: Any, what: str = "the first argument") -> type[Reduction]:
    """R itself, or the error that says what was expected.

    >>> require_reduction(3)
    Traceback (most recent call last):
    ...
    fusedreduce.errors.DeclarationError: the first argument is not a declaration
      expected  a subclass of fr.Reduction
      came      3
    """
    if isinstance(R, type) and issubclass(R, Reduction) and "record" in R.__dict__:
        return R
    came = f"{R.__name__}, a class" if isinstance(R, type) else repr(R)
    raise DeclarationError(
        message(f"{what} is not a declaration", expected="a subclass of fr.Reduction", came=came)
    )
