"""Which tensors of both programs are related, and how far each is off."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Iterator, Mapping

import torch
from torch.distributed.tensor.placement_types import Partial, Replicate

from verifycompile.comparison.judge import Judged, Subject, judge
from verifycompile.comparison.layout import Known, Placements
from verifycompile.comparison.ranks import Ranks
from verifycompile.comparison.reference import Reference, step_name
from verifycompile.comparison.trace import Entry, Kind
from verifycompile.comparison.worker import Ran
from verifycompile.options import Options
from verifycompile.program import Mesh

FINAL = frozenset({Kind.OUTPUT, Kind.GRADIENT, Kind.PARAMETER, Kind.BUFFER, Kind.STATE})
"""What the spec ends with: a difference here is one of the programs, wherever it came from."""
_SUMS = frozenset({Kind.ACTIVATION, Kind.ACTIVATION_GRADIENT, Kind.RECOMPUTED, Kind.OUTPUT})


@dataclasses.dataclass
class Differences:
    """``judged``: in the order of the comparison. ``missing``: names that only one program has, and why."""

    judged: list[Judged] = dataclasses.field(default_factory=list[Judged])
    missing: list[tuple[str, Kind, str]] = dataclasses.field(default_factory=list[tuple[str, Kind, str]])


@dataclasses.dataclass
class Comparing:
    """Compares what the ranks hold after each phase of a run with the reference.

    ``layouts``: of parameters and inputs. ``scale``: by how much gradients of activations are multiplied, as
    data-parallel ranks begin backward with their own mean.
    """

    ranks: Ranks
    reference: Reference
    thresholds: Mapping[str, float]
    layouts: Mapping[str, Placements]
    mesh: Mesh
    options: Options
    found: Differences = dataclasses.field(default_factory=Differences)
    scale: float = 1.0
    _seen: set[tuple[str, str]] = dataclasses.field(default_factory=set[tuple[str, str]])

    def take(self, ran: Mapping[int, Ran], kinds: frozenset[Kind], step: int) -> None:
        """Compare what a phase left; ``kinds``: of the spec's tensors that it must have left."""
        entries: dict[str, dict[int, Entry]] = {}
        aliases: dict[str, str] = {}
        for rank, one in ran.items():
            for entry in one.entries:
                entries.setdefault(entry.name, {})[rank] = entry
            aliases.update(one.aliases)
        for name, target, source in self._pairs(entries, aliases, kinds, step):
            if (target, source) in self._seen:
                continue
            self._seen.add((target, source))
            held = entries[source]
            found: dict[int, torch.Tensor | None] = self.ranks.call("value", source)
            parts = {rank: part for rank in held if (part := found.get(rank)) is not None}
            self.found.judged.append(self._judged(name, target, held, parts))

    def _pairs(
        self, entries: Mapping[str, object], aliases: Mapping[str, str], kinds: frozenset[Kind], step: int
    ) -> Iterator[tuple[str, str, str]]:
        """Name, the spec's tensor of that name, and the parallel program's."""
        prefix = step_name(step, "")
        own = {
            name: name
            for name, entry in self.reference.entries.items()
            if entry.kind in kinds and (name.startswith(prefix) if step else not name.startswith("step"))
        }
        if step == 0:
            known_entries = self.reference.entries
            own |= {
                name: target
                for name, target in self.reference.aliases.items()
                if target in known_entries and known_entries[target].kind in kinds
            }
        for name, target in own.items():
            plain = name.removeprefix(prefix)
            source = plain if plain in entries else aliases.get(plain)
            if source in entries:
                assert source is not None
                yield name, target, source
            elif name == target:
                kind = self.reference.entries[target].kind
                self.found.missing.append((name, kind, "the parallel program has no such tensor"))
        known = {name.removeprefix(prefix) for name in own}
        for name in entries:
            if name in known or name in aliases or name in self.reference.aliases:
                continue
            recomputed = name.removeprefix("recomputed.")
            if recomputed != name:
                target = self.reference.aliases.get(recomputed, recomputed)
                if target in self.reference.values:
                    yield name, target, name
                continue
            self.found.missing.append((name, Kind.ACTIVATION, "the spec has no such tensor"))

    def _judged(self, name: str, target: str, held: Mapping[int, Entry], parts: Mapping[int, torch.Tensor]) -> Judged:
        spec = self.reference.entries[target]
        first = next(iter(held.values()))
        kind = first.kind if first.kind is Kind.RECOMPUTED else spec.kind
        known = self._known(name, kind, first)
        scale = self.scale if kind is Kind.ACTIVATION_GRADIENT or name.startswith("grad.input.") else 1.0
        value = self.reference.values[target]
        module = first.module or spec.module
        subject = Subject(name, kind, module, value, self.thresholds.get(target, 0.0))
        sums = kind in _SUMS and not self._is_declared(name)
        judged = judge(subject, parts, known, self.mesh, sums=sums, scale=scale)
        if judged.exceeds and scale != 1.0:
            # What is the same on every rank, as the loss itself, is not multiplied.
            plain = judge(subject, parts, known, self.mesh, sums=sums)
            judged = plain if plain.ratio < judged.ratio else judged
        if judged.exceeds and judged.kind not in _SUMS:
            free = judge(subject, parts, None, self.mesh, sums=True)
            if not free.exceeds and free.layout is not None:
                judged = dataclasses.replace(judged, fits=free.layout_text)
        return judged

    def _is_declared(self, name: str) -> bool:
        return name in self.options.out_placements

    def _known(self, name: str, kind: Kind, entry: Entry) -> Known | None:
        """What is known of a layout: the tensor's own, its declaration's, or its parameter's."""
        plain = name.partition(".")[2] if name.startswith("step") else name
        if kind is Kind.OUTPUT and plain in self.options.out_placements:
            return self.options.out_placements[plain]
        if kind not in (Kind.GRADIENT, Kind.PARAMETER, Kind.BUFFER, Kind.STATE, Kind.INPUT):
            return entry.layout
        if entry.layout is not None:
            return tuple(placement or Replicate() for placement in entry.layout)
        owner = plain.partition(".")[2]
        if kind is Kind.STATE:
            owner = owner.rpartition(".")[0]
            if not entry.shape:
                return tuple(Replicate() for _ in self.mesh.axes)
        given = next((v for k, v in self.options.grad_placements.items() if fnmatch.fnmatchcase(owner, k)), None)
        if kind is Kind.GRADIENT and given is not None:
            return given
        return self.layouts.get(owner, tuple(Replicate() for _ in self.mesh.axes))


def scale_of(outputs: list[Judged], mesh: Mesh) -> float:
    """By how much the ranks' gradients exceed the spec's where each begins with the mean of its own samples."""
    averaged: set[int] = set()
    for output in outputs:
        for axis, placement in enumerate(output.layout or ()):
            if isinstance(placement, Partial) and placement.reduce_op == "avg":
                averaged.add(axis)
    return float(math.prod(mesh.axes[axis].size for axis in averaged))
