"""Programs that may differ by rank: captured as each, given, or told by the ranks, and brought to one graph."""
