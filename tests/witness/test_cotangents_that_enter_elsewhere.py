"""A tensor that is returned twice, or an input that is returned as it is, takes no cotangent of its own into the graph.

Where the spec returns copies of them its gradients are those of the implementation, and no difference is found.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict

Pair = tuple[torch.Tensor, torch.Tensor]
RETURNED: dict[str, Callable[[torch.Tensor, torch.Tensor], Pair]] = {
    "twice": lambda y, _: (y, y),
    "a copy": lambda y, _: (y, y.clone()),
    "cut off": lambda y, _: (y, y.detach()),
    "doubled": lambda y, _: (doubled := y * 2, doubled),
    "the parameter": lambda y, scale: (y, scale),
    "a copy of the parameter": lambda y, scale: (y, scale.clone()),
}


class Model(nn.Module):
    def __init__(self, returned: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.scale, self.returned = nn.Linear(8, 8), nn.Parameter(torch.ones(8)), returned

    def forward(self, x: torch.Tensor) -> Pair:
        return RETURNED[self.returned](torch.tanh(self.layer(x)) * self.scale, self.scale)


@pytest.mark.parametrize(
    ("implementation", "spec", "verdict"),
    [
        ("twice", "twice", Verdict.VERIFIED),
        ("twice", "a copy", Verdict.UNPROVED),
        ("a copy", "twice", Verdict.UNPROVED),
        ("the parameter", "a copy of the parameter", Verdict.UNPROVED),
        ("a copy of the parameter", "the parameter", Verdict.UNPROVED),
        ("cut off", "a copy", Verdict.REFUTED),
        ("doubled", "a copy", Verdict.REFUTED),
    ],
)
def test_what_is_found(implementation: str, spec: str, verdict: Verdict) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = verifycompile.verify(Model(implementation), (torch.randn(4, 8),), spec=Model(spec), mesh=mesh)
    assert report.verdict is verdict, str(report)
