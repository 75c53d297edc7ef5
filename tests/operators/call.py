"""One operator call as a captured program: lowered by its declaration, evaluated, compared with torch."""

from __future__ import annotations

import dataclasses
import itertools
import operator as python_operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.ir.evaluate import Evaluator
from tests.ir.validate_terms import validate_pool
from verifycompile.ir import relabel
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.validate import validate
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Mesh, MeshAxis, Program

Target = Any


class RefusedError(Exception):
    """The lowering ended in an unknown; the message is its blocker's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message


@dataclasses.dataclass(frozen=True)
class Sample:
    """Arguments of one call, tensors among them real."""

    target: Target
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def recorded(self) -> Any:
        """The result of torch's own operator."""
        return REFERENCES.get(self.target, self.target)(*self.args, **self.kwargs)

    def run(self) -> list[torch.Tensor | None]:
        """The flat results of torch's own operator."""
        return flat_results(self.recorded())

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in tree_flatten((self.args, dict(self.kwargs)))[0] if isinstance(leaf, torch.Tensor)]

    def with_tensors(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other things in the places of the tensors."""
        leaves, structure = tree_flatten((self.args, dict(self.kwargs)))
        supply = iter(tensors)
        return tree_unflatten([next(supply) if isinstance(x, torch.Tensor) else x for x in leaves], structure)

    def replaced(self, tensors: Sequence[torch.Tensor]) -> Sample:
        args, kwargs = self.with_tensors(tensors)
        return Sample(self.target, args, kwargs)

    def __str__(self) -> str:
        args, kwargs = self.with_tensors([f"{str(t.dtype)[6:]}{list(t.shape)}" for t in self.tensors])
        return f"{self.target}({', '.join([*map(str, args), *(f'{k}={v}' for k, v in kwargs.items())])})"


REFERENCES: dict[Any, Any] = {
    torch.ops.aten._weight_norm_interface_backward.default: torch.ops.aten._weight_norm_differentiable_backward.default,
    torch.ops.aten._fused_rms_norm_backward.default: decomposition_table[
        torch.ops.aten._fused_rms_norm_backward.default
    ]
}
"""What stands in for an operator without a CPU kernel, or whose kernel does not check its arguments."""


def flat_results(result: Any) -> list[torch.Tensor | None]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def leaf_name(position: int) -> str:
    return f"x{position}"


def lower_call(
    sample: Sample,
    values: Sequence[View],
    recorded: Any,
    *,
    pool: TermPool,
    mesh: tuple[int, ...] = (),
    groups: Mapping[str, tuple[int, ...]] | None = None,
    coordinates: Mapping[sympy.Symbol, int] | None = None,
    validated: bool = True,
) -> list[View | None]:
    """Lower ``sample`` where its tensors have the given values and torch recorded the given result (of one rank).

    ``validated``: all terms of the pool are checked. Raises RefusedError.
    """
    graph = torch.fx.Graph()
    placeholders: list[torch.fx.Node] = []
    for position, tensor in enumerate(sample.tensors):
        node = graph.placeholder(leaf_name(position))
        node.meta["val"] = tensor
        placeholders.append(node)
    args, kwargs = sample.with_tensors(placeholders)
    call = graph.call_function(sample.target, args, kwargs)
    call.meta["val"] = recorded
    targets = [call]
    if isinstance(recorded, (tuple, list)):
        targets = []
        for position, tensor in enumerate(recorded):
            if tensor is not None:
                node = graph.call_function(python_operator.getitem, (call, position))
                node.meta["val"] = tensor
                targets.append(node)
    graph.output(tuple(targets))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    device_mesh = None
    if mesh:
        axes = tuple(MeshAxis(f"axis{k}", size) for k, size in enumerate(mesh))
        device_mesh = Mesh(axes, tuple(range(torch.Size(mesh).numel())))
    program = Program(module, (), (), device_mesh, dict(coordinates or {}), dict(groups or {}))
    lowering = Lowering(program, pool, "impl")
    nodes = {n.name: n for n in lowering.program.graph.graph.nodes}
    for placeholder, value in zip(placeholders, values, strict=True):
        lowering.provide(nodes[placeholder.name], value)
    lowering.lower([nodes[t.name] for t in targets])
    if lowering.blockers:
        blocker = next(iter(lowering.blockers.values()))
        raise RefusedError(blocker.code, blocker.message)
    views = [lowering.view(nodes[t.name]) for t in targets]
    if validated:
        validate_pool(pool)
    for view in views:
        if view is not None:
            validate(view)
    if not isinstance(recorded, (tuple, list)):
        return views
    supply = iter(views)
    return [None if tensor is None else next(supply) for tensor in recorded]


def leaf(pool: TermPool, position: int, tensor: torch.Tensor) -> View:
    """The value of one tensor argument: a leaf."""
    return pool.leaf(leaf_name(position), tuple(tensor.shape), indicator=tensor.dtype is torch.bool)


def evaluate_call(sample: Sample, pool: TermPool | None = None) -> tuple[list[View | None], list[torch.Tensor | None]]:
    """Lower a call without a mesh and evaluate its results. Raises RefusedError."""
    pool = TermPool() if pool is None else pool
    tensors = sample.tensors
    recorded = sample.recorded()
    views = lower_call(sample, [leaf(pool, k, t) for k, t in enumerate(tensors)], recorded, pool=pool)
    evaluator = Evaluator({leaf_name(k): t for k, t in enumerate(tensors)})
    return views, [None if v is None else evaluator.view(v) for v in views]


def evaluate_or_refuse(
    sample: Sample, what: str, pool: TermPool | None = None
) -> tuple[list[View | None], list[torch.Tensor | None]] | None:
    """``evaluate_call``, or None where the declaration refuses; a defect of the declaration is no refusal."""
    try:
        return evaluate_call(sample, pool)
    except RefusedError as refused:
        message = refused.message
    assert "internal error" not in message, what
    return None


def assert_same(
    actual: torch.Tensor | None, expected: torch.Tensor | None, what: str, finite: bool = False, single: bool = False
) -> None:
    """Equality up to rounding of double arithmetic; the interpreter knows real numbers only.

    ``finite``: elements that are infinite or NaN in torch are not compared. ``single``: torch computes in float32.
    """
    assert (actual is None) == (expected is None), what
    if actual is None or expected is None:
        return
    wanted = expected if expected.is_complex() else expected.to(torch.float64)
    if wanted.is_complex():
        actual, wanted = actual.to(torch.complex128), wanted.to(torch.complex128)
    got = actual
    if finite:
        got, wanted = torch.where(wanted.isfinite(), got, wanted.nan_to_num()), wanted.nan_to_num()
    near = 1e-4 if single or expected.dtype in (torch.float32, torch.complex64) else 1e-9
    torch.testing.assert_close(got, wanted, rtol=near, atol=near, equal_nan=True, msg=lambda m: f"{what}: {m}")


def sharded(
    pool: TermPool, tensors: Sequence[torch.Tensor], dims: Sequence[int | None], ranks: int
) -> tuple[list[View], dict[str, torch.Tensor], list[list[torch.Tensor]]]:
    """Arguments over one mesh axis: views of global leaves, the leaves' values, and each rank's tensors.

    ``tensors`` are those of rank 0. ``dims[k]`` is the dimension along which argument ``k`` is sharded: the global
    tensor is ``ranks`` variations of it assembled; None: all ranks hold the same.
    """
    views: list[View] = []
    leaves: dict[str, torch.Tensor] = {}
    local: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for k, (tensor, dim) in enumerate(zip(tensors, dims, strict=True)):
        if dim is None:
            views.append(relabel.insert_dim(leaf(pool, k, tensor), 0, ranks))
            leaves[leaf_name(k)] = tensor
            for rank in range(ranks):
                local[rank].append(tensor)
            continue
        parts = [varied(tensor, rank) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            local[rank].append(part)
        whole = torch.cat(parts, dim) if tensor.dim() else torch.stack(parts)
        leaves[leaf_name(k)] = whole
        split = (
            relabel.split_dim(leaf(pool, k, whole), dim, ranks, tensor.shape[dim])
            if tensor.dim()
            else leaf(pool, k, whole)
        )
        order = [dim, *(d for d in range(split.rank) if d != dim)]
        views.append(relabel.permute(split, order))
    return views, leaves, local


def varied(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Another tensor with the same dtype, shape and range of values."""
    if rank == 0:
        return tensor
    flat = tensor.flatten()
    return flat.roll(rank).flip(0).reshape(tensor.shape).contiguous()


def product_of(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    return list(itertools.product(*choices))


Check = Callable[[Sample], None]
