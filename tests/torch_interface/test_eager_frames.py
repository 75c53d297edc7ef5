"""Frames that Dynamo leaves to Python, and what a watch is told of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from verifycompile.torch_interface.dynamo import eager_frames
from verifycompile.torch_interface.dynamo.backend import chosen_backend, unwrapped
from verifycompile.torch_interface.dynamo.eager_frames import EagerFrame, Watch, accept, watch_eager_frames
from verifycompile.torch_interface.dynamo.frames import frame_under_compilation

told: list[str] = []


def accepting(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    accept(frame_under_compilation(), chosen_backend())
    return gm.forward


def seen(_: Any, frame: EagerFrame) -> None:
    told.append(f"{frame.function} {'accepted' if frame.was_accepted else 'new'}: {frame.reason}")


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setattr(eager_frames, "_watches", [])
    watch_eager_frames(
        Watch(
            applies=lambda compiler: unwrapped(compiler) is accepting,
            only_warns=lambda _: False,
            seen=seen,
            switched_off=lambda _, reason: told.append(reason),
        )
    )
    told.clear()
    yield
    torch._dynamo.reset()


def plus(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def hiding(x: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(ValueError):
        torch._dynamo.graph_break()
    return plus(x)


def test_a_frame_that_was_accepted_and_is_not_compiled() -> None:
    function = torch.compile(plus, backend=accepting, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=1):
        for size in (2, 3, 3):
            function(torch.ones(size))
    text = (
        "plus accepted: Dynamo recompile limit exceeded: Dynamo attempted to recompile the code object too many times, "
        "exceeding the recompile_limit cache size limit (currently set to 1)"
    )
    assert told == [text, text]


def test_a_frame_that_is_new() -> None:
    torch.compile(hiding, backend=accepting)(torch.ones(2))
    assert told == ["hiding new: Call to `torch._dynamo.graph_break()`: User-inserted graph break"]


def test_other_compilers_are_not_watched() -> None:
    torch.compile(hiding, backend="eager")(torch.ones(2))
    with torch.compiler.set_stance("force_eager"):
        torch.compile(plus, backend="eager")(torch.ones(2))
    assert told == []


def test_stances_and_settings_switch_all_off() -> None:
    function = torch.compile(plus, backend=accepting, dynamic=False)
    function(torch.ones(2))
    with torch.compiler.set_stance("force_eager"):
        function(torch.ones(2))
    assert told == ["the stance of torch.compile is `force_eager`"]
    function(torch.ones(2))
    assert len(told) == 1


def test_what_is_compiled_runs_where_nothing_is_to_be_compiled() -> None:
    function = torch.compile(plus, backend=accepting, dynamic=False)
    function(torch.ones(2))
    with torch.compiler.set_stance("eager_on_recompile"):
        function(torch.ones(2))
        assert told == []
        function(torch.ones(3))
    assert told == [
        "plus accepted: the stance of torch.compile is `eager_on_recompile`, and nothing is compiled for these inputs"
    ]


def test_frame_whose_error_was_not_seen_is_told_with_what_to_type() -> None:
    text = eager_frames._text("an error was suppressed during compilation", "")
    assert text == "torch.compile gave it up after a graph break or an error, which TORCH_LOGS=graph_breaks,dynamo shows"
    assert eager_frames._text("an error was suppressed during compilation", "no") == "no"
