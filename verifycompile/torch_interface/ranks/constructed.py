"""The plain values that modules had when they were constructed.

A parallelization plan changes numbers of a model that is built already (``attention.n_heads //= degree``); the
single-device program has those that the constructors set. Once active, every assignment of a plain value to an
attribute of a module is written down while its constructor, or that of a module around it, runs; later ones are not.
So is which parameters are one: what distributes the parameters of a model may make several of one that modules share.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import sys
import types
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

import torch
from torch import nn
from torch._C._dynamo import eval_frame

from verifycompile.torch_interface.ranks.observation import has_asked_for_degree, moment
from verifycompile.torch_interface.source_lines.whose_code import Asker, callers

Step = tuple[str, Hashable]
"""``(".", attribute)`` or ``("[]", key or index)``."""
Attribute = tuple[nn.Module, str]
Size = int | tuple[int, ...]
"""Of how many modules, or of which shape."""
Lines = tuple[tuple[types.CodeType, int], ...]
"""The lines that ran, by function, the innermost first."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """A list, a mapping, a set or a plain object as it was: what it held, by the step that leads there.

    ``length``: of what can be counted, of how many items, those included that are not kept here.
    """

    items: Mapping[Step, object]
    length: int | None = None


@dataclasses.dataclass(frozen=True)
class Recorded:
    """``value``: plain, or the ``Contents`` of what the attribute held. ``moment``: when it was assigned.

    ``origin``: the user's code that called the outermost constructor, where code had asked for a degree before.
    """

    value: object
    moment: int
    origin: tuple[Asker, ...] = dataclasses.field(default=(), repr=False)

    def at(self, steps: Sequence[Step]) -> object:
        """The plain value at the end of ``steps``; ``MISSING`` where none was recorded."""
        found = self._found(steps)
        return MISSING if isinstance(found, Contents) else found

    def length_at(self, steps: Sequence[Step]) -> int | None:
        """The length of the list or mapping at the end of ``steps``; None where none was recorded."""
        found = self._found(steps)
        return found.length if isinstance(found, Contents) else None

    def _found(self, steps: Sequence[Step]) -> object:
        found = self.value
        for step in steps:
            if isinstance(found, Contents):
                found = found.items.get(step, MISSING)
            elif isinstance(found, tuple) and isinstance(step[1], int) and 0 <= step[1] < len(cast(Any, found)):
                found = cast("tuple[object, ...]", found)[step[1]]
            else:
                return MISSING
        return found


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
_SCALARS = (bool, int, float, complex, str, bytes, type(None), enum.Enum)
_NO_PLAIN_OBJECT = (torch.Tensor, nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
COUNTED = (list, tuple, dict, set, frozenset)
"""What the length of is a number of the model."""
_LONG = 256
_DEEP = 3
_HANDED_ON = 6


class _Record:
    """``values``: by attribute. ``is_closed``: no constructor runs any more that could assign one.

    ``was_seen``: the module's own constructor ran while this was recorded. ``sizes``: of what was replaced afterwards.
    ``last``: of the last assignment, whatever it was. ``origin``: what called the constructor, once needed.
    ``parameters``: equal for attributes that held one parameter.
    ``distributed``: when a parameter of another type than torch's own was first registered, such as a DTensor.
    ``lines``: of each number, what assigned it last, whenever that was.
    """

    __slots__ = ("distributed", "is_closed", "last", "lines", "origin", "parameters", "sizes", "values", "was_seen")

    def __init__(self) -> None:
        self.values: dict[str, Recorded] = {}
        self.lines: dict[str, Lines] = {}
        self.sizes: dict[str, Size] = {}
        self.last: Recorded | None = None
        self.parameters: dict[str, _Identity] = {}
        self.origin: tuple[Asker, ...] | None = None
        self.distributed: int | None = None
        self.is_closed = False
        self.was_seen = False


class _Identity:
    """Of one parameter; a copy of a module has others, as its parameters are others."""


class ByIdentity:
    """Objects -> what is kept of them as long as they live. No attribute of an object is looked up.

    Looking one up may run the object's own code, which may not answer while the object is still being constructed.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def get(self, key: object) -> Any:
        """What is kept of ``key``, None where nothing is."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def __setitem__(self, key: object, value: object) -> None:
        number = id(key)
        # What is called when an object dies may be called anywhere, in code that runs under Dynamo and while a class
        # still names the dying object: Dynamo takes every Python function up, and may take that object up with it.
        forget = functools.partial(self._entries.pop, number)
        self._entries[number] = (weakref.ref(key, forget), value)


_RECORDS = ByIdentity()
"""Module -> ``_Record``. By identity: a module's class may define equality without a hash."""
_CLASSES = ByIdentity()
"""Class of modules -> attribute -> ``Recorded``."""
_PARAMETERS = ByIdentity()
"""Parameter -> ``_Identity``."""
_assign = nn.Module.__setattr__
_register = nn.Module.register_buffer
_register_parameter = nn.Module.register_parameter


def record_constructions() -> None:
    """Record from now on. Calling it again changes nothing."""
    if nn.Module.__setattr__ is _recording_assign:
        return
    nn.Module.__setattr__ = _recording_assign
    nn.Module.register_buffer = _recording_register
    nn.Module.register_parameter = _recording_register_parameter
    nn.Module.__deepcopy__ = _deepcopy  # type: ignore[attr-defined]  # nn.Module has none of its own


def recorded(module: nn.Module) -> Mapping[str, Recorded]:
    """By attribute what ``module`` had when it was constructed, its class's attributes included; empty if unknown."""
    record: _Record | None = _RECORDS.get(module)
    if record is None:
        return {}
    kinds = reversed(type(module).__mro__) if record.was_seen else ()
    of_classes = [_CLASSES.get(kind) or {} for kind in kinds]
    return {name: value for values in (*of_classes, record.values) for name, value in values.items()}


def lines_of_numbers(module: nn.Module) -> Mapping[str, Lines]:
    """By attribute that holds a number, the lines that ran when it was assigned last."""
    record: _Record | None = _RECORDS.get(module)
    return {} if record is None else record.lines


def resized(module: nn.Module) -> Iterator[tuple[str, Size, Size]]:
    """Attributes that hold modules or tensors and were replaced by others: their size as constructed, and now."""
    record: _Record | None = _RECORDS.get(module)
    for name, size in () if record is None else record.sizes.items():
        now = _size(module, name)
        if now is not None and now != size:
            yield name, size, now


def last_constructed(module: nn.Module) -> Recorded | None:
    """When, and by whom, the module's constructor last assigned something; None where that is not known."""
    record: _Record | None = _RECORDS.get(module)
    return None if record is None else record.last


def held_parts(module: nn.Module, at: int) -> bool:
    """Whether ``module`` or one in it had a distributed parameter ``at`` this moment: its size tells the degree."""
    records: Iterator[_Record | None] = map(_RECORDS.get, module.modules())
    return any(record and record.distributed is not None and record.distributed < at for record in records)


def separated(modules: Iterable[nn.Module]) -> Iterator[tuple[Attribute, Attribute]]:
    """Pairs of attributes of ``modules`` that held one parameter, and hold two now."""
    first: dict[_Identity, Attribute] = {}
    for module in modules:
        record: _Record | None = _RECORDS.get(module)
        constructed = {} if record is None else record.parameters
        for name, now in vars(module)["_parameters"].items():
            identities: dict[_Identity | None, None] = dict.fromkeys((constructed.get(name), _PARAMETERS.get(now)))
            of_each = [first.setdefault(identity, (module, name)) for identity in identities if identity is not None]
            for other, other_name in of_each:
                if now is not None and now is not vars(other)["_parameters"].get(other_name):
                    yield (other, other_name), (module, name)


def _size(module: nn.Module, name: str) -> Size | None:
    """Of how many modules a container is, of which shape a tensor; None for everything else."""
    held = vars(module)
    if isinstance(module, torch.jit.ScriptModule):  # which holds both in objects of its own
        return None
    found = held.get("_modules", {}).get(name)
    if isinstance(found, Sized):
        return len(found)
    tensor = held.get("_buffers", {}).get(name)
    tensor = held.get(name) if tensor is None else tensor
    return tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else None


def is_plain(value: object) -> bool:
    """Whether ``value`` is a number, a text, a flag, a member of an enumeration or a tuple of such."""
    if isinstance(value, tuple):
        return len(cast(Any, value)) <= _LONG and all(is_plain(item) for item in cast("tuple[object, ...]", value))
    return isinstance(value, _SCALARS)


def _recording_assign(self: nn.Module, name: str, value: Any) -> None:
    # Dynamo traces this where compiled code assigns: it then is what torch's own method is.
    if not torch.compiler.is_compiling():
        _record(self, name, value, sys._getframe(1))
    _assign(self, name, value)


def _recording_register(self: nn.Module, name: str, tensor: torch.Tensor | None, persistent: bool = True) -> None:
    if not torch.compiler.is_compiling():
        _record(self, name, tensor, sys._getframe(1))
    _register(self, name, tensor, persistent)


def _recording_register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
    if not torch.compiler.is_compiling():
        _record_parameter(self, name, param, sys._getframe(1))
    _register_parameter(self, name, param)


def _record_parameter(module: nn.Module, name: str, value: object, caller: types.FrameType) -> None:
    """As which parameter the one of ``name`` was made. One that replaces it later is its part, or its copy.

    A parameter that another attribute holds is shared on purpose, whenever that is.
    """
    record: _Record | None = _RECORDS.get(module)
    if record is None:
        record = _RECORDS[module] = _Record()
    # What is replaced may have been put into the module's dictionary past every method, or come from a copy or a file.
    replaced = vars(module).get("_parameters", {}).get(name)
    if replaced is not None:
        known: _Identity = _PARAMETERS.get(replaced) or record.parameters.get(name) or _Identity()
        _PARAMETERS[replaced] = record.parameters[name] = known
    if type(value) is not nn.Parameter:  # a DTensor's type is another one
        if value is not None and record.distributed is None:
            record.distributed = moment()
        return
    identity = _PARAMETERS.get(value)
    if identity is None:
        identity = _PARAMETERS[value] = _Identity()
        if name in record.parameters and not _constructors(caller):
            return
    record.parameters[name] = identity


def _record(module: nn.Module, name: str, value: object, caller: types.FrameType) -> None:
    """``name`` of ``module`` is about to be ``value``."""
    record: _Record | None = _RECORDS.get(module)
    if record is None:
        record = _RECORDS[module] = _Record()
    # Whether a model is in training is no number of its construction: `train` and `eval` switch it at any time.
    if name == "training":
        return
    if type(value) in (int, float):
        record.lines[name] = _running(caller)
    size = _size(module, name)
    if record.is_closed and size is None:
        return
    constructors = _constructors(caller)
    constructed = [one for one, _ in constructors]
    if not constructed and size is not None:
        record.sizes.setdefault(name, size)
    if not constructed or record.is_closed:
        record.is_closed = True
        return
    if any(one is module for one in constructed):
        record.was_seen = True
        _record_classes(type(module), _origin(*constructors[-1]))
    elif name in record.values:
        return
    record.values.pop(name, None)
    snapshot = _snapshot(value, _DEEP)
    record.last = Recorded(snapshot, moment(), _origin(*constructors[-1]))
    if snapshot is not MISSING:
        record.values[name] = record.last


# Between two compiled graphs neither is a frame to compile. As `torch._dynamo.eval_frame.skip_code` says it, without
# importing Dynamo: this module is imported by `import torch` where a job is checked.
_skip, _as_usual = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
for _recording in (_recording_assign, _recording_register, _recording_register_parameter):
    eval_frame.set_code_exec_strategy(_recording.__code__, eval_frame._FrameExecStrategy(_skip, _as_usual))
for _recording in (_record, _record_parameter):
    eval_frame.set_code_exec_strategy(_recording.__code__, eval_frame._FrameExecStrategy(_skip, _skip))


def _constructors(frame: types.FrameType | None) -> list[tuple[nn.Module, types.FrameType]]:
    """The modules whose constructors run, and in which frames."""
    found: list[tuple[nn.Module, types.FrameType]] = []
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            owner = frame.f_locals.get(code.co_varnames[0])
            if isinstance(owner, nn.Module):
                found.append((owner, frame))
        frame = frame.f_back
    return found


def _running(frame: types.FrameType | None) -> Lines:
    """The lines that run in ``frame`` and in those around it, as far as one may have handed a number on."""
    found: list[tuple[types.CodeType, int]] = []
    while frame is not None and len(found) < _HANDED_ON:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _origin(outermost: nn.Module, constructor: types.FrameType) -> tuple[Asker, ...]:
    """The user's code that called the outermost constructor; nothing where no code asked for a degree so far."""
    if not has_asked_for_degree():
        return ()
    record: _Record | None = _RECORDS.get(outermost)
    if record is None:
        record = _RECORDS[outermost] = _Record()
    if record.origin is None:
        record.origin = callers(constructor.f_back)
    return record.origin


def _record_classes(kind: type, origin: tuple[Asker, ...]) -> None:
    """What the classes held when the first module of them was constructed."""
    for base in kind.__mro__:
        if _CLASSES.get(base) is not None or not issubclass(base, nn.Module) or base is nn.Module:
            continue
        now = moment()
        # What a property or another descriptor gives is the instance's, not what the class holds under that name.
        held = {name: value for name, value in vars(base).items() if not hasattr(type(value), "__get__")}
        snapshots = {name: _snapshot(value, _DEEP) for name, value in held.items() if not name.startswith("__")}
        kept = {name: value for name, value in snapshots.items() if value is not MISSING}
        _CLASSES[base] = {name: Recorded(value, now, origin) for name, value in kept.items()}


def _snapshot(value: object, depth: int) -> object:
    """The plain value, or the ``Contents`` of what holds plain values; ``MISSING`` for everything else."""
    if is_plain(value):
        return value
    if (
        depth == 0
        or isinstance(value, _NO_PLAIN_OBJECT)
        or (isinstance(value, list | tuple | dict) and len(cast(Any, value)) > _LONG)
    ):
        return MISSING
    items: dict[Step, object] = {}
    if isinstance(value, list | tuple):
        items = {
            ("[]", index): item for index, item in enumerate(cast("list[object]", value)[:_LONG])
        }
    elif isinstance(value, dict):
        held = cast("dict[Hashable, object]", value)
        items = {("[]", key): item for key, item in held.items() if is_plain(key)}
    elif not isinstance(value, COUNTED):
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return MISSING
        items = {(".", name): item for name, item in cast("dict[str, object]", attributes).items()}
    if len(items) > _LONG:
        return MISSING
    snapshots = {step: _snapshot(item, depth - 1) for step, item in items.items()}
    length = len(cast(Any, value)) if isinstance(value, COUNTED) else None
    return Contents({step: item for step, item in snapshots.items() if item is not MISSING}, length)


def _deepcopy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """``copy.deepcopy`` as it is without this method; the copy was constructed as the original was."""
    made = cast(Any, copy)._reconstruct(self, memo, *self.__reduce_ex__(4))
    record = constructed_as(self, made)
    if record is not None:
        record.parameters = copy.deepcopy(record.parameters, memo)
    return made


def constructed_as(module: nn.Module, made: nn.Module) -> _Record | None:
    """Let ``made`` have the record of ``module``, in whose place it stands; None where there is none."""
    record: _Record | None = _RECORDS.get(module)
    if record is None:
        return None
    copied = _RECORDS[made] = _Record()
    copied.values.update(record.values)
    copied.lines.update(record.lines)
    copied.sizes.update(record.sizes)
    copied.parameters.update(record.parameters)
    copied.was_seen, copied.distributed = record.was_seen, record.distributed
    return copied
