"""Repair moves: changes of one place of a program that a user could make, a family in each file."""
