"""THE table: one row an operation, with its spelling in every dialect and every fact about it.

A new scalar function is one row here, one in `partials`, one in `range_rules` (and, where Triton
lacks it, one helper in `kernels/functions.py`); the walk-the-table test says what is missing.

Spellings are format strings over the arguments. Their precedence is read from the text itself
(`show.shape`), so a row may be infix in one dialect and a call in another. Where a spelling needs
a function of ours, it is called by its bare name: in Triton a printed helper, elsewhere `random`
of `philox`, in mpmath `real`, `divide` and `remainder` of `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from fusedreduce.ir.expr import Number
from fusedreduce.ir.partials import PARTIALS, Rule
from fusedreduce.ir.range_rules import RANGES
from fusedreduce.ir.ranges import Interval

#: "join" is the largest kind of the arguments, bool < int < float (`where`: of its two branches).
KINDS = ("bool", "int", "float")
DIALECTS = ("torch", "triton", "numpy", "mpmath", "sympy")

Range: TypeAlias = Callable[..., Interval]


@dataclass(frozen=True)
class Op:
    """name(arguments): spellings, kinds, derivative, interval.

    `takes` names what each argument must be: "any"; "number" (not all boolean: bool + bool has no
    agreed meaning); "float" (integers are converted); "int" (or boolean); "bool". `steps` marks the
    functions that do nothing to integers. `variants` are better Triton spellings for a constant
    last argument, tried in order; one that repeats an argument is used for plain names only.
    With `scalar`, a constant last argument stays a Python number in torch, which is faster there.
    """

    name: str
    arity: int
    result: str
    takes: tuple[str, ...]
    torch: str
    triton: str
    numpy: str
    mpmath: str
    sympy: str
    derivative: tuple[Rule | None, ...]
    interval: Range
    steps: bool = False
    variants: tuple[tuple[Number, str], ...] = ()
    scalar: bool = False

    @property
    def show(self) -> str:
        """The notation of errors and proofs: infix as in Python, functions without a module."""
        marks = ", ".join(f"{{{i}}}" for i in range(self.arity))
        return self.torch if self.torch.startswith(("{", "-", "~")) else f"{self.name}({marks})"

    def spelling(self, dialect: str) -> str:
        """The format string of this row in a dialect, one of DIALECTS or "show"."""
        return str(getattr(self, dialect))


def _row(
    name: str, arity: int, result: str, takes: str, torch: str, *, triton: str = "",
    numpy: str = "", mpmath: str = "", sympy: str = "", steps: bool = False,
    variants: tuple[tuple[Number, str], ...] = (), scalar: bool = False,
) -> Op:  # fmt: skip
    """A row; spellings left out are those of torch. One word in `takes` serves all arguments."""
    words = tuple(takes.split())
    return Op(
        name=name,
        arity=arity,
        result=result,
        takes=words if len(words) == arity else words[:1] * arity,
        torch=torch,
        triton=triton or torch,
        numpy=numpy or torch,
        mpmath=mpmath or torch,
        sympy=sympy or torch,
        derivative=PARTIALS[name],
        interval=RANGES[name],
        steps=steps,
        variants=variants,
        scalar=scalar,
    )


def _float(
    name: str, *, triton: str = "", numpy: str = "", mpmath: str = "", sympy: str = ""
) -> Op:
    """A function of one number with a float result; each spelling defaults to module.name."""
    return _row(
        name,
        1,
        "float",
        "float",
        f"torch.{name}({{0}})",
        triton=triton or f"{name}({{0}})",
        numpy=numpy or f"np.{name}({{0}})",
        mpmath=mpmath or f"real(mp.{name}, {{0}})",
        sympy=sympy or f"sp.{name}({{0}})",
    )


def _compare(name: str, sign: str) -> Op:
    return _row(
        name, 2, "bool", "any", f"{{0}} {sign} {{1}}", sympy=f"sp.{name.title()}({{0}}, {{1}})"
    )


def _uninterpreted(name: str) -> str:
    return f'sp.Function("{name}")({{0}}, {{1}})'


_LARGER = "({0} if {0} >= {1} or {0} != {0} else {1})"
_SMALLER = "({0} if {0} <= {1} or {0} != {0} else {1})"
_ELEMENTWISE = 'np.asarray(np.vectorize(math.{0}, otypes="d")({{0}}), dtype=np.result_type({{0}}))'
_FIVE = "{0}, {1}, {2}, {3}, {4}"
_POWERS = (
    (2, "{0} * {0}"),
    (2, "square({0})"),
    (3, "{0} * {0} * {0}"),
    (3, "cube({0})"),
    (4, "fourth({0})"),
    (0.5, "tl.sqrt({0})"),
    (-0.5, "tl.rsqrt({0})"),
    (-1, "1.0 / {0}"),
)

_ROWS = (
    # Leaves and forms with a value of their own; the passes treat them by hooks.
    _row("const", 0, "const", "any", "{value}"),
    _row("var", 0, "var", "any", "{value}"),
    _row("cast", 1, "cast", "any", "{0}.to(torch.{value})", triton="{0}.to(tl.{value})"),
    _row("read", 2, "read", "any int", "{0}[{1}]"),
    # Arithmetic.
    _row("add", 2, "join", "number", "{0} + {1}"),
    _row("sub", 2, "join", "number", "{0} - {1}"),
    _row("mul", 2, "join", "any", "{0} * {1}"),
    _row("div", 2, "float", "float", "{0} / {1}", mpmath="divide({0}, {1})"),
    _row(
        "floordiv", 2, "join", "number", "{0} // {1}",
        triton="floor_div({0}, {1})", numpy="np.floor_divide({0}, {1})",
        mpmath="mp.floor(divide({0}, {1}))", sympy="sp.floor({0} / {1})",
    ),
    _row(
        "mod", 2, "join", "number", "{0} % {1}",
        triton="floor_mod({0}, {1})", numpy="np.mod({0}, {1})",
        mpmath="remainder({0}, {1})", sympy="sp.Mod({0}, {1})",
    ),
    _row("neg", 1, "join", "number", "-{0}"),
    _row(
        "pow", 2, "join", "number", "{0} ** {1}",
        triton="power({0}, {1})", numpy="np.power({0}, {1})",
        mpmath="real(mp.power, {0}, {1})", variants=_POWERS, scalar=True,
    ),
    # Functions of one number.
    _float("exp", triton="tl.exp({0})"),
    _float("exp2", triton="tl.exp2({0})", mpmath="real(mp.power, 2, {0})", sympy="2 ** {0}"),
    _float("expm1", sympy="(sp.exp({0}) - 1)"),
    _float("log", triton="tl.log({0})"),
    _float("log2", triton="tl.log2({0})", mpmath="real(mp.log, {0}, 2)", sympy="sp.log({0}, 2)"),
    _float("log10", sympy="sp.log({0}, 10)"),
    _float("log1p", sympy="sp.log(1 + {0})"),
    _float("sqrt", triton="tl.sqrt({0})"),
    _float(
        "rsqrt", triton="tl.rsqrt({0})", numpy="1 / np.sqrt({0})",
        mpmath="divide(1, real(mp.sqrt, {0}))", sympy="1 / sp.sqrt({0})",
    ),
    _float(
        "reciprocal", triton="1.0 / {0}", numpy="1 / {0}", mpmath="divide(1, {0})", sympy="1 / {0}"
    ),
    _float("sin", triton="tl.sin({0})"),
    _float("cos", triton="tl.cos({0})"),
    _float("tan"),
    _float("asin", numpy="np.arcsin({0})"),
    _float("acos", numpy="np.arccos({0})"),
    _float("atan", numpy="np.arctan({0})"),
    _float("sinh"),
    _float("cosh"),
    _float("tanh"),
    _float("asinh", numpy="np.arcsinh({0})"),
    _float("acosh", numpy="np.arccosh({0})"),
    _float("atanh", numpy="np.arctanh({0})"),
    _float("erf", triton="tl.erf({0})", numpy=_ELEMENTWISE.format("erf")),
    _float("erfc", numpy=_ELEMENTWISE.format("erfc")),
    _float(
        "sigmoid", numpy="1 / (1 + np.exp(-{0}))",
        mpmath="1 / (1 + mp.exp(-{0}))", sympy="1 / (1 + sp.exp(-{0}))",
    ),
    # NOTE torch's default threshold of 20 loses 2e-9 of the value in float64; 40 loses nothing.
    _row(
        "softplus", 1, "float", "float", "torch.nn.functional.softplus({0}, 1.0, 40.0)",
        triton="softplus({0})", numpy="np.logaddexp({0}, 0)",
        mpmath="real(mp.log1p, mp.exp({0}))", sympy="sp.log(1 + sp.exp({0}))",
    ),
    _row(
        "atan2", 2, "float", "float", "torch.atan2({0}, {1})",
        triton="atan2({0}, {1})", numpy="np.arctan2({0}, {1})",
        mpmath="mp.atan2({0}, {1})", sympy="sp.atan2({0}, {1})",
    ),
    # Functions that keep the kind.
    _row(
        "abs", 1, "join", "number", "torch.abs({0})",
        triton="tl.abs({0})", numpy="np.abs({0})", mpmath="abs({0})", sympy="sp.Abs({0})",
    ),
    # NOTE torch.sign(nan) is 0, numpy's is nan.
    _row(
        "sign", 1, "join", "number", "torch.sign({0})",
        triton="sign({0})", numpy="np.where({0} == {0}, np.sign({0}), 0)",
        mpmath="mp.mpf(({0} > 0) - ({0} < 0))", sympy="sp.sign({0})",
    ),
    _row(
        "floor", 1, "join", "number", "torch.floor({0})", steps=True, triton="tl.floor({0})",
        numpy="np.floor({0})", mpmath="mp.floor({0})", sympy="sp.floor({0})",
    ),
    _row(
        "ceil", 1, "join", "number", "torch.ceil({0})", steps=True,
        triton="tl.ceil({0})", numpy="np.ceil({0})", mpmath="mp.ceil({0})", sympy="sp.ceiling({0})",
    ),
    _row(
        "round", 1, "join", "number", "torch.round({0})", steps=True,
        triton="rint({0})", numpy="np.round({0})", mpmath="mp.nint({0})",
        sympy='sp.Function("round_half_even")({0})',
    ),
    _row(
        "trunc", 1, "join", "number", "torch.trunc({0})", steps=True,
        triton="trunc({0})", numpy="np.trunc({0})", sympy="sp.sign({0}) * sp.floor(sp.Abs({0}))",
        mpmath="(mp.floor({0}) if {0} >= 0 else mp.ceil({0}))",
    ),
    # A NaN in either argument is the result, as in torch; plain tl.maximum drops it.
    _row(
        "maximum", 2, "join", "number", "torch.maximum({0}, {1})",
        triton="tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
        numpy="np.maximum({0}, {1})", mpmath=_LARGER, sympy="sp.Max({0}, {1})",
    ),
    _row(
        "minimum", 2, "join", "number", "torch.minimum({0}, {1})",
        triton="tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
        numpy="np.minimum({0}, {1})", mpmath=_SMALLER, sympy="sp.Min({0}, {1})",
    ),
    _row(
        "where", 3, "join", "bool any any", "torch.where({0}, {1}, {2})",
        triton="tl.where({0}, {1}, {2})", numpy="np.where({0}, {1}, {2})",
        mpmath="({1} if {0} else {2})", sympy="sp.Piecewise(({1}, {0}), ({2}, True))",
    ),
    # Questions.
    _compare("eq", "=="),
    _compare("ne", "!="),
    _compare("lt", "<"),
    _compare("le", "<="),
    _compare("gt", ">"),
    _compare("ge", ">="),
    _row(
        "isnan", 1, "bool", "any", "torch.isnan({0})",
        triton="isnan({0})", numpy="np.isnan({0})", mpmath="mp.isnan({0})", sympy="sp.false",
    ),
    _row(
        "isinf", 1, "bool", "any", "torch.isinf({0})",
        triton="isinf({0})", numpy="np.isinf({0})", mpmath="mp.isinf({0})", sympy="sp.false",
    ),
    _row(
        "isfinite", 1, "bool", "any", "torch.isfinite({0})",
        triton="isfinite({0})", numpy="np.isfinite({0})",
        mpmath="not (mp.isinf({0}) or mp.isnan({0}))", sympy="sp.true",
    ),
    _row("and", 2, "bool", "bool", "{0} & {1}", sympy="sp.And({0}, {1})"),
    _row("or", 2, "bool", "bool", "{0} | {1}", sympy="sp.Or({0}, {1})"),
    _row("xor", 2, "bool", "bool", "{0} ^ {1}", sympy="sp.Xor({0}, {1})"),
    _row("not", 1, "bool", "bool", "~{0}", mpmath="not {0}", sympy="sp.Not({0})"),
    # Integers.
    _row("bitand", 2, "join", "int", "{0} & {1}", mpmath="mp.mpf(int({0}) & int({1}))",
         sympy=_uninterpreted("bitand")),
    _row("bitor", 2, "join", "int", "{0} | {1}", mpmath="mp.mpf(int({0}) | int({1}))",
         sympy=_uninterpreted("bitor")),
    _row("bitxor", 2, "join", "int", "{0} ^ {1}", mpmath="mp.mpf(int({0}) ^ int({1}))",
         sympy=_uninterpreted("bitxor")),
    _row("bitnot", 1, "join", "int", "~{0}", mpmath="mp.mpf(~int({0}))", sympy="(-1 - {0})"),
    _row("shl", 2, "join", "int", "{0} << {1}", mpmath="mp.mpf(int({0}) << int({1}))",
         sympy="{0} * 2 ** {1}"),
    _row("shr", 2, "join", "int", "{0} >> {1}", mpmath="mp.mpf(int({0}) >> int({1}))",
         sympy="sp.floor({0} / 2 ** {1})"),
    # Of a seed and four counters: see `philox`.
    _row("random", 5, "int", "int", f"random({_FIVE})",
         mpmath=f"mp.mpf(random(*map(int, ({_FIVE}))))", sympy=f'sp.Function("random")({_FIVE})'),
)  # fmt: skip

OPS: Mapping[str, Op] = MappingProxyType({row.name: row for row in _ROWS})
