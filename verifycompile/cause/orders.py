"""Moves of layouts within a dimension: heads before components or the reverse, tiled or repeated entries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft, DraftError
from verifycompile.cause.move import Move, Scene, is_tensor, shape_of

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)  # noqa: SLF001 - the name of an operator


def other_orders(scene: Scene) -> Iterator[Move]:
    """Each dimension that is cut into factors, made of factors or repeated, with two of the factors exchanged."""
    for node in scene.calls:
        source = node.all_input_nodes[0] if node.target in (*_VIEWS, aten.repeat.default) else None
        if source is None or not is_tensor(source):
            continue
        for factored in _factored(node, source):
            for place in range(len(factored.factors) - 1):
                if 1 not in factored.factors[place : place + 2]:
                    yield _in_other_order(scene, node, source, factored, place)


@dataclasses.dataclass(frozen=True)
class _Factored:
    """Dimension ``dim`` is as long as the product of ``factors``: of the source if it is cut, else of the result."""

    dim: int
    factors: tuple[int, ...]
    is_cut: bool


def _factored(node: torch.fx.Node, source: torch.fx.Node) -> list[_Factored]:
    whole, result = _sizes(source), _sizes(node)
    if node.target is aten.repeat.default:
        times = node.args[1]
        if not isinstance(times, (list, tuple)) or len(times) != len(whole):
            return []
        return [_Factored(dim, (result[dim] // size, size), is_cut=False) for dim, size in enumerate(whole) if size]
    if len(result) > len(whole):
        return [_Factored(dim, factors, is_cut=True) for dim, factors in _cut(whole, result)]
    return [_Factored(dim, factors, is_cut=False) for dim, factors in _cut(result, whole)]


def _cut(few: tuple[int, ...], many: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """The dimension of ``few``, and its factors, where ``many`` has the same dimensions but for that one."""
    count = len(many) - len(few) + 1
    return [
        (dim, many[dim : dim + count])
        for dim in range(len(few))
        if count > 1
        and few[:dim] == many[:dim]
        and few[dim + 1 :] == many[dim + count :]
        and few[dim] == math.prod(many[dim : dim + count])
    ]


def _sizes(node: torch.fx.Node) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else 0 for size in shape_of(node))


def _in_other_order(scene: Scene, node: torch.fx.Node, source: torch.fx.Node, known: _Factored, place: int) -> Move:
    def found(draft: Draft) -> _Factored:
        for factored in _factored(draft.node(node.name), draft.node(source.name)):
            if (factored.dim, len(factored.factors)) == (known.dim, len(known.factors)):
                return factored
        raise DraftError("a dimension that has other factors")

    def apply(draft: Draft) -> None:
        own, factored = draft.node(node.name), found(draft)
        first, shape = factored.dim + place, _sizes(own)
        before, behind = shape_of(own)[: factored.dim], shape_of(own)[factored.dim + 1 :]
        if factored.is_cut:
            behind = shape_of(own)[factored.dim + len(factored.factors) :]
        cut = [*before, *(_exchanged(factored.factors, place) if factored.is_cut else factored.factors), *behind]
        held = draft.node(source.name) if factored.is_cut else own
        value = own.meta["val"].new_empty(cut)
        factors = draft.insert(own, aten.reshape.default, (held, cut), value)
        value = value.transpose(first, first + 1)
        turned = draft.insert(factors, aten.transpose.int, (factors, first, first + 1), value)
        arguments, result = (turned, list(shape)), own.meta["val"]
        whole = turned if factored.is_cut else draft.insert(turned, aten.reshape.default, arguments, result)
        made = {factors, turned, whole}
        users = [user for user in own.users if user not in made]
        draft.redirect(own, whole, users)
        draft.redirect_outputs(own, whole)

    def texts(draft: Draft) -> tuple[str, str]:
        factored = found(draft)
        a, b = factored.factors[place : place + 2]
        dim, value, whole = factored.dim, scene.value(node), scene.value(source)
        if node.target is aten.repeat.default:
            message = f"{value} repeats dimension {dim} of {whole} as a whole, where each of its entries is repeated"
            return message, f"repeat each entry of dimension {dim} of {whole} {a} times (`repeat_interleave`)"
        if a == b:
            message = f"{value} takes {a} times {a} entries of dimension {dim} in the wrong order"
            first, line = dim + place, scene.line(node)
            turned = f"transpose dimensions {first} and {first + 1}"
            return message, f"{turned} after {line}" if factored.is_cut else f"{turned} before {line} joins them"
        if factored.is_cut:
            message = f"{value} reads dimension {dim} of {whole} as {a} times {b} entries, where it holds {b} times {a}"
            return message, f"view dimension {dim} of {whole} as {b} times {a} entries, and transpose the two"
        message = f"{value} puts {a} times {b} entries into dimension {dim}, where {b} times {a} are expected"
        return message, f"transpose the two before dimension {dim} of {value} is made of them"

    return Move(("order", known.dim, known.factors, place), node.name, "VC104", texts, apply)


def _exchanged(factors: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*factors[:place], factors[place + 1], factors[place], *factors[place + 2 :])
