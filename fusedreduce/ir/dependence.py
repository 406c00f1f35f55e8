"""Which indices each subexpression needs: the union over its arguments, down to the variables.

An expression that needs only j is computed once a column, one that needs nothing once a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusedreduce.ir.expr import Expr, walk


def depends(*roots: Expr, on: Mapping[str, frozenset[str]]) -> dict[Expr, frozenset[str]]:
    """For every node under the roots, the indices it needs; a name missing in `on` needs none.

    >>> from fusedreduce.ir.expr import call, var
    >>> i, j = var("i"), var("j")
    >>> needs = depends(call("ge", i, j * 2), on={"i": frozenset("i"), "j": frozenset("j")})
    >>> [(node.op, sorted(indices)) for node, indices in needs.items()]
    [('var', ['i']), ('var', ['j']), ('const', []), ('mul', ['j']), ('ge', ['i', 'j'])]
    """
    nothing: frozenset[str] = frozenset()
    done: dict[Expr, frozenset[str]] = {}
    for node in walk(*roots):
        if node.op == "var":
            done[node] = on.get(str(node.value), nothing)
        else:
            done[node] = nothing.union(*(done[a] for a in node.args))
    return done
