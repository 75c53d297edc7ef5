"""Operators and what torch records of their calls: schemas, decompositions, meta kernels, sizes and contents."""
