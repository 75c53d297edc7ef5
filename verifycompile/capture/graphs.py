"""Graphs captured elsewhere as ``Program`` values: one spec, and one implementation graph a rank or one for all."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
import torch.fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate
from torch.export import ExportedProgram

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.asynchronous import split_coalesced, unwaited, wait_before_each_read
from verifycompile.capture.layouts import shard_degrees
from verifycompile.capture.ranks.process_groups import GroupTable, name_groups, without_groups_of_one
from verifycompile.capture.ranks.tidy import tidy
from verifycompile.errors import UsageError
from verifycompile.program import Blocker, Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.torch_interface.communication.in_place_collectives import UnsupportedCollectiveError
from verifycompile.torch_interface.dynamo.graph_modules import FunctionalGraph, example_of, functional_graph
from verifycompile.torch_interface.operators.shapes import shape_of
from verifycompile.torch_interface.ranks.mesh import describe_mesh

Placements = tuple[Placement, ...]

_FAILURES = (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, KeyError, AttributeError)


@dataclasses.dataclass(frozen=True)
class Relation:
    """How an implementation value lies relative to one of the spec's. None where the user left it open."""

    spec_name: str | None = None
    placements: Placements | None = None


Relations = Mapping[str, Relation]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A functional graph. ``inputs``: its placeholders by name. ``results``: position in the flat result -> node.

    ``constants``: results that are numbers or texts, by position.
    """

    functional: FunctionalGraph
    inputs: Mapping[str, torch.fx.Node]
    results: Mapping[int, torch.fx.Node]
    blockers: tuple[Blocker, ...]
    label: str
    constants: Mapping[int, object] = dataclasses.field(default_factory=dict[int, object])

    @property
    def graph(self) -> torch.fx.GraphModule:
        return self.functional.graph

    def shape(self, name: str) -> tuple[Any, ...] | None:
        """Shape of a placeholder that is a tensor."""
        value = self.inputs[name].meta.get("val")
        return shape_of(value) if isinstance(value, torch.Tensor) else None


def mesh_of(mesh: object, ranks: int | None) -> Mesh:
    """The mesh that a user names: a ``DeviceMesh``, sizes, or axis name -> size; by default one axis of all ranks."""
    if mesh is None:
        if ranks is None:
            raise UsageError("VC301", "one graph for all ranks needs a `mesh`: a DeviceMesh, sizes, or names to sizes.")
        mesh = {"rank": ranks}
    if isinstance(mesh, Mesh):
        found = mesh
    elif isinstance(mesh, DeviceMesh):
        found = describe_mesh(mesh)
    else:
        if isinstance(mesh, int):
            mesh = (mesh,)
        named = isinstance(mesh, Mapping)
        if not named and not isinstance(mesh, (tuple, list)):
            raise UsageError("VC306", "`mesh` must be a DeviceMesh, a tuple of sizes, or a mapping of names to sizes.")
        sizes = dict(mesh) if named else {f"dim_{i}": size for i, size in enumerate(mesh)}
        if not sizes or not all(type(size) is int and size > 0 for size in sizes.values()):
            raise UsageError("VC306", f"the sizes of `mesh` must be numbers of ranks greater than zero, not {mesh!r}.")
        axes = tuple(MeshAxis(str(name), size) for name, size in sizes.items())
        found = Mesh(axes, tuple(range(math.prod(axis.size for axis in axes))))
    if ranks is not None and len(found.ranks) != ranks:
        raise UsageError("VC303", f"the mesh has {len(found.ranks)} ranks and there are {ranks} rank graphs.")
    return found


def relations_of(option: str, value: object, ranks: int) -> tuple[Relations, ...]:
    """What a user says of inputs or outputs, a mapping a rank: one mapping holds for all ranks."""
    if value is None:
        return ({},) * ranks
    if isinstance(value, Mapping):
        parsed = _parse_relations(option, cast("Mapping[object, object]", value))
        return (parsed,) * ranks
    if not isinstance(value, (list, tuple)) or len(cast("Sequence[object]", value)) != ranks:
        raise UsageError("VC306", f"`{option}` must be a mapping, or one mapping for each of the {ranks} ranks.")
    items = cast("Sequence[object]", value)
    return tuple(_parse_relations(option, cast("Mapping[object, object]", item or {})) for item in items)


def _parse_relations(option: str, value: Mapping[object, object]) -> Relations:
    if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # given by a user
        raise UsageError("VC306", f"`{option}` must map names to placements.")
    return {str(name): _parse_relation(option, str(name), item) for name, item in value.items()}


def _parse_relation(option: str, name: str, value: object) -> Relation:
    if isinstance(value, Placement):
        return Relation(None, (value,))
    if isinstance(value, str):
        return Relation(value, None)
    if isinstance(value, (tuple, list)):
        items = tuple(cast("Sequence[object]", value))
        if all(isinstance(item, Placement) for item in items):
            return Relation(None, cast("Placements", items))
        if len(items) == 2 and isinstance(items[0], str):
            placed = _parse_relation(option, name, items[1]).placements
            if placed is not None:
                return Relation(items[0], placed)
    raise UsageError(
        "VC306",
        f"`{option}`: the value for `{name}` must be placements, a name of the spec, or a pair of both.",
    )


def prepare(graph: object, examples: Sequence[object] | None, groups: GroupTable, label: str) -> Prepared:
    """A functional ATen graph out of a captured one. Raises ``UsageError`` where it cannot be traced again."""
    if not isinstance(graph, torch.fx.GraphModule):
        wanted = (
            "pass its `module()`" if isinstance(graph, ExportedProgram) else "pass what `make_fx(f)(*args)` returns"
        )
        raise UsageError("VC306", f"{label} is no torch.fx.GraphModule but of type `{type(graph).__name__}`: {wanted}.")
    placeholders = graph.graph.find_nodes(op="placeholder")
    values = list(examples) if examples is not None else [example_of(node) for node in placeholders]
    if len(values) != len(placeholders):
        raise UsageError("VC303", f"{label} has {len(placeholders)} inputs, {len(values)} example values are given.")
    missing = [node.name for node, value in zip(placeholders, values, strict=True) if value is None]
    if missing:
        raise UsageError(
            "VC303", f"{label} records no example value for `{missing[0]}`; pass `spec_inputs` and `rank_inputs`."
        )
    try:
        functional, blockers = _functional(graph, values, groups, f"<{label}>")
    except _FAILURES as error:
        raise UsageError("VC303", f"{label} does not run on its example values: {error}") from error
    split_coalesced(functional.graph)
    wait_before_each_read(functional.graph)
    without_groups_of_one(functional.graph)
    tidy(functional.graph, set(functional.written.values()))
    nodes = functional.graph.graph.find_nodes(op="placeholder")
    output = next(iter(functional.graph.graph.find_nodes(op="output")))
    returned = cast("Sequence[object]", output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args)
    results = {i: item for i, item in enumerate(returned) if isinstance(item, torch.fx.Node)}
    inputs = dict(zip(functional.names, nodes, strict=True))
    constants = {i: item for i, item in enumerate(returned) if isinstance(item, int | float | str)}
    return Prepared(functional, inputs, results, (*blockers, *unwaited(functional.graph)), label, constants)


def _functional(
    graph: torch.fx.GraphModule, values: Sequence[object], groups: GroupTable, label: str
) -> tuple[FunctionalGraph, tuple[Blocker, ...]]:
    copied = torch.fx.GraphModule(graph, _copy(graph))
    copied.meta.update(graph.meta)
    blockers = name_groups(copied, groups)
    if not blockers:
        try:
            return functional_graph(copied, values, label), ()
        except UnsupportedCollectiveError as error:
            blockers = (Blocker(None, "VC201", error.message),)
    # A collective that cannot be traced: what is known of the program ends before it.
    inputs = torch.fx.GraphModule(torch.nn.Module(), _placeholders_only(graph))
    return functional_graph(inputs, values, label), blockers


def _copy(graph: torch.fx.GraphModule) -> torch.fx.Graph:
    copied = torch.fx.Graph()
    output = copied.graph_copy(graph.graph, val_map={})
    copied.output(output)
    return copied


def _placeholders_only(graph: torch.fx.GraphModule) -> torch.fx.Graph:
    kept = torch.fx.Graph()
    for node in graph.graph.find_nodes(op="placeholder"):
        kept.placeholder(node.name).meta.update(node.meta)
    kept.output([])
    return kept


@dataclasses.dataclass(frozen=True)
class PlacedInput:
    """A resolved input relation. ``assumed``: the placements are a default, to be listed."""

    spec_name: str
    placements: Placements
    assumed: bool = False


def resolve_inputs(
    spec: Prepared, implementation: Prepared, given: Relations, mesh: Mesh, notes: dict[str, None]
) -> dict[str, PlacedInput]:
    """For every tensor input of the implementation its input of the spec and its placements.

    Raises ``UsageError``: VC306 for names that do not exist, VC304 for an input without a counterpart, VC308 where the
    layout must be given, VC303 for placements that do not fit the mesh.
    """
    relations = _by_node_name("in_relations", given, implementation)
    resolved: dict[str, PlacedInput] = {}
    for name in implementation.inputs:
        if implementation.shape(name) is None:
            continue
        relation = relations.get(name, Relation())
        spec_name = _spec_name(spec, implementation, name, relation, notes)
        whole = spec.shape(spec_name)
        if whole is None:
            raise UsageError("VC304", f"`{spec_name}` is no tensor of the spec.")
        placements = relation.placements
        if placements is None:
            placements = _default_placements(implementation, name, whole, mesh)
        if len(placements) != len(mesh.axes):
            raise UsageError(
                "VC303", f"`{name}` has {len(placements)} placements, the mesh has {len(mesh.axes)} dimensions."
            )
        resolved[name] = PlacedInput(spec_name, placements, relation.placements is None)
    return resolved


def _by_node_name(option: str, given: Relations, prepared: Prepared) -> dict[str, Relation]:
    """Relations by the exact names of placeholders; a tracer's suffix may be left out, and a position given."""
    names = list(prepared.inputs)
    found: dict[str, Relation] = {}
    for key, relation in given.items():
        name = matching_name(key, names)
        if name is None:
            known = ", ".join(f"`{name}`" for name in names)
            raise UsageError("VC306", f"`{option}` names `{key}`, {prepared.label} has the inputs {known}.")
        found[name] = relation
    return found


def matching_name(key: str, names: Sequence[str]) -> str | None:
    """The name that ``key`` means: itself, a position, or itself with the suffix that ``make_fx`` adds."""
    if key in names:
        return key
    if key.isdigit() and int(key) < len(names):
        return names[int(key)]
    suffixed = [name for name in names if re.sub(r"_\d+$", "", name) == key]
    return suffixed[0] if len(suffixed) == 1 else None


def _spec_name(spec: Prepared, implementation: Prepared, name: str, relation: Relation, notes: dict[str, None]) -> str:
    names = list(spec.inputs)
    if relation.spec_name is not None:
        found = matching_name(relation.spec_name, names)
        if found is None:
            known = ", ".join(f"`{other}`" for other in names)
            raise UsageError("VC306", f"`in_relations` names `{relation.spec_name}`, the spec has the inputs {known}.")
        return found
    if name in names:
        return name
    own = list(implementation.inputs)
    if len(own) == len(names) and not set(own) & set(names):
        text = f"the inputs of {implementation.label} are those of the spec in their order"
        notes[Assumption(text, AssumptionKind.CORRESPONDENCE)] = None
        return names[own.index(name)]
    raise UsageError(
        "VC304", f"the input `{name}` of {implementation.label} is none of the spec's; say which with `in_relations`."
    )


def _default_placements(implementation: Prepared, name: str, whole: tuple[Any, ...], mesh: Mesh) -> Placements:
    local = implementation.shape(name)
    if local == whole:
        return tuple(Replicate() for _ in mesh.axes)
    raise UsageError(
        "VC308",
        f"the input `{name}` of {implementation.label} has shape {list(local or ())}, the spec's has shape "
        f"{list(whole)}. Say how it is laid out with `in_relations`.",
    )


def check_shapes(spec: Prepared, implementation: Prepared, inputs: Mapping[str, PlacedInput], mesh: Mesh) -> bool:
    """Whether the placements of every input give its local shape evenly; False where they give it unevenly.

    Raises ``UsageError`` VC303 where no rank could hold such a part.
    """
    even = True
    for name, placed in inputs.items():
        whole, local = spec.shape(placed.spec_name), implementation.shape(name)
        assert whole is not None
        assert local is not None
        if len(whole) != len(local):
            raise UsageError("VC303", _misfit(implementation, name, local, placed, whole))
        degrees = shard_degrees(placed.placements, mesh, len(whole))
        for size, part, degree in zip(whole, local, degrees, strict=True):
            if not isinstance(size, int) or not isinstance(part, int) or part * degree == size:
                continue
            if degree == 1 or part > -(-size // degree):
                raise UsageError("VC303", _misfit(implementation, name, local, placed, whole))
            even = False
    return even


def _misfit(
    implementation: Prepared, name: str, local: tuple[Any, ...], placed: PlacedInput, whole: tuple[Any, ...]
) -> str:
    placements = "(" + ", ".join(str(placement) for placement in placed.placements) + ")"
    return (
        f"the input `{name}` of {implementation.label} has shape {list(local)}, which is no part of "
        f"`{placed.spec_name}` of shape {list(whole)} placed {placements}."
    )


def spec_program(prepared: Prepared) -> Program:
    """The spec: its placeholders and results under their own names."""
    inputs = [_input(prepared, name, name, None, None) for name in prepared.inputs]
    outputs = _outputs(prepared, {name: name for name in prepared.inputs}, {}, {})
    equal = _equal_sizes(prepared)
    return Program(prepared.graph, tuple(inputs), tuple(outputs), blockers=prepared.blockers, assumptions=equal)


def implementation_program(
    prepared: Prepared, spec: Prepared, inputs: Mapping[str, PlacedInput], outputs: Relations, mesh: Mesh
) -> Program:
    """The implementation's graph with its boundary. Mesh, coordinates and groups are for the caller to add."""
    placed: list[ProgramInput] = []
    for name in prepared.inputs:
        relation = inputs.get(name)
        spec_name = name if relation is None else relation.spec_name
        shape = None if relation is None else spec.shape(spec_name)
        placed.append(_input(prepared, name, spec_name, relation, shape))
    spec_names = {name: relation.spec_name for name, relation in inputs.items()}
    layouts = {placed.spec_name: placed.placements for placed in inputs.values()}
    of_spec = {place: position for position, place in enumerate(spec.functional.places)}
    positions = {i: of_spec.get(place, i) for i, place in enumerate(prepared.functional.places)}
    differing = _differing_constants(prepared, spec, positions)
    results = _outputs(prepared, spec_names, outputs, layouts, positions)
    for output in results:
        if output.placements is not None and len(output.placements) != len(mesh.axes):
            sizes = f"{len(output.placements)} placements, the mesh {len(mesh.axes)} dimensions"
            raise UsageError("VC303", f"`{output.name}` has {sizes}.")
    blockers = (*prepared.blockers, *differing)
    equal = _equal_sizes(prepared)
    return Program(
        prepared.graph, tuple(placed), tuple(results), blockers=blockers, assumptions=equal, captured_elsewhere=True
    )


def _equal_sizes(prepared: Prepared) -> tuple[Assumption, ...]:
    """Dimensions of inputs, and numbers, to which a trace gave one symbol, because they were equal when it was made."""
    found: dict[object, list[str]] = {}
    for name in prepared.inputs:
        value = prepared.inputs[name].meta.get("val")
        if isinstance(value, torch.SymInt):
            found.setdefault(value.node.expr, []).append(f"`{name}`")
        for dim, size in enumerate(shape_of(value)) if isinstance(value, torch.Tensor) else ():
            if isinstance(size, sympy.Symbol):
                found.setdefault(size, []).append(f"`{name}.size({dim})`")
    return tuple(
        Assumption(f"sizes that {prepared.label} takes for one: {', '.join(dims)}", AssumptionKind.SIZES)
        for dims in found.values()
        if len(dims) > 1
    )


def _differing_constants(prepared: Prepared, spec: Prepared, positions: Mapping[int, int]) -> Iterator[Blocker]:
    """Results that are no tensors and other ones in the spec."""
    for position, own in prepared.constants.items():
        whole = spec.constants.get(positions.get(position, position))
        if whole is None or repr(own) == repr(whole):
            continue
        text = f"`output.{position}` is {own!r} in {prepared.label}, {whole!r} in the spec"
        yield Blocker(None, "VC107", f"what is returned differs: {text}")


def _input(
    prepared: Prepared, name: str, spec_name: str, relation: PlacedInput | None, shape: tuple[Any, ...] | None
) -> ProgramInput:
    node = prepared.inputs[name]
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return ProgramInput(node, Role.SIZE if isinstance(value, (int, torch.SymInt)) else Role.OPAQUE, spec_name)
    role = Role.PARAMETER if name in prepared.functional.lifted else Role.INPUT
    if relation is None:
        return ProgramInput(node, role, spec_name, None, shape_of(value))
    return ProgramInput(node, role, spec_name, relation.placements, shape, assumed=relation.assumed)


def _outputs(
    prepared: Prepared,
    spec_names: Mapping[str, str],
    given: Relations,
    layouts: Mapping[str, Placements],
    positions: Mapping[int, int] | None = None,
) -> list[ProgramOutput]:
    """Results ``output.N`` (N counts the flattened result, whatever is no tensor included) and written inputs.

    ``positions``: of a result -> of the spec's result at the same place.
    """
    outputs: list[ProgramOutput] = []
    for position, node in prepared.results.items():
        name = f"output.{position}"
        relation = given.get(name, given.get(str(position), Relation()))
        required = relation.placements
        declared = "" if required is None else "`out_relations`"
        spec_name = relation.spec_name or f"output.{(positions or {}).get(position, position)}"
        outputs.append(ProgramOutput(node, OutputKind.VALUE, spec_name, position, required, declared))
    for name, node in prepared.functional.written.items():
        spec_name = spec_names.get(name, name)
        declared = "the input's placements"
        required = layouts.get(spec_name)
        outputs.append(ProgramOutput(node, OutputKind.MUTATION, f"mutation.{spec_name}", -1, required, declared))
    unknown = sorted(set(given) - {f"output.{i}" for i in prepared.results} - {str(i) for i in prepared.results})
    if unknown and not prepared.blockers:
        raise UsageError("VC306", f"`out_relations` names `{unknown[0]}`, which {prepared.label} does not return.")
    return outputs
