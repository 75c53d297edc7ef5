"""What one rank tells the others of the frame that it captured: its name, who else runs it, and what it holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate

from verifycompile.capture.meshes import Root, meshes_of
from verifycompile.capture.names import InputName, name_inputs
from verifycompile.options import Options
from verifycompile.program import Program, Role
from verifycompile.torch_interface.data_parallel.outer import Outer
from verifycompile.torch_interface.dynamo.frames import Frame, TracedFrame
from verifycompile.torch_interface.dynamo.returned import graph_that_returned
from verifycompile.torch_interface.dynamo.sources import SourcePath, source_of
from verifycompile.torch_interface.operators.contents import own_part
from verifycompile.torch_interface.training_step.returned_values import Constant, shown_place


def identity_of(frame: Frame) -> str:
    """What a frame is called on every rank: its code, and the classes of the modules that it is given.

    Machines may have the user's files in other folders, and many modules share the code of torch's own wrappers.
    """
    code = frame.code
    file = "/".join(PurePath(code.co_filename).parts[-2:])
    classes = sorted({type(value).__qualname__ for value in frame.locals.values() if isinstance(value, nn.Module)})
    return f"{file}:{code.co_firstlineno} {code.co_qualname} {' '.join(classes)}"


def axes_spoken_of(
    traced: TracedFrame, program: Program, root: Root, options: Options, around: Sequence[DeviceMesh]
) -> tuple[int, ...]:
    """Axes along which ranks run this program together: all, where an option speaks of the mesh or nothing else does.

    That a tensor is replicated over an axis says something of all its ranks. Only along axes that none of the
    program's own meshes, groups and wrappers spans may other ranks run other programs, as pipeline stages do.
    """
    sizes = root.refined.mesh.axes
    meshes = (*meshes_of(traced), *around)
    placed_by_options = (
        options.in_placements, options.param_placements, options.out_placements, options.grad_placements
    )  # fmt: skip
    axes: set[int] = set(program.coordinates.values())
    if not meshes or options.mesh is not None or any(placed_by_options):
        axes.update(range(len(sizes)))
    for spans in program.groups.values():
        axes.update(spans)
    for mesh in meshes:
        spans = root.mesh.spans(mesh)
        axes.update(range(len(sizes)) if spans is None else (axis for span in spans for axis in span))
    for item in (*program.inputs, *program.outputs):
        placed = enumerate(item.placements or ())
        axes.update(axis for axis, placement in placed if not isinstance(placement, Replicate))
    return tuple(sorted(axis for axis in axes if sizes[axis].size > 1))


def held_tensors(traced: TracedFrame, names: Sequence[InputName], outer: Outer) -> dict[str, torch.Tensor]:
    """Parameters, buffers, and tensors of closures and modules' globals: what is no argument of the frame, by name.

    Parameters also where they are arguments, as of ``torch.func.functional_call``. Of a DTensor the rank's own part.
    Without the parameters that a data-parallel wrapper makes equal itself before they are used.
    """
    free = set(traced.frame.code.co_freevars)
    held: dict[str, torch.Tensor] = {}
    placeholders = traced.graph.graph.find_nodes(op="placeholder")
    for placeholder, name, value in zip(placeholders, names, traced.example_inputs, strict=True):
        reduction = outer.reductions.get(id(value))
        if not isinstance(value, torch.Tensor) or (reduction is not None and reduction.makes_equal):
            continue
        path = SourcePath.of(source_of(placeholder))
        outside = path is not None and (path.scope == "G" or path.variable in free)
        if name.role in (Role.PARAMETER, Role.BUFFER) or outside or isinstance(value, nn.Parameter):
            held[name.name] = own_part(value)
    return held


def names_of_dtensors(traced: TracedFrame, names: Sequence[InputName]) -> frozenset[str]:
    """Inputs that say themselves how they are laid out."""
    values = zip(names, traced.example_inputs, strict=True)
    return frozenset(name.name for name, value in values if isinstance(value, DTensor))


def passed_numbers(traced: TracedFrame, names: Sequence[InputName]) -> dict[str, torch.Tensor]:
    """Arguments of the frame that hold whole numbers, as tokens and masks do, by name: they are equal or they are not.

    Real numbers are not compared: where they were computed before, ranks may have rounded otherwise. Those of Python
    are: see ``python_numbers``.
    """
    values = zip(names, traced.example_inputs, strict=True)
    passed = {name.name: value for name, value in values if name.role is Role.INPUT}
    return {
        name: own_part(value)
        for name, value in passed.items()
        if isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    }


def python_numbers(
    graph: torch.fx.GraphModule, values: Sequence[Any], frame: Frame, placed: Collection[str] = ()
) -> dict[str, tuple[int, float]]:
    """Numbers of Python that a Dynamo graph takes as inputs, by name: which input, and the number at this call.

    Torch makes a symbol of a whole number, and of a real one a tensor without dimensions. No sizes of tensors, and
    none that is ``placed`` by an option, which may say that it differs.
    """
    sources = [source_of(placeholder) for placeholder in graph.graph.find_nodes(op="placeholder")]
    found: dict[str, tuple[int, float]] = {}
    for place, (source, name) in enumerate(zip(sources, name_inputs(sources, values, frame), strict=True)):
        value, path = values[place], SourcePath.of(source)
        is_open = isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and not value.ndim)
        number = path.value(frame) if path is not None and is_open else None
        if isinstance(number, int | float) and name.name not in placed:
            found[name.name] = place, number
    return found


def open_places(
    graph: torch.fx.GraphModule, values: Sequence[Any], frame: Frame, placed: Collection[str] = ()
) -> dict[str, int]:
    """Which inputs of a Dynamo graph are sizes of tensors, or ``python_numbers``, that it leaves open, by name."""
    sources = [source_of(placeholder) for placeholder in graph.graph.find_nodes(op="placeholder")]
    names = name_inputs(sources, values, frame)
    numbers = {name: place for name, (place, _) in python_numbers(graph, values, frame, placed).items()}
    open_ones = [place for place, value in enumerate(values) if isinstance(value, torch.SymInt)]
    return {**numbers, **{names[place].name: place for place in open_ones if names[place].role is Role.SIZE}}


def graphs_before(traced: TracedFrame, names: Sequence[InputName]) -> dict[str, str]:
    """By the name of an argument of the frame, what is said of the graph that returned it, where something is."""
    values = zip(names, traced.example_inputs, strict=True)
    said = {name.name: graph_that_returned(value) for name, value in values if isinstance(value, torch.Tensor)}
    return {name: text for name, text in said.items() if text}


def constants_returned(traced: TracedFrame) -> dict[str, str]:
    """Each result of the frame that is no tensor, by its place."""
    leaves = traced.left_behind.returned.items()
    return {shown_place(place): repr(leaf.value) for place, leaf in leaves if isinstance(leaf, Constant)}


def places_of_results(traced: TracedFrame) -> list[tuple[str, int]]:
    """Where the results of the graph go, and which of them: other ranks call the object that holds them otherwise."""
    output = next(iter(traced.graph.graph.find_nodes(op="output")))
    results = {item.name: k for k, item in enumerate(output.args[0]) if isinstance(item, torch.fx.Node)}
    left, broken = traced.left_behind, traced.is_broken
    changed = ((place if broken and len(place) == 1 else place[1:], leaf) for place, leaf in left.changed.items())
    leaves = (*left.returned.items(), *changed)
    return sorted(
        (shown_place(place), results[leaf.name])
        for place, leaf in leaves
        if isinstance(leaf, torch.fx.Node) and leaf.name in results
    )
