"""Moves of layouts within a dimension: heads before components or the reverse, tiled or repeated entries."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterator, Sequence

import torch
import torch.fx

from verifycompile.cause.draft import Draft, DraftError
from verifycompile.cause.moves.fused import is_size
from verifycompile.cause.moves.move import CUTS, Move, Scene, is_tensor, shape_of
from verifycompile.cause.moves.pieces import MAX_PIECES

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)  # noqa: SLF001 - the name of an operator


def other_orders(scene: Scene) -> Iterator[Move]:
    """Each dimension that is cut into factors, made of factors or repeated, with two of the factors exchanged."""
    for node in scene.calls:
        source = node.all_input_nodes[0] if node.target in (*_VIEWS, aten.repeat.default) else None
        if source is not None and is_tensor(source):
            for pair in _pairs(node, source):
                yield _in_other_order(scene, node, source, pair)


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Two neighbouring factors, at ``place`` of all ``factors`` of a tensor's dimensions.

    They are a cut of dimension ``dim`` of the source if ``is_cut``, else joined in dimension ``dim`` of the result.
    ``alone``: the dimension is cut into, or made of, factors that are dimensions of the other one.
    """

    dim: int
    factors: tuple[int, ...]
    place: int
    is_cut: bool
    alone: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.factors[self.place : self.place + 2]

    @property
    def exchanged(self) -> tuple[int, ...]:
        return (*self.factors[: self.place], *self.sizes[::-1], *self.factors[self.place + 2 :])


def _pairs(node: torch.fx.Node, source: torch.fx.Node) -> list[_Pair]:
    whole, result = _sizes(source), _sizes(node)
    if node.target is aten.repeat.default:
        times = node.args[1]
        if not isinstance(times, (list, tuple)) or len(times) != len(whole):
            return []
        repeated = [dim for dim, size in enumerate(whole) if 1 < size < result[dim]]
        cut = [(result[dim] // whole[dim], whole[dim]) for dim in repeated]
        return [
            _Pair(dim, (*result[:dim], *sizes, *result[dim + 1 :]), dim, is_cut=False, alone=True)
            for dim, sizes in zip(repeated, cut, strict=True)
        ]
    found = _factors(whole, result)
    factors = tuple(size for size, _, _ in found)
    pairs: list[_Pair] = []
    for place, ((_, own, to), (_, other, other_to)) in enumerate(itertools.pairwise(found)):
        if (own == other) != (to == other_to):
            dims = [item[2 if own == other else 1] for item in found]
            alone = dims.count(dims[place]) == dims.count(dims[place + 1]) == 1
            pairs.append(_Pair(own if own == other else to, factors, place, is_cut=own == other, alone=alone))
    return pairs


def _factors(whole: tuple[int, ...], result: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """The coarsest factors of which the dimensions of both shapes are products, with the dimension in each; () where a
    dimension of one ends within a factor of the other. Dimensions of one entry are left out.
    """
    found: list[tuple[int, int, int]] = []
    first, second = ([(dim, size) for dim, size in enumerate(sizes) if size != 1][::-1] for sizes in (whole, result))
    while first and second:
        (dim, size), (to, length) = first.pop(), second.pop()
        factor = min(size, length)
        if factor == 0 or max(size, length) % factor:
            return []
        found.append((factor, dim, to))
        first += [(dim, size // factor)] if size > factor else []
        second += [(to, length // factor)] if length > factor else []
    return [] if first or second else found


def _sizes(node: torch.fx.Node) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else 0 for size in shape_of(node))


def _in_other_order(scene: Scene, node: torch.fx.Node, source: torch.fx.Node, known: _Pair) -> Move:
    is_repeat = node.target is aten.repeat.default

    def found(draft: Draft) -> _Pair:
        for pair in _pairs(draft.node(node.name), draft.node(source.name)):
            if (pair.dim, pair.place, pair.is_cut) == (known.dim, known.place, known.is_cut):
                return pair
        raise DraftError("a dimension that has other factors")

    def apply(draft: Draft) -> None:
        own, pair = draft.node(node.name), found(draft)
        held, users = own if is_repeat else draft.node(source.name), list(own.users)
        whole = _turned(draft, own, held, pair.exchanged if pair.is_cut else pair.factors, pair.place)
        draft.redirect(own, whole, users)
        draft.redirect_outputs(own, whole)

    def texts(draft: Draft) -> tuple[str, str]:
        pair = found(draft)
        a, b = pair.sizes
        dim, value, whole = pair.dim, scene.value(node), scene.value(source)
        if is_repeat:
            message = f"{value} repeats dimension {dim} of {whole} as a whole, where each of its entries is repeated"
            return message, f"repeat each entry of dimension {dim} of {whole} {a} times (`repeat_interleave`)"
        if not pair.alone:
            message = f"{value} has the entries of {whole} in the wrong order"
            read = ", ".join(map(str, pair.exchanged if pair.is_cut else pair.factors))
            turned = f"transpose dimensions {pair.place} and {pair.place + 1}"
            return message, f"view {whole} as ({read}) and {turned} before {scene.line(node)} views it"
        if a == b:
            message = f"{value} takes {a} times {a} entries of dimension {dim} in the wrong order"
            first, line = _first_dimension(draft, pair), scene.line(node)
            turned = f"transpose dimensions {first} and {first + 1}"
            return message, f"{turned} after {line}" if pair.is_cut else f"{turned} before {line} joins them"
        if pair.is_cut:
            message = f"{value} reads dimension {dim} of {whole} as {a} times {b} entries, where it holds {b} times {a}"
            return message, f"view dimension {dim} of {whole} as {b} times {a} entries, and transpose the two"
        message = f"{value} puts {a} times {b} entries into dimension {dim}, where {b} times {a} are expected"
        return message, f"transpose the two before dimension {dim} of {value} is made of them"

    def _first_dimension(draft: Draft, pair: _Pair) -> int:
        """The dimension that the first of two factors is: of the result if they are cut, else of the source."""
        sizes = _sizes(draft.node(source.name)), _sizes(draft.node(node.name))
        return _factors(*sizes)[pair.place][2 if pair.is_cut else 1]

    return Move(("order", known.dim, known.factors, known.place), node.name, "VC104", texts, apply)


def _turned(draft: Draft, own: torch.fx.Node, held: torch.fx.Node, read: Sequence[int], place: int) -> torch.fx.Node:
    """A value, read as so many factors of which the one at ``place`` is exchanged for the next, in the shape of the
    result of a call that is changed, or of what that cuts.
    """
    is_cut = own.target in CUTS
    value, whole = held.meta["val"].new_empty(list(read)), held if is_cut else own
    factors = draft.insert(own, aten.reshape.default, (held, list(read)), value, before=is_cut)
    turned = (factors, place, place + 1)
    turned = draft.insert(factors, aten.transpose.int, turned, value.transpose(place, place + 1))
    return draft.insert(turned, aten.reshape.default, (turned, list(_sizes(whole))), whole.meta["val"])


def parts_of_blocks(scene: Scene) -> Iterator[Move]:
    """Each dimension that is cut into parts, or joined of them, as one of blocks that have a piece of each part."""
    for node in scene.order:
        for blocks in _blocks(node):
            yield _by_blocks(scene, blocks)


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """A dimension that ``node`` cuts into ``parts`` of one length, or joins of them, and so many blocks as ``like`` is
    long there: heads, of which each may have a piece of each part; where it is None, each entry.
    """

    node: torch.fx.Node
    dim: int
    parts: int
    like: torch.fx.Node | None

    @property
    def is_cut(self) -> bool:
        return self.node.target is not aten.cat.default

    def whole(self, draft: Draft) -> torch.fx.Node:
        own = draft.node(self.node.name)
        return own.all_input_nodes[0] if self.is_cut else own

    def sizes(self, draft: Draft) -> tuple[int, int, int]:
        """The numbers of blocks, of parts, and of entries of a piece."""
        length = _sizes(self.whole(draft))[self.dim]
        count = length // self.parts if self.like is None else _sizes(draft.node(self.like.name))[self.dim]
        if count == 0 or length % (count * self.parts):
            raise DraftError("blocks that do not fill a dimension")
        return count, self.parts, length // (count * self.parts)


def _blocks(node: torch.fx.Node) -> Iterator[_Blocks]:
    if node.target is aten.cat.default:
        parts = node.all_input_nodes
        likes = [part.all_input_nodes[0] for part in parts if part.target in _VIEWS]
    elif node.target in CUTS:
        parts = [user for user in node.users if user.target is operator.getitem]
        likes = [user for part in parts for user in part.users if user.target in _VIEWS]
    else:
        return
    count = len(node.meta["val"]) if node.target in CUTS else len(parts)
    if len(parts) != count or not 1 < count <= MAX_PIECES or len({shape_of(part) for part in parts}) != 1:
        return
    own, place = _sizes(parts[0]), 1 if node.target is aten.cat.default else 2
    given = node.args[-1] if len(node.args) > place else 0
    dim = given % len(own) if isinstance(given, int) and own else 0
    sizes = {like: _sizes(like) for like in likes}
    found = [
        like for like, size in sizes.items() if len(size) > dim and size[:dim] == own[:dim] and 1 < size[dim] < own[dim]
    ]
    for like in (*{sizes[like][dim]: like for like in found}.values(), None):
        if all(map(is_size, own)) and own[dim] > 1:
            yield _Blocks(node, dim, count, like)


def _by_blocks(scene: Scene, blocks: _Blocks) -> Move:
    node, dim = blocks.node, blocks.dim

    def apply(draft: Draft) -> None:
        own, whole = draft.node(node.name), blocks.whole(draft)
        count, parts, piece = blocks.sizes(draft)
        sizes, users = _sizes(whole), list(own.users)
        if blocks.is_cut:
            read = (*sizes[:dim], count, parts, piece, *sizes[dim + 1 :])
            draft.set_arguments(own, (_turned(draft, own, whole, read, dim), *own.args[1:]))
            return
        joined = _turned(draft, own, whole, (*sizes[:dim], parts, count, piece, *sizes[dim + 1 :]), dim)
        draft.redirect(own, joined, users)
        draft.redirect_outputs(own, joined)

    def texts(draft: Draft) -> tuple[str, str]:
        count, parts, piece = blocks.sizes(draft)
        whole, line = scene.value(blocks.whole(scene.draft)), scene.line(node)
        done, hint = "joined of", f"join a piece of each part in each of {count} blocks of dimension {dim} at {line}"
        if blocks.is_cut:
            done, hint = "cut into", f"view dimension {dim} of {whole} as ({count}, {parts}, {piece}) at {line}"
            hint += ", and take the parts along the second of the three"
        return (
            f"{whole} is {done} {parts} parts as a whole, where each of {count} blocks has a piece of each part",
            hint,
        )

    return Move(("blocks", dim, blocks.sizes(scene.draft)), node.name, "VC104", texts, apply)
