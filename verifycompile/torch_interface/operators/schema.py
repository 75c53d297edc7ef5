"""Schemas of ATen operators: names, defaults and mutability of their arguments; which of them draw random numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of a schema. ``default`` means something only where ``has_default`` holds."""

    name: str
    kwarg_only: bool
    has_default: bool
    default: Any


@functools.cache
def arguments_of(target: object) -> tuple[Argument, ...] | None:
    """Arguments in the order of the schema; None for a call target that is no operator overload."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    return tuple(
        Argument(a.name, a.kwarg_only, a.has_default_value(), a.default_value if a.has_default_value() else None)
        for a in target._schema.arguments
    )


@functools.cache
def names_of(target: object) -> tuple[str, ...]:
    """Names of the arguments in the order of the schema; none for what is no operator overload."""
    return tuple(argument.name for argument in arguments_of(target) or ())


@functools.cache
def is_mutable(target: object) -> bool:
    """Whether a call of ``target`` writes to one of its operands."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def draws_random_numbers(target: object, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a call depends on the random stream, not on its operands alone.

    Dropout and attention draw nothing where the probability to drop is zero.
    """
    if not is_random(target):
        return False
    for position, argument in enumerate(arguments_of(target) or ()):
        if argument.name in ("p", "dropout_p"):
            value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default)
            return value != 0.0
    return True


@functools.cache
def is_random(target: object) -> bool:
    """Whether an operator draws from a random number generator."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
