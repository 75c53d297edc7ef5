"""Hooks that tensors hold, and those that Dynamo records as side effects of a frame."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from verifycompile.torch_interface.dynamo.frames import TracedFrame, frame_of_call, trace_frame
from verifycompile.torch_interface.training_step.gradient_hooks import (
    GradientHook,
    hooked,
    register_hooks,
    registered_hooks,
)


def double(gradient: torch.Tensor) -> torch.Tensor:
    return 2 * gradient


def halve(parameter: Any) -> None:
    parameter.grad.div_(2)


class Registers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = x.shape[0]
        self.weight.register_hook(double)
        self.weight.register_post_accumulate_grad_hook(halve)
        self.weight.register_hook(lambda gradient: gradient * factor)
        return self.weight * x


def test_hooks_are_read_where_gradients_are_switched_off():
    weight = torch.ones(3, requires_grad=True)
    node = get_gradient_edge(weight).node  # torch forgets it, with its hooks, where nobody holds it
    node.register_prehook(double)
    for switched_off in (torch.no_grad(), torch.inference_mode()):
        with switched_off:
            assert registered_hooks(weight) == (GradientHook(double, after=False, of_node=True),)


def test_hooks_of_a_tensor_in_the_order_in_which_autograd_calls_them():
    weight = torch.ones(3, requires_grad=True)
    assert registered_hooks(weight) == ()
    weight.register_post_accumulate_grad_hook(halve)
    weight.register_hook(double)
    assert registered_hooks(weight) == (GradientHook(double, after=False), GradientHook(halve, after=True))
    assert [hook.name for hook in registered_hooks(weight)] == ["double", "halve"]


def test_hooks_of_the_node_that_accumulates_are_found_while_it_lives():
    weight = torch.ones(3, requires_grad=True)
    node = get_gradient_edge(weight).node
    node.register_hook(double)
    node.register_prehook(halve)
    expected = (GradientHook(halve, after=False, of_node=True), GradientHook(double, after=True, of_node=True))
    assert registered_hooks(weight) == expected
    other = torch.ones(3, requires_grad=True)
    kept = register_hooks(expected, other)
    assert registered_hooks(other) == expected
    del node, kept
    assert registered_hooks(weight) == registered_hooks(other) == ()


def test_hooks_that_a_frame_registers():
    def look(traced: TracedFrame) -> dict[str, tuple[GradientHook, ...]]:
        return dict(traced.hooks)

    model = Registers()
    found = trace_frame(frame_of_call(model, (torch.ones(3),), {}), look)
    (hooks,) = found.values()
    assert hooks[:2] == (GradientHook(double, after=False), GradientHook(halve, after=True))
    assert not hooks[2].after
    assert registered_hooks(model.weight) == ()


def test_hooks_as_one_function_are_what_autograd_computes():
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(double)
    weight.register_hook(lambda gradient: None)
    weight.register_hook(lambda gradient: gradient + 1)
    weight.register_post_accumulate_grad_hook(halve)
    node = get_gradient_edge(weight).node
    node.register_prehook(lambda gradients: (3 * gradients[0],))
    node.register_prehook(lambda gradients: None)
    cotangent = torch.tensor([1.0, 2.0, 3.0])
    (5 * weight).backward(cotangent)
    assert torch.equal(hooked(registered_hooks(weight))(5 * cotangent), weight.grad)
