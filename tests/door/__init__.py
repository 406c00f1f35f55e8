"""Needs a finished house: layers, names, docstrings, budgets."""
