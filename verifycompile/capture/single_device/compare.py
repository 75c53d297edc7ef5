"""Spec against implementation at the boundary: parameters, what requires grad, shapes, size symbols."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import sympy
import torch

from verifycompile.capture.sizes import remaining_guards, solve_divisibility, substitute
from verifycompile.errors import UsageError
from verifycompile.program import Blocker, OutputKind, Program, ProgramInput, Role, Size
from verifycompile.torch_interface.operators.shapes import symbol_of

_TENSOR_ROLES = (Role.INPUT, Role.PARAMETER, Role.BUFFER)


def check_against(
    spec: Program,
    implementation: Program,
    spec_passed_through: Mapping[str, str],
    implementation_passed_through: Mapping[str, str],
    unread: Collection[str] = (),
) -> None:
    """Raise ``UsageError`` where the two programs cannot be one model: VC303, VC304, VC308.

    ``unread``: parameters of the model that its graph need not read: that it forgets one is a fault, not another model.
    """
    spec_inputs = _tensors(spec)
    # Ranks that run different programs, as stages do, need not have the same parameters.
    implementation_inputs = {
        name: item for program in (*implementation.ranks, implementation) for name, item in _tensors(program).items()
    }
    spec_parameters = {name for name, item in spec_inputs.items() if item.role is Role.PARAMETER}
    parameters = {name for name, item in implementation_inputs.items() if item.role is Role.PARAMETER}
    missing = sorted(parameters - set(spec_inputs))
    extra = sorted(spec_parameters - set(implementation_inputs) - set(unread))
    if missing or extra:
        lines = ["the spec and the model have different parameters."]
        if missing:
            lines.append(f"Only in the model: {_listed(missing)}.")
        if extra:
            lines.append(f"Only in the spec: {_listed(extra)}.")
        lines.append("Map names that differ with the option `param_names`.")
        raise UsageError("VC304", " ".join(lines))
    for name, item in implementation_inputs.items():
        if name in spec_inputs and item.placements is not None:
            _check_shape(item, spec_inputs[name])
    for name in sorted(set(spec_passed_through) | set(implementation_passed_through)):
        ours, theirs = implementation_passed_through.get(name), spec_passed_through.get(name)
        if ours is not None and theirs is not None and ours != theirs:
            raise UsageError(
                "VC304", f"`{name}` is the input `{ours}` in the model and the input `{theirs}` in the spec."
            )


def _check_shape(item: ProgramInput, spec_item: ProgramInput) -> None:
    ours, theirs = item.global_shape, spec_item.global_shape
    if ours is None or theirs is None or _same_shape(ours, theirs):
        return
    if item.assumed and item.role is not Role.INPUT:
        raise UsageError(
            "VC308",
            f"{item.role.value} `{item.name}` is a plain tensor of shape {_shape(ours)}, but the spec's has shape "
            f"{_shape(theirs)}. Say how it is laid out with the option `param_placements`.",
        )
    option = "in_placements" if item.role is Role.INPUT else "param_placements"
    raise UsageError(
        "VC303",
        f"{item.role.value} `{item.name}` has shape {_shape(ours)} over the mesh ({_placed(item)}), but the spec's "
        f"has shape {_shape(theirs)}. Check the option `{option}` or the model's shapes.",
    )


def _placed(item: ProgramInput) -> str:
    return f"placements {item.placements}" if item.placements is not None else "no placements"


def _same_shape(ours: tuple[Size, ...], theirs: tuple[Size, ...]) -> bool:
    if len(ours) != len(theirs):
        return False
    return all(not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in zip(ours, theirs, strict=True))


def differing_flags(spec: Program, implementation: Program) -> tuple[Blocker, ...]:
    """A blocker for what requires grad in one of the programs alone, where one of them is differentiated at all."""
    programs = (*implementation.ranks, implementation)
    if not any(output.kind is OutputKind.GRADIENT for program in (spec, *programs) for output in program.outputs):
        return ()
    expected = {name: item.requires_grad for name, item in _tensors(spec).items()}
    items = [(name, item.requires_grad) for program in programs for name, item in _tensors(program).items()]
    trained = dict.fromkeys(name for name, flag in items if flag and expected.get(name) is False)
    frozen = dict.fromkeys(name for name, flag in items if not flag and expected.get(name) is True)
    blockers: list[Blocker] = []
    if trained:
        advice = (
            "If the spec was only made without gradients, say `spec.requires_grad_(True)`; else freeze in the model "
            "what the spec does not train."
        )
        blockers.append(
            Blocker(None, "VC111", f"in the model, and not in the spec, {_require_grad(trained)}. {advice}")
        )
    if frozen:
        advice = "Let the same parameters require grad in both: on one device these would be trained."
        blockers.append(Blocker(None, "VC111", f"in the spec, and not in the model, {_require_grad(frozen)}. {advice}"))
    return tuple(blockers)


_SHOWN = 3
"""Names of a list that are written out."""


def _require_grad(names: Collection[str]) -> str:
    shown = _listed(list(names)[:_SHOWN])
    if len(names) > _SHOWN:
        return f"{shown} and {len(names) - _SHOWN} more require grad"
    return f"{shown} {'requires' if len(names) == 1 else 'require'} grad"


def unify_symbols(spec: Program, implementation: Program) -> Program:
    """``spec`` with its size symbols expressed by the implementation's, through the dimensions of equal inputs."""
    values: dict[sympy.Symbol, sympy.Expr] = {}
    blockers: list[Blocker] = []
    implementation_inputs = _tensors(implementation)
    for name, item in _tensors(spec).items():
        other = implementation_inputs.get(name)
        if other is None or other.placements is None or other.global_shape is None or item.global_shape is None:
            continue
        for dimension, (size, whole) in enumerate(zip(item.global_shape, other.global_shape, strict=True)):
            expected = substitute(whole, implementation.size_values)
            if isinstance(size, sympy.Symbol) and size not in values:
                values[size] = sympy.sympify(expected)
            elif substitute(size, values) != expected:
                blockers.append(
                    Blocker(
                        item.node,
                        "VC206",
                        f"dimension {dimension} of `{name}` is {substitute(size, values)} in the spec "
                        f"and {expected} in the model.",
                    )
                )
    numbers = {item.name: symbol_of(item.node.meta.get("val")) for item in implementation.inputs}
    for item in spec.inputs:
        own, other = symbol_of(item.node.meta.get("val")), numbers.get(item.name)
        if own is not None and other is not None and own not in values:
            values[own] = implementation.size_values.get(other, other)
    divisible = solve_divisibility(spec.guards)
    for symbol, value in divisible.items():
        if symbol not in values:
            values[symbol] = value
    guards = remaining_guards(spec.guards, values)
    known = _symbols(implementation)
    for guard in guards:
        if not guard.free_symbols <= known:
            text = f"the spec assumes {guard} of its sizes and numbers, which are not those of the model."
            blockers.append(Blocker(None, "VC206", text))
    return dataclasses.replace(
        spec,
        size_values=values,
        guards=guards,
        blockers=(*spec.blockers, *blockers),
    )


def _symbols(program: Program) -> set[sympy.Basic]:
    """Those of the sizes and numbers that the program computes with."""
    found: set[sympy.Basic] = set()
    for node in program.graph.graph.nodes:
        value = node.meta.get("val")
        numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
                found.update(sympy.sympify(substitute(number.node.expr, program.size_values)).free_symbols)
    return found


def _tensors(program: Program) -> dict[str, ProgramInput]:
    return {item.name: item for item in program.inputs if item.role in _TENSOR_ROLES}


def _shape(shape: tuple[Size, ...]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
