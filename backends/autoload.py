"""What torch runs at the end of ``import torch`` (entry point group ``torch.backends``): the environment flag."""

from __future__ import annotations

import os


def autoload() -> None:
    """Turns the gate on where ``VERIFYCOMPILE`` asks for it; else does nothing."""
    if os.environ.get("VERIFYCOMPILE", "") in ("", "0"):
        return
    os.environ.setdefault("TORCH_COMPILE_OVERRIDE_BACKENDS", ">=0:verify")
