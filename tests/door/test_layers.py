"""Lower floors know nothing of higher ones; each heavy package has one door, opened late."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.door.floors import DOORS, LATE, ROOMS, Room, room_of, within
from tests.door.house import ROOT, Import, Module, modules


def complaints(module: Module) -> Iterator[str]:
    room = room_of(module.name)
    if room is None:
        yield f"{module.file}: stands on no floor; give it one in tests/door/floors.py"
        return
    for found in module.imports():
        for reason in (forbidden(module, room, found), hidden(module, found)):
            if reason:
                yield f"{module.file}:{found.line}: {found.target} {reason}"


def forbidden(module: Module, room: Room, found: Import) -> str | None:
    if found.inside:
        target = found.target if room_of(found.target) else "__init__"
        allowed = (*room.inside, room.name)
        if not any(within(target, name) for name in allowed):
            return f"is not for {room.name}, which may import: {', '.join(allowed)}"
        return None
    if found.target.partition(".")[0] in sys.stdlib_module_names:
        return None
    door = next((DOORS[name] for name in DOORS if within(found.target, name)), None)
    if door is not None:
        return None if within(module.name, door) else f"has one door, {door}"
    if within(found.target, "torch"):
        return None if room.torch else f"is not for {room.name}"
    return "has no door in tests/door/floors.py"


def hidden(module: Module, found: Import) -> str | None:
    if not found.late or any(within(found.target, name) for name in LATE.get(module.name, ())):
        return None
    return "is imported inside a function; put it at the top, or in LATE of tests/door/floors.py"


def test_every_import_respects_floors_and_doors() -> None:
    told = [complaint for module in modules() for complaint in complaints(module)]
    assert not told, "\n" + "\n".join(told)


def test_no_star_imports() -> None:
    told = [
        f"{module.file}:{found.line}"
        for module in modules()
        for found in module.imports()
        if found.target.endswith("*")
    ]
    assert not told, f"star imports: {', '.join(told)}"


def test_floors_stand_on_lower_floors() -> None:
    heights = {room.name: room.floor for room in ROOMS}
    upwards = [
        f"{room.name} -> {name}"
        for room in ROOMS
        for name in room.inside
        if name and heights[name] > room.floor
    ]
    assert not upwards


@pytest.mark.parametrize(
    ("file", "source", "part"),
    [
        ("ir/ops.py", "import torch", "is not for ir"),
        ("ir/ops.py", "from ..declare import Reduction", "is not for ir"),
        ("ir/ops.py", "from fusedreduce import reduce", "is not for ir"),
        ("ir/ops.py", "import attrs", "has no door"),
        ("laws/prove.py", "import sympy", "one door, laws.symbols"),
        ("laws/prove.py", "from ..masks import library", "is not for laws"),
        ("declare.py", "from torch import fx", "one door, trace"),
        ("run/eager.py", "from . import tiles", "is not for run.eager"),
        ("ops/softmax.py", "from ..run import tiles", "is not for ops"),
        ("api.py", "def f():\n    from .pipeline import prove", "inside a function"),
        ("api.py", "import importlib\nimportlib.import_module('triton')", "one door, run.driver"),
        ("cellar.py", "", "stands on no floor"),
    ],
)
def test_a_wrong_import_is_seen(file: str, source: str, part: str) -> None:
    (told,) = complaints(written(file, source))
    assert part in told


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("ir/ops.py", "from . import expr\nfrom ..errors import message\nimport math"),
        ("declare/fields.py", "import torch\nfrom .. import trace\nfrom .record import Record"),
        (
            "run/driver.py",
            "def f():\n    import triton\n    from triton.compiler import ASTSource",
        ),
        ("ops/softmax.py", "from ..run import eager\nfrom ..api import fuse\nimport torch"),
        ("__init__.py", "from . import masks, ops\nfrom .api import reduce"),
        ("__main__.py", "import typer\nfrom . import api"),
        ("pipeline.py", "def prove():\n    from .laws.prove import prove"),
    ],
)
def test_a_right_import_passes(file: str, source: str) -> None:
    assert not [*complaints(written(file, source))]


def written(file: str, source: str) -> Module:
    """A module that is not on disk."""
    module = Module(ROOT / "fusedreduce" / file)
    module.__dict__["text"] = source
    return module


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_import_is_light() -> None:
    run = python(
        "import sys, fusedreduce\n"
        "print(*sorted({'triton', 'sympy', 'mpmath', 'typer'} & set(sys.modules)))"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [], "`import fusedreduce` must not import these"


def test_every_module_imports_without_triton() -> None:
    names = [m.import_name for m in modules() if m.name != "__main__"]
    run = python(
        "import sys, importlib\n"
        "sys.modules['triton'] = None\n"
        f"for name in {names}: importlib.import_module(name)"
    )
    assert run.returncode == 0, run.stderr
