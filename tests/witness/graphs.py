"""Programs traced from plain functions, without a process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.distributed.tensor.placement_types import Placement
from torch.fx.experimental.proxy_tensor import make_fx

from verifycompile.program import Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role

Layout = Sequence[Placement] | None


def mesh(*axes: tuple[str, int]) -> Mesh:
    count = 1
    for _, size in axes:
        count *= size
    return Mesh(tuple(MeshAxis(name, size) for name, size in axes), tuple(range(count)))


def trace(
    function: Callable[..., object],
    inputs: Mapping[str, torch.Tensor],
    *,
    on: Mesh | None = None,
    layouts: Mapping[str, Layout] = {},
    groups: Mapping[str, tuple[int, ...]] = {},
) -> Program:
    """``function`` of the tensors in ``inputs`` (of one rank's shape); a ``tangent.<output>`` is a cotangent.

    ``layouts``: placements of inputs and outputs by name (``x``, ``output.0``). Tuples of outputs become
    ``output.0``, ...; a dict gives its own names.
    """
    names: list[str] = []

    def flat(*tensors: torch.Tensor) -> list[object]:
        results = function(*tensors)
        if isinstance(results, dict):
            names.extend(results)
            return list(results.values())
        values = results if isinstance(results, tuple) else (results,)
        names.extend(f"output.{position}" for position in range(len(values)))
        return list(values)

    graph = make_fx(flat, tracing_mode="fake")(*inputs.values())
    placeholders = graph.graph.find_nodes(op="placeholder")
    entries = [_input(node, name, layouts) for node, name in zip(placeholders, inputs, strict=True)]
    returned = graph.graph.output_node().args[0]
    outputs = [
        ProgramOutput(node, _kind(name), name, index, _layout(layouts, name))
        for index, (node, name) in enumerate(zip(returned, names, strict=True))
    ]
    return Program(graph, tuple(entries), tuple(outputs), on, groups=groups)


def _layout(layouts: Mapping[str, Layout], name: str) -> tuple[Placement, ...] | None:
    layout = layouts.get(name)
    return None if layout is None else tuple(layout)


def _kind(name: str) -> OutputKind:
    prefix = name.partition(".")[0]
    return {"grad": OutputKind.GRADIENT, "mutation": OutputKind.MUTATION}.get(prefix, OutputKind.VALUE)


def _input(node: torch.fx.Node, name: str, layouts: Mapping[str, Layout]) -> ProgramInput:
    tangent = name.startswith("tangent.")
    role = Role.TANGENT if tangent else Role.PARAMETER if name.startswith("w") else Role.INPUT
    return ProgramInput(node, role, name.removeprefix("tangent."), _layout(layouts, name))
