"""The printer: programs and plans to Triton source that a person could have written."""
