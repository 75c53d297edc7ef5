"""What a proof leaves behind: both programs, what was found of them, and all that a search was needed for.

A certificate is made when it is first asked for (``making.py``). Most proofs are never stored, and those cost nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FORMAT_VERSION = 12

_LONGEST = 500_000
"""Characters."""

FIELDS = frozenset({
    "version", "spec", "implementation", "relations", "placements", "equalities", "facts", "steps", "assumptions",
    "families", "values", "views", "parts", "seal",
})  # fmt: skip


class Certificate:
    """The stored proof that one program refines another: check it with ``verifycompile.check_certificate``.

    ``data`` is JSON: both programs (``spec``, ``implementation``), the ``relations`` of the outputs and their
    ``placements``, the ``equalities`` that the e-graph found, the ``facts`` of integer arithmetic that the solver
    proved, the ``steps`` by lemmas, each (node, lemma, substitution, position) with numbers of ``views``, of each
    program a digest of the ``values`` of its nodes, the ``parts`` into which both are cut, the ``assumptions``, the
    ``families`` of declarations that were used, and a ``seal``, the hash of all that.
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

    @property
    def steps(self) -> tuple[Mapping[str, Any], ...]:
        """Each lemma that was applied: at which node and position, and with which substitution."""
        return tuple(self.data["steps"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Certificate) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data["seal"])

    def to_json(self) -> str:
        """One JSON object; a long one is packed. Raises ValueError for a program that cannot be written down."""
        text = json.dumps(self.data, sort_keys=True)
        if len(text) <= _LONGEST:
            return text
        from verifycompile.certificate.packing import packed  # here, because few certificates are long

        return json.dumps({"packed": packed(text)})

    @staticmethod
    def from_json(text: str) -> Certificate:
        """Read what ``to_json`` wrote. Raises ``ValueError`` for anything else and for another format version."""
        data: Any = json.loads(text)
        if isinstance(data, dict) and data.keys() == {"packed"}:
            from verifycompile.certificate.packing import unpacked  # the same

            data = json.loads(unpacked(str(data["packed"])))
        if not isinstance(data, dict) or data.keys() != FIELDS:
            raise ValueError("not a verifycompile certificate")
        if data["version"] != FORMAT_VERSION:
            raise ValueError(f"certificate format {data['version']} is not the supported format {FORMAT_VERSION}")
        return Certificate(lambda: data, data["relations"], data["assumptions"])


def seal_of(data: Mapping[str, Any]) -> str:
    """The hash of everything but the seal."""
    content = {name: value for name, value in data.items() if name != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
