"""The bytes that a tensor of this process holds."""

from __future__ import annotations

import ctypes

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from verifycompile.torch_interface.operators.elements import constant_value, real_tensors

_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_WORDS = 1024
"""Of eight bytes each, in a row of which the checksum of a large tensor takes a sum."""
_ROWS = 128
"""Are read at once: what is computed of them stays near the processor."""


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Of a DTensor what this process holds of it."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def memory_of(tensor: torch.Tensor) -> int:
    """The memory that a tensor lies in, whatever view of it this is, as ``tensor.data``; 0 for none."""
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return 0


class Place:
    """Where a tensor lies now. Kept is the name of its memory, which no other takes, and not the memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._place = _place(tensor)
        self._name = StorageWeakRef(tensor.untyped_storage()) if self._place else None

    def is_of(self, tensor: torch.Tensor) -> bool:
        return _place(tensor) == self._place


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    memory = memory_of(tensor)
    return (memory, tensor.storage_offset(), tensor.shape, tensor.stride()) if memory else ()


def writes_to(tensor: torch.Tensor) -> int:
    """How often the tensor was written to, as torch counts it: not into ``tensor.data``, nor by other libraries.

    What is written to a DTensor is counted at it, and not at what this process holds of it.
    """
    parts = {id(part): part for part in (tensor, own_part(tensor))}.values()
    return sum(-1 if part.is_inference() else part._version for part in parts)


def real_content(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor with its elements; None where this process cannot read them: fake, without memory, a subclass."""
    real = constant_value(tensor) if isinstance(tensor, FakeTensor) else tensor
    if real is None or type(real) not in _KINDS or real.is_meta or real.layout is not torch.strided:
        return None
    return real.detach()


def content_of(tensor: torch.Tensor, most: int) -> bytes | None:
    """The elements as bytes; of a tensor of more than ``most`` elements as many, at even distances, behind a checksum.

    The checksum is over all elements. None as ``real_content`` says.
    """
    with real_tensors():
        real = real_content(tensor)
        if real is None:
            return None
        flat = real.resolve_conj().resolve_neg().reshape(-1).contiguous()
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        if flat.numel() <= most:
            return _bytes(flat)
        return _checksum(flat) + _bytes(flat[:: -(-flat.numel() // most)])


def _checksum(flat: torch.Tensor) -> bytes:
    """The sum of each row of words, each times the weight of its place, modulo 2 ** 64, and what does not fill a row.

    Words that are exchanged change it, within a row by their weights. Their high halves are added to their low ones
    first: times odd numbers the highest bit, a sign, is the same at every place. Elements are read where they are.
    """
    row = _WORDS * 8 // flat.element_size()
    whole = flat.numel() // row * row
    words = flat[:whole].clone() if flat.storage_offset() * flat.element_size() % 8 else flat[:whole]
    weights = _weights().to(flat.device)
    rows = words.view(torch.int64).reshape(-1, _WORDS).split(_ROWS)
    sums = [(part >> 32).add_(part).mul_(weights).sum(1) for part in rows]
    return b"".join([_bytes(torch.cat(sums)) if sums else b"", _bytes(flat[whole:])])


def _weights() -> torch.Tensor:
    """Odd numbers that look random, the same in every process: multiples of one modulo 2 ** 64, squared."""
    places = torch.arange(1, _WORDS + 1) * 0x1E3779B97F4A7C15
    return (places * places + places) | 1


def _bytes(flat: torch.Tensor) -> bytes:
    flat = flat.cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""
