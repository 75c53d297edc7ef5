"""The registry of codes, its page and the ``explain`` command."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from verifycompile.cli import main
from verifycompile.diagnostics import documentation
from verifycompile.diagnostics.code import Code
from verifycompile.diagnostics.codes import CODES, explain

ROOT = Path(__file__).parents[2]
EVERY_CODE = pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.code)


def test_the_codes_are_the_published_ones() -> None:
    assert {code: entry.title for code, entry in CODES.items()} == {
        "VC101": "partial sum used where the full value is needed",
        "VC102": "reduction done twice",
        "VC103": "wrong scale",
        "VC104": "wrong shard",
        "VC105": "wrong mesh axis",
        "VC106": "output layout other than declared",
        "VC107": "no relation found",
        "VC108": "step left out, or other than the spec's",
        "VC109": "ranks wait for different collectives",
        "VC110": "shards of a DTensor result that are not DTensor's chunks",
        "VC111": "gradients, outputs or writes of one program alone",
        "VC113": "mean over a rank's own items",
        "VC114": "statistics of a rank's own part",
        "VC115": "loss over a rank's own classes",
        "VC116": "summand added on every rank before a reduction",
        "VC117": "index, mask or offset of another rank's part",
        "VC118": "fused parameter cut across its parts",
        "VC119": "value of another turn of a loop",
        "VC120": "value beyond the rounding of both programs",
        "VC121": "replicas that differ",
        "VC201": "operator without declaration",
        "VC202": "argument, dtype or attribute outside of a declaration",
        "VC203": "rank constant baked into the graph",
        "VC204": "uneven shards",
        "VC205": "budget exhausted",
        "VC206": "value or layout that cannot be represented",
        "VC207": "ranks that one process cannot speak for",
        "VC208": "the ranks were not found to run one program",
        "VC209": "number with two readings",
        "VC210": "a run that was not verified",
        "VC211": "the proof and an evaluation contradict each other",
        "VC212": "not decided element by element",
        "VC213": "tensor that was not compared",
        "VC214": "run that failed or did not end",
        "VC215": "training step that cannot be captured",
        "VC216": "random numbers are drawn",
        "VC301": "no device mesh",
        "VC302": "device meshes without common coordinates",
        "VC303": "shapes do not fit the spec",
        "VC304": "the spec's parameters differ",
        "VC305": "graph break",
        "VC306": "unknown option or name in options",
        "VC307": "spec cannot be recovered automatically",
        "VC308": "plain parameter of local shape without placement",
        "VC309": "no spec can be recovered from local parameters",
        "VC310": "option or wrapper that does not apply",
        "VC311": "waiver that does not hold",
    }


@EVERY_CODE
def test_titles_stand_alone(code: Code) -> None:
    assert re.fullmatch(r"[a-z][^.]*", code.title)


@EVERY_CODE
def test_sentences_end(code: Code) -> None:
    for text in (code.meaning, code.reason, code.fix):
        assert text.endswith((".", ")"))


@EVERY_CODE
def test_what_is_no_verdict_is_not_called_a_bug(code: Code) -> None:
    if not code.code.startswith("VC2"):
        return
    assert "bug" not in explain(code.code).lower()


@EVERY_CODE
def test_examples_are_python(code: Code) -> None:
    for source in (code.example, code.fixed_example):
        ast.parse("def program():\n" + textwrap.indent(source or "pass", "    "))


def test_every_code_in_the_sources_is_registered() -> None:
    mentioned = {
        code
        for folder in ("verifycompile", "backends", "rewrites")
        for path in (ROOT / folder).rglob("*.py")
        for code in re.findall(r"\bVC\d{3}\b", path.read_text(encoding="utf-8"))
    }
    assert mentioned <= set(CODES)


def test_explain() -> None:
    assert explain("vc202") == textwrap.dedent(
        """\
        VC202: argument, dtype or attribute outside of a declaration

        What it means

        The operator is declared, but not for this call: an optional argument that changes the value, a
        dtype, or an attribute that the declaration does not cover.

        Why it is wrong

        An argument that is not understood may change the value, so ignoring it could accept a wrong
        program.

        Example

            y = F.softmax(x, dim=-1, dtype=torch.float64)

        How to fix

        Use the form that the message names as declared, or extend the declaration with this argument
        (CONTRIBUTING, "add an operator").

        Use instead

            y = F.softmax(x.to(torch.float64), dim=-1)
        """
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("VC105X", "unknown diagnostic code 'VC105X'; did you mean VC105, VC310, VC305?"),
        ("shard", "unknown diagnostic code 'shard'; codes run from VC101 to VC311, see docs/errors.md"),
    ],
)
def test_explain_of_an_unknown_code(code: str, message: str) -> None:
    with pytest.raises(ValueError, match="unknown diagnostic code") as caught:
        explain(code)
    assert str(caught.value) == message


def test_the_page_is_up_to_date() -> None:
    assert documentation.main([str(ROOT / "docs" / "errors.md"), "--check"]) == 0


def test_a_page_out_of_date_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "errors.md"
    assert documentation.main([str(page), "--check"]) == 1
    expected = f"{page} is out of date: run `python -m verifycompile.diagnostics.documentation`\n"
    assert capsys.readouterr().err == expected
    assert documentation.main([str(page)]) == 0
    assert documentation.main([str(page), "--check"]) == 0


def test_the_command_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "VC101"]) == 0
    assert capsys.readouterr().out == explain("VC101")


def test_the_command_rejects_an_unknown_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "shard"]) == 2
    assert capsys.readouterr().err == (
        "verifycompile explain: unknown diagnostic code 'shard'; codes run from VC101 to VC311, see docs/errors.md\n"
    )
