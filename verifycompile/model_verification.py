"""``verify``: the report on a model from one call of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn

from verifycompile.capture import capture_model
from verifycompile.diagnostics.report import Report
from verifycompile.options import Options
from verifycompile.rank_verification import verify_captured


def verify(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Whether ``model``, as one rank runs it on ``args`` and ``kwargs``, computes what its spec computes.

    Nothing is executed and a mismatch raises nothing: it is in the report. ``options`` are those of the backend.
    Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = Options.from_mapping(options)
    spec, implementation = capture_model(model, tuple(args), dict(kwargs or {}), checked)
    return verify_captured(spec, implementation, checked)
