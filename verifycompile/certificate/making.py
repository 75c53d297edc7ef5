"""Certificates are made by proving both programs again from the claims of the first proof (``replay.py``)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from verifycompile.certificate.certificate import FORMAT_VERSION, Certificate, seal_of
from verifycompile.certificate.equalities import Equality
from verifycompile.certificate.recording import Recording, WrittenSteps
from verifycompile.certificate.replay import replay
from verifycompile.certificate.storage import StorageError, placements_to_data, program_to_data
from verifycompile.program import Program
from verifycompile.refinement.lemma_stage import ProvedEquality
from verifycompile.refinement.result import RefinementResult
from verifycompile.rewrites import registry, solver
from verifycompile.rewrites.codes import code_of


def certificate_of(
    spec: Program, implementation: Program, result: RefinementResult, assumptions: tuple[str, ...]
) -> Certificate:
    """The certificate of a result without a mismatch. Raises ``ValueError`` for a result with one."""
    if result.mismatch is not None:
        raise ValueError("a result with a mismatch has no certificate")
    make = functools.partial(_content, spec, implementation, result, assumptions)
    return Certificate(make, result.relations, assumptions)


def _content(
    spec: Program, implementation: Program, result: RefinementResult, assumptions: tuple[str, ...]
) -> Mapping[str, Any]:
    equalities = [
        Equality(
            s.spec_node,
            s.impl_node,
            s.placements,
            tuple(code_of(name) for name, _ in s.proof.lemmas),
            s.proof.instances,
        )
        for s in result.steps
        if isinstance(s, ProvedEquality)
    ]
    programs = {"spec": program_to_data(spec), "implementation": program_to_data(implementation)}
    recording = Recording()
    replay(spec, implementation, result.placements, equalities, recording)
    rules = WrittenSteps(recording)
    with solver.listening() as facts, registry.listening() as used:
        found = replay(spec, implementation, result.placements, equalities, rules)
    if rules.fault:
        raise StorageError(rules.fault)
    if found.relations != result.relations:
        raise StorageError("the proof found other relations when it was made again")
    content = {
        "version": FORMAT_VERSION,
        **programs,
        "placements": {name: placements_to_data(item) for name, item in sorted(result.placements.items())},
        "equalities": [equality.to_data() for equality in equalities],
        "facts": list(facts),
        "relations": dict(found.relations),
        "values": dict(found.values),
        "steps": rules.data,
        "views": rules.views,
        "families": sorted(used),
        "assumptions": list(assumptions),
    }
    content = json.loads(json.dumps(content))  # as it is read back: no tuples, keys that are strings
    return {**content, "seal": seal_of(content)}
