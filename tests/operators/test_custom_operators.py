"""Operators of other libraries: read as a known function where they compute it, unknown otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.operators.call import RefusedError, Sample, leaf_name, lower_call
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.operators.custom_operators import KNOWN, recognise
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.operators import evaluate

TEST = "verifycompile_test"


def product(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    result = rows.new_zeros(rows.size(0), matrices.size(2))
    start = 0
    for number, end in enumerate(ends.tolist()):
        result[start:end] = rows[start:end] @ matrices[number]
        start = end
    return result


def unfinished(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Leaves one behind the last group."""
    result = product(rows, matrices, ends)
    result[int(ends[-1]) :] = 1.0
    return result


def shifted(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return product(rows, matrices.flip(0), ends)


def transposed(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return product(rows, matrices.transpose(1, 2), ends)


def gradients(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    starts = [0, *ends.tolist()[:-1]]
    outer = [rows[s:e].T @ gradient[s:e] for s, e in zip(starts, ends.tolist(), strict=True)]
    return product(gradient, matrices.transpose(1, 2), ends), torch.stack(outer)


def exchanged(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return gradients(rows, matrices, ends, gradient)[::-1]


THREE, FOUR = "(Tensor a, Tensor b, Tensor c) -> Tensor", "(Tensor a, Tensor b, Tensor c, Tensor d) -> (Tensor, Tensor)"
OPERATORS: dict[str, tuple[Callable[..., Any], str, str | None]] = {
    "product": (product, THREE, KNOWN[0].name),
    "transposed": (transposed, THREE, KNOWN[1].name),
    "gradients": (gradients, FOUR, KNOWN[2].name),
    "unfinished": (unfinished, THREE, None),
    "shifted": (shifted, THREE, None),
    "exchanged": (exchanged, FOUR, None),
}


@pytest.fixture(scope="session")
def library() -> Iterator[None]:
    """Kept to the end: torch collects its decompositions from all libraries, and fails on one that is gone."""
    library = torch.library.Library(TEST, "DEF")
    for name, (function, schema, _) in OPERATORS.items():
        library.define(name + schema)
        library.impl(name, function, "CPU")
    yield
    library._destroy()


def overload(name: str) -> Any:
    return getattr(torch.ops, TEST).__getattr__(name).default


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.usefixtures("library")
def test_an_operator_is_what_it_computes(name: str) -> None:
    found = recognise(overload(name))
    assert (None if found is None else found.function.name) == OPERATORS[name][2]


@pytest.mark.usefixtures("library")
def test_the_witness_runs_what_is_recognised_alone() -> None:
    tensors = KNOWN[0].sample(torch.Generator().manual_seed(0), 1)
    narrow = [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]
    found = evaluate(overload("product"), narrow, {})
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float64
    with pytest.raises(EvaluationError, match="no interpretation of the operator"):
        evaluate(overload("shifted"), tensors, {})


def test_operators_of_torch_are_not_guessed() -> None:
    assert recognise(torch.ops.aten.addmm.default) is None
    assert recognise(torch.ops._c10d_functional.wait_tensor.default) is None
    assert recognise(torch.relu) is None


@pytest.mark.parametrize("name", [name for name, (*_, known) in OPERATORS.items() if known is not None])
@pytest.mark.parametrize("trial", range(6))
@pytest.mark.usefixtures("library")
def test_what_is_declared_is_what_is_computed(name: str, trial: int) -> None:
    found = recognise(overload(name))
    assert found is not None
    tensors = found.function.sample(torch.Generator().manual_seed(trial + 100), trial)
    recorded = overload(name)(*tensors)
    pool = TermPool()
    leaves = [pool.leaf(leaf_name(k), tuple(t.shape)) for k, t in enumerate(tensors)]
    views = lower_call(Sample(overload(name), tensors, {}), leaves, recorded, pool=pool)
    assert list(pool.assumptions) == [found.assumption]
    evaluator = Evaluator({leaf_name(k): t for k, t in enumerate(tensors)})
    results = recorded if isinstance(recorded, tuple) else (recorded,)
    for view, result in zip(views, results, strict=True):
        assert view is not None
        torch.testing.assert_close(evaluator.view(view), result)


@pytest.mark.usefixtures("library")
def test_an_operator_that_is_not_recognised_is_unknown() -> None:
    tensors = KNOWN[0].sample(torch.Generator().manual_seed(0), 0)
    target = overload("shifted")
    pool = TermPool()
    leaves = [pool.leaf(leaf_name(k), tuple(t.shape)) for k, t in enumerate(tensors)]
    with pytest.raises(RefusedError, match="has no declaration"):
        lower_call(Sample(target, tensors, {}), leaves, target(*tensors), pool=pool)
