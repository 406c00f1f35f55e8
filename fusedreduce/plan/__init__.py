"""The schedule: tile sizes, warps, bytes and flops, for a device."""
