"""Which tensors share memory: elements that lie at one place, not views of one storage that lie beside each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate

from tests.support import fake_mesh_world
from verifycompile.torch_interface.operators.memory import sharing

X = torch.randn(4, 6)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (X, X, True),
        (X, X.t(), True),
        (X, X.clone(), False),
        (X[:2], X[2:], False),
        (X[:2], X[1:], True),
        (X[:, :3], X[:, 3:], False),
        (X[:, :4], X[:, 3:], True),
        (X[::2], X[1::2], False),
        (X[::2], X[2::2], True),
        (X[:, :0], X, False),
        (torch.empty(4, device="meta"), torch.empty(4, device="meta"), False),
        (M := torch.empty(4, device="meta"), M[1:], True),
    ],
)
def test_elements_at_one_place(left: torch.Tensor, right: torch.Tensor, expected: bool) -> None:
    assert sharing({"right": right, "left": left}) == ({("left", "right")} if expected else frozenset[Any]())


def test_shards() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        tensors = {str(n): DTensor.from_local(X[n : n + 2], mesh, [Replicate()]) for n in range(3)}
        assert sharing(tensors) == {("0", "1"), ("1", "2")}
