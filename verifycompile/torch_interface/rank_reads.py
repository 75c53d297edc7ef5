"""Reads of this process's rank that end as plain numbers in a captured graph.

torch makes a graph rank-agnostic by turning DTensor's own coordinate reads into a graph operator. Two kinds of reads
escape: calls in the user's code, which Dynamo folds into constants, and a few places in DTensor that ask for the rank
itself. The first kind is found in the code that Dynamo traced, the second by watching while AOTAutograd traces.
Not found: numbers that the user's program computed from its rank before the traced call (``self.start = rank * n``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import re
import sys
import types
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.fx.traceback
from torch._guards import TracingContext
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _tp_conv

_TORCH = Path(torch.__file__).parent
_READERS = frozenset({"get_rank", "get_local_rank", "get_group_rank", "get_node_local_rank", "get_coordinate"})
_VARIABLE = re.compile(r"\w*(?:RANK|PROCID)")
"""Environment variables in which launchers tell a process its number."""
_BENIGN_CALLERS = frozenset(
    {"DeviceMesh._get_mesh_tensor_from_full_mesh", "DeviceMesh.__init__", "_shard_dim_alltoall_meta"}
)
"""Callers of ``get_rank`` whose result is the same on every rank: a rank's submesh out of all submeshes, the shape of a
piece of equal pieces. A mesh that is made while tracing keeps its coordinate, the use of which is watched like that of
any other mesh."""
_CONVOLUTIONS = {"tp_convolution": 4, "tp_convolution_backward": 5}
"""Callers that use the rank only where they exchange borders of images, and which local argument is the padding."""


@dataclasses.dataclass(frozen=True)
class CodeRead:
    """A call of ``name`` in traced Python code, somewhere in ``function`` of ``file`` at ``line``."""

    file: str
    line: int
    function: str
    name: str


@dataclasses.dataclass(frozen=True)
class ExportRead:
    """A rank read by torch's own code while it traced ``stack_trace`` (None in a backward pass)."""

    reader: str
    stack_trace: str | None


def reads_in_traced_code(context: TracingContext) -> tuple[CodeRead, ...]:
    """Rank reads in the functions that Dynamo traced, the inlined ones included."""
    return reads_in_code(dict.fromkeys(context.traced_code))


def guarded_sources(context: TracingContext) -> tuple[str, ...]:
    """Dynamo's expressions for what it read from outside of the traced code, as ``L['self'].rank``."""
    names = (guard.originating_source.name for guard in context.guards_context.dynamo_guards)
    return tuple(sorted({name for name in names if "__import_torch" not in name}))


def is_rank_reader(value: object) -> bool:
    """Whether ``value`` is one of torch's functions that return a rank."""
    name = getattr(value, "__name__", "")
    module = str(getattr(value, "__module__", None) or "")
    return callable(value) and name in _READERS and module.startswith("torch.distributed")


def reads_in_code(codes: Iterable[types.CodeType]) -> tuple[CodeRead, ...]:
    """Calls of functions that return a rank, by name."""
    found: dict[CodeRead, None] = {}
    for code in codes:
        names = set(code.co_names)
        if names & {"environ", "getenv"} and not _is_compiler_code(code):
            for constant in code.co_consts:
                if isinstance(constant, str) and _VARIABLE.fullmatch(constant):
                    name = f"os.environ['{constant}']"
                    found[CodeRead(code.co_filename, code.co_firstlineno, code.co_name, name)] = None
        if not names & _READERS and "rank" not in names:
            continue
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            line = instruction.positions.lineno or line if instruction.positions is not None else line
            if _is_read(instruction):
                found[CodeRead(code.co_filename, line, code.co_name, str(instruction.argval))] = None
    return tuple(found)


def _is_read(instruction: dis.Instruction) -> bool:
    if instruction.opname not in ("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
        return False
    if instruction.argval in _READERS:
        return True
    # `group.rank()` is a read, an attribute that is called `rank` need not be one.
    is_method = instruction.opname == "LOAD_METHOD" or "NULL|self" in instruction.argrepr
    return instruction.argval == "rank" and is_method


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

    def write_coordinate(mesh: DeviceMesh, value: tuple[int, ...] | None) -> None:
        vars(mesh)["_coordinate_on_dim"] = value

    in_group = distributed_c10d._rank_not_in_group

    def rank_not_in_group(group: Any) -> bool:
        caller = sys._getframe(1)
        if caller.f_code.co_name == "get_rank" and caller.f_back is not None:
            if not _ignores_rank(caller.f_back):
                note(caller.f_back.f_code.co_name)
        return in_group(group)

    distributed_c10d._rank_not_in_group = rank_not_in_group
    DeviceMesh._coordinate_on_dim = property(read_coordinate, write_coordinate)  # type: ignore[attr-defined]
    try:
        yield reads
    finally:
        distributed_c10d._rank_not_in_group = in_group
        if outer is None:
            del DeviceMesh._coordinate_on_dim  # type: ignore[attr-defined]
        else:
            DeviceMesh._coordinate_on_dim = outer  # type: ignore[attr-defined]
