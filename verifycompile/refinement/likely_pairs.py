"""Which values of both programs may be equal although they are computed otherwise: those that evaluate alike.

Products may be associated in another way, by lines that only one program has, in shapes and in an order of dimensions
of their own. Proposed are nodes with equal numbers; whether they are equal is asked elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch.fx

from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Mesh
from verifycompile.refinement.fingerprint import likely_fingerprint
from verifycompile.refinement.relations import NodeRelations
from verifycompile.refinement.two_places import sums_at_two_places

_MAX_RANK = 5
"""Of values whose dimensions are taken in every order."""

Pair = tuple[torch.fx.Node, torch.fx.Node]


def likely_pairs(relations: NodeRelations, chain: Sequence[torch.fx.Node]) -> list[Pair]:
    """Nodes of the chain, and of the implementation those without a relation that evaluate alike, in every layout."""
    implementation, mesh = relations.implementation, relations.mesh
    sizes = [axis.size for axis in mesh.axes] if mesh is not None else []
    summed = {math.prod(some) for n in range(len(sizes) + 1) for some in itertools.combinations(sizes, n)}
    holders: dict[int, list[torch.fx.Node]] = {}
    open_nodes = (
        n for term, nodes in relations.impl_by_term.items() if term not in relations.spec_by_term for n in nodes
    )
    for node, view in _different(implementation, open_nodes):
        number = likely_fingerprint(view)
        for held in [number] if number else dict.fromkeys(sums_at_two_places(view, range(len(sizes)))):
            holders.setdefault(held, []).append(node)
    found: list[Pair] = []
    for node, view in _different(relations.spec, chain) if holders else ():
        numbers = [likely_fingerprint(view.scaled(Fraction(1, count))) for count in summed]
        numbers = numbers if any(numbers) else list(sums_at_two_places(view, ()))
        found.extend((node, other) for number in numbers if number for other in holders.get(number, ()))
    return found


def _different(
    lowering: Lowering, nodes: Iterator[torch.fx.Node] | Sequence[torch.fx.Node]
) -> Iterator[tuple[torch.fx.Node, View]]:
    """Nodes with their values, one of those that have the same value in the same layout."""
    seen: set[View] = set()
    for node in nodes:
        view = lowering.view(node)
        if view is not None and view not in seen:
            seen.add(view)
            yield node, view


def other_orders(left: View, right: View, mesh: Mesh | None) -> Iterator[tuple[int, ...]]:
    """Orders of the dimensions of ``left``, other than its own, in which its parts may have the shape of ``right``."""
    local = right.shape[len(mesh.axes) if mesh is not None else 0 :]
    if len(local) != left.rank or left.rank > _MAX_RANK:
        return
    for order in itertools.permutations(range(left.rank)):
        ones = [dim for dim in order if left.shape[dim] == 1]
        if order != tuple(range(left.rank)) and ones == sorted(ones):
            if all(_may_be_part(left.shape[dim], size) for dim, size in zip(order, local, strict=True)):
                yield order


def _may_be_part(whole: Size, part: Size) -> bool:
    return whole == part or not (isinstance(whole, int) and isinstance(part, int)) or whole % part == 0 < part
