"""Options that are written into after a compile: what was verified for the ones before answers no other question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import RefinementError

Change = Callable[[dict[str, Any]], object]
CHANGES: dict[str, Change] = {
    "the placement of an input": lambda options: options["in_placements"].update(x=(Replicate(),)),
    "the placement of a result": lambda options: options["out_placements"].update({"output.0": (Replicate(),)}),
    "an option in place of another": lambda options: options.update(out_placements={"output.0": (Replicate(),)}),
    "within a list": lambda options: options["out_placements"]["output.0"].__setitem__(0, Replicate()),
}


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


@pytest.mark.parametrize("name", CHANGES)
def test_options_that_were_changed_are_asked_about(name: str) -> None:
    with fake_mesh_world((2,), ("dp",), rank=1) as mesh:
        torch._dynamo.reset()
        options: dict[str, Any] = {
            "spec": function, "mesh": mesh, "inner": "eager", "in_placements": {"x": [Shard(0)]}, "out_placements": {"output.0": [Shard(0)]},
        }  # fmt: skip
        compiled = torch.compile(function, backend="verify", options=options)
        compiled(torch.randn(2, 3))
        CHANGES[name](options)
        for again in (compiled, torch.compile(function, backend="verify", options=options)):
            with pytest.raises(RefinementError, match=r"^error\[VC106\]: output layout other than declared"):
                again(torch.randn(2, 3))


def test_options_that_stay_are_asked_about_once() -> None:
    with fake_mesh_world((2,), ("dp",), rank=1) as mesh:
        torch._dynamo.reset()
        graphs: list[torch.fx.GraphModule] = []

        def inner(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
            graphs.append(graph)
            return graph.forward

        options = {"spec": function, "mesh": mesh, "inner": inner, "in_placements": {"x": (Shard(0),)}}
        for _ in range(2):
            torch.compile(function, backend="verify", options=options)(torch.randn(2, 3))
        assert len(graphs) == 1
