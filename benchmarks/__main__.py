"""``python -m benchmarks``: a table of what verification costs, every row measured in a process of its own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.measure import Measurement, Setting

DEGREES = (2, 8, 64, 1024)
LAYERS = (1, 2, 4, 8, 32)

SETTINGS = (
    *(Setting("mlp", 1, degree) for degree in DEGREES),
    *(Setting("transformer", layers, 8) for layers in LAYERS),
    *(Setting("transformer", 2, degree) for degree in DEGREES),
    *(Setting("transformer-8b", layers, 8) for layers in (1, 8, 32)),
)
HEADER = ("program", "layers", "degree", "verdict", "nodes", "capture spec s", "capture impl s", "verify s", "ratio", "GiB")


def run(setting: Setting, repetitions: int) -> Measurement:
    """Measure one setting in a new process. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-m", "benchmarks.measure", setting.program, str(setting.layers), str(setting.degree)]
    done = subprocess.run([*command, str(repetitions)], check=True, stdout=subprocess.PIPE, text=True)
    fields = json.loads(done.stdout.splitlines()[-1])
    return Measurement(**{**fields, "setting": Setting(**fields["setting"])})


def row(m: Measurement) -> tuple[str, ...]:
    s = m.setting
    return (
        s.program,
        str(s.layers),
        str(s.degree),
        m.verdict,
        f"{m.nodes_spec}+{m.nodes_implementation}",
        f"{m.capture_spec:.2f}",
        f"{m.capture_implementation:.2f}",
        f"{m.verification:.3f}",
        f"{m.ratio:.3f}",
        f"{m.peak_gib:.2f}",
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (HEADER, *rows)]
    lines.insert(1, "|" + "---|" * len(HEADER))
    return "\n".join(lines)


def selected(arguments: argparse.Namespace) -> list[Setting]:
    settings = dict.fromkeys(SETTINGS)
    return [
        s
        for s in settings
        if (arguments.program is None or s.program in arguments.program)
        and (arguments.layers is None or s.layers in arguments.layers)
        and (arguments.degree is None or s.degree in arguments.degree)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--program", action="append", choices=sorted({s.program for s in SETTINGS}))
    parser.add_argument("--layers", action="append", type=int)
    parser.add_argument("--degree", action="append", type=int)
    parser.add_argument("--repetitions", type=int, default=3, help="runs a row, of which the median is shown")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for setting in selected(arguments):
        measurement = run(setting, 1 if setting.program == "transformer-8b" else arguments.repetitions)
        rows.append(row(measurement))
        if arguments.json:
            print(json.dumps(dict(zip(HEADER, rows[-1], strict=True))), flush=True)
        else:
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    if not arguments.json:
        print(markdown(rows))


if __name__ == "__main__":
    main()
