"""Torch's decompositions: what is taken from them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch._decomp import decomposition_table

from verifycompile.torch_interface.operators import decompositions
from verifycompile.torch_interface.operators.decompositions import (
    Decomposition,
    NotDecomposedError,
    Operand,
    decompose,
    has_decomposition,
)

aten = torch.ops.aten
ROWS = Operand((4, 6), torch.float32)
SIZE = sympy.Symbol("s", positive=True, integer=True)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompositions, "_known", {})


def called(found: Decomposition) -> list[str]:
    return [str(call.target) for call in found.calls]


def test_a_call_is_a_graph_of_other_operators() -> None:
    found = decompose(aten.glu.default, [ROWS, 1], {})
    assert called(found) == ["aten.slice.Tensor", "aten.slice.Tensor", "aten.sigmoid.default", "aten.mul.Tensor"]
    assert len(found.placeholders) == 1
    assert [tuple(result.meta["val"].shape) for result in found.results] == [(4, 3)]
    assert found.is_compared()
    assert decompose(aten.glu.default, [ROWS, 1], {}) is found
    assert decompose(aten.glu.default, [ROWS, 0], {}) is not found


def test_arguments_of_other_types_are_other_calls() -> None:
    assert decompose(aten.elu.default, [ROWS, 1], {}) is not decompose(aten.elu.default, [ROWS, 1.0], {})


def test_sizes_that_are_no_numbers() -> None:
    found = decompose(aten.glu.default, [Operand((2 * SIZE, 6), torch.float32), 1], {})
    (own,) = found.symbols
    assert found.symbols[own] == SIZE
    (result,) = found.results
    assert result.meta["val"].shape[0].node.expr.xreplace({own: SIZE}) == 2 * SIZE
    assert found.is_compared()


@pytest.mark.parametrize(
    ("target", "args", "reason"),
    [
        (aten.cov.default, (ROWS,), "torch cannot follow it without the contents of tensors (DataDependentOutputException: aten.equal.default)"),
        (aten.native_batch_norm.default, (ROWS, None, None, Operand((6,), torch.float32), Operand((6,), torch.float32), True, 0.1, 1e-5), "it writes to its operands"),
        (aten.tensor_split.sections, (Operand((SIZE, 6), torch.float32), 4), "it depends on sizes that are no numbers"),
        (aten.max_pool2d_with_indices.default, (Operand((1, 4, 4), torch.int64), [2, 2]), "in arithmetic of whole numbers or booleans"),
        (aten.hardswish.default, (Operand((4,), torch.complex64),), "of torch.complex64"),
        (aten._segment_reduce_backward.default, (ROWS, ROWS, ROWS, "sum"), ""),
    ],
)  # fmt: skip
def test_what_is_refused(target: Any, args: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(NotDecomposedError) as refused:
        decompose(target, args, {})
    assert str(refused.value) == reason


def test_dropout_with_a_flag_that_is_none_draws_numbers_and_torch_decomposes_it_as_if_it_did_not() -> None:
    assert not has_decomposition(aten.native_dropout.default)


@pytest.mark.usefixtures("fresh")
def test_a_wrong_decomposition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decomposition_table, aten.hardswish.default, lambda x: x * torch.clamp(x + 3, 0, 6) / 5)
    with pytest.raises(NotDecomposedError, match=r"^on random numbers it gives other ones than the operator's kernel$"):
        decompose(aten.hardswish.default, [ROWS], {}).is_compared()


def test_a_call_that_the_kernel_does_not_take_is_refused() -> None:
    found = decompose(aten.multi_margin_loss.default, [ROWS, Operand((4,), torch.int32)], {})
    with pytest.raises(NotDecomposedError) as refused:
        found.is_compared()
    assert str(refused.value) == (
        "its kernel does not take the call (RuntimeError: expected scalar type Long but found Int)"
    )


@pytest.mark.usefixtures("fresh")
def test_a_large_call_is_compared_at_smaller_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Operand((2048, 1024), torch.float32)
    assert decompose(aten.hardswish.default, [large], {}).is_compared()
    image = Operand((2, 64, 128, 128), torch.float32)
    assert (
        decompose(aten.native_group_norm.default, [image, None, None, 2, 64, 128 * 128, 4, 1e-5], {}).is_compared()
        is False
    )
    many = Operand((100_000, 4), torch.float32)  # whose distances would fill the memory
    assert decompose(aten._euclidean_dist.default, [many, many], {}).is_compared()
    monkeypatch.setitem(decomposition_table, aten.hardswish.default, lambda x: x * torch.clamp(x + 3, 0, 6) / 5)
    with pytest.raises(NotDecomposedError):
        decompose(aten.hardswish.default, [Operand((2048, 1025), torch.float32)], {}).is_compared()


@pytest.mark.usefixtures("fresh")
def test_a_decomposition_of_too_many_calls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompositions, "MOST_CALLS", 3)
    with pytest.raises(NotDecomposedError, match=r"^it calls more than 3 operators$"):
        decompose(aten.glu.default, [ROWS, 1], {})


def test_operators_that_are_decomposed() -> None:
    assert has_decomposition(aten._euclidean_dist.default)  # in torch's table
    assert has_decomposition(aten.margin_ranking_loss.default)  # by its kernel, which calls others
    assert not has_decomposition(aten.mm.default)
    assert not has_decomposition(aten.relu_.default)  # writes
    assert not has_decomposition(aten.rand_like.default)  # draws random numbers
    assert not has_decomposition(torch.relu)
