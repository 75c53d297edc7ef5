"""Models of one class that were constructed otherwise are other questions, although they run the same graph.

Dynamo takes what it compiled for one model where its guards hold for another one. A recovered spec rests on what no
guard of Dynamo's sees: with what its modules were constructed.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import nn

from verifycompile.capture.numbers import asked_before, changed_since_construction
from verifycompile.torch_interface.constructed import last_constructed, recorded, resized, separated
from verifycompile.torch_interface.dynamo import Frame
from verifycompile.torch_interface.frame_guards import verify_again_unless


def verify_again_where_constructions_differ(frame: Frame) -> None:
    """Adds a guard to ``frame``, which is under compilation, and whose spec is recovered.

    For the same modules nothing is compared again: how they were constructed stays, and Dynamo guards what they hold.
    """
    roots = _modules_in(frame.locals.values())
    known = [_construction(root) for root in roots]
    verified = [weakref.ref(root) for root in roots]

    def check(local_values: dict[str, Any]) -> bool:
        now = _modules_in(local_values.values())
        if len(now) != len(verified):
            return False
        if all(reference() is root for reference, root in zip(verified, now, strict=True)):
            return True
        return [_construction(root) for root in now] == known

    if roots:
        verify_again_unless([check], "the modules were constructed as those that were verified")


def _construction(root: nn.Module) -> list[object]:
    """What the recovery of a spec reads of how a module and those in it were constructed, by position."""
    modules = list(root.modules())
    position = {id(module): number for number, module in enumerate(modules)}
    places = changed_since_construction(modules)
    changed = [(position[id(place.owner)], place.steps, place.constructed) for place in places]
    apart = [[(position[id(owner)], name) for owner, name in pair] for pair in separated(modules)]
    of_each = [
        (type(module), bool(recorded(module)), bool(asked_before(last_constructed(module))), list(resized(module)))
        for module in modules
    ]
    return [changed, apart, of_each]


def _modules_in(values: Iterable[object]) -> list[nn.Module]:
    """Those among ``values``, and those that a list, a mapping or an object among them holds."""
    return [module for value in values for module in _held(value)]


def _held(value: object) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
        return
    if isinstance(value, torch.Tensor | types.ModuleType | type):
        return
    held = value if isinstance(value, dict | list | tuple) else getattr(value, "__dict__", ())
    items = held.values() if isinstance(held, dict) else held
    yield from (item for item in cast("Iterable[object]", items) if isinstance(item, nn.Module))
