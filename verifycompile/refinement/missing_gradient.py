"""Where a gradient got lost: the line of the implementation that no longer depends on what the spec's depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch
import torch.fx

from verifycompile.program import OutputKind, Program, ProgramOutput
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.value_names import is_backward, names_of_inputs, value_name


def missing_output(spec: Program, implementation: Program) -> Mismatch | None:
    """The first output of the spec that the implementation lacks."""
    names = {output.name for output in implementation.outputs}
    missing = next((output for output in spec.outputs if output.name not in names), None)
    if missing is None:
        return None
    kind = "gradient" if missing.kind is OutputKind.GRADIENT else "output"
    message = f"the implementation has no {kind} `{missing.name}`"
    lost = _where_lost(spec, implementation, missing) if missing.kind is OutputKind.GRADIENT else None
    if lost is None:
        parameter = missing.name.partition(".")[2]
        dependent = _dependent(implementation, parameter)
        used = next((node for node in _forward(implementation) if node in dependent), None)
        label = "" if used is None else f"`{parameter}` is used here, and no gradient reaches it"
        advice = f"what `{parameter}` is used for has to be computed outside of `torch.no_grad()`"
        notes = () if used is None else (advice,)
        return Mismatch("VC111", message, missing.name, missing.node, used, impl_label=label, notes=notes)
    node, place = lost
    label = f"`{value_name(node)}` does not depend on `{missing.name.partition('.')[2]}`, as it does in the spec"
    return Mismatch("VC111", message, missing.name, place, node, impl_label=label)


def told_at_detached(mismatch: Mismatch, spec: Program, implementation: Program) -> Mismatch:
    """The mismatch of a gradient where the way back to what it is the gradient of is cut, as it is not in the spec."""
    kind, _, name = mismatch.output.partition(".")
    if kind != "grad" or mismatch.code not in ("VC107", "VC111"):
        return mismatch
    cut = _detached(implementation, name)
    if cut is None or _detached(spec, name) is not None:
        return mismatch
    value = value_name(cut, names_of_inputs(implementation))
    message = mismatch.message
    if mismatch.code == "VC107":
        message = f"no gradient passes `{value}`, and that of `{name}` is not the spec's"
    label = f"no gradient passes `{value}` on its way back to `{name}`"
    return dataclasses.replace(
        mismatch,
        code="VC111",
        message=message,
        spec_node=None,
        impl_node=cut,
        impl_label=label,
        notes=(*mismatch.notes, _STOPPED),
    )


def _detached(program: Program, name: str) -> torch.fx.Node | None:
    """The first value on the way from an input to the results that takes no part in the backward pass."""
    results = {output.node for output in program.outputs if output.kind is OutputKind.VALUE}
    cuts = (n for n in _dependent(program, name) if n.target is torch.ops.aten.detach.default)
    return next((node for node in cuts if not results.isdisjoint(_later(program, [node]))), None)


_STOPPED = "`detach()` and `.data` stop the gradient: leave them out where the spec has none"


def _where_lost(
    spec: Program, implementation: Program, output: ProgramOutput
) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """The first operators with the same input beside them, of which only the spec's depends on the parameter.

    The implementation's and the spec's.
    """
    parameter = output.name.partition(".")[2]
    of_spec, of_implementation = _dependent(spec, parameter), _dependent(implementation, parameter)
    names = names_of_inputs(implementation)
    candidates = [node for node in _forward(implementation) if node not in of_implementation]
    spec_names = names_of_inputs(spec)
    for node in _forward(spec):
        beside = {spec_names[i] for i in _inputs(node) if i in spec_names} - {parameter}
        if node not in of_spec or not beside:
            continue
        for other in candidates:
            if other.target == node.target and beside & {names[i] for i in _inputs(other) if i in names}:
                return other, node
    return None


def _dependent(program: Program, name: str) -> dict[torch.fx.Node, None]:
    return _later(program, [item.node for item in program.inputs if item.name == name])


def _later(program: Program, first: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, None]:
    """``first`` and what depends on them, in graph order."""
    found = dict.fromkeys(first)
    for node in program.graph.graph.nodes:
        if not found.keys().isdisjoint(node.all_input_nodes):
            found[node] = None
    return found


def _forward(program: Program) -> Sequence[torch.fx.Node]:
    nodes = program.graph.graph.nodes
    return [n for n in nodes if n.op == "call_function" and not is_backward(n) and not is_view(n.target)]


def _inputs(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The program's inputs that an operator takes, as they are or as views."""
    found: list[torch.fx.Node] = []
    for operand in node.all_input_nodes:
        source = operand
        while source.op == "call_function" and is_view(source.target):
            source = source.all_input_nodes[0]
        if source.op == "placeholder":
            found.append(source)
    return found
