"""The HTML report of a proof and of a refusal, as it is written and as a browser shows it."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict
from verifycompile.diagnostics import page_programs

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DOUBLED = "return x + 2 * self.down(F.relu(self.up(x)))"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.relu(self.up(x)))


class Doubled(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 2 * self.down(F.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, *kinds: type[Block]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(kind() for kind in kinds))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


def report_on(*kinds: type[Block]) -> Report:
    plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(Model(*kinds), mesh, plan)
        return verifycompile.verify(model, (torch.ones(2, 4),), spec=Model(*[Block] * len(kinds)))


def page_of(report: Report, folder: pathlib.Path) -> tuple[str, dict[str, Any]]:
    """The page, and what it knows of both programs."""
    report.save_html(folder / "report.html")
    page = (folder / "report.html").read_text()
    data = re.search(r'<script type="application/json" id="programs-data">(.*?)</script>', page)
    assert data is not None
    return page, json.loads(data[1])


def wrong_line() -> int:
    lines = pathlib.Path(__file__).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.strip() == DOUBLED)


@pytest.fixture(scope="module")
def verified() -> Report:
    return report_on(*[Block] * 6)


@pytest.fixture(scope="module")
def refuted() -> Report:
    return report_on(Block, Doubled)


def test_every_value_of_a_proved_program_is_related(verified: Report, tmp_path: pathlib.Path) -> None:
    assert verified.verdict is Verdict.VERIFIED
    assert verified.stats.counts.memo > 0, "blocks that are proved once are shown as often as they are there"
    page, data = page_of(verified, tmp_path)
    modules = {module["name"]: module for module in data["modules"]}
    assert data["ended"] == ""
    for number in range(6):
        [row] = [row for row in modules[f"blocks.{number}"]["spec"] if row["operator"] == "relu"]
        held = {row["name"]: row for row in modules[f"blocks.{number}"]["implementation"]}
        names, relations = zip(*row["related"], strict=True)
        assert relations[0] == "concat(F.relu(self.up(x)), dim=1, over=tp)"
        assert held[names[0]]["type"] == "float32[2, 4]"
        assert row["type"] == "float32[2, 8]"
    unrelated = [row["name"] for module in data["modules"] for row in module["spec"] if not row["related"]]
    assert unrelated == []
    assert "<td><code>blocks.0.down</code></td><td><code>all_reduce</code></td><td><code>1</code></td>" in page
    used = {code for module in data["modules"] for row in module["implementation"] for code in row["lemmas"]}
    assert all(f'<pre id="{code}">{code}: ' in page for code in used)


def test_a_refusal_marks_the_line_and_shows_the_numbers(refuted: Report, tmp_path: pathlib.Path) -> None:
    assert refuted.verdict is Verdict.REFUTED
    page, data = page_of(refuted, tmp_path)
    line = wrong_line()
    # The factor goes with its derivative, so that it is one change.
    assert refuted.findings[0].hint == f"leave out the multiplication by 2 at line {line} (checked)"
    failed = [row for module in data["modules"] for row in module["implementation"] if row["failed"]]
    assert failed
    file = data["files"].index(__file__)
    assert all(row["place"] == [file, line] for row in failed)
    assert data["source"][file][str(line)].strip() == DOUBLED
    related = {row["name"]: row["related"] for module in data["modules"] for row in module["spec"]}
    assert related["relu"], "what was computed before the failure is related"
    assert "<th>Index</th><th>Value</th><th>Ranks</th>" in page
    assert "<td><code>tp=0</code></td>" in page or "<td><code>tp=1</code></td>" in page


def test_text_of_the_program_does_not_end_the_script(refuted: Report, tmp_path: pathlib.Path) -> None:
    page, _ = page_of(refuted, tmp_path)
    assert len(re.findall("<script", page)) == len(re.findall("</script>", page)) == 2
    assert "http" not in page.partition("programs-data")[0]


def test_a_page_has_a_bounded_number_of_rows(
    refuted: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    _, whole = page_of(refuted, tmp_path)
    monkeypatch.setattr(page_programs, "MAX_ROWS", 30)
    _, data = page_of(refuted, tmp_path)
    assert [module["counts"] for module in data["modules"]] == [module["counts"] for module in whole["modules"]]
    kept = [module for module in data["modules"] if module["spec"] or module["implementation"]]
    assert 0 < sum(len(module["spec"]) + len(module["implementation"]) for module in kept) <= 30
    failed = {m["name"] for m in whole["modules"] if any(row["failed"] for row in m["spec"] + m["implementation"])}
    assert failed <= {module["name"] for module in kept}


BROWSED = """<script>
const shown = [...document.querySelectorAll("#modules details")].map((part) => part.open);
const first = document.querySelector("#modules details[open] .row.related") ?? (open(document.querySelectorAll(
  "#modules details")[1]), document.querySelector("#modules .row.related"));
first.click();
const told = { open: shown.filter(Boolean).length, all: shown.length, paths: document.querySelectorAll("path").length,
  source: document.querySelector("#source mark")?.textContent ?? "" };
field.value = "relu";
field.dispatchEvent(new Event("input"));
told.found = [...document.querySelectorAll("#modules .row:not([hidden])")].length;
told.other = [...document.querySelectorAll("#modules .row:not([hidden])")].filter((row) =>
  !textOf(row.row).includes("relu")).length;
field.value = "";
onlyFailed.checked = true;
onlyFailed.dispatchEvent(new Event("change"));
told.failed = [...document.querySelectorAll("#modules .row:not([hidden])")].map((row) => row.className);
document.body.append(Object.assign(document.createElement("output"), { textContent: JSON.stringify(told) }));
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("kind", ["verified", "refuted"])
def test_in_a_browser(kind: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> None:
    assert CHROMIUM is not None
    page, data = page_of(request.getfixturevalue(kind), tmp_path)
    failed = [m for m in data["modules"] if any(row["failed"] for row in m["spec"] + m["implementation"])]
    (tmp_path / "browsed.html").write_text(page + BROWSED)
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=5000")
    command = [CHROMIUM, *options, f"--user-data-dir={tmp_path}", "--dump-dom", str(tmp_path / "browsed.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    output = re.search("<output>(.*?)</output>", done.stdout)
    assert output is not None, done.stderr[-2000:]
    told = json.loads(output[1])
    assert told["all"] > 4
    assert told["open"] == len(failed) < 3, "what failed is open, nothing else"
    assert told["paths"] > 0
    assert told["source"].strip() != ""
    assert told["found"] > 0
    assert told["other"] == 0
    assert all("failed" in name for name in told["failed"])
    assert bool(told["failed"]) is (kind == "refuted")
