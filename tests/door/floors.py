"""The plan of the house as data: who may import whom, and which outside package has which door.

A name stands for a module or a folder and all that is in it. Every room may import itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """`inside` names the rooms this one may import; `torch` says whether it may import torch."""

    floor: int
    name: str
    inside: tuple[str, ...] = ()
    torch: bool = False


LANGUAGE = ("errors", "ir", "trace", "declare", "vectors")
TRACING = ("program", "pair", "states", "gradient", "chain", "reductions", "torch_reductions")
COMPILER = ("version", *LANGUAGE, *TRACING, "laws", "blocks", "masks", "plan", "kernels")
RUNNER = ("pipeline", "operators", "keyed", "derivative", "request", "structure")
CALLS = (
    "pipeline", "operators", "runner", "request", "structure", "pairing", "pair_prepared",
    "pair_runner",
)  # fmt: skip
USERS = ("errors", "api", "declare", "masks", "run.eager")

ROOMS = (
    Room(0, "errors"),
    Room(0, "version"),
    Room(1, "ir", ("errors",)),
    Room(2, "trace", ("errors", "ir"), torch=True),
    Room(2, "declare", ("errors", "ir", "trace"), torch=True),
    Room(2, "vectors", ("errors", "ir", "trace"), torch=True),
    Room(2, "reductions", ("errors", "declare"), torch=True),
    Room(3, "program", LANGUAGE),
    Room(3, "states", (*LANGUAGE, "program")),
    Room(3, "pair", (*LANGUAGE, "program", "states")),
    Room(3, "gradient", (*LANGUAGE, "program", "pair", "states")),
    Room(3, "chain", (*LANGUAGE, "program"), torch=True),
    Room(3, "torch_reductions", (*LANGUAGE, "program", "chain", "reductions"), torch=True),
    Room(3, "laws", (*LANGUAGE, "program", "states", "gradient")),
    Room(3, "blocks", ("errors", "ir", "trace"), torch=True),
    Room(3, "masks", (*LANGUAGE, "program", "pair", "blocks")),
    Room(3, "plan", (*LANGUAGE, "program", "pair")),
    Room(4, "kernels", ("errors", "ir", "declare", "program", "pair", "gradient", "masks", "plan")),
    Room(5, "run.eager", ("errors", "declare"), torch=True),
    Room(5, "run", COMPILER, torch=True),
    Room(6, "request", (*COMPILER, "run"), torch=True),
    Room(6, "structure", COMPILER, torch=True),
    Room(6, "derivative", (*COMPILER, "run"), torch=True),
    Room(6, "pipeline", (*COMPILER, "run", "structure"), torch=True),
    Room(6, "sizes", COMPILER, torch=True),
    Room(6, "operators", (*COMPILER, "run", "request"), torch=True),
    Room(6, "keyed", (*COMPILER, "run", "operators"), torch=True),
    Room(6, "runner", (*COMPILER, "run", *RUNNER, "sizes"), torch=True),
    Room(6, "pairing", (*COMPILER, "run", "pipeline", "request"), torch=True),
    Room(6, "pair_arguments", (*COMPILER, "run", "pairing"), torch=True),
    Room(6, "pair_prepared", (*COMPILER, "run", *RUNNER, "pairing", "pair_arguments"), torch=True),
    Room(6, "pair_runner", (*COMPILER, "run", *RUNNER, "sizes", *CALLS), torch=True),
    Room(6, "report", (*COMPILER, "run", *CALLS, "derivative"), torch=True),
    Room(6, "api", (*COMPILER, "run", *CALLS, "report"), torch=True),
    Room(7, "ops", (*USERS, "reductions"), torch=True),
    Room(7, "nn", (*USERS, "reductions", "ops"), torch=True),
    Room(7, "testing", USERS, torch=True),
    Room(
        8, "__init__", (*COMPILER, "run", "pipeline", "api", "reductions", "ops", "nn", "testing")
    ),
    Room(8, "command", ("",), torch=True),
    Room(8, "__main__", ("",)),
)

DOORS = {
    "torch.fx": "trace",
    "sympy": "laws.symbols",
    "mpmath": "laws.refute",
    "numpy": "laws.edges",
    "triton": "run.driver",
    "typer": "__main__",
}

# Imports inside functions: each keeps `import fusedreduce` free of a heavy package.
LATE = {
    "run.driver": ("triton",),
    "pipeline": ("laws",),
    "api.laws": ("laws",),
}


def within(name: str, room: str) -> bool:
    """`ir.ops` is within `ir`; everything is within the house, whose name is empty."""
    return room in ("", name) or name.startswith(room + ".")


def room_of(name: str) -> Room | None:
    """The most special room that holds a module."""
    holding = [room for room in ROOMS if within(name, room.name)]
    return max(holding, key=lambda room: len(room.name), default=None)
