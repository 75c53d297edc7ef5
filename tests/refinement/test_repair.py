"""Programs written in another way than their specs: the one line that is wrong is named all the same."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed._functional_collectives as collectives
from torch.distributed.tensor.placement_types import Replicate, Shard

import verifycompile
from tests.support import fake_mesh_world

R, S0 = Replicate(), Shard(0)


def spec(x, w):
    centred = (x - x.mean(0)) @ w
    return centred / centred.norm() + 0.1 * centred.softmax(0)


def verified(**faults):
    mean, on, total, twice = (faults.get(k) for k in ("mean", "on", "total", "twice"))
    with fake_mesh_world((2, 2), ("dp", "tp")) as grid:

        def parallel(x, w):
            mean_of_rows = collectives.all_reduce(x.mean(0), mean or "avg", grid[on or "tp"])
            y = (x - mean_of_rows) @ w
            squares = (y * y).sum()
            squares = squares if total == 0 else collectives.all_reduce(squares, "sum", grid["tp"])
            squares = collectives.all_reduce(squares, "sum", grid["dp"]) if twice else squares
            weights = y.exp()
            weights = weights / collectives.all_reduce(weights.sum(0), "sum", grid["tp"])
            return y * squares.rsqrt() + faults.get("share", 0.1) * weights

        return verifycompile.verify(
            parallel,
            (torch.randn(4, 4), torch.randn(4, 3)),
            {},
            spec=spec,
            mesh=grid,
            in_placements={"x": (R, S0)},
            out_placements={"output.0": (R, S0)},
        )


def line_of(report):
    location = report.findings[0].impl_location
    lines = inspect.getsourcelines(inspect.getmodule(verified))[0]
    return lines[location.line - 1].strip()


def test_right_program():
    assert verified()


@pytest.mark.parametrize(
    ("fault", "code", "line", "words"),
    [
        ({"total": 0}, "VC101", "return y * squares", "full value of `squares`, which is a partial sum over tp"),
        ({"mean": "sum"}, "VC103", "mean_of_rows =", "sums over tp, where the mean is expected"),
        ({"on": "dp"}, "VC105", "mean_of_rows =", "over dp, where tp is expected"),
        ({"twice": True}, "VC102", "squares = collectives", "over dp"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_line_whose_change_makes_the_output_right(fault, code, line, words):
    report = verified(**fault)
    finding = report.findings[0]
    assert (finding.code, report.verdict) == (code, verifycompile.Verdict.REFUTED)
    assert line_of(report).startswith(line)
    assert words in finding.message


def test_what_no_change_explains_stays_at_the_output():
    report = verified(share=0.3)
    assert report.findings[0].code == "VC107"
    assert line_of(report).startswith("return")
