"""Tests, in rooms by what they need; see tests/lanes.py for how the rooms are run."""
