"""Instances of laws as JSON: an expression is a list, a rational number an object with its text."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from verifycompile.certificate.storage import StorageError
from verifycompile.refinement.closure import Instance
from verifycompile.rewrites.interpretation import Expression


def instance_to_data(instance: Instance) -> dict[str, Any]:
    """An instance as JSON has it."""
    return {"law": instance.code, "values": {name: _to_data(value) for name, value in instance.values.items()}}


def instance_from_data(data: Mapping[str, Any]) -> Instance:
    """The instance that was written. Raises StorageError."""
    return Instance(str(data["law"]), {str(name): _from_data(value) for name, value in data["values"].items()})


def _to_data(expression: Expression) -> Any:
    if isinstance(expression, Fraction):
        return {"number": str(expression)}
    return [_to_data(part) for part in expression] if isinstance(expression, tuple) else expression


def _from_data(data: Any) -> Expression:
    if isinstance(data, dict):
        return Fraction(data["number"])
    if isinstance(data, list):
        return tuple(_from_data(part) for part in data)
    if isinstance(data, bool) or not isinstance(data, (int, str)):
        raise StorageError(f"no expression: {data!r}")
    return data
