"""What ranks had alike when a graph was verified, at the calls that follow: tensors, and what each call decides.

Torch counts the writes to a tensor. A call compares these counts, without those of optimizers, with those of the call
before; ranks speak to each other only where one differs, or where another tensor has come in, as from the next of the
layers that share a graph.
Of sizes and Python numbers that the graph leaves open they speak where one differs from the call before; also where a
call runs another of the graphs that were compiled of its code, and where wrappers begin or cease to reduce gradients.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from verifycompile.agreement.channel import Answer, Channel
from verifycompile.agreement.reconcile import Conversation, NoAnswerError
from verifycompile.agreement.together import content_digest, cut_axes, waiting_time
from verifycompile.agreement.written import digest_of
from verifycompile.captured_notes import OwnCapture
from verifycompile.program import Program
from verifycompile.torch_interface.data_parallel.outer_ddp import sent_by_ddp
from verifycompile.torch_interface.dynamo.returned import called_between
from verifycompile.torch_interface.guards.wrapper_guards import reductions_now
from verifycompile.torch_interface.operators.contents import Place, own_part
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.torch_interface.ranks.mesh import line_through
from verifycompile.torch_interface.training_step.optimizers import writes_outside_of_steps

MOST_COMPARISONS = 64
"""Of what changes before each call the ranks speak so often, and from then on at one change in so many."""


class Kind(enum.Enum):
    """What a call takes or decides. The value: what is said where it is another than at the call before."""

    TENSOR = "was written to, or is another tensor, since `{}` was verified"
    NUMBER = "is another number than at the call of `{}` before"
    GRAPH = "is not the one of the call before"
    REDUCTION = "is not as at the call before"


@dataclasses.dataclass(frozen=True)
class Held:
    """What ranks have alike. ``position``: among the inputs of the graph; negative where it is none of them.

    ``ranks``: those that have it alike, this one among them.
    """

    name: str
    position: int
    ranks: tuple[int, ...]
    kind: Kind = Kind.TENSOR


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """What is said of a tensor that is not found alike. ``ranks``: those that find the same, by the ``channel``."""

    message: str
    ranks: tuple[int, ...]
    frame: str


_Known = tuple[weakref.ref[torch.Tensor], Place, int]
_alike: dict[tuple[int, tuple[int, ...]], _Known] = {}
"""A tensor, by its identity, and ranks that hold it alike -> the tensor, where it lay, and the writes to it by then.

Those of optimizers are left out: of gradients that are alike they make parameters that are alike up to rounding.
"""


_running: weakref.WeakKeyDictionary[Channel, dict[tuple[str, tuple[int, ...]], str]] = weakref.WeakKeyDictionary()
"""Of the graphs of one code, which the ranks run together, the one that ran last; by its frame and the ranks."""


def trained_alike() -> dict[int, tuple[int, ...]]:
    """The most ranks that were found to hold a parameter that is trained alike, by its identity and its gradient's."""
    found: dict[int, tuple[int, ...]] = {}
    for (_, ranks), (known, _, _) in list(_alike.items()):
        held = known()
        if held is None or not held.requires_grad or not held.is_leaf:
            continue
        for identity in (id(held), id(held.grad)):
            found[identity] = max(found.get(identity, ()), ranks, key=len)
    return found


class HeldAlike:
    """What is alike of one graph when this is made.

    ``frame``: its name on every rank; ``function``: what it runs. ``ranks``: those that run it together. ``values``:
    the inputs of the graph.
    """

    def __init__(
        self,
        frame: str,
        function: str,
        channel: Channel,
        ranks: Sequence[int],
        *,
        held: Iterable[Held],
        values: Sequence[Any],
    ) -> None:
        self.function, self.channel = function, channel
        decided = [Held(f"the graph of `{function}` that runs", -1, tuple(ranks), kind=Kind.GRAPH)]
        if reductions_now(values):
            name = f"whether wrappers reduce the gradients of `{function}`"
            decided.append(Held(name, -2, tuple(ranks), kind=Kind.REDUCTION))
        tensors_first = sorted(held, key=lambda item: item.kind is Kind.NUMBER)
        by_position = {item.position: item for item in (*decided, *tensors_first)}  # what is a number is no tensor
        self.held = tuple(by_position.values())
        self._frame = f"{frame}, at a later call"
        self._graph = f"number {channel.times_begun(frame)} of those compiled"
        self._seen: dict[Held, str] = {}
        self._changes: collections.Counter[Kind] = collections.Counter()
        self._left_open: set[Held] = set()
        with real_tensors():
            self.keep(values)

    def keep(self, values: Sequence[Any]) -> None:
        """Each of them is alike now: it was compared, or what wrote to it was verified. ``values``: of the inputs."""
        for item in self.held:
            if item in self._left_open:
                continue
            if item.kind is Kind.GRAPH:
                _running.setdefault(self.channel, {})[self._frame, item.ranks] = self._graph
            elif item.kind is not Kind.TENSOR:
                self._seen[item] = self._value(item, values)
            elif not self._is_known(item, tensor := values[item.position]):
                part = own_part(tensor)
                _alike[id(part), item.ranks] = (weakref.ref(part), Place(part), writes_outside_of_steps(tensor))

    def changed(self, values: Sequence[Any]) -> list[tuple[Held, Any]]:
        """Those of which it is not known that they are alike now."""
        pairs = ((item, self._value(item, values)) for item in self.held)
        return [(item, value) for item, value in pairs if not self._is_known(item, value)]

    def compare(self, values: Sequence[Any]) -> Disagreement | None:
        """Wait for the other ranks, where they have to do the same. None: they have it alike."""
        changed = self.changed(values)
        own = [(item, value) for item, value in changed if item.kind is not Kind.TENSOR or not sent_by_ddp(value)]
        self._changes.update({item.kind for item, _ in own})
        self._left_open = {item for item, _ in own if self._is_left_open(item)}
        own = [(item, value) for item, value in own if item not in self._left_open]
        for ranks, listed in itertools.groupby(sorted(own, key=_by_ranks), key=_by_ranks):
            found = self._compared(ranks, list(listed), values)
            if found is not None:
                return found
        return None

    def left_open(self) -> str:
        """What is said once, where tensors change so often that they are compared now and then; "" where they do not.

        Of numbers the report says that they are taken to be the same.
        """
        if self._changes[Kind.TENSOR] != MOST_COMPARISONS + 1:
            return ""
        names = [item.name for item in self.held if item in self._left_open and item.kind is Kind.TENSOR]
        return _MANY.format(names[0], self.function, MOST_COMPARISONS) if names else ""

    def _is_left_open(self, item: Held) -> bool:
        changes = self._changes[item.kind]
        return changes > MOST_COMPARISONS and changes % MOST_COMPARISONS != 0

    def _value(self, item: Held, values: Sequence[Any]) -> Any:
        """A tensor as it is, all else as it is shown."""
        if item.kind is Kind.TENSOR:
            return values[item.position]
        if item.kind is Kind.GRAPH:
            return self._graph
        return reductions_now(values) if item.kind is Kind.REDUCTION else _shown(values[item.position])

    def _is_known(self, item: Held, value: Any) -> bool:
        if item.kind is Kind.GRAPH:
            return _running.get(self.channel, {}).get((self._frame, item.ranks)) == value
        if item.kind is not Kind.TENSOR:
            return self._seen.get(item) == value
        part = own_part(value)
        known = _alike.get((id(part), item.ranks))
        if known is None:
            return False
        held, place, writes = known
        return held() is part and place.is_of(part) and writes == writes_outside_of_steps(value)

    def _compared(
        self, ranks: tuple[int, ...], listed: list[tuple[Held, Any]], values: Sequence[Any]
    ) -> Disagreement | None:
        frame = f"{self._frame} of {list(ranks)}"
        digests = {item.name: _said(item, value) for item, value in listed}
        digest = digest_of(digests)
        self.channel.begin(frame)
        question = self.channel.publish(frame, ranks, digest)
        seconds = waiting_time()
        answer = self.channel.answers(question, digest, seconds)
        if answer.agrees:
            return None
        if answer.absent:
            return Disagreement(self._alone(answer, list(digests)), (self.channel.rank,), frame)
        conversation = Conversation(self.channel, question, answer.digests, seconds)
        try:
            changed = conversation.everybody("changed", digests)
            # What one rank writes another may have got from it by a collective, which torch does not count.
            names = {name: None for rank in sorted(changed) for name in changed[rank]}
            others = [
                item for item in self.held if item.ranks == ranks and item.name in names and item.name not in digests
            ]
            digests |= {item.name: _said(item, self._value(item, values)) for item in others}
            said = conversation.everybody("of all that changed", digests)
        except NoAnswerError as error:
            return Disagreement(f"{self._named(list(digests))}, and {error}.", (self.channel.rank,), frame)
        self.channel.finish(question, seconds)
        first = min(said)
        other = next((rank for rank in sorted(said) if said[rank] != said[first]), None)
        if other is None:
            return None
        name = next(name for name in names if said[first].get(name) != said[other].get(name))
        shown = " and ".join(f"{said[rank].get(name, 'unknown')} on rank {rank}" for rank in (first, other))
        differ = _DIFFER.format(first, other) if self._kind(name) is Kind.TENSOR else f"it is {shown}"
        message = f"{self._named([name])}, and {differ}. {_ADVICE[self._kind(name)]}"
        return Disagreement(message, ranks, frame)

    def _alone(self, answer: Answer, names: list[str]) -> str:
        absent = "; ".join(f"rank {rank}: {reason}" for rank, reason in itertools.islice(answer.absent.items(), 4))
        where = f"on rank {self.channel.rank} and not on all others ({absent})"
        return f"{self._named(names)}, {where}. {_ADVICE[self._kind(names[0])]}"

    def _named(self, names: list[str]) -> str:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        kind = self._kind(names[0])
        name = names[0] if kind in (Kind.GRAPH, Kind.REDUCTION) else f"`{names[0]}`"
        return f"{name}{more} {kind.value.format(self.function)}"

    def _kind(self, name: str) -> Kind:
        """Of what another rank alone names, which it has and this one has not, a tensor."""
        return next((item.kind for item in self.held if item.name == name), Kind.TENSOR)


_ADVICE = {
    Kind.TENSOR: (
        "Change it in the same way on all ranks before the call, or say how it is laid out with `param_placements`."
    ),
    Kind.NUMBER: "Give all ranks the same number: what is proved is of ranks that have the same.",
    Kind.GRAPH: (
        "Give all ranks the same sizes, flags and modules: each graph is proved of ranks that run it together."
    ),
    Kind.REDUCTION: "Switch it on all ranks before the same call: who reduces waits for the others.",
}
_MANY = (
    "`{0}` changes between calls of `{1}`, and was the same on all ranks each of the {2} times that it was compared; "
    "from now on it is compared at one change in {2}. Change it inside of what is compiled, where it is verified, to "
    "be sure of it."
)
_DIFFER = "ranks {} and {} hold other numbers in it now"


def held_numbers(places: Mapping[str, int], ranks: Sequence[int]) -> list[Held]:
    """The sizes and numbers of Python that a graph leaves open, by name, which ``ranks`` have alike."""
    return [Held(name, place, tuple(ranks), kind=Kind.NUMBER) for name, place in places.items()]


def held_by_program(implementation: Program, own: OwnCapture, rank: int, values: Sequence[Any]) -> Iterator[Held]:
    """The tensors that ``rank`` was found to hold as other ranks do. ``values``: the inputs of the captured graph."""
    mesh = implementation.mesh
    assert mesh is not None
    places = {id(own_part(value)): place for place, value in enumerate(values) if isinstance(value, torch.Tensor)}
    for item in implementation.inputs:
        place = places.get(id(own.held.get(item.name)))
        cut = cut_axes(item, own)
        alike = line_through(rank, tuple(axis for axis in own.axes if axis not in cut), mesh)
        if place is not None and len(alike) > 1:
            yield Held(item.name, place, alike)


def _by_ranks(listed: tuple[Held, Any]) -> tuple[int, ...]:
    return listed[0].ranks


def _said(item: Held, value: Any) -> Any:
    return content_digest(own_part(value)) if item.kind is Kind.TENSOR else value


def _shown(number: Any) -> str:
    """A number as a graph takes it, at a call or, where it is a symbol, at the traced one."""
    if isinstance(number, torch.SymInt):
        return repr(number.node.hint)
    return repr(number.item() if isinstance(number, torch.Tensor) else number)


def comparing(
    compiled: Callable[..., Any], held: HeldAlike, refuse: Callable[[Disagreement], None], warn: Callable[[str], None]
) -> Callable[..., Any]:
    """``compiled``, which is called with what ranks were found to hold alike, and raises where it is not.

    ``refuse``: told what differs; it raises, or warns where the user asked to go on. ``warn``: told once that the
    tensors change so often that they are compared now and then.
    """

    def compare(values: Sequence[Any]) -> None:
        if found := held.compare(values):
            refuse(found)
        elif text := held.left_open():
            warn(text)

    return called_between(compiled, compare, held.keep)
