"""What a call would do, as text: which implementation and why, plans, blocks, memory, work."""
