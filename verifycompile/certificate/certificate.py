"""What a proof leaves behind: both programs, what was found of them, and all that a search was needed for.

A certificate is made when it is first asked for, by proving both programs again from the claims of the first proof
(``replay.py``). Most proofs are never stored, and those cost nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verifycompile.certificate.instances import instance_to_data
from verifycompile.certificate.replay import Equality, Replay, replay
from verifycompile.certificate.storage import StorageError, placements_to_data, program_to_data
from verifycompile.program import Program
from verifycompile.refinement.lemma_stage import ProvedEquality
from verifycompile.refinement.result import RefinementResult
from verifycompile.rewrites import solver
from verifycompile.rewrites.catalogue import code_of

FORMAT_VERSION = 3

FIELDS = frozenset({
    "version", "spec", "implementation", "relations", "placements", "equalities", "facts", "steps", "assumptions",
    "seal",
})  # fmt: skip


class Certificate:
    """The stored proof that one program refines another: check it with ``verifycompile.check_certificate``.

    ``data`` is JSON: both programs (``spec``, ``implementation``), the ``relations`` of the outputs and their
    ``placements``, the ``equalities`` that the e-graph found, the ``facts`` of integer arithmetic that the solver
    proved, per node of each program a step with its value and the lemmas by which it was found, the ``assumptions``,
    and a ``seal``, the hash of all that.
    """

    def __init__(
        self, make: Callable[[], Mapping[str, Any]], relations: Mapping[str, str], assumptions: Sequence[str]
    ) -> None:
        self._make = make
        self.relations = relations
        self.assumptions = tuple(assumptions)

    @functools.cached_property
    def data(self) -> Mapping[str, Any]:
        """The content as JSON has it. Raises ValueError for a program that cannot be written down."""
        return self._make()

    @staticmethod
    def of(
        spec: Program, implementation: Program, result: RefinementResult, assumptions: tuple[str, ...]
    ) -> Certificate:
        """The certificate of a result without a mismatch. Raises ``ValueError`` for a result with one."""
        if result.mismatch is not None:
            raise ValueError("a result with a mismatch has no certificate")
        make = functools.partial(_content, spec, implementation, result, assumptions)
        return Certificate(make, result.relations, assumptions)

    @property
    def steps(self) -> tuple[Mapping[str, Any], ...]:
        """The values of all nodes, and the lemmas by which they were found."""
        return tuple(self.data["steps"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Certificate) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data["seal"])

    def to_json(self) -> str:
        """One JSON object. Raises ValueError for a program that cannot be written down."""
        return json.dumps(self.data, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Certificate:
        """Read what ``to_json`` wrote. Raises ``ValueError`` for anything else and for another format version."""
        data: Any = json.loads(text)
        if not isinstance(data, dict) or data.keys() != FIELDS:  # pyright: ignore[reportUnknownMemberType]
            raise ValueError("not a verifycompile certificate")
        if data["version"] != FORMAT_VERSION:
            raise ValueError(f"certificate format {data['version']} is not the supported format {FORMAT_VERSION}")
        return Certificate(lambda: data, data["relations"], data["assumptions"])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def seal_of(data: Mapping[str, Any]) -> str:
    """The hash of everything but the seal."""
    content = {name: value for name, value in data.items() if name != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
    with solver.listening() as facts:
        found = replay(spec, implementation, result.placements, equalities)
    if found.relations != result.relations:
        raise StorageError("the proof found other relations when it was made again")
    content = {
        "version": FORMAT_VERSION,
        **programs,
        "placements": {name: placements_to_data(item) for name, item in sorted(result.placements.items())},
        "equalities": [
            {
                **vars(equality),
                "placements": placements_to_data(equality.placements),
                "lemmas": list(equality.lemmas),
                "instances": [instance_to_data(instance) for instance in equality.instances],
            }
            for equality in equalities
        ],
        "facts": [json.loads(text) for text in facts],
        **claims_of(found),
        "assumptions": list(assumptions),
    }
    content = json.loads(json.dumps(content))  # as it is read back: no tuples, keys that are strings
    return {**content, "seal": seal_of(content)}


def claims_of(found: Replay) -> dict[str, Any]:
    """What a proof from claims gives, as JSON has it."""
    return {
        "relations": dict(found.relations),
        "steps": [{**vars(step), "lemmas": list(step.lemmas)} for step in found.steps],
    }
