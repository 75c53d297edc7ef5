"""Tensors that ranks were found to hold alike when a graph was verified, at the calls that follow.

Torch counts the writes to a tensor. A call compares these numbers with those of the call before; ranks speak to each
other only where one differs, or where another tensor has come in, as from the next of the layers that share a graph.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from verifycompile.torch_interface.ranks.mesh import line_through

MOST_COMPARISONS = 64
"""Of the tensors of one graph: what is written to before each call would be sent for at each call."""


@dataclasses.dataclass(frozen=True)
class HeldTensor:
    """``position``: among the inputs of the graph. ``ranks``: those that hold it alike, this one among them.

    ``is_trained``: the optimizer writes to it, which is no part of what is compared.
    """

    name: str
    position: int
    ranks: tuple[int, ...]
    is_trained: bool


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """What is said of a tensor that is not found alike. ``ranks``: those that find the same, by the ``channel``."""

    message: str
    ranks: tuple[int, ...]
    frame: str


_Known = tuple[weakref.ref[torch.Tensor], int]
_alike: dict[tuple[int, tuple[int, ...]], _Known] = {}
"""A tensor, by its identity, and ranks that hold it alike -> the tensor, and the number of writes to it by then."""


class HeldAlike:
    """The tensors of one graph, which are alike when this is made.

    ``frame``: its name on every rank; ``function``: what it runs. ``values``: the inputs of the graph.
    """

    def __init__(
        self, frame: str, function: str, channel: Channel, tensors: Iterable[HeldTensor], values: Sequence[Any]
    ) -> None:
        self.function, self.channel, self.tensors = function, channel, tuple(tensors)
        self._frame = f"{frame}, at a later call"
        self._comparisons = 0
        self.keep(values)

    def keep(self, values: Sequence[Any]) -> None:
        """Each of them is alike now: it was compared, or what wrote to it was verified. ``values``: of the inputs."""
        for item in self.tensors:
            tensor = own_part(values[item.position])
            writes = _writes(tensor, item)
            known = _alike.get((id(tensor), item.ranks))
            if known is None or known[1] != writes or known[0]() is not tensor:
                _alike[id(tensor), item.ranks] = (weakref.ref(tensor), writes)

    def changed(self, values: Sequence[Any]) -> list[tuple[HeldTensor, torch.Tensor]]:
        """Those of which it is not known that they are alike now."""
        found: list[tuple[HeldTensor, torch.Tensor]] = []
        for item in self.tensors:
            tensor = own_part(values[item.position])
            known = _alike.get((id(tensor), item.ranks))
            if known is None or known[1] != _writes(tensor, item) or known[0]() is not tensor:
                found.append((item, tensor))
        return found

    def compare(self, changed: Sequence[tuple[HeldTensor, torch.Tensor]]) -> Disagreement | None:
        """Wait for the other ranks, where they have to do the same. None: they hold the tensors alike."""
        own = [(item, tensor) for item, tensor in changed if not sent_by_ddp(tensor)]
        if not own:
            return None
        self._comparisons += 1
        if self._comparisons > MOST_COMPARISONS:
            return None
        for ranks, listed in itertools.groupby(sorted(own, key=_by_ranks), key=_by_ranks):
            found = self._compared(ranks, list(listed))
            if found is not None:
                return found
        return None

    def said_of_many(self, changed: Sequence[tuple[HeldTensor, torch.Tensor]]) -> str:
        name = changed[0][0].name
        return _MANY.format(name, self.function, MOST_COMPARISONS)

    @property
    def is_given_up(self) -> bool:
        """Whether the tensors change so often that they are no longer compared."""
        return self._comparisons > MOST_COMPARISONS

    def _compared(self, ranks: tuple[int, ...], listed: list[tuple[HeldTensor, torch.Tensor]]) -> Disagreement | None:
        frame = f"{self._frame} of {list(ranks)}"
        digests = {item.name: content_digest(tensor) for item, tensor in listed}
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
        message = f"{self._named([name])}, and ranks {first} and {other} {_DIFFER}"
        return Disagreement(message, ranks, frame)

    def _alone(self, answer: Answer, names: list[str]) -> str:
        absent = "; ".join(f"rank {rank}: {reason}" for rank, reason in itertools.islice(answer.absent.items(), 4))
        return f"{self._named(names)}, on rank {self.channel.rank} and not on all others ({absent}). {_ALIKE}"

    def _named(self, names: list[str]) -> str:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return _CHANGED.format(names[0], more, self.function)


_CHANGED = "`{}`{} was written to, or is another tensor, since `{}` was verified"
_ALIKE = "Change it in the same way on all ranks before the call, or say how it is laid out with `param_placements`."
_MANY = (
    "`{0}` changes between calls of `{1}`, and was the same on all ranks each of the {2} times that it was compared; "
    "it is compared no longer. Change it inside of what is compiled, where it is verified, to be sure of it."
)
_DIFFER = f"hold other numbers in it now. {_ALIKE}"


def held_by_program(implementation: Program, own: OwnCapture, rank: int, values: Sequence[Any]) -> Iterator[HeldTensor]:
    """What ``rank`` was found to hold as other ranks do. ``values``: the inputs of the graph that was captured."""
    mesh = implementation.mesh
    assert mesh is not None
    places = {id(own_part(value)): place for place, value in enumerate(values) if isinstance(value, torch.Tensor)}
    for item in implementation.inputs:
        place = places.get(id(own.held.get(item.name)))
        cut = cut_axes(item, own)
        alike = line_through(rank, tuple(axis for axis in own.axes if axis not in cut), mesh)
        if place is not None and len(alike) > 1:
            yield HeldTensor(item.name, place, alike, is_trained=values[place].requires_grad)


def _by_ranks(listed: tuple[HeldTensor, torch.Tensor]) -> tuple[int, ...]:
    return listed[0].ranks


def _writes(tensor: torch.Tensor, item: HeldTensor) -> int:
    return 0 if item.is_trained else writes_to(tensor)


def comparing(
    compiled: Callable[..., Any], held: HeldAlike, refuse: Callable[[Disagreement], None], warn: Callable[[str], None]
) -> Callable[..., Any]:
    """``compiled``, which is called with tensors that ranks were found to hold alike, and raises where it is not.

    ``refuse``: told what differs; it raises, or warns where the user asked to go on. ``warn``: told once that the
    tensors change so often that they are compared no longer.
    """

    def compare(values: Sequence[Any]) -> None:
        if held.is_given_up or not (changed := held.changed(values)):
            return
        if found := held.compare(changed):
            refuse(found)
        elif held.is_given_up:
            warn(held.said_of_many(changed))

    return called_between(compiled, compare, held.keep)
