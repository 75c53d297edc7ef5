"""The line of a forward that is wrong, or whose backward is: the operations of both programs one beside the other."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence

from torch.distributed.tensor.placement_types import Partial, Replicate

from verifycompile.comparison.judge import Judged, Subject, judge_scaled
from verifycompile.comparison.layout import Known, Placements
from verifycompile.comparison.operations import Operation
from verifycompile.comparison.ranks import Ranks
from verifycompile.comparison.reference import Reference
from verifycompile.comparison.trace import Kind
from verifycompile.comparison.worker import Ran
from verifycompile.diagnostics.finding import Finding
from verifycompile.program import Mesh, SourceLocation

_FIRST = "gives the first value of this forward that is not the spec's, whole or in parts"
_BACKWARD = "gives the first gradient that is not the spec's, whole or in parts"


@dataclasses.dataclass(frozen=True)
class Line:
    """Where the first value is off, what it is, and how that is said."""

    place: SourceLocation
    judged: Judged
    said: str


@dataclasses.dataclass(frozen=True)
class Related:
    """``own``: the program's operation for the spec's of that name; ``same``: names of those that are the same call."""

    own: Mapping[str, Operation]
    same: Collection[str]

    def has(self, operation: Operation) -> bool:
        """Whether it is one for the spec's."""
        return any(operation.name == other.name for other in self.own.values())


class Lines:
    """The operations in the forward of one module. ``ran``: of each rank; ``scales``: as of gradients of activations.

    Both programs' operations correspond in their order, those of the same line first, then those of the same function.
    Where a rank calls other functions than the first rank does, it has no value of those names.
    """

    def __init__(
        self,
        reference: Reference,
        thresholds: Mapping[str, float],
        ranks: Ranks,
        ran: Mapping[int, Ran],
        *,
        mesh: Mesh,
        scales: Sequence[float],
    ) -> None:
        self._reference = reference
        self._thresholds = thresholds
        self._ranks = ranks
        self._mesh = mesh
        self._scales = scales
        self._held = [{entry.name: entry for entry in one.entries} for one in ran.values()]
        self._own = next(iter(ran.values())).operations
        self._pairs = list(corresponding(reference.operations, self._own))

    def forward(self) -> Line | None:
        """The first operation whose value is under no layout the spec's.

        Where the program calls functions before it that the spec does not, it is the last of them whose value is none
        of the spec's. None where it is a module that is called.
        """
        right: set[str] = set()
        for spec, own in self._pairs:
            operation = self._own[own]
            found = self._judged(self._reference.operations[spec].name, operation.name)
            if found is None:
                return None
            if not found.exceeds:
                right.add(operation.name)
                continue
            for other in self._before(own, right):
                if self._is_none_of(other, spec):
                    return _line(other, found, f"`{other.function}`, which the spec does not call, {_FIRST}")
            return None if operation.is_module else _line(operation, found, f"`{operation.function}` {_FIRST}")
        return None

    def _before(self, position: int, right: Collection[str]) -> Iterator[Operation]:
        """What an operation rests on, back to values that are right, the last first.

        Where nothing is differentiated that is what is called since the last right value.
        """
        wanted = set(self._own[position].takes)
        for other in reversed(self._own[:position]):
            if other.name in right:
                if not self._own[position].takes:
                    return
            elif not other.hooks and (other.name in wanted or not self._own[position].takes):
                wanted.update(other.takes)
                yield other

    def _is_none_of(self, own: Operation, end: int) -> bool:
        """Whether the value is no value that the spec has before its operation number ``end``."""
        for operation in self._reference.operations[:end]:
            found = self._judged(operation.name, own.name)
            if found is not None and found.layout is not None and not found.exceeds:
                return False
        return True

    def backward(self) -> Line | None:
        """The operation whose backward gives the first gradient that is not the spec's."""
        pairs = [(one, other) for one, other in self._pairs if self._has_gradient(self._own[other])]
        same = {self._own[other].name for _, other in pairs}
        pairs += self._alike(pairs)
        related = Related({self._reference.operations[one].name: self._own[other] for one, other in pairs}, same)
        spec = {f"grad.{operation.name}": operation for operation in self._reference.operations}
        for name in self._reference.entries:
            arriving = spec.get(name)
            operation = arriving or spec.get(name.rpartition(".")[0])
            held = None if operation is None else related.own.get(operation.name)
            if operation is None or held is None:
                continue
            if arriving is not None:
                line = self._arriving(operation, held, related)
            elif held.name in related.same:
                found = self._judged(name, f"grad.{held.name}.{name.rpartition('.')[2]}")
                said = f"the backward of `{held.function}` {_BACKWARD}"
                line = None if found is None or not found.exceeds else _line(held, found, said)
            else:
                line = None
            if line is not None:
                return line
        return None

    def _has_gradient(self, operation: Operation) -> bool:
        return f"grad.{operation.name}" in self._held[0]

    def _alike(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Calls of different functions that give the same value, between those that are the same call."""
        made: list[tuple[int, int]] = []
        before = -1, -1
        for pair in (*pairs, (len(self._reference.operations), len(self._own))):
            first = before[0] + 1
            for own in range(before[1] + 1, pair[1]):
                for spec in range(first, pair[0] if self._has_gradient(self._own[own]) else first):
                    if self._agrees(self._reference.operations[spec], self._own[own]):
                        made.append((spec, own))
                        first = spec + 1
                        break
            before = pair
        return made

    def _agrees(self, spec: Operation, own: Operation) -> bool:
        found = self._judged(spec.name, own.name)
        return found is not None and found.layout is not None and not found.exceeds

    def _arriving(self, spec: Operation, own: Operation, related: Related) -> Line | None:
        """What arrives at the value of an operation is off, and what comes later in the forward gave what it should."""
        name = f"grad.{spec.name}"
        for operation in reversed(self._copies(spec, own, related)):
            found = self._judged(name, f"grad.{operation.name}")
            if found is None:
                continue
            if found.exceeds:
                return self._giver(spec, operation, found, related)
            for hook in self._own:
                if hook.hooks != operation.name or related.has(hook):
                    continue
                off = self._off_after(name, hook, found.layout)
                if off is not None:
                    return _line(hook, off, f"the hook on the gradient of `{operation.function}` {_BACKWARD}")
        return None

    def _off_after(self, spec: str, hook: Operation, before: Placements | None) -> Judged | None:
        """What a hook returns, where it is off both as it was before and as what was added up over ranks."""
        summed = tuple(Replicate() if isinstance(placement, Partial) else placement for placement in before or ())
        off: Judged | None = None
        for layout in (before, summed):
            off = self._judged(spec, f"grad.{hook.name}", layout)
            if off is None or not off.exceeds:
                return None
        return off

    def _copies(self, spec: Operation, own: Operation, related: Related) -> list[Operation]:
        """The operation, and those that alone take its value, one after the other, and give it as it is."""
        made = [own]
        while True:
            taking = [other for other in self._own if made[-1].name in other.takes]
            if len(taking) != 1 or related.has(taking[0]) or not self._agrees(spec, taking[0]):
                return made
            made.append(taking[0])

    def _giver(self, spec: Operation, own: Operation, found: Judged, related: Related) -> Line | None:
        """The operation that gave a wrong gradient to the value of ``own``, or none where the spec's gives one."""
        for other in self._own:
            if own.name in other.takes and other.name not in related.same:
                said = f"the backward of `{other.function}`, which the spec does not call, {_BACKWARD}"
                return _line(other, found, said)
        for operation in self._reference.operations:
            other = related.own.get(operation.name)
            if spec.name in operation.takes and other is not None and own.name not in other.takes:
                return _line(other, found, f"`{other.function}` gives no gradient to a value that the spec's gives one")
        return _line(own, found, f"what arrives in backward at the value of `{own.function}` is off")

    def _judged(self, spec: str, own: str, known: Known | None = None) -> Judged | None:
        """None where a rank, or the spec, has no such tensor. ``known``: its layout, unless it says that itself."""
        first = self._held[0].get(own)
        if first is None or spec not in self._reference.values or any(own not in held for held in self._held):
            return None
        parts = {rank: part for rank, part in self._ranks.call("value", own).items() if part is not None}
        value = self._reference.values[spec]
        norm, threshold = self._reference.norm(spec, value), self._thresholds.get(spec, 0.0)
        subject = Subject(spec, first.kind, first.module, value, norm, threshold)
        known = first.layout if known is None else known
        scales = self._scales if first.kind is Kind.ACTIVATION_GRADIENT else ()
        return judge_scaled(subject, parts, known, self._mesh, sums=True, scales=scales)


def corresponding(spec: Sequence[Operation], own: Sequence[Operation]) -> Iterator[tuple[int, int]]:
    """Positions of operations of both programs that are the same call: by line and function, else by function."""
    first = 0, 0
    for one, other, size in _blocks([_at_line(item) for item in spec], [_at_line(item) for item in own]):
        for a, b, count in _blocks(
            [item.function for item in spec[first[0] : one]], [item.function for item in own[first[1] : other]]
        ):
            yield from ((first[0] + a + k, first[1] + b + k) for k in range(count))
        yield from ((one + k, other + k) for k in range(size))
        first = one + size, other + size


def _at_line(item: Operation) -> tuple[str, str, int]:
    return (item.function, "", 0) if item.place is None else (item.function, item.place.file, item.place.line)


def _blocks(spec: Sequence[object], own: Sequence[object]) -> list[tuple[int, int, int]]:
    """Where both have the same items, ending with an empty block at the end of both."""
    blocks = difflib.SequenceMatcher(None, spec, own, autojunk=False).get_matching_blocks()
    return [(block.a, block.b, block.size) for block in blocks]


def _line(operation: Operation, judged: Judged, said: str) -> Line | None:
    return None if operation.place is None else Line(operation.place, judged, said)


def at_line(finding: Finding, line: Line) -> Finding:
    """The finding at the line of its module's forward."""
    return dataclasses.replace(finding, impl_location=line.place, label=line.said)
