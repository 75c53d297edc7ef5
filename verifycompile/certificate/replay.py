"""Proves two programs again from claims alone: no parts, no search for relations or equalities, no solver of its own.

What is recomputed is every value, by the declarations and the normal form with its lemmas. What is checked is every
claim: the relation of each output, and each equality that was found (``equalities.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch.fx

from verifycompile.certificate.digests import Digests, digest
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Program
from verifycompile.refinement.attempt import Attempt, ClaimError, plain_pool
from verifycompile.refinement.placement import Placements
from verifycompile.rewrites.padded_pieces import sum_padded
from verifycompile.rewrites.similar import sum_similar

if TYPE_CHECKING:
    from verifycompile.certificate.equalities import Equality


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a proof from claims gives."""

    relations: Mapping[str, str]
    assumptions: tuple[str, ...]
    values: Mapping[str, str]
    """Of each program, what its nodes were found to be, and by which lemmas, as one digest."""


class Rules(Protocol):
    """By which lemmas products and sums are rewritten: see ``LemmaSteps``."""

    digests: Digests

    def product(self, pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None: ...

    def combination(
        self, pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]
    ) -> Sequence[View] | None: ...


def replay(
    spec: Program,
    implementation: Program,
    placements: Mapping[str, Placements],
    equalities: Sequence[Equality],
    rules: Rules,
) -> Replay:
    """Prove that the implementation refines the spec. Raises ClaimError where a claim does not hold."""
    pool = plain_pool(implementation)
    pool.contraction_rules.append(rules.product)
    pool.combination_rules.extend((rules.combination, sum_similar, sum_padded))
    if equalities:  # they were proved with all facts about indices known
        _learn_facts(spec, implementation, pool, placements)
    for equality in equalities:
        checker = Attempt(spec, implementation, pool, placements)
        nodes = _named(spec, equality.spec_node), _named(implementation, equality.impl_node)
        left, right = checker.value_of(*nodes)
        if left is None or right is None:
            raise ClaimError(f"`{equality.spec_node}` or `{equality.impl_node}` has no value")
        equality.take(pool, left, right, implementation.mesh)
    checker = _proved(spec, implementation, pool, placements)
    values = {
        "spec": _values(checker.spec, rules.digests),
        "implementation": _values(checker.implementation, rules.digests),
    }
    return Replay(checker.relations, tuple(checker.assumptions()), values)


def _learn_facts(spec: Program, implementation: Program, pool: TermPool, placements: Mapping[str, Placements]) -> None:
    """Lower both programs once, so that every fact about an index is known; what that proves is left to others."""
    while True:
        with contextlib.suppress(ClaimError):
            Attempt(spec, implementation, pool, placements).run()
        if not pool.learn():
            return


def _proved(spec: Program, implementation: Program, pool: TermPool, placements: Mapping[str, Placements]) -> Attempt:
    """All outputs related as claimed, with no more facts about indices than that takes. Raises ClaimError."""
    while True:
        checker = Attempt(spec, implementation, pool, placements)
        try:
            mismatch = checker.run()
        except ClaimError:
            if not pool.learn():
                raise
            continue
        if mismatch is not None:
            raise ClaimError(mismatch.message)
        return checker


def _named(program: Program, name: str) -> torch.fx.Node:
    for node in program.graph.graph.nodes:
        if node.name == name:
            return node
    raise ClaimError(f"no node is called `{name}`")


def _values(lowering: Lowering, digests: Digests) -> str:
    """Of all nodes the values, and the names of the lemmas by which they were found."""
    found = [
        (node.name, digests.value(value), [name for name, _ in lowering.lemmas.get(node, ())])
        for node, value in lowering.values.items()
    ]
    return digest(found)
