"""Moves that give a call another operand, or the argument that the spec's like-named call has."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.lost_sums import behind_moves
from verifycompile.cause.moves.move import Move, Scene, computed, fixed, is_tensor, shape_of, views
from verifycompile.program import ProgramInput, Role
from verifycompile.torch_interface.operators.evaluation import is_view, operator_name
from verifycompile.torch_interface.ranks.rank_values import RANK_NAMESPACES, namespace
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.source import at_line, frames_of
from verifycompile.torch_interface.source_lines.value_names import call_name, is_backward

aten = torch.ops.aten

_PIECES = (operator.getitem, aten.select.int, aten.slice.Tensor)
MAX_PIECES = 8
"""A tensor of more pieces is a batch, no set of components."""
_MOST_PAIRS = 200
"""Of inputs that may be taken for each other."""
_MOST_TOLD = 4
"""Of the numbers of a line, so many are told."""
_OF_PIECES = (aten.select_backward.default, aten.slice_backward.default)
_SHAPING = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default)  # noqa: SLF001 - names of operators
_MEANS = (aten.mean.default, aten.mean.dim)
_DIVISIONS = (aten.div.Tensor, aten.div.Scalar)
_ARITHMETIC = (aten.mul.Tensor, aten.div.Tensor, aten.add.Tensor, aten.sub.Tensor)
_CUTS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int)


def needless_calls(scene: Scene) -> Iterator[Move]:
    """Each call whose result could be one of its operands, left out."""
    for node in reversed(scene.calls):
        if namespace(node) in RANK_NAMESPACES or is_view(node.target):
            continue
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        for operand in dict.fromkeys(call.all_input_nodes):
            if _alike(node, operand) or _widens(node, operand):
                texts = functools.partial(_left_out_texts, scene, node, operand)
                numbers = (str(item) for item in node.args if not isinstance(item, torch.fx.Node))
                yield Move(("leave out", *numbers), node.name, "VC108", texts, _left_out(node.name, operand.name))


def _left_out_texts(scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, _: Draft) -> tuple[str, str]:
    found, wanted = scene.value(node), scene.value(operand)
    number = node.args[1] if node.target in (aten.mul.Tensor, aten.div.Tensor) else None
    if isinstance(number, (int, float)):
        what = f"the {'multiplication' if node.target is aten.mul.Tensor else 'division'} by {number:.6g}"
        return f"{what} is none of the spec", f"leave out {what} of {wanted} at {scene.line(node)}"
    if found == wanted:  # both are called by their operator, in an expression that is not known
        call, line = call_name(node), scene.line(node)
        return f"{call} is not needed", f"leave out {call} at {line}, and use {call_name(operand)}, which it takes"
    hint = f"use {wanted} in the place of {found} at {scene.line(node)}"
    return f"{found} is computed where {wanted} is needed", hint


def other_operands(scene: Scene) -> Iterator[Move]:
    """Each operand of a call exchanged for an earlier value of its shape and type, the nearest first.

    Where the call takes a view of something, what is exchanged is what the view looks at.
    """
    order = scene.draft.program.graph.graph.nodes
    position = {node: place for place, node in enumerate(order)}
    values = [node for node in order if is_tensor(node)]
    places = _Places(order)
    for node in scene.order:
        if node.op != "call_function" or node.target is operator.getitem or is_view(node.target):
            continue
        for operand in dict.fromkeys(node.all_input_nodes):
            if not is_tensor(operand):
                continue
            place = node.all_input_nodes.index(operand)
            for depth, looked_at in enumerate(views(operand)):
                earlier = [other for other in values if position[other] < position[node] and _alike(looked_at, other)]
                for other in sorted(earlier, key=lambda other: abs(position[other] - position[looked_at])):
                    if other is looked_at or _same_value(scene, looked_at, other):
                        continue
                    texts = functools.partial(_operand_texts, scene, node, looked_at, other)
                    change = _exchanged(node.name, operand.name, depth, other.name)
                    kind = ("operand", place, depth, *places.relative(node, other))
                    yield Move(kind, node.name, "VC108", texts, change)


class _Places:
    """Where values are computed: equal for what an expression computes in several layers, or turns of a loop."""

    def __init__(self, order: Iterable[torch.fx.Node]) -> None:
        self._places: dict[torch.fx.Node, tuple[object, int]] = {}
        self._counts: collections.Counter[object] = collections.Counter()
        for node in order:
            place = model_location_of(node)
            line: object = node.name if place is None else (place.file, place.line, place.column, str(node.target))
            self._places[node] = line, self._counts[line]
            self._counts[line] += 1

    def turn(self, node: torch.fx.Node) -> int:
        """How many calls of the same expression there were before."""
        return self._places[node][1]

    def relative(self, node: torch.fx.Node, other: torch.fx.Node) -> tuple[object, ...]:
        """The expressions of both, and how many turns ``other`` is away from ``node``.

        An expression that is made oftener than the other one is made so often in each turn.
        """
        (own, first), (line, second) = self._places[node], self._places[other]
        times = max(self._counts[own] // self._counts[line], 1), max(self._counts[line] // self._counts[own], 1)
        turns = second // times[1] - first // times[0]
        return first % times[0], line, second % times[1], 0 if isinstance(line, str) else turns


def exchanged_pieces(scene: Scene) -> Iterator[Move]:
    """Two neighbouring pieces of a tensor, each taken for the other; in a backward pass, two that are assembled."""
    pieces: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in scene.calls:
        whole = node.args[0] if node.target in _PIECES and node.args else None
        if isinstance(whole, torch.fx.Node):
            pieces.setdefault(whole, []).append(node)
        yield from _exchanged_parts(scene, node)
    for same in pieces.values():
        for first, second in itertools.pairwise(same) if len(same) <= MAX_PIECES else ():
            if _alike(first, second) and first.args[1:] != second.args[1:]:
                yield _exchanged_uses(scene, first, second)
    gradients = [node for node in scene.calls if node.target in _OF_PIECES]
    for first, second in itertools.pairwise(gradients):
        if _alike(first, second) and first.args[1:] != second.args[1:]:
            yield _exchanged_gradients(scene, first, second)


def exchanged_inputs(scene: Scene) -> Iterator[Move]:
    """Two inputs or parameters of one shape, each taken for the other wherever it is used, with their gradients."""
    items = [
        item
        for item in scene.draft.program.inputs
        if item.role in (Role.INPUT, Role.PARAMETER) and item.node in scene.needed and is_tensor(item.node)
        if item.node.users  # a rank's graph may have inputs that it does not read
    ]
    for first, second in itertools.islice(_near_pairs(items), _MOST_PAIRS):
        if _alike(first.node, second.node) and first.placements == second.placements:
            yield _exchanged_inputs(scene, first, second)


def _near_pairs(items: Sequence[ProgramInput]) -> Iterator[tuple[ProgramInput, ProgramInput]]:
    """All pairs, of neighbours first."""
    for distance in range(1, len(items)):
        yield from zip(items, items[distance:], strict=False)


def _exchanged_inputs(scene: Scene, first: ProgramInput, second: ProgramInput) -> Move:
    gradients = {f"grad.{first.name}": f"grad.{second.name}", f"grad.{second.name}": f"grad.{first.name}"}

    def apply(draft: Draft) -> None:
        _exchange_uses(draft, first.node.name, second.node.name)
        nodes = {output.name: output.node for output in draft.program.outputs}
        draft.set_outputs(
            dataclasses.replace(output, node=nodes.get(gradients.get(output.name, ""), output.node))
            for output in draft.program.outputs
        )

    computing = (node for node in scene.order if computed(node) and behind_moves(node) is node)
    readers = (node for node in computing if first.node in map(behind_moves, node.all_input_nodes))
    reader = next(readers, next(iter(first.node.users)))
    both = f"`{first.name}` and `{second.name}`"
    texts = fixed(f"{both} are taken for each other", f"exchange {both} where they are used")
    return Move(("exchange",), reader.name, "VC108", texts, apply)


def _exchanged_uses(scene: Scene, first: torch.fx.Node, second: torch.fx.Node) -> Move:
    def apply(draft: Draft) -> None:
        _exchange_uses(draft, first.name, second.name)

    one, other, whole = scene.value(first), scene.value(second), scene.value(first.all_input_nodes[0])
    both = f"{one} and {other}" if one != other else f"two neighbouring pieces of {whole}"
    texts = fixed(f"{both} are taken for each other", f"exchange {both} where they are used")
    return Move(("exchange",), first.name, "VC108", texts, apply)


def _exchange_uses(draft: Draft, first: str, second: str) -> None:
    one, other = draft.node(first), draft.node(second)
    users, taken = [*dict.fromkeys((*one.users, *other.users))], {one: other, other: one}
    for user in users:
        arguments = torch.fx.map_arg((user.args, user.kwargs), lambda operand: taken.get(operand, operand))
        draft.set_arguments(user, *arguments)


def _exchanged_gradients(scene: Scene, first: torch.fx.Node, second: torch.fx.Node) -> Move:
    def apply(draft: Draft) -> None:
        one, other = draft.node(first.name), draft.node(second.name)
        gradient = one.args[0]
        draft.set_arguments(one, (other.args[0], *one.args[1:]))
        draft.set_arguments(other, (gradient, *other.args[1:]))

    both = f"the gradients of {scene.value(first)} and {scene.value(second)}"
    texts = fixed(f"{both} are taken for each other", f"exchange {both}")
    return Move(("exchange",), first.name, "VC108", texts, apply)


def _exchanged_parts(scene: Scene, node: torch.fx.Node) -> Iterator[Move]:
    parts = node.args[0] if node.target in (aten.cat.default, aten.stack.default) else ()
    if not isinstance(parts, (list, tuple)) or len(parts) > MAX_PIECES:
        return
    nodes = [part for part in parts if isinstance(part, torch.fx.Node)]
    for place, (first, second) in enumerate(itertools.pairwise(nodes)):
        if not _alike(first, second):
            continue

        def apply(draft: Draft, place: int = place) -> None:
            own = draft.node(node.name)
            parts: Any = own.args[0]
            turned = [*parts[:place], parts[place + 1], parts[place], *parts[place + 2 :]]
            draft.set_arguments(own, (turned, *own.args[1:]))

        one, other = scene.value(first), scene.value(second)
        message = f"{one} and {other} are concatenated in the wrong order"
        texts = fixed(message, f"exchange {one} and {other} at {scene.line(node)}")
        yield Move(("exchange parts", place), node.name, "VC108", texts, apply)


def other_dimensions(scene: Scene) -> Iterator[Move]:
    """Values that are concatenated, along another dimension."""
    for node in scene.calls:
        if node.target is not aten.cat.default or len({shape_of(part) for part in node.all_input_nodes}) > 1:
            continue
        rank = len(shape_of(node))
        own = int(node.args[1]) % rank if len(node.args) > 1 else 0  # pyright: ignore[reportArgumentType]  # a number by the schema
        for dim in range(rank):
            if dim != own:
                message = f"{scene.value(node)} joins along dimension {own} what belongs together along dimension {dim}"
                texts = fixed(message, f"join along dimension {dim}, not along dimension {own}, at {scene.line(node)}")
                change = functools.partial(_joined_along, node.name, dim)
                yield Move(("dimension", dim), node.name, "VC108", texts, change)


def _joined_along(name: str, dim: int, draft: Draft) -> None:
    own = draft.node(name)
    draft.set_arguments(own, (own.args[0], dim))
    draft.record_again(own)


def other_pieces(scene: Scene) -> Iterator[Move]:
    """Each operand of a call that is one piece of a tensor, exchanged for another one."""
    for node in scene.calls:
        if is_view(node.target):
            continue
        for operand in dict.fromkeys(node.all_input_nodes):
            piece = views(operand)[-1] if is_tensor(operand) else operand
            count, number = _pieces(piece)
            for other in range(count):
                if other != number:
                    yield _of_another_piece(scene, node, operand, piece, other)


def _pieces(node: torch.fx.Node) -> tuple[int, int]:
    """How many pieces a tensor is cut into of which a node is one, and which one it is."""
    pieces = node.args[0] if node.target is operator.getitem else None
    if not isinstance(pieces, torch.fx.Node) or pieces.target not in _CUTS:
        return 0, 0
    shapes = [tuple(piece.shape) for piece in pieces.meta["val"]]
    number = node.args[1]
    alike = isinstance(number, int) and all(shape == shapes[0] for shape in shapes)
    return (len(shapes), number) if alike and isinstance(number, int) else (0, 0)


def _of_another_piece(
    scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, piece: torch.fx.Node, other: int
) -> Move:
    def apply(draft: Draft) -> None:
        own, taken, held = (draft.node(item.name) for item in (node, operand, piece))
        value = draft.insert(own, operator.getitem, (held.args[0], other), held.meta["val"], before=True)
        for view in reversed(views(taken)[:-1]):
            value = draft.insert(own, view.target, (value, *view.args[1:]), view.meta["val"], before=True)
        draft.redirect(taken, value, [own])

    def texts(_: Draft) -> tuple[str, str]:
        value, number = scene.value(node), piece.args[1]
        whole = scene.value(piece.args[0].args[0])  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType, reportOptionalMemberAccess]  # pieces are of a split, see the caller
        message = f"{value} takes piece {number} of {whole}, where piece {other} is expected"
        return message, f"use piece {other} of {whole} in the place of piece {number} at {scene.line(node)}"

    return Move(("piece", other), node.name, "VC108", texts, apply)


def _operand_texts(
    scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, other: torch.fx.Node, _: Draft
) -> tuple[str, str]:
    return exchanged_texts(scene, node, operand, other)


def exchanged_texts(scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, other: torch.fx.Node) -> tuple[str, str]:
    """What is said of a call that takes one value in the place of another one."""
    found, wanted = scene.value(operand), scene.value(other)
    if found == wanted:  # the same line made both
        places = _Places(scene.draft.program.graph.graph.nodes)
        found, wanted = (f"{found} of turn {places.turn(value) + 1}" for value in (operand, other))
    own = scene.value(node)
    taker = scene.line(node) if own in (found, wanted) else own  # a view has the name of what it looks at
    message = f"{taker} takes {found}, where {wanted} is expected"
    return message, f"use {wanted} in the place of {found} at {scene.line(node)}"


def arguments_of_spec(scene: Scene) -> Iterator[Move]:
    """The numbers, dimensions and flags of a call, as the spec's calls of the same operator have them; a divisor as the
    number of entries of which the spec takes a mean.
    """
    spec: dict[object, dict[str, torch.fx.Node]] = {}
    means: list[torch.fx.Node] = []
    for node in scene.spec.graph.graph.nodes:
        if node.op == "call_function" and operator_name(node.target) is not None:
            spec.setdefault(node.target, {}).setdefault(repr(_constants(node)), node)
            means += [node] if node.target in _MEANS else []
    for node in scene.calls:
        own = _constants(node)
        if node.target in _SHAPING:
            continue  # another size does not fit
        for key, same in spec.get(node.target, {}).items():
            given = _constants(same)
            if key == repr(own) or set(given) != set(own):
                continue
            changed = [place for place, value in given.items() if repr(value) != repr(own[place])]
            if len(changed) == 1 and isinstance(changed[0], int):
                yield _as_spec(scene, node, changed[0], same, given[changed[0]])
        for same in means if node.target in _DIVISIONS and isinstance(own.get(1), (int, float)) else ():
            if _entries(same) != own[1]:
                yield _as_spec(scene, node, 1, same, _entries(same))


def shares_of_numbers(scene: Scene) -> Iterator[Move]:
    """Each whole number of a call that the spec's call of the same operator has too, divided by the number of ranks."""
    spec: dict[object, list[torch.fx.Node]] = {}
    for node in scene.spec.graph.graph.nodes:
        spec.setdefault(node.target, []).append(node)
    counts = dict.fromkeys(map(scene.ranks, scene.axis_sets))
    for node in scene.calls if scene.values else ():
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        if node.target is operator.getitem and node.args[1] != 0:
            continue
        numbers = [
            (place, value)
            for place, value in enumerate(call.args)
            if isinstance(value, int) and not isinstance(value, bool) and value > 1
        ]
        same_calls = spec.get(call.target, ()) if numbers else ()
        alike = [same for same in same_calls if _first_shape(same) != _first_shape(call)]
        for place, value in numbers:
            if any(same.args[place : place + 1] == (value,) for same in alike):
                yield from (_share(scene, call, place, count) for count in counts if value % count == 0)


def _first_shape(node: torch.fx.Node) -> tuple[object, ...]:
    return next((shape_of(operand) for operand in node.all_input_nodes if is_tensor(operand)), ())


def _share(scene: Scene, node: torch.fx.Node, place: int, count: int) -> Move:
    called = _argument(node, place)
    line = model_location_of(node)
    derivatives = () if line is None else scene.backward_of_lines.get(at_line(line), ())
    places = [(other, at) for other in derivatives for at in range(len(other.args)) if _argument(other, at) == called]

    def apply(draft: Draft) -> None:
        changed: list[torch.fx.Node] = []
        for other, at in [(node, place), *(places if called else ())]:
            own = draft.node(other.name)
            number: Any = own.args[at]
            draft.set_arguments(own, (*own.args[:at], number // count, *own.args[at + 1 :]))
            changed.append(own)
        draft.record_again(*changed)

    def texts(draft: Draft) -> tuple[str, str]:
        number: Any = draft.node(node.name).args[place]
        value = scene.value(node)
        message = f"{value} counts {number} on each of {count} ranks, of which each has {number // count}"
        return message, f"pass {number // count}, this rank's share of {number}, at {scene.line(node)}"

    return Move(("share", place, count), node.name, "VC114", texts, apply)


def _argument(node: torch.fx.Node, place: int) -> str:
    """What a whole number among the arguments of a call is called by its operator; "" where it has no name."""
    target = node.target
    arguments = target._schema.arguments if isinstance(target, OpOverload) else ()  # noqa: SLF001 - as torch names it
    return arguments[place].name if place < len(arguments) and isinstance(node.args[place], int) else ""


def numbers_of_lines(scene: Scene) -> Iterator[Move]:
    """The numbers of all calls that one line makes, as those of a line of the spec that calls the same operators: a
    learning rate is in several of them. Of the same line, as those of other turns: that of another layer.
    """
    spec: dict[object, list[torch.fx.Node]] = {}
    turns = _by_line(scene.spec.graph.graph.nodes)
    for calls in turns.values():
        spec.setdefault(tuple(node.target for node in calls), calls)
    for line, calls in _by_line(scene.draft.program.graph.graph.nodes).items():
        targets, of_spec = tuple(node.target for node in calls), turns.get(line, [])
        others = [of_spec[start : start + len(calls)] for start in range(1, len(of_spec) - len(calls) + 1)]
        same = [other for other in others if tuple(node.target for node in other) == targets]
        for other in [spec.get(targets, []), *same]:
            pairs = [pair for pair in zip(calls, other, strict=False) if _numbers(pair[0]) != _numbers(pair[1])]
            is_one = len(pairs) == 1 and other not in same  # which is tried elsewhere
            if pairs and not is_one and all(_numbers(node).keys() == _numbers(own).keys() for node, own in pairs):
                yield _with_numbers(scene, pairs)


def _by_line(nodes: Iterable[torch.fx.Node]) -> dict[object, list[torch.fx.Node]]:
    """The calls that each line makes, in order."""
    found: dict[object, list[torch.fx.Node]] = {}
    for node in nodes:
        frames = frames_of(node) if node.op == "call_function" else ()
        if frames:
            found.setdefault((frames[-1].file, frames[-1].line, is_backward(node)), []).append(node)
    return found


def _numbers(node: torch.fx.Node) -> dict[int | str, float]:
    """The numbers of arithmetic among the arguments of a call, and those of others that are no whole ones: sizes."""
    kinds = (int, float) if node.target in _ARITHMETIC else (float,)
    found = _constants(node)
    return {place: number for place, number in found.items() if type(number) in kinds}


def _with_numbers(scene: Scene, pairs: list[tuple[torch.fx.Node, torch.fx.Node]]) -> Move:
    changed = {node.name: _numbers(other) for node, other in pairs}
    told = list(
        dict.fromkeys(
            (f"{own:.6g}", f"{_numbers(other)[place]:.6g}")
            for node, other in pairs
            for place, own in _numbers(node).items()
            if own != _numbers(other)[place]
        )
    )

    def apply(draft: Draft) -> None:
        for name, numbers in changed.items():
            own = draft.node(name)
            args = tuple(numbers.get(place, value) for place, value in enumerate(own.args))
            draft.set_arguments(own, args, {key: numbers.get(key, value) for key, value in own.kwargs.items()})

    first = pairs[0][0]
    found, wanted = (" and ".join(numbers) for numbers in zip(*told[:_MOST_TOLD], strict=True))
    line = scene.line(first)
    message = f"{line} computes with {found}, where the spec has {wanted}"
    hint = f"let {line} compute with {wanted} in the place of {found}, or with what these come from"
    return Move(("numbers", *told), first.name, "VC108", fixed(message, hint), apply)


def _entries(mean: torch.fx.Node) -> int:
    """Of how many entries each element of a result is the mean."""
    return mean.all_input_nodes[0].meta["val"].numel() // max(mean.meta["val"].numel(), 1)


def _as_spec(scene: Scene, node: torch.fx.Node, place: int, same: torch.fx.Node, value: object) -> Move:
    def wanted(draft: Draft) -> Any:
        """The spec's argument, at the sizes of the draft."""
        spec = draft.spec or scene.spec
        found = next(other for other in spec.graph.graph.nodes if other.name == same.name)
        return found.args[place] if found.target is node.target else _entries(found)

    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        draft.set_arguments(own, (*own.args[:place], wanted(draft), *own.args[place + 1 :]))

    def texts(draft: Draft) -> tuple[str, str]:
        found, given = draft.node(node.name).args[place], wanted(draft)
        message = f"{scene.value(node)} is computed with {found}, where the spec has {given}"
        return message, f"pass {given} in the place of {found} at {scene.line(node)}"

    return Move(("argument", place, repr(value)), node.name, "VC108", texts, apply)


def _alike(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    return is_tensor(other) and shape_of(node) == shape_of(other) and node.meta["val"].dtype == other.meta["val"].dtype


def _same_value(scene: Scene, node: torch.fx.Node, other: torch.fx.Node) -> bool:
    first, second = scene.parts(node), scene.parts(other)
    if first is None or second is None:
        return False
    return all(a is b or torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _constants(node: torch.fx.Node) -> dict[int | str, Any]:
    """The arguments of a call that are no tensors, by position or name."""
    places: dict[int | str, Any] = {**dict(enumerate(node.args)), **node.kwargs}
    return {place: value for place, value in places.items() if not _holds_nodes(value)}


def _holds_nodes(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_nodes(item) for item in value)
    return isinstance(value, (torch.fx.Node, torch.SymInt, torch.device, torch.dtype))


def _widens(node: torch.fx.Node, operand: torch.fx.Node) -> bool:
    """Whether each element of the result of arithmetic stands where one of the operand is repeated."""
    if node.target not in _ARITHMETIC or not is_tensor(operand) or node.meta["val"].dtype != operand.meta["val"].dtype:
        return False
    own, wide = shape_of(operand), shape_of(node)
    return len(own) == len(wide) > 0 and all(size in (1, whole) for size, whole in zip(own, wide, strict=True))


def _left_out(name: str, operand: str) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own, value = draft.node(name), draft.node(operand)
        if shape_of(value) != shape_of(own):
            value = draft.insert(own, aten.expand.default, (value, list(shape_of(own))))
        draft.redirect(own, value)

    return apply


def _exchanged(name: str, operand: str, depth: int, other: str) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own, taken = draft.node(name), draft.node(operand)
        value = draft.node(other)
        for view in reversed(views(taken)[:depth]):
            arguments = (value, *view.args[1:])
            value = draft.insert(own, view.target, arguments, view.meta["val"], before=True)
        draft.redirect(taken, value, [own])

    return apply
