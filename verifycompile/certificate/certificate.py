"""What a proof leaves behind: both programs, what was found of them, and all that a search was needed for.

A certificate is made when it is first asked for (``making.py``). Most proofs are never stored, and those cost nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FORMAT_VERSION = 4

FIELDS = frozenset({
    "version", "spec", "implementation", "relations", "placements", "equalities", "facts", "steps", "assumptions",
    "families", "seal",
})  # fmt: skip


class Certificate:
    """The stored proof that one program refines another: check it with ``verifycompile.check_certificate``.

    ``data`` is JSON: both programs (``spec``, ``implementation``), the ``relations`` of the outputs and their
    ``placements``, the ``equalities`` that the e-graph found, the ``facts`` of integer arithmetic that the solver
    proved, per node of each program a step with its value and the lemmas by which it was found, the ``assumptions``,
    the ``families`` of declarations that were used, and a ``seal``, the hash of all that.
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
