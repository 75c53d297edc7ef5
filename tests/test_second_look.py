"""What is proved is evaluated once as well; a difference takes the verdict back, and the report says what was done."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from benchmarks.programs import PROGRAMS
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, second_look, two_programs, verify
from verifycompile.program import Program
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.refinement.result import RefinementResult
from verifycompile.witness import EvaluationError

REDUCED = r" at reduced sizes \(1024 -> \d, 512 -> \d, 256 -> \d\)"


class Mlp(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(torch.relu(self.up(x))))


def of_mlp(width: int = 4, ranks: int = 2, *, wrong: bool = False, dropout: float = 0.0, **options: Any) -> Report:
    with fake_mesh_world((ranks,), ("tp",)) as mesh:
        model = parallelize_module(Mlp(width, dropout), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if wrong:
            down: nn.Module = model.get_submodule("down")
            down._forward_hooks.clear()
            down.register_forward_hook(lambda _module, _inputs, output: output.to_local())
        return verify(model, (torch.randn(3, width),), **options)


def accepts_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that is wrong: what a wrong declaration, lemma or memo makes of it."""

    def accepted(spec: Program, *_: object) -> RefinementResult:
        return RefinementResult({output.name: output.name for output in spec.outputs}, None)

    monkeypatch.setattr(two_programs, "check_refinement", accepted)


def test_what_is_proved_is_evaluated() -> None:
    report = of_mlp()
    assert report.verdict is Verdict.VERIFIED
    assert report.second_look is not None
    assert report.second_look.done
    assert report.second_look.text == "both programs agree on one input, on all 2 ranks, in 3 of 3 outputs"
    assert f"= second look: {report.second_look.text}" in str(report)
    assert json.loads(report.to_json())["second_look"] == {"done": True, "text": report.second_look.text}


def test_at_reduced_sizes() -> None:
    report = of_mlp(256)
    assert report.verdict is Verdict.VERIFIED
    assert report.second_look is not None
    assert re.fullmatch(
        rf"both programs agree on one input{REDUCED}, on all 2 ranks, in 3 of 3 outputs", report.second_look.text
    )


@pytest.mark.parametrize(("width", "ranks"), [(4, 2), (256, 2), (64, 64)])
def test_a_difference_takes_the_verdict_back(monkeypatch: pytest.MonkeyPatch, width: int, ranks: int) -> None:
    accepts_everything(monkeypatch)
    monkeypatch.setattr(second_look, "check_refinement", two_programs.check_refinement)
    report = of_mlp(width, ranks, wrong=True)
    assert report.verdict is Verdict.UNPROVED
    assert report.certificate is None
    (finding,) = report.findings
    assert finding.code == "VC211"
    at_sizes = {4: "", 256: REDUCED, 64: ""}[width]
    assert re.match(rf"the programs are proved equal, but on one input{at_sizes} `output\.0` at \[", finding.message)
    assert re.search(r" is -?[\d.]+ in the spec and -?[\d.]+ on rank \d+ in the implementation$", finding.message)
    assert finding.notes[0] == (
        "either the proof or the evaluation is wrong, which is a defect of verifycompile: please report it with this "
        "message, the versions of torch and verifycompile, and the program"
    )
    assert of_mlp(width, wrong=False).verdict is Verdict.VERIFIED


def test_a_difference_that_only_the_sizes_make_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    accepts_everything(monkeypatch)
    unproved = RefinementResult({}, Mismatch("VC107", "the message", "output.0"))
    monkeypatch.setattr(second_look, "check_refinement", lambda _spec, _implementation: unproved)
    report = of_mlp(256, wrong=True)
    assert report.verdict is Verdict.VERIFIED
    assert report.second_look == second_look.SecondLook(
        done=False, text="not done: what was proved does not hold at reduced sizes"
    )


def test_on_many_ranks_parts_are_of_few_kinds() -> None:
    report = of_mlp(64, 64)
    assert report.verdict is Verdict.VERIFIED
    assert report.second_look is not None
    held = "on all 64 ranks, whose parts of a tensor are of 3 kinds"
    text = f"both programs agree on one input, {held}, in 3 of 3 outputs"
    assert report.second_look.text == text


def test_not_done_where_it_would_take_long() -> None:
    report = of_mlp(512, 512)
    assert report.verdict is Verdict.VERIFIED
    assert report.second_look == second_look.SecondLook(
        done=False, text="not done: an evaluation on all ranks would take more than 5 % of the time of capture"
    )
    assert "= second look: not done: an evaluation on all ranks" in str(report)


def test_evaluated_on_one_thread_which_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    compare, before = second_look.compare_outputs, torch.get_num_threads()

    def counted(*arguments: Any) -> Any:
        threads.append(torch.get_num_threads())
        return compare(*arguments)

    monkeypatch.setattr(second_look, "compare_outputs", counted)
    torch.set_num_threads(3)
    try:
        assert of_mlp().verdict is Verdict.VERIFIED
        assert (threads, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(before)


def test_every_output_of_layers_whose_ranks_all_differ() -> None:
    """Behind causal attention no two parts of a sequence are equal, so ranks share no evaluation there."""
    with fake_mesh_world((8,), ("tp",)) as mesh:
        llama = PROGRAMS["llama-3-8b"]
        report = verify(llama.parallel(2, mesh), llama.inputs())
    assert report.second_look is not None
    assert report.second_look.text.endswith(
        "on all 8 ranks, whose parts of a tensor are of 3 kinds, in 22 of 22 outputs"
    ), report.second_look.text


def test_not_done_where_nothing_can_be_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Program) -> Any:
        raise EvaluationError("the size of an input is unknown")

    with monkeypatch.context() as patched:
        patched.setattr(second_look, "compare_outputs", fails)
        report = of_mlp()
    assert report.second_look == second_look.SecondLook(done=False, text="not done: the size of an input is unknown")
    assert report.verdict is Verdict.VERIFIED


def test_an_error_of_the_second_look_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Program) -> Any:
        raise ValueError("a defect")

    monkeypatch.setattr(two_programs, "look_again", fails)
    report = of_mlp()
    assert report.verdict is Verdict.VERIFIED
    assert report.second_look == second_look.SecondLook(done=False, text="not done: ValueError: a defect")


def test_a_refuted_program_needs_none() -> None:
    report = of_mlp(wrong=True)
    assert report.verdict is Verdict.REFUTED
    assert report.second_look is None
