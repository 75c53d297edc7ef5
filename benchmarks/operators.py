"""``python -m benchmarks operators``: torch's samples of its operators, their operands sharded in several ways.

Every pair of a sample of the OpInfo database and a placement of its operands is one program of one operator, verified
against itself on whole tensors, forward and backward. The results are kept in ``docs/operators.json``, so that a run
can be stopped and taken up again; ``docs/operators.md`` is made from it.

By default half of the operators is run: what is declared is to be general, and the other half shows whether it is.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import io
import itertools
import json
import signal
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from verifycompile.model_verification import verify

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
VERDICTS = ("verified", "refuted", "unproved", "not run")
DEGREE = 2
LONGEST_REASON = 110
# The sizes of torch's samples, all of them even here as in torch's own tests of DTensor.
SIZES = {"L": 24, "M": 12, "S": 4, "XS": 2}


@dataclasses.dataclass
class Tally:
    """Verdicts on the samples of one operator, and the reasons of those that were not verified."""

    operator: str
    counts: dict[str, int]
    reasons: dict[str, int]


class Call(torch.nn.Module):
    """A program of one operator."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.operator(*args, **kwargs)


# ------------------------------------------------------------------------------------------------ samples


def database() -> dict[str, Any]:
    """Operators by name, variants apart."""
    from torch.testing._internal import common_methods_invocations as invocations

    for name, size in SIZES.items():
        setattr(invocations, name, size)
    named = ((f"{o.name}.{o.variant_test_name}".rstrip("."), o) for o in invocations.op_db)
    return dict(named)


def is_even(name: str) -> bool:
    """Which half an operator belongs to; variants of an operator belong to the same."""
    return zlib.crc32(name.encode()) % 2 == 0


def pairs(operator: Any, mesh: Any, samples: int, placements: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Sharded arguments: of every sample several placements, those that shard most first."""
    from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter

    dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if d in operator.dtypes), torch.complex64)
    differentiable = operator.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    given = operator.sample_inputs("cpu", dtype, requires_grad=differentiable)
    for sample in itertools.islice(given, samples):
        converter = DTensorConverter(mesh, (sample.input, *sample.args), sample.kwargs)
        found = list(itertools.islice(converter, 8 * placements))
        found.sort(key=_sharded, reverse=True)
        yield from found[:placements]


def _sharded(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> int:
    return sum(isinstance(v, DTensor) and v.placements != (Replicate(),) for v in _leaves(arguments))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


# ------------------------------------------------------------------------------------------------ verdicts


def check(name: str, operator: Any, mesh: Any, samples: int, placements: int) -> Tally:
    """All verdicts on one operator."""
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    try:
        for args, kwargs in pairs(operator, mesh, samples, placements):
            verdict, reason = outcome(operator, args, kwargs)
            counts[verdict] += 1
            if reason:
                reasons[f"{verdict}: {reason}"] += 1
    except Exception as error:  # noqa: BLE001 - some samples cannot be made or sharded
        reasons[f"not run: {_line(error)}"] += 1
    return Tally(name, dict(counts), dict(reasons))


def outcome(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
    """Verdict and reason. What DTensor does not run, or what is no program of tensors alone, is "not run"."""
    try:
        report = verify(Call(operator.op), args, kwargs)
    except Exception as error:  # noqa: BLE001 - whatever torch raises for an operator that it does not shard
        return "not run", _line(error)
    if not report.findings:
        return report.verdict.name.lower(), ""
    finding = report.findings[0]
    return report.verdict.name.lower(), f"{finding.code} {finding.message.splitlines()[0]}"[:LONGEST_REASON]


def _line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines[1] if len(lines) > 1 else ''.join(lines))}"[:LONGEST_REASON]


def work(names: Sequence[str], samples: int, placements: int, seconds: float) -> None:
    """Checks operators in this process, a line of JSON for each, its name first in case that it ends the process.

    One that takes longer than ``seconds`` does.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    known = database()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=DEGREE)
    mesh = init_device_mesh("cpu", (DEGREE,), mesh_dim_names=("x",))
    for name in names:
        print(json.dumps({"started": name}), flush=True)
        signal.alarm(int(seconds))
        with contextlib.redirect_stdout(io.StringIO()):
            tally = check(name, known[name], mesh, samples, placements)
        print(json.dumps(dataclasses.asdict(tally)), flush=True)
        torch.compiler.reset()


def run(names: Sequence[str], samples: int, placements: int, seconds: float) -> Iterator[Tally]:
    """Tallies of operators, ``names`` by turns in processes of their own; one that ends its process is noted so."""
    left = list(names)
    while left:
        batch = left[:8]
        command = [sys.executable, "-m", "benchmarks", "operators", "--samples", str(samples)]
        command += ["--placements", str(placements), "--seconds", str(seconds), "--here", *batch]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        tallies = [Tally(**item) for item in found if "operator" in item]
        yield from tallies
        finished = {tally.operator for tally in tallies}
        unfinished = [item["started"] for item in found if "started" in item and item["started"] not in finished]
        for name in unfinished or ([] if finished else batch[:1]):
            finished.add(name)
            yield Tally(name, {"not run": 1}, {"not run: the process ended, or took too long": 1})
        left = [name for name in left if name not in finished]


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
    total = collections.Counter[str]()
    operators: collections.Counter[str] = collections.Counter()
    blockers: collections.Counter[str] = collections.Counter()
    for tally in found:
        total.update(tally.counts)
        operators[_kind(tally)] += 1
        blockers.update({r: n for r, n in tally.reasons.items() if not r.startswith("not run")})
    lines = [
        "# Operators",
        "",
        "Samples of torch's OpInfo database under DTensor, two ranks, each verified against the operator on whole",
        "tensors, forward and backward. `python -m benchmarks operators` writes this page. *Not run*: DTensor has no",
        "rule for the operator, or the sample is no program of tensors.",
        "",
        f"{len(found)} operators have a result so far; the others were not reached yet.",
        "",
        f"Pairs of a sample and a placement: {', '.join(f'{total[v]} {v}' for v in VERDICTS)}.",
        f"Operators: {', '.join(f'{operators[k]} {k}' for k in sorted(operators))}.",
        "",
        "## What blocks most",
        "",
        *(f"- {count} x {reason}" for reason, count in blockers.most_common(40)),
        "",
        "## Operators",
        "",
        f"| operator | {' | '.join(VERDICTS)} | first reason |",
        f"| --- | {' | '.join('---' for _ in VERDICTS)} | --- |",
    ]
    for tally in found:
        shown = [reason for reason in tally.reasons if not reason.startswith("not run")] or list(tally.reasons)
        cells = [tally.operator, *(str(tally.counts.get(v, 0)) for v in VERDICTS), shown[0] if shown else ""]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _kind(tally: Tally) -> str:
    for verdict in ("refuted", "unproved", "verified"):
        if tally.counts.get(verdict):
            return f"with pairs {verdict}" if verdict != "verified" else "wholly verified"
    return "not run"


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 without a refuted pair, 1 with one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks operators", description=__doc__)
    parser.add_argument("operators", nargs="*", help="names as in the database; by default the half that is run")
    parser.add_argument("--folder", type=Path, default=DOCS, help="where the results are kept")
    parser.add_argument("--all", action="store_true", help="both halves")
    parser.add_argument("--again", action="store_true", help="also those that earlier runs have a result for")
    parser.add_argument("--samples", type=int, default=6, help="samples of an operator")
    parser.add_argument("--placements", type=int, default=6, help="placements of a sample")
    parser.add_argument("--seconds", type=float, default=40.0, help="time for one operator")
    parser.add_argument("--here", action="store_true", help="in this process, results on the standard output alone")
    options = parser.parse_args(arguments)
    if options.here:
        work(options.operators, options.samples, options.placements, options.seconds)
        return 0
    found = read(options.folder)
    names = options.operators or [n for n, o in database().items() if options.all or is_even(o.name)]
    wanted = [name for name in names if options.again or name not in found]
    for tally in run(wanted, options.samples, options.placements, options.seconds):
        found[tally.operator] = tally
        write(options.folder, found)
    return 1 if any(tally.counts.get("refuted") for tally in found.values()) else 0
