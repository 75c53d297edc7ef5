"""Random streams are taken and put back on the CPU and on an accelerator."""

from __future__ import annotations

import random

import pytest
import torch

from verifycompile.torch_interface.rank_threads.random_streams import RandomStreams, seed_all


class Accelerator:
    """Has a stream, and is in use or not."""

    def __init__(self) -> None:
        self.state, self.used = torch.tensor([1]), True

    def is_initialized(self) -> bool:
        return self.used

    def get_rng_state(self) -> torch.Tensor:
        return self.state.clone()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.state = state


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    made = Accelerator()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "get_device_module", lambda: made)
    return made


def test_what_was_drawn_is_drawn_again() -> None:
    seed_all(3)
    before = RandomStreams.now()
    first = random.random(), torch.rand(2)
    assert RandomStreams.now().drew_since(before)
    before.install()
    assert not RandomStreams.now().drew_since(before)
    second = random.random(), torch.rand(2)
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])


def test_an_accelerator_that_drew_has_drawn(accelerator: Accelerator) -> None:
    before = RandomStreams.now()
    accelerator.state = torch.tensor([2])
    assert RandomStreams.now().drew_since(before)
    before.install()
    assert int(accelerator.state) == 1
    assert not RandomStreams.now().drew_since(before)


def test_an_accelerator_that_nothing_has_used_is_left_alone(accelerator: Accelerator) -> None:
    accelerator.used = False
    before = RandomStreams.now()
    assert before.accelerator is None
    accelerator.used = True
    assert RandomStreams.now().drew_since(before)
    before.install()
    assert int(accelerator.state) == 1
