"""Progress is told on a terminal, after a while, by one rank, and leaves nothing behind."""

from __future__ import annotations

import io
import re
import time
import types

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from verifycompile import bounds
from verifycompile.backends import progress
from verifycompile.backends.progress import progress_of
from verifycompile.bounds import Limits


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=made))
    for name in ("NO_COLOR", "CI", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return made


def proof(seconds: float = 0.15) -> None:
    """A proof that stays at the second of four nodes."""
    graph = make_fx(lambda x: x.exp().sin())(torch.randn(2))
    node = list(graph.graph.nodes)[1]
    node.meta["nn_module_stack"] = {"m": ("L['self']._modules['mlp']", torch.nn.Linear)}

    def work() -> None:
        bounds.note_place(node)
        time.sleep(seconds)

    with bounds.limited(Limits(60, 4 << 30)):
        bounds.attempt("the proof", work)


def test_line_says_stage_and_nodes_and_is_cleared(terminal: Terminal) -> None:
    with progress_of("Block.forward (model.py:7)", after=0.0, interval=0.02):
        time.sleep(0.06)
        proof()
    lines = terminal.getvalue().split("\r\x1b[K")
    assert lines[0] == ""
    assert lines[1] == "verifycompile: Block.forward (model.py:7): capture, 0 s"
    assert "verifycompile: Block.forward (model.py:7): the proof, node 2 of 4 in mlp, 0 s" in lines
    assert lines[-1] == ""


def test_nothing_is_told_before_its_time(terminal: Terminal) -> None:
    with progress_of("forward", interval=0.02):
        proof()
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("CI", "true"), ("TERM", "dumb")])
def test_nothing_is_told_where_it_is_not_wanted(
    name: str, value: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with progress_of("forward", after=0.0, interval=0.02):
        proof()
    assert terminal.getvalue() == ""


def test_nothing_is_told_in_a_file_and_by_other_ranks(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "rank_of_job", lambda: 1)
    with progress_of("forward", after=0.0, interval=0.02):
        proof()
    assert terminal.getvalue() == ""
    file = io.StringIO()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=file))
    monkeypatch.setattr(progress, "rank_of_job", lambda: 0)
    with progress_of("forward", after=0.0, interval=0.02):
        proof()
    assert file.getvalue() == ""


def test_slowest_module_is_named_where_there_are_several(terminal: Terminal) -> None:
    shown = progress._Progress("forward", 0, terminal)
    shown._seconds.update({"layers.0": 1, "layers.1": 3})
    shown.tell(4.2)
    assert (
        re.sub("\r\x1b.K", "", terminal.getvalue()) == "verifycompile: forward: capture, 4 s; slowest layers.1, 3.0 s"
    )
