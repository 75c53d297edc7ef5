"""What the evaluation of a program costs, and how much is allowed."""

from __future__ import annotations

import math

import torch

from verifycompile import bounds
from verifycompile.program import Program
from verifycompile.torch_interface.operators.evaluation import is_view, size_hint

DEFAULT_MAX_ELEMENTS = 50_000_000
ELEMENTS_OF_A_CALL = 128
"""Calling an operator takes the time of about so many elements, however small its result is."""
_RANKS_OF_A_CALL = 32
"""To tell which of so many ranks share an evaluation takes the time of a call."""
_BYTES_OF_AN_ELEMENT = 32
"""A comparison holds the values of both programs in double precision, those of the spec three times."""


def most_elements() -> int:
    """How many elements an evaluation may have in the memory that is left."""
    return min(
        DEFAULT_MAX_ELEMENTS, bounds.memory_left(_BYTES_OF_AN_ELEMENT * DEFAULT_MAX_ELEMENTS) // _BYTES_OF_AN_ELEMENT
    )


def elements(program: Program, kinds: int | None = None) -> int:
    """What an evaluation costs: the number of elements of all values on all ranks, small values rounded up.

    A view of another value costs no more than the call. ``kinds``: how many kinds of ranks there are, where some share
    an evaluation.
    """
    ranks = len(program.mesh.ranks) if program.mesh is not None else 1
    ranks = ranks if kinds is None else min(ranks, kinds)
    nodes = program.graph.graph.nodes
    sizes = [0 if is_view(node.target) else elements_of(node.meta.get("val")) for node in nodes]
    return ranks * sum(max(size, ELEMENTS_OF_A_CALL) for size in sizes)


def calls(program: Program, kinds: int) -> int:
    """How many operators an evaluation calls for so many kinds of ranks, and what it takes to go over all ranks."""
    ranks = len(program.mesh.ranks) if program.mesh is not None else 1
    return (min(ranks, kinds) + ranks // _RANKS_OF_A_CALL) * len(program.graph.graph.nodes)


def elements_of(value: object) -> int:
    """How many elements a value has, all its tensors together."""
    if isinstance(value, (list, tuple)):
        return sum(elements_of(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(size_hint(dim, {}) or 1 for dim in value.shape)
