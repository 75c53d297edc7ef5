"""How the engine's result, the programs' blockers and the numeric witness become one report.

The engine and the witness are replaced: what they find on real programs is tested with them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
import torch.fx

from verifycompile import findings_of_proofs, refutation, two_programs
from verifycompile.diagnostics import locate
from verifycompile.diagnostics.locate import nearest_location
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.program import Blocker, OutputKind, Program, ProgramOutput, SourceLocation
from verifycompile.reduction.search import Search
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.refinement.result import RefinementResult

UNPROVED_NOTE = "no concrete input was found on which the programs differ, so this is unproved, not refuted"
WITNESS = types.SimpleNamespace(
    output="output.0",
    rank=1,
    index=(0,),
    spec_value=1.0,
    impl_value=2.0,
    inputs={"x": torch.tensor([1.0])},
    seed=3,
    detail="",
    premise="",
    shown=None,
)


def graph() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(lambda x: torch.sin(x) + 1)


def location(node: torch.fx.Node) -> SourceLocation | None:
    """Only the addition has a line of its own."""
    return SourceLocation("model.py", 7) if node.name == "add" else None


@pytest.fixture(autouse=True)
def source_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "model_location_of", location)
    monkeypatch.setattr(findings_of_proofs, "model_location_of", location)


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    def run(
        result: RefinementResult,
        witness: object = None,
        blockers: tuple[Blocker, ...] = (),
        options: Options | None = None,
        outputs: tuple[ProgramOutput, ...] = (),
    ) -> Report:
        def find_difference(spec: Program, implementation: Program, proved: Collection[str], *, output: str) -> Search:
            assert proved is result.relations
            assert result.mismatch is None or output == result.mismatch.output
            if isinstance(witness, Exception):
                raise witness
            found: Any = witness
            return Search(found, spec, implementation, "" if witness else UNPROVED_NOTE)

        monkeypatch.setattr(two_programs, "check_refinement", lambda *_: result)
        monkeypatch.setattr(refutation, "find_difference", find_difference)
        monkeypatch.setattr(refutation, "_causes", lambda *_: ((), []))  # the outputs are nodes of other graphs
        spec = Program(graph(), (), outputs, assumptions=("a",), seconds=1.0)
        implementation = Program(graph(), (), outputs, blockers=blockers, assumptions=("b", "a"), seconds=3.0)
        return two_programs.verify_programs(spec, implementation, options or Options())

    return run


def node(name: str) -> torch.fx.Node:
    return next(node for node in graph().graph.nodes if node.name == name)


def mismatch(code: str = "VC101", **fields: Any) -> RefinementResult:
    found = Mismatch(code, "the message", "output.0", node("sin"), node("sin"), **fields)
    return RefinementResult(relations={"output.1": "output.1"}, mismatch=found, assumptions=("c",))


def test_verified(verify: Callable[..., Report]) -> None:
    report = verify(RefinementResult({"output.0": "output.0"}, None, ("c",), spec_nodes=4, impl_nodes=5))
    assert report.verdict is Verdict.VERIFIED
    assert report.relations == {"output.0": "output.0"}
    assert report.assumptions == ("a", "b", "c")
    assert (report.stats.spec_nodes, report.stats.implementation_nodes, report.stats.capture_seconds) == (4, 5, 4.0)
    assert report.stats.peak_memory > 2**20
    assert report.certificate is not None
    assert report.certificate.assumptions == ("a", "b", "c")


def test_a_mismatch_with_a_witness_is_refuted(verify: Callable[..., Report]) -> None:
    report = verify(
        mismatch(impl_label="here", origin_node=node("add"), origin_label="there", notes=("a note",), followers=2),
        WITNESS,
    )
    assert report.verdict is Verdict.REFUTED
    assert report.certificate is None
    (finding,) = report.findings
    assert (finding.code, finding.verdict, finding.severity) == ("VC101", Verdict.REFUTED, Severity.ERROR)
    assert finding.impl_location == SourceLocation("model.py", 7)
    assert [(label.location.line, label.text) for label in finding.labels] == [(7, "there")]
    assert (finding.label, finding.notes, finding.followers) == ("here", ("a note",), 2)
    counterexample = finding.counterexample
    assert counterexample is not None
    assert (counterexample.output, counterexample.rank, counterexample.seed) == ("output.0", 1, 3)
    assert (counterexample.spec_value, counterexample.implementation_value) == (1.0, 2.0)


def test_a_mismatch_without_a_witness_is_unproved(verify: Callable[..., Report]) -> None:
    report = verify(mismatch())
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].severity is Severity.ERROR
    assert report.findings[0].notes == (UNPROVED_NOTE,)
    assert str(report).startswith("unproved[VC101]: partial sum used where the full value is needed (suspected)\n")


def test_unproved_is_a_warning_where_the_user_says_so(verify: Callable[..., Report]) -> None:
    warn = Options(on_unproved="warn")
    assert verify(mismatch(), options=warn).findings[0].severity is Severity.WARNING
    assert verify(mismatch(), WITNESS, options=warn).findings[0].severity is Severity.ERROR


def test_a_witness_that_fails_leaves_the_finding_unproved(verify: Callable[..., Report]) -> None:
    report = verify(mismatch(), RuntimeError("no kernel"))
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].notes == ("the programs could not be compared numerically: RuntimeError: no kernel",)


def test_a_difference_behind_a_blocker_is_refuted_without_blaming_the_line(verify: Callable[..., Report]) -> None:
    report = verify(mismatch("VC201"), WITNESS)
    assert report.verdict is Verdict.REFUTED
    found = report.findings[0]
    assert (found.code, found.message, found.label) == (
        "VC107",
        "`output.0` differs from the spec's",
        "the proof stopped here",
    )
    stopped = "that the programs differ is certain; that this line is the cause is not: the proof stopped here"
    assert found.notes == (f"{stopped} (VC201: the message)",)
    assert str(report).startswith("error[VC107]: another value than the spec's\n")


def test_a_difference_of_another_output_is_told_at_that_output(verify: Callable[..., Report]) -> None:
    outputs = tuple(
        ProgramOutput(node(name), OutputKind.VALUE, f"output.{i}", i) for i, name in enumerate(("sin", "add"))
    )
    witness = types.SimpleNamespace(**{**vars(WITNESS), "output": "output.1"})
    report = verify(mismatch("VC107", impl_label="no relation"), witness, outputs=outputs)
    found = report.findings[0]
    assert (found.code, found.verdict, found.output) == ("VC107", Verdict.REFUTED, "output.1")
    assert (found.message, found.label) == ("`output.1` differs from the spec's", "")
    assert found.impl_location == found.spec_location == SourceLocation("model.py", 7)
    assert found.notes == ("the proof stopped at another output: the message",)
    assert verify(mismatch("VC107"), WITNESS, outputs=outputs).findings[0].message == "the message"


def test_a_blocker_is_never_verified(verify: Callable[..., Report]) -> None:
    blocker = Blocker(node("add"), "VC206", "a stride")
    report = verify(RefinementResult({"output.0": "output.0"}, None), blockers=(blocker,))
    assert report.verdict is Verdict.UNPROVED
    assert [(finding.code, finding.message) for finding in report.findings] == [("VC206", "a stride")]
    assert report.findings[0].impl_location == SourceLocation("model.py", 7)
    assert report.certificate is None


def test_a_blocker_that_the_engine_reports_is_not_repeated(verify: Callable[..., Report]) -> None:
    blockers = (Blocker(node("sin"), "VC206", "the message"), Blocker(node("add"), "VC202", "another"))
    report = verify(mismatch("VC206"), blockers=blockers)
    assert [finding.code for finding in report.findings] == ["VC206", "VC202"]


def test_one_cause_is_one_finding(verify: Callable[..., Report]) -> None:
    blockers = (Blocker(node("add"), "VC202", "the same"), Blocker(node("sin"), "VC202", "the same"))
    assert len(verify(RefinementResult({}, None), blockers=blockers).findings) == 1


def test_what_no_declaration_covers_says_what_to_do(verify: Callable[..., Report]) -> None:
    blockers = (Blocker(node("add"), "VC202", "the message"), Blocker(node("sin"), "VC206", "another"))
    found = {finding.code: finding.notes for finding in verify(RefinementResult({}, None), blockers=blockers).findings}
    assert found["VC202"][-1] == (
        "write this call with arguments and dtypes that are declared (docs/operators.md), verify the model without it "
        "(a cast to a narrower dtype is rounding), or extend the declaration (CONTRIBUTING, `Add an operator`); a "
        "waiver lets a job go on for a time"
    )
    assert found["VC206"] == ()


@pytest.mark.parametrize("code", ["VC203", "VC204"])
def test_a_graph_of_one_rank_is_neither_proved_nor_evaluated(verify: Callable[..., Report], code: str) -> None:
    blocker = Blocker(node("add"), code, "only this rank")
    report = verify(mismatch(), WITNESS, blockers=(blocker,))
    assert report.verdict is Verdict.UNPROVED
    assert [finding.code for finding in report.findings] == [code]


def test_locations() -> None:
    traced = graph().graph
    names = {node.name: node for node in traced.nodes}
    assert nearest_location(names["x"], location) == SourceLocation("model.py", 7)
    assert nearest_location(names["output"], location) == SourceLocation("model.py", 7)
    assert nearest_location(None, location) is None
    assert nearest_location(names["x"], lambda _: None) is None


def test_the_nearest_user_comes_first() -> None:
    names = {node.name: node for node in graph().graph.nodes}
    lines = {"x": 1, "add": 3}

    def locate(node: torch.fx.Node) -> SourceLocation | None:
        return SourceLocation("model.py", lines[node.name]) if node.name in lines else None

    assert nearest_location(names["sin"], locate) == SourceLocation("model.py", 3)
