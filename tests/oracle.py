"""Does a parallel program compute what its spec computes? Decided by running it on all ranks.

Independent of the verifier and of its witness search: torch's ``LocalTensorMode`` runs every rank in one process and
performs the collectives. Two ways in: the user's module run eagerly (:func:`run_module`), and a captured graph
replayed (:func:`run_program`), for mutants that exist as graphs only.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import torch
import torch.fx
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from tests.programs.case import Case
from tests.support import fake_mesh_world
from verifycompile.capture.names import clean_module_name
from verifycompile.program import Program, Role

Ranks = Sequence[torch.Tensor]
"""One value a rank, in the order of the ranks."""


ZERO = 1e-3
"""A gradient this much smaller than the largest one is compared as if it were of this size: some are zero on paper."""


@dataclasses.dataclass(frozen=True)
class OracleVerdict:
    """``output``: the first that differs, None where all are equal; ``error``: relative to its largest element."""

    output: str | None = None
    error: float = 0.0

    @property
    def equal(self) -> bool:
        return self.output is None

    def __str__(self) -> str:
        return "equal" if self.equal else f"different ({self.output}, {self.error:.1e})"


def run_module(case: Case, original: Case | None = None, tolerance: float = 1e-9) -> OracleVerdict:
    """Runs ``case`` on all ranks, forward and backward, in float64; its spec is that of ``original``."""
    model = (original or case).spec().double()
    inputs = [_double(value) for value in (original or case).inputs()]
    spec_output = model(*inputs)
    cotangent = torch.randn(spec_output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    spec_output.backward(cotangent)

    arguments = _local_inputs(case)
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh, LocalTensorMode(case.world_size) as mode:
        parallel = case.parallelize(case.spec().double(), mesh)
        output = parallel(*arguments)
        values = _values(output, case.world_size)
        with mode.disable():
            layout = relation(values, spec_output, case.mesh_shape, tolerance)
            if layout is None:
                return OracleVerdict("output.0", _closest(values, spec_output, case.mesh_shape))
            start = _cotangent(layout, cotangent, case)
        output.backward(start)
        gradients = {
            clean_module_name(name.split(".")): _values(p.grad, case.world_size)
            for name, p in parallel.named_parameters()
        }
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        if (error := _error(gradients[name], gradient, ZERO * largest)) > tolerance:
            return OracleVerdict(f"grad.{name}", error)
    return OracleVerdict()


def _local_inputs(case: Case) -> list[torch.Tensor]:
    per_rank = [case.rank_inputs(rank) for rank in range(case.world_size)]
    return [
        LocalTensor({rank: _double(values[position]).clone() for rank, values in enumerate(per_rank)})
        for position in range(len(per_rank[0]))
    ]


def _double(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _values(value: torch.Tensor | None, ranks: int) -> Ranks:
    assert value is not None
    value = value.detach()
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, LocalTensor):
        return [value._local_tensors[rank] for rank in range(ranks)]
    return [value] * ranks


def _cotangent(layout: Sequence[Placement], whole: torch.Tensor, case: Case) -> torch.Tensor:
    kept = [Replicate() if isinstance(placement, Partial) else placement for placement in layout]
    parts = shards(whole, kept, case.mesh_shape)
    return LocalTensor({rank: part.contiguous() for rank, part in enumerate(parts)})


def run_program(spec: Program, implementation: Program, mesh: DeviceMesh, tolerance: float = 1e-3) -> OracleVerdict:
    """Replays two captured graphs, the implementation's on all ranks of ``mesh``, which is like the captured one."""
    assert implementation.mesh is not None
    shape = implementation.mesh.shape
    values, tangents = _random_inputs(spec)
    expected = _replay(spec, {**values, **{f"tangent {name}": value for name, value in tangents.items()}})
    layouts = {entry.name: entry.placements for entry in implementation.inputs if entry.role is Role.TANGENT}
    for name, layout in layouts.items():
        if layout is None:
            # A first replay with any cotangents shows how the forward output is laid out.
            forward = _replay_ranks(implementation, mesh, values, {}, {})
            layouts[name] = relation(forward[name], expected[name], shape, tolerance)
            if layouts[name] is None:
                return OracleVerdict(name, _closest(forward[name], expected[name], shape))
    results = _replay_ranks(implementation, mesh, values, tangents, layouts)
    largest = max(float(value.abs().max()) for value in expected.values())
    for output in spec.outputs:
        made = next((o for o in implementation.outputs if o.name == output.name), None)
        parts = results.get(output.name)
        if parts is None:
            continue
        whole = expected[output.name]
        candidates = _clean_layouts(whole.dim(), shape)
        if made is not None and made.placements is not None:
            candidates = [
                [found[axis] if axis in made.open_axes else item for axis, item in enumerate(made.placements)]
                for found in (candidates if made.open_axes else candidates[:1])
            ]
        errors = [_layout_error(parts, whole, layout, shape, ZERO * largest) for layout in candidates]
        if min(errors) > tolerance:
            return OracleVerdict(output.name, min(errors))
    return OracleVerdict()


def _random_inputs(spec: Program) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    values: dict[str, torch.Tensor] = {}
    tangents: dict[str, torch.Tensor] = {}
    for entry in spec.inputs:
        traced = entry.node.meta.get("val")
        if not isinstance(traced, torch.Tensor):
            continue
        if traced.dtype.is_floating_point or traced.dtype.is_complex:
            scale = math.sqrt(traced.shape[-1]) if entry.role is Role.PARAMETER and traced.dim() > 1 else 1.0
            value = torch.randn(traced.shape, generator=generator, dtype=traced.dtype) / scale
        else:
            value = torch.randint(0, 8, traced.shape, generator=generator).to(traced.dtype)
        (tangents if entry.role is Role.TANGENT else values)[entry.name] = value
    return values, tangents


def _replay(spec: Program, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    arguments = [values[_key(entry.name, entry.role)] for entry in spec.inputs]
    results = torch.fx.Interpreter(spec.graph).run(*arguments, enable_io_processing=False)
    return {output.name: results[output.index].detach() for output in spec.outputs}


def _key(name: str, role: Role) -> str:
    return f"tangent {name}" if role is Role.TANGENT else name


class _Replay(torch.fx.Interpreter):
    """Takes process groups from a live mesh: that of the capture may be gone, and edits name groups by their axes."""

    def __init__(self, program: Program, mesh: DeviceMesh) -> None:
        super().__init__(program.graph)
        self._program, self._mesh = program, mesh

    def run_node(self, n: torch.fx.Node) -> object:
        if n.target is torch.ops._dtensor.mesh_get_process_group.default:
            (axis,) = self._program.groups[n.name]
            return self._mesh.get_group(axis)
        return super().run_node(n)


def _replay_ranks(
    implementation: Program,
    mesh: DeviceMesh,
    values: Mapping[str, torch.Tensor],
    tangents: Mapping[str, torch.Tensor],
    tangent_layouts: Mapping[str, Sequence[Placement] | None],
) -> dict[str, Ranks]:
    assert implementation.mesh is not None
    shape, ranks = implementation.mesh.shape, len(implementation.mesh.ranks)
    arguments: list[object] = []
    with torch.no_grad():
        for entry in implementation.inputs:
            traced = entry.node.meta["val"]
            if not isinstance(traced, torch.Tensor):
                arguments.append(getattr(traced, "real_obj", traced))
                continue
            if entry.role is Role.TANGENT:
                layout, whole = tangent_layouts.get(entry.name), tangents.get(entry.name)
            else:
                layout, whole = entry.placements, values[entry.name]
            if whole is None:
                parts: Ranks = [torch.zeros(traced.shape, dtype=traced.dtype)] * ranks
            else:
                kept = [Replicate() if isinstance(p, Partial) else p for p in layout or (Replicate(),) * len(shape)]
                parts = shards(whole, kept, shape)
            arguments.append(LocalTensor({rank: part.clone() for rank, part in enumerate(parts)}))
    with LocalTensorMode(ranks), torch.no_grad():
        results = _Replay(implementation, mesh).run(*arguments, enable_io_processing=False)
        return {output.name: _values(results[output.index], ranks) for output in implementation.outputs}


def shards(whole: torch.Tensor, layout: Sequence[Placement], mesh_shape: Sequence[int]) -> Ranks:
    """Each rank's part of a tensor that is sharded or replicated."""
    parts: list[torch.Tensor] = [whole]
    for placement, size in zip(layout, mesh_shape, strict=True):
        if isinstance(placement, Shard | _StridedShard):
            parts = [piece for part in parts for piece in _pieces(part, placement, size)]
        else:
            parts = [part for part in parts for _ in range(size)]
    return parts


def _pieces(tensor: torch.Tensor, placement: Shard | _StridedShard, size: int) -> list[torch.Tensor]:
    blocks = tensor.chunk(_blocks(placement), placement.dim)
    columns = zip(*(block.chunk(size, placement.dim) for block in blocks), strict=True)
    return [torch.cat(column, placement.dim) for column in columns]


def _joined(pieces: Sequence[torch.Tensor], placement: Shard | _StridedShard) -> torch.Tensor:
    rows = zip(*(piece.chunk(_blocks(placement), placement.dim) for piece in pieces), strict=True)
    return torch.cat([block for row in rows for block in row], placement.dim)


def _blocks(placement: Shard | _StridedShard) -> int:
    return int(placement.split_factor) if isinstance(placement, _StridedShard) else 1


def relation(
    values: Ranks, whole: torch.Tensor, mesh_shape: Sequence[int], tolerance: float
) -> tuple[Placement, ...] | None:
    """The layout under which the ranks' values are ``whole``, None where there is none."""
    for layout in _clean_layouts(whole.dim(), mesh_shape):
        if _layout_error(values, whole, layout, mesh_shape) <= tolerance:
            return layout
    return None


def _closest(values: Ranks, whole: torch.Tensor, mesh_shape: Sequence[int]) -> float:
    return min(_layout_error(values, whole, layout, mesh_shape) for layout in _clean_layouts(whole.dim(), mesh_shape))


def _clean_layouts(dims: int, mesh_shape: Sequence[int]) -> list[tuple[Placement, ...]]:
    one = [Replicate(), *(Shard(dim) for dim in range(dims)), Partial("sum"), Partial("avg")]
    return list(itertools.product(*([one] * len(mesh_shape))))


def _layout_error(
    values: Ranks, whole: torch.Tensor, layout: Sequence[Placement], mesh_shape: Sequence[int], floor: float = 0.0
) -> float:
    wholes = [[value] for value in values]
    for placement, size in reversed(list(zip(layout, mesh_shape, strict=True))):
        groups = [wholes[start : start + size] for start in range(0, len(wholes), size)]
        wholes = []
        for group in groups:
            if isinstance(placement, Replicate):
                wholes.append([value for member in group for value in member])
                continue
            columns = list(zip(*group, strict=True))
            try:
                if isinstance(placement, Shard | _StridedShard):
                    wholes.append([_joined(column, placement) for column in columns])
                else:
                    assert isinstance(placement, Partial)
                    scale = size if placement.reduce_op == "avg" else 1
                    wholes.append([torch.stack(column).sum(0) / scale for column in columns])
            except (RuntimeError, IndexError):  # shapes or dimensions that do not fit this layout
                return math.inf
    return _error(wholes[0], whole, floor)


def _error(values: Ranks, whole: torch.Tensor, floor: float = 0.0) -> float:
    if any(value.shape != whole.shape for value in values):
        return math.inf
    whole = whole.detach()
    scale = max(float(whole.abs().max()), floor) or 1.0
    return max(float((value.detach() - whole).abs().max()) for value in values) / scale
