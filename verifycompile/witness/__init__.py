"""Numeric witnesses: both captured graphs evaluated on one random input, the implementation on all ranks at once."""

from verifycompile.witness.comparison import Agreement, OutputComparison
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.search import Witness, compare_outputs, find_witness

__all__ = ["Agreement", "EvaluationError", "OutputComparison", "Witness", "compare_outputs", "find_witness"]
