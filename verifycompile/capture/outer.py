"""Gradients that a data-parallel wrapper reduces outside of the graph: what they must be when they leave it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from torch.distributed.tensor.placement_types import Partial, Placement

from verifycompile.capture.boundary import Export
from verifycompile.capture.layouts import Placements
from verifycompile.torch_interface.mesh import RootMesh, axes_of_line, group_ranks
from verifycompile.torch_interface.outer import OuterReduction, Reductions


@dataclasses.dataclass(frozen=True)
class OuterGradient:
    """On ``axes`` the gradient leaves the graph as each rank's own, of which ``wrapper`` takes the ``reduction``."""

    wrapper: str
    axes: tuple[int, ...]
    reduction: str

    def around(self, own: Placements) -> Placements:
        """``own`` on the other axes."""
        partial: Placement = Partial(self.reduction)
        return tuple(partial if axis in self.axes else item for axis, item in enumerate(own))


def outer_gradients(exported: Export, root: RootMesh, reductions: Reductions) -> dict[str, OuterGradient]:
    """Parameter name -> what becomes of its gradient; without those whose group is no product of mesh axes."""
    found: dict[str, OuterGradient] = {}
    for position, value in enumerate(exported.traced.example_inputs):
        reduction = reductions.get(id(value))
        axes = None if reduction is None else _axes(reduction, root)
        if reduction is not None and axes is not None:
            found[exported.names[position].name] = OuterGradient(reduction.wrapper, axes, reduction.reduction)
    return found


def _axes(reduction: OuterReduction, root: RootMesh) -> tuple[int, ...] | None:
    spans = root.spans(reduction.mesh)
    if spans is not None:
        return tuple(axis for dimension in reduction.dimensions for axis in spans[dimension])
    lines = [axes_of_line(group_ranks(reduction.mesh.get_group(d)), root.description) for d in reduction.dimensions]
    return None if None in lines else tuple(axis for line in lines for axis in line or ())


def outer_assumptions(gradients: Mapping[str, OuterGradient], root: RootMesh) -> tuple[str, ...]:
    """The contracts as sentences, one for each wrapper and reduction."""
    counts = collections.Counter(gradients.values())
    lines: list[str] = []
    for gradient, count in counts.items():
        over = ", ".join(root.description.axes[axis].name for axis in gradient.axes)
        what = "takes the mean of" if gradient.reduction == "avg" else "sums"
        gathers = ", and gathers the parameters before" if gradient.wrapper == "fully_shard" else ""
        done = f"`{gradient.wrapper}` {what} the gradients of {count} parameters over {over}{gathers}"
        if gradient.reduction == "avg":
            done += "; a loss outside of it is the mean over the ranks too"
        lines.append(f"outside of the graph, {done}")
    return tuple(lines)
