"""What is relied on: a tensor without storage has a shape and a dtype, and torch hands its operators to its class."""

from __future__ import annotations

from typing import Any

import torch

from verifycompile.torch_interface.dtensor.wrapped import without_storage

seen: list[str] = []


class Counted(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(str(func))
        return args[0]


def test_operators_come_to_the_class() -> None:
    made = without_storage(Counted, (2, 3), torch.float64)
    assert (type(made), tuple(made.shape), made.dtype, made.is_contiguous()) == (Counted, (2, 3), torch.float64, True)
    with torch.no_grad():
        assert (made + 1) is made
        assert made.softmax(-1) is made
    assert seen == ["aten.add.Tensor", "aten._softmax.default"]
