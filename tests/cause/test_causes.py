"""Programs written in another way than their specs: the one line that is wrong is named all the same."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile.cause import failures
from verifycompile.cause.moves import kinds

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
            weights = y.sigmoid() if faults.get("sigmoid") else y.exp()
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


def number_of(text):
    """The line of this file that begins with ``text``, counted from 1."""
    lines, start = inspect.getsourcelines(verified)
    return start + next(place for place, line in enumerate(lines) if line.strip().startswith(text))


@pytest.mark.parametrize(
    ("fault", "code", "line", "message", "hint"),
    [
        (
            {"total": 0},
            "VC101",
            "squares = (y * y).sum()",
            "`squares` is a partial sum over `tp`; its sum over all ranks is needed",
            "all-reduce `squares` over `tp` (sum) after line {line} (checked)",
        ),
        (
            {"mean": "sum"},
            "VC103",
            "mean_of_rows =",
            "the collective sums over `tp`, where the mean is expected",
            'use "avg" in the place of "sum" at line {line} (checked)',
        ),
        (
            {"on": "dp"},
            "VC105",
            "mean_of_rows =",
            "the all-reduce runs over `dp`, where the ranks along `tp` hold the parts",
            "pass the group of `tp` to the all-reduce at line {line} (checked)",
        ),
        (
            {"twice": True},
            "VC102",
            'squares = collectives.all_reduce(squares, "sum", grid["dp"])',
            '`collectives.all_reduce(squares, "sum", grid["tp"])` is all-reduced over `dp` once too often',
            "remove the all-reduce over `dp` at line {line} (checked)",
        ),
        (
            {"share": 0.3},
            "VC108",
            "return y * squares",
            '`faults.get("share", 0.1) * weights` is computed with 0.3, where the spec has 0.1',
            "pass 0.1 in the place of 0.3 at line {line} (checked)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_line_whose_change_makes_the_program_right(fault, code, line, message, hint):
    report = verified(**fault)
    (finding,) = report.findings
    assert (finding.code, report.verdict) == (code, verifycompile.Verdict.REFUTED)
    assert line_of(report).startswith(line)
    assert finding.message == message
    assert finding.hint == hint.format(line=number_of(line))


def told(doing, error, failure=failures.failure):
    """What a report says, which the tests raise elsewhere."""
    return failure(doing, error)


@pytest.mark.parametrize("error", [KeyError("x"), AssertionError("y")])
def test_a_mistake_in_the_search_for_changes_of_a_kind_is_told_and_ends_that_kind_alone(error, monkeypatch):
    def needless_collectives(_):
        yield from ()
        raise error

    monkeypatch.setattr(kinds, "needless_collectives", needless_collectives)
    with pytest.raises(AssertionError, match="the search for a repair"):
        verified(mean="sum")
    monkeypatch.setattr(failures, "failure", told)
    (finding,) = verified(mean="sum").findings
    assert finding.hint.startswith('use "avg" in the place of "sum" at line ')
    doing = "the search for changes of a kind (`needless_collectives`)"
    assert finding.notes[-1] == f"an internal error ended {doing}: {type(error).__name__}: {error}. Please report it"


def test_what_no_change_explains_has_no_hint():
    report = verified(sigmoid=True)
    (finding,) = report.findings
    assert (finding.code, report.verdict) == ("VC107", verifycompile.Verdict.REFUTED)
    assert finding.hint is None
    assert line_of(report).startswith("return")


def doubled(x, a, b):
    return x + 2 * torch.relu(x @ a) @ b


def plain(x, a, b):
    return x + torch.relu(x @ a) @ b


@pytest.mark.parametrize(
    ("spec", "reductions", "code", "hint"),
    [
        (plain, 1, "VC103", "leave out the multiplication by 2 at line {line} (checked)"),
        (doubled, 2, "VC102", "remove the all-reduce over `tp` at line {line} (checked)"),
    ],
    ids=["a factor that the spec has not", "a factor that the spec has as well"],
)
def test_a_factor_of_two_on_two_ranks_is_no_reduction_too_many(spec, reductions, code, hint):
    """Both make a value twice too large."""
    with fake_mesh_world((2,), ("tp",)) as grid:

        def parallel(x, a, b):
            y = torch.relu(x @ a) @ b
            for _ in range(reductions):
                y = collectives.all_reduce(y, "sum", grid["tp"])
            return x + 2 * y

        tensors = [torch.randn(4, 4) for _ in range(3)]
        placements = {"x": (R,), "a": (Shard(1),), "b": (S0,)}
        report = verifycompile.verify(parallel, tensors, {}, spec=spec, mesh=grid, in_placements=placements)
    lines, start = inspect.getsourcelines(test_a_factor_of_two_on_two_ranks_is_no_reduction_too_many)
    wrong = "return x + 2 * y" if code == "VC103" else 'y = collectives.all_reduce(y, "sum", grid["tp"])'
    number = start + next(place for place, line in enumerate(lines) if line.strip() == wrong)
    finding = report.findings[0]
    assert (finding.code, report.verdict) == (code, verifycompile.Verdict.REFUTED)
    assert finding.hint == hint.format(line=number)


def test_a_reduction_too_many_of_a_gradient_is_said_to_be_in_the_backward_pass() -> None:
    """A sum of what ranks hold passes its gradient on; torch's functional all-reduce sums that of all ranks."""
    with fake_mesh_world((2,), ("tp",)) as grid:

        def parallel(x, w):
            return collectives.all_reduce(x @ w, "sum", grid["tp"])

        tensors = torch.randn(4, 3), torch.randn(3, 5, requires_grad=True)
        placements = {"x": (Shard(1),), "w": (S0,)}
        report = verifycompile.verify(parallel, tensors, {}, spec=torch.matmul, mesh=grid, in_placements=placements)
    finding, line = report.findings[0], parallel.__code__.co_firstlineno + 1
    assert (finding.code, report.verdict) == ("VC102", verifycompile.Verdict.REFUTED)
    assert finding.hint == f"remove the all-reduce over `tp` at line {line} in its backward pass (checked)"


class NormedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.RMSNorm(4), nn.RMSNorm(4)
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, x):
        y = self.down(self.up(self.first(x)).relu())
        return self.last(y)


OF_SEQUENCES = {
    "first": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
    "last": SequenceParallel(),
}

STAYS_PARTIAL = (
    "the plan gives `down` the style `RowwiseParallel` with `output_layouts=Partial()`, which leaves its result a partial "
    "sum; with `Replicate()` the style all-reduces it"
)


@pytest.mark.parametrize(
    ("plan", "line", "note"),
    [
        (OF_SEQUENCES, "", ""),
        (
            {name: style for name, style in OF_SEQUENCES.items() if name != "last"},
            "return self.last(y)",
            "`last` has no style in the plan; `first`, of the same class, has `SequenceParallel`",
        ),
        (
            {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())},
            "return self.last(y)",
            STAYS_PARTIAL,
        ),
    ],
    ids=["right", "a norm without a style", "a result that stays a partial sum"],
)
def test_what_the_plan_says_of_the_module_is_told(plan, line, note):
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(NormedTwice(), mesh, plan)
        x = DTensor.from_local(torch.randn(2, 3, 4), mesh, [Shard(1)]) if "first" in plan else torch.randn(2, 6, 4)
        report = verifycompile.verify(model, (x,), {}, spec=NormedTwice(), mesh=mesh)
    assert report.verdict is (verifycompile.Verdict.REFUTED if line else verifycompile.Verdict.VERIFIED), str(report)
    if line:
        (finding,) = report.findings
        assert (finding.code, line_of(report)) == ("VC101", line)
        assert note in (finding.label, *finding.notes)


class Padded(nn.Module):
    """The row of a table that stands for padding is zero."""

    def __init__(self, place=lambda table: table):
        super().__init__()
        self.register_buffer("table", place(torch.randn(8, 4)))

    def forward(self, x):
        self.table[3].fill_(0)
        return x @ self.table


@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_written_to_a_copy_of_a_buffer_is_told(dim):
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = Padded(lambda table: distribute_tensor(table, mesh, [Shard(dim)]))
        x = distribute_tensor(torch.randn(2, 8), mesh, [R])
        report = verifycompile.verify(model, (x,), spec=Padded())
    if dim == 1:
        assert report, str(report)
        return
    finding = report.findings[0]
    assert (report.verdict, finding.code) == (verifycompile.Verdict.REFUTED, "VC108")
    assert finding.message == "`table` stays as it was, where the spec writes to it"
    assert line_of(report) == "self.table[3].fill_(0)"
    assert finding.notes[0] == (
        "what is written to a copy is lost: a slice of a DTensor along the sharded dimension, for one, is a copy, since it "
        "is gathered first; `x.copy_(...)` of the whole writes to `x`"
    )


class Delayed(nn.Module):
    """Rounds with the scale of the call before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def largest(self, x):
        return x.abs().amax()

    def forward(self, x):
        y = x / self.scale
        self.scale.copy_(self.largest(x))
        return y


class DelayedOnRanks(Delayed):
    def __init__(self, mesh, at_once):
        super().__init__()
        self.mesh, self.at_once = mesh, at_once

    def largest(self, x):
        return collectives.all_reduce(x.abs().amax(), "max", self.mesh)

    def forward(self, x):
        if not self.at_once:
            return super().forward(x)
        self.scale.copy_(self.largest(x))
        return x / self.scale


@pytest.mark.parametrize("at_once", [True, False])
def test_a_buffer_that_is_read_after_it_is_written_is_told(at_once):
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model, rows = DelayedOnRanks(mesh, at_once), (Shard(0),)
        options = {"in_placements": {"x": rows}, "out_placements": {"output.0": rows}}
        report = verifycompile.verify(model, (torch.randn(3, 4),), spec=Delayed(), mesh=mesh, **options)
    if not at_once:
        assert report, str(report)
        return
    (finding,) = report.findings
    assert (report.verdict, finding.code) == (verifycompile.Verdict.REFUTED, "VC108")
    assert line_of(report) == "return x / self.scale"
    written = inspect.getsourcelines(DelayedOnRanks.forward)[1] + 3
    assert finding.message == (
        f"`scale` is read with what line {written} writes to it, where the spec reads what it held before"
    )
    assert finding.hint == f"read `scale` before line {written} writes to it (checked)"


def trained(model, used, wrong):
    """A step that keeps a moving average of the weights, which one function computes and another one calls."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def average():
        with torch.no_grad():
            model.mean.mul_(0.9).add_(model.up.weight, alpha=0.1)

    def step(x):
        used(x).square().sum().backward()
        if wrong:
            average()
        optimizer.step()
        if not wrong:
            average()
        optimizer.zero_grad()

    return step


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4, bias=False)
        self.register_buffer("mean", torch.zeros(4, 4))

    def forward(self, x):
        return self.up(x).tanh()


@pytest.mark.parametrize("wrong", [True, False])
def test_what_runs_too_early_is_told_where_the_order_is_said(wrong):
    with fake_mesh_world((2,), ("dp",)):
        spec, model = Averaged(), Averaged()
        step = trained(model, nn.parallel.DistributedDataParallel(model), wrong)
        parameters = {"in_placements": {"x": (Shard(0),)}}
        spec_step = trained(spec, lambda x: spec(x) / 2**0.5, wrong=False)  # the wrapper takes means
        report = verifycompile.verify_step(step, (torch.randn(2, 4),), spec=spec_step, **parameters)
    if not wrong:
        assert report, str(report)
        return
    (finding,) = report.findings
    lines, first = inspect.getsourcelines(trained)
    called, written = (
        first + [line.strip() for line in lines].index(text) for text in ("average()", "optimizer.step()")
    )
    assert (report.verdict, finding.code) == (verifycompile.Verdict.REFUTED, "VC108")
    assert finding.impl_location.line == called, str(report)
    assert finding.hint == f"read `up.weight` after line {written} has written to it (checked)"


def of_keys(q, k):
    return (q @ k.t()).softmax(-1) @ k


def moved(w, m, d):
    return w - 0.1 * (0.9 * m + d), 0.9 * m + d


def of_momentum(w, u, m, n, d):
    return *moved(w, m, d), *moved(u, n, d)


@pytest.mark.parametrize("over", ["cp", "tp"])
def test_a_gather_over_another_mesh_axis_is_told(over):
    def program(q, k):
        keys = collectives.all_gather_tensor(k, 0, grid[over])
        return of_keys(q, keys)

    lies = (Shard(0), R)
    with fake_mesh_world((2, 2), ("cp", "tp")) as grid:
        options = {"in_placements": {"q": lies, "k": lies}, "out_placements": {"output.0": lies}}
        report = verifycompile.verify(program, tuple(torch.randn(2, 2, 4)), spec=of_keys, mesh=grid, **options)
    if over == "cp":
        assert report, str(report)
        return
    (finding,) = report.findings
    assert (report.verdict, finding.code) == (verifycompile.Verdict.REFUTED, "VC105")
    assert line_of(report) == "keys = collectives.all_gather_tensor(k, 0, grid[over])"
    assert finding.message == "the all-gather runs over `tp`, where the ranks along `cp` hold the parts"
    assert finding.hint is not None
    assert finding.hint.startswith("pass the group of `cp` to the all-gather at line ")


@pytest.mark.parametrize("is_mistaken", [True, False])
def test_an_input_that_only_the_spec_reads_is_told(is_mistaken):
    def program(w, u, m, n, d):
        return of_momentum(w, u, n if is_mistaken else m, n, d)

    rows = (Shard(0),)
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = verifycompile.verify(
            program,
            tuple(torch.randn(5, 2, 3)),
            spec=of_momentum,
            mesh=mesh,
            in_placements=dict.fromkeys("wumnd", rows),
            out_placements={f"output.{place}": rows for place in range(4)},
        )
    if not is_mistaken:
        assert report, str(report)
        return
    finding = report.findings[0]
    assert (report.verdict, finding.code) == (verifycompile.Verdict.REFUTED, "VC108")
    assert finding.message == "the program never reads `m`, of which the spec computes `output.0`"
