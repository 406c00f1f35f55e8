"""What is known about a declaration: its laws, each with a status and the reason for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field as field_
from enum import Enum

from fusedreduce.errors import LawViolation, message

LAWS = (
    "identity", "associativity", "unit", "composition", "faithfulness", "additivity", "absence",
    "meaning", "definition", "gradient", "empty",
)  # fmt: skip


class Status(str, Enum):
    """Proved: an exact argument over the reals. Refuted: a counterexample. Checked: tried on up
    to three elements or in high precision, never printed as proved. Unknown: the law says why."""

    PROVED = "Proved"
    REFUTED = "Refuted"
    CHECKED = "Checked"
    UNKNOWN = "Unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Counterexample:
    """left != right at these elements or states; numbers are texts, long enough to differ."""

    at: tuple[tuple[str, str], ...]
    left: tuple[str, str]
    right: tuple[str, str]

    def __str__(self) -> str:
        where = ", ".join(f"{name} = {value}" for name, value in self.at)
        sides = f"{self.left[0]} = {self.left[1]}, but {self.right[0]} = {self.right[1]}"
        return f"{sides}  ({where})" if where else sides


@dataclass(frozen=True)
class Law:
    """One law of one declaration.

    name       one of LAWS
    field      the field it is about; "" for the whole state
    statement  the law in words and maths
    how        the argument, or the number of trials
    line       the user's line the law judges
    advice     what to change when it is refuted
    """

    name: str
    field: str
    status: Status
    statement: str
    how: str = ""
    counterexample: Counterexample | None = None
    line: str = field_(default="", compare=False)
    advice: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} of `{self.field}`" if self.field else self.name


@dataclass(frozen=True)
class Facts:
    """What selects a lowering; None stands for "not known".

    commutative  merge(a, b) = merge(b, a)
    bounded      terms and corrections stay bounded while the references move as their merges do
    underflows   sums that may underflow although an element counts: finish divides by them or takes
                 their log, and the element that makes the reference may add 0 to them
    gauge        per output: "free" (does not depend on the reference), "first order" (its slope
                 along the reference is 0 at the reference's own value), "no", "unknown"
    gradient     "derived" (the backward is derived), "stated" (by `grad`), "run again" (torch
                 differentiates the unfused run), "" (no output has one)
    """

    commutative: bool | None = None
    bounded: bool | None = None
    underflows: tuple[str, ...] = ()
    gauge: tuple[tuple[str, str], ...] = ()
    gradient: str = ""

    @property
    def flat(self) -> tuple[str, ...]:
        """The outputs through whose references no gradient flows."""
        return tuple(name for name, how in self.gauge if how in ("free", "first order"))

    def lines(self) -> list[str]:
        yes_no = {True: "{}", False: "not {}", None: "{} unknown"}
        told = [yes_no[self.commutative].format("commutative")]
        if self.bounded is not None:
            told.append(yes_no[self.bounded].format("bounded"))
        if self.underflows:
            told.append(f"may underflow: {', '.join(self.underflows)}")
        for kind, words in (("free", "gauge-free"), ("first order", "gauge-free to first order")):
            outputs = [name or "the result" for name, how in self.gauge if how == kind]
            told += [f"{words}: {', '.join(outputs)}"] if outputs else []
        how = {"stated": "gradient stated", "run again": "gradient by the unfused run"}
        return [*told, *([how[self.gradient]] if self.gradient in how else [])]


@dataclass(frozen=True)
class Certificate:
    """The laws of a declaration, over the reals, and the guards chosen on the float grid."""

    name: str
    form: str
    laws: tuple[Law, ...]
    facts: Facts
    meaning_stated: bool
    subject: str = ""  # the text of what was judged; it goes into the hash
    assumptions: tuple[str, ...] = ()
    guards: tuple[str, ...] | None = None

    @property
    def proved(self) -> bool:
        """Every law that applies is Proved."""
        return all(law.status is Status.PROVED for law in self.laws)

    @property
    def refuted(self) -> tuple[Law, ...]:
        return tuple(law for law in self.laws if law.status is Status.REFUTED)

    @property
    def open(self) -> tuple[Law, ...]:
        """Laws that are neither proved nor refuted."""
        return tuple(law for law in self.laws if law.status in (Status.CHECKED, Status.UNKNOWN))

    @property
    def hash(self) -> str:
        """Six hex digits that change with the declaration or with any verdict."""
        verdicts = ";".join(f"{law.name} {law.field} {law.status}" for law in self.laws)
        text = f"{self.name}|{self.form}|{self.subject}|{verdicts}"
        return hashlib.sha256(text.encode()).hexdigest()[:6]

    @property
    def headline(self) -> str:
        if self.refuted:
            return f"refuted: {', '.join(dict.fromkeys(law.title for law in self.refuted))}"
        if not self.proved:
            return "not proved"
        if not self.meaning_stated:
            return "a lawful merge; what it computes was not stated"
        edges = "" if self.guards is None else ", checked at the floating-point edges"
        return f"proved over the reals{edges}"

    @property
    def summary(self) -> str:
        """One line for the head of a printed kernel."""
        names = ", ".join(
            dict.fromkeys(law.name for law in self.laws if law.status is Status.PROVED)
        )
        lacking = "".join(f"; {law.title} {law.status}" for law in (*self.refuted, *self.open))
        return f"{names}{lacking} (certificate {self.hash})"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.headline}"]
        for status in Status:
            named: dict[str, list[str]] = {}
            for law in self.laws:
                if law.status is status:
                    named.setdefault(law.name, []).append(law.field)
            if named:
                lines.append(_row(str(status), map(_with_fields, named.items())))
        for law in self.refuted:
            lines += [_row(name, [text]) for name, text in told(law)]
        lines.append(_row("facts", self.facts.lines()))
        if self.guards is not None:
            lines.append(_row("guards", self.guards or ("none needed",)))
        if self.assumptions:
            lines.append(_row("assuming", self.assumptions))
        return "\n".join([*lines, _row("hash", [self.hash])])

    def explain(self) -> str:
        """Every law: what it says, how it was decided, and the counterexample if there is one."""
        blocks = [str(self)]
        for law in self.laws:
            lines = [f"{law.title}: {law.status}", f"  {law.statement}"]
            lines += [f"  {law.how}"] if law.how else []
            lines += [f"  {law.counterexample}"] if law.counterexample else []
            lines += [f"  to do: {law.advice}"] if law.advice else []
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)

    def raise_if_refuted(self) -> None:
        """`LawViolation` with the first counterexample; the other refuted laws are named."""
        if self.refuted:
            raise LawViolation(refusal(self))


def told(law: Law) -> list[tuple[str, str]]:
    """A refuted law: both sides with numbers, the line it judges."""
    found = [("example", f"{law.title}: {law.counterexample}")] if law.counterexample else []
    return found + ([("where", law.line)] if law.line else [])


def refusal(certificate: Certificate) -> str:
    """The message of a refused declaration: the law, both sides with numbers, the line, what to do.

    Of several refuted laws the first that knows what to change is told in full.
    """
    law, *others = sorted(certificate.refuted, key=lambda law: not law.advice)
    example = law.counterexample
    came = "" if example is None else f"{example.left[0]} = {example.left[1]}"
    expected = "" if example is None else f"{example.right[0]} = {example.right[1]}"
    text = message(
        f"{certificate.name}: {law.title} does not hold: {law.statement}",
        expected=expected,
        came=came,
        where=law.line,
        do=law.advice,
    )
    if example is not None and example.at:
        text += "\n  " + _row("at", (f"{name} = {value}" for name, value in example.at)).lstrip()
    if others:
        text += "\n  " + _row("also", (other.title for other in others)).lstrip()
    return text


def _row(name: str, items: Iterable[str]) -> str:
    return f"  {name:<9} {', '.join(items)}"


def _with_fields(item: tuple[str, list[str]]) -> str:
    name, fields = item
    named = [f for f in fields if f]
    return f"{name} ({', '.join(named)})" if named else name
