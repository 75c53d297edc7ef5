"""The checker of certificates. It uses the declarations, the normal form and the lemmas, and no search engine.

Trusted are the declarations of operators, the normal form with its lemmas (``ir``, ``rewrites``), and this package.
Not trusted, because made again or checked: how the programs were cut into parts, where relations were looked for, the
e-graph, and what the certificate says of any value. The solver's facts are listed; each must hold at many points, and
``solver=True`` asks z3 for each of them again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from verifycompile.certificate.annotations import check_annotations
from verifycompile.certificate.certificate import Certificate, seal_of
from verifycompile.certificate.lemma_steps import LemmaSteps, steps_from_data
from verifycompile.certificate.parts import cuts_from_data
from verifycompile.certificate.replay import Claims, Replay, replay
from verifycompile.certificate.statement import Statement, statement_of
from verifycompile.certificate.storage import StorageError, placements_from_data, program_from_data, require_needed
from verifycompile.certificate.waits import require_waits
from verifycompile.collection import collection_paused
from verifycompile.program import Program
from verifycompile.refinement.attempt import ClaimError
from verifycompile.rewrites import families, registry
from verifycompile.rewrites.side_conditions import solver
from verifycompile.rewrites.side_conditions.trials import counterexample

_MAX_POINTS = 400


@dataclasses.dataclass(frozen=True)
class CertificateCheck(Statement):
    """Whether a certificate holds; true as a truth value exactly then. ``reason``: why it does not.

    What holds says what it covers: the names of ``outputs``, ``gradients`` and ``mutations``, where the ``inputs``
    lie on the ``mesh``, the ``assumptions``, and the ``facts`` of integer arithmetic that were taken from the solver.
    """

    valid: bool = False
    reason: str = ""
    assumptions: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.valid

    def __str__(self) -> str:
        if not self.valid:
            return f"the certificate does not hold: {self.reason}"
        covered = {
            "outputs": self.outputs,
            "gradients": self.gradients,
            "mutations": self.mutations,
            "inputs": tuple(f"{name} = {whole}" for name, whole in self.inputs.items()),
            "mesh": (self.mesh,) if self.mesh else (),
            "question": (self.question,),
            "sizes": self.sizes,
        }
        lines = [f"  {name}: {', '.join(items)}" for name, items in covered.items() if items]
        lines += [f"  assumption: {text}" for text in self.assumptions]
        lines += [f"  fact of the solver: {text}" for text in self.facts]
        return "\n".join(("the certificate holds", *lines))


_WHAT = "a certificate is `report.certificate` of a verified program, or the text that its `to_json()` returns"


class _RejectedError(Exception):
    pass


@collection_paused()
def check_certificate(certificate: Certificate | str, *, solver: bool = False) -> CertificateCheck:
    """Check a certificate, or its JSON text. ``solver``: ask z3 again for every fact that the certificate lists."""
    if not isinstance(certificate, (Certificate, str)):  # pyright: ignore[reportUnnecessaryIsInstance] - not everyone checks types
        return CertificateCheck(reason=f"{_WHAT}, and this is of type {type(certificate).__name__}")
    try:
        data = (Certificate.from_json(certificate) if isinstance(certificate, str) else certificate).data
        return _check(data, solver)
    except (_RejectedError, ClaimError, StorageError) as error:
        return CertificateCheck(reason=str(error))
    except json.JSONDecodeError:
        return CertificateCheck(reason=f"{_WHAT}, and this text is no JSON")
    except Exception as error:  # noqa: BLE001 - data that nothing was written for; whatever fails here is rejected
        return CertificateCheck(reason=f"no certificate: {type(error).__name__}: {error}")


def _check(data: Mapping[str, Any], ask: bool) -> CertificateCheck:
    if data["seal"] != seal_of(data):
        raise _RejectedError("its content is not what was sealed")
    spec, implementation = program_from_data(data["spec"]), program_from_data(data["implementation"])
    placements = {name: found for name, item in data["placements"].items() if (found := placements_from_data(item))}
    statement = statement_of(spec, implementation, placements)
    for program in (spec, implementation):
        check_annotations(program)
        require_needed(program)
        require_waits(program)
    claims = Claims(placements, data["equalities"], cuts_from_data(data["parts"]))
    rules = LemmaSteps(steps_from_data(data["steps"], data["views"]))
    listed = set(map(str, data["facts"]))
    families.load(data["families"])
    with solver.answering(listed), solver.listening() as used, registry.listening() as families_used:
        found = _replayed(spec, implementation, claims, rules)
    for question in used.values():
        _check_fact(question, ask)
    if used.keys() != listed or len(listed) != len(data["facts"]):
        raise _RejectedError("it lists a fact that nothing needs")
    if sorted(families_used) != data["families"]:
        raise _RejectedError("it lists other families of declarations than the proof has used")
    if rules.unused:
        raise _RejectedError(f"it lists a step at `{rules.unused[0].node}` that nothing needs")
    if dict(found.relations) != data["relations"]:
        raise _RejectedError("its relations are other ones")
    if dict(found.values) != data["values"]:
        raise _RejectedError("its values are other ones")
    missing = [text for text in found.assumptions if text not in data["assumptions"]]
    if missing:
        raise _RejectedError(f"it does not list the assumption: {missing[0]}")
    return CertificateCheck(
        **vars(statement), valid=True, assumptions=tuple(map(str, data["assumptions"])), facts=tuple(sorted(used))
    )


def _replayed(spec: Program, implementation: Program, claims: Claims, rules: LemmaSteps) -> Replay:
    """The proof made again. What is wrong with a step says more than what could not be proved without it."""
    try:
        found = replay(spec, implementation, claims, rules)
    except ClaimError as error:
        raise _RejectedError(rules.fault or str(error)) from error
    if rules.fault:
        raise _RejectedError(rules.fault)
    return found


# ------------------------------------------------------------------------------------------------ facts


def _check_fact(question: solver.Question, ask: bool) -> None:
    values = counterexample(question.claim, dict(question.sizes), _MAX_POINTS)
    if values is not None:
        raise _RejectedError(f"a fact is wrong where {values}")
    if ask and not solver.follows(question.text):
        raise _RejectedError("a fact is not proved by the solver")
