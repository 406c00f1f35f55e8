"""From the body of a class to a record: which form it is, and whether the names can stand."""

from __future__ import annotations

from fusedreduce import trace
from fusedreduce.declare.corrected import Corrected
from fusedreduce.declare.general import General
from fusedreduce.declare.kinds import Payload, StateField
from fusedreduce.declare.parts import Body, Parts, domain_of, fault
from fusedreduce.declare.record import RESERVED_FIELDS, Record


def build(name: str, body: Body, parts: Parts) -> Record:
    """The record of a declaration called `name`."""
    fields = {n: f for n, f in body.items() if not isinstance(f, Payload)}
    if not fields:
        raise fault(
            f"{name} declares no field",
            trace.user_line(),
            expected="fields such as m = fr.Max(lambda x: x), or fr.state(...) with lift and merge",
        )
    for n in body:
        if n in RESERVED_FIELDS:
            raise fault(
                f"`{n}` cannot be the name of a field",
                getattr(body[n], "line", trace.user_line()),
                expected=f"a name other than {', '.join(sorted(RESERVED_FIELDS))}",
                do="rename the field",
            )
    general = [n for n, f in fields.items() if isinstance(f, StateField)]
    if general and len(general) < len(fields):
        raise fault(
            f"{name} mixes fr.state(...) with field kinds",
            trace.user_line(),
            came=", ".join(f"{n} ({type(f).__name__})" for n, f in fields.items()),
            do="write all fields by kinds (corrected form), or all by fr.state with lift and merge",
        )
    builder = General if general else Corrected
    return builder(name, body, parts, domain_of(parts["domain"])).record()
