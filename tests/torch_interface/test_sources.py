"""Where Dynamo found a value, as a path from a variable."""

from __future__ import annotations

import enum
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch._guards import TracingContext

from tests.torch_interface.test_dynamo import Scale, run_in_backend
from verifycompile.torch_interface.dynamo.frames import frame_under_compilation
from verifycompile.torch_interface.dynamo.sources import SourcePath, size_of, source_name, source_of
from verifycompile.torch_interface.guards.guarded_values import guarded_values


def test_source_names() -> None:
    names = run_in_backend(
        Scale(),
        torch.ones(3),
        use=lambda graph, inputs: [source_name(node) for node in graph.graph.find_nodes(op="placeholder")],
    )
    assert sorted(names) == ["L['self']._parameters['weight']", "L['x']"]


class Kind(enum.Enum):
    WIDE = 1


class Numbers(list[int]):
    """A list whose items Dynamo reads by ``list.__getitem__``."""


class Held(nn.Module):
    of_class = 2.5

    def __init__(self) -> None:
        super().__init__()
        self.numbers = Numbers([3, 4])
        self.by_name = {"it's": 5.5, 7: 6.5}
        self.by_kind = {Kind.WIDE: 8.5}
        self.namespace = types.SimpleNamespace(depth=9.5)
        setattr(self, "odd name", 10.5)


def _default(x: torch.Tensor, factor: float = 11.5) -> torch.Tensor:
    return x * factor


READS: dict[str, Any] = {
    "held.of_class": lambda held, x: x * held.of_class,
    "held.numbers.1": lambda held, x: x * held.numbers[1],
    "held.by_name.it's": lambda held, x: x * held.by_name["it's"],
    "held.by_name.7": lambda held, x: x * held.by_name[7],
    "held.namespace.depth": lambda held, x: x * held.namespace.depth,
    "held.odd name": lambda held, x: x * getattr(held, "odd name"),
    "_default.__defaults__.0": lambda held, x: _default(x),
}


@pytest.mark.parametrize("name", READS)
def test_paths_of_what_was_read(name: str) -> None:
    def use(graph: torch.fx.GraphModule, inputs: object) -> dict[str, object]:
        frame = frame_under_compilation()
        context = TracingContext.get()
        return {one.path.dotted(): one.path.value(frame) for one in guarded_values(context)}

    found = run_in_backend(READS[name], Held(), torch.ones(3), use=use)
    assert isinstance(found.get(name), int | float), sorted(found)


def test_sizes() -> None:
    def use(graph: torch.fx.GraphModule, inputs: object) -> set[str]:
        sizes = [size_of(source_of(node)) for node in graph.graph.find_nodes(op="placeholder")]
        return {f"{source.name} {what}" for source, what in filter(None, sizes)}

    x = torch.ones(3, 4)
    torch._dynamo.mark_dynamic(x, 1)
    assert run_in_backend(lambda x: x + x.shape[1], x, use=use) == {"L['x'] size(1)"}


def test_what_is_no_path() -> None:
    assert SourcePath.of(None) is None
