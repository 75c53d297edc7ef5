"""Random mistakes in captured graphs. Every edit keeps the shape of each value, so shapes give none of them away."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.fx

from tests.mutants.edits import copy_program
from verifycompile.program import Program

aten = torch.ops.aten
Change = Callable[[random.Random, torch.fx.GraphModule, torch.fx.Node], bool]

SIBLINGS = {
    aten.add.Tensor: aten.sub.Tensor,
    aten.sub.Tensor: aten.add.Tensor,
    aten.mul.Tensor: aten.add.Tensor,
    aten.div.Tensor: aten.mul.Tensor,
    aten.relu.default: aten.tanh.default,
    aten.tanh.default: aten.relu.default,
    aten.silu.default: aten.sigmoid.default,
    aten.sin.default: aten.cos.default,
    aten.cos.default: aten.sin.default,
    aten.amax.default: aten.amin.default,
    aten.tril.default: aten.triu.default,
    aten.lt.Scalar: aten.le.Scalar,
    aten.ge.Scalar: aten.gt.Scalar,
}


def edited(program: Program, seed: int, edits: int = 1) -> Program | None:
    """The program with ``edits`` random mistakes, None where none of the places tried can be changed."""
    choose = random.Random(seed)
    copy, _ = copy_program(program)
    done = 0
    for _ in range(40):
        nodes = [node for node in copy.graph.graph.nodes if node.op == "call_function" and _tensor(node) is not None]
        change = choose.choice((_other_operand, _swapped, _other_number, _sibling, _dropped, _scaled))
        done += change(choose, copy.graph, choose.choice(nodes))
        if done == edits:
            copy.graph.graph.lint()
            returned = copy.graph.graph.output_node().args[0]
            import dataclasses

            outputs = tuple(dataclasses.replace(o, node=returned[o.index]) for o in copy.outputs)
            return dataclasses.replace(copy, outputs=outputs)
    return None


def _tensor(node: object) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _like(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    return left is not None and right is not None and left.shape == right.shape and left.dtype == right.dtype


def _other_operand(choose: random.Random, module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """Another earlier value of the same shape and dtype."""
    positions = [k for k, argument in enumerate(node.args) if _tensor(argument) is not None]
    if not positions:
        return False
    position = choose.choice(positions)
    earlier: list[torch.fx.Node] = []
    for other in module.graph.nodes:
        if other is node:
            break
        if other is not node.args[position] and _like(_tensor(other), _tensor(node.args[position])):
            earlier.append(other)
    if not earlier:
        return False
    node.update_arg(position, choose.choice(earlier))
    return True


def _swapped(choose: random.Random, module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """Two operands of the same shape change places."""
    positions = [k for k, argument in enumerate(node.args) if _tensor(argument) is not None]
    if len(positions) < 2:
        return False
    first, second = choose.sample(positions, 2)
    left, right = node.args[first], node.args[second]
    if left is right or not _like(_tensor(left), _tensor(right)):
        return False
    node.update_arg(first, right)
    node.update_arg(second, left)
    return True


def _other_number(choose: random.Random, module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """A dimension, an offset, a size, a flag or a name of a reduction that is another one."""
    positions = [k for k, a in enumerate(node.args) if isinstance(a, (int, float)) or a in ("sum", "avg", "none")]
    lists = [k for k, a in enumerate(node.args) if isinstance(a, (list, tuple)) and a and isinstance(a[0], int)]
    if not positions and not lists:
        return False
    position = choose.choice([*positions, *lists])
    args = list(node.args)
    args[position] = _changed(choose, args[position])
    if not _same_shape(node, args):
        return False
    node.args = tuple(args)
    return True


def _changed(choose: random.Random, value: object) -> object:
    if isinstance(value, (list, tuple)):
        return choose.sample(list(value), len(value)) if len(value) > 1 else [_changed(choose, value[0])]
    if isinstance(value, str):
        return choose.choice([other for other in ("sum", "avg", "max", "tanh") if other != value])
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value * 2
    return value + choose.choice((-2, -1, 1, 2))  # pyright: ignore[reportOperatorIssue]


def _same_shape(node: torch.fx.Node, args: list[object], target: Callable[..., object] | None = None) -> bool:
    """Whether the call gives a value like the present one; collectives are taken to."""
    called = target or node.target
    if isinstance(called, torch._ops.OpOverload) and called.namespace in ("_c10d_functional", "_dtensor"):
        return any(isinstance(argument, str) for argument in args)
    values = torch.fx.map_arg(tuple(args), lambda n: n.meta["val"])
    try:
        result = called(*values, **torch.fx.map_arg(node.kwargs, lambda n: n.meta["val"]))
    except Exception:  # noqa: BLE001 - torch says in many ways that a call makes no sense
        return False
    return isinstance(result, torch.Tensor) and _like(result, _tensor(node))


def _sibling(choose: random.Random, module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """An operator of the same signature."""
    target = SIBLINGS.get(node.target)
    if target is None or not _same_shape(node, list(node.args), target):
        return False
    node.target = target
    return True


def _dropped(choose: random.Random, module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """The call left out: its users read its operand."""
    operand = next((a for a in node.args if _like(_tensor(a), _tensor(node))), None)
    if operand is None:
        return False
    node.replace_all_uses_with(operand)
    return True


def _scaled(choose: random.Random, module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """Twice the value."""
    value = _tensor(node)
    if value is None or not value.dtype.is_floating_point:
        return False
    with module.graph.inserting_after(node):
        twice = module.graph.call_function(aten.mul.Tensor, (node, 2.0))
    twice.meta = dict(node.meta)
    node.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)
    return True
