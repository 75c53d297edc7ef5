"""The ranks' conversation over a store, ranks being threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from tests.support import fake_mesh_world
from verifycompile import verify
from verifycompile.agreement.channel import Alike, Answer, Channel
from verifycompile.agreement.reconcile import _differing_on_some
from verifycompile.agreement.together import alike_on, held_on_some
from verifycompile.agreement.written import digest_of

FRAME = "model.py:10 Model.forward Model"


class CountedStore:
    """A store that counts what one rank sends: keys written with their bytes, counters added to, keys read."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self.written: list[int] = []
        self.counted = self.read = 0

    def set(self, key: str, value: str | bytes) -> None:
        self.written.append(len(key) + len(value))
        self._store.set(key, value)  # pyright: ignore[reportArgumentType]

    def add(self, key: str, amount: int) -> int:
        self.counted += amount
        return self._store.add(key, amount)

    def get(self, key: str) -> bytes:
        self.read += 1
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)


def in_threads(ranks: int, run: Callable[[Channel], Answer | None]) -> tuple[dict[int, Answer | None], float]:
    """What ``run`` returns on each rank, and the seconds that all of them took."""
    store = dist.HashStore()
    answers: dict[int, Answer | None] = {}

    def rank_main(rank: int) -> None:
        answers[rank] = run(Channel(store, rank))

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(ranks)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(answers.items())), time.perf_counter() - started


def test_64_ranks_agree_in_less_than_a_second() -> None:
    def run(channel: Channel) -> Answer:
        return channel.answers(channel.publish(FRAME, range(64), "same"), "same", 30)

    answers, seconds = in_threads(64, run)
    assert all(answer is not None and answer.agrees for answer in answers.values())
    assert seconds < 1


@pytest.mark.parametrize("ranks", [2, 64])
def test_ranks_that_agree_write_one_small_message_each_and_read_none(ranks: int) -> None:
    """Whatever the program is, and however many ranks there are."""
    store = dist.HashStore()
    counted = [CountedStore(store) for _ in range(ranks)]
    digest = digest_of(["a program", "x" * 1_000_000])

    def run(channel: Channel) -> Answer:
        own = Channel(counted[channel.rank], channel.rank)  # pyright: ignore[reportArgumentType]
        return own.answers(own.publish(FRAME, range(ranks), digest), digest, 30)

    answers, _ = in_threads(ranks, run)
    assert all(answer is not None and answer.agrees for answer in answers.values())
    for one in counted:
        assert len(one.written) == 1
        assert one.written[0] <= 128
        assert one.counted == 2  # one that answered, and one with this digest
        assert one.read == 0


def test_ranks_that_differ_read_one_digest_a_rank() -> None:
    store = dist.HashStore()
    counted = [CountedStore(store) for _ in range(8)]

    def run(channel: Channel) -> Answer:
        own = Channel(counted[channel.rank], channel.rank)  # pyright: ignore[reportArgumentType]
        digest = digest_of([channel.rank == 5])
        return own.answers(own.publish(FRAME, range(8), digest), digest, 30)

    answers, _ = in_threads(8, run)
    assert not any(answer is None or answer.agrees for answer in answers.values())
    assert [(len(one.written), one.read) for one in counted] == [(1, 8)] * 8


@pytest.mark.parametrize("tokens", ["of its row", "its own"])
def test_what_some_ranks_have_alike(tokens: str) -> None:
    """Rows of a mesh of two axes pass tokens of their own; along the other axis the tokens are taken to be the same."""

    def said_by(rank: int) -> tuple[dict[str, Any], Alike]:
        with fake_mesh_world((2, 2), ("dp", "tp"), rank=rank) as mesh:
            model = parallelize_module(nn.Embedding(8, 4), mesh["tp"], ColwiseParallel())
            number = rank if tokens == "its own" else mesh.get_local_rank("dp")
            report = verify(fully_shard(model, mesh=mesh["dp"]), (torch.full((2,), number),), spec=nn.Embedding(8, 4))
        assert report.programs is not None
        implementation = report.programs[1]
        assert implementation.own is not None
        held = held_on_some(implementation, implementation.own, rank)
        return held, alike_on(held, implementation)

    said = {rank: said_by(rank) for rank in range(4)}

    def run(channel: Channel) -> Answer:
        question = channel.publish(FRAME, range(4), "same", said[channel.rank][1])
        return channel.answers(question, "same", 30)

    answers, _ = in_threads(4, run)
    assert {answer is not None and answer.agrees for answer in answers.values()} == {tokens == "of its row"}
    messages = _differing_on_some(
        {rank: {"held on some": held} for rank, (held, _) in said.items()}, {"input": "give all ranks the same."}
    )
    told = (
        "`input` is taken to be the same tensor on these ranks, and ranks 0 and 1 hold other numbers in it; give "
        "all ranks the same."
    )
    assert messages == ([] if tokens == "of its row" else [told])


def test_every_rank_learns_which_rank_differs() -> None:
    def run(channel: Channel) -> Answer:
        digest = "other" if channel.rank == 5 else "same"
        return channel.answers(channel.publish(FRAME, range(8), digest), digest, 30)

    answers, _ = in_threads(8, run)
    assert set(map(str, answers.values())) == {
        str(Answer({rank: "other" if rank == 5 else "same" for rank in range(8)}))
    }


def test_a_rank_without_an_answer_is_named() -> None:
    def run(channel: Channel) -> Answer | None:
        if channel.rank == 1:
            return None
        return channel.answers(channel.publish(FRAME, range(3), "same"), "same", 0.2)

    answers, _ = in_threads(3, run)
    assert answers[0] == answers[2] == Answer({0: "same", 2: "same"}, {1: "no answer within 0 s"})


def test_a_rank_that_stops_says_why_and_nobody_waits() -> None:
    def run(channel: Channel) -> Answer | None:
        channel.begin(FRAME)
        if channel.rank == 1:
            channel.stop(FRAME, "its capture fails")
            return None
        return channel.answers(channel.publish(FRAME, range(2), "same"), "same", 30)

    answers, seconds = in_threads(2, run)
    assert answers[0] == Answer({0: "same"}, {1: "its capture fails"})
    assert seconds < 5


def test_ranks_may_compile_frames_in_another_order_and_stages_other_frames() -> None:
    def run(channel: Channel) -> Answer:
        stage = (0, 1) if channel.rank < 2 else (2, 3)
        frames = ["a", "b"] if channel.rank % 2 else ["b", "a"]
        questions = [(channel.publish(frame, stage, f"{frame}{stage}"), f"{frame}{stage}") for frame in frames]
        return next(channel.answers(question, digest, 30) for question, digest in questions)

    answers, _ = in_threads(4, run)
    assert all(answer is not None and answer.agrees for answer in answers.values())


def test_what_a_rank_captured_before_is_no_answer() -> None:
    def run(channel: Channel) -> Answer:
        channel.begin(FRAME)
        first = channel.answers(channel.publish(FRAME, range(2), "same"), "same", 30)
        if channel.rank == 1:
            return first
        channel.begin(FRAME)
        return channel.answers(channel.publish(FRAME, range(2), "same"), "same", 0.2)

    answers, _ = in_threads(2, run)
    assert answers[0] == Answer({0: "same"}, {1: "no answer within 0 s"})
    assert answers[1] == Answer({0: "same", 1: "same"})


def test_what_was_the_same_once_may_differ_the_next_time() -> None:
    def run(channel: Channel) -> Answer:
        for digest in ("same", "other" if channel.rank == 1 else "same"):
            channel.begin(FRAME)
            answer = channel.answers(channel.publish(FRAME, range(2), digest), digest, 30)
        return answer

    answers, _ = in_threads(2, run)
    assert answers[0] == answers[1] == Answer({0: "same", 1: "other"})


def test_after_a_capture_that_failed_on_one_rank_the_numbers_are_equal_again() -> None:
    def run(channel: Channel) -> Answer:
        channel.begin(FRAME)
        if channel.rank == 1:
            channel.stop(FRAME, "its capture fails")
        else:
            channel.answers(channel.publish(FRAME, range(2), "first"), "first", 30)
        channel.begin(FRAME)
        return channel.answers(channel.publish(FRAME, range(2), "second"), "second", 30)

    answers, _ = in_threads(2, run)
    assert answers[0] == answers[1] == Answer({0: "second", 1: "second"})


def test_what_a_rank_gives_the_others_take() -> None:
    def run(channel: Channel) -> Answer | None:
        digest = str(channel.rank)
        question = channel.publish(FRAME, range(4), digest)
        answer = channel.answers(question, digest, 30)
        channel.give(question, f"program/{channel.rank}", b"\x00program of " + digest.encode())
        taken = [channel.take(question, f"program/{rank}", 30) for rank in range(4)]
        assert taken == [b"\x00program of " + str(rank).encode() for rank in range(4)]
        assert channel.take(question, "nothing", 0.05) is None
        channel.finish(question, 30)
        return answer

    answers, _ = in_threads(4, run)
    assert len(answers) == 4


def test_a_rank_that_gives_up_says_why_and_nobody_waits() -> None:
    def run(channel: Channel) -> Answer | None:
        channel.begin(FRAME)
        question = channel.publish(FRAME, range(2), str(channel.rank))
        if channel.rank == 1:
            channel.give(question, "first", b"first")
            channel.give_up(question, "no text says what it holds")
            return None
        assert channel.take(question, "first", 30) == b"first"
        assert channel.take(question, "second", 30) is None
        assert channel.failure(question) == (1, "no text says what it holds")
        return None

    _, seconds = in_threads(2, run)
    assert seconds < 5
