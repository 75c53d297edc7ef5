"""``python -m benchmarks operators``: torch's samples of its operators, their operands sharded in several ways.

Every pair of a sample of the OpInfo database and a placement of its operands is one program of one operator, verified
against itself on whole tensors, forward and backward, and run by DTensor in eager mode on all ranks. The results are
kept in ``docs/operators.json``, so that a run can be stopped and taken up again; ``docs/operators.md`` is made from it.

The operators are in two halves. What is declared was made with the even half in view alone; the first run of the odd
half, whose outcomes are kept beside the present ones, showed how general that was.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import io
import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from benchmarks.operator_ranks import OnRanks, on_ranks
from benchmarks.operator_samples import (
    Accepted,
    Call,
    Eager,
    Pair,
    base_name,
    database,
    eager,
    first_line,
    is_even,
    pairs,
)
from verifycompile.errors import UsageError
from verifycompile.frontends.model import verify

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DEGREE = 2
LONGEST_REASON = 110
HALVES = ("even", "odd")
SAMPLES = PLACEMENTS = 6
AT_A_TIME = 8
"""Operators that one process checks before it ends: torch's caches grow."""

OUTCOMES = {
    "verified": "proved equal, forward and backward (forward alone where DTensor has no rule for the backward part)",
    "confirmed": "refuted, and DTensor in eager mode on two processes computes other numbers than one device",
    "refuted": "refuted, though eager mode computes the numbers of one device: a false alarm",
    "unproved": "neither; the reason is named",
    "no graph": "`torch.compile(fullgraph=True)` of the operator does not trace, or not with DTensors",
    "no rule": "DTensor refuses the pair in eager mode as well",
    "no sample": "the operator does not run on the sample on one device, or the sample is no strided tensor",
}


@dataclasses.dataclass
class Tally:
    """Outcomes of the samples of one operator, and the reasons of those that were not verified.

    ``wrong``: pairs verified whose numbers in eager mode are not those of one device.
    ``older``: of a run before the last changes of the verifier, and due to be run again.
    ``first``: the counts of the first run, of an operator that nothing had been made for by then.
    """

    operator: str
    counts: dict[str, int]
    reasons: dict[str, int]
    wrong: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    older: bool = False
    first: dict[str, int] = dataclasses.field(default_factory=dict[str, int])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one pair: a key of ``OUTCOMES``, and why."""

    operator: str
    outcome: str
    reason: str = ""
    wrong: str = ""
    pair: str = ""
    index: int = -1


# ------------------------------------------------------------------------------------------------ outcomes


def check(name: str, operator: Any, mesh: DeviceMesh, samples: int, placements: int) -> Iterator[Outcome]:
    """The outcomes of one operator's pairs."""
    try:
        for index, pair in enumerate(pairs(operator, mesh.size(), samples, placements)):
            yield dataclasses.replace(outcome(operator.op, pair, mesh), operator=name, pair=pair.text(), index=index)
    except Exception as error:  # noqa: BLE001 - some samples cannot be made
        yield Outcome(name, "no sample", first_line(error, LONGEST_REASON))


def outcome(operator: Any, pair: Pair, mesh: DeviceMesh) -> Outcome:
    """What becomes of one pair."""
    try:
        run = eager(operator, pair, mesh)
    except Exception as error:  # noqa: BLE001 - what torch itself refuses
        return Outcome("", "no sample", first_line(error, LONGEST_REASON))
    args, kwargs = pair.placed(mesh, gradients=run.accepted is not Accepted.FORWARD)
    try:
        report = verify(Call(operator), args, kwargs, mesh=mesh)
    except UsageError as error:
        if run.accepted is Accepted.NOTHING:
            return Outcome("", "no rule", run.reason)
        return Outcome("", "no graph", first_line(error, LONGEST_REASON))
    reason = ""
    if report.findings:
        finding = report.findings[0]
        reason = f"{finding.code} {finding.message.splitlines()[0]}"[:LONGEST_REASON]
    return _judged(report.verdict.name.lower(), reason, run)


def _judged(verdict: str, reason: str, run: Eager) -> Outcome:
    if verdict == "verified" and run.differs:
        return Outcome("", verdict, wrong=f"{run.differs} differs")
    return Outcome("", verdict, reason)


def work(names: Sequence[str], samples: int, placements: int, seconds: float) -> None:
    """Checks operators in this process, a line of JSON for each pair, and one for each operator that begins or ends.

    A pair that takes longer than ``seconds`` ends the process.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    warnings.filterwarnings("ignore")
    known = database()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=DEGREE)
    mesh = init_device_mesh("cpu", (DEGREE,), mesh_dim_names=("x",))
    for name in names:
        _say({"begun": name})
        results = check(name, known[name], mesh, samples, placements)
        while True:
            signal.alarm(int(seconds))
            with contextlib.redirect_stdout(io.StringIO()):
                result = next(results, None)
            if result is None:
                break
            _say(dataclasses.asdict(result))
        _say({"done": name})
        torch.compiler.reset()


def _say(item: dict[str, Any]) -> None:
    print(json.dumps(item), flush=True)


def run(names: Sequence[str], samples: int, placements: int, seconds: float, pairs_to: Path | None) -> Iterator[Tally]:
    """Tallies of operators, ``names`` by turns in processes of their own; one that ends its process is noted so."""
    left = list(names)
    while left:
        batch = left[:AT_A_TIME]
        command = [sys.executable, "-m", "benchmarks", "operators", "--samples", str(samples)]
        command += ["--placements", str(placements), "--seconds", str(seconds), "--here", *batch]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = [Outcome(**line) for line in lines if "outcome" in line]
        begun = [line["begun"] for line in lines if "begun" in line] or batch[:1]
        complete = {line["done"] for line in lines if "done" in line}
        for name in begun:
            if name not in complete:
                found.append(
                    Outcome(name, "unproved", f"the process ended, or one pair took more than {seconds:.0f} s")
                )
        found = [item for name in begun for item in confirmed(name, found, samples, placements)]
        for name in begun:
            yield tally(name, [item for item in found if item.operator == name])
        if pairs_to is not None:
            with pairs_to.open("a") as file:
                file.writelines(json.dumps(dataclasses.asdict(item)) + "\n" for item in found)
        left = [name for name in left if name not in begun]


def confirmed(name: str, outcomes: Sequence[Outcome], samples: int, placements: int) -> list[Outcome]:
    """The outcomes of an operator, those that accuse DTensor or us after a run on real ranks."""
    own = [item for item in outcomes if item.operator == name]
    accusing = [item.index for item in own if item.outcome == "refuted" or item.wrong]
    real = on_ranks(name, accusing, DEGREE, samples, placements) if accusing else {}
    return [_confirmed(item, real.get(item.index)) for item in own]


def _confirmed(item: Outcome, real: OnRanks | None) -> Outcome:
    if real is None:
        return item
    if item.outcome == "refuted" and real.error:
        return dataclasses.replace(item, outcome="no rule", reason=real.error[:LONGEST_REASON])
    if item.outcome == "refuted" and real.differs:
        return dataclasses.replace(item, outcome="confirmed")
    return dataclasses.replace(item, wrong=real.differs and f"{real.differs} differs")


def tally(name: str, outcomes: Sequence[Outcome]) -> Tally:
    """The outcomes of one operator, counted."""
    return Tally(
        name,
        dict(collections.Counter(item.outcome for item in outcomes)),
        dict(collections.Counter(f"{item.outcome}: {item.reason}" for item in outcomes if item.reason)),
        dict(collections.Counter(item.wrong for item in outcomes if item.wrong)),
    )


# ------------------------------------------------------------------------------------------------ page


def read(folder: Path) -> dict[str, Tally]:
    """Results of earlier runs."""
    data = folder / "operators.json"
    if not data.exists():
        return {}
    return {item["operator"]: Tally(**item) for item in json.loads(data.read_text())}


def write(folder: Path, found: dict[str, Tally]) -> None:
    """Data and page."""
    ordered = [found[name] for name in sorted(found)]
    lines = ",\n".join(json.dumps(dataclasses.asdict(tally)) for tally in ordered)
    (folder / "operators.json").write_text(f"[\n{lines}\n]\n")
    (folder / "operators.md").write_text(page(ordered))


def page(found: Sequence[Tally]) -> str:
    """The results as Markdown: sums, what blocks most, and a row for every operator."""
    halves = {half: collections.Counter[str]() for half in HALVES}
    first: collections.Counter[str] = collections.Counter()
    operators: collections.Counter[str] = collections.Counter()
    blockers: collections.Counter[str] = collections.Counter()
    for item in found:
        halves[half_of(item.operator)].update(item.counts)
        first.update(item.first)
        operators[kind(item)] += 1
        blockers.update(_open(item))
    wrong = sum(sum(item.wrong.values()) for item in found)
    older = sum(item.older for item in found)
    lines = [
        "# Operators",
        "",
        "Samples of torch's OpInfo database under DTensor, two ranks, each verified against the operator on whole",
        "tensors, forward and backward. Every pair is also run in eager mode on both ranks, and its numbers compared.",
        f"`python -m benchmarks operators` writes this page; of an operator at most {SAMPLES} samples in {PLACEMENTS}",
        "placements, those that shard most.",
        "",
        "Declarations were made with the even half of the operators in view. The first run of the odd half shows how",
        "general they were before anything was made for it.",
        "",
        "| outcome | even half | odd half | odd half, first run | |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {outcome} | {halves['even'][outcome]} | {halves['odd'][outcome]} | {first[outcome]} | {text} |"
            for outcome, text in OUTCOMES.items()
        ),
        "",
        f"{len(found)} operators: {', '.join(f'{operators[k]} {k}' for k in sorted(operators))}.",
        f"Pairs verified whose numbers in eager mode are others than on one device: {wrong}.",
        f"Rows with a star, {older} of them, are of a run before the last changes and are to be run again.",
        "",
        "## What is open",
        "",
        *(f"- {count} x {reason}" for reason, count in blockers.most_common(60)),
        "",
        "## Operators",
        "",
        f"| operator | {' | '.join(OUTCOMES)} | first reason |",
        f"| --- | {' | '.join('---' for _ in OUTCOMES)} | --- |",
    ]
    for item in found:
        shown = [*_open(item), *item.reasons]
        cells = [
            item.operator + " *" * item.older,
            *(str(item.counts.get(o, "")) for o in OUTCOMES),
            shown[0] if shown else "",
        ]
        lines.append(f"| {' | '.join(map(_as_cell, cells))} |")
    return "\n".join(lines) + "\n"


def _as_cell(text: str) -> str:
    """Text of a table in Markdown: no end of a cell, and ``f32[](R)`` is no link."""
    return text.replace("|", "\\|").replace("](", "]\\(")


def _open(item: Tally) -> dict[str, int]:
    """The reasons of what is neither verified nor refused by torch."""
    return {r: n for r, n in item.reasons.items() if r.split(":")[0] in ("confirmed", "refuted", "unproved")}


def half_of(name: str) -> str:
    """Which half an operator of the database is in, by its name; variants of an operator are in the same."""
    return "even" if is_even(base_name(name)) else "odd"


def kind(item: Tally) -> str:
    """What the page counts an operator as."""
    for outcome in ("refuted", "confirmed", "unproved"):
        if item.counts.get(outcome):
            return f"with pairs {outcome}"
    return "wholly verified" if item.counts.get("verified") else "not run"


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 with a pair refuted whose numbers are right, or verified whose numbers are wrong; else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks operators", description=__doc__)
    parser.add_argument("operators", nargs="*", help="names as in the database; by default all")
    parser.add_argument("--folder", type=Path, default=DOCS, help="where the results are kept")
    parser.add_argument("--half", choices=HALVES, help="the operators of one half")
    parser.add_argument("--again", action="store_true", help="also those that earlier runs have a result for")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of an operator")
    parser.add_argument("--placements", type=int, default=PLACEMENTS, help="placements of a sample")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for one pair")
    parser.add_argument("--pairs", type=Path, help="a file that gets a line of JSON for every pair")
    parser.add_argument("--here", action="store_true", help="in this process, results on the standard output alone")
    options = parser.parse_args(arguments)
    if options.here:
        work(options.operators, options.samples, options.placements, options.seconds)
        return 0
    found = read(options.folder)
    names = options.operators or [n for n in database() if options.half in (None, half_of(n))]
    wanted = [name for name in names if options.again or name not in found or found[name].older]
    for item in run(wanted, options.samples, options.placements, options.seconds, options.pairs):
        earlier = found.get(item.operator)
        first = earlier.first if earlier is not None else item.counts if half_of(item.operator) == "odd" else {}
        found[item.operator] = dataclasses.replace(item, first=first)
        write(options.folder, found)
    return 1 if any(item.wrong or item.counts.get("refuted") for item in found.values() if not item.older) else 0
