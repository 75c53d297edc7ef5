"""``compare``: TTrace's method as a third opinion on a program: both programs are run and compared tensor by tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from verifycompile.capture import arguments_of_call, check_model
from verifycompile.comparison.names import check_call
from verifycompile.comparison.question import Question
from verifycompile.comparison.report import CompareReport
from verifycompile.comparison.worker import Clip, Optimizer, Training
from verifycompile.diagnostics.report import Report
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.torch_interface.ranks.acting_rank import is_pretended
from verifycompile.torch_interface.ranks.mesh import has_world

_STEPS = "torch.optim.SGD(parameters, lr=0.1)"
_CLIPS = "torch.nn.utils.clip_grad_norm_(parameters, 1.0)"


def compare(
    model: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    batches: Sequence[Sequence[Any]] | None = None,
    optimizer: Optimizer | None = None,
    spec_optimizer: Optimizer | None = None,
    clip: Clip | None = None,
    spec_clip: Clip | None = None,
    steps: int = 1,
    accumulation: int = 1,
    seeds: int = 2,
    seed: int = 0,
    proof: Report | None = None,
    patience: float = 300.0,
    **options: Any,
) -> CompareReport:
    """Run ``model`` on all ranks and its spec on one device, and compare every related tensor.

    In a job of several processes every rank calls it and all get the same report; one process that stands for all
    ranks runs each of them in a thread. ``optimizer``: makes an optimizer of parameters (``torch.optim.AdamW``); with
    it ``steps`` steps of training are compared, each after ``accumulation`` passes whose gradients add up. ``clip``:
    what is done to the gradients of parameters before a step (``lambda p: clip_grad_norm_(p, 1.0)``).
    ``batches``: positional arguments of each pass in turn, in the place of ``args``, which all passes have else.
    ``spec_optimizer``, ``spec_clip``: the spec's, where they are others. ``seeds``: perturbed runs of the spec for each
    tolerance. ``seed``: of all random numbers. ``proof``: the report of ``verify``, whose assumptions are told apart by
    what this run measured. ``options`` are those of ``verify``.
    Nothing of the model is changed: hooks are removed, and its values, gradients and buffers are put back.
    Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = Options.from_mapping(options)
    if model is None and checked.build is None:
        raise UsageError("VC306", "there is nothing to compare: pass a model, or the option `build` that makes it.")
    if model is not None:
        check_model(model)
    positional, named = arguments_of_call(args, kwargs)
    if batches is not None and (not isinstance(batches, (tuple, list)) or not batches or args):
        raise UsageError("VC306", "option `batches` is a list of the arguments of each pass, in the place of `args`.")
    if not all(isinstance(batch, (tuple, list)) for batch in batches or ()):
        raise UsageError("VC306", "each of `batches` must be a tuple of arguments: write `(x,)`.")
    functions = {"optimizer": optimizer, "spec_optimizer": spec_optimizer, "clip": clip, "spec_clip": spec_clip}
    uncallable = [name for name, value in functions.items() if value is not None and not callable(value)]
    if uncallable:
        example = _CLIPS if "clip" in uncallable[0] else _STEPS
        text = f"option `{uncallable[0]}` must be a function of parameters: write `lambda parameters: {example}`."
        raise UsageError("VC306", text)
    if proof is not None and not isinstance(proof, Report):  # pyright: ignore[reportUnnecessaryIsInstance]  # not everyone checks types
        raise UsageError("VC306", "option `proof` must be a report of `verifycompile.verify`.")
    if not patience > 0:
        raise UsageError("VC306", "option `patience` must be a number of seconds greater than zero.")
    trains = {"batches": batches is not None and len(batches) > 1, "steps": steps != 1,
              "accumulation": accumulation != 1, "clip": clip is not None, "spec_clip": spec_clip is not None,
              "spec_optimizer": spec_optimizer is not None}  # fmt: skip
    useless = [name for name, given in trains.items() if given and optimizer is None]
    if useless:
        raise UsageError("VC310", f"option `{useless[0]}` does not apply: there is no `optimizer`.")
    if not all(isinstance(number, int) and number > 0 for number in (steps, accumulation)):  # pyright: ignore[reportUnnecessaryIsInstance]  # not everyone checks types
        raise UsageError("VC306", "options `steps` and `accumulation` must be whole numbers greater than zero.")
    training = Training() if optimizer is None else Training(optimizer, clip, steps, accumulation, clip is not None)
    spec_training = dataclasses.replace(training, optimizer=spec_optimizer or optimizer, clip=spec_clip or clip)
    each = [positional] if batches is None else [tuple(batch) for batch in batches]
    for call in each if model is not None else ():
        check_call(model, call, named)
    question = Question(model, each, named, checked, training, spec_training, seeds, seed, proof, patience)
    with torch.enable_grad():
        if has_world() and not is_pretended():
            return question.in_the_job()
        return question.in_this_process()
