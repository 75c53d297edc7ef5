"""The table of lemmas: every law with a side condition as one object, and the one place that disposes of instances."""
