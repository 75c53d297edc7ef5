"""Kernels that would read or write outside of their operands are not called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from verifycompile.witness.error import EvaluationError
from verifycompile.witness.operators import evaluate

aten = torch.ops.aten
R = torch.ones
ROWS = torch.tensor([0, 4, 1])
WIDE, NARROW = R(8, 6), R(2, 6)
FITTING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "embedding": (aten.embedding_dense_backward.default, (R(3, 4), ROWS, 5, -1, True)),
    "max pool": (
        aten.max_pool2d_with_indices_backward.default,
        (R(1, 2, 2, 2), R(1, 2, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False, torch.full((1, 2, 2, 2), 15)),
    ),
    "layer norm": (
        aten.native_layer_norm_backward.default, (WIDE, WIDE, [6], R(8, 1), R(8, 1), R(6), R(6), [True] * 3),
    ),
    "batch norm": (aten.native_batch_norm.default, (R(2, 6, 3), R(6), R(6), None, None, True, 0.1, 1e-5)),
    "gradient of batch norm": (
        aten.native_batch_norm_backward.default,
        (R(2, 6, 3), R(2, 6, 3), R(6), None, None, R(6), R(6), True, 1e-5, [True] * 3),
    ),
    "softmax": (aten._log_softmax_backward_data.default, (WIDE, WIDE, 1, torch.float32)),
    "likelihood": (
        aten.nll_loss_backward.default, (R(3), R(3, 5), torch.tensor([0, 4, -100]), None, 0, -100, R(())),
    ),
    "distances": (aten._cdist_backward.default, (R(2, 3), R(2, 5), R(3, 5), 2.0, R(2, 3))),
    "alignments": (aten._ctc_loss.default, (R(5, 1, 4), torch.tensor([[1, 2]]), [5], [2])),
}  # fmt: skip
WRONG: dict[str, tuple[int, Any]] = {
    "embedding": (1, torch.tensor([0, 5, 1])),
    "max pool": (7, torch.full((1, 2, 2, 2), 16)),
    "layer norm": (3, R(2, 1)),
    "batch norm": (1, R(2)),
    "gradient of batch norm": (5, R(2)),
    "softmax": (1, NARROW),
    "likelihood": (2, ROWS + 1),
    "distances": (4, R(3, 2)),
    "alignments": (1, torch.tensor([[1, 4]])),
}


@pytest.mark.parametrize("name", FITTING)
def test_operands_that_fit_are_evaluated(name: str) -> None:
    target, args = FITTING[name]
    assert evaluate(target, args, {}) is not None


@pytest.mark.parametrize("name", FITTING)
def test_others_are_refused_before_the_kernel_is_called(name: str) -> None:
    target, args = FITTING[name]
    position, wrong = WRONG[name]
    with pytest.raises(EvaluationError, match=r"its operands do not fit together$"):
        evaluate(target, (*args[:position], wrong, *args[position + 1 :]), {})
