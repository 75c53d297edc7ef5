"""Inputs of which the ranks hold parts of few kinds: ranks with equal parts share one evaluation.

An evaluation takes as many calls as there are kinds then, on however many ranks. Which rank holds a part of which kind
follows no period, so that a rank that takes the part of another one is seen as long as their kinds differ.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from verifycompile.program import Program, ProgramInput
from verifycompile.witness.inputs import Inputs, tangent_inputs, tensor_inputs, traced_shape

KINDS = 3


def kinds_of_ranks(implementation: Program, kinds: int = KINDS) -> int:
    """How many kinds of ranks there are, where each axis of the mesh has so many kinds of parts."""
    return 1 if implementation.mesh is None else math.prod(min(size, kinds) for size in implementation.mesh.shape)


def of_few_kinds(inputs: Inputs, implementation: Program, kinds: int = KINDS) -> Inputs:
    """The inputs, with equal numbers in all parts of a dimension that are of one kind."""
    return dataclasses.replace(
        inputs,
        spec=_alike(inputs.spec, tensor_inputs(implementation), kinds),
        tangents=_alike(inputs.tangents, tangent_inputs(implementation), kinds),
    )


def _alike(
    values: Mapping[str, torch.Tensor], entries: Mapping[str, ProgramInput], kinds: int
) -> dict[str, torch.Tensor]:
    found = dict(values)
    for name in values.keys() & entries.keys():
        own = traced_shape(entries[name], {})
        for dim, (part, whole) in enumerate(zip(own, values[name].shape, strict=False)):
            if 0 < part < whole and whole % part == 0 and whole // part > kinds:
                found[name] = _with_parts(found[name], dim, _kinds(whole // part, kinds))
    return found


def _kinds(parts: int, kinds: int) -> list[int]:
    """The kind of each part: the first ones differ, the others follow no rule."""
    generator = torch.Generator().manual_seed(parts)
    later = torch.randint(0, kinds, (parts - kinds,), generator=generator)
    return [*range(kinds), *later.tolist()]


def _with_parts(value: torch.Tensor, dim: int, kinds: list[int]) -> torch.Tensor:
    parts = value.chunk(len(kinds), dim)
    return torch.cat([parts[kind] for kind in kinds], dim)
