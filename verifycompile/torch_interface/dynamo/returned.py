"""Layouts of the tensors that a compiled graph returns, for the graphs that take them after a graph break.

Dynamo hands the tensors over as they are, so that a layout is known by its tensor, as long as that lives. It says
nothing once the tensor was written to. (An attribute of the tensor would be stored along with it by ``torch.save``.)
"""

from __future__ import annotations

import dataclasses
import gc
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch._dynamo.resume_execution import ContinueExecutionCache
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate
from torch.utils.weak import WeakTensorKeyDictionary

from verifycompile.program import MeshAxis
from verifycompile.torch_interface.dynamo.closures import globals_named, taken_along
from verifycompile.torch_interface.dynamo.frames import Frame
from verifycompile.torch_interface.operators.contents import writes_to
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.torch_interface.source_lines.source import is_user_class, is_user_file


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
    def is_part_of_sum(self) -> bool:
        return any(isinstance(item, Partial) and item.reduce_op != "avg" for item in self.placements)

    @property
    def is_partial(self) -> bool:
        return any(isinstance(placement, Partial) for placement in self.placements)


@dataclasses.dataclass(frozen=True, eq=False)
class _Kept:
    layout: ReturnedLayout
    version: int
    total: torch.Tensor | None


_KEPT: MutableMapping[torch.Tensor, _Kept] = WeakTensorKeyDictionary()
_RANKS: MutableMapping[torch.Tensor, tuple[int, ...]] = WeakTensorKeyDictionary()
"""The ranks that ran together what returned a tensor."""
_GRAPHS: MutableMapping[torch.Tensor, tuple[str, int]] = WeakTensorKeyDictionary()
"""What is said of the graph of which nothing was asked that returned a tensor, and the writes to the tensor by then."""


def keeping_layouts(
    compiled: Callable[..., Any], layouts: Mapping[int, ReturnedLayout], ranks: tuple[int, ...]
) -> Callable[..., Any]:
    """``compiled``, which says of its results how they are laid out. ``layouts``: by position.

    ``ranks``: those that run it together.

    A collective that runs outside of graphs may complete a partial sum in place, which torch does not count as a
    write: of such results the sum is kept as well.
    """
    if not layouts and len(ranks) == 1:
        return compiled

    def call(*args: Any) -> Any:
        results = compiled(*args)
        if len(ranks) > 1:
            _RANKS.update((value, ranks) for value in results if isinstance(value, torch.Tensor))
        for position, layout in layouts.items():
            value = results[position]
            if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
                total = _total(value) if layout.is_partial else None
                _KEPT[value] = _Kept(layout, writes_to(value), total)
        return results

    return _called_like(compiled, call)


def telling(compiled: Callable[..., Any], said: str) -> Callable[..., Any]:
    """``compiled``, whose results are known as those of a graph of which ``said`` is said."""

    def call(*args: Any) -> Any:
        results = compiled(*args)
        _GRAPHS.update((value, (said, writes_to(value))) for value in results if isinstance(value, torch.Tensor))
        return results

    return _called_like(compiled, call)


def graph_that_returned(value: torch.Tensor) -> str:
    """What is said of the graph that returned the tensor; "" where nothing is, or it was written to."""
    said, writes = _GRAPHS.get(value, ("", 0))
    return said if writes == writes_to(value) else ""


def called_between(
    compiled: Callable[..., Any], before: Callable[[Sequence[Any]], None], after: Callable[[Sequence[Any]], None]
) -> Callable[..., Any]:
    """``compiled``, whose arguments ``before`` gets first, and ``after`` once it has run.

    It stands for torch's own code around a graph: code elsewhere in this package would be told as the user's.
    """

    def call(*args: Any) -> Any:
        before(args)
        results = compiled(*args)
        after(args)
        return results

    return _called_like(compiled, call)


def _called_like(compiled: Callable[..., Any], call: Any) -> Callable[..., Any]:
    """``call``, in place of ``compiled``: Dynamo calls what takes a list of arguments in another way."""
    call._boxed_call = getattr(compiled, "_boxed_call", False)
    return call


def returned_layout(value: object) -> ReturnedLayout | None:
    """How a verified graph laid the tensor out; None for one that no such graph returned, or that was written to."""
    kept = _KEPT.get(value) if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) else None
    if kept is None or not isinstance(value, torch.Tensor) or writes_to(value) != kept.version:
        return None
    if kept.total is None:
        return kept.layout
    with real_tensors():
        return kept.layout if torch.equal(kept.total, _total(value)) else None


def ranks_before(values: Iterable[object]) -> tuple[int, ...]:
    """The ranks that ran together the compiled graphs that returned ``values``; empty where none of them did."""
    found = (_RANKS.get(value, ()) for value in values if isinstance(value, torch.Tensor))
    return tuple(sorted({rank for ranks in found for rank in ranks}))


def held_sum(values: Callable[[], Iterable[tuple[str, object]]]) -> str:
    """The name of what holds a sum of which each rank has a part; "" for nothing. A mean is a rank's own loss.

    ``values``: names and values, asked for where there is such a sum at all.
    """
    kept = {id(value) for value, known in list(_KEPT.items()) if known.layout.is_part_of_sum}
    if not kept:
        return ""
    for name, value in values():
        for held in _held_by(value):
            layout = returned_layout(held) if id(held) in kept else None
            if layout is not None and layout.is_part_of_sum:
                return name
    return ""


def _held_by(value: object) -> Iterator[object]:
    """All that code may reach from a value: items, attributes, and what the user's functions and classes name."""
    seen = set[int]()
    left = [value]
    while left:
        held = left.pop()
        if id(held) in seen or isinstance(held, types.ModuleType | types.BuiltinFunctionType):
            continue
        seen.add(id(held))
        yield held
        if isinstance(held, torch.Tensor):
            left += vars(held).values()
        elif isinstance(held, types.FunctionType):
            left += taken_along(held)
            left += globals_named(held) if is_user_file(held.__code__.co_filename) else ()
        elif isinstance(held, type):
            left += vars(held).values() if is_user_class(held) else ()
        else:
            left += gc.get_referents(held)


def is_argument_of_resumed(frame: Frame, name: str) -> bool:
    """Whether the function that a frame continues after a graph break has an argument of that name."""
    known: Any = ContinueExecutionCache.generated_code_metadata.get(frame.code)
    if known is None:
        return False
    code = known.code
    return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _total(value: torch.Tensor) -> torch.Tensor:
    return value.detach().sum()
