"""Moves that change a scale: a constant factor, a value that every rank adds to a sum, an output that is a multiple."""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial

from verifycompile.capture.ranks.merged_ranks import ON_RANK
from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene, computed, fixed, is_derivative, is_floating, shape_of
from verifycompile.program import OutputKind, Program, Role
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.ranks.rank_values import functional_collectives
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.value_names import is_backward
from verifycompile.torch_interface.training_step.gradient_marks import is_written_out
from verifycompile.witness.comparison import clean_placements
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.layout import assemble

aten = torch.ops.aten

_TIMES = (aten.mul.Tensor, aten.mul.Scalar)
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_OVER = (aten.div.Tensor, aten.div.Scalar)
_LARGEST_DENOMINATOR = 256
_FRACTION_TOLERANCE = 1e-8
Factor = tuple[object, float]
"""A multiplication or a division, and its constant."""

_NEIGHBOURS = 3
"""Lines that are so near to each other may be meant to do the same to two values."""


def ratios(scene: Scene) -> list[Fraction]:
    """Factors, other than one, by which a wanted output, of any rank, has to be multiplied to be the spec's."""
    found: dict[Fraction, None] = {}
    for output in scene.outcome.program.outputs:
        if output.name.partition(ON_RANK)[0] not in scene.wanted:
            continue
        try:
            reference = scene.trial.reference.value(_node_of(scene.spec, output.name))[0]
            parts = scene.outcome.values.value(output.node)
        except EvaluationError:
            continue
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        if not isinstance(reference, torch.Tensor) or len(tensors) != len(parts):
            continue
        shape = scene.outcome.program.mesh.shape if scene.outcome.program.mesh is not None else ()
        required = output.placements if output.placements is not None and shape else None
        layouts = [required] if required is not None else clean_placements(reference.dim(), shape)
        # What ranks hold parts of may be meant as their mean or as their sum.
        for placements in sorted(layouts, key=lambda layout: sum(item == Partial("sum") for item in layout)):
            ratio = _ratio(reference, tensors, shape, placements)
            if ratio is not None and ratio != 1:
                found[ratio] = None
                if not any(isinstance(item, Partial) for item in placements):
                    break
    return list(found)


def _node_of(program: Program, output: str) -> torch.fx.Node:
    return next(item.node for item in program.outputs if item.name == output)


def _ratio(
    reference: torch.Tensor, parts: list[torch.Tensor], shape: tuple[int, ...], placements: tuple[object, ...]
) -> Fraction | None:
    """The number that all elements of the reference are multiples by, over those of the value assembled."""
    try:
        wholes = assemble(parts, shape, placements)  # pyright: ignore[reportArgumentType]  # placements, see the caller
    except EvaluationError:
        return None
    whole = wholes[0]
    if whole.shape != reference.shape or not reference.is_floating_point() or not reference.numel():
        return None
    if any(not torch.allclose(other, whole) for other in wholes[1:]):
        return None
    largest = int(whole.abs().flatten().argmax())
    divisor = float(whole.flatten()[largest])
    if divisor == 0 or not math.isfinite(divisor):
        return None
    value = float(reference.flatten()[largest]) / divisor
    if value == 0 or not math.isfinite(value) or not torch.allclose(whole * value, reference, rtol=1e-6, atol=1e-12):
        return None
    return _fraction(value)


def _fraction(value: float) -> Fraction | None:
    """The simple fraction that a number is; None for one that any fraction of so many digits would be near to."""
    above = Fraction(max(abs(value), 1 / abs(value))).limit_denominator(_LARGEST_DENOMINATOR)
    exact = above if abs(value) >= 1 else 1 / above
    exact = exact if value > 0 else -exact
    return exact if math.isclose(float(exact), value, rel_tol=_FRACTION_TOLERANCE) else None


def factor_changes(scene: Scene, found: list[Fraction]) -> tuple[list[Move], list[Move], list[Move]]:
    """``_changed_factors``: those that are more likely than others, all others, and those of factors that the spec has.

    Likely is a needless factor that stands oftener in the program than in the spec, or a factor that a line has in one
    of its turns alone. Unlikely is a change in one of the turns of a line that has the same factor in all of them.
    """
    spec = collections.Counter(_factor(node) for node in scene.spec.graph.graph.nodes)
    own = collections.Counter(_factor(node) for node in scene.draft.program.graph.graph.nodes)
    turns = _factors_of_lines(scene)
    of_their_own: list[Move] = []
    others: list[Move] = []
    unlikely: list[Move] = []
    as_in_spec: list[Move] = []
    surplus = frozenset(factor for factor in own if factor is not None and own[factor] > spec[factor])
    lacking = frozenset(factor for factor in spec if factor is not None and own[factor] < spec[factor])
    for move in _changed_factors(scene, found, surplus, lacking):
        node = scene.draft.node(move.node)
        factor = _factor(node)
        same_line = [_constant(other) for other in turns.get(_line(node), ()) if other is not node]
        if same_line and all(math.isclose(constant, _constant(node)) for constant in same_line):
            unlikely.append(move)
        elif same_line and all(math.isclose(constant, _changed(node, move.kind)) for constant in same_line):
            of_their_own.insert(0, move)
        elif move.kind == ("no factor",) and factor in surplus:
            of_their_own.append(move)
        elif own[factor] <= spec[factor]:
            as_in_spec.append(move)
        else:
            others.append(move)
    return of_their_own, others + unlikely, as_in_spec


def _factors_of_lines(scene: Scene) -> dict[object, list[torch.fx.Node]]:
    """The multiplications and divisions by constants that a line made: in the turns of a loop, or of several calls."""
    found: dict[object, list[torch.fx.Node]] = {}
    for node in scene.calls:
        if _factor(node) is not None and _line(node) is not None:
            found.setdefault(_line(node), []).append(node)
    return found


def _line(node: torch.fx.Node) -> object:
    place = model_location_of(node)
    return None if place is None else (place, node.target, is_backward(node))


def _constant(node: torch.fx.Node) -> float:
    return float(node.args[1])  # pyright: ignore[reportArgumentType]  # a number by the operator's schema


def _changed(node: torch.fx.Node, kind: tuple[object, ...]) -> float:
    """The constant of a factor after a change; 1 where it is left out."""
    ratio = kind[1] if len(kind) > 1 else None
    if not isinstance(ratio, Fraction):
        return 1.0
    return _constant(node) * float(ratio) if node.target in _TIMES else _constant(node) / float(ratio)


def _changed_factors(
    scene: Scene, found: list[Fraction], surplus: frozenset[Factor], lacking: frozenset[Factor]
) -> Iterator[Move]:
    """Each multiplication with, or division by, a constant: left out, or with a constant changed by a ratio.

    ``surplus``: factors that the program has oftener than the spec, which may be left out whatever the ratio is, or
    be one of ``lacking``, which the spec has oftener, where they scale a loss.
    """
    of_loss = _factors_of_loss(scene)
    derivatives = frozenset(of_loss.values()) | _made_by_autograd(scene)
    for node in reversed(scene.calls):
        if node.target not in (*_TIMES, *_OVER) or not _is_number(node.args[1]) or not is_floating(node):
            continue
        if node.meta.get("autograd_backward") or is_written_out(node):
            continue  # a factor of a derivative or of a wrapper, which stands nowhere in the source
        constant, source = _constant(node), node.args[0]
        if constant == 0 or not isinstance(source, torch.fx.Node) or node in derivatives:
            continue
        wanted = [1.0, *(float(number) for target, number in lacking if target is node.target and node in of_loss)]
        undone = [number / constant if node.target in _TIMES else constant / number for number in wanted]
        undone = [_fraction(number) or Fraction(number) for number in undone if _factor(node) in surplus]
        for ratio in found or dict.fromkeys((*_usual(scene, node), *undone)):
            needless = _is_needless(constant, ratio, times=node.target in _TIMES)
            texts = functools.partial(_factor_texts, scene, node, ratio)
            names = [node.name, *_derived(scene, node)]
            names += [of_loss[node].name] if node in of_loss else []
            if len(names) == 1 and has_derivative(scene, node):
                continue  # a derivative that is not known would stay as it is
            change = _without(*names) if needless else _with_factor(names, ratio)
            yield Move(("no factor",) if needless else ("factor", ratio), node.name, "VC103", texts, change)


def _factors_of_loss(scene: Scene) -> dict[torch.fx.Node, torch.fx.Node]:
    """The factors of the losses at which a step's own backward passes begin, and of what these are sums of -> their
    derivatives, of which the last one comes first.
    """
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    to_see = [(root, first) for root, firsts in scene.roots.items() for first in firsts]
    while to_see:
        root, gradient = to_see.pop()
        values = _summands(root)
        for factor in filter(None, dict.fromkeys(map(_factor, values))):
            alike = sorted((value for value in values if _factor(value) == factor), reverse=True)
            same = [user for user in gradient.users if _factor(user) == factor and user.args[0] is gradient]
            pairs = list(zip(alike, same, strict=True)) if len(alike) == len(same) else []
            found.update(pairs)
            to_see += [(value.all_input_nodes[0], derivative) for value, derivative in pairs]
    return found


def _summands(value: torch.fx.Node) -> list[torch.fx.Node]:
    """What a value is the sum of: itself where it is none."""
    seen, pending = {value}, [value]
    while pending:
        item = pending.pop()
        if item.target is aten.add.Tensor:
            pending += {*item.all_input_nodes} - seen
            seen.update(item.all_input_nodes)
    return [item for item in seen if item.target is not aten.add.Tensor]


def _made_by_autograd(scene: Scene) -> frozenset[torch.fx.Node]:
    """What a step's own backward passes compute where they are not recorded as such: behind their first gradients, at
    the same lines.
    """
    firsts = {_place(first): first for firsts in scene.roots.values() for first in firsts}
    found = [(node, firsts.get(place)) for node in scene.calls if (place := _place(node)) is not None]
    return frozenset(node for node, first in found if first is not None and first < node)


def _place(node: torch.fx.Node) -> tuple[str, int] | None:
    place = model_location_of(node)
    return None if place is None else (place.file, place.line)


def has_derivative(scene: Scene, node: torch.fx.Node) -> bool:
    """Whether a change of the value in the source would change gradients that the captured program computes."""
    of_line = _place(node) in scene.backward_of_lines
    return not is_backward(node) and (of_line or node in scene.differentiated)


def _factor(node: torch.fx.Node) -> Factor | None:
    number = node.args[1] if node.target in (*_TIMES, *_OVER) else None
    return (node.target, number) if isinstance(number, (int, float)) and _is_number(number) else None


def _is_needless(constant: float, ratio: Fraction, *, times: bool) -> bool:
    """Whether a factor, or a divisor, is undone by a ratio."""
    factor = constant if times else 1 / constant
    return math.isclose(float(ratio) * factor, 1, rel_tol=1e-9)


def _factor_texts(scene: Scene, node: torch.fx.Node, ratio: Fraction, draft: Draft) -> tuple[str, str]:
    times = node.target in _TIMES
    constant = _constant(draft.node(node.name))
    needless = _is_needless(constant, ratio, times=times)
    what = f"the {'multiplication by' if times else 'division by'} {_number(constant)}"
    message = f"{what} makes the value {_times(ratio)}"
    if needless:
        return message, f"leave out {what} at {scene.line(node)}"
    changed = _changed(draft.node(node.name), ("factor", ratio))
    call = "multiply" if times else "divide"
    return message, f"{call} by {_number(changed)} at {scene.line(node)}, not by {_number(constant)}"


def scaled_values(scene: Scene, found: list[Fraction]) -> Iterator[Move]:
    """Losses, for their backward pass alone or as they are returned too, then values, then outputs, times a ratio."""
    firsts = [(root, first) for root, firsts in scene.roots.items() for first in firsts if first in scene.needed]
    counts = [scene.ranks(axes) for axes in scene.axis_sets]
    usual = dict.fromkeys(ratio for count in counts for ratio in (Fraction(count), Fraction(1, count)))
    for (root, first), ratio in itertools.product(firsts, found or usual):
        texts = functools.partial(_loss_texts, scene, root, first, ratio)
        yield Move(("scale loss", ratio), first.name, "VC103", texts, _multiplied(first.name, factor=float(ratio)))
    returned = {_viewed(output.node) for output in scene.outputs if output.kind is OutputKind.VALUE}
    for root, ratio in itertools.product([root for root in scene.roots if root in returned], found):
        texts = functools.partial(_scaled_texts, scene, root, ratio)
        names = (root.name, *(first.name for first in scene.roots[root]))
        yield Move(("scale", ratio), root.name, "VC103", texts, _multiplied(*names, factor=float(ratio)))
    for node in reversed(scene.calls):
        if computed(node) and is_floating(node) and not _is_mean(node):
            yield from _scaled(scene, node, found)
    for output in scene.outputs:
        for ratio in found:
            what, place = f"`{output.name}`", " where it is returned"
            if output.kind is not OutputKind.VALUE:
                place = ""
            if output.kind is OutputKind.GRADIENT:
                what = f"the gradient of `{output.name.partition('.')[2]}`"
            texts = fixed(f"{what} is {_times(ratio)}", _mended(what, ratio) + place)
            change = _output_multiplied(output.name, float(ratio))
            yield Move(("scale", ratio), output.node.name, "VC103", texts, change, is_late=True)


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    while is_view(node.target):
        node = node.all_input_nodes[0]
    return node


def scaled_means(scene: Scene, found: list[Fraction]) -> Iterator[Move]:
    """Each sum, mean or loss multiplied by a ratio, from the outputs backwards."""
    for node in reversed(scene.calls):
        if is_floating(node) and _is_mean(node):
            yield from _scaled(scene, node, found)


def _scaled(scene: Scene, node: torch.fx.Node, found: list[Fraction]) -> Iterator[Move]:
    late = any(output.node is node for output in scene.outputs)
    lacks = has_derivative(scene, node)
    if late and lacks:
        return  # it is another value for the derivatives than what is returned
    for ratio in found:
        texts = functools.partial(_scaled_texts, scene, node, ratio)
        change = _multiplied(node.name, factor=float(ratio))
        yield Move(("scale", ratio), node.name, "VC103", texts, change, is_late=late, lacks_derivative=lacks)


def _scaled_texts(scene: Scene, node: torch.fx.Node, ratio: Fraction, _: Draft) -> tuple[str, str]:
    value = scene.value(node)
    return f"{value} is {_times(ratio)}", f"{_mended(value, ratio)} at {scene.line(node)}"


def _loss_texts(scene: Scene, root: torch.fx.Node, first: torch.fx.Node, ratio: Fraction, _: Draft) -> tuple[str, str]:
    value = scene.value(root)
    return f"{value} is {_times(ratio)}", f"{_mended(value, ratio)} before its backward pass at {scene.line(first)}"


def missing_factors(scene: Scene) -> Iterator[Move]:
    """Each summand multiplied by what a neighbouring line multiplies another one by, as where sums are rescaled."""
    forward = [node for node in scene.calls if not is_backward(node)]
    products = [node for node in forward if node.target is aten.mul.Tensor and len(node.all_input_nodes) == 2]
    for node in [node for node in forward if node.target is aten.add.Tensor]:
        for product in products:
            if not _are_neighbours(node, product):
                continue
            for summand, factor in itertools.product(_addends(node), product.all_input_nodes):
                if summand not in (product, factor) and _broadcasts(factor, summand):
                    yield _with_missing_factor(scene, node, summand, factor, product)


def _are_neighbours(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    one, two = model_location_of(node), model_location_of(other)
    return one is not None and two is not None and one.file == two.file and abs(one.line - two.line) <= _NEIGHBOURS


def _broadcasts(factor: torch.fx.Node, value: torch.fx.Node) -> bool:
    if not is_floating(factor):
        return False
    own, other = shape_of(factor), shape_of(value)
    return len(own) == len(other) and all(size in (1, whole) for size, whole in zip(own, other, strict=True))


def _with_missing_factor(
    scene: Scene, node: torch.fx.Node, summand: torch.fx.Node, factor: torch.fx.Node, product: torch.fx.Node
) -> Move:
    def apply(draft: Draft) -> None:
        own, value, scale = (draft.node(item.name) for item in (node, summand, factor))
        scaled = draft.insert(own, aten.mul.Tensor, (value, scale), value.meta["val"], before=True)
        draft.redirect(value, scaled, [own])

    value, scale = scene.value(summand), scene.value(factor)
    message = f"{value} is added without the factor {scale}, which {scene.line(product)} has"
    texts = fixed(message, f"multiply {value} by {scale} before it is added at {scene.line(node)}")
    return Move(("missing factor",), node.name, "VC103", texts, apply)


def added_on_every_rank(scene: Scene) -> Iterator[Move]:
    """A value that all ranks have is added to parts that are summed over the ranks, so that it counts several times."""
    library = functional_collectives()
    summing = {
        node
        for node in scene.calls
        if node.target in (library.all_reduce.default, library.reduce_scatter_tensor.default) and node.args[1] == "sum"
    }
    if not summing:
        return
    groups = {axes for node in summing if (axes := scene.draft.group_axes(node))} or set(scene.axis_sets)
    for node in reversed(scene.calls):
        if not _adds(node) or not is_floating(node) or not scene.reaches(node, lambda later: later in summing):
            continue
        for operand in dict.fromkeys(_addends(node)):
            differing = scene.differing(operand)
            for axes in sorted(groups):
                ranks = scene.ranks(axes)
                if ranks == 1 or (scene.values and set(axes) & set(differing)):
                    continue
                texts = functools.partial(_added_texts, scene, node, operand, axes)
                change = _operand_scaled(node.name, operand.name, 1 / ranks)
                yield Move(("add once", axes), node.name, "VC116", texts, change)


def _added_texts(
    scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, axes: tuple[int, ...], _: Draft
) -> tuple[str, str]:
    over, value, ranks = scene.names(axes), scene.value(operand), scene.ranks(axes)
    message = f"every rank adds {value} before the sum over {over}, which then has it {ranks} times"
    hint = f"add {value} after the sum over {over}"
    # Divided before the sum, it had a part of its gradient on each rank.
    return message, hint if has_derivative(scene, node) else f"{hint}, or divided by {ranks} before it"


def _adds(node: torch.fx.Node) -> bool:
    return node.target in (*_SUMS, aten.addmm.default, aten.baddbmm.default, aten.convolution.default)


def _addends(node: torch.fx.Node) -> list[torch.fx.Node]:
    operands = node.args[:2] if node.target in _SUMS else node.args[:1]
    if node.target is aten.convolution.default:
        operands = node.args[2:3]
    return [item for item in operands if isinstance(item, torch.fx.Node) and is_floating(item)]


def _usual(scene: Scene, node: torch.fx.Node) -> list[Fraction]:
    """Numbers of ranks, and what makes a whole factor or divisor the number of ranks along some axes."""
    counts = dict.fromkeys(count for axes in scene.axis_sets if (count := scene.ranks(axes)) > 1)
    found = [ratio for count in counts for ratio in (Fraction(count), Fraction(1, count))]
    constant = _constant(node)
    if constant == int(constant):
        others = (Fraction(count, int(constant)) for count in counts)
        found += [other if node.target in _TIMES else 1 / other for other in others if abs(other) != 1]
    return list(dict.fromkeys(found))


def _is_mean(node: torch.fx.Node) -> bool:
    name = str(node.target)
    return any(part in name for part in ("mean", "loss", "sum", "all_reduce", "reduce_scatter"))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _times(ratio: Fraction) -> str:
    """What a value is that has to be multiplied by ``ratio``."""
    number = 1 / ratio if ratio < 1 else ratio
    shown = str(number) if number.denominator <= _LARGEST_DENOMINATOR else _number(float(number))
    return f"{shown} times too {'large' if ratio < 1 else 'small'}"


def _mended(value: str, ratio: Fraction) -> str:
    if ratio.numerator == 1:
        return f"divide {value} by {ratio.denominator}"
    return f"multiply {value} by {ratio}"


def _number(value: float) -> str:
    return f"{value:.6g}"


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value


def _derived(scene: Scene, node: torch.fx.Node) -> list[str]:
    """The same factors in the backward pass of the line of a factor: they go with it."""
    same = (other for other in scene.draft.program.graph.graph.nodes if _factor(other) == _factor(node))
    return [other.name for other in same if other is not node and is_derivative(other, node)]


def _without(*names: str) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        for own in map(draft.node, names):
            source = own.args[0]
            if isinstance(source, torch.fx.Node):
                draft.redirect(own, source)

    return apply


def _with_factor(names: Sequence[str], ratio: Fraction) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        for own in map(draft.node, names):
            changed = _changed(own, ("factor", ratio))
            draft.set_arguments(own, (own.args[0], _whole(changed), *own.args[2:]))

    return apply


def _multiplied(*names: str, factor: float) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        for own in map(draft.node, names):
            draft.redirect(own, draft.insert(own, aten.mul.Tensor, (own, factor)))

    return apply


def _output_multiplied(name: str, factor: float) -> Callable[[Draft], None]:
    """What is returned is multiplied, and with it the cotangent that comes back for it."""

    def apply(draft: Draft) -> None:
        for output in [item for item in draft.program.outputs if item.name == name]:
            own = output.node
            draft.redirect_outputs(own, draft.insert(own, aten.mul.Tensor, (own, factor)), {name})
        for item in draft.program.inputs:
            if item.role is Role.TANGENT and item.name == name:
                draft.redirect(item.node, draft.insert(item.node, aten.mul.Tensor, (item.node, factor)))

    return apply


def _operand_scaled(name: str, operand: str, factor: float) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own, source = draft.node(name), draft.node(operand)
        scaled = draft.insert(source, aten.mul.Tensor, (source, factor))
        draft.redirect(source, scaled, [own])

    return apply
