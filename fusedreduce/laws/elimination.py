"""What an equality does to a case: symbols expressed by others, or known to be 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedreduce.laws.ratios import Poly, Ratio

if TYPE_CHECKING:
    from fusedreduce.laws.cases import Case


def vanish(case: Case) -> None:
    """Symbols known to be >= 0 that cannot be > 0 are 0."""
    tower = case.tower
    for i, name in enumerate(tower.symbols):
        gen = tower.gens[i]
        used = tower.signs.get(i) == "0+" and case.env.get(name) == tower.of(gen)
        if used and case.rows and not case.possible(gen, ">"):
            case.env[name] = tower.zero
            case.memo.clear()


def eliminate(case: Case, p: Poly) -> None:
    """Use p = 0 to express a symbol by the others."""
    tower = case.tower
    for i, name in enumerate(tower.symbols):
        alone = [(m, c) for m, c in p.terms() if m[i]]
        if len(alone) != 1 or sum(alone[0][0]) != 1 or case.env[name] != tower.symbol(name):
            continue
        if name in tower.symbols_of(j for j in tower.used(p) if j != i):
            continue
        own = tower.gens[i] * alone[0][1]
        value = tower.of(own - p) / tower.number(int(alone[0][1]))
        for other, known in case.env.items():
            if isinstance(known, Ratio) and i in tower.used(known.num, known.den):
                case.env[other] = _composed(known, tower.gens[i], value)
        case.env[name] = value
        case.memo.clear()
        return


def _composed(v: Ratio, gen: Poly, value: Ratio) -> Ratio:
    """v with a generator replaced by a ratio, by Horner's rule."""

    def polynomial(p: Poly) -> Ratio:
        index = p.ring.gens.index(gen)
        out = Ratio(p.ring.zero, p.ring.one)
        for k in range(int(p.degree(gen)), -1, -1):
            part = {(*m[:index], 0, *m[index + 1 :]): c for m, c in p.terms() if m[index] == k}
            out = out * value + Ratio(p.ring.from_dict(part), p.ring.one)
        return out

    return polynomial(v.num) / polynomial(v.den)
