"""Torch's own reads of this process's rank that end as plain numbers in a captured graph.

torch makes a graph rank-agnostic by turning DTensor's own coordinate reads into a graph operator. A few places in
DTensor ask for the rank itself; they are found by watching while AOTAutograd traces. See ``observation`` for what the
user's code asks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.fx.traceback
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _tp_conv

from verifycompile.torch_interface.ranks.mesh import coordinate_read_by
from verifycompile.torch_interface.replaced import replaced

_TORCH = Path(torch.__file__).parent
_BENIGN_CALLERS = frozenset(
    {"DeviceMesh._get_mesh_tensor_from_full_mesh", "DeviceMesh.__init__", "_shard_dim_alltoall_meta"}
)
"""Callers of ``get_rank`` whose result is the same on every rank: a rank's submesh out of all submeshes, the shape of a
piece of equal pieces. A mesh that is made while tracing keeps its coordinate, the use of which is watched like that of
any other mesh."""
_CONVOLUTIONS = {"tp_convolution": 4, "tp_convolution_backward": 5}
"""Callers that use the rank only where they exchange borders of images, and which local argument is the padding."""


@dataclasses.dataclass(frozen=True)
class ExportRead:
    """A rank read by torch's own code while it traced ``stack_trace`` (None in a backward pass)."""

    reader: str
    stack_trace: str | None


def _is_compiler_code(code: types.CodeType) -> bool:
    """True for torch outside of torch.distributed: its logs and caches are kept by rank."""
    file = Path(code.co_filename)
    return file.is_relative_to(_TORCH) and not file.is_relative_to(_TORCH / "distributed")


def _ignores_rank(reader: types.FrameType) -> bool:
    """Whether a caller of ``get_rank`` does nothing with it."""
    if reader.f_code.co_qualname in _BENIGN_CALLERS or _is_compiler_code(reader.f_code):
        return True
    position = _CONVOLUTIONS.get(reader.f_code.co_name)
    if position is None or reader.f_code.co_filename != _tp_conv.__file__:
        return False
    padding = reader.f_locals["local_tensor_args"][position]
    return not _tp_conv._requires_data_exchange(padding, reader.f_locals["dim_map"])


@contextlib.contextmanager
def watch_rank_reads() -> Generator[list[ExportRead]]:
    """While entered, list every read of this rank that does not go through the graph's coordinate operator."""
    reads: list[ExportRead] = []

    def note(reader: str) -> None:
        reads.append(ExportRead(reader, torch.fx.traceback.get_current_meta().get("stack_trace")))

    class WatchedCoordinate(tuple[int, ...]):
        __slots__ = ()

        def __getitem__(self, index: Any) -> Any:
            note("coordinate")
            return tuple.__getitem__(self, index)

        def __iter__(self) -> Iterator[int]:
            note("coordinate")
            return tuple.__iter__(self)

    outer = vars(DeviceMesh).get("_coordinate_on_dim")

    def read_coordinate(mesh: DeviceMesh) -> tuple[int, ...] | None:
        held = mesh.__dict__.get("_coordinate_on_dim") if outer is None else outer.__get__(mesh)
        return None if held is None else WatchedCoordinate(held)

    in_group = distributed_c10d._rank_not_in_group

    def rank_not_in_group(group: Any) -> bool:
        caller = sys._getframe(1)
        if caller.f_code.co_name == "get_rank" and caller.f_back is not None:
            if not _ignores_rank(caller.f_back):
                note(caller.f_back.f_code.co_name)
        return in_group(group)

    watched = replaced([(distributed_c10d, "_rank_not_in_group", rank_not_in_group)])
    with watched, coordinate_read_by(read_coordinate):
        yield reads
