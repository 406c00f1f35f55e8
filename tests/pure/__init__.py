"""Needs neither Triton nor a device: the language, plans, printing."""
