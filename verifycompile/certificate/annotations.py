"""What a certificate records of each node, derived again: dtypes, shapes, numbers, and the memory that is read.

Trusted of a program are its inputs and its calls. What torch recorded of a call's result must be what its meta kernels
give for the operands. Symbolic sizes are put to the test at several sizes that fulfil the guards, and that torch takes:
of others nothing is claimed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import sympy
import torch
import torch.fx

from verifycompile.certificate.storage import Block, StorageError, StoredModule, StoredObject, UnregisteredOperator
from verifycompile.lowering.recorded import memory_read, reads_place
from verifycompile.program import Program
from verifycompile.torch_interface.operators.derivation import Derivation, is_derived_number

if TYPE_CHECKING:
    from verifycompile.certificate.read_numbers import ReadNumbers

_TRIALS = 3
_RUNS = 60
_DRAWS = 2000
_DRAWS_OF_A_SCALE = 40
LARGEST_SIZE = 12

Sizes = Mapping[sympy.Basic, int]
Kind = TypeVar("Kind", bound="Derived")


class AnnotationError(StorageError):
    """A node whose recorded value is not what torch gives."""


class _RefusedError(AnnotationError):
    """A call that torch does not take."""


def check_annotations(program: Program) -> None:
    """Raises AnnotationError where a recorded dtype, shape or number is another than torch's meta kernels give."""
    if symbols_of(program) - {*program.coordinates} or program.size_values:
        from verifycompile.certificate.symbols import check_symbols  # here, because few programs have symbolic sizes

        check_symbols(program)
    derived(Derived, program)


def derived(kind: type[Kind], program: Program) -> Kind:
    """All calls on one kind of device: of some tensors the dtype is another one on a GPU. Raises AnnotationError."""
    failures: list[AnnotationError] = []
    for device in ("cpu", "cuda"):
        found = kind(program, device)
        try:
            _try(program, found)
        except AnnotationError as failure:
            failures.append(failure)
        else:
            return found
    raise failures[0]


def _try(program: Program, found: Derived) -> None:
    """Sizes that torch refuses are drawn anew, and where it refuses some, it takes others on the same rank."""
    taken, refusals = list[Sizes](), list[tuple[Sizes, _RefusedError]]()
    for sizes in itertools.islice(choices_of(program), _RUNS):
        try:
            found.run(sizes)
            taken.append(sizes)
        except _RefusedError as refusal:
            refusals.append((sizes, refusal))
        ranks = [_rank_of(program, sizes) for sizes in taken]
        if len(taken) >= _TRIALS and all(_rank_of(program, sizes) in ranks for sizes, _ in refusals):
            return
    if refusals:
        raise refusals[0][1]


def _rank_of(program: Program, sizes: Sizes) -> list[int]:
    """The rank that a choice speaks of."""
    return [number for symbol, number in sizes.items() if symbol in program.coordinates]


# ------------------------------------------------------------------------------------------------ sizes


def choices_of(program: Program) -> Iterator[Sizes]:
    """Sizes for all symbols, such that all guards hold, small ones first; once where there are none."""
    symbols = sorted(symbols_of(program), key=str)
    if not symbols:
        yield {}
        return
    draw, is_found = random.Random(0), False  # noqa: S311 - the same sizes every time
    for number in range(_DRAWS):
        scale = number // _DRAWS_OF_A_SCALE
        sizes = {symbol: _size(program, symbol, draw, scale) for symbol in symbols}
        if all(_holds(guard, sizes) for guard in program.guards):
            is_found = True
            yield sizes
    if not is_found:
        raise AnnotationError("no sizes were found that fulfil its guards")


def _size(program: Program, symbol: sympy.Basic, draw: random.Random, scale: int) -> int:
    """A size up to a scale, of which some are multiples of powers of two."""
    axes: Mapping[Any, int] = program.coordinates
    axis = axes.get(symbol)
    if axis is not None and program.mesh is not None:
        return draw.randrange(program.mesh.axes[axis].size)
    unit = 1 << draw.randint(0, scale)
    return draw.randint(2, LARGEST_SIZE) * unit + draw.choice((0, draw.randrange(unit)))


def _holds(guard: sympy.Basic, sizes: Sizes) -> bool:
    return guard.xreplace(dict(sizes)) != sympy.false


def symbols_of(program: Program) -> set[sympy.Basic]:
    """Those of all numbers in a program, where solved ones are replaced."""
    return {symbol for expression in _expressions(program) for symbol in expression.free_symbols}


def _expressions(program: Program) -> Iterator[sympy.Basic]:
    """All numbers in a program, over the symbols that remain where solved ones are replaced."""
    records = {id(record): record for node in program.graph.graph.nodes for record in (node.meta.get("val"),)}
    yield from (expression_of(program, n) for n in numbers_of([*records.values()]) if is_derived_number(n))
    yield from program.guards
    yield from (expression for expression in program.size_values.values())


def expression_of(program: Program, number: Any) -> sympy.Basic:
    return number.node.expr.xreplace(dict(program.size_values))


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (*tensor.stride(), tensor.storage_offset()) if tensor.layout is torch.strided else ()


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def numbers_of(value: Any) -> Iterator[Any]:
    """All that a value holds, with the sizes of its tensors and where these lie in memory."""
    for item in _flat(value):
        yield from (*item.shape, *_memory(item)) if isinstance(item, torch.Tensor) else (item,)


# ------------------------------------------------------------------------------------------------ one run


class Derived:
    """All calls of a program, at choices of sizes, each on what torch gave for its operands.

    Calls that are like one another, of operands of one description, are made and compared once.
    """

    def __init__(self, program: Program, device: str) -> None:
        self._program, self._graph = program, cast("StoredModule", program.graph)
        self._derivation = Derivation(device)
        self._known: dict[Hashable, list[Any]] = {}
        self._described: dict[Hashable, Any] = {}
        self._has_symbols: dict[Hashable, bool] = {}
        self._sizes: dict[sympy.Basic, int] = {}
        self._recorded: dict[int, Any] = {}
        self._of_sizes: list[int] = []
        """Records with symbols."""
        self._reads: ReadNumbers | None = None
        self._reading: set[int] = set()
        """Records of calls that read numbers from tensors."""
        self.values: dict[torch.fx.Node, Any] = {}

    def run(self, sizes: Sizes) -> None:
        with self._derivation.entered():
            self._sizes, self.values = dict(sizes), {}
            self._reads = None
            while self._of_sizes:
                del self._recorded[self._of_sizes.pop()]
            for node in self._graph.graph.find_nodes(op="placeholder"):
                self.values[node] = self._of_record(node)
            for node in self._graph.graph.find_nodes(op="get_attr"):
                self.values[node] = recorded = self._of_record(node)
                if id(node.meta.get("val")) in self._of_sizes:
                    raise AnnotationError(f"`{node.name}` is stored, and recorded with symbolic sizes")
                self._compare(node, recorded, getattr(self._graph, str(node.target)))
            for block in self._graph.blocks:
                self._derive(block)

    def _of_record(self, node: torch.fx.Node) -> Any:
        """What is recorded of a node, where the sizes are numbers; of one record one value."""
        record = node.meta.get("val")
        if id(record) not in self._recorded:
            self._recorded[id(record)] = self._one_of_its_kind(self._number(record))
            if any(map(is_derived_number, numbers_of(record))):
                self._of_sizes.append(id(record))
        return self._recorded[id(record)]

    def _derive(self, block: Block) -> None:
        taken = ((id(operand.meta.get("val")), id(self.values[operand])) for operand in block.operands)
        key = block.pattern, *taken, *(self._sizes.items() if self._is_symbolic(block) else ())
        if key not in self._known:
            if len(block.sources) == 1:
                self.values[block.call] = self._value_of_call(block.call)
            else:
                for single in block.singles:
                    self._derive(single)
            if any(id(single.call.meta.get("val")) in self._reading for single in block.sources):
                return
            self._known[key] = [self.values[single.call] for single in block.singles]
        known = self._known[key]
        self.values.update((node, known[place]) for place, node in block.made.items())

    def _is_symbolic(self, block: Block) -> bool:
        """Whether a number that is given or recorded there has symbols, so that it depends on the sizes."""
        if block.pattern not in self._has_symbols:
            calls = (single.call for single in block.sources)
            held = numbers_of([(n.args, *n.kwargs.values(), n.meta.get("val")) for n in calls])
            self._has_symbols[block.pattern] = any(map(is_derived_number, held))
        return self._has_symbols[block.pattern]

    def _value_of_call(self, node: torch.fx.Node) -> Any:
        if node.name in self._program.groups:
            return ""  # a group is named where its axes are
        if reads_place(node):
            return self._place(node)
        derived, recorded = self._call(node), self._of_record(node)
        self._compare(node, recorded, derived)
        if not _is_unknown(derived):
            return self._one_of_its_kind(derived)
        self._reading.add(id(node.meta["val"]))
        from verifycompile.certificate.read_numbers import ReadNumbers  # here, because few programs read any

        self._reads = self._reads or ReadNumbers(self._program)
        self._reads.check(node, derived)
        return recorded

    def _place(self, node: torch.fx.Node) -> Any:
        """A coordinate of the rank: the program's tables say on which axes it is one."""
        told, places = node.meta["val"], {*self._program.coordinates}
        known = told.node.expr in places | self._program.size_values.keys()
        if not known or expression_of(self._program, told).free_symbols - places:
            raise AnnotationError(f"`{node.name}` is recorded as {told.node.expr}, which is no place of a rank")
        return self._of_record(node)

    def _one_of_its_kind(self, value: Any) -> Any:
        """Of values that no call tells apart, one."""
        if isinstance(value, (list, tuple)):
            items = type(value)(map(self._one_of_its_kind, value))
            return self._described.setdefault((type(value), *map(id, items)), items)
        if not isinstance(value, torch.Tensor):
            return self._described.setdefault((type(value), repr(value)), value)
        held = value.untyped_storage().nbytes()
        content = value.dtype, value.shape, value.stride(), value.storage_offset(), held, value.device
        return self._described.setdefault((*content, value.is_conj(), value.is_neg(), type(value)), value)

    def _call(self, node: torch.fx.Node) -> Any:
        if isinstance(node.target, UnregisteredOperator):
            raise AnnotationError(f"`{node.name}` calls an operator that this process does not have")
        read = memory_read(node)
        args = [self._operand(argument) for argument in node.args]
        kwargs = {name: self._operand(argument) for name, argument in node.kwargs.items()}
        if read is not None:
            lies = (tuple(args[0].stride()), args[0].storage_offset())
            if lies != (read.strides, read.offset):
                raise AnnotationError(f"`{node.args[0]}` lies otherwise in memory: {lies[0]} from {lies[1]}")
        try:
            return self._derivation.call(node.target, args, kwargs)
        except Exception as error:
            text = str(error).partition("\n")[0]
            raise _RefusedError(f"torch does not take `{node.name}`: {type(error).__name__}: {text}") from error

    def _operand(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, (list, tuple)):
            return type(argument)(self._operand(item) for item in argument)
        if isinstance(argument, slice):
            return slice(*(self._operand(v) for v in (argument.start, argument.stop, argument.step)))
        if isinstance(argument, StoredObject):
            return None
        return self._number(argument)

    def _number(self, recorded: Any) -> Any:
        """A recorded value where the sizes are numbers; a tensor without content for a tensor."""
        if isinstance(recorded, torch.Tensor):
            shape = [self._number(size) for size in recorded.shape]
            memory = [self._number(number) for number in _memory(recorded)]
            if any(number < 0 for number in (*shape, *memory)):
                raise AnnotationError("a recorded tensor has a negative size, stride or offset")
            lies = (memory[:-1], memory[-1]) if memory else None
            return self._derivation.tensor(shape, recorded.dtype, lies)
        if isinstance(recorded, (list, tuple)):
            return type(recorded)(self._number(item) for item in recorded)
        if not is_derived_number(recorded):
            return recorded
        value = expression_of(self._program, recorded).xreplace(self._sizes)
        if isinstance(recorded, torch.SymInt):
            if not sympy.sympify(value).is_integer:
                raise AnnotationError(f"{value} is recorded as a whole number")
            return int(value)  # pyright: ignore[reportArgumentType]  # a number, see the caller
        return float(value) if isinstance(recorded, torch.SymFloat) else bool(value)  # pyright: ignore[reportArgumentType]  # a number, see the caller

    # -- comparison

    def _compare(self, node: torch.fx.Node, recorded: Any, derived: Any) -> None:
        if isinstance(recorded, (list, tuple)):
            if not isinstance(derived, (list, tuple)) or len(recorded) != len(derived):
                raise AnnotationError(f"`{node.name}` is recorded as {len(recorded)} values")
            for ours, theirs in zip(recorded, derived, strict=True):
                self._compare(node, ours, theirs)
        elif _described(recorded) != _described(derived) and not _may_be(recorded, derived):
            raise AnnotationError(
                f"`{node.name}` is recorded as {_described(recorded)} where torch gives {_described(derived)}"
            )
        elif not self.lies_alike(node, recorded, derived):
            raise AnnotationError(f"`{node.name}` lies otherwise in memory than recorded")

    def lies_alike(self, node: torch.fx.Node, recorded: Any, derived: Any) -> bool:
        """Whether strides, where dimensions have several elements, and the place of the first one are those recorded.

        A slice that starts where its rank says lies elsewhere on each rank, and the place of one is recorded. What
        reads memory is compared with what is derived at every call.
        """
        if not isinstance(recorded, torch.Tensor) or node.op == "get_attr":
            return True
        if any(is_derived_number(n) for n in (*derived.shape, *_memory(derived))) or not derived.numel():
            return True
        sides = zip(recorded.stride(), derived.stride(), derived.shape, strict=True)
        placed = bool(self._program.coordinates) or recorded.storage_offset() == derived.storage_offset()
        return placed and all(a == b or n == 1 for a, b, n in sides)


def sizes_of(value: Any) -> list[Any]:
    """The sizes of tensors, and numbers themselves."""
    found = (v.shape if isinstance(v, torch.Tensor) else (v,) for v in _flat(value))
    return [number for numbers in found for number in numbers]


def _is_unknown(value: Any) -> bool:
    """Whether a size, or the number itself, depends on what a tensor holds."""
    return any(map(is_derived_number, sizes_of(value)))


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        shape = ["?" if is_derived_number(size) else size for size in value.shape]
        return f"{value.dtype}{shape}".replace("torch.", "")
    return "nothing" if value is None else f"{type(value).__name__} {value}"


def _may_be(recorded: Any, derived: Any) -> bool:
    """Whether a record fits a value with numbers that depend on what a tensor holds."""
    if is_derived_number(derived):
        return isinstance(recorded, (int, float)) and isinstance(derived, torch.SymFloat) == isinstance(recorded, float)
    if not isinstance(recorded, torch.Tensor) or not isinstance(derived, torch.Tensor):
        return isinstance(recorded, StoredObject) and not isinstance(derived, (torch.Tensor, int, float))
    if recorded.dtype is not derived.dtype or recorded.dim() != derived.dim():
        return False
    return all(is_derived_number(d) or r == d for r, d in zip(recorded.shape, derived.shape, strict=True))
