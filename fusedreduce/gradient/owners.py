"""A backward whose row is too long to stay on chip, in two: the rows' sums, then columns' owners.

    sums     every sum over a row that the rest reads                     reads the row once
    owners   element gradients, and column gradients as sums over rows    reads it once more

The owners hold no reduction along the row: a program owns some columns of many rows and keeps their
sums in registers, however long the row is.
"""

from __future__ import annotations

from dataclasses import replace

from fusedreduce.gradient.axes import row_dims
from fusedreduce.gradient.programs import pruned
from fusedreduce.ir.expr import names, rename, var
from fusedreduce.program import Input, Output, Program


def apart(joined: Program) -> tuple[Program | None, Program]:
    """The two programs that do what `joined` does; None where no sum over a row is read."""
    wide = [o for o in joined.outputs if o.summed or joined.place_of_axes(o.axes) == "element"]
    read = set(names(*(o.expr for o in wide)))
    values = {f"{s.name}.value": s.name for s in joined.stages if f"{s.name}.value" in read}
    given = tuple(Input(n, row_dims(joined), joined.state) for n in values.values())
    owners = replace(
        joined,
        name=f"{joined.name}_owners",
        inputs=(*joined.inputs, *given),
        stages=(),
        outputs=tuple(replace(o, expr=rename(o.expr, values)) for o in wide),
    )
    narrow = tuple(o for o in joined.outputs if o not in wide)
    kept = tuple(Output(n, var(v), row_dims(joined), joined.state) for v, n in values.items())
    if not narrow and not kept:
        return None, pruned(owners)
    sums = replace(joined, name=f"{joined.name}_sums", outputs=(*narrow, *kept))
    return pruned(sums), pruned(owners)
