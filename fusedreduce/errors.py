"""The one family of errors: what was expected, what came, where in the user's code, what to do.

>>> import torch, fusedreduce as fr
>>> try:
...     fr.reduce(fr.reductions.LogSumExp, torch.ones(3), outputs="mean")
... except fr.errors.FusedReduceError as error:
...     print(error)
LogSumExp has no output 'mean'
  expected  outputs=None
"""

from __future__ import annotations


class FusedReduceError(Exception):
    """The base of every error this library raises on purpose."""


class DeclarationError(FusedReduceError):
    """A declaration says what the language cannot mean: unknown name, cycle, control flow."""


class LawViolation(FusedReduceError):
    """A law of a declaration was refuted; the message holds both sides, with numbers."""


class NotFusible(DeclarationError):
    """A function cannot become one kernel; the message names the operation in the way."""


class OperandError(FusedReduceError, TypeError):
    """Operands are missing, unknown or not tensors."""


class ShapeError(FusedReduceError, ValueError):
    """Shapes or dimensions do not fit."""


class DtypeError(FusedReduceError, TypeError):
    """A dtype is not served."""


class DeviceError(FusedReduceError, ValueError):
    """Tensors lie on different devices, or on one the chosen implementation does not serve."""


class OptionError(FusedReduceError, ValueError):
    """An option has a value that is not one of its choices."""


class BackendError(FusedReduceError, RuntimeError):
    """A printed kernel could not be built or run; the message names its file and declaration."""


class ProofWarning(UserWarning):
    """A law of a declaration that runs is neither proved nor refuted."""


def message(fact: str, *, expected: str = "", came: str = "", where: str = "", do: str = "") -> str:
    """One fact, then the four parts, each on a line of its own where there is something to say."""
    parts = (("expected", expected), ("came", came), ("where", where), ("do", do))
    return "\n".join([fact, *(f"  {name:<9} {text}" for name, text in parts if text)])
