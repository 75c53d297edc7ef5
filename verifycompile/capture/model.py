"""Spec and implementation of a model from one call of it, without compiling or running anything."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.data_parallel.sample_readings import capture_both
from verifycompile.capture.implementation import capture_traced
from verifycompile.capture.meshes import require_groups
from verifycompile.capture.ranks.as_ranks import called, uncompiled
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Program
from verifycompile.torch_interface.data_parallel.unwrapped import without_outer_wrappers
from verifycompile.torch_interface.dynamo.frames import (
    Frame,
    GraphBreakError,
    TracedFrame,
    checkpoints_may_have_side_effects,
    frame_of_call,
    trace_frame,
)
from verifycompile.torch_interface.logs import without_logged_failures
from verifycompile.torch_interface.ranks.acting_rank import groups_of_its_own, is_pretended
from verifycompile.torch_interface.ranks.observation import first_call_of_build, listed_reads
from verifycompile.torch_interface.training_step.optimizers import step_of


@contextlib.contextmanager
def model_or_built(model: Callable[..., Any] | None, options: Options) -> Generator[Callable[..., Any]]:
    """``model``, or without one what option ``build`` makes, whose process groups are forgotten in the end.

    Raises ``UsageError`` VC306 where there is neither, and for a model that is no Python program.
    """
    if model is not None:
        check_model(model)
        yield model
        return
    if options.build is None:
        raise UsageError("VC306", "there is nothing to verify: pass a model, or the option `build` that makes it.")
    with groups_of_its_own() if is_pretended() else contextlib.nullcontext():
        with listed_reads() as asked:
            made = called(options.build, "for this rank")
        check_model(made)
        with first_call_of_build(asked):
            yield made


def check_model(model: object) -> None:
    """Raises ``UsageError`` VC306 for a model that is no Python program."""
    if isinstance(model, type):
        what = f"it is the class `{model.__name__}`: make a model of it first"
    elif isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        what = "it is scripted: pass the Python program that was scripted"
    elif isinstance(model, torch.export.ExportedProgram):
        what = "it is an exported program: pass the model that was exported, or its graphs to `verify_graphs`"
    elif not callable(model):
        what = f"it is a value of type `{type(model).__name__}`, which cannot be called"
    else:
        return
    raise UsageError("VC306", f"`model` must be an nn.Module or a Python function; {what}.")


def arguments_of_call(args: object, kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What one rank passes, checked. Raises ``UsageError`` VC306 for another container than a tuple or list."""
    if not isinstance(args, (tuple, list)):
        kind = type(args).__name__
        raise UsageError("VC306", f"`args` must be a tuple of arguments, not a value of type `{kind}`: write `(x,)`.")
    named = {} if kwargs is None else kwargs
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[object, Any]", named)):
        raise UsageError("VC306", "`kwargs` must map names of arguments to values.")
    return tuple(cast("list[Any]", args)), dict(cast("Mapping[str, Any]", named))


def _untraced(value: torch.Tensor) -> str:
    """What a tensor is that torch does not trace, and what to pass in its place; "" for one that it traces."""
    if value.is_quantized:
        return "a quantized tensor, which torch does not trace: pass its `dequantize()`"
    if value.is_nested:
        return "a nested tensor, whose rows torch does not trace as one tensor: pass one that is padded"
    if value.layout is not torch.strided:
        return f"a tensor in the layout {value.layout}, which torch does not trace: pass its `to_dense()`"
    return ""


def capture_model(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> tuple[Program, Program]:
    """``(spec, implementation)`` of the call ``model(*args, **kwargs)`` as one rank makes it; nothing is executed.

    Raises ``UsageError`` as ``capture_implementation`` and ``recover_spec`` do, VC305 for a graph break, VC306 for
    tensors that torch does not trace.
    """

    def remake(built: Callable[..., Any]) -> Frame:
        unwrapped, outer = without_outer_wrappers(uncompiled(built))
        return dataclasses.replace(frame_of_call(step_of(unwrapped) or unwrapped, args, kwargs), wrappers=outer)

    def capture(traced: TracedFrame) -> tuple[Program, Program]:
        both = capture_both(lambda whole: capture_traced(traced, options, whole, remake=remake), options)
        if not both.spec.outputs and not both.implementation.outputs:
            raise UsageError("VC306", _NOTHING)
        return both.spec, both.implementation

    for value in tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor) and (what := _untraced(value)):
            raise UsageError("VC306", f"the arguments hold {what}.")
    function, outer = without_outer_wrappers(uncompiled(model))
    step = step_of(function)
    if isinstance(function, nn.Module):
        require_groups(weight.device_mesh for weight in function.parameters() if isinstance(weight, DTensor))
    frame = dataclasses.replace(_entered(step or function, args, kwargs), wrappers=outer)
    with torch.no_grad() if step is not None else contextlib.nullcontext(), without_logged_failures():
        try:
            return trace_frame(frame, capture)
        except GraphBreakError as broken:
            if not broken.is_graph_break:
                raise UsageError("VC303", f"the model does not run on these inputs.\n{broken}") from broken
            if _holds_checkpoint(broken):
                with contextlib.suppress(GraphBreakError), checkpoints_may_have_side_effects():
                    spec, implementation = trace_frame(frame, capture)
                    assumptions = (*implementation.assumptions, _UNREPEATED)
                    return spec, dataclasses.replace(implementation, assumptions=assumptions)
            raise UsageError("VC305", f"the model does not trace to one graph.\n{broken}") from broken


def frame_of_model(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Frame:
    """The frame of the call ``model(*args, **kwargs)``, by which the ranks of a job know it."""
    function, _ = without_outer_wrappers(uncompiled(model))
    return _entered(step_of(function) or function, args, kwargs)


def _entered(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Frame:
    try:
        return frame_of_call(function, args, kwargs)
    except TypeError as mismatch:
        text = f"the model cannot be called with these `args` and `kwargs`: {mismatch}."
        raise UsageError("VC303", text) from mismatch


_NOTHING = (
    "the model returns no tensor and changes none, so that there is nothing to verify: return what it computes."
)
_UNREPEATED = Assumption(
    "what checkpointed functions change outside of themselves (attributes, hooks) does not change what backward "
    "computes when it repeats them",
    AssumptionKind.OPERATOR,
)


def _holds_checkpoint(broken: GraphBreakError) -> bool:
    """Whether Dynamo stopped at a side effect in a region of its own, as activation checkpointing makes one."""
    return "skip_fwd_side_effects_in_bwd_under_checkpoint" in str(broken)
