"""What torch runs at the end of ``import torch`` (entry point group ``torch.backends``): the environment flag.

Nothing is imported here but ``os``: every process that imports torch pays for this module.
"""

from __future__ import annotations

import os

FLAG_VARIABLE = "VERIFYCOMPILE"
OVERRIDE_VARIABLE = "TORCH_COMPILE_OVERRIDE_BACKENDS"
OVERRIDE = ">=0:verify_first"
"""Torch's own setting: every graph (frame id at least 0) goes to the backend ``verify_first``."""


def autoload() -> None:
    """Sets torch's backend override where ``VERIFYCOMPILE`` is ``1`` or ``warn``; nothing where it is unset or ``0``.

    Raises ``RuntimeError`` where the flag cannot take effect, so that it is never inert in silence.
    """
    flag = os.environ.get(FLAG_VARIABLE, "")
    if flag in ("", "0"):
        return
    if flag not in ("1", "warn"):
        raise RuntimeError(f"{FLAG_VARIABLE} must be 1, warn or 0, not {flag!r}")
    if os.environ.get(OVERRIDE_VARIABLE, OVERRIDE) != OVERRIDE:
        raise RuntimeError(
            f"{FLAG_VARIABLE} needs {OVERRIDE_VARIABLE}, which is set to {os.environ[OVERRIDE_VARIABLE]!r}"
        )
    os.environ[OVERRIDE_VARIABLE] = OVERRIDE
