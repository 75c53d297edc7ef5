"""Data-parallel wrappers, DDP, `replicate` and `fully_shard`: what they do in a graph and outside of it."""
