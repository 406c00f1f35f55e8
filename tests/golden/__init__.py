"""Needs nothing: printed kernels, compared as text with the files in this folder."""
