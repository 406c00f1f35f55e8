"""Needs sympy: every law proved, wrong declarations refuted with their counterexample."""
