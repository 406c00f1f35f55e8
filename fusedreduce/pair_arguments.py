"""From the arguments of a prepared pair to its inputs: what was bound once is not bound again.

Arguments lie as some did before. Which tables are tensors of the user, and how the others are made,
was found and checked then; what the tensors hold is read now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from fusedreduce.masks.sources import Made, Making, Prepare, Recipe, tensors_of
from fusedreduce.masks.text import over
from fusedreduce.pairing import Given, PairTask
from fusedreduce.run.pair_inputs import NO_TABLES, PairInputs

Values = Mapping[str, Any]
MOST_OFFSETS = 64  # whose lengths of tables are known


@dataclass(frozen=True)
class Tables:
    """Where each table comes from.

    direct  (table, the argument that it is)
    made    (table, how it is made, over names of arguments); `read`: those arguments
    """

    direct: tuple[tuple[str, str], ...]
    made: tuple[tuple[str, Made], ...]
    read: tuple[str, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.made)


@dataclass
class Arguments:
    """The inputs of a pair, from arguments by name.

    numbers   those that the pair reads
    prepare   who makes the tables that depend on lengths
    known     for offsets of queries and keys: how their tables are made
    """

    task: PairTask
    numbers: tuple[str, ...]
    prepare: Prepare
    known: OrderedDict[tuple[int, int], Making] = field(default_factory=OrderedDict)
    tables: Tables | None = None

    def __call__(self, values: Values) -> PairInputs:
        at = int(values["q_offset"]), int(values["k_offset"])
        making, tables = self.known.get(at), self.tables
        if making is None or tables is None:
            return self.first(values, at)
        found = {name: values[n] for name, n in tables.direct}
        if tables.made:
            made = making([values[n] for n in tables.read])
            found |= zip(tables.names, made, strict=True)
        numbers = {n: values[n] for n in self.numbers}
        given = found or NO_TABLES
        return PairInputs(values["q"], values["k"], values.get("v"), given, numbers, *at)

    def first(self, values: Values, at: tuple[int, int]) -> PairInputs:
        """Bound, checked, and learned for the next time."""
        inputs = Given(self.task, values, self.prepare).inputs(self.numbers)
        tables = self.tables = self.tables or tables_of(self.task, values)
        recipes = tuple(
            Recipe(m.make, tuple(map(tables.read.index, m.tensors)), len(inputs.tables[name]))
            for name, m in tables.made
        )
        self.known[at] = self.prepare(recipes, [values[n] for n in tables.read])
        if len(self.known) > MOST_OFFSETS:
            self.known.popitem(last=False)
        return inputs


def tables_of(task: PairTask, values: Values) -> Tables:
    """As `Given.tables` has them."""
    direct: list[tuple[str, str]] = []
    made: list[tuple[str, Made]] = []
    for prefix, text in (("s", task.score), ("m", task.mask)):
        if text:
            names = [n for n in values if n[0] == prefix and n[1:].isdigit()]
            for k, source in enumerate(over(text, names)[1]):
                where: list[Any] = made if isinstance(source, Made) else direct
                where.append((f"{prefix}{k}", source))
    direct += [(n, n) for n in task.besides if isinstance(values[n], Tensor)]
    return Tables(tuple(direct), tuple(made), tensors_of([m for _, m in made]))
