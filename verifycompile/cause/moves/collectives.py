"""Moves that insert, drop or change a collective."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch.fx
from torch.distributed.tensor.placement_types import Partial

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene, computed, fixed, is_floating, shape_of
from verifycompile.cause.moves.whole_dimensions import laid_out
from verifycompile.program import OutputKind, ProgramOutput, Role
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.ranks.rank_values import functional_collectives
from verifycompile.torch_interface.source_lines.model_lines import written_backward_of
from verifycompile.torch_interface.source_lines.value_names import is_backward
from verifycompile.torch_interface.training_step.gradient_marks import is_written_out, noted_owner
from verifycompile.witness.interpreter import descendants

_GERUNDS = {"sum": "sums", "avg": "takes the mean", "max": "takes the maximum", "min": "takes the minimum"}
_NOUNS = {"sum": "sum", "avg": "mean", "max": "maximum", "min": "minimum"}


def needless_collectives(scene: Scene) -> Iterator[Move]:
    """Each all-reduce left out."""
    for node in _all_reduces(scene):
        change = functools.partial(_drop, node.name)
        yield Move(("drop",), node.name, "VC102", functools.partial(_dropped_texts, scene, node), change)


def _all_reduces(scene: Scene) -> list[torch.fx.Node]:
    """Of the program as it is: what was added to mend it is not needless."""
    target, added = functional_collectives().all_reduce.default, scene.draft.added
    return [node for node in scene.calls if node.target is target and node not in added]


def _drop(name: str, draft: Draft) -> None:
    own = draft.node(name)
    if draft.rank is None:
        draft.redirect(own, own.all_input_nodes[0])
    else:  # ranks that run other graphs wait for this one, unless they leave it out as well
        draft.set_arguments(own, (*own.args[:-1], draft.group(())))


def _dropped_texts(scene: Scene, node: torch.fx.Node, _: Draft) -> tuple[str, str]:
    over = scene.names(scene.draft.group_axes(node)) or "its group"
    message = f"{scene.value(node.all_input_nodes[0])} is all-reduced over {over} once too often"
    return message, f"remove the all-reduce over {over} at {_called_at(scene, node)}"


def _called_at(scene: Scene, node: torch.fx.Node) -> str:
    """The line of a collective, for hints: where autograd calls it, that of the forward pass."""
    is_differentiated = any(item.role is Role.TANGENT for item in scene.draft.program.inputs)
    is_called = is_backward(node) if is_differentiated else "autograd_backward" in node.meta
    return scene.line(node) + (" in its backward pass" if is_called else "")


def _written_at(scene: Scene, node: torch.fx.Node) -> str:
    """The line that says how a collective reduces: that of a user's own backward pass, where it is one's."""
    place = written_backward_of(node)
    return _called_at(scene, node) if place is None else f"line {place.line}"


def other_groups(scene: Scene) -> Iterator[Move]:
    """Each all-reduce over other mesh axes; each gather, reduce-scatter and exchange over others of as many ranks."""
    library = functional_collectives()
    called = {
        library.all_reduce.default: "all-reduce",
        library.all_gather_into_tensor.default: "all-gather",
        library.reduce_scatter_tensor.default: "reduce-scatter",
        library.all_to_all_single.default: "all-to-all",
    }
    for node in [node for node in scene.calls if node.target in called]:
        axes, name = scene.draft.group_axes(node), called[node.target]
        for other in scene.axis_sets if axes else ():
            if other == axes or (name != "all-reduce" and scene.ranks(other) != scene.ranks(axes)):
                continue
            found, wanted = scene.names(axes), scene.names(other)
            message = f"the {name} runs over {found}, where the ranks along {wanted} hold the parts"
            hint = f"pass the group of {wanted} to the {name} at {_called_at(scene, node)}"
            change = functools.partial(_over, node.name, other)
            yield Move(("group", other), node.name, "VC105", fixed(message, hint), change)


def exchanged_groups(scene: Scene) -> Iterator[Move]:
    """The groups of two gathers, the second of which takes what the first one made, exchanged."""
    gathers = [node for node in scene.calls if node.target is functional_collectives().all_gather_into_tensor.default]
    for before, node in itertools.pairwise(gathers):
        if node.args[0] not in laid_out(before):
            continue
        first, second = scene.draft.group_axes(before), scene.draft.group_axes(node)
        if not first or not second or first == second or scene.ranks(first) != scene.ranks(second):
            continue
        one, other = scene.names(first), scene.names(second)
        message = f"{scene.value(node)} goes over {one} first and over {other} then, which is the other order"
        hint = f"pass the group of {other} at {scene.line(before)} and that of {one} at {scene.line(node)}"
        change = functools.partial(_exchange_groups, before.name, first, node.name, second)
        yield Move(("groups",), before.name, "VC105", fixed(message, hint), change)


def _exchange_groups(first: str, its_axes: tuple[int, ...], second: str, axes: tuple[int, ...], draft: Draft) -> None:
    _over(first, axes, draft)
    _over(second, its_axes, draft)


def _over(name: str, axes: tuple[int, ...], draft: Draft) -> None:
    own = draft.node(name)
    draft.set_arguments(own, (*own.args[:-1], draft.group(axes)))


def other_reductions(scene: Scene) -> Iterator[Move]:
    """Each reducing collective with another reduction."""
    library = functional_collectives()
    reducing = (library.all_reduce.default, library.reduce_scatter_tensor.default)
    for node in [node for node in scene.calls if node.target in reducing and node.args[1] in _NOUNS]:
        operation, over = str(node.args[1]), scene.names(scene.draft.group_axes(node)) or "its group"
        for other in (noun for noun in _NOUNS if noun != operation):
            message = f"the collective {_GERUNDS[operation]} over {over}, where the {_NOUNS[other]} is expected"
            hint = f'use "{other}" in the place of "{operation}" at {_written_at(scene, node)}'
            change = functools.partial(_with_reduction, node.name, other)
            yield Move(("reduction", other), node.name, "VC103", fixed(message, hint), change)


def sums_of_functions(scene: Scene) -> Iterator[Move]:
    """Each logarithm or root of a rank's own sum, added over ranks or not reduced, as that of the sum over ranks."""
    added: set[torch.fx.Node] = set()
    for node in [node for node in _all_reduces(scene) if node.args[1] == "sum"]:
        source = node.all_input_nodes[0]
        over, change = scene.names(scene.draft.group_axes(node)) or "its group", functools.partial(_of_sums, node.name)
        line = f"at {scene.line(node)}"
        yield from _inner_sum(scene, source, node, ("VC108", f"{line} these are added over {over}", over, line), change)
        added.add(source)
    for node in [node for node in scene.calls if node.target in _SUMMING and node not in added]:
        for axes in scene.axis_sets:
            if set(axes) <= set(scene.differing(node)):
                over, change = scene.names(axes), functools.partial(_reduced_inside, node.name, axes)
                said = ("VC114", f"that of the sum over {over} is needed", over, f"after {scene.line(node)}")
                yield from _inner_sum(scene, node, node, said, change)


def _inner_sum(
    scene: Scene,
    source: torch.fx.Node,
    node: torch.fx.Node,
    said: tuple[str, str, str, str],
    change: Callable[[_Function, Draft], None],
) -> Iterator[Move]:
    """``said``: the code, what is wrong at the node, the mesh axes, and where to reduce."""
    function, (code, wrong, over, where) = _function_of(source), said
    if function is not None:
        value = scene.value(source)
        message = f"{value} is {function.noun} of each rank's own sum; {wrong}"
        hint = f"all-reduce {function.inverse} of {value} over {over} (sum) {where}, and take {function.itself} of it"
        yield Move(("inner sum", over), node.name, code, fixed(message, hint), functools.partial(change, function))


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function that is taken of a sum. ``calls``: its inverse and itself, with the arguments behind the value."""

    noun: str
    inverse: str
    itself: str
    calls: tuple[tuple[Any, ...], tuple[Any, ...]]


_LOGARITHM = _Function(
    "a logarithm", "`exp`", "the logarithm", ((torch.ops.aten.exp.default,), (torch.ops.aten.log.default,))
)
_POWER = torch.ops.aten.pow.Tensor_Scalar
_ROOT = _Function("a root", "the square", "the root", ((_POWER, 2), (_POWER, 0.5)))


_SUMMING = (torch.ops.aten.linalg_vector_norm.default, torch.ops.aten.logsumexp.default)
"""Functions whose sum is no value of its own, behind which it could be reduced."""


def _function_of(node: torch.fx.Node) -> _Function | None:
    is_norm = node.target is torch.ops.aten.linalg_vector_norm.default and dict(enumerate(node.args)).get(1, 2) == 2
    if is_norm or node.target is torch.ops.aten.sqrt.default:
        return _ROOT
    is_logarithm = node.target in (torch.ops.aten.log.default, torch.ops.aten.logsumexp.default)
    return _LOGARITHM if is_logarithm else None


def _of_sums(name: str, function: _Function, draft: Draft) -> None:
    own = draft.node(name)
    users = list(own.users)
    (inverse, *others), (itself, *more) = function.calls
    opened = draft.insert(own, inverse, (own.args[0], *others), before=True)
    draft.set_arguments(own, (opened, *own.args[1:]))
    waits = [user for user in users if user.target is functional_collectives().wait_tensor.default]
    for result in waits or [own]:
        draft.redirect(result, draft.insert(result, itself, (result, *more)))


def _reduced_inside(name: str, axes: tuple[int, ...], function: _Function, draft: Draft) -> None:
    own = draft.node(name)
    users = list(own.users)
    (inverse, *others), (itself, *more) = function.calls
    opened = draft.insert(own, inverse, (own, *others))
    reduced = draft.all_reduce(opened, "sum", axes)
    closed = draft.insert(reduced, itself, (reduced, *more))
    draft.redirect(own, closed, users)
    draft.redirect_outputs(own, closed)


def _with_reduction(name: str, operation: str, draft: Draft) -> None:
    own = draft.node(name)
    draft.set_arguments(own, (own.args[0], operation, *own.args[2:]))


def missing_reductions(scene: Scene) -> Iterator[Move]:
    """An all-reduce behind a node of which the ranks hold different values, from the outputs backwards; then of inputs
    of which each rank has a summand.
    """
    latest = [node for node in reversed(scene.order) if computed(node) and is_floating(node)]
    latest.sort(key=lambda node: not contracts(node))
    leaving = {output.node: output for output in scene.outputs}
    for node in latest:
        differing = scene.differing(node)
        for axes in scene.axis_sets:
            if not set(axes) <= set(differing):
                continue
            for operation in _operations(node):
                output = leaving.get(node)
                yield _reduced(scene, node, operation, axes, output)
    for item in scene.draft.program.inputs:
        first = next((node for node in scene.order if node in item.node.users), None)
        for axis, placement in enumerate(item.placements or ()):
            if isinstance(placement, Partial) and axis in scene.axes and first is not None:
                yield dataclasses.replace(
                    _reduced(scene, item.node, placement.reduce_op, (axis,), None), node=first.name
                )


def missing_sums_of_graphs(scene: Scene) -> Iterator[Move]:
    """The sum over ranks that run other graphs of what each of them returns for an output."""
    over_graphs = tuple(at for at, axis in enumerate(scene.mesh.axes) if axis.size > 1 and at not in scene.axes)
    for output in scene.outputs if over_graphs else ():
        if is_floating(output.node):
            over = scene.names(over_graphs)
            message = f"`{output.name}` is returned as each rank's own part; the sum of the parts over {over} is needed"
            texts = fixed(message, f"all-reduce `{output.name}` over {over} (sum) before it is returned")
            change = functools.partial(_summed_where_returned, output.node.name, over_graphs)
            yield Move(("reduce", "sum", over_graphs, "returned"), output.node.name, "VC101", texts, change)


def _summed_where_returned(name: str, axes: tuple[int, ...], draft: Draft) -> None:
    own, target = draft.node(name), functional_collectives().all_reduce.default
    *_, last, _ = draft.program.graph.graph.nodes  # other ranks may wait for a message that is sent later
    draft.redirect_outputs(own, draft.insert(last, target, (own, "sum", draft.group(axes)), own.meta["val"]))


def missing_exchanges(scene: Scene) -> Iterator[Move]:
    """What the program exchanges between ranks at one place, exchanged in the same way once more further on."""
    target = functional_collectives().all_to_all_single.default
    calls = [(call, descendants([call])) for call in scene.calls if call.target is target]
    for (call, later), node in itertools.product(calls, filter(is_floating, reversed(scene.calls))):
        if node is call or node not in later or shape_of(node) != shape_of(call):
            continue
        over, value = scene.names(scene.draft.group_axes(call)) or "its group", scene.value(node)
        message = f"{value} stays with the rank to which {scene.line(call)} sent what it is made of"
        hint = f"exchange {value} over {over} after {scene.line(node)}, as {scene.line(call)} does"
        change = functools.partial(_exchanged, node.name, call.name)
        yield Move(("exchange again",), node.name, "VC104", fixed(message, hint), change)


def _exchanged(name: str, like: str, draft: Draft) -> None:
    own, call = draft.node(name), draft.node(like)
    draft.redirect(own, draft.insert(own, call.target, (own, *call.args[1:]), call.meta["val"]))


def missing_gradient_reductions(scene: Scene) -> Iterator[Move]:
    """The sum or mean of a gradient over ranks of which each has its own part: where it leaves the program, or where
    a backward pass left it in a training step.
    """
    for output in scene.outputs:
        if output.kind is OutputKind.GRADIENT and is_floating(output.node):
            for operation, axes in _ways(scene, output.node):
                yield _reduced(scene, output.node, operation, axes, output)
    left = {owner: node for node in scene.calls if (owner := noted_owner(node)) and is_floating(node)}
    for node in [node for node in left.values() if not scene.reaches(node, is_written_out)]:  # a wrapper reduces others
        for operation, axes in _ways(scene, node):
            kind = ("reduce", operation, axes, "gradient")
            yield dataclasses.replace(_reduced(scene, node, operation, axes, None), kind=kind)


def _ways(scene: Scene, node: torch.fx.Node) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Over which ranks, and how, a value that differs on them may be reduced."""
    differing = scene.differing(node)
    for axes in scene.axis_sets:
        if set(axes) <= set(differing):
            yield from (("sum", axes), ("avg", axes))


def contracts(node: torch.fx.Node) -> bool:
    """Whether a call sums over, or reduces, a dimension: parts of such results are what has to be assembled."""
    if any(name in str(node.target) for name in ("mm", "bmm", "conv", "loss")):
        return True
    sizes = [item.meta["val"].dim() for item in node.all_input_nodes if is_floating(item)]
    return bool(sizes) and (node.meta["val"].dim() < max(sizes) or _keeps_reduced(node))


def _keeps_reduced(node: torch.fx.Node) -> bool:
    name = str(node.target)
    return any(part in name for part in ("sum", "mean", "amax", "amin", "var", "logsumexp", "norm"))


def _operations(node: torch.fx.Node) -> tuple[str, ...]:
    name = str(node.target)
    if "amax" in name or "max" in name:
        return ("max",)
    if "amin" in name or "min" in name:
        return ("min",)
    return ("sum", "avg")


def _reduced(
    scene: Scene, node: torch.fx.Node, operation: str, axes: tuple[int, ...], output: ProgramOutput | None
) -> Move:
    over = scene.names(axes)
    leaving = () if output is None else output.placements or ()
    is_averaged = operation == "sum" and bool(leaving) and all(leaving[axis] == Partial("avg") for axis in axes)

    taken = _taken_by_user(node)

    def texts(_: Draft) -> tuple[str, str]:
        if output is not None and output.kind is OutputKind.GRADIENT:
            name = output.name.partition(".")[2]
            state = "a partial sum over" if operation == "sum" else "each rank's own over"
            message = f"the gradient of `{name}` is {state} {over}; it must be the {_NOUNS[operation]} over all ranks"
            if is_averaged:
                message = f"the gradient of `{name}` is averaged over {over}, though the ranks hold parts of a sum"
            return message, gradient_hint(scene, name, operation, axes)
        value = scene.value(node)
        state = "a partial sum" if operation == "sum" else "each rank's own"
        message = f"{value} is {state} over {over}; its {_NOUNS[operation]} over all ranks is needed"
        if taken is not None and (place := written_backward_of(taken)) is not None:
            return message, f"all-reduce the gradient over {over} ({operation}) before line {place.line} takes it"
        if is_backward(node):
            what = f"the gradient that {scene.line(node)} computes"
            return message, f"all-reduce {what} over {over} ({operation}) in its backward pass"
        where = "before it is used" if node.op == "placeholder" else f"after {scene.line(node)}"
        return message, f"all-reduce {value} over {over} ({operation}) {where}"

    late = output is not None and output.kind is OutputKind.GRADIENT
    code = "VC103" if late and is_averaged else "VC101"
    change = functools.partial(_reduce, node.name, operation, axes)
    return Move(("reduce", operation, axes), node.name, code, texts, change, is_late=late, pointed=taken)


def summed(node: torch.fx.Node, axes: tuple[int, ...]) -> Move:
    """The sum of a value over ranks, to be tried only."""
    texts, change = fixed("", ""), functools.partial(_reduce, node.name, "sum", axes)
    return Move(("reduce", "sum", axes), node.name, "VC101", texts, change)


def _reduce(name: str, operation: str, axes: tuple[int, ...], draft: Draft) -> None:
    own = draft.node(name)
    new: Any = draft.all_reduce(own, operation, axes)
    draft.redirect(own, new)


def _taken_by_user(node: torch.fx.Node) -> torch.fx.Node | None:
    """What takes a gradient that autograd computes first in a ``backward`` of the user's, where something may be added.

    Whether its result is read or not: a sum may have been forgotten there.
    """
    seen = [node] if "autograd_backward" in node.meta else []
    for value in seen:
        for user in value.users:
            if written_backward_of(user) is not None:
                return user
            seen += [user] if is_view(user.target) and user not in seen else []
    return None


def gradient_hint(scene: Scene, name: str, operation: str, axes: tuple[int, ...]) -> str:
    """How users reduce a gradient that each rank has a part of."""
    over = scene.names(axes)
    entry = next((item for item in scene.draft.program.inputs if item.name == name), None)
    verb = "sum" if operation == "sum" else "average"
    ways = [
        f"use `{name}` through a function that returns it and all-reduces its gradient ({operation}) over {over}",
        "all-reduce it in a hook of the parameter (`register_hook`)",
    ]
    if entry is not None and entry.placements is not None and not entry.assumed:
        ways.append("where it is a DTensor, `to_local(grad_placements=[Partial()])`")
    hint = f"{verb} the gradient of `{name}` over {over}: " + "; or ".join(ways)
    if entry is not None and entry.role is Role.PARAMETER:
        listed = ", ".join(
            f'Partial("{operation}")' if axis in axes else "Replicate()" for axis in range(len(scene.mesh.axes))
        )
        comma = "," if len(scene.mesh.axes) == 1 else ""
        hint += (
            f". If an optimizer or a wrapper does so after the backward pass, say so: "
            f'`grad_placements={{"{name}": ({listed}{comma})}}`'
        )
    return hint
