"""Declarations that stay although torch decomposes the operator: both give the same value."""

from __future__ import annotations

import contextlib

import pytest

from tests.ir.evaluate import Evaluator
from tests.operators.call import RefusedError, Sample, assert_same, leaf, leaf_name, lower_call
from tests.operators.samples import SAMPLES
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering import lower
from verifycompile.refinement.placement import same_value
from verifycompile.rewrites import families
from verifycompile.rewrites.registry import declaration_of, declarations
from verifycompile.torch_interface.operators.decompositions import has_decomposition

families.load()

FAMILIES = (
    "activation", "loss", "normalization", "statistics", "image_normalization", "pointwise_losses", "safe_softmax",
    "sigmoids", "softmax",
)  # fmt: skip


def _stays(sample: Sample) -> bool:
    declaration = declarations().get(sample.target)
    family = "" if declaration is None else declaration.handler.__module__.rpartition(".")[2]
    return family in FAMILIES and has_decomposition(sample.target)


def _values(sample: Sample, pool: TermPool) -> list[View | None]:
    views = [leaf(pool, k, tensor) for k, tensor in enumerate(sample.tensors)]
    return lower_call(sample, views, sample.recorded(), pool=pool)


OTHER_TERMS = frozenset({
    "_native_batch_norm_legit_no_training", "_safe_softmax", "_softmax", "binary_cross_entropy_backward", "gelu",
    "gelu_backward", "hardsigmoid_backward", "leaky_relu", "leaky_relu_backward", "log_sigmoid_forward",
    "log_sigmoid_backward", "linalg_vector_norm", "native_batch_norm_backward", "native_group_norm",
    "native_group_norm_backward", "nll_loss_backward", "nll_loss_forward", "relu", "sigmoid", "softplus",
    "softplus_backward", "special_entr", "xlogy",
})  # fmt: skip
"""Of these the declaration is the better form: equal on numbers, and its terms meet those of other programs."""

NOT_DECOMPOSED = frozenset({"count_nonzero", "var", "var_mean", *OTHER_TERMS})
"""Of these some calls have no decomposition that is taken, so that the declaration is all there is."""


@pytest.mark.parametrize("sample", [s for s in SAMPLES if _stays(s)], ids=str)
def test_a_declaration_is_the_decomposition(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, name = TermPool(), sample.target.name().removeprefix("aten::").partition(".")[0]
    declared = _values(sample, pool)
    monkeypatch.setattr(lower, "declaration_of", lambda t: None if t == sample.target else declaration_of(t))
    unfolded = None
    with contextlib.suppress(RefusedError):
        unfolded = _values(sample, pool)
    if unfolded is None:
        assert name in NOT_DECOMPOSED
        return
    evaluator = Evaluator({leaf_name(k): tensor for k, tensor in enumerate(sample.tensors)})
    for ours, theirs in zip(declared, unfolded, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is None or theirs is None or same_value(ours, theirs):
            continue
        assert name in OTHER_TERMS
        assert_same(evaluator.view(theirs), evaluator.view(ours), name)


def test_some_declarations_have_other_terms() -> None:
    """The tables name operators that are declared and decomposed."""
    tried = {s.target.name().removeprefix("aten::").partition(".")[0] for s in SAMPLES if _stays(s)}
    assert tried >= NOT_DECOMPOSED
