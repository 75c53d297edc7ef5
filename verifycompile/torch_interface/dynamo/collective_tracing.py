"""Lets Dynamo trace more of ``torch.distributed``: calls on which torch breaks the graph become functional ones.

torch has a table of functions that it traces in the place of in-place collectives; it covers seven of them, without
``async_op``. While it is active for a compilation, the table of ``collective_calls`` goes before it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch._dynamo.exc import unimplemented
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import CollectiveFunctionRewriteVariable, UserFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable
from torch.distributed._functional_collectives import REDUCE_OP_TO_STR

from verifycompile.torch_interface.communication import autograd_collective_calls, collective_calls

_TABLE: dict[Any, Any] = {**collective_calls.REPLACEMENTS, **autograd_collective_calls.REPLACEMENTS}
_ONLY_TO_PROVE = (dist.barrier,)
"""What is traced for a barrier is none: good for the proof, not to be run. torch.compile breaks the graph there."""
_is_active: list[Callable[[Any], bool]] = []
_everywhere: list[bool] = []


def trace_collectives_where(is_active: Callable[[Any], bool]) -> None:
    """From now on, in compilations whose compiler function satisfies ``is_active``, trace the calls of the table."""
    _install()
    _is_active.append(is_active)


@contextlib.contextmanager
def trace_collectives() -> Generator[None]:
    """While entered, trace the calls of the table, whoever compiles."""
    _install()
    _everywhere.append(True)
    try:
        yield
    finally:
        _everywhere.pop()


def _active(translator: Any, function: Any) -> bool:
    if _everywhere:
        return True
    return function not in _ONLY_TO_PROVE and any(is_active(translator.output.compiler_fn) for is_active in _is_active)


@functools.cache
def _install() -> None:
    can_rewrite = CollectiveFunctionRewriteVariable.can_rewrite
    create = CollectiveFunctionRewriteVariable.create
    call = CollectiveFunctionRewriteVariable.call_function
    call_class = UserDefinedClassVariable.call_function

    def can_rewrite_more(variable: Any) -> bool:
        return can_rewrite(variable) or (inspect.isfunction(variable) and variable in _TABLE)

    def create_more(translator: Any, old_fn: Any, source: Any, **options: Any) -> Any:
        if old_fn in _TABLE and _active(translator, old_fn):
            replacement = _variable(translator, _TABLE[old_fn], options)
            return CollectiveFunctionRewriteVariable(old_fn, replacement_var=replacement, source=source, **options)
        if can_rewrite(old_fn):
            return create(translator, old_fn, source, **options)
        return UserFunctionVariable(old_fn, source=source, **options)

    def call_more(self: Any, translator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.fn not in _TABLE or self.replacement_var.fn is not _TABLE[self.fn]:
            return call(self, translator, args, kwargs)
        if self.fn is dist.batch_isend_irecv:
            with torch._dynamo.config.patch(enable_p2p_compilation=True):
                return call(self, translator, args, kwargs)
        bound = dict(inspect.signature(self.fn).bind(*args, **kwargs).arguments)
        if _is_reduction(bound.get("op")):
            bound["op"] = ConstantVariable.create(_name_of(bound["op"]))
        return self.replacement_var.call_function(translator, [], bound)

    def call_class_more(self: Any, translator: Any, args: Any, kwargs: Any) -> Any:
        if self.value is dist.P2POp and _active(translator, dist.P2POp):
            with torch._dynamo.config.patch(enable_p2p_compilation=True):
                return call_class(self, translator, args, kwargs)
        return call_class(self, translator, args, kwargs)

    CollectiveFunctionRewriteVariable.can_rewrite = staticmethod(can_rewrite_more)
    CollectiveFunctionRewriteVariable.create = staticmethod(create_more)  # type: ignore[method-assign]  # put around torch's own
    CollectiveFunctionRewriteVariable.call_function = call_more  # type: ignore[method-assign]  # put around torch's own
    UserDefinedClassVariable.call_function = call_class_more  # type: ignore[method-assign]  # put around torch's own


def _variable(translator: Any, function: Any, options: dict[str, Any]) -> UserFunctionVariable:
    source = AttrSource(translator.import_source(function.__module__), function.__name__)
    return UserFunctionVariable(function, source=source, **options)


def _is_reduction(variable: Any) -> bool:
    return variable is not None and not isinstance(getattr(variable, "value", ""), str)


def _name_of(variable: Any) -> str:
    """The name under which functional collectives know the reduction."""
    operation = variable.value
    if operation not in REDUCE_OP_TO_STR:
        unimplemented(
            gb_type="reduction without a functional form",
            context=str(operation),
            explanation=f"The reduction {operation} has no functional form.",
            hints=["Scale the tensor before or after a reduction by ReduceOp.SUM."],
        )
    return REDUCE_OP_TO_STR[operation]
