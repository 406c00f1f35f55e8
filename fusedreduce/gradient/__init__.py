"""The backward of a program, as programs: nothing stored but summaries, everything else recomputed.

Given the normal form and the gradients of its outputs,

    adjoint of a stage's result   = row parts + sum_j (element parts)         one ordinary Sum
    gradient of a field f         = sum_k adjoint_k * d finish_k / d f        a row value
    gradient of a reference r     = 0 for gauge outputs (a fact of the certificate), else
                                    direct part + <gradient of the sums, d correct / d new>
    gradient of an element x_j    = sum_f gradient_f * d term_f / d x_j       elementwise

so the backward of a declared reduction is again a fused function of ordinary sums, in reverse stage
order. An input that misses axes has a gradient that is a sum along those: a column along the outer
axes, a weight a channel along the positions of its channel. The same normal form, axes exchanged.
"""

from fusedreduce.gradient.element import NoBackward
from fusedreduce.gradient.owners import apart
from fusedreduce.gradient.programs import INDEX, Backward, backward

__all__ = ["INDEX", "Backward", "NoBackward", "apart", "backward"]
