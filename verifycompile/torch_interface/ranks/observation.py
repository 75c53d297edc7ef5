"""What code outside of torch asked torch and the launcher's environment about this process: its rank, and the degree.

``observed_readers`` wraps the lowest functions that every such question goes through. The asker is the nearest frame
outside of torch's own readers; where that is torch or this package, nobody asked. While Dynamo traces it folds such
calls, and the asker is the line that it traces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import os
import sys
import types
import weakref
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._guards import TracingContext
from torch.distributed import device_mesh, distributed_c10d

from verifycompile.torch_interface.source_lines.whose_code import (
    OWN,
    TORCH,
    Asker,
    Owner,
    callers,
    is_imported_by_torch,
    is_installed,
    is_of_torch,
    owner_of,
)

ENVIRONMENT = "os.environ"
NUMBER_OF_DEVICE = "device.index"
_OF_DEVICES = (NUMBER_OF_DEVICE, "current_device", "current_device_index", "current_device_idx")
"""Readers of the number of the device that computes: jobs set it to the process's number on its machine."""


class ReadKind(enum.Enum):
    """``DEGREE``: how many processes there are, in the job, in a group or on a mesh, and whether there is a job."""

    RANK = "rank"
    DEGREE = "degree"


@dataclasses.dataclass(frozen=True)
class Read:
    """One question. ``installed``: asked by an installed package or the standard library, not by the user's own code.

    ``traced``: asked while Dynamo traced, or by what a compilation called. ``askers``: the user's code that asked, and
    what called it, the nearest first. ``inside``: where in torch's code, which may look several times for one.
    ``holder``: what may still hold the answer, in words.
    """

    kind: ReadKind
    reader: str
    file: str
    line: int
    function: str
    moment: int
    installed: bool
    traced: bool = False
    askers: tuple[Asker, ...] = dataclasses.field(default=(), compare=False, repr=False)
    inside: tuple[int, ...] = ()
    holder: str = ""

    @property
    def is_of_this_process(self) -> bool:
        """Whether a variable or the number of a device was read, of which nobody here knows what other ranks have."""
        return self.reader.startswith(ENVIRONMENT) or self.reader in _OF_DEVICES

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    def __str__(self) -> str:
        return f"`{self.reader}` in `{self.function}` ({self.place})"


_SHOWN = 3
"""So many places are named in a sentence."""


def listed_places(places: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(places) - _SHOWN
    return ", ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def begin() -> bool:
    """Note what is asked from now on; whether it is the first call, so that nothing that answers is wrapped yet."""
    is_first = not _LOG.active
    if is_first:
        _LOG.active = True
        _LOG.whole_job = not dist.is_initialized()
    return is_first


def moment() -> int:
    """A number that grows with every observation, and with every call of this function."""
    return next(_LOG.moments)


def forget_reads() -> None:
    """What was asked so far belongs to a job that has ended."""
    _LOG.forget()


def forget_job() -> None:
    """The job has ended: no question of the next one is missed."""
    _LOG.whole_job = True
    forget_reads()


def was_before_degree(module: str, name: str, value: int) -> bool:
    """Whether a module had this number under this name when the user's code first asked for a degree, or none asked.

    ``name``: of a variable, or of a default argument: ``rotate.__defaults__.0``.
    """
    return _LOG.early_numbers is None or _LOG.early_numbers.get((module, name)) == value


def has_asked_for_degree() -> bool:
    """Whether the user's code asked for a degree outside of traces."""
    return _LOG.early_numbers is not None


def observes_whole_job() -> bool:
    """Whether the package was active before the process group was made: no question of the job was missed."""
    return _LOG.whole_job


def reads(kind: ReadKind | None = None) -> tuple[Read, ...]:
    """What code outside of torch asked since the package became active and the job began, in order."""
    return tuple(read for read in _LOG.reads() if kind is None or read.kind is kind)


def answers_given() -> tuple[Read, ...]:
    """What the user's code asked about the rank outside of traces, and what it asked where nothing was recorded."""
    asked = (*reads(ReadKind.RANK), *_LOG.ignored.values())
    return tuple(read for read in asked if not read.traced and not read.installed)


def reads_of_trace(context: TracingContext, kind: ReadKind) -> tuple[Read, ...]:
    """What was asked while ``context`` was traced; code of torch that Dynamo traced counts here, its own does not."""
    found = dict.fromkeys(read for read in _LOG.by_trace.get(context, ()) if read.kind is kind)
    return tuple({(read.reader, read.file, read.line): read for read in found}.values())


@contextlib.contextmanager
def listed_reads() -> Generator[list[Read]]:
    """While entered, everything that is asked is in the list as well, by code of torch that Dynamo traces too."""
    found: list[Read] = []
    _LOG.listeners.append(found)
    try:
        yield found
    finally:
        _LOG.listeners[:] = [other for other in _LOG.listeners if other is not found]


@contextlib.contextmanager
def first_call_of_build(asked: Sequence[Read]) -> Generator[None]:
    """While entered, the model is the one that ``build`` made while it asked ``asked``."""
    before, _LOG.of_first_build = _LOG.of_first_build, tuple(asked)
    try:
        yield
    finally:
        _LOG.of_first_build = before


def asked_by_first_build() -> tuple[Read, ...]:
    """What was asked while ``build`` made the model that is captured; nothing where it did not make it."""
    return _LOG.of_first_build


@contextlib.contextmanager
def rank_reads_ignored() -> Generator[None]:
    """While entered, no question about the rank is recorded: what is asked is of no other object than those made."""
    before, _LOG.ignores_rank = _LOG.ignores_rank, True
    try:
        yield
    finally:
        _LOG.ignores_rank = before


_KEPT = 4096
"""Reads of one line of code that are kept: a training loop asks for its rank without end."""


class _Log:
    def __init__(self) -> None:
        self.active = False
        self.whole_job = False
        self.ignores_rank = False
        self.listeners: list[list[Read]] = []
        self.of_first_build: tuple[Read, ...] = ()
        self.moments = itertools.count(1)
        self.by_place: dict[tuple[str, str, int, bool], list[Read]] = {}
        self.ignored: dict[tuple[str, str, int], Read] = {}
        self.by_trace: weakref.WeakKeyDictionary[TracingContext, list[Read]] = weakref.WeakKeyDictionary()
        self.early_numbers: dict[tuple[str, str], int] | None = None

    def reads(self) -> list[Read]:
        return sorted((read for kept in self.by_place.values() for read in kept), key=lambda read: read.moment)

    def add(
        self, read: Read, context: TracingContext | None, *, by_torch: bool = False, is_acted: bool = False
    ) -> None:
        for listener in self.listeners:
            listener.append(read)
        if is_acted:
            return
        if context is not None:
            self.by_trace.setdefault(context, []).append(read)
        if by_torch:
            return
        if self.ignores_rank and read.kind is ReadKind.RANK:
            self.ignored[read.reader, read.file, read.line] = read
            return
        kept = self.by_place.setdefault((read.reader, read.file, read.line, read.traced), [])
        if len(kept) == _KEPT:
            kept.pop()
        kept.append(read)

    def forget(self) -> None:
        self.by_place.clear()
        self.ignored.clear()
        self.early_numbers = None


_LOG = _Log()
_READERS = {
    distributed_c10d.__file__: frozenset(
        {
            "get_rank",
            "get_group_rank",
            "get_node_local_rank",
            "get_world_size",
            "get_process_group_ranks",
            "get_global_rank",
            "is_initialized",
            "_get_group_size",
            "_get_group_size_by_name",
            "_rank_not_in_group",
            "_get_default_group",
        }
    ),
    f"{TORCH}distributed{os.sep}tensor{os.sep}_utils.py": frozenset(
        {"compute_local_shape_and_global_offset", "_compute_local_shape_and_global_offset"}
    ),
    f"{TORCH}distributed{os.sep}tensor{os.sep}_dtensor_spec.py": frozenset({"num_shards", "num_shards_map"}),
    f"{TORCH}distributed{os.sep}elastic{os.sep}utils{os.sep}api.py": frozenset({"get_env_variable_or_raise"}),
    torch.cuda.__file__: frozenset(_OF_DEVICES),
    torch.accelerator.__file__: frozenset(_OF_DEVICES),
    device_mesh.__file__: frozenset(
        {
            "size",
            "shape",
            "__repr__",
            "ndim",
            "mesh",
            "get_rank",
            "get_local_rank",
            "get_coordinate",
            "_compute_coordinate_on_dim",
            "_sym_get_coordinate",
            "_is_current_rank_part_of_mesh",
            "_get_mesh_tensor_from_full_mesh",
        }
    ),
}
_OF_THE_RANK = frozenset(
    {"get_rank", "get_group_rank", "get_global_rank", "get_local_rank", "get_coordinate", "_compute_coordinate_on_dim"}
)
"""Readers of the rank, which ask for the degree as well in order to answer."""
THROUGH = frozenset(
    {os.__file__, sys.modules["_collections_abc"].__file__, "<frozen os>", "<frozen _collections_abc>"}
    | {__file__, *(str(Path(__file__).with_name(name)) for name in ("observed_readers.py", "rank_reads.py"))}
)
"""Files of the functions through which the environment is read, and of those that watch."""


KEPT_BY_MESHES = {
    "_coordinate_on_dim": ReadKind.RANK,
    "_rank": ReadKind.RANK,
    "_rank_map": ReadKind.DEGREE,
    "_flatten_rank_map": ReadKind.DEGREE,
    "_layout": ReadKind.DEGREE,
}
"""Attributes of a mesh, which code may read past its methods."""


def is_reader(code: types.CodeType) -> bool:
    names = _READERS.get(code.co_filename)
    return (names is not None and code.co_name in names) or code.co_filename in THROUGH


def note(kind: ReadKind, reader: str, caller: types.FrameType | None, *, is_acted: bool = False) -> None:
    """Add to the log that ``reader`` was called by ``caller``, or by what called the reader that ``caller`` is.

    ``is_acted``: as another rank than this process's, which is told to those who listen alone.
    """
    outermost, inside = reader, list[int]()
    while caller is not None and is_reader(caller.f_code):
        inside.append(caller.f_lasti)
        if caller.f_code.co_filename not in THROUGH:
            outermost = caller.f_code.co_name
        caller = caller.f_back
    if caller is None or (kind is ReadKind.DEGREE and outermost in _OF_THE_RANK):
        return
    where = owner_of(caller)
    if where is Owner.DYNAMO:
        if not is_acted:
            note_traced(kind, outermost)
    elif where is not Owner.TORCH and not is_imported_by_torch(caller):
        code = caller.f_code
        context = TracingContext.try_get()
        read = Read(
            kind=kind,
            reader=outermost,
            file=code.co_filename,
            line=caller.f_lineno,
            function=code.co_name,
            moment=moment(),
            installed=where is Owner.INSTALLED,
            traced=context is not None,
            askers=callers(caller) if context is None else (),
            inside=tuple(inside),
        )
        if kind is ReadKind.DEGREE and not read.installed and not read.traced and _LOG.early_numbers is None:
            _LOG.early_numbers = dict(_numbers_of_modules())
        _LOG.add(read, context, is_acted=is_acted)


def note_acted(reader: str, caller: types.FrameType) -> None:
    """Tell those who listen that the rank was asked for outside of traces while another one is acted."""
    if _LOG.listeners:
        note(ReadKind.RANK, reader, caller, is_acted=True)


def _numbers_of_modules() -> Iterator[tuple[tuple[str, str], int]]:
    """The whole numbers that modules hold, and the defaults of their functions, by the names of module and variable."""
    for module, held in tuple(sys.modules.items()):
        if not isinstance(getattr(held, "__file__", None), str):
            continue
        for name, value in tuple(vars(held).items()):
            if type(value) is int:
                yield (module, name), value
            elif type(value) is types.FunctionType:
                for position, default in enumerate(value.__defaults__ or ()):
                    if type(default) is int:
                        yield (module, f"{name}.__defaults__.{position}"), default


def note_traced(kind: ReadKind, reader: str, *, by_torch_too: bool = True) -> None:
    """Add to the log that the code which Dynamo traces called ``reader``. ``by_torch_too``: torch's own code counts."""
    context = TracingContext.try_get()
    if context is None:
        return
    # Dynamo is imported where something is compiled, not by `import torch`.
    translator: Any = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator.current_tx()
    while translator is not None and is_reader(translator.f_code):
        reader = str(translator.f_code.co_name)
        translator = getattr(translator, "parent", None)
    if translator is None or (is_of_torch(translator.f_code.co_filename) and not by_torch_too):
        return
    code = cast(types.CodeType, translator.f_code)
    read = Read(
        kind=kind,
        reader=reader,
        file=code.co_filename,
        line=int(translator.lineno),
        function=code.co_name,
        moment=moment(),
        installed=is_installed(code.co_filename),
        traced=True,
    )
    is_own = str(translator.f_globals.get("__name__", "")).partition(".")[0] == OWN
    _LOG.add(read, context, by_torch=is_own or is_of_torch(code.co_filename))
