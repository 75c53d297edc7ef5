"""Placements as relations between a spec value and the stacked tensor of the implementation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile.ir import algebra, relabel
from verifycompile.ir.scalar import ONE, as_scalar, divide
from verifycompile.ir.size import exact_quotient
from verifycompile.ir.term import Digit, TermPool, View
from verifycompile.program import Mesh
from verifycompile.rewrites.reduction import reduce_extreme
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError

Placements = tuple[Placement, ...]

UNEVEN = "VC204"

_REDUCTIONS = ("sum", "avg", "max", "min")


def is_plain_shard(placement: Placement) -> bool:
    """``Shard`` itself; a subclass (``_StridedShard``) orders its blocks differently."""
    return type(placement) is Shard


def shard(view: View, placements: Sequence[Placement], mesh: Mesh) -> View:
    """The stacked tensor whose ranks hold ``view`` as placed; Partial counts as Replicate here.

    ``view`` has tensor dimensions only. Axes that shard one dimension split it outermost axis first, as DTensor
    does. Raises UnsupportedError for uneven shards and unknown placements.
    """
    lead = len(mesh.axes)
    shape = list(view.shape)
    digits: dict[int, list[Digit]] = {}
    for axis, placement in enumerate(placements):
        if is_plain_shard(placement):
            dim = placement.dim % view.rank  # pyright: ignore[reportAttributeAccessIssue]
            size = exact_quotient(shape[dim], mesh.axes[axis].size)
            if size is None:
                raise UnsupportedError(UNEVEN, f"dimension {dim} of size {shape[dim]} is sharded unevenly")
            shape[dim] = size
            digits.setdefault(dim, []).append((axis, 1, mesh.axes[axis].size))
        elif not isinstance(placement, (Replicate, Partial)):
            raise UnsupportedError(UNREPRESENTABLE, f"the placement {placement}")
    replacement: dict[int, Sequence[Digit]] = {
        dim: [*digits.get(dim, []), (lead + dim, 1, shape[dim])] for dim in range(view.rank)
    }
    return relabel.substitute(view, replacement, (*mesh.shape, *shape))


def reduce_partial(pool: TermPool, view: View, placements: Sequence[Placement], mesh: Mesh) -> View:
    """Reduce a stacked tensor over the axes on which ``placements`` says Partial."""
    for axis, placement in enumerate(placements):
        if not isinstance(placement, Partial):
            continue
        operation = placement.reduce_op
        if operation not in _REDUCTIONS or type(placement) is not Partial:
            raise UnsupportedError(UNREPRESENTABLE, f"the placement {placement}")
        if operation in ("sum", "avg"):
            reduced = algebra.sum_over(pool, view, [axis])
            if operation == "avg":
                reduced = reduced.scaled(divide(ONE, as_scalar(mesh.axes[axis].size)))
        else:
            reduced = reduce_extreme(pool, view, [axis], operation)
        view = relabel.insert_dim(reduced, axis, mesh.axes[axis].size)
    return view


def holds(pool: TermPool, spec: View, implementation: View, placements: Sequence[Placement], mesh: Mesh) -> bool:
    """Whether the stacked tensor is the spec value in these placements. Raises UnsupportedError."""
    expected = shard(spec, placements, mesh)
    return same_value(reduce_partial(pool, implementation, placements, mesh), expected)


def same_value(left: View, right: View) -> bool:
    """Equality of normal forms (shapes of unused dimensions included)."""
    if left.is_zero and right.is_zero:
        return left.shape == right.shape
    return (
        left.term is right.term
        and left.coefficient == right.coefficient
        and left.axes == right.axes
        and left.shape == right.shape
    )


def infer(
    pool: TermPool, spec: View, implementation: View, mesh: Mesh, allow_partial: bool = True
) -> Placements | None:
    """Placements in which the stacked tensor is the spec value, or None. Prefers fewer partial axes."""
    for placements in sorted(candidate_placements(spec, implementation, mesh, allow_partial), key=_partial_count):
        try:
            if holds(pool, spec, implementation, placements, mesh):
                return placements
        except (UnsupportedError, relabel.UnalignedError):
            continue
    return None


def _partial_count(placements: Placements) -> int:
    return sum(isinstance(p, Partial) for p in placements)


def candidate_placements(spec: View, implementation: View, mesh: Mesh, allow_partial: bool) -> Iterator[Placements]:
    """Placements whose shapes fit."""
    lead = len(mesh.axes)
    local = implementation.shape[lead:]
    if len(local) != spec.rank:
        return
    choices: list[list[Placement]] = []
    for axis in range(lead):
        options: list[Placement] = [Replicate()]
        if implementation.uses(axis):
            options = [Shard(d) for d in range(spec.rank) if spec.shape[d] != local[d]]
            if allow_partial:
                options += [Partial("sum"), Partial("avg")]
        elif mesh.axes[axis].size == 1:
            options = [Replicate()]
        choices.append(options)
    yield from itertools.product(*choices)


def describe(name: str, placements: Sequence[Placement], mesh: Mesh) -> str:
    """The clean expression that gives the spec value from the implementation's, e.g. ``concat(x, dim=0, over=tp)``."""
    text = name
    for axis, placement in reversed(list(enumerate(placements))):
        over = mesh.axes[axis].name
        if isinstance(placement, Shard):
            text = f"concat({text}, dim={placement.dim}, over={over})"
        elif isinstance(placement, Partial):
            operation = {"avg": "mean"}.get(placement.reduce_op, placement.reduce_op)
            text = f"{operation}({text}, over={over})"
    return text
