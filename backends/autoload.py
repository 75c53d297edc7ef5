"""What torch runs at the end of ``import torch`` (entry point group ``torch.backends``): the environment flag.

Every process that imports torch pays for this module: it imports but small modules of the standard library.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

FLAG_VARIABLE = "VERIFYCOMPILE"
FOLDER_VARIABLE = "VERIFYCOMPILE_REPORT"
"""The folder where a report of each graph is kept."""
NUMBERS_VARIABLE = "VERIFYCOMPILE_PER_RANK_NUMBERS"
"""Patterns as those of option ``per_rank_numbers``, separated by commas; the empty text: no number is per rank."""
WAIVERS_VARIABLE = "VERIFYCOMPILE_WAIVERS"
"""A TOML file of findings that stop nothing for a time; without it those of ``pyproject.toml`` hold."""
COVERAGE_VARIABLE = "VERIFYCOMPILE_COVERAGE"
"""Set to 1, the flag lists the operators of each graph instead of proving it."""
COMMAND_VARIABLE = "VERIFYCOMPILE_COMMAND"
"""The folder in which ``verifycompile run`` keeps reports, or the empty text. Where it is set, the command itself tells
what is known only when all processes of a job have ended.
"""
OVERRIDE_VARIABLE = "TORCH_COMPILE_OVERRIDE_BACKENDS"
OVERRIDE = ">=0:verify_first"
"""Torch's own setting: every graph (frame id at least 0) goes to the backend ``verify_first``."""


def autoload() -> None:
    """Sets torch's backend override where ``VERIFYCOMPILE`` is ``1`` or ``warn``; nothing where it is unset or ``0``.

    With the flag, or where the user imported the package before torch, what user code asks about its rank is observed
    from here on. Else nothing of the package stays imported, so that a later import by the user does the same.
    Ends the process where the flag cannot take effect, so that it is never inert in silence: of other errors torch says
    that a backend fails, with the advice to turn it off.
    """
    flag = os.environ.get(FLAG_VARIABLE, "")
    package: Any = sys.modules["verifycompile"]
    if flag in ("", "0"):
        if package.IMPORTED_BEFORE_TORCH:
            package.observe()
        else:
            for name in [name for name in sys.modules if name.partition(".")[0] == "verifycompile"]:
                del sys.modules[name]
        return
    if flag not in ("1", "warn"):
        raise SystemExit(f"verifycompile: {FLAG_VARIABLE} must be 1, warn or 0, not {flag!r}")
    if os.environ.get(OVERRIDE_VARIABLE, OVERRIDE) != OVERRIDE:
        raise SystemExit(
            f"verifycompile: {FLAG_VARIABLE} needs {OVERRIDE_VARIABLE}, which is set to "
            f"{os.environ[OVERRIDE_VARIABLE]!r}: unset it"
        )
    if os.environ.get("TORCHDYNAMO_DISABLE", "") == "1":
        raise SystemExit(f"verifycompile: {FLAG_VARIABLE} needs torch.compile, which TORCHDYNAMO_DISABLE=1 turns off")
    os.environ[OVERRIDE_VARIABLE] = OVERRIDE
    package.observe()
    _prepare_compilations()


def _prepare_compilations() -> None:
    """What decides how a module is compiled is there before ``torch.compile`` is first called, not with its graph."""
    torch: Any = sys.modules["torch"]
    original = torch.compile

    @functools.wraps(original)
    def compile_under_the_flag(*args: Any, **kwargs: Any) -> Any:
        importlib.import_module("verifycompile.backends.flag")
        return original(*args, **kwargs)

    torch.compile = compile_under_the_flag
