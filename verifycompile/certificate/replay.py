"""Proves two programs again from claims alone: no parts, no search for relations or equalities, no solver of its own.

What is recomputed is every value, by the declarations and the normal form with its lemmas. What is checked is every
claim: the relation of each output, and each equality that was found (``refinement/ring.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch.fx

from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Program
from verifycompile.refinement.attempt import Attempt, ClaimError, plain_pool
from verifycompile.refinement.closure import Instance, alias_of, instances_prove
from verifycompile.refinement.encoding import encode
from verifycompile.refinement.placement import Placements, oriented
from verifycompile.refinement.ring import equal_in_ring
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS, CONTRACTION_LEMMAS
from verifycompile.rewrites.codes import code_of
from verifycompile.rewrites.registry import UnsupportedError
from verifycompile.rewrites.values import Group, Piece, Pieces


@dataclasses.dataclass(frozen=True)
class Equality:
    """The values of two nodes are equal under these placements (None: no mesh), by the lemmas named.

    ``instances``: of laws, by which they are; without any, they are equal in the ring.
    """

    spec_node: str
    impl_node: str
    placements: Placements | None
    lemmas: tuple[str, ...]
    instances: tuple[Instance, ...] = ()


@dataclasses.dataclass(frozen=True)
class Step:
    """What one node of a program was found to be, and the codes of the lemmas by which."""

    program: str
    node: str
    value: str
    lemmas: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a proof from claims gives."""

    relations: Mapping[str, str]
    assumptions: tuple[str, ...]
    steps: tuple[Step, ...]


def replay(
    spec: Program, implementation: Program, placements: Mapping[str, Placements], equalities: Sequence[Equality]
) -> Replay:
    """Prove that the implementation refines the spec. Raises ClaimError where a claim does not hold."""
    pool = _pool(implementation)
    if equalities:  # they were proved with all facts about indices known
        _learn_facts(spec, implementation, pool, placements)
    for equality in equalities:
        checker = Attempt(spec, implementation, pool, placements)
        nodes = _named(spec, equality.spec_node), _named(implementation, equality.impl_node)
        left, right = checker.value_of(*nodes)
        if left is None or right is None:
            raise ClaimError(f"`{equality.spec_node}` or `{equality.impl_node}` has no value")
        try:
            expected, found = oriented(pool, left, right, equality.placements, implementation.mesh)
        except (UnsupportedError, UnalignedError) as error:
            raise ClaimError(f"the equality of `{equality.impl_node}`: {error}") from error
        alias = alias_of(expected, found)
        if alias is None or found.term in pool.aliases or not _is_shown(pool, equality, expected, found):
            raise ClaimError(f"`{equality.impl_node}` is not shown to be `{equality.spec_node}`")
        pool.replace(found.term, alias)
    checker = _proved(spec, implementation, pool, placements)
    digests: dict[Term, str] = {}
    return Replay(
        checker.relations,
        tuple(checker.assumptions()),
        (*_steps("spec", checker.spec, digests), *_steps("implementation", checker.implementation, digests)),
    )


def _pool(implementation: Program) -> TermPool:
    pool = plain_pool(implementation)
    pool.contraction_rules.extend(CONTRACTION_LEMMAS)
    pool.combination_rules.extend(COMBINATION_LEMMAS)
    return pool


def _is_shown(pool: TermPool, equality: Equality, expected: View, found: View) -> bool:
    if not equality.instances:
        return equal_in_ring(pool, expected, found)
    encoded = encode(expected, found)
    return encoded is not None and instances_prove(pool, *encoded, equality.instances) is not None


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


def claims_of(found: Replay) -> dict[str, Any]:
    """What a proof from claims gives, as JSON has it."""
    return {
        "relations": dict(found.relations),
        "steps": [{**vars(step), "lemmas": list(step.lemmas)} for step in found.steps],
    }


# ------------------------------------------------------------------------------------------------ what was computed


def _steps(program: str, lowering: Lowering, digests: dict[Term, str]) -> list[Step]:
    found: list[Step] = []
    for node, value in lowering.values.items():
        lemmas = tuple(code_of(name) for name, _ in lowering.lemmas.get(node, ()))
        found.append(Step(program, node.name, _described(value, digests), lemmas))
    return found


def _described(value: Any, digests: dict[Term, str]) -> str:
    """A value as text that is equal for equal values, in every process."""
    if isinstance(value, View):
        return f"{value.coefficient} {_digest(value.term, digests)} {value.shape} {value.axes}"
    if isinstance(value, Pieces):
        return f"pieces of {_described(value.view, digests)}"
    if isinstance(value, Piece):
        return "a piece"
    if isinstance(value, Group):
        return f"group {value.axes}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_described(item, digests) for item in value)})"  # pyright: ignore[reportUnknownVariableType]
    return f"{type(value).__name__} {value}"


def _digest(wanted: Term, digests: dict[Term, str]) -> str:
    """The content of a term and of all that it is made of."""
    pending = [wanted]
    while pending:
        term = pending[-1]
        missing = [v.term for v in term.operands if v.term not in digests]
        if missing and term not in digests:
            pending.extend(missing)
            continue
        pending.pop()
        operands = [(str(v.coefficient), digests[v.term], str(v.axes)) for v in term.operands]
        content = (
            term.operation.name, [str(a) for a in term.attributes], operands, [str(s) for s in term.index_sizes],
            term.free, term.summed, term.cores, term.fresh,
        )  # fmt: skip
        digests[term] = hashlib.sha256(repr(content).encode()).hexdigest()[:24]
    return digests[wanted]
