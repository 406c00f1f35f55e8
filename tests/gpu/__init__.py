"""Needs a CUDA device: every case on it."""
