"""Operands of sizes that nobody expects: what torch computes with them is what the declaration says, or it refuses."""

from __future__ import annotations

import faulthandler
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.operators.call import RefusedError, Sample, assert_same, evaluate_call, evaluate_or_refuse
from tests.operators.samples import SAMPLES
from tests.operators.test_against_torch import TORCH_ERRORS, same_results
from tests.soundness.odd_operands import is_small, odd_samples

aten = torch.ops.aten
TARGETS = sorted({str(sample.target) for sample in SAMPLES if sample.tensors})
PAIRS = 2
"""Pairs of changed operands a sample; as many again are changed alike."""
MOST_CALLS = 120
"""Calls of one operator: of an operator with more of them one in so many is made, spread over all its samples."""
MOST_CRASHES = 6
REPEATED = 12
"""How often torch has to repeat what is said to be otherwise."""

IN_MEMORY, TABLE = ("transposed",), ("operand 1", "operands")
EXCEPT: dict[Any, tuple[str, ...]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: IN_MEMORY,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: IN_MEMORY,
    aten.native_layer_norm_backward.default: IN_MEMORY,
    aten.native_group_norm_backward.default: IN_MEMORY,
    aten.adaptive_max_pool2d_backward.default: TABLE,
    aten.adaptive_max_pool3d_backward.default: (*TABLE, *IN_MEMORY),
    aten.max_pool2d_with_indices_backward.default: TABLE,
    aten.max_pool3d_with_indices_backward.default: TABLE,
    aten.nll_loss_backward.default: TABLE,
    aten._native_batch_norm_legit_no_training.default: ("of two",),
}
"""Changes that are not made: kernels that read memory as if it were contiguous, which torch's own callers see to; indices
beyond what they index, which is for programs that raise; and what torch takes where nothing is traced alone.
"""


def _calls(target: str) -> Iterator[tuple[str, Sample]]:
    for sample in SAMPLES:
        if str(sample.target) != target:
            continue
        for change, odd in odd_samples(sample, PAIRS, random.Random(str(sample))):
            if is_small(odd.tensors) and not any(text in change for text in EXCEPT.get(sample.target, ())):
                yield f"{odd} ({change})".replace("\n", " "), odd


def _repeated(odd: Sample) -> Iterator[list[torch.Tensor | None]]:
    """The same call, in front of each the memory that is free holds other numbers: a kernel that reads behind an operand without
    elements may read the same zeros twice.
    """
    for fill in range(1, REPEATED + 1):
        freed = [torch.full((count,), float(fill), dtype=torch.float64) for count in (1, 8, 36, 120, 500)]
        del freed
        yield odd.run()


def _compared(odd: Sample, what: str) -> Iterator[str]:
    try:
        expected = odd.run()
        again = odd.replaced([tensor.clone(memory_format=torch.preserve_format) for tensor in odd.tensors]).run()
        found = evaluate_or_refuse(odd, what)
    except TORCH_ERRORS:
        return
    if found is None or not same_results(expected, again):  # it reads memory that is not its own
        return
    try:
        for k, (own, other) in enumerate(zip(found[1], expected, strict=True)):
            assert_same(own, other, f"output {k}", finite=True)
    except (AssertionError, ValueError):
        if all(same_results(expected, again) for again in _repeated(odd)):
            yield what


def _in_a_fork(calls: Sequence[tuple[str, Sample]]) -> tuple[list[str], bool]:
    """What is found of some calls, and whether the process came to the end."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)  # what torch's allocator says when it ends the process
        faulthandler.disable()
        torch.set_num_threads(1)  # the other threads did not come along, and would be waited for
        with os.fdopen(write, "w") as out:
            for what, odd in calls:
                out.write("next\n")
                out.flush()
                out.writelines(f"{line}\n" for line in _compared(odd, what))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        found = lines.read().splitlines()
    return found, os.waitpid(child, 0)[1] == 0


def _wrong(calls: Sequence[tuple[str, Sample]]) -> list[str]:
    """In processes of their own: some kernels end theirs where an operand is smaller than they take for granted."""
    assert calls
    wrong: list[str] = []
    done = 0
    for _ in range(MOST_CRASHES):
        found, ended = _in_a_fork(calls[done:])
        done += found.count("next")
        wrong += [line for line in found if line != "next"]
        if ended:
            break
    return wrong


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("target", TARGETS)
def test_odd_operands(target: str) -> None:
    calls = list(_calls(target))
    assert _wrong(calls[:: -(-len(calls) // MOST_CALLS)]) == []


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_all_odd_operands(target: str) -> None:
    assert _wrong(list(_calls(target))) == []


SINGLE = torch.randn(1, 3, dtype=torch.float64)
ROWS = torch.randn(2, 3, dtype=torch.float64)
STATISTICS = torch.rand(2, 1, dtype=torch.float64)
SHAPES = "VC202 operands of several shapes where torch looks at the shape of one"
HEADS = torch.randn(2, 2, 5, 4, dtype=torch.float64)
REFUSED: Sequence[tuple[Sample, str]] = (
    (Sample(aten.native_layer_norm_backward.default, (SINGLE, ROWS, [3], STATISTICS, STATISTICS, None, None, [True, False, False])), SHAPES),
    (Sample(aten._scaled_dot_product_flash_attention_for_cpu.default, (HEADS, HEADS, HEADS[:, :, :1])),
     "VC206 `aten._scaled_dot_product_flash_attention_for_cpu.default`: index 'k' has sizes 5 and 1"),
)  # fmt: skip


@pytest.mark.parametrize(("sample", "message"), REFUSED, ids=lambda v: str(v) if isinstance(v, Sample) else "")
def test_refused(sample: Sample, message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        evaluate_call(sample)
    assert str(refused.value) == message


def test_a_mean_over_repeated_elements_counts_them_once_in_the_gradient() -> None:
    """Torch divides by the number of elements of the first operand, whatever the second one repeats."""
    sample = Sample(aten.mse_loss_backward.default, (torch.ones((), dtype=torch.float64), SINGLE, ROWS, 1))
    (found,) = evaluate_call(sample)[1]
    assert_same(found, sample.run()[0], "gradient")
