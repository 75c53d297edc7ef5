"""``verify``: the report on a model from one call of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from verifycompile.agreement.together import captured_in_job
from verifycompile.capture import arguments_of_call, capture_model, frame_of_model, model_or_built
from verifycompile.diagnostics.report import Report
from verifycompile.frontends import Captured, report_of
from verifycompile.options import Options
from verifycompile.torch_interface.dynamo.backend import without_override


@dataclasses.dataclass(frozen=True)
class ModelCall:
    """One call of ``model``, or without one of what option ``build`` makes."""

    model: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @contextlib.contextmanager
    def captured(self, options: Options) -> Generator[Captured]:
        with without_override(), model_or_built(self.model, options) as own:
            with captured_in_job(frame_of_model(own, self.args, self.kwargs)) as channel:
                both = capture_model(own, self.args, self.kwargs, options)
            yield Captured(*both, channel)


def verify(
    model: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Whether ``model``, as one rank runs it on ``args`` and ``kwargs``, computes what its spec computes.

    Without a model, or with None, it is what option ``build`` makes.
    In a job of several processes every rank of the model's mesh calls it, and all get the same report.
    Nothing is executed and a mismatch raises nothing: it is in the report. ``options`` are those of the backend.
    Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = Options.from_mapping(options)
    return report_of(ModelCall(model, *arguments_of_call(args, kwargs)), checked)
