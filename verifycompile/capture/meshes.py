"""The root mesh of a program, and which of its axes coordinates and process groups speak of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import sympy
import torch.fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.refine_mesh import RefinedMesh, refine
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Blocker, Mesh
from verifycompile.torch_interface.dynamo.frames import TracedFrame
from verifycompile.torch_interface.dynamo.returned import returned_layout
from verifycompile.torch_interface.ranks.mesh import (
    RootMesh,
    axes_of_coordinate,
    axes_of_line,
    axes_out_of_order,
    axis_names,
    describe_mesh,
    group_ranks,
    has_world,
    mesh_group_ranks,
    mesh_lines,
    real_object,
    root_of,
    world_mesh,
)
from verifycompile.torch_interface.ranks.rank_values import GroupUse, coordinate_reads, group_uses


@dataclasses.dataclass(frozen=True)
class Root:
    """The mesh of a program: ``mesh`` with the axes of the proof, ``refined`` says which axes the user knows.

    ``lines``: ranks of the groups and meshes for which axes were cut.
    """

    mesh: RootMesh
    refined: RefinedMesh
    lines: tuple[tuple[int, ...], ...]
    assumptions: tuple[str, ...] = ()

    def cut(self, strides: Sequence[int]) -> Root:
        """The same mesh with axes that begin a digit at each of ``strides`` ranks, as far as possible."""
        ranks = self.refined.mesh.ranks
        refined = refine(self.refined.named, [*self.lines, *(ranks[:stride] for stride in strides)])
        return dataclasses.replace(self, mesh=RootMesh(self.mesh.mesh, self.mesh.parts, refined.mesh), refined=refined)


def root_mesh(
    traced: TracedFrame, graph: torch.fx.GraphModule, options: Options, around: Sequence[DeviceMesh] = ()
) -> Root:
    """The mesh that placements speak of: the one named, else the root of the meshes that enter the graph.

    A program with process groups and no mesh, or with placements for its plain tensors, lies on all ranks of the job.
    Axes are cut where a process group of ``graph`` or another mesh spans a part of one. ``around``: the meshes of what
    happens outside of the graph, of which one may be the mesh where the graph itself has none.
    Raises ``UsageError`` VC301 where there is no mesh and VC302 where there are several.
    """
    meshes = meshes_of(traced)
    require_groups(meshes)
    roots = {id(root_of(mesh)) for mesh in meshes}
    meshes = (*meshes, *(mesh for mesh in around if not roots or id(root_of(mesh)) in roots))
    named = options.mesh if options.mesh is not None else _only_root(meshes)
    for mesh in (*meshes, *(() if named is None else (named,))):
        if axes := axes_out_of_order(mesh):
            text = _text(describe_mesh(mesh))
            raise UsageError("VC302", _OUT_OF_ORDER.format(text, ", ".join(f"`{axis}`" for axis in axes)))
    uses = [use for use in group_uses(graph) if use.mesh is None]
    assumptions: tuple[str, ...] = ()
    if named is None:
        has_placements = options.in_placements or options.param_placements or options.out_placements
        if not has_world() or not (uses or has_placements):
            raise UsageError(
                "VC301",
                "no device mesh: no parameter or input of this graph is a DTensor. "
                "Name the mesh of your process groups with the option `mesh`.",
            )
        base = world_mesh()
        text = f"the program has no device mesh: its {len(base.ranks)} ranks are the mesh axis `world`"
        assumptions = (Assumption(text, AssumptionKind.CORRESPONDENCE),)
    else:
        base = RootMesh(named, _parts_of(named, meshes)).description
    lines = [line for mesh in meshes for line in mesh_lines(mesh)]
    lines.extend(group_ranks(use.group) for use in uses)
    refined = refine(base, lines)
    parts = () if named is None else _parts_of(named, meshes)
    return Root(RootMesh(named, parts, refined.mesh), refined, tuple(lines), assumptions)


def require_groups(meshes: Iterable[DeviceMesh]) -> None:
    """Raises ``UsageError`` VC301 where ``meshes`` are of a job that has ended."""
    mesh = next(iter(meshes), None)
    if mesh is not None and not has_world():
        raise UsageError(
            "VC301",
            f"the process groups of the mesh ({', '.join(axis_names(mesh))}) were destroyed. Call `init_process_group` "
            "again, and make the mesh and the model anew.",
        )


_OUT_OF_ORDER = (
    "the mesh {} has ranks along {} that do not ascend. The process groups that torch makes for it are sorted: a "
    "tensor is cut in one order and joined in the other. List the ranks of each axis in ascending order."
)


def check_named_mesh(traced: TracedFrame, options: Options, of_wrappers: Sequence[DeviceMesh]) -> None:
    """Raises ``UsageError`` VC310 where the option ``mesh`` is none of those that the program lies on.

    A part of the program's mesh is one where the whole program lies on it, as a pipeline stage does.
    ``of_wrappers``: meshes that data-parallel wrappers around the program were given.
    """
    named = options.mesh
    roots = list(dict.fromkeys(root_of(mesh) for mesh in (*meshes_of(traced), *of_wrappers)))
    if named is None or not roots or named in roots:
        return
    root = root_of(named)
    if root in roots and named.size() == root.size():
        return  # Its ranks under other axes.
    part = RootMesh(named)
    # Of a mesh that enters the graph by itself a part alone may be used; groups and coordinates tell.
    used = [*(value.device_mesh for value in traced.example_inputs if isinstance(value, DTensor)), *of_wrappers]
    beyond = [_text(describe_mesh(mesh)) for mesh in used if part.spans(mesh) is None]
    if root in roots and not beyond:
        return
    if root in roots:
        problem = (
            f"is the part {_text(describe_mesh(named))} of {_text(describe_mesh(root))}, and the program also lies on "
            f"{'; '.join(dict.fromkeys(beyond))}; name the whole mesh"
        )
    else:
        others = "; ".join(_text(describe_mesh(mesh)) for mesh in roots)
        problem = f"is {_text(describe_mesh(named))}, but the program's DTensors and wrappers lie on {others}"
    raise UsageError("VC310", f"option `mesh` does not apply: it {problem}.")


def _parts_of(root: DeviceMesh, meshes: Sequence[DeviceMesh]) -> tuple[DeviceMesh, ...]:
    return tuple(mesh for mesh in meshes if root_of(mesh) is root)


def meshes_of(traced: TracedFrame) -> tuple[DeviceMesh, ...]:
    """The meshes of the DTensors that enter the graph, and those that enter it themselves.

    Also those over which a graph before laid out what enters this one.
    """
    seen: dict[int, DeviceMesh] = {}
    for value in traced.example_inputs:
        layout = returned_layout(value)
        if layout is not None and layout.mesh is not None:
            seen.setdefault(id(layout.mesh), layout.mesh)
        held = value.device_mesh if isinstance(value, DTensor) else real_object(value)
        if isinstance(held, DeviceMesh):
            seen.setdefault(id(held), held)
    return tuple(seen.values())


def _only_root(meshes: tuple[DeviceMesh, ...]) -> DeviceMesh | None:
    """The root of all ``meshes``, None where there is none. Raises ``UsageError`` VC302 for several.

    Of several roots it is the one whose axes make up all the others, where there is one.
    """
    roots: dict[Mesh, DeviceMesh] = {}
    for mesh in meshes:
        root = root_of(mesh)
        roots.setdefault(RootMesh(root, _parts_of(root, meshes)).description, root)
    if not roots:
        return None
    if len(roots) == 1:
        return next(iter(roots.values()))
    for root in roots.values():
        spanning = RootMesh(root)
        if all(spanning.spans(other) is not None for other in roots.values()):
            return root
    shapes = "; ".join(_text(mesh) for mesh in roots)
    raise UsageError(
        "VC302",
        f"the DTensors of this graph lie on {len(roots)} meshes that are not parts of one: {shapes}. "
        "Make them slices of one mesh, or name the one to use with the option `mesh`.",
    )


def _text(mesh: Mesh) -> str:
    axes = ", ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
    return f"({axes}) on ranks {mesh.ranks[0]} to {mesh.ranks[-1]}"


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """``axes``: symbol -> mesh axis. ``size_values``: coordinates on flattened axes in terms of those, 0 on size 1."""

    axes: dict[sympy.Symbol, int]
    size_values: dict[sympy.Symbol, sympy.Expr]
    blockers: tuple[Blocker, ...]


def resolve_coordinates(graph: torch.fx.GraphModule, mesh: Mesh) -> Coordinates:
    """The mesh axis behind every coordinate that the graph reads."""
    axes: dict[sympy.Symbol, int] = {}
    values: dict[sympy.Symbol, sympy.Expr] = {}
    blockers: list[Blocker] = []
    known: dict[tuple[object, ...], tuple[int, ...] | None] = {}
    for read in coordinate_reads(graph):
        spans: tuple[int, ...] | None = None
        if read.rank_map is not None:
            key = (tuple(read.rank_map.flatten().tolist()), tuple(read.rank_map.shape), read.dimension)
            if key not in known:
                known[key] = axes_of_coordinate(read.rank_map, read.dimension, mesh)
            spans = known[key]
        if read.symbol is None or spans is None:
            blockers.append(
                Blocker(read.node, "VC206", "a rank coordinate is read on a mesh that is no part of the root mesh.")
            )
        elif len(spans) == 1:
            axes[read.symbol] = spans[0]
        else:
            values[read.symbol] = _mixed_radix(spans, mesh, axes)
    return Coordinates(axes, values, tuple(blockers))


def _mixed_radix(spans: tuple[int, ...], mesh: Mesh, axes: dict[sympy.Symbol, int]) -> sympy.Expr:
    value: sympy.Expr = sympy.Integer(0)
    for axis in spans:
        symbol = sympy.Symbol(f"coordinate_{axis}", integer=True, nonnegative=True)
        axes[symbol] = axis
        value = value * mesh.axes[axis].size + symbol
    return value


@dataclasses.dataclass(frozen=True)
class Groups:
    """``axes``: see ``Program.groups``; () for a group of one rank."""

    axes: dict[str, tuple[int, ...]]
    blockers: tuple[Blocker, ...]
    assumptions: tuple[str, ...]


def resolve_groups(graph: torch.fx.GraphModule, root: RootMesh) -> Groups:
    """The mesh axes that every process group of the graph spans."""
    mesh = root.description
    axes: dict[str, tuple[int, ...]] = {}
    blockers: list[Blocker] = []
    assumptions: dict[str, None] = {}
    own_groups: set[tuple[int, ...]] | None = None
    for use in group_uses(graph):
        spans = axes.get(use.key) or _spans(use, root)
        if spans is None:
            ranks = group_ranks(use.group)
            blockers.append(
                Blocker(use.node, "VC206", f"the process group of ranks {list(ranks)} is no product of mesh axes.")
            )
            continue
        axes[use.key] = spans
        if use.mesh is not None or len(spans) == 0:
            continue
        if own_groups is None:
            own_groups = {ranks for mesh in (root.mesh, *root.parts) if mesh for ranks in mesh_group_ranks(mesh)}
        ranks = group_ranks(use.group)
        if ranks not in own_groups and len(ranks) != len(mesh.ranks):
            names = ", ".join(mesh.axes[axis].name for axis in spans)
            text = f"on every rank, the group that is ranks {list(ranks)} here is that rank's slice of {names}"
            assumptions[text] = None
    return Groups(axes, tuple(blockers), tuple(assumptions))


def _spans(use: GroupUse, root: RootMesh) -> tuple[int, ...] | None:
    if use.mesh is not None:
        spans = root.spans(use.mesh)
        if spans is not None:
            return spans[use.dimension]
    return axes_of_line(group_ranks(use.group), root.description)
