"""Certificates are made by proving both programs again from the claims of the first proof (``replay.py``)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from verifycompile.certificate.certificate import FORMAT_VERSION, Certificate, seal_of
from verifycompile.certificate.memory import with_derived_memory
from verifycompile.certificate.parts import NO_CUTS, Cut, Cuts
from verifycompile.certificate.recording import Recording, WrittenSteps
from verifycompile.certificate.replay import Claims, Replay, replay
from verifycompile.certificate.storage import StorageError, program_from_data
from verifycompile.certificate.waits import require_waits
from verifycompile.certificate.writing import in_order, placements_to_data, program_to_data
from verifycompile.collection import collection_paused
from verifycompile.program import Program
from verifycompile.refinement.attempt import ClaimError
from verifycompile.refinement.lemma_stage import ProvedEquality
from verifycompile.refinement.placement import Placements
from verifycompile.refinement.result import PartEnd, PartsFound, RefinementResult
from verifycompile.rewrites import registry
from verifycompile.rewrites.codes import code_of
from verifycompile.rewrites.interpretation import Expression
from verifycompile.rewrites.side_conditions import solver


def certificate_of(
    spec: Program, implementation: Program, result: RefinementResult, assumptions: tuple[str, ...]
) -> Certificate:
    """The certificate of a result without a mismatch. Raises ``ValueError`` for a result with one."""
    if result.mismatch is not None:
        raise ValueError("a result with a mismatch has no certificate")
    make = functools.partial(_content, spec, implementation, result, assumptions)
    return Certificate(make, result.relations, assumptions)


@collection_paused()
def _content(
    spec: Program, implementation: Program, result: RefinementResult, assumptions: tuple[str, ...]
) -> Mapping[str, Any]:
    equalities = [_equality_to_data(step) for step in result.steps if isinstance(step, ProvedEquality)]
    parts = result.parts
    cuts = NO_CUTS if parts is None else _cuts(spec, implementation, parts)
    orders = (parts.spec, parts.implementation) if parts is not None else ((), ())
    ends = _ends(cuts)
    written = [with_derived_memory(program_to_data(*p)) for p in zip((spec, implementation), orders, ends, strict=True)]
    proof = _Proof(written, result.placements, equalities)
    try:
        made = proof.made_again(cuts)
    except (ClaimError, StorageError):
        if cuts == NO_CUTS:
            raise
        cuts = NO_CUTS  # a part may be too much for the checker, which asks more of it
        made = proof.made_again(cuts)
    found = made.replay
    if found.relations != result.relations:
        raise StorageError("the proof found other relations when it was made again")
    content = {
        "version": FORMAT_VERSION,
        "spec": written[0],
        "implementation": written[1],
        "placements": {name: placements_to_data(item) for name, item in sorted(result.placements.items())},
        "equalities": equalities,
        "facts": made.facts,
        "parts": _cuts_to_data(cuts),
        "relations": dict(found.relations),
        "values": dict(found.values),
        "steps": made.rules.data,
        "views": made.rules.views,
        "families": made.families,
        "assumptions": list(assumptions),
    }
    content = json.loads(json.dumps(content))  # as it is read back: no tuples, keys that are strings
    return {**content, "seal": seal_of(content)}


def _cuts(spec: Program, implementation: Program, parts: PartsFound) -> Cuts:
    """Where parts end, counted in the calls that are written."""
    counts: list[list[int]] = []
    for program, order in ((spec, parts.spec), (implementation, parts.implementation)):
        calls = [node for node in in_order(program, order) if node.op == "call_function"]
        number = {node: position + 1 for position, node in enumerate(calls)}
        counts.append([0, *itertools.accumulate((number.get(node, 0) for node in order), max)])

    def cuts(ends: Sequence[PartEnd]) -> tuple[Cut, ...]:
        return tuple(Cut(counts[0][e.spec], counts[1][e.implementation], e.alike) for e in ends)

    return Cuts(cuts(parts.forward), cuts(parts.backward))


def _ends(cuts: Cuts) -> tuple[Sequence[int], Sequence[int]]:
    """Of both programs after how many calls parts end."""
    found = (*cuts.forward, *cuts.backward)
    return [cut.spec for cut in found], [cut.implementation for cut in found]


def _cuts_to_data(cuts: Cuts) -> Mapping[str, Any]:
    written = {"forward": cuts.forward, "backward": cuts.backward}
    return {phase: [[c.spec, c.implementation, c.alike] for c in found] for phase, found in written.items()}


def _equality_to_data(equality: ProvedEquality) -> Mapping[str, Any]:
    return {
        "spec_node": equality.spec_node,
        "impl_node": equality.impl_node,
        "placements": placements_to_data(equality.placements),
        "order": equality.order,
        "lemmas": [code_of(name) for name, _ in equality.proof.lemmas],
        "instances": [
            {"law": instance.code, "values": {name: _expression_to_data(v) for name, v in instance.values.items()}}
            for instance in equality.proof.instances
        ],
    }


def _expression_to_data(expression: Expression) -> Any:
    if isinstance(expression, Fraction):
        return {"number": str(expression)}
    return [_expression_to_data(part) for part in expression] if isinstance(expression, tuple) else expression


@dataclasses.dataclass(frozen=True)
class _Made:
    """A proof from steps: what it gave, the steps that it needed, its facts, and families of declarations."""

    replay: Replay
    rules: WrittenSteps
    facts: list[str]
    families: list[str]


@dataclasses.dataclass(frozen=True)
class _Proof:
    """A proof of two written programs."""

    programs: Sequence[Mapping[str, Any]]
    placements: Mapping[str, Placements]
    equalities: Sequence[Mapping[str, Any]]

    def made_again(self, cuts: Cuts) -> _Made:
        """Once with finders, which find the steps, and once from the steps, on what the checker will read.

        Raises ClaimError and StorageError.
        """
        spec, implementation = map(program_from_data, self.programs)
        for program in (spec, implementation):
            require_waits(program)  # one that reads a result behind the wait of another call is not written down
        recording, claims = Recording(), Claims(self.placements, self.equalities, cuts)
        replay(spec, implementation, claims, recording)
        rules = WrittenSteps(recording)
        with solver.listening() as facts, registry.listening() as used:
            found = replay(spec, implementation, claims, rules)
        if rules.fault:
            raise StorageError(rules.fault)
        return _Made(found, rules, list(facts), sorted(used))
