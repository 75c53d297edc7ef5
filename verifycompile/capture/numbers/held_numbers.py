"""Whole numbers that a program holds in tensors: positions, orders, the first row of a rank, written out in its graph.

A proof is about all contents of a buffer, and some programs are right with the contents alone that they have: another
order of the rows is no order. What is written out is an assumption of the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import torch
import torch.fx

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export, output_names
from verifycompile.capture.held_tensors import plain_tensors
from verifycompile.capture.numbers.known_positions import copied
from verifycompile.capture.numbers.written_numbers import write_out
from verifycompile.program import Program, Role
from verifycompile.rewrites.building.numbers import LARGEST_CONSTANT
from verifycompile.torch_interface.operators.contents import real_content
from verifycompile.torch_interface.operators.elements import real_tensors

OF_SPEC = "verifycompile.held_numbers"
"""Key of ``graph.meta`` of a spec: the whole numbers in the tensors that enter it, by the names of its inputs."""

Numbers = Mapping[str, tuple[torch.fx.Node, torch.Tensor]]
"""By the name of an input, which node it is and what it holds."""


def with_held_numbers(spec: Program, implementation: Program) -> tuple[Program, Program] | None:
    """Both programs with the whole numbers that they hold alike on all ranks written out; None where there are none."""
    own = implementation.own
    if own is None:
        return None
    written = {item.name for item in (*spec.outputs, *implementation.outputs)}
    numbers: dict[str, torch.Tensor] = {}
    for item in implementation.inputs:
        is_kept = item.role is not Role.PARAMETER and f"mutation.{item.name}" not in written
        is_whole = all(placement.is_replicate() for placement in item.placements or ())
        found = _whole_numbers(own.held[item.name]) if item.name in own.held else None
        if found is not None and is_kept and is_whole and item.node.users:
            numbers[item.name] = found
    shared = {item.name for item in implementation.inputs}
    alone = {item.name for item in spec.inputs if item.name not in shared and item.node.users}
    of_spec = {name: held for name, held in spec.graph.meta.get(OF_SPEC, {}).items() if name in alone}
    if (not numbers and not of_spec) or alone - of_spec.keys():
        return None  # with a tensor of unknown contents, the programs may differ though they do not
    each_rank = implementation.each_rank
    return _with(spec, {**numbers, **of_spec}), dataclasses.replace(
        _with(implementation, numbers),
        ranks=tuple(_with(program, numbers) for program in implementation.ranks),
        each_rank=None if each_rank is None else lambda: tuple(_with(program, numbers) for program in each_rank()),
    )


def assumption(name: str) -> Assumption:
    text = f"`{name}` holds the whole numbers that it held when the program was captured"
    return Assumption(text, AssumptionKind.VALUES, [name])


def _with(program: Program, numbers: Mapping[str, torch.Tensor]) -> Program:
    changed, _ = copied(program)
    for item in changed.inputs:
        if item.name in numbers:
            write_out(changed.graph, item.node, numbers[item.name])
    told = (assumption(item.name) for item in program.inputs if item.name in numbers)
    return dataclasses.replace(changed, assumptions=(*program.assumptions, *told))


def held_numbers(exported: Export, shared: Export) -> Numbers:
    """The whole numbers in plain tensors that enter a rank's graph.

    Without those that ``shared`` has too: arguments are one object for all ranks.
    """
    written = {name for flat in exported.joint.outputs for _, name in output_names(exported, flat)}
    found: dict[str, tuple[torch.fx.Node, torch.Tensor]] = {}
    for name, node, value in plain_tensors(exported, shared):
        numbers = _whole_numbers(value)
        is_kept = name.role is not Role.PARAMETER and f"mutation.{name.name}" not in written
        if node is not None and numbers is not None and is_kept:
            found[name.name] = node, numbers
    return found


def write_numbers_out(graph: torch.fx.GraphModule, numbers: Numbers, names: Collection[str]) -> None:
    """Let ``graph`` read those of ``names`` from numbers of its own, in place."""
    for name in names:
        write_out(graph, *numbers[name])


def _whole_numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.numel() > LARGEST_CONSTANT or not tensor.numel():
        return None
    with real_tensors():
        real = real_content(tensor)
        return None if real is None else real.cpu().clone()
