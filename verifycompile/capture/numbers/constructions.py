"""Models of one class that were constructed otherwise are other questions, although they run the same graph.

Dynamo takes what it compiled for one model where its guards hold for another one. A recovered spec rests on what no
guard of Dynamo's sees: with what its modules were constructed.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from torch import nn

from verifycompile.capture.numbers.plain_values import asked_before, changed_since_construction
from verifycompile.torch_interface.dynamo.frames import Frame
from verifycompile.torch_interface.dynamo.sources import SourcePath, paths_under_compilation
from verifycompile.torch_interface.guards.frame_guards import verify_again_unless
from verifycompile.torch_interface.ranks.constructed import last_constructed, recorded, resized, separated


def verify_again_where_constructions_differ(frame: Frame) -> None:
    """Adds a guard to ``frame``, which is under compilation, and whose spec is recovered.

    For the same modules nothing is compared again: how they were constructed stays, and Dynamo guards what they hold.
    """
    paths = _roots(frame)
    roots: list[nn.Module] = [path.value(frame) for path in paths]
    known = [_construction(root) for root in roots]
    verified = [weakref.ref(root) for root in roots]

    def check(local_values: dict[str, Any]) -> bool:
        call = dataclasses.replace(frame, locals=local_values)
        now = [path.value(call) for path in paths]
        if all(reference() is root for reference, root in zip(verified, now, strict=True)):
            return True
        return all(isinstance(root, nn.Module) for root in now) and [_construction(root) for root in now] == known

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


def _roots(frame: Frame) -> list[SourcePath]:
    """Where the frame found the modules that it reads, without those that others of them hold."""
    found: list[SourcePath] = []
    inside = set[int]()
    for path in sorted(
        paths_under_compilation(), key=lambda path: (len(path.steps), path.scope, path.variable, str(path.steps))
    ):
        value = path.value(frame)
        if isinstance(value, nn.Module) and id(value) not in inside:
            found.append(path)
            inside.update(id(module) for module in value.modules())
    return found
