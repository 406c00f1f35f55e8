"""User functions to expressions: the only door from Python code to the IR."""

from fusedreduce.trace.function import (
    Names,
    Signature,
    StateView,
    local_names,
    run,
    scalar,
    signature,
    to_expr,
)
from fusedreduce.trace.functions import dtype_kind, emit, kind_of
from fusedreduce.trace.names import known_names, unknown_operation
from fusedreduce.trace.place import function_line, line_of, refuse, user_frame, user_line
from fusedreduce.trace.value import FUNCTIONS, Call, Kind, Traced, apply

__all__ = [
    "FUNCTIONS", "Call", "Kind", "Names", "Signature", "StateView", "Traced", "apply", "dtype_kind",
    "emit", "function_line", "kind_of", "known_names", "line_of", "local_names", "refuse", "run",
    "scalar", "signature", "to_expr", "unknown_operation", "user_frame", "user_line",
]  # fmt: skip
