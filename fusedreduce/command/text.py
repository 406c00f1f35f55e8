"""What the command line prints: a program in normal form, and colour on a terminal."""

from __future__ import annotations

import io
import keyword
import os
import re
import sys
import tokenize
from collections.abc import Mapping, Sequence

from fusedreduce.ir.show import listing
from fusedreduce.program import Program, Stage

STATUS_COLOURS = {
    r"\b(Proved|proved)\b": "green",
    r"\b(Refuted|refuted)\b": "red",
    r"\b(Unknown|Checked|not proved)\b": "yellow",
}
TOKEN_COLOURS = {
    tokenize.COMMENT: "bright_black",
    tokenize.STRING: "green",
    tokenize.NUMBER: "cyan",
}


def proof_text(found: Any, printed: pipeline.Printed) -> str:
    """The certificate of a declaration; of a fused function, a line for each that it uses."""
    if isinstance(found, api.Fused):
        return "\n".join(printed.traced.certificates)
    return str(api.prove(found))


def normal_form(program: Program) -> str:
    """Axes, inputs, stages and outputs of a program, an expression a line."""
    sizes = ", ".join(f"{a.name} = {a.size}{' reduced' * a.reduced}" for a in program.axes)
    inputs = [
        f"input   {i.name}: {i.dtype}" + (" number" if i.number else f" ({dims(i.dims)})")
        for i in program.inputs
    ]
    outputs = [f"output  {o.name}: {o.dtype} ({dims(o.dims)})" for o in program.outputs]
    formulas = listing((o.name, o.expr) for o in program.outputs)
    blocks = [
        "\n".join([f"{program.name}, computed in {program.state}", f"axes    {sizes}", *inputs]),
        *(stage_text(s) for s in program.stages),
        "\n".join([*outputs, indented(formulas)]),
    ]
    return "\n\n".join(blocks)


def stage_text(s: Stage) -> str:
    record = s.record
    terms = [(f.name, f.term) for f in record.fields if f.term is not None]
    general = [
        (f"{part} {f.name}", e)
        for part, exprs in (("lift", record.lift), ("merge", record.merge))
        for f, e in zip(record.fields, exprs, strict=False)
    ]
    corrections = [(f"correct {f.name}", f.correct) for f in record.fields if f.correct is not None]
    lines = [
        *((f"operand {n}", e) for n, e in s.operands),
        *((f"{record.by_name[n].kind} {n}", e) for n, e in terms),
        *general,
        *corrections,
        *((s.result(o), e) for o, e in record.finish),
    ]
    return f"stage   {s.name}: {record.name}, level {s.level}\n{indented(listing(lines))}"


def dims(of: Sequence[Sequence[str]]) -> str:
    return ", ".join("*".join(d) or "1" for d in of)


def indented(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.splitlines())


def coloured() -> bool:
    """A terminal that has not asked for plain text (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def bold(text: str) -> str:
    return typer.style(text, bold=True) if coloured() else text


def painted(text: str, colours: Mapping[str, str]) -> str:
    """Text with every match of a pattern in its colour."""
    if coloured():
        for pattern, colour in colours.items():
            text = re.sub(pattern, lambda m, c=colour: typer.style(m[0], fg=c), text)
    return text


def highlighted(source: str) -> str:
    """Python source with its comments, strings, numbers and keywords in colour."""
    if not coloured():
        return source
    lines = source.splitlines()
    for token in reversed([*tokenize.generate_tokens(io.StringIO(source).readline)]):
        colour = TOKEN_COLOURS.get(token.type)
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            colour = "magenta"
        (row, start), (end_row, end) = token.start, token.end
        if colour and row == end_row:
            line = lines[row - 1]
            lines[row - 1] = line[:start] + typer.style(token.string, fg=colour) + line[end:]
    return "\n".join(lines)
