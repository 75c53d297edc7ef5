"""Programs of two ranks that are asked about through the public contract, and whether numbers call them right.

A file of attacks registers functions of a ``DeviceMesh`` in its ``PROGRAMS``; each returns a :class:`Job`. The file
is then run on two gloo processes at once (:func:`outcomes`): every program is built, asked about and, in a second
go, run eagerly on both ranks, where its results are compared with the spec's. What is called right or wrong must be
so by these numbers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from tests.warm import python

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 400
ROWS, COLUMNS, WHOLE = (Shard(0),), (Shard(1),), (Replicate(),)


@dataclasses.dataclass(frozen=True)
class Job:
    """``build``: makes what one rank runs. ``args``: whole tensors, cut as ``in_placements`` says by the spec's names.

    ``given``: whether the spec is passed; numbers are compared with it in any case. ``in_placements`` cut the arguments;
    they are passed where ``placed``. ``options``: further options. ``backward``: gradients count, too. ``given_args``:
    what the rank passes, where that is not what is cut of ``args``.
    """

    build: Callable[[], Callable[..., Any]]
    spec: Callable[..., Any] | None
    args: tuple[Any, ...]
    in_placements: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    backward: bool = False
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    given: bool = True
    placed: bool = True
    mesh: bool = True
    given_args: tuple[Any, ...] | None = None


MakeJob = Callable[[DeviceMesh], Job]


@dataclasses.dataclass(frozen=True)
class Program:
    """``ways``: how it is asked about: through ``torch.compile``, through ``verify``, by a factory on one process."""

    name: str
    job: MakeJob
    right: bool
    ways: tuple[str, ...]
    numbers: bool


@dataclasses.dataclass
class Programs:
    """The programs of one file, by name."""

    found: dict[str, Program] = dataclasses.field(default_factory=dict)

    def add(
        self, name: str, job: MakeJob, *, right: bool, ways: Sequence[str] = ("compile",), numbers: bool = True
    ) -> None:
        assert name not in self.found, name
        self.found[name] = Program(name, job, right, tuple(ways), numbers)

    def right(self, *ways: str, numbers: bool = True) -> Callable[[MakeJob], MakeJob]:
        return self._register(True, ways, numbers)

    def wrong(self, *ways: str, numbers: bool = True) -> Callable[[MakeJob], MakeJob]:
        return self._register(False, ways, numbers)

    def _register(self, right: bool, ways: Sequence[str], numbers: bool) -> Callable[[MakeJob], MakeJob]:
        def register(job: MakeJob) -> MakeJob:
            self.add(job.__name__, job, right=right, ways=ways or ("compile",), numbers=numbers)
            return job

        return register

    def __iter__(self) -> Iterator[Program]:
        return iter(self.found.values())


@dataclasses.dataclass(frozen=True)
class Outcome:
    """``verdicts``: of every rank; ``texts``: what each was shown. ``equal``: what numbers say, None where not asked."""

    name: str
    way: str
    verdicts: tuple[str, ...]
    texts: tuple[str, ...]
    equal: bool | None
    seconds: float

    @property
    def verified(self) -> bool:
        return "verified" in self.verdicts


def outcomes(file: str, *names: str, world: int = 2, **environment: str) -> dict[tuple[str, str], Outcome]:
    """What came of the programs of ``file`` on ``world`` gloo processes, by name and way."""
    done = subprocess.run(
        [python(), "-m", "tests.attacks.ranks", str(world), file, *names],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-8000:]
    found = [Outcome(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(outcome.name, outcome.way): outcome for outcome in found}


def failures(programs: Programs, found: Mapping[tuple[str, str], Outcome]) -> list[str]:
    """A line for every program whose verdict is not the one that its numbers deserve."""
    lines: list[str] = []
    for program in programs:
        for way in program.ways:
            outcome = found[program.name, way]
            shown = f"{program.name} by {way}: {outcome.verdicts}"
            if outcome.equal is not None and outcome.equal != program.right:
                lines.append(f"{shown}: by its numbers it is {'right' if outcome.equal else 'wrong'}")
            elif program.right and set(outcome.verdicts) != {"verified"}:
                lines.append(f"{shown}: right, and not verified: {outcome.texts[0][:600]}")
            elif not program.right and outcome.verified:
                lines.append(f"{shown}: wrong, and verified")
            elif any("InternalError" in text for text in outcome.texts):
                lines.append(f"{shown}: {outcome.texts[0][:600]}")
    return lines


def cut(value: Any, placements: Sequence[Any] | None, rank: int, world: int) -> Any:
    """The rank's part of a whole tensor, on a mesh of one axis."""
    if not isinstance(value, torch.Tensor) or placements is None or not isinstance(placements[0], Shard):
        return value
    part = value.detach().chunk(world, placements[0].dim)[rank].clone()
    return part.requires_grad_(value.requires_grad)
