"""Parts of values: slices, windows, pieces and concatenations, read from what they are parts of."""
