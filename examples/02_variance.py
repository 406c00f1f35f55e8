"""Why the naive variance fails: E[x^2] - E[x]^2 subtracts two large numbers to get a small one.

The numbers are the 115,008 pixels of scikit-learn's handwritten digits, integers from 0 to 16. A
constant added to all of them changes no variance, and every number below is exact in float32.
So any error in the table was made by the formula. Three declarations and torch, all in float32:

Prints:

    SumOfSquares  proved: True
    Welford       proved: True
    Moments       proved: True

    variance 36.201732; relative errors
    pixels                     SumOfSquares   Welford   Moments torch.var
    as they are                       1e-07     1e-07     6e-09     6e-09
    on a sensor's black level         2e-03     1e-07     6e-09     6e-09
    as hours since 1970               1e+03     2e-05     1e-07     5e-05
    beside an identifier              7e+05     7e-02     6e-09     2e-02
"""

import torch
from sklearn.datasets import load_digits

import fusedreduce as fr
from fusedreduce.reductions import Moments, Welford


class SumOfSquares(fr.Reduction):
    """The textbook's var = E[x^2] - E[x]^2. Lawful: it has no reference, so nothing to correct."""

    n = fr.Sum(lambda x: 1.0)
    t = fr.Sum(lambda x: x)
    t2 = fr.Sum(lambda x: x * x)

    def finish(n, t, t2):
        return {"var": t2 / n - (t / n) ** 2}


SHIFTS = {
    "as they are": 0.0,
    "on a sensor's black level": 1024.0,
    "as hours since 1970": 490_000.0,
    "beside an identifier": 10_000_000.0,
}


def main():
    # A proof is about real numbers. It says that tiles may be merged in any way, for the textbook's
    # formula too; how much rounding costs depends on the state that is kept.
    for R in (SumOfSquares, Welford, Moments):
        print(f"{R.__name__:<13} proved: {fr.prove(R).proved}")

    pixels = torch.as_tensor(load_digits().data, dtype=torch.float32).flatten()
    truth = two_passes(pixels)
    print(f"\nvariance {truth:.6f}; relative errors")
    print(f"{'pixels':<26} {'SumOfSquares':>12} {'Welford':>9} {'Moments':>9} {'torch.var':>9}")
    for name, shift in SHIFTS.items():
        x = pixels + shift
        assert abs(two_passes(x) / truth - 1) < 1e-12
        found = [fr.reduce(R, x, outputs="var") for R in (SumOfSquares, Welford, Moments)]
        found.append(torch.var(x, correction=0))
        naive, *others = (abs(float(v) / truth - 1) for v in found)
        print(f"{name:<26} {naive:>12.0e}" + "".join(f" {error:>9.0e}" for error in others))


def two_passes(x):
    """First the mean, then the squares around it, in float64."""
    x = x.double()
    return float(((x - x.mean()) ** 2).mean())


if __name__ == "__main__":
    main()
