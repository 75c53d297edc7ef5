"""What a certificate says: which outputs of which inputs on which mesh, in two programs that fit each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.distributed.tensor.placement_types import Replicate

from verifycompile.certificate.annotations import sizes_of
from verifycompile.certificate.storage import StorageError
from verifycompile.ir.size import normalize_size
from verifycompile.lowering.recorded import reads_memory, tensors_of
from verifycompile.program import OutputKind, Program, ProgramInput, Role
from verifycompile.question import Question
from verifycompile.refinement.placement import Placements, describe
from verifycompile.torch_interface.operators.derivation import is_derived_number

_SHOWN = frozenset(Role) - {Role.TANGENT, Role.OPAQUE}
_OF = {Role.TANGENT: "cotangent"}
_KINDS = {"output": OutputKind.VALUE, "grad": OutputKind.GRADIENT, "mutation": OutputKind.MUTATION}


class StatementError(StorageError):
    """Two programs that do not fit each other, or of which nothing is said."""


@dataclasses.dataclass(frozen=True)
class Statement:
    """What is covered. ``inputs``: how the spec's inputs are made of the implementation's, and cotangents.

    ``outputs``, ``gradients`` and ``mutations`` are names, of gradients with the mean that is taken of them outside.
    ``question``: against which spec, for which ranks. ``sizes``: what symbolic sizes are taken to be.
    """

    outputs: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    mutations: tuple[str, ...] = ()
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    mesh: str = ""
    question: str = ""
    sizes: tuple[str, ...] = ()


def statement_of(spec: Program, implementation: Program, placements: Mapping[str, Placements]) -> Statement:
    """What two programs are about. Raises StatementError where they do not fit or say nothing."""
    if not spec.outputs:
        raise StatementError("it covers no output")
    _check_outputs(spec, implementation, placements)
    _check_mesh(spec, implementation)
    for program, side in ((spec, "spec"), (implementation, "implementation")):
        _check_inputs(program, side)
    _check_spec(spec)
    _check_global_shapes(spec, implementation)
    mesh = implementation.mesh
    axes = () if mesh is None else mesh.axes
    means = {o.name: ", ".join(axes[axis].name for axis in sorted(o.outer_mean)) for o in implementation.outputs}
    told = {name: f"{name} (its mean over {mean} is taken outside)" for name, mean in means.items() if mean}
    by_kind = {kind: tuple(told.get(o.name, o.name) for o in spec.outputs if o.kind is kind) for kind in OutputKind}
    reading = {
        side: (program, {_key(i): i.node.meta.get("val") for i in program.inputs if i.role is not Role.OPAQUE})
        for side, program in (("the spec", spec), ("the implementation", implementation))
        if any(map(reads_memory, program.graph.graph.nodes))
    }
    return Statement(
        by_kind[OutputKind.VALUE],
        by_kind[OutputKind.GRADIENT],
        by_kind[OutputKind.MUTATION],
        {
            i.name if i.role in _SHOWN else f"cotangent of {i.name}": _lies(implementation, i) + _memory_of(reading, i)
            for i in implementation.inputs
            if i.role in _SHOWN or i.placements is not None
        },
        "" if mesh is None else ", ".join(f"{axis.name}={axis.size}" for axis in mesh.axes),
        Question(spec.provenance, implementation.provenance, 1 if mesh is None else len(mesh.ranks)).describe(),
        tuple(dict.fromkeys(text for program in (spec, implementation) for text in _sizes(program))),
    )


def _sizes(program: Program) -> Iterator[str]:
    given = [item.node.meta.get("val") for item in program.inputs]
    if program.size_values or any(map(is_derived_number, sizes_of(given))):
        from verifycompile.certificate.symbols import told_sizes  # here, because few programs have symbolic sizes

        yield from told_sizes(program)


def _lies(program: Program, item: ProgramInput) -> str:
    """How the spec's value of an input is made of the implementation's."""
    known = program.mesh is not None and item.placements is not None
    return describe(item.name, item.placements, program.mesh) if known else item.name  # pyright: ignore[reportArgumentType]  # `known` says that there are placements


def _memory_of(reading: Mapping[str, tuple[Program, Mapping[Any, Any]]], item: ProgramInput) -> str:
    """Where the elements of an input do not lie one after the other, in programs that read memory."""
    found = ""
    for side, (program, recorded) in reading.items():
        value = recorded.get(_key(item))
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        shape, strides = ([_size(program, n) for n in numbers] for numbers in (value.shape, value.stride()))
        one_by_one = [sympy.Mul(*shape[d + 1 :]) for d in range(len(shape))]
        if strides != one_by_one or value.storage_offset() != 0:
            place = f"at strides {', '.join(map(str, strides))} from {_size(program, value.storage_offset())}"
            found += f" ({place} in {side})"
    return found


def _check_outputs(spec: Program, implementation: Program, placements: Mapping[str, Placements]) -> None:
    for side, program in (("spec", spec), ("implementation", implementation)):
        names = [o.name for o in program.outputs]
        if len(set(names)) != len(names):
            raise StatementError(f"an output of the {side} occurs twice")
        for output in program.outputs:
            if _KINDS.get(output.name.partition(".")[0]) is not output.kind:
                raise StatementError(f"`{output.name}` of the {side} is no {output.kind.value}")
            _check_axes(implementation, output.name, (*output.open_axes, *output.outer_mean))
    flows = {o.name: o.requires_grad for o in implementation.outputs}
    for output in spec.outputs:
        ours, theirs = output.requires_grad, flows.get(output.name)
        if ours is not theirs:
            raise StatementError(f"a gradient flows back from `{output.name}` in one of the programs")
    unknown = placements.keys() - {o.name for o in spec.outputs}
    if unknown:
        raise StatementError(f"it places `{min(unknown)}`, which is no output")


def _check_axes(implementation: Program, name: str, axes: Sequence[int]) -> None:
    count = 0 if implementation.mesh is None else len(implementation.mesh.axes)
    if any(not 0 <= axis < count for axis in axes):
        raise StatementError(f"`{name}` speaks of an axis that the mesh does not have")


def _check_mesh(spec: Program, implementation: Program) -> None:
    if spec.mesh is not None:
        raise StatementError("its spec has a mesh")
    mesh = implementation.mesh
    if mesh is None:
        return
    if min(mesh.shape, default=0) < 1 or len({axis.name for axis in mesh.axes}) != len(mesh.axes):
        raise StatementError("its mesh is none: an axis occurs twice, or has no ranks")
    for item in (*implementation.inputs, *implementation.outputs):
        if item.placements is not None and len(item.placements) != len(mesh.axes):
            raise StatementError(f"`{item.name}` has no placement for each axis of the mesh")
    for output in implementation.outputs:
        if len(output.global_shape or ()) != len(output.global_stride or ()):
            raise StatementError(f"`{output.name}` has no stride for each dimension")
    for axes in implementation.groups.values():
        _check_axes(implementation, "a group", axes)
    for symbol, axis in implementation.coordinates.items():
        _check_axes(implementation, str(symbol), (axis,))
        if symbol.is_nonzero:
            raise StatementError(f"the coordinate `{symbol}` is said never to be zero")


def _check_spec(spec: Program) -> None:
    """A spec knows of no mesh, and is written as it stands."""
    if spec.piecewise or spec.by_definition:
        raise StatementError("its spec is said to be written in another way")
    of_inputs = any(item.placements is not None or item.open_axes or item.assumed for item in spec.inputs)
    if of_inputs or any(o.placements is not None or o.open_axes or o.outer_mean for o in spec.outputs):
        raise StatementError("its spec speaks of a mesh")


def _check_inputs(program: Program, side: str) -> None:
    """Every placeholder is one input, with a recorded value."""
    nodes = [item.node for item in program.inputs]
    placeholders = [node for node in program.graph.graph.nodes if node.op == "placeholder"]
    if len(set(nodes)) != len(nodes) or set(nodes) != set(placeholders):
        raise StatementError(f"the inputs of the {side} are not its placeholders")
    tensors = [item for item in program.inputs if item.role is not Role.OPAQUE]
    names = [_key(item) for item in tensors]
    if len(set(names)) != len(names):
        raise StatementError(f"an input of the {side} occurs twice")
    outputs = {o.name: o for o in program.outputs}
    for item in program.inputs:
        if item.role is not Role.OPAQUE and item.node.meta.get("val") is None:
            raise StatementError(f"nothing is recorded of the input `{item.name}` of the {side}")
        lies = item.role is Role.TANGENT or any(not isinstance(p, Replicate) for p in item.placements or ())
        if lies and not tensors_of(item.node.meta.get("val")):
            raise StatementError(f"`{item.name}` of the {side} is no tensor, and lies on a mesh or is a cotangent")
        if item.role is not Role.TANGENT and item.open_axes:
            raise StatementError(f"`{item.name}` of the {side} lies open, and is no cotangent")
        if item.role is Role.TANGENT and item.name in outputs and outputs[item.name].requires_grad is False:
            raise StatementError(f"`{item.name}` of the {side} has a gradient and asks for none")


def _check_global_shapes(spec: Program, implementation: Program) -> None:
    """The whole of an input is what the spec takes."""
    wholes = {_key(item): item for item in spec.inputs}
    for program in (spec, implementation):
        for item in program.inputs:
            told, side = (item, program) if item.placements is None else (wholes.get(_key(item)), spec)
            tensors = tensors_of(told.node.meta.get("val")) if told is not None else []
            if item.global_shape is None or not tensors:
                continue
            found = [_size(program, size) for size in item.global_shape]
            if found != [_size(side, size) for size in tensors[0].shape]:
                raise StatementError(f"the whole of `{item.name}` is another one in the spec")


def _key(item: ProgramInput) -> tuple[str, str]:
    """A cotangent has the name of its output."""
    return _OF.get(item.role, "value"), item.name


def _size(program: Program, size: Any) -> Any:
    if isinstance(size, int):
        return size
    return normalize_size(sympy.sympify(size).xreplace(dict(program.size_values)))
