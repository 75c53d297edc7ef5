"""``verify``: the report on a model from one call of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn

from verifycompile.agreement.together import captured_in_job, verify_together
from verifycompile.capture import capture_model, frame_of_model
from verifycompile.diagnostics.report import Report
from verifycompile.options import Options


def verify(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Whether ``model``, as one rank runs it on ``args`` and ``kwargs``, computes what its spec computes.

    In a job of several processes every rank of the model's mesh calls it, and all get the same report.
    Nothing is executed and a mismatch raises nothing: it is in the report. ``options`` are those of the backend.
    Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = Options.from_mapping(options)
    frame = frame_of_model(model, tuple(args), dict(kwargs or {}))
    with captured_in_job(frame) as channel:
        spec, implementation = capture_model(model, tuple(args), dict(kwargs or {}), checked)
    return verify_together(spec, implementation, checked, channel)
