"""What torch recorded of the nodes of a captured graph: sizes, dtypes, memory, stored tensors."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.program import Program
from verifycompile.rewrites.building.numbers import DOUBLE_DTYPES, LARGEST_CONSTANT, Memory
from verifycompile.torch_interface.operators.elements import constant_value, real_tensors
from verifycompile.torch_interface.operators.prims import READ_NUMBER
from verifycompile.torch_interface.operators.schema import names_of

# Tuples: torch computes the hash of an operator in Python, while a few comparisons of objects cost nothing.
TAKES_PIECES = (torch.ops.aten.cat.default,)
"""Operators that take the pieces of a split as they are."""
DECIDES_SIZE = (torch.ops.aten.bincount.default,)
"""Operators whose declarations know a size that torch leaves open."""
_SORTS = (torch.ops.aten.sort.stable, torch.ops.aten.sort.default)
_MAY_READ_COUNTS = (READ_NUMBER, torch.ops.aten.nonzero.default, torch.ops.aten.index.Tensor, *_SORTS)
_WHOLE = (torch.int64, torch.int32)
_READS_MEMORY = (
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
    torch.ops.aten._linalg_det.default,  # noqa: SLF001 - an operator
    torch.ops.aten._linalg_slogdet.default,  # noqa: SLF001 - an operator
)


def dtypes_of(node: torch.fx.Node) -> Mapping[str, torch.dtype]:
    """Argument -> dtype, where all tensors of the argument have one."""
    found: dict[str, torch.dtype] = {}
    for argument, actual in (*zip(names_of(node.target), node.args, strict=False), *node.kwargs.items()):
        nodes = actual if isinstance(actual, (list, tuple)) else (actual,)
        dtypes = {dtype_of(n) for n in nodes if isinstance(n, torch.fx.Node)}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        if dtype is not None:
            found[argument] = dtype
    return found


def dtype_of(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def computes_in_double(program: Program) -> bool:
    """Whether any tensor of a program is held in double precision."""
    recorded = [node.meta.get("val") for node in program.graph.graph.nodes]
    dtypes = {value.dtype for value in recorded if isinstance(value, torch.Tensor)}
    several = [values for values in recorded if isinstance(values, (list, tuple))]
    dtypes |= {tensor.dtype for values in several for tensor in tensors_of(values)}
    return not dtypes.isdisjoint(DOUBLE_DTYPES)


def tensors_of(recorded: Any) -> list[torch.Tensor]:
    values = recorded if isinstance(recorded, (list, tuple)) else (recorded,)
    return [value for value in values if isinstance(value, torch.Tensor)]


def reads_place(node: torch.fx.Node) -> bool:
    """Whether a node gives a coordinate of its rank."""
    return str(node.target) == "device_mesh._runtime_compute_coordinate_on_dim.default"


def is_size(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def reads_counts(program: Program) -> bool:
    """Whether any node of a program does."""
    return any(reads_count(node) for node in program.graph.graph.nodes if node.target in _MAY_READ_COUNTS)


def reads_count(node: torch.fx.Node) -> bool:
    """Whether a node reads a whole number from a tensor, or gives a tensor whose size another's content says."""
    if sorts(node):
        return True
    if node.target is READ_NUMBER:
        return isinstance(node.meta.get("val"), torch.SymInt)
    return node.target is torch.ops.aten.nonzero.default or _takes_by_mask(node)


def _takes_by_mask(node: torch.fx.Node) -> bool:
    if node.target is not torch.ops.aten.index.Tensor:
        return False
    places: Any = node.args[1]
    return any(dtype_of(place) is torch.bool for place in places)


def sorts(node: torch.fx.Node) -> bool:
    """Whether a node sorts one row, which may be by whole numbers below a bound."""
    if node.target not in _SORTS or dtype_of(node.args[0]) not in _WHOLE:
        return False
    tensors = tensors_of(node.meta.get("val"))
    return bool(tensors) and tensors[-1].dim() == 1


def whole_split(node: torch.fx.Node) -> torch.fx.Node | None:
    """The split whose pieces, all of them and in order, a concatenation assembles.

    An all-gather along an inner dimension is written so, with one piece a rank; reading the pieces one by one
    would make the cost grow with the degree of parallelism.
    """
    if node.target not in TAKES_PIECES:
        return None
    pieces = node.args[0]
    if not isinstance(pieces, (list, tuple)) or len(pieces) < 2:
        return None
    first = pieces[0]
    if not isinstance(first, torch.fx.Node) or first.target is not python_operator.getitem:
        return None
    split = first.args[0]
    if not isinstance(split, torch.fx.Node) or len(split.meta.get("val", ())) != len(pieces):
        return None
    for index, piece in enumerate(pieces):
        if not isinstance(piece, torch.fx.Node) or piece.target is not python_operator.getitem:
            return None
        if piece.args != (split, index):
            return None
    return split


def constant_content(value: torch.Tensor) -> tuple[Any, ...] | None:
    """Elements of a real tensor; None for a fake one, or one too large to compare."""
    with real_tensors():
        real = constant_value(value)
        if real is None or real.numel() > LARGEST_CONSTANT:
            return None
        return tuple(real.flatten().tolist())


def input_symbols(program: Program) -> frozenset[sympy.Basic]:
    """Size symbols that the program's inputs have; any other symbol stands for a number read from a tensor."""
    found: set[sympy.Basic] = set()
    for program_input in program.inputs:
        value = program_input.node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                found |= size.node.expr.free_symbols
    for symbol, expression in program.size_values.items():
        if symbol in found:
            found |= expression.free_symbols
    return frozenset(found)


def reads_memory(node: torch.fx.Node) -> bool:
    """Whether an operator reads its operand through the operand's memory."""
    return node.target in _READS_MEMORY


def memory_read(node: torch.fx.Node) -> Memory | None:
    """How the operand of an operator that reads through its memory lies there, where that is a matter of numbers."""
    source = node.args[0] if reads_memory(node) else None
    recorded = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    if not isinstance(recorded, torch.Tensor) or recorded.layout is not torch.strided:
        return None
    strides, offset = recorded.stride(), recorded.storage_offset()
    if any(isinstance(number, torch.SymInt) for number in (*strides, offset)):
        return None
    return Memory(tuple(strides), int(offset))
