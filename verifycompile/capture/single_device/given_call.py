"""The call of a spec that was given, with the arguments that the model was called with."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export
from verifycompile.capture.copied_frame import copied_frame
from verifycompile.capture.names import call_arguments, called_through, first_argument, wrapper_arguments
from verifycompile.errors import UsageError
from verifycompile.torch_interface.dtensor.globalize import Globalizer
from verifycompile.torch_interface.dynamo.frames import Frame, frame_of_call, undecorated
from verifycompile.torch_interface.guards.argument_guards import Enter

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def frame_of_given(exported: Export, spec: Callable[..., Any], globalizer: Globalizer) -> tuple[Frame, Enter]:
    """The frame of the spec's call at whole shapes, and what makes that of ``spec`` itself for another call.

    Raises ``UsageError`` VC306 where the spec cannot be called as the model is, or a call would mean something else.
    """
    frame = exported.traced.frame
    roots = {name.root for name in exported.names if name.root is not None}
    root = next(iter(roots)).value(frame) if len(roots) == 1 else None
    callee = called_through(frame)
    entered = callee if callee is not None else _entered_module(frame, root)
    if isinstance(spec, nn.Module) and isinstance(root, nn.Module) and root is not entered:
        globalizer.replace(root, globalizer(spec))
        text = (
            f"`spec` stands for the module that `{frame.code.co_name}` calls; what else that function computes is "
            "part of the spec too"
        )
        globalizer.assumptions.append(Assumption(text, AssumptionKind.CORRESPONDENCE))
        return copied_frame(frame, globalizer), lambda variables: dataclasses.replace(frame, locals=variables)
    skip = entered is not None and first_argument(frame) is entered

    def passed(frame: Frame) -> Arguments:
        return wrapper_arguments(frame) if callee is not None else call_arguments(frame, skip=skip)

    def enter(variables: Mapping[str, Any]) -> Frame:
        return _call_of_spec(spec, *passed(dataclasses.replace(frame, locals=variables)), entered)

    _check_meaning(spec, passed(frame), entered, frame)
    args, kwargs = passed(frame)
    called = _call_of_spec(globalizer(spec), globalizer(args), globalizer(kwargs), entered)
    through = () if callee is None else undecorated(callee.forward if isinstance(callee, nn.Module) else callee)[1]
    return dataclasses.replace(called, contexts=(*frame.contexts, *through, *called.contexts)), enter


def _entered_module(frame: Frame, root: Any) -> nn.Module | None:
    """The module whose ``forward`` the frame is: that of its class, or one that was set on the module itself."""
    first = first_argument(frame)
    for module in (first, root):
        if isinstance(module, nn.Module):
            forwards = (type(module).forward, getattr(module.forward, "__func__", module.forward))
            if any(getattr(undecorated(forward)[0], "__code__", None) is frame.code for forward in forwards):
                return module
    return None


def _check_meaning(
    spec: Callable[..., Any], arguments: Arguments, entered: Callable[..., Any] | None, frame: Frame
) -> None:
    """That a call means the same to both: what it leaves out, and what is passed by name.

    A frame holds the values of its arguments, not whether they were passed, or in which way.
    """
    if isinstance(spec, types.BuiltinFunctionType):
        return
    own = _signature(spec)
    try:
        bound = own.bind(*arguments[0], **arguments[1]).arguments
    except TypeError:
        return
    if entered is None:
        models = _functions_of(frame.code) if any(item.default is not item.empty for item in _items(own)) else ()
        _check_order(frame.code.co_varnames[: frame.code.co_argcount], own, len(arguments[0]))
    else:
        models = () if isinstance(entered, types.BuiltinFunctionType) else (_signature(entered),)
        for model in models:
            _check_order([item.name for item in _items(model) if item.kind in _POSITIONAL], own, len(arguments[0]))
    for parameter in (item for model in models for item in _items(model)):
        other = own.parameters.get(parameter.name)
        if other is None or other.default is other.empty or parameter.default is parameter.empty:
            continue
        is_passed = bound.get(parameter.name, other.default) is not parameter.default
        if not is_passed and not _is_same(parameter.default, other.default):
            raise UsageError(
                "VC306",
                f"the option `spec` has the default {other.default!r} for `{parameter.name}`, and the model has "
                f"{parameter.default!r}: a call that leaves it out means something else to each. Give both the "
                "same default.",
            )


def _check_order(names: Sequence[str], spec: inspect.Signature, passed: int) -> None:
    others = [item.name for item in _items(spec) if item.kind in _POSITIONAL]
    for name, other in zip(names[:passed], others, strict=False):
        if name != other and name in others and other in names[:passed]:
            raise UsageError(
                "VC306",
                f"the option `spec` takes `{other}` where the model takes `{name}`, and both take the two: whether a "
                "call passes them by place or by name is not known. Let both take them in the same order.",
            )


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _items(signature: inspect.Signature) -> Sequence[inspect.Parameter]:
    return tuple(signature.parameters.values())


def _functions_of(code: types.CodeType) -> Iterator[inspect.Signature]:
    """Of the functions whose call the frame may be: several, where one definition was executed more than once.

    What the whole process holds is gone through to find them.
    """
    for function in gc.get_referrers(code):
        if isinstance(function, types.FunctionType) and function.__code__ is code:
            yield inspect.signature(function, follow_wrapped=False)


def _is_same(one: object, other: object) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and not isinstance(one, torch.Tensor) and bool(one == other)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    called = undecorated(function.forward if isinstance(function, nn.Module) else function)[0]
    return inspect.signature(called, follow_wrapped=False)


def _call_of_spec(
    spec: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], entered: Callable[..., Any] | None
) -> Frame:
    if isinstance(spec, types.BuiltinFunctionType):
        # Dynamo traces Python's functions only, and `torch.exp` says nothing of its arguments.
        return frame_of_call(_in_python(spec), args, kwargs)
    signature = _signature(spec)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        # The frame holds the model's defaults too; a spec need not have arguments that nobody passed.
        args, kwargs = _without_defaults(args, kwargs, entered)
    try:
        signature.bind(*args, **kwargs)
        return frame_of_call(spec, args, kwargs)
    except TypeError as mismatch:
        raise UsageError("VC306", f"the option `spec` cannot be called as the model is: {mismatch}.") from mismatch


def _in_python(builtin: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return builtin(*args, **kwargs)

    return call


def _without_defaults(args: tuple[Any, ...], kwargs: dict[str, Any], entered: Callable[..., Any] | None) -> Arguments:
    if entered is None:
        return args, kwargs
    parameters = inspect.signature(entered.forward if isinstance(entered, nn.Module) else entered).parameters
    defaults = [parameter.default for parameter in parameters.values()]
    kept = list(args)
    while kept and len(kept) <= len(defaults) and kept[-1] is defaults[len(kept) - 1]:
        kept.pop()
    named = {
        name: value for name, value in kwargs.items() if name not in parameters or value is not parameters[name].default
    }
    return tuple(kept), named
