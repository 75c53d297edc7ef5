"""``verify_step``: the report on a whole training step."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from verifycompile.capture.data_parallel.step_objects import objects_of_step
from verifycompile.capture.data_parallel.training_step import Arguments, Step, capture_step
from verifycompile.capture.model import arguments_of_call
from verifycompile.diagnostics.report import Report
from verifycompile.errors import UsageError
from verifycompile.frontends import Captured, report_of
from verifycompile.options import Options
from verifycompile.torch_interface.ranks.acting_rank import is_pretended
from verifycompile.torch_interface.ranks.mesh import has_world

_OPTIONS = (
    "mesh", "in_placements", "param_placements", "param_names", "out_placements", "on_unproved", "time_limit",
    "memory_limit", "waivers",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """A call of a training step and of its single-device spec."""

    step: Step
    spec: Step
    arguments: Arguments

    @contextlib.contextmanager
    def captured(self, options: Options) -> Generator[Captured]:
        graphs = capture_step(self.step, self.spec, self.arguments, options)
        yield Captured(graphs.spec, graphs.implementation())


def verify_step(
    step: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    spec: Callable[..., Any],
    model: Any = None,
    optimizer: Any = None,
    spec_model: Any = None,
    spec_optimizer: Any = None,
    **options: Any,
) -> Report:
    """Whether a training step of one rank leaves what the single-device step ``spec`` leaves.

    ``step``: forward, loss, backward, reduction of gradients, clipping and ``optimizer.step``, as it is written for a
    training loop. ``args``, ``kwargs``: what one rank passes. ``model``, ``optimizer``, ``spec_model``,
    ``spec_optimizer``: what the two functions use; by default what they refer to.
    What is compared: the results, and every parameter, buffer, gradient and tensor of optimizer state after the step.
    ``options``: ``mesh``, ``in_placements``, ``param_placements``, ``param_names``, ``out_placements``,
    ``on_unproved``, ``time_limit``, ``memory_limit`` and ``waivers``, as for ``verify``.
    Nothing is executed: the step is called three times for each rank, on tensors without memory, in this one process
    under torch's fake process group. Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = _checked(step, spec, options)
    positional, named = arguments_of_call(args, kwargs)
    own = Step(step, *objects_of_step(step, model, optimizer, ""), "the step")
    single = Step(spec, *objects_of_step(spec, spec_model, spec_optimizer, "spec_"), "the spec's step")
    return report_of(TrainingStep(own, single, Arguments(step, positional, named)), checked)


def _checked(step: object, spec: object, options: Mapping[str, Any]) -> Options:
    for name, value in (("step", step), ("spec", spec)):
        if not callable(value) or isinstance(value, type):
            raise UsageError("VC306", f"`{name}` must be the function that makes one training step.")
    other = sorted(set(options) - set(_OPTIONS))
    if other:
        known = ", ".join(f"`{name}`" for name in _OPTIONS)
        raise UsageError("VC306", f"`verify_step` has no option `{other[0]}`; its options are {known}.")
    if has_world() and not is_pretended():
        text = "`verify_step` stands for all ranks in one process: call it under torch's fake process group."
        raise UsageError("VC306", text)
    return Options.from_mapping(options)
