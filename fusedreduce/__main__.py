"""The command line, `python -m fusedreduce`: prove, show, explain, list, derive."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NoReturn

import typer

from fusedreduce import api, pipeline
from fusedreduce.command import calls
from fusedreduce.command.calls import CALLS, Seen
from fusedreduce.command.stand_ins import fused_task, parsed_dtype, parsed_shape, reduce_task
from fusedreduce.command.targets import PROGRAM, SHIPPED, declaration, load, require
from fusedreduce.command.text import BOLD, highlighted, normal_form, statuses, styled
from fusedreduce.errors import FusedReduceError, OptionError, message
from fusedreduce.laws.terms import term_function

app = typer.Typer(
    help="Declare a reduction once, prove it, look at the kernels printed from it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Target = Annotated[
    str, typer.Argument(help="a shipped name, or FILE.py:NAME", metavar="NAME|FILE.py:NAME")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(help="4096x1024, or weight=1024; once a tensor", metavar="SHAPE"),
]
Dtype = Annotated[str, typer.Option(help="of the floating tensors")]
Causal = Annotated[bool, typer.Option("--causal", help="attention: i >= j")]
Window = Annotated[int, typer.Option(help="attention: the last so many keys", metavar="KEYS")]


@app.command()
def prove(
    target: Target,
    long: Annotated[bool, typer.Option("--long", help="every law, and how it was decided")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="what is not proved fails too")] = False,
) -> None:
    """The certificate of a declaration. Exit code 1 when a law is refuted."""
    certificate = api.prove(declaration(target))
    say(statuses(certificate.explain() if long else str(certificate)))
    if certificate.refuted:
        try:
            certificate.raise_if_refuted()
        except FusedReduceError as refusal:
            say(f"\n{refusal}")
        raise typer.Exit(1)
    for law in certificate.open:
        warn(f"{law.title} is {law.status}: {law.how or law.statement}")
    if strict and not certificate.proved:
        raise typer.Exit(1)


@app.command()
def show(
    target: Target,
    shape: Shapes = None,
    dtype: Dtype = "float32",
    causal: Causal = False,
    window: Window = 0,
    backward: Annotated[
        bool, typer.Option("--backward", help="attention: the kernels of d q, and of d k and d v")
    ] = False,
    strategy: Annotated[
        Literal["block", "loop"] | None, typer.Option(help="instead of the planned one")
    ] = None,
    ir: Annotated[bool, typer.Option("--ir", help="the normal form")] = False,
    proof: Annotated[bool, typer.Option("--proof", help="the certificates")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="plan, traffic and stages")] = False,
) -> None:
    """The printed Triton kernel of a declaration, a fused function, or of attention."""
    shapes = [parsed_shape(text) for text in shape or ()]
    if target in CALLS:
        for source in calls.sources(shapes, parsed_dtype(dtype), Seen(causal, window), backward):
            say(highlighted(source))
        return
    found = load(target)
    if isinstance(found, api.Fused):
        task, values = fused_task(found, shapes, parsed_dtype(dtype))
    else:
        task, values = reduce_task(require(found, target), shapes, parsed_dtype(dtype))
    with warnings.catch_warnings(record=True) as told:
        printed = pipeline.print_task(task, values, trust=False, strategy=strategy)
    for warning in told:
        warn(str(warning.message))
    program = printed.traced.program
    views: dict[str, Callable[[], str]] = {
        "ir": lambda: normal_form(program),
        "proof": lambda: statuses(proof_text(found, printed)),
        "plan": lambda: pipeline.describe(printed),
    }
    chosen = [views[n] for n, wanted in {"ir": ir, "proof": proof, "plan": plan}.items() if wanted]
    say("\n\n".join(view() for view in chosen) or highlighted(printed.kernel.source))


@app.command()
def explain(
    target: Target,
    shape: Shapes = None,
    dtype: Dtype = "float32",
    causal: Causal = False,
    window: Window = 0,
    architecture: Annotated[
        str, typer.Option(help="plan and compile for it", metavar="sm_NN")
    ] = "sm_90",
) -> None:
    """What a call would run: plan, blocks, memory, registers; `attention` is a target too."""
    shapes = [parsed_shape(text) for text in shape or ()]
    kind = parsed_dtype(dtype)
    if target in CALLS:
        say(calls.attention_text(shapes, kind, Seen(causal, window), architecture))
    else:
        say(calls.explained(load(target), target, shapes, kind, architecture))


@app.command("list")
def list_() -> None:
    """The shipped declarations: name, form, state, formula; then the calls that are shown too."""
    width = max(map(len, SHIPPED))
    for name, R in SHIPPED.items():
        fields = ", ".join(f.name for f in R.record.fields)
        formula = (R.__doc__ or "").partition("\n")[0]
        say(f"{styled(name.ljust(width), BOLD)}  {R.record.form:<9}  {fields}")
        say(f"{'':<{width}}  {formula}")
    for name, what in CALLS.items():
        say(f"{styled(name.ljust(width), BOLD)}  {what}")


@app.command()
def derive(
    term: Annotated[str, typer.Argument(help='such as "exp(x - m)"')],
    reference: Annotated[str, typer.Option(help="the name that moves")],
    companion: Annotated[
        list[str] | None, typer.Option(help='another sum at hand: "s=exp(x - m)"')
    ] = None,
) -> None:
    """How a sum of the term moves with its reference. Exit code 1 when it cannot be told."""
    given = [text.partition("=") for text in companion or ()]
    others = {name.strip(): term_function(text) for name, _, text in given}
    moved = term_function(term)
    if reference not in inspect.signature(moved).parameters:
        raise OptionError(
            message(f"{term} does not read {reference}", came=f"--reference {reference}")
        )
    found = api.derive(moved, reference=reference, companions=others)
    say(str(found))
    if not found:
        raise typer.Exit(1)


def proof_text(found: Any, printed: pipeline.Printed) -> str:
    """The certificate of a declaration; of a fused function, a line for each that it uses."""
    if isinstance(found, api.Fused):
        return "\n".join(printed.traced.certificates)
    return str(api.prove(found))


def say(text: str) -> None:
    typer.echo(text.rstrip("\n"))


def warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line; an error of the library is told in its own words, with exit code 2."""
    try:
        app(arguments, prog_name=PROGRAM)
    except FusedReduceError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
