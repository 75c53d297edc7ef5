"""``python -m benchmarks attacks``: generated programs, most with one unsound edit, none of which may verify wrongly.

    python -m benchmarks attacks --count 20000 --jobs 2 --results attacks.json --table docs/trust.md

Chunks that the results already hold are not run again, so an interrupted run goes on where it stopped. Each chunk is a
seed of hypothesis: ``--chunk N`` runs one alone and shows what verified wrongly, shrunk.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import multiprocessing
import pathlib
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.attacks.generated import Answer, Numbers, Question, Way, ask, questions
from verifycompile import Verdict

EXAMPLES = 100
"""Examples of a chunk. Edits that make no program, or no difference, are drawn again and do not count."""

MODELS = 12
"""Every so many-th chunk is asked through ``verify``, the others through ``verify_graphs``."""

BEGIN, END = "<!-- generated programs: begin -->", "<!-- generated programs: end -->"
HEADER = ("class", "tried", "wrong", "verified wrongly", "right", "right and unproved")
COLUMNS = ("tried", "wrong", "verified wrongly", "right", "right and unproved")

Counts = dict[str, dict[str, int]]


def run_chunk(number: int) -> dict[str, Any]:
    """What came of the questions of one seed: counts by class, and each question that verified wrongly."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started, counts = time.process_time(), collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    wrong: list[str] = []
    way = Way.MODEL if number % MODELS == MODELS - 1 else Way.GRAPHS

    @seed(number)
    @settings(
        max_examples=EXAMPLES // 4 if way is Way.MODEL else EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(questions())
    def run(question: Question) -> None:
        answer = ask(question, way)
        if answer is None:
            return
        counts[answer.kind].update(columns(answer))
        if answer.verified_wrongly:
            wrong.append(f"{question} {answer}")

    run()
    return {"seconds": time.process_time() - started, "counts": counts, "verified wrongly": wrong}


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
                for column in COLUMNS:
                    held = found.setdefault(row, dict.fromkeys(COLUMNS, 0))
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
    return "\n".join(lines)


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
    wrong = [text for chunk in chunks.values() for text in chunk["verified wrongly"]]
    for text in wrong:
        print(f"verified wrongly: {text}")
    return 1 if wrong else 0
