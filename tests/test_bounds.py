"""Limits of time and memory: what reaches one ends, is named, and leaves nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch

from verifycompile import bounds
from verifycompile.bounds import GRACE, LimitReachedError, Limits, RanOut, Stage
from verifycompile.process_memory import peak_memory, resident_memory
from verifycompile.torch_interface.operators import elements

MUCH = 1 << 40
TOLERANCE = GRACE + 3.0
"""Seconds; other work on the machine delays the watching thread."""


def asking() -> None:
    while True:
        bounds.check()


def not_asking() -> int:
    """A recursion that follows every path and asks nobody."""

    def paths(depth: int) -> int:
        return 1 if depth == 0 else paths(depth - 1) + paths(depth - 1)

    return paths(200)


def handling_all_errors() -> None:
    while True:
        try:
            asking()
        except Exception:  # noqa: BLE001 - what declarations may raise is handled like this
            continue


@pytest.mark.parametrize("work", [asking, not_asking, handling_all_errors])
def test_time(work: Callable[[], object]) -> None:
    started = time.perf_counter()
    with bounds.limited(Limits(0.2, MUCH)):
        ended = bounds.attempt("the work", work)
    assert isinstance(ended, RanOut)
    assert ended.limit == "the time limit of 0.2 s"
    assert ended.stage == "the work"
    assert 0.1 <= ended.seconds <= time.perf_counter() - started < 0.2 + TOLERANCE


def growing() -> list[bytes]:
    held: list[bytes] = []
    while True:
        held.append(bytes(bytearray(b"x") * (1 << 20)))


def test_memory() -> None:
    with bounds.limited(Limits(60.0, 64 << 20)) as limited:
        ended = bounds.attempt("the work", growing)
        assert isinstance(ended, RanOut)
        assert ended.limit == "the memory limit of 64 MiB"
        assert ended.seconds < 30
        gc.collect()
        assert bounds.attempt("what comes next", lambda: "done") == "done"
    assert [(stage.name, stage.finished) for stage in limited.stages] == [
        ("the work", False),
        ("what comes next", True),
    ]
    assert 0 < resident_memory() <= peak_memory()


def test_what_is_left_of_the_memory() -> None:
    assert bounds.memory_left(7) == 7
    with bounds.limited(Limits(60.0, 64 << 20)):
        assert 0 < bounds.memory_left(MUCH) <= 64 << 20
        assert bounds.memory_left(7) == 7


def test_an_attempt_has_its_share_of_the_time() -> None:
    with bounds.limited(Limits(2.0, MUCH)) as limited:
        first = bounds.attempt("the first", asking, share=0.1)
        assert isinstance(first, RanOut)
        assert first.seconds < 1.0
        assert bounds.attempt("the second", lambda: 3) == 3
    assert [stage.name for stage in limited.stages] == ["the first", "the second"]
    assert [stage.finished for stage in limited.stages] == [False, True]


def test_an_attempt_within_another_one_ends_first() -> None:
    inner: list[object] = []

    def outer() -> str:
        inner.append(bounds.attempt("the inner", asking, share=0.1))
        return "gone on"

    with bounds.limited(Limits(2.0, MUCH)) as limited:
        assert bounds.attempt("the outer", outer) == "gone on"
    assert isinstance(inner[0], RanOut)
    assert [(stage.name, stage.depth) for stage in limited.stages] == [("the inner", 2), ("the outer", 1)]


def test_both_end_where_nothing_is_left() -> None:
    with bounds.limited(Limits(0.2, MUCH)) as limited:
        ended = bounds.attempt("the outer", lambda: bounds.attempt("the inner", asking))
        assert isinstance(ended, RanOut)
        assert ended.stage == "the outer"
        later = bounds.attempt("what comes next", lambda: pytest.fail("nothing is left for it"))
        assert isinstance(later, RanOut)
        assert later.seconds < 0.1
    assert {stage.name for stage in limited.stages if not stage.finished} == {
        "the inner",
        "the outer",
        "what comes next",
    }


def test_traces_end_where_they_ask_and_none_is_begun_that_does_not_end_in_time() -> None:
    reached: list[str] = []

    def traces() -> None:
        until = time.perf_counter() + 0.1 + 3 * GRACE
        while time.perf_counter() < until:
            pass
        reached.append("the end of one trace")
        bounds.check()
        reached.append("more")

    with bounds.limited(Limits(0.1, MUCH)):
        assert isinstance(bounds.attempt_capture("the capture", traces, 0.0), RanOut)
    assert reached == ["the end of one trace"]
    with bounds.limited(Limits(5.0, MUCH)):
        assert isinstance(bounds.attempt_capture("the capture", lambda: reached.append("begun"), 6.0), RanOut)
    assert reached == ["the end of one trace"]


class Counting:
    """A context that knows how often it was entered and not left."""

    entered = 0

    def __enter__(self) -> None:
        type(self).entered += 1

    def __exit__(self, *_: object) -> None:
        type(self).entered -= 1


def changing_the_state_of_the_process() -> None:
    while True:
        with elements.real_tensors(), Counting():
            sum(range(50))


def test_an_interruption_leaves_the_state_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_INTERVAL", 0.0001)
    monkeypatch.setattr(bounds, "GRACE", 0.0001)
    for _ in range(60):
        with bounds.limited(Limits(0.001, MUCH)):
            assert isinstance(bounds.attempt("the work", changing_the_state_of_the_process), RanOut)
        assert torch.get_default_dtype() is torch.float32
        assert torch.is_grad_enabled()
        assert Counting.entered == 0


def test_other_errors_pass() -> None:
    with bounds.limited(Limits(60.0, MUCH)) as limited:
        with pytest.raises(ZeroDivisionError):
            bounds.attempt("the work", lambda: 1 / 0)
        with pytest.raises(KeyboardInterrupt):
            bounds.attempt("the work", interrupted_by_the_user)
        assert limited.stages == []
        assert bounds.attempt("what comes next", lambda: "done") == "done"
    assert bounds.current() is None


def interrupted_by_the_user() -> None:
    raise KeyboardInterrupt


def test_nothing_is_left_behind() -> None:
    threads = threading.active_count()
    for _ in range(3):
        with bounds.limited(Limits(0.05, MUCH)):
            bounds.attempt("the work", not_asking)
    assert threading.active_count() == threads
    assert bounds.current() is None
    until = time.perf_counter() + 3 * GRACE
    while time.perf_counter() < until:  # no late interruption
        pass


def calls_after(work: Callable[[], object]) -> None:
    with bounds.limited(Limits(0.05, MUCH)):
        bounds.attempt("the work", work)
    sys.setprofile(lambda *_: None)
    nothing()
    sys.setprofile(None)


def nothing() -> None:
    return


@pytest.mark.parametrize("work", [nothing, asking, not_asking])
def test_a_profiler_works_afterwards(work: Callable[[], object]) -> None:
    process = multiprocessing.get_context("fork").Process(target=calls_after, args=(work,))
    process.start()
    process.join(60.0)
    process.kill()
    assert process.exitcode == 0


def test_without_limits_nothing_is_limited() -> None:
    bounds.check()
    bounds.note_place("here")
    assert bounds.attempt("the work", lambda: 5, share=0.0) == 5
    assert bounds.attempt_capture("the capture", lambda: 5, 1.0) == 5


def test_limits_belong_to_a_thread() -> None:
    seen: list[object] = []
    with bounds.limited(Limits(60.0, MUCH)) as limited:
        other = threading.Thread(target=lambda: seen.append(bounds.current()))
        other.start()
        other.join()
        with bounds.limited(Limits(0.0, 0)) as inner:
            assert inner is limited
    assert seen == [None]


def test_the_place_of_the_end() -> None:
    def work() -> None:
        bounds.note_place("node 3")
        asking()

    with bounds.limited(Limits(0.1, MUCH)):
        ended = bounds.attempt("the work", work)
    assert isinstance(ended, RanOut)
    assert ended.place == "node 3"


def test_texts() -> None:
    assert RanOut("the proof", 71.96, "the time limit of 120 s").describe() == (
        "the proof was ended after 72 s by the time limit of 120 s"
    )
    assert RanOut("the proof", 0.00001, "the time limit of 120 s").describe() == (
        "the proof was not begun: the time limit of 120 s left no time for it"
    )
    assert Stage("the proof", 0.00001, finished=False).describe() == "the proof (not begun)"
    assert Stage("the proof", 0.1234, finished=True).describe() == "the proof (0.123 s)"
    assert Stage("the proof", 1234.5, finished=False).describe() == "the proof (1234 s, cut short)"
    assert Limits(120.0, 4 << 30).describe() == "120 s and 4 GiB"
    assert Limits(0.5, 300 << 20).describe() == "0.5 s and 300 MiB"
    assert not issubclass(LimitReachedError, Exception)
