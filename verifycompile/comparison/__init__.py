"""TTrace's method: both programs are run, and every related tensor is compared against an estimated tolerance."""

from verifycompile.comparison.compare import compare
from verifycompile.comparison.report import CompareReport

__all__ = ["CompareReport", "compare"]
