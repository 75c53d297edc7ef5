"""What a person or a tool reads of a report, verbatim."""

from __future__ import annotations

import dataclasses
import json
import linecache
import re
import textwrap
from pathlib import Path

import pytest

from verifycompile.diagnostics import render_concise, render_github, render_text
from verifycompile.diagnostics.describe import counterexample_lines
from verifycompile.diagnostics.finding import Counterexample, Finding, Label, Sparse
from verifycompile.diagnostics.report import Report, Stats
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation
from verifycompile.refinement.result import NodeCounts
from verifycompile.refinement.stages import StageCost

SOURCE = """\
class Block(nn.Module):
    def forward(self, x):
        h = F.relu(self.up(x))

        y = self.down(h)
        return x + F.layer_norm(y, y.shape[-1:])
"""
CALL = SourceLocation("model.py", 6, 20, 49, "forward", "layers.0")
ORIGIN = SourceLocation("model.py", 5, 13, 25, "forward", "layers.0.down")
COUNTEREXAMPLE = Counterexample(
    inputs={"x": [1.0, 0.0], "down.weight": [[1.0, 0.5], [0.0, -1.0]]},
    spec_value=1.0,
    implementation_value=0.0,
    rank=1,
    output="output.0",
    index=(0, 1),
    seed=7,
)
FINDING = Finding(
    code="VC101",
    severity=Severity.ERROR,
    message="partial sum used where the full value is needed",
    spec_location=CALL,
    impl_location=CALL,
    relation_found="layer_norm(y) on each rank",
    relation_expected="layer_norm(sum of y over tp)",
    hint="`all_reduce(y, 'tp')` after line 5 makes this node verify (checked)",
    counterexample=COUNTEREXAMPLE,
    verdict=Verdict.REFUTED,
    label="layer_norm is not linear, but `y: f32[4, 8]| P(sum)` on mesh axis `tp`",
    labels=(Label(ORIGIN, "`y` became partial here: the contracted dimension is sharded over `tp`"),),
    output="output.0",
    followers=12,
)
REFUTED = Report(Verdict.REFUTED, findings=(FINDING,))
UNPROVED = Report(
    Verdict.UNPROVED,
    findings=(
        Finding("VC201", Severity.ERROR, "operator `my_library.rotate.default` has no declaration", impl_location=CALL),
        Finding("VC206", Severity.ERROR, "the output `output.1` is not a tensor"),
    ),
    assumptions=("input `x` is Replicate (default)", "input `x` is Replicate (default)"),
)
VERIFIED = Report(
    Verdict.VERIFIED,
    relations={"output.0": "output.0", "grad.weight": "sum over tp of grad.weight"},
    assumptions=("input `x` is Replicate (default)",),
    stats=Stats(
        spec_nodes=447,
        implementation_nodes=757,
        spec_capture_seconds=1.2,
        implementation_capture_seconds=2.8,
        verification_seconds=0.5,
        peak_memory=2**30,
        counts=NodeCounts(memo=300, normal_form=147),
        stages={"memo": StageCost(0.25, 600, 0.25, 0.5)},
    ),
)


@pytest.fixture(autouse=True)
def source_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Relative paths in a folder of its own; linecache must forget the files of other tests."""
    linecache.clearcache()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(SOURCE)
    return tmp_path


def located(source: Path, finding: Finding) -> Finding:
    """The finding with absolute paths, as torch records them."""

    def absolute(location: SourceLocation) -> SourceLocation:
        return dataclasses.replace(location, file=str(source / location.file))

    assert finding.impl_location is not None
    assert finding.spec_location is not None
    return dataclasses.replace(
        finding,
        impl_location=absolute(finding.impl_location),
        spec_location=absolute(finding.spec_location),
        labels=tuple(Label(absolute(label.location), label.text) for label in finding.labels),
    )


def test_refuted(source_files: Path) -> None:
    report = Report(Verdict.REFUTED, findings=(located(source_files, FINDING),))
    assert str(report) == textwrap.dedent(
        """\
        error[VC101]: partial sum used where the full value is needed
         --> model.py:6:20
          |
        6 |         return x + F.layer_norm(y, y.shape[-1:])
          |                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ layer_norm is not linear, but `y: f32[4, 8]| P(sum)` on mesh axis `tp`
        5 |         y = self.down(h)
          |             ------------ `y` became partial here: the contracted dimension is sharded over `tp`
          = note: relation expected: layer_norm(sum of y over tp)
          = note: relation found: layer_norm(y) on each rank
          = note: output `output.0`, module `layers.0`
          = note: 12 more outputs or nodes without a relation follow from this
          = note: counterexample (seed 7): `output.0` at [0, 1] is 1 in the spec, 0 on rank 1
                  x = [1, 0]
                  down.weight = [[1, 0.5], [0, -1]]
          = help: `all_reduce(y, 'tp')` after line 5 makes this node verify (checked)
          = see: verifycompile explain VC101"""
    )


def test_unproved(source_files: Path) -> None:
    assert str(UNPROVED) == textwrap.dedent(
        """\
        unproved[VC201]: operator without declaration
         --> model.py:6:20
          |
        6 |         return x + F.layer_norm(y, y.shape[-1:])
          |                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ operator `my_library.rotate.default` has no declaration
          = note: module `layers.0`
          = see: verifycompile explain VC201

        unproved[VC206]: value or layout that cannot be represented
          = note: the output `output.1` is not a tensor
          = see: verifycompile explain VC206

        assumed:
         - input `x` is Replicate (default)

        unproved: the parallel program is neither verified nor refuted; what blocked the proof is listed above"""
    )


def test_verified() -> None:
    assert str(VERIFIED) == textwrap.dedent(
        """\
        verified: every output of the spec is a clean expression of the parallel program's outputs
         = compared: spec recovered from the model as it stands; 1 rank assumed to run what this process captured
         = relations: 2, over the real numbers (rounding is outside of the proof)
         = nodes: spec 447, implementation 757; proved by memo 300, normal form 147, ring 0, e-graph 0, solver 0
         = seconds: capture 1.20 (spec) + 2.80 (implementation), verification 0.50, ratio 0.12
         = assumption: input `x` is Replicate (default)"""
    )


def test_many_assumptions_are_cut() -> None:
    report = dataclasses.replace(VERIFIED, assumptions=tuple(f"guard {number}" for number in range(30)))
    lines = str(report).splitlines()
    assert lines[5] == " = assumption: guard 0"
    assert lines[-1] == " = assumption: 23 more: see `report.assumptions`"
    assert len(lines) == 13


def test_a_spec_in_another_file_is_shown(source_files: Path) -> None:
    (source_files / "spec.py").write_text("def spec(x):\n    return norm(x)\n")
    spec = SourceLocation("spec.py", 2, 12, 19)
    finding = Finding("VC107", Severity.ERROR, "no relation found", spec_location=spec, impl_location=ORIGIN)
    assert render_text.render_finding(finding) == textwrap.dedent(
        """\
        unproved[VC107]: no relation found
         --> model.py:5:13
          |
        5 |         y = self.down(h)
          |             ^^^^^^^^^^^^
         ::: spec.py:2:12
          |
        2 |     return norm(x)
          |            ------- the spec computes it here
          = note: module `layers.0.down`
          = see: verifycompile explain VC107"""
    )


def test_a_label_does_not_replace_the_message() -> None:
    finding = Finding("VC102", Severity.ERROR, "summed over tp twice", impl_location=ORIGIN, label="the second sum")
    assert render_text.render_finding(finding).splitlines()[4:6] == [
        "  |             ^^^^^^^^^^^^ the second sum",
        "  = note: summed over tp twice",
    ]


def test_only_the_spec_is_located() -> None:
    finding = Finding("VC107", Severity.ERROR, "no relation found", spec_location=ORIGIN)
    assert render_text.render_finding(finding).splitlines()[1] == " --> model.py:5:13"


def test_two_labels_on_one_line_share_it() -> None:
    argument = SourceLocation("model.py", 6, 33, 34)
    finding = dataclasses.replace(FINDING, label="here", labels=(Label(argument, "this operand"),))
    assert render_text.render_finding(finding).splitlines()[3:6] == [
        "6 |         return x + F.layer_norm(y, y.shape[-1:])",
        "  |                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ here",
        "  |                                 - this operand",
    ]


def test_a_location_without_an_end_underlines_the_statement() -> None:
    finding = dataclasses.replace(FINDING, impl_location=SourceLocation("model.py", 5), label="", labels=())
    lines = render_text.render_finding(finding).splitlines()
    assert lines[3:5] == ["5 |         y = self.down(h)", "  |         ^^^^^^^^^^^^^^^^"]


@pytest.mark.parametrize("line", [4, 99])
def test_a_line_without_source_keeps_its_label(line: int) -> None:
    finding = Finding(
        "VC107", Severity.ERROR, "no relation found", impl_location=SourceLocation("model.py", line), label="here"
    )
    assert f"{line} | (source not available) here" in render_text.render_finding(finding).splitlines()


def test_long_lines_are_cut_around_the_place(source_files: Path) -> None:
    (source_files / "long.py").write_text("x = [" + "1234567890, " * 50 + "f(y), " + "1234567890, " * 50 + "]\n")
    finding = Finding(
        "VC107", Severity.ERROR, "no relation found", impl_location=SourceLocation("long.py", 1, 606, 610)
    )
    source, marks = render_text.render_finding(finding).splitlines()[3:5]
    assert source == "1 | ...567890, 1234567890, f(y), " + "1234567890, " * 7 + "1234..."
    assert marks == "  |                        ^^^^"


def test_tabs_are_expanded(source_files: Path) -> None:
    (source_files / "tabs.py").write_text("def f(x):\n\treturn\tg(x)\n")
    finding = Finding("VC107", Severity.ERROR, "no relation found", impl_location=SourceLocation("tabs.py", 2, 9, 13))
    assert render_text.render_finding(finding).splitlines()[3:5] == [
        "2 |     return    g(x)",
        "  |               ^^^^",
    ]


def test_concise() -> None:
    assert render_concise.render_report(REFUTED) == (
        "model.py:6:20: error[VC101]: partial sum used where the full value is needed"
    )
    assert render_concise.render_report(UNPROVED).splitlines() == [
        "model.py:6:20: unproved[VC201]: operator `my_library.rotate.default` has no declaration",
        "unproved[VC206]: the output `output.1` is not a tensor",
    ]
    assert render_concise.render_report(VERIFIED) == "verified: 2 relations"


def test_github() -> None:
    finding = dataclasses.replace(FINDING, message="10% of `a`, `b`", label="")
    assert render_github.render_finding(finding) == (
        "::error file=model.py,line=6,col=20,title=VC101::error[VC101]: 10%25 of `a`, `b`"
    )
    assert render_github.render_report(UNPROVED).splitlines()[1] == (
        "::error title=VC206::unproved[VC206]: the output `output.1` is not a tensor"
    )
    assert render_github.render_report(VERIFIED) == ""


def test_json_of_a_refuted_report() -> None:
    data = json.loads(REFUTED.to_json())
    assert list(data) == [
        "schema",
        "verdict",
        "question",
        "relations",
        "findings",
        "assumptions",
        "strategies",
        "second_look",
        "stats",
    ]
    assert (data["schema"], data["verdict"]) == (1, "refuted")
    (finding,) = data["findings"]
    assert finding["impl_location"] == {
        "file": "model.py",
        "line": 6,
        "column": 20,
        "end_column": 49,
        "function": "forward",
        "module": "layers.0",
    }
    assert finding["counterexample"] == {
        "output": "output.0",
        "index": [0, 1],
        "rank": 1,
        "spec_value": 1.0,
        "implementation_value": 0.0,
        "seed": 7,
        "detail": "",
        "premise": "",
        "mesh": {},
        "inputs": {"x": [1.0, 0.0], "down.weight": [[1.0, 0.5], [0.0, -1.0]]},
    }


def test_json_of_a_verified_report() -> None:
    data = json.loads(VERIFIED.to_json())
    assert data["relations"] == {"output.0": "output.0", "grad.weight": "sum over tp of grad.weight"}
    assert data["stats"] == {
        "spec_nodes": 447,
        "implementation_nodes": 757,
        "spec_capture_seconds": 1.2,
        "implementation_capture_seconds": 2.8,
        "verification_seconds": 0.5,
        "peak_memory": 1073741824,
        "counts": {"memo": 300, "normal_form": 147, "ring": 0, "egraph": 0, "solver": 0, "unrelated": 0},
        "stages": {"memo": {"seconds": 0.25, "count": 600, "median": 0.25, "percentile_95": 0.5}},
        "attempts": [],
        "capture_seconds": 4.0,
        "ratio": 0.125,
    }


def test_json_has_no_infinities() -> None:
    endless = dataclasses.replace(COUNTEREXAMPLE, implementation_value=float("inf"), inputs={"x": [float("nan")]})
    report = Report(Verdict.REFUTED, findings=(dataclasses.replace(FINDING, counterexample=endless),))

    def reject(constant: str) -> None:
        pytest.fail(constant)

    counterexample = json.loads(report.to_json(), parse_constant=reject)["findings"][0]["counterexample"]
    assert counterexample["implementation_value"] == "inf"
    assert counterexample["inputs"]["x"] == ["nan"]


@pytest.mark.parametrize("value", ["float64[100], -2.1 to 1.9", [1.0] * 49])
def test_large_inputs_are_left_to_the_seed(value: object) -> None:
    large = dataclasses.replace(COUNTEREXAMPLE, inputs={"x": value})
    report = Report(Verdict.REFUTED, findings=(dataclasses.replace(FINDING, counterexample=large),))
    assert json.loads(report.to_json())["findings"][0]["counterexample"]["inputs"] == {"x": value}
    assert "x = " not in str(report)


def test_inputs_that_are_nearly_all_zeros() -> None:
    few = Sparse((64, 16), (((0, 0), 1.0), ((3, 2), -1.5)))
    inputs = {"x": few, "labels": [0, -100], "bias": [0.0, 0.0], "up.weight": Sparse((64, 64), ())}
    found = dataclasses.replace(COUNTEREXAMPLE, inputs=inputs, mesh={"dp": 2, "tp": 4}, premise="a premise")
    assert counterexample_lines(found) == [
        "counterexample (dp=2, tp=4): `output.0` at [0, 1] is 1 in the spec, 0 on rank 1",
        "a premise",
        "x[0, 0] = 1, x[3, 2] = -1.5",
        "labels = [0, -100]",
        "everything else is 0",
    ]
    report = Report(Verdict.REFUTED, findings=(dataclasses.replace(FINDING, counterexample=found),))
    assert json.loads(report.to_json())["findings"][0]["counterexample"]["inputs"]["x"] == {
        "shape": [64, 16],
        "elements": [{"index": [0, 0], "value": 1.0}, {"index": [3, 2], "value": -1.5}],
    }
    zeros = dataclasses.replace(found, inputs={"x": [0.0]}, premise="")
    assert counterexample_lines(zeros)[1:] == ["all inputs are 0"]


def test_a_counterexample_of_another_shape() -> None:
    nan = float("nan")
    shape = dataclasses.replace(
        COUNTEREXAMPLE, inputs={}, spec_value=nan, implementation_value=nan, detail="shape (4,), the spec's is (8,)"
    )
    assert counterexample_lines(shape) == [
        "counterexample (seed 7): `output.0` has another shape than in the spec: shape (4,), the spec's is (8,)"
    ]


def test_a_counterexample_with_a_detail() -> None:
    lines = counterexample_lines(dataclasses.replace(COUNTEREXAMPLE, inputs={}, detail="under no clean relation"))
    assert lines == [
        "counterexample (seed 7): `output.0` at [0, 1] is 1 in the spec, 0 on rank 1 (under no clean relation)"
    ]


def test_sarif() -> None:
    log = json.loads(REFUTED.to_sarif())
    assert (log["$schema"], log["version"]) == ("https://json.schemastore.org/sarif-2.1.0.json", "2.1.0")
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["VC101"]
    (result,) = run["results"]
    assert result["ruleId"] == "VC101"
    assert result["level"] == "error"
    assert result["message"] == {"text": "error[VC101]: partial sum used where the full value is needed"}
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "model.py"},
        "region": {"startLine": 6, "startColumn": 20, "endColumn": 49},
    }
    elsewhere = dataclasses.replace(FINDING, impl_location=SourceLocation("my models/m.py", 1))
    (other,) = json.loads(Report(Verdict.REFUTED, findings=(elsewhere,)).to_sarif())["runs"][0]["results"]
    assert other["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "my%20models/m.py"}
    assert json.loads(VERIFIED.to_sarif())["runs"][0]["results"] == []


def test_html(source_files: Path) -> None:
    finding = dataclasses.replace(FINDING, message="<b> & co")
    Report(Verdict.REFUTED, findings=(finding,), assumptions=("x < y",)).save_html(source_files / "report.html")
    page = (source_files / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "note: &lt;b&gt; &amp; co" in page
    assert "<li>x &lt; y</li>" in page
    assert "http" not in page


def test_html_has_the_relations_of_each_part_of_the_model(tmp_path: Path) -> None:
    names = ("output.0", "grad.layers.0.up.weight", "grad.layers.0.down.weight", "grad.layers.1.up.weight")
    relations = dict.fromkeys((*names, "grad.norm.weight", "mutation.norm.mean"), "x<y>")
    Report(Verdict.VERIFIED, relations=relations).save_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    parts = re.findall(r"<summary>(.*?)</summary>", page)
    assert parts == ["outputs (1)", "layers.0 (2)", "layers.1 (1)", "norm (2)"]
    assert page.count("<code>x&lt;y&gt;</code>") == 6
    assert "<script" not in page


@pytest.mark.parametrize("report", [REFUTED, UNPROVED, VERIFIED], ids=lambda report: report.verdict.value)
def test_only_verified_is_true(report: Report) -> None:
    assert bool(report) is (report.verdict is Verdict.VERIFIED)


def test_what_is_unproved_is_never_called_a_bug() -> None:
    for text in (str(UNPROVED), UNPROVED.to_json(), UNPROVED.to_sarif()):
        assert "bug" not in text.lower()


@pytest.mark.parametrize(
    ("verdict", "findings", "message"),
    [
        (Verdict.VERIFIED, (FINDING,), "a verified report has no findings"),
        (Verdict.UNPROVED, (), "a report that is unproved needs a finding"),
        (
            Verdict.REFUTED,
            (dataclasses.replace(FINDING, counterexample=None),),
            "a refuted report needs a counterexample",
        ),
    ],
)
def test_a_report_cannot_contradict_itself(verdict: Verdict, findings: tuple[Finding, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Report(verdict, findings=findings)
