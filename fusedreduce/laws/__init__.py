"""The proofs: laws proved, refuted with a counterexample, or honestly left open."""

from fusedreduce.laws.certificate import Certificate, Counterexample, Facts, Law, Status
from fusedreduce.laws.complete import Derivation, complete, derive
from fusedreduce.laws.edges import choose_guards
from fusedreduce.laws.prove import certified, prove

__all__ = [
    "Certificate", "Counterexample", "Derivation", "Facts", "Law", "Status", "certified",
    "choose_guards", "complete", "derive", "prove",
]  # fmt: skip
