"""Backends: what runs a declaration or a program, on which device."""
