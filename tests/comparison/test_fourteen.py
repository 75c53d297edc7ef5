"""TTrace's fourteen bugs and others are found, each with module and line; their right twins are no false alarm."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

from tests.comparison.fourteen import BUGS, Bug
from tests.comparison.further import FURTHER
from tests.comparison.programs import on_ranks
from verifycompile import CompareReport, Verdict

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
ALL = {**BUGS, **FURTHER}


def each(table: dict[str, Bug]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bug", table.values(), ids=[name.replace(" ", "_") for name in table])


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def number_of(bug: Bug) -> str:
    return next(name for name, other in ALL.items() if other is bug).partition(" ")[0]


def found(bug: Bug, wrong: bool, dtype: torch.dtype, seed: int = 0) -> CompareReport:
    def build(mesh: Any) -> Any:
        torch.manual_seed(seed)
        return bug.build(mesh, wrong).to(dtype)

    torch.manual_seed(seed)
    spec = bug.spec().to(dtype)
    return on_ranks(build, bug.inputs(dtype), bug.shape, bug.names, spec=spec, seed=seed, **bug.options)


@pytest.mark.sampled(every=2, of=("bug",))
@pytest.mark.parametrize(
    ("bug", "dtype"),
    [
        pytest.param(bug, dtype, id=f"{name.replace(' ', '_')}-{str(dtype).removeprefix('torch.')}")
        for name, bug in ALL.items()
        for dtype in bug.found_in
    ],
)
def test_the_bug_is_found_and_its_module_and_line_named(bug: Bug, dtype: torch.dtype) -> None:
    report = found(bug, True, dtype)
    assert report.verdict is bug.verdict, str(report)
    place = report.findings[0].impl_location
    assert place is not None, str(report)
    numbers = linecache.getline(place.file, place.line).partition("named: ")[2].split(", ")
    assert number_of(bug) in (number.strip() for number in numbers), str(report)
    named = [place, *(label.location for label in report.findings[0].labels)]
    assert bug.module in [place.module for place in named if place is not None], str(report)


@pytest.mark.sampled(every=2, of=("bug",))
@each(ALL)
@DTYPES
def test_the_right_twin_is_no_false_alarm(bug: Bug, dtype: torch.dtype) -> None:
    report = found(bug, False, dtype)
    assert report.verdict is Verdict.VERIFIED, str(report)


def test_means_of_the_ranks_that_are_the_same_number_by_chance() -> None:
    """Gradients of activations are twice the spec's then as well, as each rank begins with its own mean."""
    bug = FURTHER["17 sum for a mean"]
    right, wrong = (found(bug, wrong, torch.bfloat16, 9) for wrong in (False, True))
    (output,) = (item for item in right.tensors if item.name == "output.0")
    assert output.layout_text == "replicated over dp"
    assert right.verdict is Verdict.VERIFIED, str(right)
    assert wrong.verdict is Verdict.REFUTED, str(wrong)


@pytest.mark.sweep
@each(BUGS)
@DTYPES
@pytest.mark.parametrize("seed", range(1, 20))
def test_no_false_alarm_over_many_seeds(bug: Bug, dtype: torch.dtype, seed: int) -> None:
    report = found(bug, False, dtype, seed)
    assert report.verdict is Verdict.VERIFIED, str(report)
