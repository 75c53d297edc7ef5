"""The one exception of numeric evaluation."""

from __future__ import annotations


class EvaluationError(Exception):
    """A captured graph, or a value at its boundary, cannot be evaluated numerically. No witness follows."""
