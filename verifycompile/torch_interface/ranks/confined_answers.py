"""Whether an answer about the degree stayed where it was asked for, so that no number of a model was made of it.

Scripts ask how many ranks there are, to make a mesh, to print it, to check it, and make their model afterwards. The
instructions of the code that asked say what it did with the answer. What is known to keep it is a list: variables of
the function, comparisons and arithmetic, calls of torch that set the job up, what prints. Everything else, a call of
other code, an attribute, a container, a variable that other code reads, may have taken it anywhere.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import functools
import itertools
import logging
import os
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import device_mesh

from verifycompile.torch_interface.dynamo.closures import names_in
from verifycompile.torch_interface.ranks.observation import Read
from verifycompile.torch_interface.source_lines.whose_code import Asker

_PURE = (print, len, range, int, str, float, bool, min, max, abs, divmod, round, tuple, list, isinstance, repr)
_LOGS = (logging.debug, logging.info, logging.warning, logging.error, warnings.warn)
_LOGGED = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log"})
_MAKE = (device_mesh.init_device_mesh, device_mesh.DeviceMesh, dist.new_group)
"""Of which the result answers further questions only when it is asked."""
_JOB = (*_MAKE, dist.init_process_group, dist.destroy_process_group, dist.barrier, torch.device)
_ASK = (dist.get_rank, dist.get_world_size, dist.is_initialized, dist.is_available, dist.get_backend, os.getenv)
_DEVICES = (torch.cuda.set_device, torch.cuda.device_count, torch.cuda.is_available)
_KEEPING = (*_PURE, *_LOGS, *_JOB, *_ASK, *_DEVICES)
"""What may be called with an answer and keeps it from the program's numbers."""
_CALLING = frozenset({"file", "key"})
"""Keywords by which what keeps answers calls what is given to it."""
_BY_NAME = frozenset({"globals", "locals", "vars", "dir", "eval", "exec"})
_OF_FRAMES = frozenset({"_getframe", "currentframe", "__dict__"})
"""Through which code reads variables that no instruction of it names: functions, and attributes of any object."""
_VARIABLES = ("LOAD_FAST", "STORE_FAST_LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
_STORED = ("STORE_FAST", "STORE_NAME")
_CONDITIONAL = ("POP_JUMP", "JUMP_IF", "FOR_ITER")
_ALLOWED = (
    *("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CONST", "LOAD_ATTR", "LOAD_METHOD", "STORE_FAST"),
    *("STORE_NAME", "POP_TOP", "POP_JUMP", "JUMP", "FOR_ITER", "END_FOR", "GET_ITER", "RETURN_", "RAISE_VARARGS"),
    *("LOAD_ASSERTION_ERROR", "BINARY_OP", "COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_", "TO_BOOL"),
    *("FORMAT_", "CONVERT_VALUE", "BUILD_STRING", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP"),
    *("UNPACK_SEQUENCE", "COPY", "SWAP", "NOP", "RESUME", "PRECALL", "KW_NAMES", "CALL", "PUSH_NULL", "EXTENDED_ARG"),
)  # fmt: skip
_REFUSED = ("CALL_FUNCTION_EX", "CALL_INTRINSIC", "COPY_FREE_VARS")
_GENERATORS = 0x20 | 0x80 | 0x200
"""Marks of code that is left and entered again."""
_DEPTH_AT_RETURN = {"RETURN_VALUE": 1, "RETURN_CONST": 0}
_UNKNOWN = object()


def stayed_where_asked(reads: Sequence[Read], origin: Sequence[Asker]) -> bool:
    """Whether no answer of ``reads`` can have reached what ``origin``, the callers of a constructor, gave to it."""
    places = [(read.reader, read.file, read.line, read.inside) for read in reads]
    return all(
        not read.installed
        and not read.traced
        and _stayed(read, tuple(origin) if places.count(place) == 1 else ())
        for read, place in zip(reads, places, strict=True)
    )


@functools.lru_cache(maxsize=1024)
def _stayed(read: Read, origin: tuple[Asker, ...]) -> bool:
    askers = read.askers
    if not askers or any(_Code.of(asker.code).is_caught(asker.offset) for asker in askers):
        return False
    called: Any = None
    for position, asker in enumerate(askers):
        code = _Code.of(asker.code)
        if not code.depths:
            return False
        asking = code.at(asker.offset)
        if called is not None and code.callee(asking, asker.names) is not called:
            return False  # through something else, which may have kept it
        left = _left(code, asker, asking, _reached(askers[position:], origin), is_nearest=called is None)
        if left is None:
            return False
        if not left:
            return True
        called = asker.names.get(asker.code.co_name)
        if not asker.is_direct or getattr(called, "__code__", None) is not asker.code:
            return False
    return False


def _reached(askers: tuple[Asker, ...], origin: tuple[Asker, ...]) -> int | None:
    """Where the code that asked was when the constructor was called; None where it had ended, or ran before."""
    for position, caller in enumerate(origin):
        around = list(itertools.zip_longest(origin[position + 1 :], askers[1:]))
        is_same = all(one and other and one.is_at(other) for one, other in around)
        if caller.code is askers[0].code and caller.names is askers[0].names and is_same:
            return caller.offset
    return None


def _left(code: _Code, asker: Asker, asking: int, reached: int | None, *, is_nearest: bool) -> bool | None:
    """Whether the code returned something of the answer; None where it may have gone elsewhere."""
    is_module = asker.code.co_name == "<module>"
    before = None if reached is None else code.leading_to(code.at(reached))
    if code.flags & _GENERATORS or _finds_by_name(code, before, asker):
        return None
    tainted = set[str]()
    is_returned = False
    found = set[tuple[int, ...]]()
    while True:
        decided = code.decided(itertools.chain.from_iterable(found))
        run = [[i for i in range(*segment) if before is None or i in before] for segment in code.segments]
        more = {tuple(s) for s in run if asking in s or any(i in decided or code.loads(i, tainted) for i in s)}
        if more == found:
            break
        found = more
        for segment in more:
            own = code.expression(asking) if asking in segment else range(0)
            if any(i in decided or code.loads(i, tainted) for i in own):
                if not is_nearest:
                    return None
                own = range(asking, asking + 1)
            kept = code.kept(segment, own, decided, asker.names)
            if kept is None:
                return None
            stored, returned = kept
            tainted |= stored
            is_returned |= returned
    if is_module and tainted and (asker.names.get("__name__") != "__main__" or _is_read_inside(asker.code, tainted)):
        return None
    return is_returned


def _finds_by_name(code: _Code, before: set[int] | None, asker: Asker) -> bool:
    """Whether what runs before the constructor, or a function inside, reads variables that no instruction names.

    `model.eval()` does not, nor does another method of that name: those of a module, such as `builtins`, may.
    """
    own = (item for position, item in enumerate(code.instructions) if before is None or position in before)
    inner = (item for constant in code.constants for item in _instructions_inside(constant))
    variables, others = set[str](), set[str]()
    for item in itertools.chain(own, inner):
        if item.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
            variables.add(item.argval)
        elif item.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_")):
            others.add(item.argval)
        elif item.opname.startswith("LOAD_CONST") and item.argval == "builtins":
            others.add("builtins")
    modules = [asker.names[name] for name in variables if isinstance(asker.names.get(name), types.ModuleType)]
    return (
        not _OF_FRAMES.isdisjoint(variables | others)
        or not _BY_NAME.isdisjoint(variables)
        or "builtins" in others
        or any(name in others and name in vars(module) for name in _BY_NAME for module in modules)
    )


def _instructions_inside(constant: object) -> Iterator[dis.Instruction]:
    if isinstance(constant, types.CodeType):
        yield from dis.get_instructions(constant)
        for inner in constant.co_consts:
            yield from _instructions_inside(inner)


def _is_read_inside(code: types.CodeType, names: set[str]) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return any(not names.isdisjoint(names_in(one)) for one in inner)


@dataclasses.dataclass(frozen=True, eq=False)
class _Code:
    """``depths``: how much lies on the stack before each instruction; nothing where that is not understood.

    ``segments``: what runs from an empty stack to an empty one. ``after``: the instructions that may follow each.
    ``always``: those that do, in every run that ends without an error.
    """

    flags: int
    constants: tuple[Any, ...]
    instructions: tuple[dis.Instruction, ...]
    depths: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    always: tuple[int, ...]
    handlers: tuple[tuple[int, int, int], ...]

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(code: types.CodeType) -> _Code:
        instructions = tuple(dis.get_instructions(code))
        index = {instruction.offset: position for position, instruction in enumerate(instructions)}
        after = tuple(tuple(_after(instructions, position, index)) for position in range(len(instructions)))
        entries: list[Any] = cast(Any, dis.Bytecode(code)).exception_entries
        handlers = tuple((entry.start, entry.end, index[entry.target]) for entry in entries)
        starts = {0: 0} | {index[entry.target]: entry.depth + 1 + entry.lasti for entry in entries}
        depths = _depths(instructions, after, starts) or ()
        return _Code(code.co_flags, code.co_consts, instructions, depths, after, _always(instructions, after), handlers)

    @functools.cached_property
    def segments(self) -> tuple[tuple[int, int], ...]:
        cuts = [position for position, depth in enumerate(self.depths) if depth <= 0]
        return tuple(itertools.pairwise((*cuts, len(self.instructions))))

    def at(self, offset: int) -> int:
        return max(position for position, item in enumerate(self.instructions) if item.offset <= offset)

    def leading_to(self, end: int) -> set[int]:
        """The instructions after which ``end`` may run, and itself."""
        found, size = {end}, 0
        while size != (size := len(found)):
            found |= {i for i in range(len(self.after)) if not found.isdisjoint(self.after[i])}
        return found

    def is_caught(self, offset: int) -> bool:
        """Whether the code goes on after an error at ``offset``."""
        return any(start <= offset < end and self._ends(handler) for start, end, handler in self.handlers)

    def decided(self, tainted: Iterable[int]) -> set[int]:
        """What runs, or does not, by a branch among the instructions ``tainted``."""
        found = set[int]()
        for position in tainted:
            if self.instructions[position].opname.startswith(_CONDITIONAL):
                following = self._following(position) - {position}
                ends = self._ends(position)
                found |= {other for other in following if not ends or not self.always[position] >> other & 1}
        return found

    def loads(self, position: int, names: set[str]) -> bool:
        instruction = self.instructions[position]
        return instruction.opname.startswith(_VARIABLES) and not names.isdisjoint(_names(instruction))

    def kept(
        self, segment: Sequence[int], own: range, decided: set[int], names: dict[str, Any]
    ) -> tuple[set[str], bool] | None:
        """The variables that the segment sets, and whether it returns something; None where it may do anything else.

        ``own``: what asks, before there was an answer.
        """
        made = False
        stored = set[str]()
        is_returned = False
        for position in segment:
            item = self.instructions[position]
            if self.is_caught(item.offset):
                return None
            if position in own:
                continue
            if not item.opname.startswith(_ALLOWED) or item.opname.startswith(_REFUSED) or _changes(item):
                return None
            if item.opname.startswith("CALL"):
                called = self.callee(position, names)
                if not _keeps(called) or not _CALLING.isdisjoint(self._keywords(position)):
                    return None
                made = any(called is one for one in _MAKE) and decided.isdisjoint(segment)
                continue
            if item.opname.startswith(_STORED) and not made:
                stored.update(_names(item))
            elif item.opname.startswith("RETURN_") and not made:
                is_returned |= not self._returns_nothing
            made = False
        return stored, is_returned

    def callee(self, call: int, names: dict[str, Any]) -> Any:
        """What the instruction ``call`` calls, where it is found by names from a global; ``_UNKNOWN`` elsewhere."""
        found: Any = _UNKNOWN
        root, *_ = expression = self.expression(call)
        for position in expression:
            item = self.instructions[position]
            if item.opname == "LOAD_CONST" and position == root and isinstance(item.argval, str):
                found = item.argval
            elif item.opname == "LOAD_ASSERTION_ERROR" and position == root:
                return AssertionError
            elif item.opname in ("LOAD_GLOBAL", "LOAD_NAME") and found is _UNKNOWN:
                found = names.get(item.argval, vars(builtins).get(item.argval, _UNKNOWN))
            elif item.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                found = _attribute(found, item.argval)
            elif item.opname not in ("PUSH_NULL", "EXTENDED_ARG"):
                # What is called lies below its arguments, with what stands beside it.
                is_whole = min(self.depths[position : call + 1]) == self.depths[root] + 2 == self.depths[position]
                return found if is_whole else _UNKNOWN
        return _UNKNOWN

    def _keywords(self, call: int) -> set[str]:
        before = self.instructions[max(call - 2, 0) : call]
        names = [self.constants[item.arg or 0] for item in before if item.opname in ("KW_NAMES", "LOAD_CONST")]
        return {name for value in names if isinstance(value, tuple) for name in cast("tuple[Any, ...]", value)}

    def expression(self, position: int) -> range:
        """The instructions that make the value which the one at ``position`` leaves."""
        item = self.instructions[position]
        depth = self.depths[position] + dis.stack_effect(item.opcode, item.arg, jump=False) - 1
        return range(max(other for other in range(position + 1) if self.depths[other] <= depth), position + 1)

    @functools.cached_property
    def _returns_nothing(self) -> bool:
        """Whether every return of the code is of None."""
        for position, item in enumerate(self.instructions):
            if item.opname == "RETURN_CONST" and item.argval is not None:
                return False
            if item.opname == "RETURN_VALUE":
                before = self.instructions[position - 1]
                if before.opname != "LOAD_CONST" or before.argval is not None:
                    return False
        return True

    def _ends(self, position: int) -> bool:
        """Whether a run from there may come to a return."""
        return any(self.instructions[other].opname.startswith("RETURN_") for other in self._following(position))

    def _following(self, position: int) -> set[int]:
        found, waiting = set[int](), [position]
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += self.after[one]
        return found


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    value = instruction.argval
    return cast("tuple[str, ...]", value) if isinstance(value, tuple) else (str(value),)


def _changes(item: dis.Instruction) -> bool:
    """Whether it is ``a += b``, which may change what others hold."""
    return item.opname == "BINARY_OP" and item.argrepr.endswith("=")


def _attribute(held: Any, name: str) -> Any:
    if isinstance(held, types.ModuleType):
        return vars(held).get(name, _UNKNOWN)
    is_known = held is os.environ or type(held) in (str, logging.Logger)
    return getattr(held, name, _UNKNOWN) if is_known else _UNKNOWN


def _keeps(called: Any) -> bool:
    if any(called is one for one in _KEEPING) or called == os.environ.get:
        return True
    if isinstance(called, type) and issubclass(called, BaseException):
        return called.__module__ == "builtins"
    owner = getattr(called, "__self__", None)
    is_method = isinstance(called, types.MethodType | types.BuiltinMethodType)
    return is_method and (type(owner) is str or (type(owner) is logging.Logger and called.__name__ in _LOGGED))


def _after(instructions: Sequence[dis.Instruction], position: int, index: dict[int, int]) -> Iterator[int]:
    item = instructions[position]
    jumps = item.opcode in dis.hasjrel or item.opcode in dis.hasjabs
    if jumps:
        yield index[item.argval]
    ends = item.opname.startswith(("RETURN_", "RAISE_", "RERAISE"))
    always = jumps and item.opname.startswith("JUMP_") and "_IF_" not in item.opname
    if not ends and not always and position + 1 < len(instructions):
        yield position + 1


def _depths(
    instructions: Sequence[dis.Instruction], after: Sequence[Sequence[int]], starts: dict[int, int]
) -> tuple[int, ...] | None:
    """None where they do not fit together. What is never reached has depth 1: it is part of what stands before it."""
    known = dict[int, int]()
    waiting = list(starts.items())
    while waiting:
        position, depth = waiting.pop()
        if known.setdefault(position, depth) != depth or depth < 0:
            return None
        item = instructions[position]
        if depth != _DEPTH_AT_RETURN.get(item.opname, depth):
            return None
        for other in after[position]:
            then = depth + dis.stack_effect(item.opcode, item.arg, jump=other != position + 1)
            if known.get(other) != then:
                waiting.append((other, then))
    return tuple(known.get(position, 1) for position in range(len(instructions)))


def _always(instructions: Sequence[dis.Instruction], after: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """For each instruction, as bits, those that run after it in every run that comes to a return."""
    everything = (1 << len(instructions)) - 1
    found = [everything] * len(instructions)
    changed = True
    while changed:
        changed = False
        for position in reversed(range(len(instructions))):
            following = everything if after[position] or not instructions[position].opname.startswith("RETURN_") else 0
            for other in after[position]:
                following &= found[other]
            now = following | 1 << position
            changed |= now != found[position]
            found[position] = now
    return tuple(found)
