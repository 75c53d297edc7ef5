"""What code outside of torch asked torch and the launcher's environment about this process: its rank, and the degree.

The lowest functions that every such question goes through are wrapped, so that one whose reader was imported before is
seen too. Wrapping changes no answer. The asker is the nearest frame outside of torch's own readers; where that is torch
or this package, nobody asked. While Dynamo traces it folds such calls, and the asker is the line that it traces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import itertools
import os
import sys
import types
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch._C._dynamo import eval_frame
from torch._guards import TracingContext
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

_ENVIRONMENT = "os.environ"
NUMBER_OF_DEVICE = "device.index"
_OF_DEVICES = (NUMBER_OF_DEVICE, "current_device", "current_device_index", "current_device_idx")
"""Readers of the number of the device that computes: jobs set it to the process's number on its machine."""


class ReadKind(enum.Enum):
    """``DEGREE``: how many processes there are, in the job, in a group or on a mesh, and whether there is a job."""

    RANK = "rank"
    DEGREE = "degree"


@dataclasses.dataclass(frozen=True, eq=False)
class Asker:
    """Code that asked, or that called what asked, at ``offset`` of its instructions. ``names``: its globals.

    ``is_direct``: the user's code called it, not that of torch or a package.
    """

    code: types.CodeType
    offset: int
    names: dict[str, Any]
    is_direct: bool

    def is_at(self, other: Asker) -> bool:
        """Whether both are of the same code at the same instruction."""
        return self.code is other.code and self.offset == other.offset and self.names is other.names


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
        return self.reader.startswith(_ENVIRONMENT) or self.reader in _OF_DEVICES

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


def activate() -> None:
    """Observe from now on. Calling it again changes nothing."""
    if not _LOG.active:
        _LOG.active = True
        _LOG.whole_job = not dist.is_initialized()
        _wrap_readers()


def moment() -> int:
    """A number that grows with every observation, and with every call of this function."""
    return next(_LOG.moments)


def forget_reads() -> None:
    """What was asked so far belongs to a job that has ended."""
    _LOG.forget()


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


class _Where(enum.Enum):
    """Whose code a file is."""

    USER = enum.auto()
    INSTALLED = enum.auto()
    TORCH = enum.auto()
    DYNAMO = enum.auto()
    """Where Dynamo computes what traced code computes."""


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
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_FOLDING = f"{_TORCH}_dynamo{os.sep}variables{os.sep}"
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OWN = __name__.partition(".")[0]
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
    f"{_TORCH}distributed{os.sep}tensor{os.sep}_utils.py": frozenset(
        {"compute_local_shape_and_global_offset", "_compute_local_shape_and_global_offset"}
    ),
    f"{_TORCH}distributed{os.sep}tensor{os.sep}_dtensor_spec.py": frozenset({"num_shards", "num_shards_map"}),
    f"{_TORCH}distributed{os.sep}elastic{os.sep}utils{os.sep}api.py": frozenset({"get_env_variable_or_raise"}),
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
_THROUGH = frozenset(
    {os.__file__, sys.modules["_collections_abc"].__file__, "<frozen os>", "<frozen _collections_abc>"}
    | {__file__, str(Path(__file__).with_name("rank_reads.py"))}
)
"""Files of the functions through which the environment is read, and of those that watch."""


_RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}
    | {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK", "PMI_RANK", "PMIX_RANK"}
    | {"MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_RANKID", "PALS_LOCAL_RANKID"}
    | {"FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "HOROVOD_RANK"}
)
_DEGREE_VARIABLES = frozenset(
    {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "NNODES", "NPROC_PER_NODE", "PMI_SIZE"}
    | {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "OMPI_COMM_WORLD_SIZE"}
    | {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}
    | {"FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE", "HOROVOD_SIZE", "NUM_NODES"}
)
"""In which torch's, Slurm's, PALS's, Flux's, Horovod's and the MPI launchers tell a process its place in the job."""


def is_rank_variable(name: str) -> bool:
    """Whether launchers tell a process its number in the environment variable ``name``."""
    return name in _RANK_VARIABLES


def is_degree_variable(name: str) -> bool:
    """Whether launchers tell a process in the environment variable ``name`` how many there are."""
    return name in _DEGREE_VARIABLES


KEPT_BY_MESHES = {
    "_coordinate_on_dim": ReadKind.RANK,
    "_rank": ReadKind.RANK,
    "_rank_map": ReadKind.DEGREE,
    "_flatten_rank_map": ReadKind.DEGREE,
    "_layout": ReadKind.DEGREE,
}
"""Attributes of a mesh, which code may read past its methods."""


@functools.cache
def is_installed(file: str) -> bool:
    """Whether ``file`` is part of an installed package or of the standard library."""
    return any(part in file for part in _PACKAGES) or file.startswith((_STANDARD_LIBRARY, "<frozen "))


_WHERE: dict[str, _Where] = {}


def _where(frame: types.FrameType) -> _Where:
    file = frame.f_code.co_filename
    if (known := _WHERE.get(file)) is not None:
        return known
    module = str(frame.f_globals.get("__name__", ""))
    if file.startswith(_FOLDING):
        found = _Where.DYNAMO
    elif is_of_torch(file) or module.partition(".")[0] == _OWN:
        found = _Where.TORCH
    else:
        found = _Where.INSTALLED if is_installed(file) else _Where.USER
    _WHERE[file] = found
    return found


def is_of_torch(file: str) -> bool:
    """Whether ``file`` is torch's own, or code that torch generated."""
    return file.startswith((_TORCH, "<eval_with_key>"))


def asking_file(caller: types.FrameType | None) -> str:
    """The file of the code that asks: what Dynamo traces, where Dynamo asks for it."""
    if caller is None:
        return ""
    translator = sys.modules.get("torch._dynamo.symbolic_convert")
    if translator is None or f"{os.sep}_dynamo{os.sep}" not in caller.f_code.co_filename:
        return caller.f_code.co_filename
    return str(translator.InstructionTranslator.current_tx().f_code.co_filename)


def _innermost_file(caller: types.FrameType | None) -> str:
    """The file of ``caller``; where Dynamo asks, that of the function that it inlines."""
    file = "" if caller is None else caller.f_code.co_filename
    if not file.startswith(_FOLDING):
        return file
    while caller is not None and caller.f_code.co_name != "step":
        caller = caller.f_back
    return file if caller is None else str(caller.f_locals["self"].f_code.co_filename)


def _is_reader(code: types.CodeType) -> bool:
    names = _READERS.get(code.co_filename)
    return (names is not None and code.co_name in names) or code.co_filename in _THROUGH


def _note(kind: ReadKind, reader: str, caller: types.FrameType | None, *, is_acted: bool = False) -> None:
    """Add to the log that ``reader`` was called by ``caller``, or by what called the reader that ``caller`` is.

    ``is_acted``: as another rank than this process's, which is told to those who listen alone.
    """
    outermost, inside = reader, list[int]()
    while caller is not None and _is_reader(caller.f_code):
        inside.append(caller.f_lasti)
        if caller.f_code.co_filename not in _THROUGH:
            outermost = caller.f_code.co_name
        caller = caller.f_back
    if caller is None or (kind is ReadKind.DEGREE and outermost in _OF_THE_RANK):
        return
    where = _where(caller)
    if where is _Where.DYNAMO:
        if not is_acted:
            note_traced(kind, outermost)
    elif where is not _Where.TORCH and not _is_imported_by_torch(caller):
        code = caller.f_code
        context = TracingContext.try_get()
        read = Read(
            kind=kind,
            reader=outermost,
            file=code.co_filename,
            line=caller.f_lineno,
            function=code.co_name,
            moment=moment(),
            installed=where is _Where.INSTALLED,
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
        _note(ReadKind.RANK, reader, caller, is_acted=True)


def callers(frame: types.FrameType | None) -> tuple[Asker, ...]:
    """The user's code that runs in ``frame`` and around it, the nearest first, up to what this package called."""
    found: list[Asker] = []
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] != _OWN:
        around = frame.f_back
        if _where(frame) is _Where.USER:
            is_direct = around is not None and _where(around) is _Where.USER
            found.append(Asker(frame.f_code, frame.f_lasti, frame.f_globals, is_direct))
        frame = around
    return tuple(found)


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


def _is_imported_by_torch(caller: types.FrameType) -> bool:
    """Whether ``caller`` runs because torch imports a package for itself: some of them read the whole environment."""
    frame: types.FrameType | None = caller
    is_imported = False
    while frame is not None and _where(frame) is _Where.INSTALLED:  # what imports is of the standard library
        is_imported |= frame.f_code.co_filename.startswith(_IMPORTER)
        frame = frame.f_back
    return is_imported and frame is not None and _where(frame) is _Where.TORCH


_IMPORTER = "<frozen importlib."


def note_traced(kind: ReadKind, reader: str, *, by_torch_too: bool = True) -> None:
    """Add to the log that the code which Dynamo traces called ``reader``. ``by_torch_too``: torch's own code counts."""
    context = TracingContext.try_get()
    if context is None:
        return
    # Dynamo is imported where something is compiled, not by `import torch`.
    translator: Any = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator.current_tx()
    while translator is not None and _is_reader(translator.f_code):
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
    is_own = str(translator.f_globals.get("__name__", "")).partition(".")[0] == _OWN
    _LOG.add(read, context, by_torch=is_own or is_of_torch(code.co_filename))


def _wrap_readers() -> None:
    _wrap_method(dist.ProcessGroup, "rank", ReadKind.RANK)
    _wrap_method(dist.ProcessGroup, "size", ReadKind.DEGREE)
    _wrap_method(DeviceMesh, "size", ReadKind.DEGREE)
    _wrap_method(DeviceMesh, "__repr__", ReadKind.DEGREE)
    _wrap_property(DeviceMesh, "shape", ReadKind.DEGREE)
    _wrap_property(DeviceMesh, "mesh", ReadKind.DEGREE)
    _wrap_method(Backend, "rank", ReadKind.RANK)
    _wrap_method(Backend, "size", ReadKind.DEGREE)
    for name, kind in KEPT_BY_MESHES.items():
        _wrap_kept(name, kind)
    _wrap_existence()
    _wrap_no_member()
    _wrap_members()
    _wrap_environment()
    wrap_devices()
    _forget_with_the_job()


def wrap_devices() -> None:
    """What ``torch.cuda.current_device`` asks, and its counterpart of any kind of device."""
    for name in ("_cuda_getDevice", "_accelerator_getDeviceIndex"):
        if hasattr(torch._C, name):
            _wrap_device(name)


def _wrap_device(name: str) -> None:
    ask: Callable[[], int] = getattr(torch._C, name)

    @functools.wraps(ask)
    def observed() -> int:
        caller = sys._getframe(1)
        if _is_reader(caller.f_code):  # torch asks for it by itself as well
            _note(ReadKind.RANK, name, caller)
        return ask()

    setattr(torch._C, name, observed)


def _wrap_method(owner: type, name: str, kind: ReadKind) -> None:
    method: Callable[..., Any] = vars(owner)[name]
    if not isinstance(method, types.FunctionType):
        method = getattr(owner, name)

    @functools.wraps(method)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        _note(kind, name, sys._getframe(1))
        return method(self, *args, **kwargs)

    setattr(owner, name, observed)


def _wrap_property(owner: type, name: str, kind: ReadKind) -> None:
    read: property = vars(owner)[name]

    def observed(self: Any) -> Any:
        _note(kind, name, sys._getframe(1))
        return read.__get__(self)

    setattr(owner, name, property(observed, read.fset, read.fdel, read.__doc__))


def _wrap_kept(name: str, kind: ReadKind) -> None:
    """What a mesh keeps in the attribute ``name``; its methods that tell the degree are wrapped themselves."""

    def observed(mesh: DeviceMesh) -> Any:
        caller: types.FrameType | None = sys._getframe(1)
        while caller is not None and caller.f_code.co_filename in _THROUGH:
            caller = caller.f_back
        is_told_twice = kind is ReadKind.DEGREE and _innermost_file(caller) == device_mesh.__file__
        if caller is not None and not is_told_twice and not _is_asked_by_dispatch(caller):
            _note(kind, name, caller)
        try:
            return vars(mesh)[name]
        except KeyError:
            raise AttributeError(name) from None

    def write(mesh: DeviceMesh, value: Any) -> None:
        vars(mesh)[name] = value

    # Torch reads these attributes between compiled graphs, where Dynamo would compile what looks at the caller.
    skipped = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(observed.__code__, eval_frame._FrameExecStrategy(skipped, skipped))
    setattr(DeviceMesh, name, property(observed, write))


def _is_asked_by_dispatch(reader: types.FrameType) -> bool:
    """Whether the dispatch of a DTensor's operator, which has no frame of its own, asks whether it is on the mesh."""
    name, caller = reader.f_code.co_name, reader.f_back
    if name != "get_coordinate" or caller is None:
        return False
    if _uses_data(caller.f_code, caller.f_lasti):
        return True
    is_dispatching = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.FuncTorchDynamicLayerBackMode)
    return is_dispatching and name not in caller.f_code.co_names


@functools.cache
def _uses_data(code: types.CodeType, offset: int) -> bool:
    """Whether an instruction reads or sets the attribute ``data``: of a DTensor, it is dispatched without the mark."""
    found = (i for i in dis.get_instructions(code) if i.offset == offset)
    return any(i.opname in ("LOAD_ATTR", "STORE_ATTR") and i.argval == "data" for i in found)


def _wrap_existence() -> None:
    """``is_initialized`` asks whether there is a default group, as much of torch does for other reasons."""
    meta: Any = type(distributed_c10d.GroupMember)
    world: property = vars(meta)["WORLD"]
    code = distributed_c10d.is_initialized.__code__

    def observed(owner: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code is code:
            _note(ReadKind.DEGREE, "is_initialized", caller)
        return world.__get__(owner)

    meta.WORLD = property(observed, world.fset)


def _wrap_no_member() -> None:
    """What stands for a group that this process is no member of: who compares a group with it asks for the rank."""
    meta: Any = type(distributed_c10d.GroupMember)
    comparing = distributed_c10d._rank_not_in_group.__code__

    def observed(owner: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code is not comparing or (caller.f_back is not None and not _is_reader(caller.f_back.f_code)):
            _note(ReadKind.RANK, "NON_GROUP_MEMBER", caller)
        try:
            return vars(owner)["NON_GROUP_MEMBER"]
        except KeyError:
            raise AttributeError("NON_GROUP_MEMBER") from None

    meta.NON_GROUP_MEMBER = property(observed)


def _wrap_members() -> None:
    """The ranks of a group say how many they are; where it is not of all, in which of such groups this process is."""
    kind: Any = type(distributed_c10d._world)
    members: property = vars(kind)["pg_group_ranks"]
    readers = (distributed_c10d.get_process_group_ranks, dist.get_global_rank, dist.get_group_rank)
    codes = tuple(reader.__code__ for reader in readers)

    def observed(world: Any) -> Any:
        found = members.__get__(world)
        caller = sys._getframe(1)
        if caller.f_code in codes:
            _note(ReadKind.DEGREE, caller.f_code.co_name, caller)
            group = caller.f_locals.get("group")
            if group is not None and len(found.get(group, ())) < len(found.get(world.default_pg, ())):
                _note(ReadKind.RANK, caller.f_code.co_name, caller)
        elif not _is_reader(caller.f_code):
            _note(ReadKind.DEGREE, "pg_group_ranks", caller)
            _note(ReadKind.RANK, "pg_group_ranks", caller)
        return found

    kind.pg_group_ranks = property(observed, members.fset)


def _wrap_environment() -> None:
    environment = type(os.environ)
    read = environment.__getitem__

    def __getitem__(self: Any, key: Any) -> Any:  # noqa: N807 - what it replaces is called so
        name: Any = key
        if self is os.environ and isinstance(name, str):
            _note_variable(name)
        elif self is getattr(os, "environb", None) and isinstance(name, bytes):
            _note_variable(os.fsdecode(name))
        return read(self, key)

    environment.__getitem__ = __getitem__


def _note_variable(name: str) -> bool:
    if is_rank_variable(name):
        _note(ReadKind.RANK, f"{_ENVIRONMENT}['{name}']", sys._getframe(1))
    elif is_degree_variable(name):
        _note(ReadKind.DEGREE, f"{_ENVIRONMENT}['{name}']", sys._getframe(1))
    return True


# Dynamo, which traces the access to the environment, calls this function where it traces it.
_note_variable._dynamo_marked_constant = True  # type: ignore[attr-defined]  # Dynamo's own mark


def _forget_with_the_job() -> None:
    update = distributed_c10d._update_default_pg

    @functools.wraps(update)
    def observed(group: Any) -> None:
        update(group)
        if group is None:
            _LOG.whole_job = True
            forget_reads()

    distributed_c10d._update_default_pg = observed
