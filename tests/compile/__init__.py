"""Needs Triton's compiler, no device: every golden kernel compiles."""
