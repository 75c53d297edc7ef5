"""A thread that runs a program in the place of another one has that thread's state."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import torch

from verifycompile.torch_interface.rank_threads.thread_state import thread_state

NAME = contextvars.ContextVar("NAME", default="")


def seen() -> tuple[Any, ...]:
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return NAME.get(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_device()


def test_another_thread_has_the_state() -> None:
    here: list[Any] = []
    there: list[Any] = []

    def run(state: Any) -> None:
        with state.entered():
            there.append(seen())

    NAME.set("named")
    with torch.no_grad(), torch.autocast("cpu", torch.float16), torch.device("meta"):
        here.append(seen())
        threads = [threading.Thread(target=run, args=(thread_state(),))]
    with torch.inference_mode():
        here.append(seen())
        threads.append(threading.Thread(target=run, args=(thread_state(),)))
    for thread in threads:
        thread.start()
        thread.join()
    assert there[0] == here[0]
    assert there[1][:3] == here[1][:3] == ("named", False, True)
