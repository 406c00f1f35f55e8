"""The version of the library: part of the key of every printed kernel."""

__version__ = "0.1.0"
