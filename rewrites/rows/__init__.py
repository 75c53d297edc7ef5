"""Tensors whose number of rows is read from data: declarations of operators on them, and what these share."""
