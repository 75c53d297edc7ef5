"""Dynamo: the Python frame under compilation, its return value, and tracing of a frame without running it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import functools
import inspect
import re
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch._dynamo.compiled_autograd
import torch._dynamo.convert_frame
import torch.fx
from torch import nn
from torch._dynamo import pgo
from torch._dynamo.exc import (
    BackendCompilerFailed,
    InternalTorchDynamoError,
    SkipFrame,
    TorchRuntimeError,
    Unsupported,
    UserError,
)
from torch._dynamo.external_utils import wrap_inline
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.utils import get_metrics_context
from torch._dynamo.variables.base import VariableTracker
from torch._guards import CompileContext, CompileId, TracingContext, compile_context, tracing
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from verifycompile.errors import UsageError
from verifycompile.torch_interface.data_parallel.outer import Outer
from verifycompile.torch_interface.dtensor.parallel_styles import style_of_hook
from verifycompile.torch_interface.dtensor.sharding_decisions import data_has_no_hash
from verifycompile.torch_interface.dtensor.strided import strided_shards_by_views
from verifycompile.torch_interface.dynamo.attributes import lift_attributes, with_results
from verifycompile.torch_interface.dynamo.closures import closed_over
from verifycompile.torch_interface.dynamo.collective_tracing import trace_collectives
from verifycompile.torch_interface.dynamo.device_numbers import note_numbers_of_devices
from verifycompile.torch_interface.dynamo.fused_attention import gradients_on_any_device
from verifycompile.torch_interface.replaced import replaced
from verifycompile.torch_interface.source_lines.source import (
    is_code_of_user,
    is_user_file,
    keep_lines_of_strings,
    line_of_user,
)
from verifycompile.torch_interface.training_step.gradient_hooks import GradientHook, hooks_of_traced_code
from verifycompile.torch_interface.training_step.returned_values import LeftBehind, left_behind

Result = TypeVar("Result")

note_numbers_of_devices()
keep_lines_of_strings()

_RESUMPTION = "torch_dynamo_resume_in_"


class GraphBreakError(Exception):
    """A function does not trace to one graph; the message is Dynamo's explanation with the user's line.

    ``is_graph_break`` is False where an operator rejects its arguments, as it would when run. ``place``: the line that
    torch cannot trace, "" where that is not all that is in the way.
    """

    def __init__(self, message: str, *, is_graph_break: bool = True, place: str = "") -> None:
        super().__init__(message)
        self.is_graph_break = is_graph_break
        self.place = place


@dataclasses.dataclass(frozen=True)
class Frame:
    """A call of a Python function before its first instruction.

    ``contexts``: of torch's decorators around the function (``@torch.no_grad()``), outermost first; they are entered
    before the frame is traced, as Dynamo does, which compiles what such a decorator wraps.
    ``wrappers``: the data-parallel ones that were taken off the model before.
    """

    code: types.CodeType
    globals: dict[str, Any]
    locals: dict[str, Any]
    closure: tuple[types.CellType, ...]
    contexts: tuple[Callable[[], contextlib.AbstractContextManager[Any]], ...] = ()
    wrappers: Outer = dataclasses.field(default_factory=Outer)

    @property
    def is_backward_of_torch_distributed(self) -> bool:
        """True for torch's own ``autograd.Function.backward``, which Dynamo meets where backward runs eagerly."""
        name = self.code.co_name
        in_torch = "/torch/distributed/" in self.code.co_filename.replace("\\", "/")
        return in_torch and (name == "backward" or name.startswith("torch_dynamo_resume_in_backward_at"))

    @property
    def makes_parameters(self) -> bool:
        """True for what makes DTensors of the plain parameters that ``DistributedDataParallel`` holds."""
        path = self.code.co_filename.replace("\\", "/")
        return path.endswith("/torch/distributed/tensor/parallel/_data_parallel_utils.py")

    @property
    def is_whole_backward(self) -> bool:
        """True for what compiled autograd recorded of a whole backward."""
        return torch._dynamo.compiled_autograd.in_compiled_autograd_region

    @property
    def is_resumption(self) -> bool:
        """True for the rest of a function after a graph break."""
        return self.code.co_name.startswith(_RESUMPTION)

    @property
    def shown(self) -> types.CodeType:
        """The code that a reader knows: where torch puts a frame around a module, that of the module's ``forward``.

        Of a frame that a decorator puts around a function (with ``functools.wraps``), that of the function, and of
        torch's wrapper for activation checkpointing that of the module inside.
        """
        if self.code not in wrap_inline.__code__.co_consts:
            first = self.locals.get(self.code.co_varnames[0]) if self.code.co_varnames else None
            if isinstance(first, ActivationWrapper) and type(first).forward.__code__ is self.code:
                return _code_of_forward(first) or self.code
            return next((function.__code__ for function in self._decorated()), self.code)
        wrapped = inspect.unwrap(self.closure[self.code.co_freevars.index("fn")].cell_contents)
        module = getattr(wrapped, "__self__", wrapped)  # `Module._call_impl`, where it is compiled with its hooks
        if isinstance(module, nn.Module):
            return _code_of_forward(module) or self.code
        return getattr(wrapped, "__code__", self.code)

    def _decorated(self) -> Iterator[types.FunctionType]:
        """The functions in the closure whose name stands for this code now."""
        arguments = self.locals.get(self.code.co_varnames[0], ()) if self.code.co_varnames else ()
        first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
        for _, value in closed_over(self.code, self.closure):
            if isinstance(value, types.FunctionType):
                outermost = getattr(type(first), value.__name__, value.__globals__.get(value.__name__))
                if isinstance(outermost, types.FunctionType) and outermost.__code__ is self.code:
                    yield inspect.unwrap(outermost)

    @property
    def function(self) -> str:
        """The function's name as a reader knows it: ``Block.forward``."""
        if self.is_resumption:
            return f"{self.code.co_name.removeprefix(_RESUMPTION).rpartition('_at_')[0]} after a graph break"
        return self.shown.co_qualname if self.style is None else f"hook of {self.style}"

    @property
    def style(self) -> str | None:
        """The parallel style of which this is a hook that is compiled alone, and its module."""
        return style_of_hook(self.code, self.locals)

    @property
    def resumed_line(self) -> int:
        """Of such a rest, the line of the graph break."""
        return int(self.code.co_name.rpartition("_at_")[2])


def _code_of_forward(module: nn.Module) -> types.CodeType | None:
    while isinstance(module, ActivationWrapper):
        module = module._checkpoint_wrapped_module
    return getattr(inspect.unwrap(module.forward), "__code__", None)


@dataclasses.dataclass(frozen=True)
class TracedFrame:
    """A frame's Dynamo graph.

    ``example_inputs`` follow the placeholders. ``returned``: for each tensor of the frame's flattened return
    value, in order, its node in ``graph``; None where the graph does not hold the frame's return value
    (a graph break, or a container that Dynamo models in a way we do not read).
    ``is_broken``: a graph break ends the graph; the rest of the frame is compiled on its own.
    ``hooks``: placeholder name -> hooks that the frame registers on the gradient of that input.
    ``left_behind``: where the results go; its nodes have the names of those in ``graph``.
    """

    frame: Frame
    graph: torch.fx.GraphModule
    example_inputs: tuple[Any, ...]
    returned: tuple[torch.fx.Node, ...] | None
    context: TracingContext
    is_broken: bool = False
    hooks: Mapping[str, tuple[GradientHook, ...]] = dataclasses.field(default_factory=dict[str, Any])
    left_behind: LeftBehind = dataclasses.field(default_factory=LeftBehind)


def frame_under_compilation() -> Frame:
    """The user's frame that Dynamo compiles right now. Only inside a Dynamo backend."""
    root = _root_translator()
    return Frame(
        code=root.f_code,
        globals=root.f_globals,
        locals=dict(root.f_locals),
        closure=tuple(root.closure or ()),
    )


def traced_frame_under_compilation(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> TracedFrame:
    """What a Dynamo backend was called with, together with the frame it belongs to."""
    return _traced(frame_under_compilation(), graph, example_inputs)


def _traced(frame: Frame, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> TracedFrame:
    lifted, inputs = lift_attributes(graph, example_inputs)
    root = _root_translator()
    returned = _returned_nodes(root, lifted)
    left = left_behind(root)
    is_broken = root.instruction_pointer is not None
    remade = () if is_broken else _made_again(left, lifted)
    if remade:
        lifted = with_results(lifted, remade)
        returned = _returned_nodes(root, lifted)
    return TracedFrame(
        frame=frame,
        graph=lifted,
        example_inputs=inputs,
        returned=returned,
        context=TracingContext.get(),
        is_broken=is_broken,
        hooks=hooks_of_traced_code(),
        left_behind=left,
    )


def _made_again(left: LeftBehind, graph: torch.fx.GraphModule) -> tuple[str, ...]:
    """Nodes that Dynamo leaves out of the results of its graph: it reads the attribute of an input (``x.T``) again."""
    output = next(iter(graph.graph.find_nodes(op="output")))
    results = {item.name for item in output.args[0] if isinstance(item, torch.fx.Node)}
    inner = {node.name for node in graph.graph.nodes if node.op not in ("placeholder", "output")}
    leaves = (*left.returned.values(), *left.changed.values())
    found = dict.fromkeys(leaf.name for leaf in leaves if isinstance(leaf, torch.fx.Node))
    return tuple(name for name in found if name in inner and name not in results)


def frame_of_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Frame:
    """The frame that ``function(*args, **kwargs)`` enters; for a module with hooks, its ``__call__``.

    Raises ``UsageError`` VC306 for what is no Python function that returns, ``TypeError`` for other arguments.
    """
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType | nn.Module):
        method = getattr(type(function), "__call__", None)  # noqa: B004 - what it does is traced
        if not isinstance(method, types.FunctionType):
            name = getattr(function, "__name__", type(function).__name__)
            text = f"`{name}` is not written in Python, so that torch cannot trace it: pass a module or a function."
            raise UsageError("VC306", text)
        function = types.MethodType(method, function)
    decorated, self_object = torch._dynamo.convert_frame.get_traced_fn(function)
    code_owner, contexts = undecorated(decorated)
    if code_owner.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        text = f"`{code_owner.__qualname__}` yields or awaits: torch traces functions that return their results."
        raise UsageError("VC306", text)
    positional = args if self_object is None else (self_object, *args)
    bound = inspect.signature(code_owner, follow_wrapped=False).bind(*positional, **kwargs)
    bound.apply_defaults()
    closure = code_owner.__closure__ or ()
    local_values = dict(bound.arguments)
    local_values.update(closed_over(code_owner.__code__, closure))
    return Frame(
        code=code_owner.__code__,
        globals=code_owner.__globals__,
        locals=local_values,
        closure=closure,
        contexts=contexts,
    )


def with_callable(frame: Frame, function: Callable[..., Any]) -> Frame | None:
    """``frame`` as a call of ``function``: with its object and its variables. None where it is of other code."""
    decorated, self_object = torch._dynamo.convert_frame.get_traced_fn(function)
    code_owner, contexts = undecorated(decorated)
    if code_owner.__code__ is not frame.code:
        return None
    local_values = dict(frame.locals)
    if self_object is not None:
        name = frame.code.co_varnames[0]
        # All modules with hooks have one code, that of `nn.Module.__call__`. A wrapper makes a subclass.
        if not isinstance(local_values.get(name), type(self_object)):
            return None
        local_values[name] = self_object
    closure = code_owner.__closure__ or ()
    local_values.update(closed_over(frame.code, closure))
    return Frame(frame.code, code_owner.__globals__, local_values, closure, contexts)


def undecorated(function: Any) -> tuple[Any, tuple[Callable[[], contextlib.AbstractContextManager[Any]], ...]]:
    """What torch's decorators (``@torch.no_grad()``) wrap, and the contexts that they enter, outermost first."""
    contexts: list[Callable[[], contextlib.AbstractContextManager[Any]]] = []
    if isinstance(function, types.MethodType):
        plain, contexts_of_plain = undecorated(function.__func__)
        return types.MethodType(plain, function.__self__), contexts_of_plain
    while getattr(function, "__code__", None) is _DECORATED:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
        contexts.append(cells["ctx_factory"].cell_contents)
        function = cells["func"].cell_contents
    return function, tuple(contexts)


@torch.no_grad()
def _decorated() -> None:
    """What a decorator is put around to see its code."""


_DECORATED = _decorated.__code__


def _unrecorded(_translator: Any, _name: str, size: pgo.FrameStateSizeEntry, **_: Any) -> pgo.FrameStateSizeEntry:
    """Torch leaves sizes open that are others than it recorded, as those of a spec are others than a rank's own."""
    return size


def trace_frame(frame: Frame, use: Callable[[TracedFrame], Result], *, up_to_break: bool = False) -> Result:
    """Trace ``frame`` to one Dynamo graph and return ``use`` of it, called while the tracing context lives.

    ``up_to_break``: the graph of what comes before the first graph break will do.
    Nothing of the frame is executed and an outer compilation is not disturbed.
    Raises ``GraphBreakError`` where it does not trace to exactly one graph, and what ``use`` raises.
    """
    results: list[Result] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> torch.fx.GraphModule:
        results.append(use(_traced(frame, graph, example_inputs)))
        return graph

    identifier = CompileContext.current_compile_id() or CompileId(frame_id=0, frame_compile_id=0)
    with (
        tracing(None),
        strided_shards_by_views(),
        data_has_no_hash(),
        trace_collectives(),
        gradients_on_any_device(),
        compile_context(CompileContext(identifier)),
        torch._dynamo.config.patch(automatic_dynamic_shapes=False),
        replaced([(pgo, "update_automatic_dynamic", _unrecorded)]),
        get_metrics_context(),
        _use_lazy_graph_module(True),  # few of the graphs that torch makes on its way are ever called
        torch._dynamo.utils.preserve_rng_state(),
        contextlib.ExitStack() as decorators,
    ):
        for enter in frame.contexts:
            decorators.enter_context(enter())
        try:
            torch._dynamo.convert_frame.compile_frame(
                frame.code,
                frame.globals,
                frame.locals,
                builtins.__dict__,
                frame.closure,  # type: ignore[arg-type]  # torch annotates a one-tuple
                compiler_fn=keep,
                one_graph=not up_to_break,
                restart_reasons=set(),
            )
        except BackendCompilerFailed as failure:
            raise failure.inner_exception from failure
        except (SkipFrame, InternalTorchDynamoError, NotImplementedError) as failure:
            raise GraphBreakError(_explanation(failure)) from failure
        except GuardOnDataDependentSymNode as failure:
            raise GraphBreakError(_explanation(failure)) from failure
        except (Unsupported, UserError, TorchRuntimeError) as failure:
            wrong_arguments = isinstance(failure, TorchRuntimeError) or type(failure).__name__ == "TorchRuntimeError"
            wrong_arguments &= _data_dependence(failure) is None
            is_break = type(failure) is Unsupported and _RAISED.search(str(failure)) is None
            place = line_of_user(failure.real_stack) if is_break else ""
            raise GraphBreakError(_explanation(failure), is_graph_break=not wrong_arguments, place=place) from failure
        except IndexError as failure:  # an operator's own, which torch lets through
            raise GraphBreakError(_explanation(failure), is_graph_break=False) from failure
    if not results:
        raise GraphBreakError(f"`{frame.code.co_name}` holds no tensor operation.")
    return results[-1]


def _data_dependence(failure: BaseException) -> GuardOnDataDependentSymNode | None:
    """Where torch stopped since a size or a branch depends on the content of a tensor."""
    if isinstance(failure, GuardOnDataDependentSymNode):
        return failure
    reason = failure.__cause__ or failure.__context__
    return None if reason is None else _data_dependence(reason)


def said_of_data(failure: BaseException) -> str:
    """That a size or a branch depends on the content of a tensor, and the user's innermost line; empty elsewhere."""
    found = _data_dependence(failure)
    if found is None:
        return ""
    lines = [line for line in traceback.extract_tb(found.__traceback__) if is_code_of_user(line.filename)]
    text = f"{DEPENDS_ON_DATA} (`{found.cond}`)."
    return "\n".join((text, *_from(lines[-1:])))


DEPENDS_ON_DATA = "A size or a branch depends on the content of a tensor, which torch cannot trace"


def checkpoints_may_have_side_effects() -> AbstractContextManager[None]:
    """Dynamo traces checkpointed regions that change objects outside of them, as if backward did not repeat that."""
    return torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True)


def _explanation(failure: Exception) -> str:
    """Dynamo's message without what is for its developers, then the user's lines, innermost last."""
    if (rejected := _REJECTION.search(str(failure))) is not None:
        kept = [f"{rejected[1]}: {ast.literal_eval(rejected[2])}"]
    elif (raised := _RAISED.search(str(failure))) is not None:
        kept = [f"It raises {raised[1]}"]
    elif (dependence := _data_dependence(failure)) is not None:
        kept = [f"{DEPENDS_ON_DATA} (`{dependence.cond}`)."]
    else:
        kept = _without_context(failure)
    frames = [frame for frame in getattr(failure, "real_stack", None) or () if is_user_file(frame.filename)]
    return "\n".join((*kept, *_from(frames)))


def _from(frames: Sequence[traceback.FrameSummary]) -> list[str]:
    """The user's lines, innermost last."""
    lines = [line.rstrip() for frame in traceback.format_list(frames) for line in frame.splitlines()]
    return ["  From:", *lines] if lines else []


_REJECTION = re.compile(r"""failed to run FX node with fake tensors: .*: got (\w+)\(('.*'|".*")\)$""", re.MULTILINE)
"""What an operator says of its arguments, behind the call as Dynamo writes it."""

_RAISED = re.compile(r"^  Developer debug context: raised exception (.*)$", re.MULTILINE)
"""An exception that the traced program raises and does not catch, as Dynamo writes it."""


def _without_context(failure: Exception) -> list[str]:
    kept: list[str] = []
    for line in str(failure).strip().splitlines():
        if line.startswith(("  Developer debug context", " For more details", "from user code", "Set TORCHDYNAMO")):
            break
        if line.strip():
            kept.append(line.rstrip())
    return kept


def _root_translator() -> Any:
    return InstructionTranslator.current_tx().output.root_tx


def _returned_nodes(root: Any, graph: torch.fx.GraphModule) -> tuple[torch.fx.Node, ...] | None:
    # At RETURN_VALUE the instruction pointer is cleared before the backend is called; at a graph break it is not.
    if root.instruction_pointer is not None or len(root.stack) != 1:
        return None
    found: list[torch.fx.Node] = []
    if not _collect_tensors(root.stack[0], found):
        return None
    nodes = {node.name: node for node in graph.graph.nodes}
    # The graph handed to a backend may be a copy of the one that the variables point into.
    return tuple(nodes.get(node.name, node) for node in found)


def _collect_tensors(variable: VariableTracker, found: list[torch.fx.Node]) -> bool:
    """Append the nodes of the tensors in ``variable``, depth first; False where its structure is unknown."""
    name = type(variable).__name__
    variable = variable.realize()
    if variable.is_tensor():
        found.append(variable.as_proxy().node)
        return True
    if variable.is_python_constant():
        return True
    if name in ("SymNodeVariable", "ConstantVariable"):
        return True
    items = getattr(variable, "items", None)
    if isinstance(items, list):
        return all(_collect_tensors(item, found) for item in items)
    if isinstance(items, dict):
        return all(_collect_tensors(item, found) for item in items.values())
    return False
