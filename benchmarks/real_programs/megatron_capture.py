"""One rank's step of a megatron module as a graph: the result, and the gradients of parameters and inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module

from benchmarks.real_programs.megatron_world import forget_buffers

Inputs = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Captured:
    """``inputs``: sizes by name of placeholder. ``differentiated``: those with a gradient, in the order of the outputs.

    ``added_later``: parameters that the layer marks, whose gradients are added outside of it.
    """

    graph: torch.fx.GraphModule
    result: torch.Size
    inputs: Mapping[str, torch.Size]
    differentiated: tuple[str, ...]
    added_later: frozenset[str]


def capture(module: nn.Module, inputs: Inputs) -> Captured:
    """The step of this rank."""
    parameters = dict(module.named_parameters())
    arguments: Inputs = {**parameters, **inputs}
    differentiated = [name for name, value in arguments.items() if value.is_floating_point()]

    def forward(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        own = {name: values[name] for name in parameters}
        given = {name: values[name] for name in inputs}
        with _reparametrize_module(module, own):
            result = module(**given)
        if not isinstance(result, tuple):
            return result
        value, bias = result
        return value if bias is None or bias.ndim != 1 else value + bias

    def run(*flat: torch.Tensor) -> list[torch.Tensor]:
        values = {
            name: value.detach().requires_grad_(name in differentiated)
            for name, value in zip(arguments, flat[:-1], strict=True)
        }
        # Megatron's loss overwrites its input: a leaf must not be.
        used = {
            name: value * 1 if name in inputs and name in differentiated else value for name, value in values.items()
        }
        result = forward(used)
        gradients = torch.autograd.grad(result, [values[name] for name in differentiated], flat[-1])
        return [result.detach(), *gradients]

    with torch.no_grad():
        shape = forward({name: value.clone() for name, value in arguments.items()}).shape
    forget_buffers()
    graph = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments.values(), torch.randn(shape))
    placeholders = graph.graph.find_nodes(op="placeholder")
    names = [name.replace(".", "_") for name in (*arguments, "cotangent")]
    for node, name in zip(placeholders, names, strict=True):
        node.name = node.target = name
    graph.recompile()
    marked = (name for name, value in parameters.items() if getattr(value, "sequence_parallel", False))
    return Captured(
        graph,
        shape,
        {name: node.meta["val"].shape for name, node in zip(names, placeholders, strict=True)},
        tuple(name.replace(".", "_") for name in differentiated),
        frozenset(name.replace(".", "_") for name in marked),
    )
