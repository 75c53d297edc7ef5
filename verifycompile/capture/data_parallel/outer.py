"""Gradients that a data-parallel wrapper reduces outside of the graph: what they must be when they leave it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from torch import nn
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export
from verifycompile.capture.layouts import LayoutError, Placements
from verifycompile.capture.names import called_through, first_argument
from verifycompile.program import Role
from verifycompile.torch_interface.data_parallel.outer import Outer
from verifycompile.torch_interface.data_parallel.outer_reduction import OuterReduction
from verifycompile.torch_interface.dynamo.aot import Origin
from verifycompile.torch_interface.ranks.mesh import RootMesh, axes_of_line, group_ranks


@dataclasses.dataclass(frozen=True)
class OuterGradient:
    """On ``axes`` the gradient leaves the graph as each rank's own, of which ``wrapper`` takes the ``reduction``.

    ``kept``: axes of which the reduction is left to a later step, since ``setting`` switched it off.
    ``unknown``: why nothing can be said of what becomes of the gradient. ``hooks``: what is called after it.
    ``exchanged``: settings of the wrapper that all ranks must share, see ``OuterReduction``.
    """

    wrapper: str
    axes: tuple[int, ...]
    reduction: str
    kept: tuple[int, ...] = ()
    setting: str = ""
    unknown: str = ""
    gathers: bool = False
    hooks: tuple[str, ...] = ()
    exchanged: tuple[str, ...] = ()

    def around(self, own: Placements) -> Placements:
        """``own`` on the other axes. Raises ``LayoutError`` VC206 where the contract is not understood.

        And where it does not apply: of a gradient that is cut over one of its axes it takes the parts for the whole.
        """
        if self.unknown:
            raise LayoutError(
                "VC206",
                f"what `{self.wrapper}` makes of the gradients is not known: {self.unknown}. Say with "
                "`grad_placements` how they may leave the program, or take the setting away.",
            )
        cut = next((own[axis] for axis in self.axes if not isinstance(own[axis], Replicate | Partial)), None)
        if cut is not None:
            raise LayoutError(
                "VC206",
                f"`{self.wrapper}` reduces a gradient that is a DTensor placed {cut} on the axis it reduces over: it "
                "takes parts of the gradient for the whole of it.",
            )
        partial: Placement = Partial(self.reduction)
        return tuple(partial if axis in self.axes else item for axis, item in enumerate(own))


def outer_gradients(exported: Export, root: RootMesh, outer: Outer) -> dict[str, OuterGradient]:
    """Parameter name -> what becomes of its gradient."""
    found: dict[str, OuterGradient] = {}
    lacking = _never_there(exported, outer)
    for position, value in enumerate(exported.traced.example_inputs):
        contract = outer.reductions.get(id(value))
        if contract is not None:
            unknown = lacking if contract.awaits_all and not contract.unknown else contract.unknown
            found[exported.names[position].name] = _over_axes(dataclasses.replace(contract, unknown=unknown), root)
    return found


def sent_by(exported: Export, root: RootMesh, outer: Outer) -> dict[str, tuple[str, ...]]:
    """Parameter -> the wrapper that sends it, and settings that all ranks must share."""
    found: dict[str, tuple[str, ...]] = {
        name.name: ("no wrapper",) for name in exported.names if name.role is Role.PARAMETER
    }
    for name, gradient in outer_gradients(exported, root, outer).items():
        found[name] = (gradient.wrapper, *gradient.exchanged)
    return found


def _never_there(exported: Export, outer: Outer) -> str:
    """That a wrapper waits for gradients which the whole of its module does not make; empty where it does."""
    traced = exported.traced
    module = called_through(traced.frame) or first_argument(traced.frame)
    if traced.is_broken or traced.frame.is_resumption or not isinstance(module, nn.Module):
        return ""
    names = {id(value): name for name, value in module.named_parameters()}
    gradients = [flat for flat in exported.joint.outputs if flat.origin is Origin.GRADIENT and flat.node is not None]
    made = {id(traced.example_inputs[flat.index]) for flat in gradients}
    awaited = {key for key, contract in outer.reductions.items() if contract.awaits_all}
    missing = [name for key, name in names.items() if key in awaited - made]
    if not made or not missing or not awaited <= names.keys():
        return ""
    return (
        f"it waits for the gradients of all its parameters, and there is none of `{missing[0]}`"
        f"{f' and {len(missing) - 1} more' if missing[1:] else ''}; its `find_unused_parameters` is off"
    )


def sample_axes(root: RootMesh, outer: Outer) -> dict[str, tuple[int, ...]]:
    """Wrapper -> mesh axes of several ranks that hold samples of their own under it."""
    found: dict[str, set[int]] = {}
    for contract in outer.contracts:
        found.setdefault(contract.wrapper, set()).update(_axes(contract, root))
    return {wrapper: tuple(sorted(axes)) for wrapper, axes in found.items() if axes}


def mean_axes(root: RootMesh, outer: Outer) -> frozenset[int]:
    """Mesh axes over which a wrapper takes the mean of gradients."""
    contracts = (contract for contract in outer.contracts if contract.reduction == "avg" and not contract.unknown)
    return frozenset(axis for contract in contracts for axis in _axes(contract, root))


def _axes(contract: OuterReduction, root: RootMesh) -> Iterator[int]:
    spans = _spans(contract, root) or {}
    return (axis for span in spans.values() for axis in span if root.description.axes[axis].size > 1)


def _over_axes(contract: OuterReduction, root: RootMesh) -> OuterGradient:
    spans = _spans(contract, root)
    unknown = contract.unknown
    if spans is None:
        ranks = [list(group_ranks(contract.mesh.get_group(dimension))) for dimension in contract.dimensions]
        unknown = f"its ranks {ranks[0]} are no product of axes of the mesh of this program"
        spans = {}
    axes = tuple(axis for span in spans.values() for axis in span)
    kept = tuple(axis for dimension in contract.kept for axis in spans.get(dimension, ()))
    return OuterGradient(
        contract.wrapper,
        axes,
        contract.reduction,
        kept,
        contract.setting if kept else "",
        unknown,
        contract.gathers,
        contract.hooks,
        contract.exchanged,
    )


def _spans(contract: OuterReduction, root: RootMesh) -> dict[int, tuple[int, ...]] | None:
    """Dimension of the wrapper's mesh -> axes of the root; None where one is no product of axes."""
    spans = root.spans(contract.mesh)
    if spans is not None:
        return {dimension: spans[dimension] for dimension in contract.dimensions}
    found: dict[int, tuple[int, ...]] = {}
    for dimension in contract.dimensions:
        line = axes_of_line(group_ranks(contract.mesh.get_group(dimension)), root.description)
        if line is None:
            return None
        found[dimension] = line
    return found


def outer_assumptions(
    gradients: Mapping[str, OuterGradient], root: RootMesh, with_gradient: Collection[str]
) -> tuple[str, ...]:
    """The contracts as sentences, one for each wrapper and setting.

    ``with_gradient``: parameters whose gradient leaves the graph; where none does, nothing is said of gradients.
    """
    of: dict[OuterGradient, list[str]] = {}
    for name, gradient in gradients.items():
        if name in with_gradient and not gradient.unknown:
            of.setdefault(dataclasses.replace(gradient, hooks=(), exchanged=()), []).append(name)
    lines: list[Assumption] = []
    for name, gradient in gradients.items():
        if name in with_gradient and gradient.hooks:
            text = (
                f"the hooks {', '.join(gradient.hooks)} on the gradient of `{name}` are no part of the program: "
                "what they do comes after what is proved"
            )
            lines.append(Assumption(text, AssumptionKind.WRAPPER, [f"grad.{name}"]))
    for gradient, names in of.items():
        lines.extend(_sentences(gradient, names, root))
    gathered = {
        gradient.wrapper for name, gradient in gradients.items() if gradient.gathers and name not in with_gradient
    }
    lines.extend(
        Assumption(f"outside of the graph, `{wrapper}` gathers the parameters before", AssumptionKind.WRAPPER)
        for wrapper in sorted(gathered)
    )
    return tuple(lines)


def _sentences(gradient: OuterGradient, names: Sequence[str], root: RootMesh) -> list[Assumption]:
    wrapper = gradient.wrapper
    gathers = ", and gathers the parameters before" if gradient.gathers else ""
    outside = "; a loss outside of it is the mean over the ranks too" if gradient.reduction == "avg" else ""
    now = tuple(axis for axis in gradient.axes if axis not in gradient.kept)
    of = [f"grad.{name}" for name in names]
    lines: list[Assumption] = []
    if gradient.kept:
        later = "the mean" if gradient.reduction == "avg" else "the sum"
        loss = ", and a loss outside of the graph is the mean over the ranks too" if outside and not now else ""
        text = (
            f"gradients of this step are accumulated on each rank, not reduced ({gradient.setting}): those of "
            f"{len(names)} parameters of `{wrapper}` over {_names(gradient.kept, root)}; a later step must take "
            f"{later} of what was accumulated{loss}"
        )
        lines.append(Assumption(text, AssumptionKind.LATER, of))
    if now or not gradient.kept:
        what = "takes the mean of" if gradient.reduction == "avg" else "sums"
        text = (
            f"outside of the graph, `{wrapper}` {what} the gradients of {len(names)} parameters over "
            f"{_names(now, root)}{gathers}{outside}"
        )
        lines.append(Assumption(text, AssumptionKind.WRAPPER, of))
    elif gathers:
        text = f"outside of the graph, `{wrapper}` gathers the parameters before"
        lines.append(Assumption(text, AssumptionKind.WRAPPER, of))
    return lines


def cast_assumptions(outer: Outer) -> tuple[str, ...]:
    """What the wrappers round, in a sentence for each."""
    casts = dict.fromkeys((contract.wrapper, contract.casts_said) for contract in outer.contracts if contract.casts)
    return tuple(
        Assumption(
            f"casts of `{wrapper}`, which {' and '.join(said)}, are treated as identities", AssumptionKind.PRECISION
        )
        for wrapper, said in casts
    )


def _names(axes: tuple[int, ...], root: RootMesh) -> str:
    return ", ".join(root.description.axes[axis].name for axis in axes)
