"""Proves that a parallelized PyTorch program computes what its single-device spec computes.

The names below are imported on first use: torch's backend autoloading imports this package in every process that
imports torch, which must cost nothing. What a user's import starts at once is the observation of what code asks about
its rank, because models are built before they are verified.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifycompile.certificate import check_certificate
    from verifycompile.comparison import CompareReport, compare
    from verifycompile.diagnostics.codes import explain
    from verifycompile.diagnostics.report import Report
    from verifycompile.diagnostics.verdict import Verdict
    from verifycompile.errors import UsageError
    from verifycompile.frontends.graphs import verify_graphs
    from verifycompile.frontends.model import verify
    from verifycompile.frontends.step import verify_step
    from verifycompile.symbolic.check import cross_check
    from verifycompile.symbolic.report import CrossCheckReport
    from verifycompile.torch_interface.errors import RefinementError

__all__ = [
    "CompareReport", "CrossCheckReport", "RefinementError", "Report", "UsageError", "Verdict", "check_certificate",
    "compare", "cross_check", "explain", "verify", "verify_graphs", "verify_step",
]  # fmt: skip

_MODULES = {
    "CompareReport": "verifycompile.comparison",
    "CrossCheckReport": "verifycompile.symbolic.report",
    "RefinementError": "verifycompile.torch_interface.errors",
    "Report": "verifycompile.diagnostics.report",
    "UsageError": "verifycompile.errors",
    "Verdict": "verifycompile.diagnostics.verdict",
    "check_certificate": "verifycompile.certificate",
    "compare": "verifycompile.comparison",
    "cross_check": "verifycompile.symbolic.check",
    "explain": "verifycompile.diagnostics.codes",
    "verify": "verifycompile.frontends.model",
    "verify_graphs": "verifycompile.frontends.graphs",
    "verify_step": "verifycompile.frontends.step",
}


IMPORTED_BEFORE_TORCH = "torch" not in sys.modules


TORCH_RELEASE = "2.13"
"""The release whose private interfaces ``verifycompile/torch_interface`` uses."""


def observe() -> None:
    """Record from now on what code asks about its rank and the number of ranks, with what modules are made, and where
    plans and the operators of a traced graph come from.

    Raises ``ImportError`` for another release of torch.
    """
    installed = str(sys.modules["torch"].__version__)
    if not installed.startswith(f"{TORCH_RELEASE}."):
        text = f"verifycompile works with torch {TORCH_RELEASE}, and torch {installed} is installed"
        raise ImportError(f"{text}: pip install torch=={TORCH_RELEASE}.*")
    importlib.import_module("verifycompile.torch_interface.ranks.observed_readers").activate()
    importlib.import_module("verifycompile.torch_interface.ranks.constructed").record_constructions()
    importlib.import_module("verifycompile.torch_interface.source_lines.plan_lines").record_plans()
    importlib.import_module("verifycompile.torch_interface.source_lines.traced_lines").keep_lines()


def _is_torch_imported() -> bool:
    """False while torch is being imported, which ends with torch importing this package."""
    torch = sys.modules.get("torch")
    return torch is not None and not getattr(torch.__spec__, "_initializing", False)


if _is_torch_imported():
    observe()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("verifycompile")
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
