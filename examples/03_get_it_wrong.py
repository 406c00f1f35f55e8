"""Write a reduction of your own, get it wrong, and read the counterexample.

Two wrong corrections, then the right one. A row that fits in one tile is never corrected, so tests
on short rows would have passed all three. Here a wrong one is refused before it runs.

Prints:

    Inverted: faithfulness of `s` does not hold: a term moved to a new reference is the term at the
                new reference: correct(exp(x - m) at old) = exp(x - m) at new
      expected  exp(x - m) at new = 0.0566989
      came      exp(x - m) at old, corrected to new = 17.637
      where     examples/03_get_it_wrong.py:48: s = fr.Sum(
      do        leave `correct` out, or write correct=lambda s, old, new: s * torch.exp(old.m -
                new.m)
      at        x = 0.03, old.m = 0.03, new.m = 2.9
      also      meaning

    Forgetful: faithfulness of `t` does not hold: a term moved to a new reference is the term at the
                new reference: correct((x - m) * exp(x - m) at old) = (x - m) * exp(x - m) at new
      expected  (x - m) * exp(x - m) at new = -0.162726
      came      (x - m) * exp(x - m) at old, corrected to new = 0
      where     examples/03_get_it_wrong.py:65: t = fr.Sum(
      do        leave `correct` out, or write correct=lambda t, old, new: (t + old.s * (old.m -
                new.m)) * torch.exp(old.m - new.m)
      at        x = 0.03, old.m = 0.03, new.m = 2.9
      also      meaning

    Entropy: proved over the reals, checked at the floating-point edges
      Proved    identity, associativity, faithfulness (s, t), additivity (s, t), unit (s, t),
                composition (s, t), absence (s, t), meaning, gradient
      facts     commutative, bounded, gauge-free: the result
      guards    neutral:m, old:m, present:t
      hash      f49fc9

    in one pass    0.947537
    in two passes  0.947537
"""

import torch

import fusedreduce as fr


class Inverted(fr.Reduction):
    """log sum_j exp(x_j), its correction the wrong way round."""

    m = fr.Max(lambda x: x)
    s = fr.Sum(
        lambda x, m: torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(new.m - old.m),
    )

    def finish(m, s):
        return m + torch.log(s)


class Forgetful(fr.Reduction):
    """The entropy, its correction without the shift: t is rescaled, but x - m changes too."""

    m = fr.Max(lambda x: x)
    s = fr.Sum(
        lambda x, m: torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(old.m - new.m),
    )
    t = fr.Sum(
        lambda x, m: (x - m) * torch.exp(x - m),
        correct=lambda t, old, new: t * torch.exp(old.m - new.m),
    )

    def finish(s, t):
        return torch.log(s) - t / s


class Entropy(Forgetful):
    """-sum_j p_j log p_j = log s - t / s, where p = softmax(x)."""

    t = fr.Sum(
        lambda x, m: (x - m) * torch.exp(x - m),
        correct=lambda t, old, new: (t + old.s * (old.m - new.m)) * torch.exp(old.m - new.m),
    )


def main():
    for R in (Inverted, Forgetful):
        try:
            fr.reduce(R, torch.zeros(2))
        except fr.errors.LawViolation as refusal:
            print(f"{refusal}\n")

    print(fr.prove(Entropy))

    scores = torch.tensor([0.0, 1.0, 2.0, 3.0])
    p = torch.softmax(scores, -1)
    print(f"\nin one pass    {fr.reduce(Entropy, scores):.6f}")
    print(f"in two passes  {-(p * p.log()).sum():.6f}")


if __name__ == "__main__":
    main()
