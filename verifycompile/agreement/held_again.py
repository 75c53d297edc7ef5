"""Tensors that ranks held alike when a graph was verified, and its open numbers, at the calls that follow.

Torch counts the writes to a tensor. A call compares these counts with those of the call before; ranks speak to each
other only where one differs, or where another tensor has come in, as from the next of the layers that share a graph.
Of a Python number that the graph leaves open they speak where it is another one than at the call before.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
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
from verifycompile.torch_interface.operators.contents import own_part, writes_to
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.torch_interface.ranks.mesh import line_through

MOST_COMPARISONS = 64
"""Of the tensors of one graph, and of its numbers: what changes before each call would be sent for at each call."""


@dataclasses.dataclass(frozen=True)
class Held:
    """A tensor, or a number of Python, that ranks hold alike.

    ``position``: among the inputs of the graph. ``ranks``: those that hold it alike, this one among them.

    ``is_trained``: the optimizer writes to it, which is no part of what is compared. ``is_number``: it is a number, of
    which torch makes another tensor at each call.
    """

    name: str
    position: int
    ranks: tuple[int, ...]
    is_trained: bool = False
    is_number: bool = False


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """What is said of a tensor that is not found alike. ``ranks``: those that find the same, by the ``channel``."""

    message: str
    ranks: tuple[int, ...]
    frame: str


_Known = tuple[weakref.ref[torch.Tensor], int]
_alike: dict[tuple[int, tuple[int, ...]], _Known] = {}
"""A tensor, by its identity, and ranks that hold it alike -> the tensor, and the number of writes to it by then."""


def trained_alike() -> dict[int, tuple[int, ...]]:
    """The most ranks that were found to hold a parameter that is trained alike, by its identity and its gradient's."""
    found: dict[int, tuple[int, ...]] = {}
    for (_, ranks), (known, _) in list(_alike.items()):
        held = known()
        if held is None or not held.requires_grad or not held.is_leaf:
            continue
        for identity in (id(held), id(held.grad)):
            found[identity] = max(found.get(identity, ()), ranks, key=len)
    return found


class HeldAlike:
    """The tensors and open numbers of one graph, which are alike when this is made.

    ``frame``: its name on every rank; ``function``: what it runs. ``values``: the inputs of the graph.
    """

    def __init__(
        self, frame: str, function: str, channel: Channel, held: Iterable[Held], values: Sequence[Any]
    ) -> None:
        self.function, self.channel = function, channel
        tensors_first = sorted(held, key=operator.attrgetter("is_number"))
        by_position = {item.position: item for item in tensors_first}  # what is a number is no tensor
        self.held = tuple(by_position.values())
        self._frame = f"{frame}, at a later call"
        self._comparisons: collections.Counter[bool] = collections.Counter()
        self._numbers: dict[int, str] = {}
        with real_tensors():
            self.keep(values)

    def keep(self, values: Sequence[Any]) -> None:
        """Each of them is alike now: it was compared, or what wrote to it was verified. ``values``: of the inputs."""
        for item in self.held:
            value = values[item.position]
            if item.is_number:
                self._numbers[item.position] = _shown(value)
            elif not self._is_known(item, tensor := own_part(value)):
                _alike[id(tensor), item.ranks] = (weakref.ref(tensor), _writes(tensor, item))

    def changed(self, values: Sequence[Any]) -> list[tuple[Held, Any]]:
        """Those of which it is not known that they are alike now, and that are still compared."""
        compared = [item for item in self.held if not self._is_given_up(item)]
        pairs = ((item, own_part(values[item.position])) for item in compared)
        return [(item, value) for item, value in pairs if not self._is_known(item, value)]

    def compare(self, changed: Sequence[tuple[Held, Any]]) -> Disagreement | None:
        """Wait for the other ranks, where they have to do the same. None: they hold the tensors alike."""
        own = [(item, value) for item, value in changed if item.is_number or not sent_by_ddp(value)]
        self._comparisons.update({item.is_number for item, _ in own})
        own = [(item, value) for item, value in own if not self._is_given_up(item)]
        for ranks, listed in itertools.groupby(sorted(own, key=_by_ranks), key=_by_ranks):
            found = self._compared(ranks, list(listed))
            if found is not None:
                return found
        return None

    def given_up(self, changed: Sequence[tuple[Held, Any]]) -> str:
        """What is said where tensors change so often that they are no longer compared; "" where that is not so.

        Of numbers the report says that they are taken to be the same.
        """
        names = [item.name for item, _ in changed if not item.is_number and self._is_given_up(item)]
        return _MANY.format(names[0], self.function, MOST_COMPARISONS) if names else ""

    def _is_given_up(self, item: Held) -> bool:
        return self._comparisons[item.is_number] > MOST_COMPARISONS

    def _is_known(self, item: Held, value: Any) -> bool:
        if item.is_number:
            return self._numbers.get(item.position) == _shown(value)
        known = _alike.get((id(value), item.ranks))
        return known is not None and known[1] == _writes(value, item) and known[0]() is value

    def _compared(self, ranks: tuple[int, ...], listed: list[tuple[Held, Any]]) -> Disagreement | None:
        frame = f"{self._frame} of {list(ranks)}"
        digests = {item.name: _shown(value) if item.is_number else content_digest(value) for item, value in listed}
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
            said = conversation.everybody("changed", digests)
        except NoAnswerError as error:
            return Disagreement(f"{self._named(list(digests))}, and {error}.", (self.channel.rank,), frame)
        self.channel.finish(question, seconds)
        first = min(said)
        other = min(rank for rank in said if said[rank] != said[first])
        names = {**said[first], **said[other]}
        name = next(name for name in names if said[first].get(name) != said[other].get(name))
        shown = " and ".join(f"{said[rank].get(name, 'unchanged')} on rank {rank}" for rank in (first, other))
        differ = f"it is {shown}" if self._is_number(name) else _DIFFER.format(first, other)
        message = f"{self._named([name])}, and {differ}. {self._advice(name)}"
        return Disagreement(message, ranks, frame)

    def _alone(self, answer: Answer, names: list[str]) -> str:
        absent = "; ".join(f"rank {rank}: {reason}" for rank, reason in itertools.islice(answer.absent.items(), 4))
        where = f"on rank {self.channel.rank} and not on all others ({absent})"
        return f"{self._named(names)}, {where}. {self._advice(names[0])}"

    def _named(self, names: list[str]) -> str:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        changed = _OTHER_NUMBER if self._is_number(names[0]) else _CHANGED
        return changed.format(names[0], more, self.function)

    def _advice(self, name: str) -> str:
        return _SAME_NUMBER if self._is_number(name) else _ALIKE

    def _is_number(self, name: str) -> bool:
        return any(item.name == name for item in self.held if item.is_number)


_OTHER_NUMBER = "`{}`{} is another number than at the call of `{}` before"
_SAME_NUMBER = "Give all ranks the same number: what is proved is of ranks that have the same."
_CHANGED = "`{}`{} was written to, or is another tensor, since `{}` was verified"
_ALIKE = "Change it in the same way on all ranks before the call, or say how it is laid out with `param_placements`."
_MANY = (
    "`{0}` changes between calls of `{1}`, and was the same on all ranks each of the {2} times that it was compared; "
    "it is compared no longer. Change it inside of what is compiled, where it is verified, to be sure of it."
)
_DIFFER = "ranks {} and {} hold other numbers in it now"


def held_numbers(numbers: Mapping[str, tuple[int, float]], ranks: Sequence[int]) -> list[Held]:
    """The numbers of Python that a graph leaves open, as ``python_numbers`` finds them, which ``ranks`` have alike."""
    return [Held(name, place, tuple(ranks), is_number=True) for name, (place, _) in numbers.items()]


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
            yield Held(item.name, place, alike, is_trained=values[place].requires_grad)


def _by_ranks(listed: tuple[Held, Any]) -> tuple[int, ...]:
    return listed[0].ranks


def _writes(tensor: torch.Tensor, item: Held) -> int:
    return 0 if item.is_trained else writes_to(tensor)


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
    tensors change so often that they are compared no longer.
    """

    def compare(values: Sequence[Any]) -> None:
        changed = held.changed(values)
        if found := held.compare(changed):
            refuse(found)
        elif text := held.given_up(changed):
            warn(text)

    return called_between(compiled, compare, held.keep)
