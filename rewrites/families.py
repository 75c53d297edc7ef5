"""The families of declarations: each is a module that registers its own when it is imported.

A proof needs all of them. The checker of a certificate loads those alone that the proof has used.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

_OF_OPERATORS = (
    "activation", "advanced_indexing", "arithmetic", "attention", "attention_kernels", "collective", "complex_numbers",
    "contraction", "convolution", "creation", "cumulative", "diagonals", "distances", "elementwise", "embedding_bags",
    "exchange", "factorizations", "filling", "flips", "foreach", "fourier", "fused", "gathering", "grouped",
    "image_normalization", "indexing", "integers", "layout", "limits", "logarithms", "loss", "margin_losses",
    "matrices", "normalization", "ordering", "padding", "pointwise_losses", "pooling", "products", "random",
    "reduction", "resampling", "safe_softmax", "sampling", "scatter", "searching", "shifts", "sigmoids", "silu",
    "softmax", "special_functions", "statistics", "strided", "windows", "writing",
)  # fmt: skip
_OF_ROWS = ("row_algebra", "row_choice", "row_layout", "row_parts", "row_writes", "sorted_rows")
FAMILIES = {**dict.fromkeys(_OF_OPERATORS, "operators"), **dict.fromkeys(_OF_ROWS, "rows")}
"""Each family, and the folder that it lies in."""


def load(names: Iterable[str] = FAMILIES) -> None:
    """Register the declarations of these families. Raises ValueError for a name that is none."""
    for name in names:
        if name not in FAMILIES:
            raise ValueError(f"no family of declarations is called `{name}`")
        importlib.import_module(f"verifycompile.rewrites.{FAMILIES[name]}.{name}")
