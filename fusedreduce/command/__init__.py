"""THE COMMAND LINE's helpers: what a target means, tensors without numbers, text in colour."""
