"""The input relation: every input of the implementation as a view of the spec's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.distributed.tensor.placement_types import Partial, Placement

from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import ProgramInput, Role
from verifycompile.refinement.placement import shard
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.torch_interface.operators.derivation import is_derived_number

_TENSORS = (Role.INPUT, Role.PARAMETER, Role.BUFFER, Role.TANGENT)


def tensor_inputs(lowering: Lowering) -> dict[tuple[str, str], ProgramInput]:
    """Tensor placeholders by (space, name); tangents live in a name space of their own."""
    return {
        input_key(p): p
        for p in lowering.program.inputs
        if p.role in _TENSORS and lowering.sizes.shape_of(p.node) is not None
    }


def unrelated_number(spec: Lowering, implementation: Lowering) -> str | None:
    """A number among the implementation's inputs, no size of a tensor, that another input of the spec is called by."""
    numbers, told = list(_numbers(implementation)), dict(_numbers(spec))
    if not numbers:
        return None
    known = _sizes(implementation)
    used = _sizes(spec).union(*(number.free_symbols for number in told.values()))
    for name, number in numbers:
        is_another = number != told[name] if name in told else not number.free_symbols.isdisjoint(used)
        if is_another and not number.free_symbols <= known:
            return name
    return None


def _sizes(side: Lowering) -> set[sympy.Basic]:
    shapes = [side.sizes.shape_of(item.node) for item in tensor_inputs(side).values()]
    return {symbol for shape in shapes for size in shape or () for symbol in sympy.sympify(size).free_symbols}


def _numbers(side: Lowering) -> Iterator[tuple[str, sympy.Basic]]:
    for item in side.program.inputs:
        value: Any = item.node.meta.get("val")
        if is_derived_number(value):
            yield item.name, value.node.expr.xreplace(dict(side.program.size_values))


def input_key(program_input: ProgramInput) -> tuple[str, str]:
    space = "tangent" if program_input.role is Role.TANGENT else "input"
    return space, program_input.name


def leaf_of(pool: TermPool, program_input: ProgramInput, shape: tuple[Size, ...]) -> View:
    """The leaf that stands for an input of the spec."""
    kind, name = _kind(program_input), ":".join(input_key(program_input))
    return pool.leaf(name, shape, indicator=kind == str(torch.bool), whole=kind == "integer")


def _kind(program_input: ProgramInput) -> str:
    value = program_input.node.meta.get("val")
    dtype = value.dtype if isinstance(value, torch.Tensor) else None
    if dtype is None or dtype is torch.bool:
        return str(dtype)
    return "complex" if dtype.is_complex else "floating" if dtype.is_floating_point else "integer"


def relate(
    spec: Lowering,
    implementation: Lowering,
    spec_input: ProgramInput,
    program_input: ProgramInput,
    placements: Sequence[Placement],
) -> None:
    """Give both placeholders their values: the spec's a leaf, the implementation's the leaf as placed.

    Where the implementation holds a partial value the leaf is the stack of summands and the spec's value their sum.
    Raises UnsupportedError where shapes do not fit (VC204, VC206).
    """
    mesh, pool = implementation.program.mesh, spec.pool
    shape = spec.sizes.shape_of(spec_input.node)
    local = implementation.sizes.shape_of(program_input.node)
    if shape is None or local is None:
        raise UnsupportedError(UNREPRESENTABLE, f"the input `{program_input.name}` is no tensor")
    if _kind(spec_input) != _kind(program_input):
        message = f"the input `{program_input.name}` is {_kind(program_input)}, in the spec {_kind(spec_input)}"
        raise UnsupportedError("VC303", message)
    known = spec.values.get(spec_input.node)
    if mesh is not None and any(isinstance(placement, Partial) for placement in placements):
        if known is not None:
            raise UnsupportedError(UNREPRESENTABLE, f"two inputs are `{program_input.name}`, one of them partial")
        from verifycompile.refinement.partial_inputs import partial_leaf  # here, because few inputs are partial

        value = partial_leaf(spec, spec_input, shape, placements, mesh)
    else:
        if known is None:
            spec.provide(spec_input.node, known := leaf_of(pool, spec_input, shape))
        value = known if mesh is None else shard(pool, known, placements, mesh)
    expected = local if mesh is None else value.shape[len(mesh.axes) :]
    if expected != local:
        lies = f"its placements {list(placements)} of {list(shape)} give {list(expected)}"
        raise UnsupportedError("VC303", f"the input `{program_input.name}` has shape {list(local)} on a rank; {lies}")
    implementation.provide(program_input.node, value)
