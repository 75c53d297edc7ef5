"""Bags of indices: what the declarations say is what torch computes, or they refuse.

No sample of the other tests: the offsets of bags of one length have to be computed, for which no leaf can stand.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.operators.call import RefusedError, Sample, assert_same, leaf, leaf_name, lower_call
from tests.operators.samples import real, whole
from verifycompile.ir import relabel
from verifycompile.ir.term import TermPool, View
from verifycompile.refinement.placement import same_value
from verifycompile.rewrites.builder import Builder

aten = torch.ops.aten

BAGS = (
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
    aten._embedding_bag_backward.default,
    aten._embedding_bag_per_sample_weights_backward.default,
)
LENGTH, COUNT, ROWS = 5, 3, 6
OFFSETS = torch.arange(0, LENGTH * COUNT, LENGTH)
GIVEN = (OFFSETS.clone(), torch.tensor([0, 4, 6]), torch.tensor([0, 9, 9]))
"""Offsets that the program is given: of one length by chance, of several, of an empty bag."""
INDICES = whole(ROWS, LENGTH * COUNT)

OPTIONS = [
    (torch.float64, 0, False, -1),
    (torch.float32, 0, False, -1),
    (torch.float64, 1, False, -1),
    (torch.float64, 0, True, -1),
    (torch.float32, 0, True, -1),
    (torch.float64, 0, False, 2),
    (torch.float32, 0, True, 2),
]


def forward(
    dtype: torch.dtype,
    mode: int,
    weighted: bool,
    padding: int,
    *,
    target: Any = BAGS[0],
    offsets: torch.Tensor = OFFSETS,
) -> Sample:
    amounts = real(LENGTH * COUNT).to(dtype) if weighted else None
    arguments = (real(ROWS, 4).to(dtype), INDICES, offsets, False, mode, False, amounts, False, padding)
    return Sample(target, arguments)


def values(pool: TermPool, sample: Sample) -> list[View]:
    """Leaves, but for the offsets and what the forward operator notes of them."""
    found: list[View] = []
    for position, tensor in enumerate(sample.tensors):
        if tensor is OFFSETS:
            found.append(Builder(pool).iota(COUNT, 0, LENGTH))
        else:
            found.append(leaf(pool, position, tensor))
    return found


def evaluated(sample: Sample, pool: TermPool | None = None) -> tuple[list[View | None], list[Any]]:
    pool = TermPool() if pool is None else pool
    views = lower_call(sample, values(pool, sample), sample.recorded(), pool=pool)
    evaluator = Evaluator({leaf_name(k): t for k, t in enumerate(sample.tensors)})
    return views, [None if v is None else evaluator.view(v) for v in views]


@pytest.mark.parametrize("offsets", [OFFSETS, *GIVEN], ids=["computed", "given", "uneven", "empty"])
@pytest.mark.parametrize("target", BAGS[:2], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_forward(options: tuple[Any, ...], target: Any, offsets: torch.Tensor) -> None:
    sample = forward(*options, target=target, offsets=offsets)
    for actual, expected in zip(evaluated(sample)[1], sample.run(), strict=True):
        assert_same(actual, expected, "output")


def backward(options: tuple[Any, ...], offsets: torch.Tensor = OFFSETS) -> tuple[Sample, list[View], TermPool]:
    """A call with what the forward operator notes, as an operand and as a value."""
    dtype, mode, _, padding = options
    pool = TermPool()
    sample = forward(*options, offsets=offsets)
    notes = evaluated(sample, pool)[0][1:]
    kept = [t for t in sample.run()[1:] if t is not None]
    amounts = sample.args[6]
    call = Sample(
        BAGS[2],
        (real(COUNT, 4).to(dtype), INDICES, offsets, *kept, ROWS, False, mode, False, amounts, padding),
    )
    given = values(pool, call)
    given[2] = values(pool, sample)[2]
    given[3:6] = [note for note in notes if note is not None]
    return call, given, pool


@pytest.mark.parametrize("offsets", [OFFSETS, *GIVEN], ids=["computed", "given", "uneven", "empty"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_backward(options: tuple[Any, ...], offsets: torch.Tensor) -> None:
    call, given, pool = backward(options, offsets)
    (view,) = lower_call(call, given, call.recorded(), pool=pool)
    evaluator = Evaluator({leaf_name(k): t for k, t in enumerate(call.tensors)})
    assert view is not None
    assert_same(evaluator.view(view), call.run()[0], "gradient")


def backward_of_weights(options: tuple[Any, ...], offsets: torch.Tensor) -> tuple[Sample, list[View], TermPool]:
    """The gradient of the places' weights, with the bag of each index as the forward operator notes it."""
    dtype, mode, _, padding = options
    sample, pool = forward(*options, offsets=offsets), TermPool()
    call = Sample(
        BAGS[3], (real(COUNT, 4).to(dtype), real(ROWS, 4).to(dtype), INDICES, offsets, sample.run()[1], mode, padding)
    )
    given = values(pool, call)
    operands = [*given[1:4], leaf(pool, 9, sample.tensors[3])]
    note = lower_call(sample, operands, sample.recorded(), pool=pool)[1]
    assert note is not None
    return call, [*given[:4], note], pool


@pytest.mark.parametrize("offsets", [OFFSETS, *GIVEN], ids=["computed", "given", "uneven", "empty"])
@pytest.mark.parametrize("options", [o for o in OPTIONS if o[2]], ids=str)
def test_backward_of_weights(options: tuple[Any, ...], offsets: torch.Tensor) -> None:
    call, given, pool = backward_of_weights(options, offsets)
    (view,) = lower_call(call, given, call.recorded(), pool=pool)
    assert view is not None
    found = Evaluator({leaf_name(k): t for k, t in enumerate(call.tensors)}).view(view)
    assert_same(found, call.run()[0], "gradient of the weights")


def test_notes_of_another_call_are_refused() -> None:
    for call, given, pool in (backward(OPTIONS[0]), backward_of_weights(OPTIONS[3], OFFSETS)):
        other = [*given[:4], leaf(pool, 4, call.tensors[4]), *given[5:]]
        with pytest.raises(RefusedError) as refused:
            lower_call(call, other, call.recorded(), pool=pool)
        assert str(refused.value) == "VC202 a gradient of bags from other notes than the forward operator's"


def test_a_mean_has_no_gradient_of_weights() -> None:
    call, given, pool = backward_of_weights(OPTIONS[3], OFFSETS)
    mean = Sample(call.target, (*call.args[:5], 1, -1))
    with pytest.raises(RefusedError) as refused:
        lower_call(mean, given, call.recorded(), pool=pool)
    assert str(refused.value) == "VC202 a gradient of the weights of bags reduced by mode=1"


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (4, 2, "VC202 bags reduced by mode=2"),
        (7, True, "VC202 `aten._embedding_bag.default` has no declaration for `include_last_offset=True`"),
    ],
)
def test_refused(position: int, value: Any, message: str) -> None:
    sample = forward(*OPTIONS[0])
    arguments = list(sample.args)
    arguments[position] = value
    with pytest.raises(RefusedError) as refused:
        evaluated(Sample(sample.target, tuple(arguments)))
    assert str(refused.value) == message


def test_a_mean_with_padding_is_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        evaluated(forward(torch.float64, 1, False, 2))
    assert str(refused.value) == "VC202 the mean of bags with padding_idx=2"


def test_options_change_the_value() -> None:
    pool = TermPool()
    table = real(ROWS, 4)
    outputs: list[View] = []
    for mode, padding in ((0, -1), (1, -1), (0, 2), (0, 3)):
        sample = Sample(BAGS[0], (table, INDICES, OFFSETS, False, mode, False, None, False, padding))
        output = evaluated(sample, pool)[0][0]
        assert output is not None
        outputs.append(output)
    assert not any(same_value(a, b) for k, a in enumerate(outputs) for b in outputs[:k])


@pytest.mark.parametrize("dim", [0, 1])
def test_tables_cut_into_rows_or_columns(dim: int) -> None:
    """Columns are a batch; of rows every rank holds a part, and looks up what it does not hold nowhere."""
    table, pool = real(2 * ROWS, 8), TermPool()
    whole_table = pool.leaf("x0", (2 * ROWS, 8))
    split = relabel.split_dim(whole_table, dim, 2, table.shape[dim] // 2)
    part = relabel.permute(split, [dim, *(d for d in range(3) if d != dim)])
    local = table.chunk(2, dim)[0].contiguous()
    sample = Sample(BAGS[0], (local, INDICES, OFFSETS, False, 0, False, None, False, -1))
    indices = relabel.insert_dim(leaf(pool, 1, INDICES), 0, 2)
    offsets = Builder(pool, (2,)).iota(COUNT, 0, LENGTH)
    output = lower_call(sample, [part, indices, offsets], sample.recorded(), pool=pool, mesh=(2,))[0]
    assert output is not None
    found = Evaluator({"x0": table, "x1": INDICES}).view(output)
    for rank, shard in enumerate(table.chunk(2, dim)):
        expected = sample.replaced([shard.contiguous(), INDICES, OFFSETS]).run()[0]
        assert_same(found[rank], expected, f"rank {rank}")
