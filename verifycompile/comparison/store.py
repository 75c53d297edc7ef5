"""Tensors of a run by name, kept in a file: a comparison holds all tensors of a program, and memory only some."""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping

import torch

_SMALL = 4096
"""Bytes of a tensor up to which it stays in memory, as sparse ones do."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a tensor lies in the file, and what it was."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Store(Mapping[str, torch.Tensor]):
    """Copies of tensors on the CPU; who takes one has it for itself. The file has no name and ends with the store."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor | _Place] = {}
        self._file = tempfile.TemporaryFile(prefix="verifycompile-")  # noqa: SIM115 - it lives as long as the store
        self._end = 0
        weakref.finalize(self, self._file.close)

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        """Keep a copy of ``tensor``. Raises ``OSError`` where there is no room for it."""
        size = tensor.numel() * tensor.element_size()
        if size <= _SMALL or tensor.layout is not torch.strided:
            self._held[name] = tensor.detach().to("cpu", copy=True)
            return
        content = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        self._write(_bytes_of(content))
        self._held[name] = _Place(self._end, tensor.dtype, tuple(tensor.shape))
        self._end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY

    def _write(self, content: memoryview) -> None:
        written = 0
        while written < len(content):
            written += os.pwrite(self._file.fileno(), content[written:], self._end + written)

    def clear(self) -> None:
        """Forget all tensors."""
        self._held.clear()
        self._end = 0
        os.ftruncate(self._file.fileno(), 0)

    def __getitem__(self, name: str) -> torch.Tensor:
        held = self._held[name]
        if isinstance(held, torch.Tensor):
            return held.clone()
        count = math.prod(held.shape)
        size = count * held.dtype.itemsize
        try:
            # Pages of the file, which are copied where they are written to.
            content = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_COPY, offset=held.offset)
        except ValueError as error:
            raise OSError("the file with the tensors of a comparison was cut short") from error
        return torch.frombuffer(content, dtype=held.dtype, count=count).view(held.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, name: object) -> bool:
        return name in self._held


def _bytes_of(value: torch.Tensor) -> memoryview:
    """The memory of a tensor whose elements lie one after the other."""
    return value.flatten().view(torch.uint8).numpy().data
