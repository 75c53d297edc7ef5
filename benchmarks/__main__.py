"""``python -m benchmarks``: a table of what verification costs. Every measurement runs in a process of its own.

The names in ``COMMANDS`` are commands of their own, see the modules of these names.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Sequence

from benchmarks.measure import Measurement, Point, measure

COMMANDS = (
    "agreement", "attacks", "comparison", "coverage", "egraph", "first-call", "neighbours", "operators", "refusals",
    "trusted",
)  # fmt: skip
LAYERS = (1, 2, 4, 8, 32)
DEGREES = (2, 8, 64, 1024)
POINTS = (
    *(Point("mlp", 2, degree) for degree in DEGREES),
    *(Point("transformer", layers, 8) for layers in LAYERS),
    *(Point("transformer", 8, degree) for degree in DEGREES if degree != 8),
    *(Point("llama-3-8b", layers, 8) for layers in LAYERS),
    *(Point("of-different-widths", layers, 8) for layers in (4, 32)),
)
REPEATED_UP_TO = 8
"""Programs of at most this many layers are measured several times; a longer run hides its own noise."""

HEADER = (
    "program",
    "layers",
    "degree",
    "verdict",
    "nodes spec + impl",
    "capture spec s",
    "capture impl s",
    "proof s",
    "proof / capture",
    "second look s",
    "second look / capture",
    "peak GiB",
    "of it before",
)


STAGE_HEADER = (
    "program",
    "layers",
    "degree",
    "stage",
    "nodes or questions",
    "s",
    "median ms",
    "95th percentile ms",
    "ms per spec node",
)
SHALLOW, DEEP = 4, 32
DEPTH_HEADER = (
    "program",
    "degree",
    f"{SHALLOW} layers s",
    f"{DEEP} layers s",
    "ratio",
    f"{SHALLOW} layers beyond reading s",
    f"{DEEP} layers beyond reading s",
    "ratio beyond reading",
)


def selected(arguments: argparse.Namespace) -> list[Point]:
    """The points of the full table that the options select."""
    return [
        point
        for point in POINTS
        if (arguments.program is None or point.program in arguments.program)
        and (arguments.layers is None or point.layers in arguments.layers)
        and (arguments.degree is None or point.degree in arguments.degree)
    ]


def row(measurement: Measurement) -> tuple[str, ...]:
    """The cells of one measurement, in the order of ``HEADER``."""
    point = measurement.point
    return (
        point.program,
        str(point.layers),
        str(point.degree),
        measurement.verdict,
        f"{measurement.spec_nodes} + {measurement.implementation_nodes}",
        f"{measurement.spec_capture_seconds:.2f}",
        f"{measurement.implementation_capture_seconds:.2f}",
        f"{measurement.proof_seconds:.3f}",
        f"{measurement.proof_seconds / measurement.capture_seconds:.3f}",
        f"{measurement.second_look_seconds:.3f}",
        f"{measurement.second_look_seconds / measurement.capture_seconds:.3f}",
        f"{measurement.peak_memory:.2f}",
        f"{measurement.memory_before:.2f}",
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = tuple("-" * width for width in widths)
    lines = ("| " + " | ".join(map(str.ljust, cells, widths)) + " |" for cells in (header, rule, *rows))
    return "\n".join(lines)


def stage_rows(measurement: Measurement) -> list[tuple[str, ...]]:
    """The cells of every stage that was used, in the order of ``STAGE_HEADER``."""
    point = measurement.point
    return [
        (
            point.program,
            str(point.layers),
            str(point.degree),
            name.replace("_", " "),
            f"{cost['count']:.0f}",
            f"{cost['seconds']:.3f}",
            f"{cost['median']:.3f}",
            f"{cost['percentile_95']:.3f}",
            f"{1000 * cost['seconds'] / measurement.spec_nodes:.3f}",
        )
        for name, cost in measurement.stages.items()
        if cost["count"]
    ]


def depth_rows(measurements: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """A deep program against a shallow one, in the order of ``DEPTH_HEADER``."""
    found = {(m.point.program, m.point.degree, m.point.layers): m for m in measurements}
    rows: list[tuple[str, ...]] = []
    for (program, degree, layers), shallow in found.items():
        deep = found.get((program, degree, DEEP))
        if layers != SHALLOW or deep is None:
            continue
        seconds = [shallow.proof_seconds, deep.proof_seconds]
        beyond = [shallow.beyond_reading, deep.beyond_reading]
        cells = [*seconds, seconds[1] / seconds[0], *beyond, beyond[1] / beyond[0]]
        rows.append((program, str(degree), *(f"{cell:.3f}" for cell in cells)))
    return rows


def main() -> int:
    """Exit status: 0 everything measured was verified, 1 something was not, 2 nothing was selected."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        # Only what is asked for: some are of the tests' programs and dependencies.
        command = importlib.import_module(f"benchmarks.{sys.argv[1].replace('-', '_')}")
        return int(command.main(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--program", action="append", choices=sorted({point.program for point in POINTS}))
    parser.add_argument("--layers", action="append", type=int, metavar="N")
    parser.add_argument("--degree", action="append", type=int, metavar="N")
    parser.add_argument(
        "--repetitions", type=int, default=3, help="measurements of a point, of which medians are shown"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    arguments = parser.parse_args()
    points = selected(arguments)
    if not points:
        parser.error("the table has no such row")

    measurements: list[Measurement] = []
    for point in points:
        measured = measure(point, arguments.repetitions if point.layers <= REPEATED_UP_TO else 1)
        measurements.append(measured)
        if arguments.json:
            print(json.dumps(dataclasses.asdict(measured)), flush=True)
        else:
            print("  ".join(row(measured)), file=sys.stderr, flush=True)
    if not arguments.json:
        print(table(HEADER, [row(measured) for measured in measurements]))
        print()
        print(table(STAGE_HEADER, [cells for measured in measurements for cells in stage_rows(measured)]))
        depth = depth_rows(measurements)
        if depth:
            print()
            print(table(DEPTH_HEADER, depth))
    return 0 if all(measured.verdict == "verified" for measured in measurements) else 1


if __name__ == "__main__":
    sys.exit(main())
