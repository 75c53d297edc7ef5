"""What a proof leaves behind: its steps, as data that can be stored and read back."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import sympy
import torch
import torch.fx

from verifycompile.refinement.result import RefinementResult

FORMAT_VERSION = 1

JsonValue = bool | int | float | str | None | tuple["JsonValue", ...] | Mapping[str, "JsonValue"]


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The recorded steps of one proof.

    ``steps`` are the engine's own objects after a proof, and JSON values after ``from_json``; both have the same
    ``to_json``. A dataclass is written as an object with its class name under ``"$step"``, a size as sympy source, a
    graph node as its name. Writing is left to ``to_json`` because most proofs are never stored.
    """

    version: int
    spec_nodes: int
    impl_nodes: int
    relations: Mapping[str, str]
    assumptions: tuple[str, ...]
    steps: tuple[object, ...]

    @staticmethod
    def of(result: RefinementResult, assumptions: tuple[str, ...]) -> Certificate:
        """The certificate of a result without a mismatch.

        Raises ``ValueError`` for a result with one.
        """
        if result.mismatch is not None:
            raise ValueError("a result with a mismatch has no certificate")
        return Certificate(
            version=FORMAT_VERSION,
            spec_nodes=result.spec_nodes,
            impl_nodes=result.impl_nodes,
            relations=dict(result.relations),
            assumptions=assumptions,
            steps=result.steps,
        )

    def to_json(self) -> str:
        """One JSON object. Raises ``TypeError`` for a step that holds a value without a JSON form."""
        fields = {field.name: _encode(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return json.dumps(fields, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Certificate:
        """Read what ``to_json`` wrote. Raises ``ValueError`` for anything else and for another format version."""
        data: Any = json.loads(text)
        names = {field.name for field in dataclasses.fields(Certificate)}
        if not isinstance(data, dict) or data.keys() != names:  # pyright: ignore[reportUnknownMemberType]
            raise ValueError("not a verifycompile certificate")
        fields = cast("dict[str, Any]", data)
        if fields["version"] != FORMAT_VERSION:
            raise ValueError(f"certificate format {fields['version']} is not the supported format {FORMAT_VERSION}")
        return Certificate(
            version=FORMAT_VERSION,
            spec_nodes=fields["spec_nodes"],
            impl_nodes=fields["impl_nodes"],
            relations=fields["relations"],
            assumptions=tuple(fields["assumptions"]),
            steps=tuple(_freeze(step) for step in fields["steps"]),
        )


def _freeze(value: Any) -> JsonValue:
    """JSON arrays as tuples: a certificate is a value."""
    if isinstance(value, list):
        return tuple(_freeze(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        return {key: _freeze(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _encode(value: object) -> JsonValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return _encode(value.value)
    if isinstance(value, sympy.Basic):
        return str(value)
    if isinstance(value, torch.fx.Node):
        return value.name
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"$step": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return _encode_mapping(cast("Mapping[object, object]", value))
    if isinstance(value, Sequence):
        return tuple(_encode(item) for item in cast("Sequence[object]", value))
    raise TypeError(f"a certificate cannot hold a value of type {type(value).__name__}")


def _encode_mapping(value: Mapping[object, object]) -> JsonValue:
    """An object where every key is a string, else an array of pairs: distinct keys must stay distinct."""
    if all(isinstance(key, str) for key in value):
        return {str(key): _encode(item) for key, item in value.items()}
    return tuple((_encode(key), _encode(item)) for key, item in value.items())
