"""What torch's meta kernels say of a call: dtypes, shapes and memory of its results, for operands without content."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from verifycompile.torch_interface.logs import without_logged_failures


class _Numbers(ShapeEnv):
    """Unknown numbers without the places that asked for them, for which torch imports its exporter and compiler."""

    def _get_user_frame(self) -> None:
        return None


class Derivation:
    """Runs calls on tensors without content, where it is entered: what torch's kernels of ``device`` give."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._mode = FakeTensorMode(shape_env=_Numbers(), allow_non_fake_inputs=True)

    def tensor(
        self, shape: Sequence[int], dtype: torch.dtype, memory: tuple[Sequence[int], int] | None = None
    ) -> torch.Tensor:
        """``memory``: strides and offset; without them the elements lie one after the other."""
        if memory is None:
            return torch.empty(tuple(shape), dtype=dtype, device=self._device)
        strides, offset = memory
        if offset == 0:
            return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device=self._device)
        reach = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
        held = torch.empty(max(reach, offset) if 0 not in shape else offset, dtype=dtype, device=self._device)
        return torch.as_strided(held, tuple(shape), tuple(strides), offset)

    def call(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The results of a call. Raises whatever torch raises for arguments that the operator does not take."""
        return target(*args, **{k: self._device if isinstance(v, torch.device) else v for k, v in kwargs.items()})

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        with without_logged_failures(), torch.no_grad(), self._mode:
            yield


def is_derived_number(value: Any) -> bool:
    """Whether a size or number depends on the content of a tensor, so that no kernel can say it."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
