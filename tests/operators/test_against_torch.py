"""Every declaration means what torch computes: values, attributes, dtypes, and operands stacked over a mesh."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.operators.call import (
    RefusedError,
    Sample,
    assert_same,
    evaluate_call,
    evaluate_or_refuse,
    lower_call,
    sharded,
)
from tests.operators.samples import REFUSED, SAMPLES
from verifycompile.ir.term import TermPool
from verifycompile.refinement.placement import same_value

IDS = [str(s) for s in SAMPLES]
RANKS = 2

# What torch raises for arguments that an operator does not take.
TORCH_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError, NotImplementedError, OverflowError)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_value(sample: Sample) -> None:
    _, actual = evaluate_call(sample)
    for k, (a, e) in enumerate(zip(actual, sample.run(), strict=True)):
        assert_same(a, e, f"output {k}")


@pytest.mark.parametrize(("sample", "message"), REFUSED, ids=lambda v: str(v) if isinstance(v, Sample) else "")
def test_refused(sample: Sample, message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        evaluate_call(sample)
    assert str(refused.value) == message


# ------------------------------------------------------------------------------------------------ attributes


def variations(value: Any, kind: str) -> Iterator[Any]:
    """Other values for one argument that is no tensor."""
    if isinstance(value, bool) or ("bool" in kind and "[" not in kind):
        yield not value
    elif isinstance(value, torch.dtype) or "ScalarType" in kind:
        yield from (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool, torch.int8)
    elif isinstance(value, str):
        yield from ("none", "tanh", "sum")
    elif isinstance(value, int):
        yield from (value + 1, value - 1, -value, 0, 3)
        if "Scalar" in kind or "float" in kind:
            yield from (value + 0.5, True)
    elif isinstance(value, float):
        yield from (value * 2 + 0.25, -value, 0.0, 1)
    elif value is None and ("float" in kind or "Scalar" in kind):
        yield from (0.5, -1.0)
    elif value is None and ("int" in kind and "[" not in kind):
        yield from (1, 2)
    elif value is None or isinstance(value, (list, tuple)):
        items = list(value or [])
        if items and isinstance(items[0], torch.Tensor):
            return
        yield from (items[::-1], [*items, 1], items[1:], [0], [1], [-1])
        if items and isinstance(items[0], bool):
            yield [not items[0], *items[1:]]
        yield from ([*items[:k], items[k] + 1, *items[k + 1 :]] for k in range(len(items)))


DIVISORS = frozenset({
    "stride", "dilation", "kernel_size", "groups", "group", "N", "C", "HxW", "divisor_override", "output_size", "size",
    "step", "upscale_factor", "downscale_factor", "scales", "scales_d", "scales_h", "scales_w", "input_size",
})  # fmt: skip
"""Arguments that some kernels of torch divide or allocate by without a check: a zero there ends the process."""

STATISTICS = {
    torch.ops.aten._native_batch_norm_legit.no_stats: None,
    torch.ops.aten.native_batch_norm_backward.default: 3,
}
"""Which argument holds the running statistics, which an inference without them reads nevertheless. Its gradient in
training reads the saved ones.
"""


TRANSFORMS = (torch.ops.aten._fft_c2c.default, torch.ops.aten._fft_c2r.default, torch.ops.aten._fft_r2c.default)
"""They read beyond their operands where a dimension counts from the end, stands twice or does not hold half of the result."""


def _ends_the_process(sample: Sample, name: str, value: Any) -> bool:
    if name == "train" and sample.target == torch.ops.aten.native_batch_norm_backward.default and value:
        return sample.args[5] is None
    if name in ("training", "train") and not value and sample.target in STATISTICS:
        return STATISTICS[sample.target] is None or sample.args[STATISTICS[sample.target]] is None
    numbers = value if isinstance(value, list) else [value]
    if sample.target in TRANSFORMS and name in ("dim", "last_dim_size"):
        operand, dims = sample.args[0], numbers if name == "dim" else sample.args[1]
        if not dims or len(set(dims)) < len(dims) or not all(0 <= dim < operand.dim() for dim in dims):
            return True
        if sample.target != torch.ops.aten._fft_c2r.default:
            return False
        length = value if name == "last_dim_size" else sample.args[3]
        return length <= 0 or length // 2 + 1 != operand.shape[dims[-1]]
    return name in DIVISORS and any(isinstance(n, (int, float)) and n <= 0 for n in numbers)


def attribute_variants(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The call with one of its other arguments changed, those left at their default included."""
    for position, argument in enumerate(sample.target._schema.arguments):
        kind = str(argument.real_type)  # `type` says int for a dtype
        if any(other in kind for other in ("Tensor", "Device", "Layout", "MemoryFormat")):
            continue
        if position < len(sample.args):
            value = sample.args[position]
        else:
            value = sample.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)
        for other in variations(value, kind):
            if other == value and type(other) is type(value):
                continue
            if _ends_the_process(sample, argument.name, other):
                continue
            args, kwargs = list(sample.args), dict(sample.kwargs)
            if position < len(args):
                args[position] = other
            elif argument.kwarg_only or position > len(args):
                kwargs[argument.name] = other
            else:
                args.append(other)
            yield f"{argument.name}={other}", Sample(sample.target, tuple(args), kwargs)


RANDOM = {torch.ops.aten.native_dropout.default}


@pytest.mark.sampled(every=4, of=("sample.target",))
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_attributes(sample: Sample) -> None:
    """Whatever value an attribute has: the declaration says what torch computes then, or refuses.

    Where the value of an output differs from that before the change, so does its view.
    """
    pool = TermPool()
    before, expected_before = evaluate_call(sample, pool)[0], sample.run()
    for change, variant in attribute_variants(sample):
        try:
            expected = variant.run()
        except TORCH_ERRORS:
            continue
        found = evaluate_or_refuse(variant, change, pool)
        if found is None:
            continue
        views, actual = found
        assert sample.target not in RANDOM or variant.args[1] in (0, 1) or variant.args[2] is False, change
        for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same(a, e, f"output {k} with {change}")
        if len(before) != len(views):
            continue
        for k, (old, new) in enumerate(zip(before, views, strict=True)):
            if old is None or new is None or _equal(expected_before[k], expected[k]):
                continue
            assert not same_value(old, new), f"output {k} does not depend on {change}"


def _equal(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    if left.shape != right.shape:
        return False
    return torch.allclose(left.to(torch.complex128), right.to(torch.complex128), 1e-5, 1e-5, equal_nan=True)


def same_results(left: list[torch.Tensor | None], right: list[torch.Tensor | None]) -> bool:
    """Whether two calls gave the same values in the same dtypes."""
    return len(left) == len(right) and all(
        _equal(a, b) and (a is None or b is None or a.dtype == b.dtype) for a, b in zip(left, right, strict=True)
    )


# ------------------------------------------------------------------------------------------------ dtypes

DTYPES = (torch.bool, torch.int64, torch.int32, torch.uint8, torch.float32, torch.complex128)


def dtype_variants(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The call with its tensors in other dtypes: all of them, and each one alone."""
    tensors = sample.tensors
    for dtype in DTYPES:
        choices = {frozenset(range(len(tensors))), *(frozenset((k,)) for k in range(len(tensors)))}
        for chosen in choices:
            cast = [_cast(t, dtype) if k in chosen else t for k, t in enumerate(tensors)]
            yield f"{dtype} for {sorted(chosen)}", sample.replaced(cast)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.complex128:
        real = (tensor.real if tensor.is_complex() else tensor).double()
        return torch.complex(real, real.roll(1) + 0.25)
    if tensor.is_complex():
        return tensor.to(torch.complex64)
    if dtype is torch.bool:
        return tensor > 0
    if not tensor.is_floating_point():
        return tensor.to(dtype)
    return (tensor * (1 if dtype.is_floating_point else 2)).to(dtype)


@pytest.mark.sampled(every=4, of=("sample.target",))
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")  # torch says it once in a process
def test_dtypes(sample: Sample) -> None:
    """Booleans, integers and complex numbers follow rules of their own; so does the declaration, or it refuses."""
    for change, variant in dtype_variants(sample):
        try:
            expected = variant.run()
        except TORCH_ERRORS:
            continue
        found = evaluate_or_refuse(variant, change)
        if found is None:
            continue
        _, actual = found
        for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same(a, e, f"output {k} with {change}", finite=True, single="float32" in change)


# ------------------------------------------------------------------------------------------------ stacked operands


READ_IN_MEMORY = {torch.ops.aten._linalg_det.default, torch.ops.aten._linalg_slogdet.default}
"""What they keep for the gradient depends on how the matrix lies in memory: a part does not lie as the whole does."""


def _can_be_stacked(sample: Sample) -> bool:
    tensors = sample.tensors
    lies_as_its_parts = sample.target not in READ_IN_MEMORY or all(t.is_contiguous() for t in tensors)
    return bool(tensors) and all(t.numel() for t in tensors) and lies_as_its_parts


@pytest.mark.sampled(every=4, of=("sample.target",))
@pytest.mark.parametrize("sample", [s for s in SAMPLES if _can_be_stacked(s)], ids=str)
def test_stacked(sample: Sample) -> None:
    """Operands sharded over a mesh axis: the stacked result is torch's on every rank."""
    choose = random.Random(str(sample))
    refusals: list[str] = []
    tensors = sample.tensors
    for only in (None, *range(len(tensors))):
        dims: list[int | None] = [
            (choose.randrange(t.dim()) if t.dim() else 0) if only in (None, k) else None for k, t in enumerate(tensors)
        ]
        pool = TermPool()
        views, leaves, local = sharded(pool, tensors, dims, RANKS)
        ranks = [sample.replaced(local[rank]) for rank in range(RANKS)]
        expected = [s.run() for s in ranks]
        try:
            results = lower_call(sample, views, sample.recorded(), pool=pool, mesh=(RANKS,))
        except RefusedError as refused:
            refusals.append(refused.message)
            continue
        evaluator = Evaluator(leaves)
        for k, view in enumerate(results):
            for rank in range(RANKS):
                actual = None if view is None else evaluator.view(view)[rank]
                assert_same(actual, expected[rank][k], f"output {k} on rank {rank}, sharded along {dims}")
    assert not [r for r in refusals if "internal error" in r]
