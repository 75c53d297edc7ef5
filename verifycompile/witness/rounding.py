"""Rounding made visible: a value that cancels is as uncertain as what it was computed from, however small its inputs.

The divergence of two distributions that are nearly equal is 1e-12 where its summands are of order one, and float64 has
only rounding to say about it. A second evaluation of the spec therefore changes the result of every operator that
rounds, by more than rounding does (a draw of a few last bits may cancel); a part of how far an output moves is what
rounding may explain.
"""

from __future__ import annotations

import dataclasses

import torch

from verifycompile.torch_interface.operators.evaluation import is_view

CHANGE = 1e-9
"""Relative change of every result that may have been rounded."""
ROUNDING_FACTOR = 1e-3
"""Accepted difference in parts of the response to that change: some thousand units in the last place of each result."""
_MOVING = (
    *("_to_copy", "alias", "clone", "copy", "detach", "expand", "repeat", "flip", "roll", "cat", "stack", "diag_embed"),
    *("constant_pad_nd", "slice_backward", "select_backward", "unfold_backward", "slice_scatter", "select_scatter"),
    *("embedding", "gather", "index", "index_select", "index_put", "scatter", "masked_scatter", "tril", "triu"),
)
_SELECTING = (
    *("max", "min", "amax", "amin", "maximum", "minimum", "median", "sort", "topk", "max_pool2d_with_indices"),
    *("abs", "neg", "relu", "threshold_backward", "clamp", "clamp_min", "clamp_max", "where", "masked_fill"),
)
_CREATING = ("fill", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like", "new_zeros")
_EXACT = frozenset((*_MOVING, *_SELECTING, *_CREATING))
"""Operators whose results are elements of their operands (or whole numbers), so that equal elements stay equal."""


def is_exact(target: object, name: str) -> bool:
    """Whether the operator moves, selects or negates elements, which never rounds."""
    namespace, _, operator = name.partition(".")
    return namespace != "aten" or is_view(target) or operator.partition(".")[0] in _EXACT


@dataclasses.dataclass(frozen=True)
class Rounding:
    """Changes of results, at random. ``sign``: -1 gives the opposite of each change that 1 gives with the same seed."""

    generator: torch.Generator
    sign: int = 1

    @staticmethod
    def seeded(seed: int, sign: int = 1) -> Rounding:
        return Rounding(torch.Generator().manual_seed(seed), sign)

    def change(self, value: object) -> object:
        """``value`` with every element that is no whole number changed a little."""
        if isinstance(value, (list, tuple)):
            return tuple(self.change(item) for item in value)
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
            return value
        noise = torch.randn(value.shape, generator=self.generator, dtype=value.dtype)
        # What is a whole number was counted or compared, and may be compared again.
        return torch.where(value == value.round(), value, value * (1 + self.sign * CHANGE * noise))
