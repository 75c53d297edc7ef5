"""What the ranks of a job tell one another through the store of the process group: digests, then programs.

A store has no collectives, and none could be used: stages compile other frames, and ranks compile frames in another
order. Every message is a key of its own, under the name of the frame and the ranks that run it together, so that a rank
only ever waits for what belongs to its own question. Counters in the store let a rank see at once whether all others
have written the same digest; their messages are read one by one only where they have not.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import time
import zlib
from collections.abc import Mapping, Sequence

from verifycompile.torch_interface.ranks.job_store import Store

_PREFIX = "verifycompile"
_SHORTEST, _LONGEST = 0.001, 0.02
"""Seconds between two looks into the store."""


@dataclasses.dataclass(frozen=True)
class Question:
    """One frame that was captured for the ``number``-th time. ``key``: of the frame among these ranks.

    Captures that failed count too, so that the ranks' numbers stay equal. ``places``: see ``Alike``.
    """

    frame: str
    ranks: tuple[int, ...]
    key: str
    number: int
    places: int = 0


@dataclasses.dataclass(frozen=True)
class Alike:
    """What some of the ranks have alike. ``digests``: by which of them; ``places``: how many such sets there are."""

    digests: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    places: int = 0


@dataclasses.dataclass(frozen=True)
class Answer:
    """``digests``: of each rank that has answered. ``absent``: the others, with what is known of why.

    ``alike``: whether ranks have alike what only some of them must.
    """

    digests: Mapping[int, str]
    absent: Mapping[int, str] = dataclasses.field(default_factory=dict[int, str])
    alike: bool = True

    @property
    def agrees(self) -> bool:
        return not self.absent and self.alike and len(set(self.digests.values())) == 1


class Channel:
    """One rank's side of the conversation. ``store``: that of the job, or any other that all ranks share."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self.rank = rank
        self._begun: collections.Counter[str] = collections.Counter()

    def begin(self, frame: str) -> None:
        """This rank begins to capture ``frame``."""
        self._begun[frame] += 1

    def times_begun(self, frame: str) -> int:
        """As often on every rank."""
        return self._begun[frame]

    def stop(self, frame: str, reason: str) -> None:
        """This rank has no program of ``frame``, and says why, so that nobody waits for it."""
        key = self._stopped(frame, self.rank, self._begun[frame])
        self._store.set(key, reason)
        self._store.add(self._any_stopped(frame), 1)

    def publish(self, frame: str, ranks: Sequence[int], digest: str, alike: Alike | None = None) -> Question:
        """Write this rank's digest, and those of what it has as some of the ranks have it."""
        alike = alike or Alike()
        key = f"{_PREFIX}/{_short(f'{frame} {list(ranks)}')}"
        number = self._begun[frame]
        self._store.set(f"{key}/{number}/digest/{self.rank}", digest)
        self._store.add(f"{key}/{number}/same/{digest}", 1)
        for place, held in alike.digests.items():
            if self._store.add(f"{key}/{number}/alike/{place}/{held}", 1) == 1:
                self._store.add(f"{key}/{number}/alike", 1)
        self._store.add(f"{key}/{number}/answered", 1)
        return Question(frame, tuple(ranks), key, number, alike.places)

    def answers(self, question: Question, digest: str, seconds: float) -> Answer:
        """The digests of all ranks. Waits up to ``seconds`` for those that have not written theirs.

        What a rank captured another time says nothing: it may run something else by now.
        """
        key, number, ranks = question.key, question.number, question.ranks
        deadline = time.monotonic() + seconds
        pause = _SHORTEST
        while True:
            if self._store.add(f"{key}/{number}/answered", 0) >= len(ranks):
                # Who has answered was counted under its digest before.
                if self._store.add(f"{key}/{number}/same/{digest}", 0) >= len(ranks):
                    is_alike = not question.places or self._store.add(f"{key}/{number}/alike", 0) <= question.places
                    return Answer(dict.fromkeys(ranks, digest), alike=is_alike)
                return Answer({rank: self._digest(question, rank) for rank in ranks})
            stopped = self._reasons(question) if self._store.add(self._any_stopped(question.frame), 0) else {}
            if stopped or time.monotonic() > deadline:
                missing = [rank for rank in ranks if not self._has_answered(question, rank)]
                if missing:
                    reasons = {rank: stopped.get(rank, f"no answer within {seconds:.0f} s") for rank in missing}
                    known = {rank: self._digest(question, rank) for rank in ranks if rank not in missing}
                    return Answer(known, reasons)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def give(self, question: Question, what: str, content: bytes) -> None:
        """Write something for the other ranks of the question."""
        self._store.set(f"{question.key}/{question.number}/{what}", zlib.compress(content))  # pyright: ignore[reportArgumentType] - a store takes bytes as well

    def take(self, question: Question, what: str, seconds: float) -> bytes | None:
        """What a rank wrote under this name; None where nothing comes, or a rank gave up: see ``failure``."""
        key = f"{question.key}/{question.number}/{what}"
        if not self._comes(question, key, seconds):
            return None
        return zlib.decompress(self._store.get(key))

    def give_up(self, question: Question, reason: str) -> None:
        """Say why this rank does not go on, so that nobody waits for what it does not write."""
        self._store.set(f"{question.key}/{question.number}/failed/{self.rank}", reason)
        self._store.add(f"{question.key}/{question.number}/failed", 1)

    def failure(self, question: Question) -> tuple[int, str] | None:
        """The first rank that gave up, and why."""
        if not self._store.add(f"{question.key}/{question.number}/failed", 0):
            return None
        keys = {rank: f"{question.key}/{question.number}/failed/{rank}" for rank in question.ranks}
        rank = next(rank for rank, key in keys.items() if self._store.check([key]))
        return rank, self._store.get(keys[rank]).decode()

    def finish(self, question: Question, seconds: float) -> None:
        """Wait until all ranks have read what they need: the process of one of them may be the store."""
        key = f"{question.key}/{question.number}/read"
        self._store.add(key, 1)
        deadline = time.monotonic() + seconds
        while self._store.add(key, 0) < len(question.ranks) and time.monotonic() < deadline:
            time.sleep(_LONGEST)

    def say_printed(self, frame: str, ranks: Sequence[int]) -> None:
        """This rank has printed what all of them have to say of ``frame``. Nothing where the store is gone."""
        with contextlib.suppress(RuntimeError):
            self._store.set(self._printed(frame, ranks), "")

    def wait_until_printed(self, frame: str, ranks: Sequence[int], seconds: float) -> None:
        """Wait for the rank that prints. Where the store is gone, that rank has ended."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(RuntimeError):
            while not self._store.check([self._printed(frame, ranks)]) and time.monotonic() < deadline:
                time.sleep(_LONGEST)

    def _printed(self, frame: str, ranks: Sequence[int]) -> str:
        return f"{_PREFIX}/{_short(f'{frame} {list(ranks)}')}/{self._begun[frame]}/printed"

    def _comes(self, question: Question, key: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        pause = _SHORTEST
        while not self._store.check([key]):
            # Who gave up wrote before what it could: what it wrote is read.
            if self.failure(question) is not None:
                return self._store.check([key])
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        return True

    def _has_answered(self, question: Question, rank: int) -> bool:
        return self._store.check([f"{question.key}/{question.number}/digest/{rank}"])

    def _digest(self, question: Question, rank: int) -> str:
        return self._store.get(f"{question.key}/{question.number}/digest/{rank}").decode()

    def _reasons(self, question: Question) -> dict[int, str]:
        """Ranks that stopped when they captured the frame for the same time, and why."""
        keys = {rank: self._stopped(question.frame, rank, question.number) for rank in question.ranks}
        return {rank: self._store.get(key).decode() for rank, key in keys.items() if self._store.check([key])}

    def _stopped(self, frame: str, rank: int, number: int) -> str:
        return f"{_PREFIX}/{_short(frame)}/stopped/{number}/{rank}"

    def _any_stopped(self, frame: str) -> str:
        return f"{_PREFIX}/{_short(frame)}/stopped"


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
