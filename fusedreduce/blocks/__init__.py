"""Block maps: which blocks of (query, key) pairs a mask skips, sees whole, or must look into."""
