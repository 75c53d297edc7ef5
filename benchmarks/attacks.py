"""``python -m benchmarks attacks``: generated programs, most with one unsound edit, none of which may verify wrongly.

    python -m benchmarks attacks --count 20000 --jobs 2 --results attacks.json --table docs/trust.md

Chunks that the results already hold are not run again, so an interrupted run goes on where it stopped. Each chunk is a
seed of hypothesis: ``--chunk N`` runs one alone and shows what it found.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import logging
import multiprocessing
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.attacks import dtensors
from tests.attacks.families import Family, ask_family, families
from tests.attacks.generated import Answer, Numbers, Way, ask, questions
from verifycompile import Report, Verdict
from verifycompile.options import Options
from verifycompile.pipeline import verify_captured

FAMILIES, CHANGES = 12, 24
"""Families of a chunk, and changes drawn for each. Those that make no program, or no difference, do not count."""

MODELS, EXAMPLES = 12, 12
"""Of so many chunks one is so many questions through ``verify``, one as many of DTensors, the others are families."""

IN_FULL = 40
"""Of every so many-th answer of the proof the report of ``verify_graphs`` is made too: it must say the same."""

SECONDS = 3600.0
"""For one report: a machine that does other work must not turn what is right into what is unproved."""

BEGIN, END = "<!-- generated programs: begin -->", "<!-- generated programs: end -->"
HEADER = ("class", "tried", "wrong", "verified wrongly", "right", "right and unproved")
COLUMNS = ("tried", "wrong", "verified wrongly", "right", "right and unproved")

FULL = "asked in full"

Counts = dict[str, dict[str, int]]
Asked = TypeVar("Asked")


@dataclasses.dataclass
class Chunk:
    """``counts``: by class. The others: what was asked, as text, of answers to be looked into."""

    counts: dict[str, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    wrong: list[str] = dataclasses.field(default_factory=list)
    unproved: list[str] = dataclasses.field(default_factory=list)
    other_in_full: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    asked: int = 0

    def note(self, question: object, answer: Answer) -> None:
        self.asked += 1
        found = columns(answer)
        self.counts[answer.kind].update(found)
        if "verified wrongly" in found:
            self.wrong.append(f"{question} {answer}")
        if answer.failure:
            self.failed.append(f"{question} {answer}")
        if "right and unproved" in found:
            self.unproved.append(f"{question} {answer}")

    def note_full(self, question: object, answer: Answer, report: Report) -> None:
        """An answer of the proof, and the report on the same graphs."""
        self.counts[answer.kind].update([FULL])
        if (answer.verdict is Verdict.VERIFIED) != (report.verdict is Verdict.VERIFIED):
            self.other_in_full.append(f"{question} {answer}: {report}")
        if answer.numbers is Numbers.EQUAL and report.verdict is Verdict.REFUTED:
            self.other_in_full.append(f"{question} {answer}: refuted, and right: {report}")


def run_chunk(number: int) -> dict[str, Any]:
    """What came of the questions of one seed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # edits that torch rejects
    started, chunk = time.process_time(), Chunk()
    if number % MODELS == MODELS - 1:
        _ask_models(number, chunk, questions(), lambda question: ask(question, Way.MODEL))
    elif number % MODELS == MODELS - 2:
        _ask_models(number, chunk, dtensors.questions(), dtensors.ask)
    else:
        _ask_families(number, chunk)
    return {
        "seconds": time.process_time() - started,
        "counts": chunk.counts,
        "verified wrongly": chunk.wrong,
        "right and unproved": chunk.unproved,
        "other in full": chunk.other_in_full,
        "failed": chunk.failed,
    }


def _settings(examples: int) -> settings:
    # The first example of every seed is the simplest one.
    return settings(
        max_examples=examples + 1,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def _ask_families(number: int, chunk: Chunk) -> None:
    first = iter([True])

    @seed(number)
    @_settings(FAMILIES)
    @given(families(CHANGES))
    def run(family: Family) -> None:
        if next(first, False) and number:
            return
        for answer, graphs in ask_family(family):
            chunk.note(family.question, answer)
            if chunk.asked % IN_FULL == 0:
                captured = graphs()
                report = verify_captured(captured.spec, captured.implementation(), Options(time_limit=SECONDS))
                chunk.note_full(family.question, answer, report)

    run()


def _ask_models(number: int, chunk: Chunk, drawn: SearchStrategy[Asked], ask: Callable[[Asked], Answer | None]) -> None:
    first = iter([True])

    @seed(number)
    @_settings(EXAMPLES)
    @given(drawn)
    def run(question: Asked) -> None:
        if next(first, False):
            return
        answer = ask(question)
        if answer is not None:
            chunk.note(question, answer)

    run()


def columns(answer: Answer) -> list[str]:
    """The columns of the table in which an answer counts."""
    found = ["tried", "wrong" if answer.numbers is Numbers.WRONG else "right"]
    if answer.verified_wrongly:
        found.append("verified wrongly")
    if answer.numbers is Numbers.EQUAL and answer.verdict is not Verdict.VERIFIED:
        found.append("right and unproved")
    return found


def totals(chunks: Mapping[str, Mapping[str, Any]]) -> Counts:
    """All chunks together, by class, and the sum of the classes."""
    found: Counts = {}
    for chunk in chunks.values():
        for kind, counts in chunk["counts"].items():
            for row in (kind, "all"):
                for column in (*COLUMNS, FULL):
                    held = found.setdefault(row, dict.fromkeys((*COLUMNS, FULL), 0))
                    held[column] += counts.get(column, 0)
    return found


def tried(chunks: Mapping[str, Mapping[str, Any]]) -> int:
    return totals(chunks).get("all", {}).get("tried", 0)


def table(chunks: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of the page on trust."""
    counts = totals(chunks)
    rows = [*sorted(kind for kind in counts if kind != "all"), "all"]
    cells = [HEADER, *((kind, *(f"{counts[kind][column]:,}" for column in COLUMNS)) for kind in rows if kind in counts)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    full = counts.get("all", {}).get(FULL, 0)
    said = f"For {full:,} of them the whole report was made too, and said the same."
    return "\n".join([*lines, "", said])


def with_table(page: str, chunks: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with its table replaced by that of ``chunks``."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table(chunks)}\n{END}{rest.split(END)[1]}"


def _pending(done: Mapping[str, Any]) -> Iterator[int]:
    return (number for number in itertools.count() if str(number) not in done)


def _numbered(number: int) -> tuple[int, dict[str, Any]]:
    return number, run_chunk(number)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 nothing verified wrongly, 1 something did."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks attacks", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="questions to be asked in all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no chunk is started after that time")
    parser.add_argument("--results", type=pathlib.Path, help="JSON file, read and written after every chunk")
    parser.add_argument("--table", type=pathlib.Path, help="Markdown page whose table is replaced")
    parser.add_argument("--chunk", type=int, help="run this chunk alone and print it")
    given_arguments = parser.parse_args(arguments)
    if given_arguments.chunk is not None:
        print(json.dumps(run_chunk(given_arguments.chunk), indent=1))
        return 0
    results: pathlib.Path | None = given_arguments.results
    chunks: dict[str, Any] = json.loads(results.read_text()) if results is not None and results.exists() else {}
    deadline = time.monotonic() + given_arguments.seconds
    pending = _pending(dict(chunks))
    with multiprocessing.get_context("spawn").Pool(given_arguments.jobs, maxtasksperchild=20) as pool:
        while tried(chunks) < given_arguments.count and time.monotonic() < deadline:
            for number, chunk in pool.imap_unordered(_numbered, itertools.islice(pending, given_arguments.jobs)):
                chunks[str(number)] = chunk
                if results is not None:
                    results.write_text(json.dumps(chunks))
                line = f"chunk {number}: {chunk['seconds']:.0f} s, {tried(chunks)} questions"
                print(line, file=sys.stderr, flush=True)
    if given_arguments.table is not None:
        given_arguments.table.write_text(with_table(given_arguments.table.read_text(), chunks))
    print(table(chunks))
    found = [
        (kind, text)
        for kind in ("verified wrongly", "other in full", "failed")
        for c in chunks.values()
        for text in c[kind]
    ]
    for kind, text in found:
        print(f"{kind}: {text}")
    return 1 if found else 0
