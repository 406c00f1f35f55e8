"""Several declarations in one pass: equal fields are shared, outputs keyed by declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusedreduce.declare.record import Field, Record
from fusedreduce.declare.reduction import Reduction, require_reduction
from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir.expr import Expr, names, rename

SEPARATOR = "."  # between the declaration's name and the output's in a joined record


@dataclass
class _Renamed:
    """One part's fields under their names in the join."""

    names: dict[str, str]

    def expr(self, e: Expr) -> Expr:
        table = dict(self.names)
        for side in ("old", "new", "a", "b"):
            table |= {f"{side}.{k}": f"{side}.{v}" for k, v in self.names.items()}
        return rename(e, {n: table[n] for n in names(e) if n in table})

    def field(self, f: Field) -> Field:
        return replace(
            f,
            name=self.names[f.name],
            term=None if f.term is None else self.expr(f.term),
            correct=None if f.correct is None else self.expr(f.correct),
            reads=tuple(self.names[r] for r in f.reads),
        )


def join(*declarations: type[Reduction]) -> type[Reduction]:
    """A declaration that runs several in one pass over the same operands.

    Fields that are equal (kind, term, correction) are kept once. Outputs are a dict keyed by the
    declarations' names. Raises `DeclarationError` when two have one name, or forms differ.

    >>> import torch, fusedreduce as fr
    >>> class Largest(fr.Reduction):
    ...     m = fr.Max(lambda x: x)
    ...     def finish(m):
    ...         return m
    >>> class LogSumExp(fr.Reduction):
    ...     m = fr.Max(lambda x: x)
    ...     s = fr.Sum(lambda x, m: torch.exp(x - m),
    ...                correct=lambda s, old, new: s * torch.exp(old.m - new.m))
    ...     def finish(m, s):
    ...         return m + torch.log(s)
    >>> both = fr.join(Largest, LogSumExp)
    >>> [f.name for f in both.record.fields]
    ['m', 's']
    >>> fr.reduce(both, torch.tensor([0.0, 0.0]))
    {'Largest': tensor(0.), 'LogSumExp': tensor(0.6931)}
    """
    parts = tuple(require_reduction(d, "an argument of fr.join") for d in declarations)
    if not parts:
        raise DeclarationError(message("fr.join() of nothing", expected="one declaration or more"))
    titles = [p.__name__ for p in parts]
    if len(set(titles)) < len(titles):
        raise DeclarationError(
            message(
                "fr.join: two declarations have one name",
                came=", ".join(titles),
                do="rename one: outputs are keyed by name",
            )
        )
    name = "_".join(titles)
    record = _joined(name, {p.__name__: p.record for p in parts})
    return type(
        name, (Reduction,), {"record": record, "parts": parts, "__doc__": f"{name}, joined."}
    )


def _joined(name: str, parts: Mapping[str, Record]) -> Record:
    records = list(parts.values())
    if len({r.form for r in records}) > 1:
        raise DeclarationError(
            message(
                "fr.join: corrected and general forms cannot share a pass",
                came=", ".join(f"{r.name} ({r.form})" for r in records),
                do="write them in one form",
            )
        )
    fields: dict[str, Field] = {}
    more: dict[str, list[Any]] = {k: [] for k in ("lift", "merge", "finish", "empty", "domain")}
    operands: dict[str, None] = {}
    payloads: dict[str, None] = {}
    for title, r in parts.items():
        table = _Renamed({})
        for f in r.fields:
            _place(title, r, f, table, fields)
        more["lift"] += r.lift
        more["merge"] += [table.expr(m) for m in r.merge]
        more["finish"] += [(_key(title, k), table.expr(e)) for k, e in r.finish]
        more["empty"] += [(_key(title, k), v) for k, v in r.empty]
        more["domain"] += [d for d in r.domain if d not in more["domain"]]
        operands |= dict.fromkeys(r.operands)
        payloads |= dict.fromkeys(r.payloads)
    return Record(
        name=name,
        form=records[0].form,
        fields=tuple(fields.values()),
        operands=tuple(sorted(operands, key=lambda n: n != "x")),
        payloads=tuple(payloads),
        commutative=all(r.commutative for r in records),
        line=records[0].line,
        names=tuple(n for r in records for n in r.names),
        lift=tuple(more["lift"]),
        merge=tuple(more["merge"]),
        finish=tuple(more["finish"]),
        empty=tuple(more["empty"]),
        domain=tuple(more["domain"]),
    )


def _place(title: str, r: Record, f: Field, table: _Renamed, fields: dict[str, Field]) -> None:
    """Give field `f` its name in the join; an equal field of a corrected form is shared."""
    table.names[f.name] = f.name
    same = fields.get(f.name)
    if r.form == "corrected" and same == table.field(f):
        return
    if same is not None:
        table.names[f.name] = f"{title}_{f.name}"
    fields[table.names[f.name]] = table.field(f)


def _key(title: str, output: str) -> str:
    return f"{title}{SEPARATOR}{output}" if output else title


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"A.mean": x, "B": y} -> {"A": {"mean": x}, "B": y}."""
    answer: dict[str, Any] = {}
    for key, value in values.items():
        name, _, output = key.partition(SEPARATOR)
        if output:
            answer.setdefault(name, {})[output] = value
        else:
            answer[name] = value
    return answer
