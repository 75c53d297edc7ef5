"""No argument of a declared operator goes untried: each is changed alone, and the change is seen or refused.

``test_against_torch`` compares every change that torch takes with torch. This file looks for arguments that no sample
of an operator varies: a declaration that ignores one of those would pass.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from typing import Any

import pytest
import torch

from tests.operators.call import RefusedError, Sample, leaf, lower_call
from tests.operators.samples import REFUSED, SAMPLES
from tests.operators.test_against_torch import TORCH_ERRORS, attribute_variants, same_results
from tests.operators.test_collectives import COLLECTIVES
from tests.operators.test_embedding_bags import BAGS
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.registry import NEUTRAL_ARGUMENTS, declaration_of, declarations

aten = torch.ops.aten
prims = torch.ops.prims

STORAGE = "how the result or its gradient is stored"
CHECKS = "whether torch looks for an error"
NEUTRAL: dict[Any, dict[str, str]] = {
    aten.bincount.default: {"minlength": "of numbers that were chosen alone: tests/operators/test_sorted_rows.py"},
    aten.embedding.default: {"scale_grad_by_freq": "the gradient alone", "sparse": STORAGE},
    aten.gather.default: {"sparse_grad": STORAGE},
    aten.linalg_cholesky_ex.default: {"check_errors": CHECKS},
    aten.linalg_inv_ex.default: {"check_errors": CHECKS},
    aten.linalg_lu_factor_ex.default: {"check_errors": CHECKS},
    aten.linalg_ldl_factor_ex.default: {"check_errors": CHECKS, "hermitian": "real matrices are symmetric"},
    aten.linalg_ldl_solve.default: {"hermitian": "real matrices are symmetric"},
    aten._linalg_solve_ex.default: {"check_errors": CHECKS},
    aten._linalg_svd.default: {"driver": "which algorithm is used"},
    aten._native_batch_norm_legit_no_training.default: {"momentum": "nothing is updated"},
    aten._native_batch_norm_legit.no_stats: {"training": "refused: see below"},
    aten._softmax.default: {"half_to_float": "a cast between float dtypes"},
    aten._log_softmax.default: {"half_to_float": "a cast between float dtypes"},
    aten.leaky_relu_backward.default: {"self_is_result": "the sign of the result is that of the operand"},
    aten._trilinear.default: {"unroll_dim": "which dimension a loop runs over"},
    aten._cdist_forward.default: {"compute_mode": "which algorithm is used"},
    aten.isin.Tensor_Tensor: {"assume_unique": "which algorithm is used"},
    aten.isin.Tensor_Scalar: {"assume_unique": "which algorithm is used"},
    aten.max_unpool3d.default: {"stride": "only looked at for errors", "padding": "only looked at for errors"},
    prims.iota.default: {"requires_grad": "nothing to differentiate"},
}
"""Arguments that a declaration may leave out of account, with the reason."""


def _content(sample: Sample, name: str) -> Hashable:
    """The value of one argument, tensors by whether they are there."""
    value: Any = None
    for position, argument in enumerate(sample.target._schema.arguments):
        if argument.name == name:
            default = argument.default_value if argument.has_default_value() else None
            value = sample.args[position] if position < len(sample.args) else sample.kwargs.get(name, default)
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple("tensor" if isinstance(item, torch.Tensor) else repr(item) for item in items)


@functools.cache
def _samples(target: Any) -> list[Sample]:
    return [s for s in SAMPLES if s.target == target]


def _is_seen(sample: Sample, variant: Sample) -> bool:
    """Whether the change of an attribute changes what torch computes (compared elsewhere), the value, or is refused."""
    try:
        if not same_results(sample.run(), variant.run()):
            return True
    except TORCH_ERRORS:
        pass  # the declaration may take what torch does not
    return _is_seen_by_lowering(sample, variant)


def _is_seen_by_lowering(sample: Sample, variant: Sample) -> bool:
    pool = TermPool()
    views = [leaf(pool, k, t) for k, t in enumerate(sample.tensors)]
    known = lower_call(sample, views, sample.recorded(), pool=pool)
    try:
        return lower_call(variant, views, sample.recorded(), pool=pool) != known
    except RefusedError:
        return True


def _untried(target: Any) -> Iterator[str]:
    samples = _samples(target)
    refused = [s for s, _ in REFUSED if s.target == target]
    variants = [(s, change.partition("=")[0], v) for s in samples for change, v in attribute_variants(s)]
    for argument in target._schema.arguments:
        name, kind = argument.name, str(argument.real_type)
        if name in NEUTRAL_ARGUMENTS or name in NEUTRAL.get(target, {}):
            continue
        if "Tensor" in kind and "Optional" not in kind:
            continue
        declaration = declaration_of(target)
        assert declaration is not None
        if name not in declaration.arguments:
            continue  # must have its default: see test_registry.py
        if len({_content(s, name) for s in (*samples, *refused)}) > 1:
            continue
        if not any(_is_seen(s, v) for s, n, v in variants if n == name):
            yield name


@pytest.mark.parametrize("target", [t for t in declarations() if t not in (*COLLECTIVES, *BAGS)], ids=str)
def test_no_argument_is_untried(target: Any) -> None:
    assert list(_untried(target)) == []


def test_a_normalization_without_statistics_is_refused() -> None:
    """Torch's own kernel reads statistics that are not there, so that no sample can have this value."""
    (sample, *_) = [s for s in _samples(aten._native_batch_norm_legit.no_stats) if s.args[3] is True]
    variant = Sample(sample.target, (*sample.args[:3], False, *sample.args[4:]))
    assert _is_seen_by_lowering(sample, variant)


def test_arguments_that_change_nothing_are_arguments() -> None:
    for target, names in NEUTRAL.items():
        assert set(names) <= {a.name for a in target._schema.arguments}
