"""What a traced Python frame leaves behind: the values in what it returns and in the objects that it changes, by place.

Two programs number the results of their graphs in the order in which they make or return them. Which of them belong
together is said by their places: the same key of a dictionary, the same position of a tuple, the same attribute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch.fx
from torch._dynamo.source import TempLocalSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable

Place = tuple[int | str, ...]
"""Positions, keys (as Python writes them) and attributes (``.name``), outermost first."""


def shown_place(place: Place) -> str:
    """For messages, as `` at [1].logits``; "" for the result itself."""
    if not place:
        return ""
    return " at " + "".join(item if str(item).startswith(".") else f"[{item}]" for item in map(str, place))


@dataclasses.dataclass(frozen=True)
class Constant:
    """A number, a text or None."""

    value: int | float | str | None


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A number that the frame computes from sizes that are not fixed, or reads from a tensor."""


Leaf = torch.fx.Node | Constant | Symbol


@dataclasses.dataclass(frozen=True)
class LeftBehind:
    """``returned``: what the return value holds. ``changed``: tensors put into objects that were there before.

    The places in ``changed`` begin with where the object comes from. Where a graph break ends the graph, they are also
    local variables and positions of the stack, with which the rest of the frame goes on.
    """

    returned: Mapping[Place, Leaf] = dataclasses.field(default_factory=dict[Place, Leaf])
    changed: Mapping[Place, Leaf] = dataclasses.field(default_factory=dict[Place, Leaf])


def left_behind(root: Any) -> LeftBehind:
    """Of the frame that ``root`` translates: at its end, or where a graph break ends the graph."""
    effects = root.output.side_effects
    if root.instruction_pointer is None and len(root.stack) == 1:
        changed: dict[Place, Leaf] = {}
        returned = dict(_leaves(root.stack[0], (), effects.store_attr_mutations, frozenset()))
    else:
        variables = {**dict(enumerate(root.stack)), **root.symbolic_locals}
        handed: dict[Place, Any] = {(name,): variable for name, variable in variables.items()}
        changed = _tensors(handed, effects)
        returned = {}
    sources = ((getattr(variable, "source", None), variable) for variable in list(effects.id_to_variable.values()))
    objects: dict[Place, Any] = {
        (repr(source),): variable
        for source, variable in sources
        if source is not None and not isinstance(source, TempLocalSource) and effects.is_modified(variable)
    }
    return LeftBehind(returned, {**changed, **_tensors(objects, effects)})


def _tensors(variables: Mapping[Place, Any], effects: Any) -> dict[Place, Leaf]:
    return {
        inner: leaf
        for place, variable in variables.items()
        for inner, leaf in _leaves(variable, place, effects.store_attr_mutations, frozenset())
        if isinstance(leaf, torch.fx.Node)
    }


def _leaves(
    variable: Any, place: Place, attributes: Mapping[Any, Mapping[str, Any]], above: frozenset[int]
) -> Iterator[tuple[Place, Leaf]]:
    if isinstance(variable, LazyVariableTracker):
        if not variable.is_realized():
            return  # as it came in
        variable = variable.realize()
    if not isinstance(variable, VariableTracker) or id(variable) in above:
        return
    inside = above | {id(variable)}
    if variable.is_tensor():
        yield place, variable.as_proxy().node
        return
    if isinstance(variable, SymNodeVariable):
        yield place, Symbol()
        return
    if isinstance(variable, ConstantVariable):
        value = variable.value
        yield place, Constant(value if value is None or isinstance(value, int | float | str) else repr(value))
        return
    held = getattr(variable, "_base_vt", None)  # of an object of a class that is derived from one of Python's
    if held is not None:
        yield from _leaves(held, place, attributes, inside)
    elif isinstance(variable, BaseListVariable):
        for position, item in enumerate(variable.items):
            yield from _leaves(item, (*place, position), attributes, inside)
    elif isinstance(variable, ConstDictVariable):
        for key, item in variable.items.items():
            yield from _leaves(item, (*place, _text_of_key(key)), attributes, inside)
    for name, item in attributes.get(variable, {}).items():
        yield from _leaves(item, (*place, f".{name}"), attributes, inside)


def _text_of_key(key: Any) -> str:
    held = getattr(key, "vt", key)
    return repr(held.as_python_constant()) if held.is_python_constant() else repr(held)
