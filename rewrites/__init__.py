"""Operator declarations and lemmas, one family a file."""
