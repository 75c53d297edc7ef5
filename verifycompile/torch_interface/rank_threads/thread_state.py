"""What torch keeps for each thread, and a thread that runs a program in the place of another one must have too."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Generator

import torch

_AUTOCAST = ("cpu", "cuda")


@dataclasses.dataclass(frozen=True)
class ThreadState:
    """Of the thread that took it."""

    variables: contextvars.Context
    gradients: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    default_device: torch.device
    current_device: int | None

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """While entered, this thread has the state too."""
        for variable, value in self.variables.items():
            variable.set(value)
        if self.current_device is not None:
            torch.accelerator.set_device_index(self.current_device)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            if self.default_device.type != "cpu":
                stack.enter_context(self.default_device)
            yield


def thread_state() -> ThreadState:
    """What the current thread has."""
    has_device = torch.accelerator.is_available()
    devices = [name for name in _AUTOCAST if name == "cpu" or torch.cuda.is_available()]
    return ThreadState(
        contextvars.copy_context(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple((name, torch.get_autocast_dtype(name)) for name in devices if torch.is_autocast_enabled(name)),
        torch.get_default_device(),
        torch.accelerator.current_device_index() if has_device else None,
    )
