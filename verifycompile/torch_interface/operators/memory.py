"""Tensors that lie in one memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from verifycompile.torch_interface.operators.contents import own_part
from verifycompile.torch_interface.operators.elements import real_tensors

_LISTED = 1 << 22
"""Elements whose places are written out; tensors with gaps and more elements share memory if they begin together."""


def sharing(tensors: Mapping[str, torch.Tensor]) -> frozenset[tuple[str, str]]:
    """The pairs of names of which an element (of the shard) of one tensor lies where one of the other does."""
    stored: dict[int, list[tuple[int, int, str, torch.Tensor]]] = {}
    for name, tensor in tensors.items():
        local = own_part(tensor)
        if local.layout is torch.strided and local.numel():
            storage = local.untyped_storage()._cdata
            stored.setdefault(storage, []).append((*_extent(local), name, local))
    return frozenset(pair for items in stored.values() for pair in _overlapping(items))


def _overlapping(items: list[tuple[int, int, str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    items.sort(key=lambda item: item[:3])
    for position, (_, stop, name, tensor) in enumerate(items):
        for start, _, other_name, other in items[position + 1 :]:
            if start >= stop:
                break
            if _overlap(tensor, other):
                yield (name, other_name) if name < other_name else (other_name, name)


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of one storage share an element, where their extents do."""
    if (_is_dense(first) and _is_dense(second)) or _extent(first)[0] == _extent(second)[0]:
        return True
    if max(first.numel(), second.numel()) > _LISTED:
        return False
    with real_tensors():
        return bool(torch.isin(_places(first), _places(second)).any())


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes from the first element to behind the last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    return int(tensor.storage_offset()) * tensor.element_size(), int(last + 1) * tensor.element_size()


def _is_dense(tensor: torch.Tensor) -> bool:
    start, stop = _extent(tensor)
    return stop - start == math.prod(tensor.shape) * tensor.element_size()


def _places(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes at which the elements begin."""
    places = torch.tensor(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places.flatten() * tensor.element_size()
