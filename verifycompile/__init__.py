"""Proves that a parallelized PyTorch program computes what its single-device spec computes.

The names below are imported on first use: torch's backend autoloading imports this package in every process that
imports torch, which must cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifycompile.certificate import check_certificate
    from verifycompile.diagnostics.codes import explain
    from verifycompile.diagnostics.report import Report
    from verifycompile.diagnostics.verdict import Verdict
    from verifycompile.errors import UsageError
    from verifycompile.graph_verification import verify_graphs
    from verifycompile.model_verification import verify
    from verifycompile.torch_interface.errors import RefinementError

__all__ = [
    "RefinementError", "Report", "UsageError", "Verdict", "check_certificate", "explain", "verify", "verify_graphs",
]  # fmt: skip

_MODULES = {
    "RefinementError": "verifycompile.torch_interface.errors",
    "Report": "verifycompile.diagnostics.report",
    "UsageError": "verifycompile.errors",
    "Verdict": "verifycompile.diagnostics.verdict",
    "check_certificate": "verifycompile.certificate",
    "explain": "verifycompile.diagnostics.codes",
    "verify": "verifycompile.model_verification",
    "verify_graphs": "verifycompile.graph_verification",
}


def __getattr__(name: str) -> Any:
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
