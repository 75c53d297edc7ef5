"""The random streams of a thread's program: Python's, and torch's on the CPU and on the current accelerator."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class RandomStreams:
    """Where they are. ``accelerator``: None where there is none, or nothing has used it yet."""

    python: Any
    cpu: torch.Tensor
    accelerator: torch.Tensor | None

    @classmethod
    def now(cls) -> RandomStreams:
        module = _accelerator()
        return cls(random.getstate(), torch.get_rng_state(), None if module is None else module.get_rng_state())

    def install(self) -> None:
        """Go on from here."""
        random.setstate(self.python)
        torch.set_rng_state(self.cpu)
        module = _accelerator()
        if module is not None and self.accelerator is not None:
            module.set_rng_state(self.accelerator)

    def drew_since(self, before: RandomStreams) -> bool:
        """Whether torch has drawn numbers after ``before``."""
        if not torch.equal(self.cpu, before.cpu) or (self.accelerator is None) != (before.accelerator is None):
            return True
        return (
            self.accelerator is not None
            and before.accelerator is not None
            and not torch.equal(self.accelerator, before.accelerator)
        )


def seed_all(seed: int) -> None:
    """Let all of them begin with ``seed``."""
    torch.manual_seed(seed)
    random.seed(seed)


def _accelerator() -> Any:
    """torch's module for the accelerator that is in use."""
    if not torch.accelerator.is_available():
        return None
    module: Any = torch.get_device_module()
    return module if getattr(module, "is_initialized", lambda: True)() else None
