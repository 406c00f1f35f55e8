"""What a target on the command line means: a shipped name, FILE.py:NAME, or a term as text."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusedreduce import reductions
from fusedreduce.api import Fused
from fusedreduce.declare import Reduction
from fusedreduce.errors import DeclarationError, FusedReduceError, OptionError, message

PROGRAM = "python -m fusedreduce"
MOST_CHOICES = 20  # more names than these are not listed in a message
SHIPPED: Mapping[str, type[Reduction]] = {n: getattr(reductions, n) for n in reductions.__all__}


def declaration(target: str) -> type[Reduction]:
    return require(load(target), target)


def require(found: Any, target: str) -> type[Reduction]:
    """The declaration that was found, or the error that says what it is instead."""
    if isinstance(found, type) and issubclass(found, Reduction) and found is not Reduction:
        return found
    advice = "put @fr.fuse above it" if callable(found) and not isinstance(found, type) else ""
    if isinstance(found, Fused):
        advice = f"{PROGRAM} show {target}"
    raise DeclarationError(
        message(
            f"{target} is not a declaration",
            expected="a subclass of fr.Reduction",
            came=type(found).__name__,
            do=advice,
        )
    )


def load(target: str) -> Any:
    """The object called NAME, among the shipped ones or in FILE.py."""
    file, colon, name = target.rpartition(":")
    if colon and not target.endswith(".py"):
        module = imported(Path(file))
        return named(name, vars(module), declared_names(module), file)
    if target.endswith(".py"):
        names = ", ".join(declared_names(imported(Path(target))))
        raise OptionError(
            message(f"{target}: which declaration?", expected=f"{target}:NAME", came=target)
            + (f"\n  {'there':<9} {names}" if names else "")
        )
    return named(target, SHIPPED, [*SHIPPED], "fusedreduce")


def named(name: str, where: Mapping[str, Any], near: Sequence[str], place: str) -> Any:
    """where[name], or the error with the names that come near."""
    if name in where:
        return where[name]
    folded = {folded_name(n): n for n in near}
    close = difflib.get_close_matches(folded_name(name), folded, n=2, cutoff=0.5)
    choices = ", ".join(near) if len(near) <= MOST_CHOICES else ""
    raise OptionError(
        message(
            f"{place} has no {name!r}",
            expected=choices,
            do=f"did you mean {' or '.join(folded[n] for n in close)}?" if close else "",
        )
    )


def folded_name(name: str) -> str:
    return name.replace("_", "").lower()


def declared_names(module: Any) -> list[str]:
    """The declarations and fused functions written in a module."""
    return [
        n
        for n, v in vars(module).items()
        if isinstance(v, Fused | type)
        and (isinstance(v, Fused) or issubclass(v, Reduction))
        and v.__module__ == module.__name__
    ]


def imported(path: Path) -> Any:
    """The module in a file, run once; it may import its neighbours, as a script may."""
    if not path.is_file() or path.suffix != ".py":
        raise OptionError(message(f"{path} is not a Python file", expected="FILE.py:NAME"))
    name = f"declared_in_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(path.resolve().parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FusedReduceError:
        raise
    except Exception as error:
        raise OptionError(
            message(f"{path} does not run", came=f"{type(error).__name__}: {error}")
        ) from error
    return module
