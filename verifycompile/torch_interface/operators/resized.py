"""Recorded values of a graph's nodes with other sizes: tensors without memory, symbolic numbers with other numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
import torch.fx
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes


def resized_tensor(recorded: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """A tensor without memory of ``shape`` and the dtype of ``recorded``, its dimensions in memory in the same order.

    A dimension of which ``recorded`` repeats one element repeats one element.
    """
    sizes, recorded_strides = tuple(shape), recorded.stride()
    if not all(isinstance(size, int) for size in (*sizes, *recorded_strides)):
        mode = recorded.fake_mode if isinstance(recorded, FakeTensor) else None
        if mode is None:
            return recorded
        with mode:
            return torch.empty(sizes, dtype=recorded.dtype, device=recorded.device)
    order = sorted(range(len(sizes)), key=lambda dim: (recorded_strides[dim], -dim))
    strides = [0] * len(sizes)
    step = 1
    for dim in order:
        if recorded_strides[dim] == 0 and recorded.shape[dim] > 1:
            continue
        strides[dim] = step
        step *= max(sizes[dim], 1)
    with unset_fake_temporarily():
        return torch.empty_strided(sizes, strides, dtype=recorded.dtype, device="meta")


def resized_number(recorded: Any, size: Callable[[int], int]) -> Any:
    """A symbolic number with ``size`` of each whole number in its expression; any other value as it is."""
    if not isinstance(recorded, torch.SymInt):
        return recorded
    expression = recorded.node.expr
    changes: Mapping[Any, Any] = {
        number: sympy.Integer(size(int(number))) for number in expression.atoms(sympy.Integer) if int(number) > 1
    }
    replaced = expression.xreplace(changes)
    if replaced == expression:
        return recorded
    environment = recorded.node.shape_env
    known = replaced.xreplace(environment.backed_var_to_val)
    return environment.create_symintnode(replaced, hint=int(known) if known.is_Integer else None)


class WithoutMemory:
    """What operators give for tensors without memory; what they create has none either.

    A node among the arguments stands for what is recorded of it. A call that is equal to an earlier one, in all that
    can be seen of a tensor without memory, is not made again.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}
        self._tensors: dict[int, tuple[torch.Tensor, Hashable]] = {}

    def __call__(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        key = (target, self._seen(args), self._seen(kwargs))
        try:
            if key in self._known:
                return self._known[key]
        except TypeError:  # an argument that cannot be compared
            return _called(target, args, kwargs)
        found = self._known[key] = _called(target, args, kwargs)
        return found

    def _seen(self, argument: Any) -> Hashable:
        """An argument with its type, tensors by how they lie in a memory that they do not have."""
        if isinstance(argument, torch.fx.Node):
            argument = argument.meta["val"]
        if isinstance(argument, torch.Tensor):
            if id(argument) not in self._tensors:
                self._tensors[id(argument)] = argument, _seen_of_tensor(argument)
            return self._tensors[id(argument)][1]
        if isinstance(argument, (list, tuple)):
            return type(argument), tuple(map(self._seen, cast("Sequence[Any]", argument)))
        if isinstance(argument, Mapping):
            return tuple((key, self._seen(value)) for key, value in cast("Mapping[str, Any]", argument).items())
        return type(argument), repr(argument) if isinstance(argument, float) else argument


def _called(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    args, kwargs = map_arg((args, kwargs), lambda node: node.meta["val"])
    device = {"device": torch.device("meta")} if "device" in kwargs else {}
    with tracing(None), _disable_current_modes(), torch.no_grad():
        return target(*args, **{**kwargs, **device})


def _seen_of_tensor(tensor: torch.Tensor) -> Hashable:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return object()  # equal to no other
    memory = tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()
    signs = tensor.is_conj(), tensor.is_neg()
    return torch.Tensor, tensor.dtype, tensor.device, tensor.shape, memory, signs
