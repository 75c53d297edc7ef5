"""Proves two programs again from claims alone: no search for relations or equalities, no solver of its own.

What is recomputed is every value, by the declarations and the normal form with its lemmas. What is checked is every
claim: the relation of each output, and each equality that was found (``equalities.py``). Where both programs are cut
into parts (``parts.py``), parts that are alike are computed once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch.fx

from verifycompile.certificate.digests import Digests, digest
from verifycompile.certificate.lemma_steps import LemmaSteps
from verifycompile.certificate.parts import NO_CUTS, Cuts, PartError, Parts, Side
from verifycompile.ir.term import TermPool
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Program, ProgramOutput
from verifycompile.refinement.attempt import Attempt, ClaimError, plain_pool
from verifycompile.refinement.definitions import Definitions
from verifycompile.refinement.placement import Placements


@dataclasses.dataclass(frozen=True)
class Claims:
    """What is said of two programs: how the outputs lie, which values are equal, as data, and where parts end."""

    placements: Mapping[str, Placements]
    equalities: Sequence[Mapping[str, Any]] = ()
    cuts: Cuts = NO_CUTS


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a proof from claims gives."""

    relations: Mapping[str, str]
    assumptions: tuple[str, ...]
    values: Mapping[str, str]
    """Of each program, what its nodes were found to be, and by which lemmas, as one digest."""


def replay(spec: Program, implementation: Program, claims: Claims, rules: LemmaSteps) -> Replay:
    """Prove that the implementation refines the spec. Raises ClaimError where a claim does not hold."""
    placements, equalities, cuts = claims.placements, claims.equalities, claims.cuts
    pool = plain_pool(implementation)
    pool.contraction_rules.append(rules.product)
    pool.combination_rules.append(rules.combination)
    if equalities:
        from verifycompile.certificate.equalities import take_all  # here, because few proofs have any

        take_all(equalities, spec, implementation, pool, placements)
        if cuts != NO_CUTS:
            raise ClaimError("values are replaced by equal ones in programs that are cut into parts")
    definitions = Definitions(pool)
    checker = _proved(pool, lambda: _InParts(spec, implementation, claims, rules.digests, definitions))
    return Replay(checker.relations, tuple(checker.assumptions()), checker.values())


class _InParts(Attempt):
    """An attempt that lowers both programs part by part, and relates the outputs of a part in it."""

    def __init__(
        self, spec: Program, implementation: Program, claims: Claims, digests: Digests, definitions: Definitions
    ) -> None:
        super().__init__(spec, implementation, definitions.pool, claims.placements)
        self._phases = iter((claims.cuts.forward, claims.cuts.backward))
        if claims.cuts != NO_CUTS and (self.spec.sizes.reads_counts or self.implementation.sizes.reads_counts):
            raise PartError("numbers that are read from tensors hold in the whole program")
        self._parts = Parts(Side(self.spec), Side(self.implementation), digests, definitions)
        self._digests = digests
        self._settled: set[str] = set()
        self._outputs: list[dict[torch.fx.Node, list[ProgramOutput]]] = [{}, {}]
        """Of both programs, by their nodes."""
        for found, program in zip(self._outputs, (spec, implementation), strict=True):
            for output in program.outputs:
                found.setdefault(output.node, []).append(output)

    def _lower(self, outputs: Sequence[ProgramOutput], implementations: Mapping[str, ProgramOutput]) -> None:
        wanted = {output.name for output in outputs}
        for cut in next(self._phases):
            part = self._parts.enter(cut)
            spec, held = map(self._open_outputs, self._outputs, part.calls)
            for output in (output for name, output in spec.items() if name in held and name in wanted):
                if not self._relate_output(output, implementations[output.name]):
                    raise ClaimError(f"no relation of `{output.name}`")
                self._settled.add(output.name)
            spec, held = map(self._open_outputs, self._outputs, part.calls)
            self._parts.leave(part, ({o.node for o in spec.values()}, {o.node for o in held.values()}))
        rest = [output for output in outputs if output.name not in self._settled]
        for output in rest:
            self._parts.sides[0].separate(output.node)
            self._parts.sides[1].separate(implementations[output.name].node)
        super()._lower(rest, implementations)

    def _open_outputs(
        self, outputs: Mapping[torch.fx.Node, Sequence[ProgramOutput]], nodes: Sequence[torch.fx.Node]
    ) -> Mapping[str, ProgramOutput]:
        """Those that are values of these nodes and have no relation so far."""
        return {o.name: o for node in nodes for o in outputs.get(node, ()) if o.name not in self._settled}

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


def _values(lowering: Lowering, digests: Digests) -> list[Hashable]:
    return [
        (node.name, digests.value(value), [name for name, _ in lowering.lemmas.get(node, ())])
        for node, value in lowering.values.items()
    ]
