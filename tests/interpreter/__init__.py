"""Needs TRITON_INTERPRET=1 before Python starts: printed kernels against eager."""
