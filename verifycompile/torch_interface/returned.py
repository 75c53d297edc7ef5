"""Layouts of the tensors that a compiled graph returns, for the graphs that take them after a graph break.

Dynamo hands the tensors over as they are, so that a layout is known by its tensor, as long as that lives. It says
nothing once the tensor was written to. (An attribute of the tensor would be stored along with it by ``torch.save``.)
"""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn
from torch._dynamo.resume_execution import ContinueExecutionCache
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from verifycompile.program import MeshAxis
from verifycompile.torch_interface.closures import closed_over
from verifycompile.torch_interface.dynamo import Frame
from verifycompile.torch_interface.elements import real_tensors


@dataclasses.dataclass(frozen=True)
class ReturnedLayout:
    """``placements`` over ``axes`` of a tensor that a verified graph returned.

    ``mesh``: the mesh of that graph; None where it had none. ``means``: axes over which wrappers take the mean of the
    gradients of the graph's parameters. ``samples``: axes whose ranks hold samples of their own under wrappers.
    """

    axes: tuple[MeshAxis, ...]
    placements: tuple[Placement, ...]
    mesh: DeviceMesh | None = None
    means: frozenset[int] = frozenset()
    samples: frozenset[int] = frozenset()

    @property
    def is_whole(self) -> bool:
        return all(isinstance(placement, Replicate) for placement in self.placements)

    @property
    def is_partial(self) -> bool:
        return any(isinstance(placement, Partial) for placement in self.placements)


@dataclasses.dataclass(frozen=True, eq=False)
class _Kept:
    layout: ReturnedLayout
    version: int
    total: torch.Tensor | None


_KEPT: MutableMapping[torch.Tensor, _Kept] = WeakTensorKeyDictionary()
_PARTS: collections.deque[torch.Tensor] = collections.deque(maxlen=16)
"""Values of the last partial sums, which live no longer where a number was read from them."""
_READABLE = 4096


def keeping_layouts(compiled: Callable[..., Any], layouts: Mapping[int, ReturnedLayout]) -> Callable[..., Any]:
    """``compiled``, which says of its results how they are laid out. ``layouts``: by position.

    A collective that runs outside of graphs may complete a partial sum in place, which torch does not count as a
    write: of such results the sum is kept as well.
    """
    if not layouts:
        return compiled

    def call(*args: Any) -> Any:
        results = compiled(*args)
        for position, layout in layouts.items():
            value = results[position]
            if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
                total = _total(value) if layout.is_partial else None
                if layout.is_partial and value.numel() <= _READABLE:
                    _PARTS.append(value.detach().flatten().clone())
                _KEPT[value] = _Kept(layout, _version(value), total)
        return results

    # Dynamo calls what takes a list of arguments in another way.
    call._boxed_call = getattr(compiled, "_boxed_call", False)  # type: ignore[attr-defined]  # read by torch
    return call


def returned_layout(value: object) -> ReturnedLayout | None:
    """How a verified graph laid the tensor out; None for one that no such graph returned, or that was written to."""
    kept = _KEPT.get(value) if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) else None
    if kept is None or not isinstance(value, torch.Tensor) or _version(value) != kept.version:
        return None
    if kept.total is None:
        return kept.layout
    with real_tensors():
        return kept.layout if torch.equal(kept.total, _total(value)) else None


def held_sum(values: Mapping[str, object]) -> str:
    """The name of what holds a sum of which each rank has a part; "" for nothing. A mean is a rank's own loss."""
    for name, value in values.items():
        for leaf in _held_by(value):
            layout = returned_layout(leaf)
            placements = () if layout is None else layout.placements
            if any(isinstance(item, Partial) and item.reduce_op != "avg" for item in placements):
                return name
    return ""


def _held_by(value: object) -> Iterator[object]:
    """What containers hold, the attributes of modules, and the variables that functions take along."""
    for leaf in tree_leaves(value):
        yield leaf
        if isinstance(leaf, nn.Module):
            yield from tree_leaves(vars(leaf))
        elif isinstance(leaf, types.FunctionType):
            yield from tree_leaves([held for _, held in closed_over(leaf.__code__, leaf.__closure__ or ())])


def parts_that_hold(number: float) -> bool:
    """Whether a partial sum of a graph of the call in progress holds the number; NaN counts as one number."""
    with real_tensors():
        is_nan = number != number  # noqa: PLR0124 - whole numbers may be too great for `math.isnan`
        same = [values.isnan() if is_nan else values == number for values in _PARTS]
        return any(bool(found.any()) for found in same)


def forget_parts() -> None:
    """Another call is compiled from its beginning."""
    _PARTS.clear()


def is_argument_of_resumed(frame: Frame, name: str) -> bool:
    """Whether the function that a frame continues after a graph break has an argument of that name."""
    known: Any = ContinueExecutionCache.generated_code_metadata.get(frame.code)
    if known is None:
        return False
    code = known.code
    return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _total(value: torch.Tensor) -> torch.Tensor:
    return value.detach().sum()


def _version(value: torch.Tensor) -> int:
    return -1 if value.is_inference() else value._version
