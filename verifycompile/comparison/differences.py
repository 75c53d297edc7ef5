"""Which tensors of both programs are related, and how far each is off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.distributed.tensor.placement_types import Partial, Replicate

from verifycompile.capture.placed import by_pattern
from verifycompile.comparison.judge import Judged, Subject, judge, judge_scaled
from verifycompile.comparison.layout import Known, Placements
from verifycompile.comparison.ranks import Ranks
from verifycompile.comparison.reference import Reference, pass_name, pass_of
from verifycompile.comparison.trace import Entry, Kind
from verifycompile.comparison.worker import MAIN, Ran
from verifycompile.options import Options
from verifycompile.program import Mesh
from verifycompile.torch_interface.dtensor.placements import sharded_dimension

FINAL = frozenset({Kind.OUTPUT, Kind.GRADIENT, Kind.CLIPPED, Kind.PARAMETER, Kind.BUFFER, Kind.STATE})
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

    ``layouts``: of parameters and inputs. ``proved``: of results, where a proof has told. ``scales``: by how much
    gradients of activations may be multiplied, as data-parallel ranks begin backward with their own mean. ``doubtful``:
    by how much as well, where their means are the same number by chance, and what the program ends with is right.
    ``decided``: of a tensor's name, thresholds that rest on more runs where its own rests on a few numbers.
    """

    ranks: Ranks
    reference: Reference
    thresholds: Mapping[str, float]
    layouts: Mapping[str, Placements]
    mesh: Mesh
    options: Options
    found: Differences = dataclasses.field(default_factory=Differences)
    scales: tuple[float, ...] = ()
    doubtful: tuple[float, ...] = ()
    proved: Mapping[str, Placements] = dataclasses.field(default_factory=dict[str, Placements])
    decided: Callable[[str], Mapping[str, float]] = lambda _: {}
    _multiples: dict[int, Judged] = dataclasses.field(init=False, default_factory=dict[int, Judged])
    _seen: set[tuple[object, ...]] = dataclasses.field(init=False, default_factory=set[tuple[object, ...]])

    def outputs(self) -> list[Judged]:
        """What was found of the program's outputs."""
        return [item for item in self.found.judged if item.kind is Kind.OUTPUT]

    def settle(self) -> None:
        """After backward: gradients of activations that are multiples of the spec's by ``doubtful`` may be right."""
        if not any(item.exceeds and item.kind in FINAL for item in self.found.judged):
            for position, item in self._multiples.items():
                self.found.judged[position] = item
        self._multiples.clear()

    def take(self, ran: Mapping[int, Ran], kinds: frozenset[Kind], step: int) -> None:
        """Compare what a phase left; ``kinds``: of the spec's tensors that it must have left."""
        held: dict[str, dict[int, Entry]] = {}
        for rank, one in ran.items():
            own = {entry.name: entry for entry in one.entries}
            for name in (*own, *one.aliases):
                entry = own.get(name) or own.get(one.aliases.get(name, ""))
                if entry is not None:
                    held.setdefault(name, {})[rank] = entry
        for name, target, source in self._pairs(held, kinds, step):
            key = (target, tuple((rank, entry.name) for rank, entry in held[source].items()), step)
            if key in self._seen:
                continue
            self._seen.add(key)
            found: dict[int, torch.Tensor | None] = self.ranks.call("value", source)
            parts = {rank: part for rank in held[source] if (part := found.get(rank)) is not None}
            judged = self._judged(name, target, held[source], parts)
            if judged.exceeds and not any(item.exceeds for item in self.found.judged):
                self.thresholds = {**self.thresholds, **self.decided(target)}
                judged = self._judged(name, target, held[source], parts)
            self.found.judged.append(judged)
        self.ranks.call("drop")

    def _pairs(self, held: Mapping[str, object], kinds: frozenset[Kind], step: int) -> Iterator[tuple[str, str, str]]:
        """Name, the spec's tensor, and the name of the parallel program's, in the order of the spec's run."""
        known = self.reference.entries
        targets = {**{name: name for name in known}, **self.reference.aliases}
        own = {
            name: target
            for name, target in targets.items()
            if target in known and known[target].kind in kinds and pass_of(name) == step
        }
        last = len(self.reference.names)
        prefix = pass_name(step, "")
        for name in sorted(own, key=lambda name: self.reference.names.get(name, last)):
            plain = name.removeprefix(prefix)
            if plain in held:
                yield name, own[name], plain
            elif name == own[name] and f"{MAIN}{plain}" not in held:
                self.found.missing.append((name, known[name].kind, "the parallel program has no such tensor"))
        for name in held:
            if pass_name(step, name) in targets:
                continue
            target = targets.get(pass_name(step, name.removeprefix("recomputed.").removeprefix(MAIN)))
            if target in known:
                assert target is not None
                yield pass_name(step, name), target, name
            elif not name.startswith("recomputed."):
                self.found.missing.append((pass_name(step, name), Kind.ACTIVATION, "the spec has no such tensor"))

    def _judged(self, name: str, target: str, held: Mapping[int, Entry], parts: Mapping[int, torch.Tensor]) -> Judged:
        spec = self.reference.entries[target]
        first = next(iter(held.values()))
        # What is an input of the spec as it is may be a part of it that the program has taken.
        kind = first.kind if first.kind is Kind.RECOMPUTED or spec.kind is Kind.INPUT else spec.kind
        known = self._known(name, kind, first)
        is_scaled = kind is Kind.ACTIVATION_GRADIENT or name.startswith("grad.input.")
        value = self.reference.values[target]
        module = first.module if kind in FINAL else module_of(name)
        norm = self.reference.norm(target, value)
        subject = Subject(name, kind, module, value, norm, self.thresholds.get(target, 0.0))
        sums = kind in _SUMS and name not in self.options.out_placements
        # What is the same on every rank, as the loss itself, is not multiplied.
        scales = self.scales if is_scaled else ()
        judged = judge_scaled(subject, parts, known, self.mesh, sums=sums, scales=scales)
        if judged.exceeds and kind is Kind.ACTIVATION_GRADIENT and self.doubtful:
            other = judge_scaled(subject, parts, known, self.mesh, sums=sums, scales=self.doubtful)
            if not other.exceeds:
                self._multiples[len(self.found.judged)] = other
        if judged.exceeds and judged.kind not in _SUMS:
            free = judge(subject, parts, None, self.mesh, sums=True)
            if not free.exceeds and free.layout is not None:
                judged = dataclasses.replace(judged, fits=free.layout_text)
        return judged

    def _known(self, name: str, kind: Kind, entry: Entry) -> Known | None:
        """What is known of a layout: the tensor's own, its declaration's, or its parameter's."""
        plain = name.partition(".")[2] if pass_of(name) else name
        if kind is Kind.OUTPUT and plain in self.options.out_placements:
            return self.options.out_placements[plain]
        if kind is Kind.OUTPUT and entry.layout is None and plain in self.proved:
            return self.proved[plain]
        if kind not in (Kind.GRADIENT, Kind.CLIPPED, Kind.PARAMETER, Kind.BUFFER, Kind.STATE, Kind.INPUT):
            return entry.layout
        if entry.layout is not None:
            return tuple(placement or Replicate() for placement in entry.layout)
        owner = plain if kind is Kind.INPUT else plain.partition(".")[2]
        if kind is Kind.STATE:
            owner = owner.rpartition(".")[0]
            if not entry.shape:
                return tuple(Replicate() for _ in self.mesh.axes)
        given = by_pattern(self.options.grad_placements, owner)
        if kind in (Kind.GRADIENT, Kind.CLIPPED) and given is not None:
            return given
        return self.layouts.get(owner, tuple(Replicate() for _ in self.mesh.axes))


def module_of(name: str) -> str:
    """The module of the activation of this name."""
    plain = name.partition(".")[2] if pass_of(name) else name
    for word in ("grad.", "recomputed."):
        plain = plain.removeprefix(word)
    path = plain.rpartition(".output.")[0] or plain.rpartition(".input.")[0] or plain.rpartition(".input")[0]
    head, found, number = path.rpartition(".call")
    return head if found and number.isdigit() else path


def scales_of(outputs: list[Judged], mesh: Mesh) -> tuple[float, ...]:
    """By how much the ranks' gradients may exceed the spec's where each begins with the mean of its own samples."""
    found: set[float] = set()
    for output in outputs:
        for layout in output.possible:
            averaged = [
                axis.size
                for axis, placement in zip(mesh.axes, layout, strict=True)
                if isinstance(placement, Partial) and placement.reduce_op == "avg"
            ]
            found.add(float(math.prod(averaged)))
    return tuple(sorted(found - {1.0}))


def doubtful_scales(outputs: list[Judged], layouts: Mapping[str, Placements], mesh: Mesh) -> tuple[float, ...]:
    """By how much they may where outputs are the same on ranks that have samples of their own."""
    of_inputs = [layout for name, layout in layouts.items() if name.startswith("input.")]
    own = [any(sharded_dimension(layout[axis]) is not None for layout in of_inputs) for axis in range(len(mesh.axes))]
    found: set[float] = set()
    for output in outputs:
        same = (isinstance(placement, Replicate) for placement in output.layout or ())
        axes = zip(mesh.axes, own, same, strict=False)
        found.add(float(math.prod(axis.size for axis, samples, is_same in axes if samples and is_same)))
    return tuple(sorted(found - {1.0}))


def precision_notes(judged: list[Judged], casts: Mapping[str, torch.dtype], epsilon: float) -> list[str]:
    """Where the parallel program is coarser than the spec, whose epsilon is given, within what rounding explains.

    ``casts``: what wrappers do in dtypes of their own, of which the tensors that come out have no sign.
    """
    notes: list[str] = []
    within = [item for item in judged if item.layout is not None and not item.exceeds]
    final = [item for item in within if item.kind in FINAL]
    for what, dtype in casts.items():
        if final and torch.finfo(dtype).eps > epsilon:
            worst = max(final, key=_relative)
            largest = f"the most that a result is off by is {_relative(worst):.2e}, `{worst.name}`"
            notes.append(f"precision: {what}; {largest}")
    for item in within:
        spec, own = (getattr(torch, name, None) for name in item.dtypes)
        if not isinstance(spec, torch.dtype) or not isinstance(own, torch.dtype):
            continue
        if spec.is_floating_point and own.is_floating_point and torch.finfo(own).eps > torch.finfo(spec).eps:
            own_dtype, spec_dtype = item.dtypes[1], item.dtypes[0]
            text = f"precision: `{item.name}` is {own_dtype}, the spec's {spec_dtype}; off by {_relative(item):.2e}"
            notes.append(text)
    return notes


def _relative(item: Judged) -> float:
    return item.error / (item.norm or 1.0)
