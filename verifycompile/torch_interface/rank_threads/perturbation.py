"""A run in which every operator's result is rounded up or down at random, as in stochastic arithmetic (CESTAC)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_EXACT = frozenset(
    {
        "_local_scalar_dense", "_reshape_alias", "_to_copy", "_unsafe_view", "abs", "alias", "amax", "amin", "arange",
        "as_strided", "bernoulli", "cat", "ceil", "chunk", "clamp", "clamp_max", "clamp_min", "clone",
        "constant_pad_nd", "contiguous", "copy", "copy_", "detach", "diag_embed", "diagonal", "dropout", "embedding",
        "empty", "empty_like", "empty_strided", "eq", "expand", "eye", "fill", "fill_", "flatten", "flip", "floor",
        "full", "full_like", "gather", "ge", "gt", "index", "index_copy", "index_fill", "index_put", "index_put_",
        "index_select", "is_nonzero", "le", "lift_fresh", "lift_fresh_copy", "lt", "masked_fill", "masked_fill_",
        "masked_scatter", "masked_select", "max", "maximum", "min", "minimum", "movedim", "narrow", "ne", "neg",
        "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero", "normal_", "one_hot",
        "ones", "ones_like", "permute", "rand", "rand_like", "randint", "randn", "randn_like", "relu", "relu_",
        "repeat", "reshape", "resize_", "roll", "round", "scalar_tensor", "scatter", "scatter_", "select",
        "select_backward", "select_scatter", "set_", "sign", "slice", "slice_backward", "slice_scatter", "sort",
        "split", "split_with_sizes", "squeeze", "stack", "t", "threshold_backward", "topk", "transpose", "tril",
        "triu", "trunc", "unbind", "unfold", "uniform_", "unsqueeze", "view", "view_as", "where", "zero_", "zeros",
        "zeros_like",
    }
)  # fmt: skip
"""Operators that choose, move or make values: their results are not rounded."""


class _Perturbed(TorchDispatchMode):
    def __init__(self, epsilon: float, seed: int) -> None:
        super().__init__()
        self._epsilon = epsilon
        self._generator = torch.Generator().manual_seed(seed)
        self._signs: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.paused or func.is_view or func._schema.name.partition("::")[2] in _EXACT:
            return result
        if isinstance(result, torch.Tensor):
            self._perturb(result)
        elif isinstance(result, (list, tuple)):
            for item in result:
                if isinstance(item, torch.Tensor):
                    self._perturb(item)
        return result

    def _perturb(self, value: torch.Tensor) -> None:
        """In place: it was made just now, or is what an operator wrote in place."""
        if value.is_floating_point() and value.dtype.itemsize > 1 and value.numel():
            value.mul_(self.factors(value))

    def factors(self, value: torch.Tensor) -> torch.Tensor:
        """1, or one epsilon more or less, for each element: the run's, or its dtype's where that is coarser."""
        count, epsilon = value.numel(), max(self._epsilon, epsilon_of([value.dtype]))
        key = (value.dtype, value.device)
        held = self._signs.get(key)
        if held is None or held.numel() < 2 * count:
            # Twice half an epsilon: a result rounded up or down at random, against the one that was rounded. Two bits
            # of every random byte say which.
            words = torch.empty(max(-(-count // 4), 512), dtype=torch.int64).random_(generator=self._generator)
            drawn = words.view(torch.uint8)
            halves = ((drawn & 1) + ((drawn >> 1) & 1)).to(value.dtype)
            held = halves.sub_(1).mul_(epsilon).add_(1).to(value.device)
            self._signs[key] = held
        first = int(torch.randint(0, held.numel() - count + 1, (), generator=self._generator))
        return held[first : first + count].view(value.shape)


def epsilon_of(dtypes: Iterable[torch.dtype]) -> float:
    """The machine epsilon of the coarsest of these dtypes; 0 where none is of floating-point numbers."""
    return max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)


@contextlib.contextmanager
def perturbed(epsilon: float, seed: int) -> Generator[_Perturbed]:
    """While entered, results of operators in this thread, of forward and backward, carry an error of ``epsilon``.

    An error is the epsilon of the result's own dtype where that is coarser, as under autocast: it was rounded to it.
    """
    with _Perturbed(epsilon, seed) as mode:
        yield mode


@contextlib.contextmanager
def unperturbed(mode: _Perturbed) -> Generator[None]:
    """While entered, results are as they are."""
    before, mode.paused = mode.paused, True
    try:
        yield
    finally:
        mode.paused = before
