"""Proves two programs again from claims alone: no search for relations or equalities, no solver of its own.

What is recomputed is every value, by the declarations and the normal form with its lemmas. What is checked is every
claim: the relation of each output, and each equality that was found (``equalities.py``). Where both programs are cut
into parts (``parts.py``), parts that are alike are computed once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch.fx

from verifycompile.certificate.digests import Digests, digest
from verifycompile.certificate.parts import NO_CUTS, Cuts, PartError, Parts, Side
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Program, ProgramOutput
from verifycompile.refinement.attempt import Attempt, ClaimError, plain_pool
from verifycompile.refinement.definitions import Definitions
from verifycompile.refinement.placement import Placements

if TYPE_CHECKING:
    from verifycompile.certificate.equalities import Equality


@dataclasses.dataclass(frozen=True)
class _Given:
    """How the programs are cut, and what names terms in all attempts."""

    cuts: Cuts
    digests: Digests
    definitions: Definitions


@dataclasses.dataclass(frozen=True)
class Claims:
    """What is said of two programs: how the outputs lie, which values are equal, and where parts end."""

    placements: Mapping[str, Placements]
    equalities: Sequence[Equality] = ()
    cuts: Cuts = NO_CUTS


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


def replay(spec: Program, implementation: Program, claims: Claims, rules: Rules) -> Replay:
    """Prove that the implementation refines the spec. Raises ClaimError where a claim does not hold."""
    placements, equalities, cuts = claims.placements, claims.equalities, claims.cuts
    pool = plain_pool(implementation)
    pool.contraction_rules.append(rules.product)
    pool.combination_rules.append(rules.combination)
    if equalities:  # they were proved with all facts about indices known
        _learn_facts(spec, implementation, pool, placements)
    for equality in equalities:
        checker = Attempt(spec, implementation, pool, placements)
        nodes = _named(spec, equality.spec_node), _named(implementation, equality.impl_node)
        left, right = checker.value_of(*nodes)
        if left is None or right is None:
            raise ClaimError(f"`{equality.spec_node}` or `{equality.impl_node}` has no value")
        equality.take(pool, left, right, implementation.mesh, real=spec.is_real and implementation.is_real)
    if equalities and cuts != NO_CUTS:
        raise ClaimError("values are replaced by equal ones in programs that are cut into parts")
    definitions = Definitions(pool)
    checker = _proved(
        pool,
        lambda: _InParts(spec, implementation, pool, placements, _Given(cuts, rules.digests, definitions)),
    )
    return Replay(checker.relations, tuple(checker.assumptions()), checker.values())


def _learn_facts(spec: Program, implementation: Program, pool: TermPool, placements: Mapping[str, Placements]) -> None:
    """Lower both programs once, so that every fact about an index is known; what that proves is left to others."""
    while True:
        with contextlib.suppress(ClaimError):
            Attempt(spec, implementation, pool, placements).run()
        if not pool.learn():
            return


class _InParts(Attempt):
    """An attempt that lowers both programs part by part, and relates the outputs of a part in it."""

    def __init__(
        self,
        spec: Program,
        implementation: Program,
        pool: TermPool,
        placements: Mapping[str, Placements],
        given: _Given,
    ) -> None:
        super().__init__(spec, implementation, pool, placements)
        self._phases = iter((given.cuts.forward, given.cuts.backward))
        if given.cuts != NO_CUTS and (self.spec.sizes.reads_counts or self.implementation.sizes.reads_counts):
            raise PartError("numbers that are read from tensors hold in the whole program")
        self._parts = Parts(Side(self.spec), Side(self.implementation), given.digests, given.definitions)
        self._digests = given.digests
        self._settled: set[str] = set()

    def _lower(self, outputs: Sequence[ProgramOutput], implementations: Mapping[str, ProgramOutput]) -> None:
        pairs = [(output, implementations[output.name]) for output in outputs]
        for cut in next(self._phases):
            part = self._parts.enter(cut)
            calls = [set(nodes) for nodes in part.calls]
            held = [pair for pair in pairs if all(o.node in nodes for o, nodes in zip(pair, calls, strict=True))]
            for spec, implementation in held:
                if not self._relate_output(spec, implementation):
                    raise ClaimError(f"no relation of `{spec.name}`")
                self._settled.add(spec.name)
            self._parts.leave(part, self._open_nodes())
        rest = [pair for pair in pairs if pair[0].name not in self._settled]
        super()._lower([spec for spec, _ in rest], implementations)

    def _open_nodes(self) -> tuple[set[torch.fx.Node], set[torch.fx.Node]]:
        """Of both programs the nodes of outputs without a relation so far."""
        spec, implementation = (
            {o.node for o in lowering.program.outputs if o.name not in self._settled}
            for lowering in (self.spec, self.implementation)
        )
        return spec, implementation

    def _relate_output(self, spec: ProgramOutput, implementation: ProgramOutput) -> bool:
        return spec.name in self._settled or super()._relate_output(spec, implementation)

    def values(self) -> Mapping[str, str]:
        """Of both programs the values of all nodes, and the names of the lemmas by which they were found."""
        found = zip(self._parts.values, (self.spec, self.implementation), strict=True)
        spec, implementation = (digest([*within, *_values(lowering, self._digests)]) for within, lowering in found)
        return {"spec": spec, "implementation": implementation}


def _proved(pool: TermPool, attempt: Callable[[], _InParts]) -> _InParts:
    """All outputs related as claimed, with no more facts about indices than that takes. Raises ClaimError."""
    while True:
        checker = attempt()
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


def _values(lowering: Lowering, digests: Digests) -> list[Hashable]:
    return [
        (node.name, digests.value(value), [name for name, _ in lowering.lemmas.get(node, ())])
        for node, value in lowering.values.items()
    ]
