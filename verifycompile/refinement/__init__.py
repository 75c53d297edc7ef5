"""Relation inference: how each output of the spec is found in the implementation's outputs."""
