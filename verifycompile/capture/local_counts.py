"""Local counts: integers that a parallelization plan divided by the number of ranks, as ``attention.n_heads //= tp``.

The whole tensors of a recovered spec need the undivided number. No record of it exists, so it is guessed and checked:
where the user's code splits a dimension in a view, only the outermost part may differ between the spec and a rank,
because a shard is a contiguous block. Every guess taken is an assumption of the spec.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.distributed.tensor import DTensor

from verifycompile.torch_interface.placements import sharded_dimension
from verifycompile.torch_interface.source import location_of

_COUNT = re.compile(r"(heads?|experts?|groups?)($|_)")
_EXTENT = re.compile(r"dim|size|width|features|len")
_ATTEMPTS = 12


@dataclasses.dataclass(frozen=True)
class ScaledCount:
    """Multiply the integer attribute ``attribute`` of every module of class ``owner`` by ``factor``."""

    owner: type[nn.Module]
    attribute: str
    factor: int

    def describe(self) -> str:
        return (
            f"`{self.attribute}` of {self.owner.__name__} is a count per rank; the spec has {self.factor} times as many"
        )


Scaling = tuple[ScaledCount, ...]


def scalings(modules: Sequence[nn.Module]) -> Iterator[Scaling]:
    """Guesses, likeliest first, beginning with none: all counts by name, then each single one, then pairs."""
    yield ()
    candidates = _candidates(modules)
    likely = tuple(item for item in candidates if _COUNT.search(item.attribute) and not _EXTENT.search(item.attribute))
    tried: set[Scaling] = {()}
    guesses = itertools.chain(
        _consistent([likely]),
        _consistent(itertools.combinations(candidates, 1)),
        _consistent(itertools.combinations(candidates, 2)),
    )
    for guess in guesses:
        if guess not in tried and len(tried) <= _ATTEMPTS:
            tried.add(guess)
            yield guess


def _consistent(guesses: Any) -> Iterator[Scaling]:
    """Each guess once a factor, without those that scale one attribute twice."""
    for guess in guesses:
        for factor in sorted({item.factor for item in guess}):
            yield tuple(item for item in guess if item.factor == factor)


def _candidates(modules: Sequence[nn.Module]) -> tuple[ScaledCount, ...]:
    found: dict[ScaledCount, None] = {}
    for module in modules:
        kind = type(module)
        if kind.__module__.startswith("torch.nn"):
            continue
        factors = _shard_factors(module)
        for attribute, value in vars(module).items():
            if type(value) is int and value > 0 and not attribute.startswith("_"):
                for factor in factors:
                    found[ScaledCount(kind, attribute, factor)] = None
    return tuple(found)


def _shard_factors(module: nn.Module) -> tuple[int, ...]:
    """Sizes of the mesh axes that shard a parameter of the module or of its direct children."""
    factors: set[int] = set()
    for owner in (module, *module.children()):
        for parameter in owner.parameters(recurse=False):
            if isinstance(parameter, DTensor):
                sizes = parameter.device_mesh.mesh.shape
                factors.update(
                    size
                    for size, item in zip(sizes, parameter.placements, strict=True)
                    if sharded_dimension(item) is not None
                )
    return tuple(sorted(factors - {1}))


def splits_agree(spec: torch.fx.GraphModule, implementation: torch.fx.GraphModule) -> bool:
    """True where every view that splits a dimension differs between the two Dynamo graphs in outermost parts only."""
    ours = _views(implementation)
    theirs = _views(spec)
    for key, shapes in theirs.items():
        for (source, target), (_, local_target) in zip(shapes, ours.get(key, []), strict=False):
            if len(target) != len(local_target) or not _outermost_only(source, target, local_target):
                return False
    return True


def _views(graph: torch.fx.GraphModule) -> dict[tuple[str, int], list[tuple[tuple[Any, ...], tuple[Any, ...]]]]:
    """User line -> (shape before, shape after) of the views made there, in order."""
    views: dict[tuple[str, int], list[tuple[tuple[Any, ...], tuple[Any, ...]]]] = {}
    for node in graph.graph.nodes:
        is_view = (node.op == "call_method" and node.target in ("view", "reshape", "unflatten")) or (
            node.op == "call_function" and node.target in (torch.reshape, torch.unflatten)
        )
        if not is_view or not node.args or not isinstance(node.args[0], torch.fx.Node):
            continue
        source, target = node.args[0].meta.get("example_value"), node.meta.get("example_value")
        location = location_of(node)
        if isinstance(source, torch.Tensor) and isinstance(target, torch.Tensor) and location is not None:
            views.setdefault((location.file, location.line), []).append((tuple(source.shape), tuple(target.shape)))
    return views


def _outermost_only(source: tuple[Any, ...], target: tuple[Any, ...], local_target: tuple[Any, ...]) -> bool:
    if not all(isinstance(size, int) for size in (*source, *target, *local_target)):
        return True
    boundaries = set(itertools.accumulate(source, lambda product, size: product * size))
    product = 1
    for size, local in zip(target, local_target, strict=True):
        starts_part = product in boundaries or product == 1
        if size != local and not starts_part:
            return False
        product *= size
    return True
