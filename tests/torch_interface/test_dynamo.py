"""Dynamo's frames, return values, sources and nested tracing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import TracingContext
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from verifycompile.torch_interface.dynamo.frames import (
    Frame,
    GraphBreakError,
    TracedFrame,
    checkpoints_may_have_side_effects,
    frame_of_call,
    frame_under_compilation,
    trace_frame,
    traced_frame_under_compilation,
)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, *, shift: float = 1.0) -> torch.Tensor:
        return x * self.weight + shift


def run_in_backend(function: Callable[..., Any], *args: Any, use: Callable[[torch.fx.GraphModule, Any], Any]) -> Any:
    torch._dynamo.reset()
    results: list[Any] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        results.append(use(graph, example_inputs))
        return graph.forward

    torch.compile(function, backend=backend)(*args)
    return results[0]


def test_frame_under_compilation() -> None:
    model = Scale()
    frame = run_in_backend(model, torch.ones(3), use=lambda graph, inputs: frame_under_compilation())
    assert frame.code is Scale.forward.__code__
    assert frame.locals["self"] is model
    assert frame.locals["shift"] == 1.0
    assert not frame.is_resumption


def test_frame_of_a_closure() -> None:
    model = Scale()

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    frame = run_in_backend(step, torch.ones(3), use=lambda graph, inputs: frame_under_compilation())
    assert frame.locals["model"] is model
    assert [cell.cell_contents for cell in frame.closure] == [model]


def returned(function: Callable[..., Any], *args: Any) -> list[str] | None:
    def use(graph: torch.fx.GraphModule, inputs: Any) -> list[str] | None:
        nodes = traced_frame_under_compilation(graph, inputs).returned
        return None if nodes is None else [str(node.target) for node in nodes]

    return run_in_backend(function, *args, use=use)


def test_returned_values_in_the_users_order() -> None:
    def function(x: torch.Tensor) -> Any:
        sine, cosine = x.sin(), x.cos()
        return {"b": cosine, "a": (sine, None, 3)}, [x, cosine]

    assert returned(function, torch.ones(3)) == ["cos", "sin", "L_x_", "cos"]


def test_no_returned_values_at_a_graph_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    assert returned(function, torch.ones(3)) is None


def keep(traced: TracedFrame) -> TracedFrame:
    return traced


def test_trace_frame_of_a_module_and_of_a_function() -> None:
    traced = trace_frame(frame_of_call(Scale(), (torch.ones(3),), {"shift": 2.0}), keep)
    assert [str(node.target) for node in traced.returned or ()] == ["<built-in function add>"]
    assert len(traced.example_inputs) == 2
    traced = trace_frame(frame_of_call(lambda x: x.sin(), (torch.ones(3),), {}), keep)
    assert [str(node.target) for node in traced.returned or ()] == ["sin"]


def _decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Decorated(Scale):
    @_decorator
    @_decorator
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


@_decorator
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def test_a_decorated_function_is_shown_as_itself() -> None:
    def shown(graph: torch.fx.GraphModule, example_inputs: Any) -> tuple[str, int]:
        frame = frame_under_compilation()
        return frame.function, frame.shown.co_firstlineno

    wrapped = checkpoint_wrapper(checkpoint_wrapper(Scale()))
    for function, name in ((Decorated(), "Decorated.forward"), (decorated, "decorated"), (wrapped, "Scale.forward")):
        inner = Scale() if function is wrapped else function
        source = inspect.unwrap(inner.forward if isinstance(inner, nn.Module) else inner)
        expected = name, source.__code__.co_firstlineno
        assert run_in_backend(function, torch.ones(3), use=shown) == expected

    def plain(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    assert run_in_backend(plain, torch.ones(3), use=shown)[0].endswith("<locals>.plain")


def test_trace_frame_of_a_module_with_hooks() -> None:
    model = Scale()
    model.register_forward_hook(lambda module, args, output: output.sin())
    traced = trace_frame(frame_of_call(model, (torch.ones(3),), {}), keep)
    assert [str(node.target) for node in traced.returned or ()] == ["sin"]


def test_trace_frame_runs_nothing() -> None:
    seen: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        seen.append(x)
        return x * 2

    x = torch.zeros(2)
    trace_frame(frame_of_call(function, (x,), {}), keep)
    assert torch.equal(x, torch.zeros(2))
    assert seen == []


def test_trace_frame_leaves_no_sizes_behind() -> None:
    """Torch leaves a size open that is another one than at its last trace."""
    model, found = Scale(), list[Any]()
    trace_frame(frame_of_call(model, (torch.ones(5, 3),), {}), keep)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        found.extend(inputs)
        return graph

    torch.compile(model, backend=backend)(torch.ones(4, 3))
    assert {type(value) for value in found} == {torch.Tensor, nn.Parameter}


def test_trace_frame_leaves_an_outer_compilation_alone() -> None:
    def use(graph: torch.fx.GraphModule, inputs: Any) -> bool:
        before = (TracingContext.get(), InstructionTranslator.current_tx(), torch.get_rng_state())
        inner = trace_frame(frame_of_call(Scale(), (torch.ones(3),), {}), keep)
        after = (TracingContext.get(), InstructionTranslator.current_tx(), torch.get_rng_state())
        assert inner.context is not before[0]
        assert torch.equal(before[2], after[2])
        return before[0] is after[0] and before[1] is after[1]

    assert run_in_backend(lambda x: x.cos(), torch.ones(3), use=use)


def test_trace_frame_explains_a_graph_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    with pytest.raises(GraphBreakError) as caught:
        trace_frame(frame_of_call(function, (torch.ones(3),), {}), keep)
    assert caught.value.is_graph_break
    lines = str(caught.value).splitlines()
    assert lines[0] == "Call to `torch._dynamo.graph_break()`"
    assert "    torch._dynamo.graph_break()" in lines[-2:]  # from Python 3.13 on a line below marks the call


def test_trace_frame_tells_wrong_arguments_from_graph_breaks() -> None:
    with pytest.raises(GraphBreakError) as caught:
        trace_frame(frame_of_call(lambda x: x.view(7), (torch.ones(3),), {}), keep)
    assert not caught.value.is_graph_break


def test_trace_frame_raises_what_its_user_raises() -> None:
    def use(traced: TracedFrame) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trace_frame(frame_of_call(lambda x: x.sin(), (torch.ones(3),), {}), use)


def test_trace_frame_without_tensor_operations() -> None:
    with pytest.raises(GraphBreakError, match="holds no tensor operation"):
        trace_frame(Frame((lambda: 3).__code__, globals(), {}, ()), keep)


def test_side_effects_of_checkpointed_functions() -> None:
    seen: list[int] = []

    def change(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x.sin()

    def call(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(change, x, use_reentrant=False)

    frame = frame_of_call(call, (torch.ones(2, requires_grad=True),), {})
    with pytest.raises(GraphBreakError, match="skip_fwd_side_effects_in_bwd_under_checkpoint"):
        trace_frame(frame, lambda traced: traced.returned)
    with checkpoints_may_have_side_effects():
        returned = trace_frame(frame, lambda traced: traced.returned)
    assert returned is not None
    assert len(returned) == 1
