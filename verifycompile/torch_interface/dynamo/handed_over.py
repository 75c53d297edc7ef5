"""What a graph break hands over to Python: the values that the instruction at which the graph ends reads.

What a compiled function takes is known where it is compiled, and what is disabled or given up where it is called. What
torch leaves to code that it never looks at (of libraries, or written in C: pickle, files, threads) is known here alone.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo import trace_rules
from torch._dynamo.guards import _get_closure_vars
from torch._dynamo.source import LocalCellSource, TempLocalSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import FunctoolsPartialVariable, NestedUserFunctionVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.misc import GetAttrVariable, NullVariable
from torch._dynamo.variables.tensor import NumpyNdarrayVariable

from verifycompile.torch_interface.dynamo.returned import held_sum
from verifycompile.torch_interface.guards.frame_guards import verify_again_unless
from verifycompile.torch_interface.source_lines.source import line_of_user


@dataclasses.dataclass(frozen=True)
class HandedOver:
    """``nodes``: results of the graph that the instruction reads, by name, with what the program calls them.

    ``line`` and ``reason``: where the graph ends, and why; ``place``: the user's innermost line there, as written.
    ``held_sum``: a value that came in, and holds a sum of which
    a graph before left a part on each rank; or, ``is_unread``, of which it is not known whether it does.
    """

    nodes: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    line: int = 0
    reason: str = ""
    place: str = ""
    held_sum: str = ""
    is_unread: bool = False


_NOTHING = HandedOver()
_handed_over: contextvars.ContextVar[HandedOver] = contextvars.ContextVar("handed_over", default=_NOTHING)


def handed_over() -> HandedOver:
    """By the graph under compilation. Only inside a Dynamo backend."""
    return _handed_over.get()


def keep_handed_over(translator: Any, reason: Any, stack_pops: int) -> HandedOver:
    """Before the graph of the frame that ``translator`` reads is compiled: what ends it, and what that reads."""
    found = _NOTHING
    if reason.graph_break:
        nodes, sources = dict[str, str](), dict[str, str]()
        for name, value in _read_by_python(translator, reason, stack_pops):
            for item in _inside(value, translator):
                if (source := _source(item)) is not None:
                    sources.setdefault(source, name)
                elif _is_tensor(item):
                    nodes.setdefault(item.as_proxy().node.name, name)
        held, is_unread = _held_on_entry(sources, translator) if sources else ("", False)
        text = str(reason.reason).strip().splitlines()
        said = text[0].rstrip(":.") if text else ""
        found = HandedOver(nodes, translator.lineno, said, line_of_user(reason.user_stack), held, is_unread)
    _handed_over.set(found)
    return found


def _read_by_python(translator: Any, reason: Any, stack_pops: int) -> Iterator[tuple[str, Any]]:
    """Names and values: all variables where the rest of the function is left to Python, else operands.

    An array of NumPy is a result of a graph whose layout the next one does not know again.
    """
    names = {_identity(value): name for name, value in translator.symbolic_locals.items()}
    if reason.reason == _REST:
        yield from translator.symbolic_locals.items()
        return
    for name, value in (*translator.symbolic_locals.items(), *(("an argument", item) for item in translator.stack)):
        yield from ((name, item) for item in _inside(value, translator) if isinstance(item, NumpyNdarrayVariable))
    instruction: str = translator.current_instruction.opname
    if instruction.startswith("STORE_"):
        return  # what reads it from there is seen where it reads
    operands = [item for item in translator.stack[len(translator.stack) - stack_pops :] if not _is_null(item)]
    if instruction.startswith("CALL") and operands and _is_known(operands[0]):
        return
    for operand in operands:
        read = operand.obj if isinstance(operand, GetAttrVariable) else operand
        yield names.get(_identity(read)) or _described(read), operand


def _is_null(value: Any) -> bool:
    return isinstance(value, NullVariable)


def _identity(value: Any) -> object:
    return _source(value) or id(value.unwrap())


def _described(value: Any) -> str:
    source = _source(value)
    return source or (value.as_proxy().node.name if _is_tensor(value.unwrap()) else "an argument")


def _is_tensor(value: Any) -> bool:
    return not isinstance(value, LazyVariableTracker) and value.is_tensor()


def _inside(value: Any, translator: Any) -> list[Any]:
    found: list[Any] = []
    VariableTracker.visit(found.append, value, side_effects=translator.output.side_effects)
    return found


def _source(value: Any) -> str | None:
    """Dynamo's expression for a value that the frame found, and did not compute; cells have none."""
    is_lazy = isinstance(value, LazyVariableTracker) and not value.is_realized()
    source = value._cache.source if is_lazy else value.source
    return None if source is None or isinstance(source, LocalCellSource | TempLocalSource) else source.name


def _held_on_entry(sources: Mapping[str, str], translator: Any) -> tuple[str, bool]:
    """What holds a partial sum among what came into the frame, which is compiled again once one comes.

    True beside it where its expression gives no value here, so that it may hold one.
    ``sources``: Dynamo's expressions, and what the program calls the values.
    """
    codes = [(compile(source, "<input>", "eval"), name) for source, name in sources.items()]
    known = {**_get_closure_vars(), "G": translator.f_globals}

    def held(local_values: Mapping[str, Any]) -> tuple[str, bool]:
        try:
            return held_sum(lambda: _evaluated(codes, {**known, "L": local_values})), False
        except _UnreadError as error:
            return str(error), True

    verify_again_unless([lambda local_values: not held(local_values)[0]], "no partial sum goes to Python code")
    return held(translator.f_locals)


def _evaluated(codes: Any, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for code, name in codes:
        try:
            yield name, eval(code, names)  # noqa: S307 - Dynamo's own expression for the value
        except Exception as error:
            raise _UnreadError(name) from error


class _UnreadError(Exception):
    """Of the value with this name: Dynamo's expression for it gives none."""


def _is_known(called: Any) -> bool:
    """Whether what is called is compiled itself, is asked where it is called, or makes the sum of the ranks' parts."""
    while isinstance(called, FunctoolsPartialVariable):
        called = called.func
    if isinstance(called, GetAttrVariable):
        return called.name in _METHODS and called.obj.is_tensor()
    value = getattr(called, "fn", getattr(called, "value", None))
    if isinstance(value, nn.Module) or getattr(value, "_torchdynamo_disable", False):
        return True
    if value is not None and any(value is function for function in _REDUCES):
        return True
    made = value.__init__ if isinstance(value, type) else value
    code = called.get_code() if isinstance(called, NestedUserFunctionVariable) else getattr(made, "__code__", None)
    return code is not None and not trace_rules.check(code)


_REST = "step_unsupported"
_METHODS = ("backward", "record_stream", "register_hook", "retain_grad")
"""Of a tensor, which the rank goes on with: gradients of a part of a sum are those of the sum."""
_COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor",
)  # fmt: skip
_REDUCES = (*(getattr(dist, name, None) for name in _COLLECTIVES), torch.autograd.backward, torch.autograd.grad)
