"""What normal form left open: prove one more equality with the e-graph, then let both programs be lowered again.

GraphGuard's localisation (section 4.2) is kept: the values tried are those of the failed outputs themselves, and those
of the first spec node without a relation and of the implementation node made by the same line. A proved equality
becomes an alias of the pool, so that everything downstream is rebuilt on the spec's term.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import torch.fx

from verifycompile.ir.budget import BudgetExceededError
from verifycompile.ir.relabel import UnalignedError, permute
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.program import Mesh
from verifycompile.refinement.candidates import candidate_placements
from verifycompile.refinement.cases import equal_by_cases
from verifycompile.refinement.closure import alias_of
from verifycompile.refinement.egraph import EqualityProof, prove_equal
from verifycompile.refinement.likely_pairs import Pair, likely_pairs, other_orders
from verifycompile.refinement.oriented import oriented
from verifycompile.refinement.placement import Placements
from verifycompile.refinement.relations import Diagnosis, NodeRelations, producer
from verifycompile.refinement.ring import equal_in_ring
from verifycompile.rewrites.registry import UnsupportedError

_MAX_CANDIDATES = 40
_MAX_SPEC_NODES = 8
_MAX_SECONDS = 1.0
_MAX_STEPS = 2_000
"""Of normal forms, for a question: written out, a gradient behind many functions is a sum that nobody waits for."""


@dataclasses.dataclass(frozen=True)
class ProvedEquality:
    """``implementation`` (a term's text) was replaced by ``spec``, by these lemmas.

    They are the terms of the values of ``spec_node`` and ``impl_node``, related by ``placements`` (None: no mesh);
    ``order``: of the dimensions of the spec's value as the implementation has them (None: their own).
    """

    spec: str
    implementation: str
    proof: EqualityProof
    spec_node: str
    impl_node: str
    placements: Placements | None
    order: tuple[int, ...] | None


def prove_one_more(
    case: Diagnosis, *, search: bool, different: Callable[[], Collection[str]], exhausted: set[str]
) -> ProvedEquality | None:
    """Prove an equality that the failed outputs need and record it as an alias; None where no lemma applies.

    ``search``: by the e-graph as well, not only by writing out products. ``different``: names of outputs of which it is
    known that they are not equal: of these nothing is asked, since a question that has no answer costs most.
    ``exhausted`` receives the budgets that end a question without an answer.
    """
    search = search and case.spec.program.is_real and case.implementation.program.is_real
    pool, mesh = case.pool, case.implementation.program.mesh
    spec_terms = {v.term for v in case.spec.values.values() if isinstance(v, View)}
    deadline, asked = time.thread_time() + _MAX_SECONDS, set[tuple[Term, View, bool]]()
    for question in _questions(case, different):
        if time.thread_time() > deadline:
            return None
        order, searches = question.order, search and not question.likely
        left, right = case.spec.view(question.spec_node), case.implementation.view(question.impl_node)
        if left is None or right is None:
            continue
        left = left if order is None else permute(left, order)
        for placements, expected, found in _oriented(pool, left, right, mesh):
            if found.term is expected.term or found.term in spec_terms or found.term in pool.aliases:
                continue
            alias = alias_of(expected, found)
            if alias is None or (found.term, alias, searches) in asked:
                continue
            asked.add((found.term, alias, searches))
            try:
                with pool.budget.node(_MAX_STEPS):
                    proof = _proved(pool, expected, found, search=searches)
            except BudgetExceededError:
                exhausted.add(f"{_MAX_STEPS} steps of normal forms for a question")
                continue
            if proof is not None:
                pool.replace(found.term, alias)
                names = question.spec_node.name, question.impl_node.name
                return ProvedEquality(repr(expected.term), repr(found.term), proof, *names, placements, order)
    return None


@dataclasses.dataclass(frozen=True)
class _Question:
    """Whether two nodes have one value, with the spec's dimensions in an ``order`` (None: their own).

    ``likely``: they evaluate alike; whether they are equal is asked of products alone.
    """

    spec_node: torch.fx.Node
    impl_node: torch.fx.Node
    likely: bool = False
    order: tuple[int, ...] | None = None


def _questions(case: Diagnosis, different: Callable[[], Collection[str]]) -> Iterator[_Question]:
    """Pairs that evaluate alike, from the inside out: what contains them is small then; others; other orders."""
    relations = NodeRelations(case)
    chain = relations.unrelated_chain()
    likely = likely_pairs(relations, chain)
    yield from (_Question(*pair, likely=True) for pair in likely)
    failed = ((spec.node, impl.node) for spec, impl in case.failed if spec.name not in different())
    yield from (_Question(*pair) for pair in failed)
    yield from (_Question(*pair) for pair in _pairs(relations, chain[:_MAX_SPEC_NODES], different))
    yield from (_Question(*pair) for pair in (() if different() else likely))
    for spec_node, impl_node in () if different() else likely:
        left, right = case.spec.view(spec_node), case.implementation.view(impl_node)
        assert left is not None
        assert right is not None
        orders = other_orders(left, right, case.implementation.program.mesh)
        yield from (_Question(spec_node, impl_node, likely=True, order=order) for order in orders)


def _pairs(
    relations: NodeRelations, chain: Sequence[torch.fx.Node], different: Callable[[], Collection[str]]
) -> Iterator[Pair]:
    unmatched = relations.unmatched()[:_MAX_CANDIDATES]
    for node in chain:
        twin = relations.counterpart(producer(node))
        if twin is not None:
            yield node, twin
    # Another value than that of the same line may be the one: a spec given by the user has lines of its own. Where
    # nothing can be proved any more, what is asked only tells where the programs part.
    yield from ((node, right) for node in chain for right in (() if different() else unmatched))
    # What is done to a value that has a relation may be done to one that is computed of it in another way.
    related = dict.fromkeys(operand for node in chain for operand in node.all_input_nodes if operand not in chain)
    yield from ((left, right) for left in related for right in (() if different() else unmatched))


def _oriented(
    pool: TermPool, left: View, right: View, mesh: Mesh | None
) -> Iterator[tuple[Placements | None, View, View]]:
    """The spec value as the implementation would hold it, and the implementation's, for every layout that fits."""
    if mesh is None:
        yield None, left, right
        return
    for placements in candidate_placements(left, right, mesh, allow_partial=True):
        try:
            yield placements, *oriented(pool, left, right, placements, mesh)
        except (UnsupportedError, UnalignedError, RecursionError):  # finders whose steps undo each other never end
            continue


def _proved(pool: TermPool, expected: View, found: View, *, search: bool) -> EqualityProof | None:
    """A proof without a search, in one round, by writing out all products, or by cases; else by the e-graph."""
    if equal_in_ring(pool, expected, found):
        return EqualityProof((("multiply-distributes", 1), ("sum-distributes", 1)), "ring")
    if search and equal_by_cases(expected, found):
        return EqualityProof((("equal-by-cases", 1),), "solver")
    return prove_equal(pool, expected, found) if search else None
