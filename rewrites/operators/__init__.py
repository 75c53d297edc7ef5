"""Declarations of operators, one family a file, and what several of them share."""
