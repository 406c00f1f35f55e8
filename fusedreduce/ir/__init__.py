"""THE LANGUAGE: expressions of the operations in one table, and the passes over them."""
