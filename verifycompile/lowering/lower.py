"""Lower the nodes of one captured program to views of terms.

Only nodes that an output needs are lowered. A node that no declaration covers becomes an unknown: a term equal to
nothing else, so that everything computed from it stays unproved, with the node named as the blocker.
"""

from __future__ import annotations

import operator as python_operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.ir.budget import BudgetExceededError
from verifycompile.ir.build import ShapeError
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import NonFiniteScalarError
from verifycompile.ir.size import Size, exact_quotient, normalize_size
from verifycompile.ir.term import Operation, Term, TermPool, View, identity_view
from verifycompile.program import Blocker, Program, Role
from verifycompile.rewrites import catalogue as _catalogue  # registers every declaration
from verifycompile.rewrites.builder import UNKNOWN_NAME, Builder, Call, Memory
from verifycompile.rewrites.creation import LARGEST_CONSTANT, stored
from verifycompile.rewrites.custom_operators import Recognised, recognise
from verifycompile.rewrites.layout import piece_of
from verifycompile.rewrites.ragged import call_ragged
from verifycompile.rewrites.random import RANDOM
from verifycompile.rewrites.registry import (
    EXHAUSTED,
    UNDECLARED,
    UNREPRESENTABLE,
    UNSUPPORTED,
    UndefinedError,
    UnsupportedError,
    bind,
    declaration_of,
)
from verifycompile.rewrites.rows import Counts, Filled, Ragged, Sorted, Unsorted, laid_out
from verifycompile.rewrites.values import Group, Piece, Pieces
from verifycompile.torch_interface.evaluation import constant_value, real_tensors
from verifycompile.torch_interface.in_flight import in_flight, is_mark
from verifycompile.torch_interface.prims import READ_NUMBER
from verifycompile.torch_interface.schema import arguments_of, draws_random_numbers, names_of

UNKNOWN = Operation(UNKNOWN_NAME)

PROVABLE_DTYPES = frozenset(
    {
        torch.float64, torch.float32, torch.bfloat16, torch.float16,
        torch.int64, torch.int32, torch.bool, torch.complex32, torch.complex64, torch.complex128,
    }
)  # fmt: skip
"""Narrower integers wrap around and 8-bit floats saturate: a value of another dtype is an unknown."""

FAMILIES = _catalogue.FAMILIES

_SIZE_ARITHMETIC: dict[object, Callable[..., Any]] = {
    python_operator.add: python_operator.add,
    python_operator.sub: python_operator.sub,
    python_operator.mul: python_operator.mul,
    python_operator.neg: python_operator.neg,
}

_SORTS = (torch.ops.aten.sort.stable, torch.ops.aten.sort.default)
_WHOLE = (torch.int64, torch.int32)
_RAGGED = (Ragged, Filled, Sorted, Unsorted)

_TAKES_PIECES = frozenset({torch.ops.aten.cat.default})

_READS_MEMORY = frozenset(
    {
        torch.ops.aten.as_strided.default,
        torch.ops.aten.as_strided_copy.default,
        torch.ops.aten.as_strided_scatter.default,
        torch.ops.aten._linalg_det.default,  # noqa: SLF001 - an operator
        torch.ops.aten._linalg_slogdet.default,  # noqa: SLF001 - an operator
    }
)


class Lowering:
    """Lowers one program into a pool. ``side`` ("spec" or "impl") keeps unknowns of the two programs apart."""

    def __init__(self, program: Program, pool: TermPool, side: str) -> None:
        self.program = program
        self.pool = pool
        self.side = side
        mesh = program.mesh.shape if program.mesh is not None else ()
        self.builder = Builder(pool, mesh, program.coordinates)
        self.values: dict[torch.fx.Node, Any] = {}
        self.blockers: dict[torch.fx.Node, Blocker] = {}
        self._undefined: set[torch.fx.Node] = set()
        """Nodes whose values may be no numbers: zero times such a value is not zero, so what takes it is unknown."""
        self.lemmas: dict[torch.fx.Node, tuple[tuple[str, str], ...]] = {}
        self.casts: dict[str, torch.fx.Node] = {}
        self.seconds: list[float] = []
        self._symbols = _input_symbols(program)
        self.counts = Counts()
        self._laid_out: dict[torch.fx.Node, View] = {}
        self.reads_counts = any(_reads_count(node) for node in program.graph.graph.nodes)
        if self.reads_counts:
            self.counts.lengths |= self._lengths()
        self._blocked_by_program = {b.node: b for b in program.blockers if b.node is not None}
        for program_input in program.inputs:
            if program_input.role is Role.OPAQUE:
                self.values[program_input.node] = None

    # -- sizes

    def size(self, value: Any) -> Size:
        """A dimension recorded by torch as an int or a sympy expression over the unified symbols."""
        if isinstance(value, int):
            return value
        expression = sympy.sympify(value.node.expr if isinstance(value, torch.SymInt) else value)
        # A size that the program computes (from a tensor's content) is another number in the other program.
        own = {s: sympy.Symbol(f"{self.side}:{s}", positive=True) for s in expression.free_symbols - self._symbols}
        return normalize_size(expression.xreplace({**self.program.size_values, **own}))

    def shape_of(self, node: torch.fx.Node) -> tuple[Size, ...] | None:
        """Local shape that torch recorded for a tensor-valued node."""
        value = node.meta.get("val")
        return tuple(self.size(s) for s in value.shape) if isinstance(value, torch.Tensor) else None

    # -- lowering

    def provide(self, node: torch.fx.Node, value: Any) -> None:
        """Set the value of a placeholder."""
        self.values[node] = value

    def lower(self, targets: Iterable[torch.fx.Node]) -> None:
        """Lower ``targets`` and all that they need, operands first."""
        stack = [t for t in targets if t not in self.values]
        stack.reverse()
        while stack:
            node = stack[-1]
            if node in self.values:
                stack.pop()
                continue
            pending = [n for n in self._operands(node) if n not in self.values]
            if pending:
                stack.extend(reversed(pending))
                continue
            stack.pop()
            self._lower_node(node)

    def _operands(self, node: torch.fx.Node) -> Sequence[torch.fx.Node]:
        if is_size(node):
            # What a number is computed from matters where it is read from a tensor.
            return node.all_input_nodes if self.reads_counts else ()
        if node.name in self.program.groups:
            return ()
        if node.op == "call_function" and _draws_undeclared(node):
            return ()  # whatever the memory holds that it fills
        split = whole_split(node)
        return node.all_input_nodes if split is None else (split,)

    def _lower_node(self, node: torch.fx.Node) -> None:
        started, before = time.perf_counter(), len(self.pool.lemma_trace)
        self.values[node] = self._checked_value(node)
        self.seconds.append(time.perf_counter() - started)
        if len(self.pool.lemma_trace) > before:
            self.lemmas[node] = tuple(self.pool.lemma_trace[before:])

    def _checked_value(self, node: torch.fx.Node) -> Any:
        try:
            with self.pool.budget.node():
                return self._value(node)
        except UndefinedError as error:
            self._undefined.add(node)
            return self._unknown(node, error.code, error.message)
        except UnsupportedError as error:
            return self._unknown(node, error.code, error.message)
        except NonFiniteScalarError as error:
            self._undefined.add(node)
            return self._unknown(node, UNREPRESENTABLE, f"`{node.target}`: {error}")
        except BudgetExceededError as error:
            return self._unknown(node, EXHAUSTED, f"`{node.target}`: {error}")
        except (UnalignedError, ShapeError) as error:
            return self._unknown(node, UNREPRESENTABLE, f"`{node.target}`: {error}")
        except Exception as error:  # noqa: BLE001
            # A defect of a declaration must not end as a crash of the user's program; an unknown proves nothing.
            message = f"`{node.target}`: internal error, {type(error).__name__}: {error}"
            return self._unknown(node, UNREPRESENTABLE, message)

    def _value(self, node: torch.fx.Node) -> Any:
        if node in self._blocked_by_program:
            blocker = self._blocked_by_program[node]
            return self._unknown(node, blocker.code, blocker.message)
        if is_size(node):
            return self._size_value(node)
        if node.name in self.program.groups:
            return Group(self.program.groups[node.name])
        if node.op == "get_attr":
            return self._constant(node)
        if node.op == "placeholder":
            return self._unknown(node, UNREPRESENTABLE, f"the input `{node.name}` has no counterpart in the spec")
        if node.op != "call_function":
            return self._unknown(node, UNREPRESENTABLE, f"a graph node of kind `{node.op}`")
        undefined = next((operand for operand in node.all_input_nodes if operand in self._undefined), None)
        if undefined is not None:
            self._undefined.add(node)
            return self._unknown(node, self.blockers[undefined].code, self.blockers[undefined].message)
        if node.target is python_operator.getitem:
            empty = self._without_elements(node)
            if empty is not None:
                return empty
            return piece_of(self.values[node.args[0]], node.args[1])  # pyright: ignore[reportArgumentType]
        return self._call(node)

    def _size_value(self, node: torch.fx.Node) -> Any:
        """The number that torch recorded; where the node is arithmetic, its operands' numbers must give the same."""
        if _reads_count(node):
            self._note_count(node.meta["val"], self.values[node.all_input_nodes[0]])
        value = self._number(node.meta["val"])
        if node.target not in _SIZE_ARITHMETIC or isinstance(value, (bool, float)):
            return value
        operands = [self._number(a.meta["val"]) if isinstance(a, torch.fx.Node) else a for a in node.args]
        computed = _SIZE_ARITHMETIC[node.target](*(sympy.sympify(o) for o in operands))
        if sympy.simplify(computed - sympy.sympify(value)) == 0:
            return value
        return self._unknown(
            node, UNREPRESENTABLE, f"`{node.name}` is recorded as {value} where its operands give {computed}"
        )

    def _note_count(self, number: torch.SymInt, value: Any) -> None:
        """A number that the program reads from a tensor."""
        symbol = number.node.expr
        if isinstance(symbol, sympy.Symbol) and symbol not in self._symbols and isinstance(value, View):
            self.counts.views.setdefault(symbol, value)

    def _lengths(self) -> set[sympy.Basic]:
        """Symbols that are sizes of tensors: torch raises an error where one is below zero."""
        return {
            size.node.expr
            for node in self.program.graph.graph.nodes
            for value in _tensors(node.meta.get("val"))
            for size in value.shape
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol)
        }

    def _call(self, node: torch.fx.Node) -> Any:
        self._laid_out = {}
        if self.reads_counts and self._is_ragged(node):
            try:
                return self._ragged_call(node)
            except UnsupportedError:
                if not self._lay_out_sorted(node):
                    raise
        empty = self._without_elements(node)
        if empty is not None:
            return empty
        declaration = declaration_of(node.target)
        if _draws_undeclared(node):
            return self._unknown(node, UNSUPPORTED, f"`{node.target}` {RANDOM}")
        if declaration is None:
            recognised = recognise(node.target)
            if recognised is not None:
                return self._custom_call(node, recognised)
            return self._unknown(node, UNDECLARED, _undeclared(node))
        keep_pieces = node.target in _TAKES_PIECES
        split = whole_split(node)
        if split is not None and isinstance(self.values[split], Pieces):
            args = [self.values[split], *node.args[1:]]
        else:
            for piece in node.all_input_nodes:
                if piece not in self.values:  # of an operator that gives no pieces of one tensor, as `unbind`
                    self._lower_node(piece)
            args = [self._argument(a, keep_pieces) for a in node.args]
        kwargs = {k: self._argument(a, keep_pieces) for k, a in node.kwargs.items()}
        self.builder.call = Call(
            self._dtypes(node), self.shape_of(node), _dtype(node), self._elements(node), _memory_read(node)
        )
        self._check_type(node)
        value = declaration.handler(self.builder, **bind(declaration, args, kwargs))
        self._check_result(node, value)
        self._note_cast(node)
        return value

    def _lay_out_sorted(self, node: torch.fx.Node) -> bool:
        """Whether all operands of a call can be written as tensors of known sizes, as they now are."""
        found: dict[torch.fx.Node, View] = {}
        for operand in node.all_input_nodes:
            value = self.values.get(operand)
            if isinstance(value, (Ragged, Unsorted)):
                self.builder.call = Call()
                view = laid_out(self.builder, self.counts, value)
                if view is None:
                    return False
                found[operand] = view
            elif _is_ragged_value(value) or self.counts.occur_in(value):
                return False
        self._laid_out = found
        return not self._has_unknown_size(node)

    def _without_elements(self, node: torch.fx.Node) -> Any:
        """The value of a node all of whose tensors have no elements, else None.

        Whatever computes it: a tensor without elements equals every other one of its shape.
        """
        recorded = node.meta.get("val")
        values = list(recorded) if isinstance(recorded, (list, tuple)) else [recorded]
        shapes = [tuple(map(self.size, v.shape)) for v in values if isinstance(v, torch.Tensor)]
        if not shapes or len(shapes) < len(values) or not all(0 in shape for shape in shapes):
            return None
        empty = [self.builder.full(0, shape) for shape in shapes]
        return empty[0] if isinstance(recorded, torch.Tensor) else tuple(empty)

    def _is_ragged(self, node: torch.fx.Node) -> bool:
        """Whether an operand or a size of a call is of a length that the program reads from a tensor."""
        if any(_is_ragged_value(self.values.get(operand)) for operand in node.all_input_nodes):
            return True
        if any(self.counts.occur_in(self.values.get(operand)) for operand in node.all_input_nodes):
            return True
        return _sorts(node) or self._has_unknown_size(node)

    def _has_unknown_size(self, node: torch.fx.Node) -> bool:
        sizes = [size for value in _tensors(node.meta.get("val")) for size in value.shape]
        return any(isinstance(s, torch.SymInt) and self._is_unknown(s.node.expr) for s in sizes)

    def _is_unknown(self, expression: sympy.Basic) -> bool:
        return bool(expression.free_symbols - self._symbols - set(self.program.coordinates))

    def _ragged_call(self, node: torch.fx.Node) -> Any:
        if draws_random_numbers(node.target, node.args, node.kwargs):
            raise UnsupportedError(UNSUPPORTED, f"`{node.target}` {RANDOM}")
        args = [self._argument(a, False) for a in node.args]
        kwargs = {k: self._argument(a, False) for k, a in node.kwargs.items()}
        self.builder.call = Call(self._dtypes(node), None, _dtype(node))
        self._check_type(node)
        recognised = recognise(node.target) if declaration_of(node.target) is None else None
        if recognised is None:
            value = call_ragged(self.builder, self.counts, node.target, args, kwargs)
        else:
            value = recognised.call_of_rows(self.builder, self.counts, self._custom_arguments(node))
        recorded = _tensors(node.meta.get("val"))
        for found, tensor in zip(value if isinstance(value, tuple) else (value,), recorded, strict=True):
            self._check_ragged(node, found, tensor)
        self._note_cast(node)
        return value

    def _check_ragged(self, node: torch.fx.Node, value: Any, recorded: torch.Tensor) -> None:
        """All sizes but the number of rows must be those that torch recorded; a new symbol is that number."""
        shape = [size.node.expr if isinstance(size, torch.SymInt) else size for size in recorded.shape]
        unknown = [d for d, size in enumerate(shape) if not isinstance(size, int) and self._is_unknown(size)]
        if isinstance(value, (Sorted, Unsorted)):
            self._require_places(node, value, shape)
            return
        view = value.row if isinstance(value, Filled) else value.view if isinstance(value, Ragged) else value
        found = list(self.builder.shape(view))
        sorting = self.counts.sortings.get(value.rows) if isinstance(value, Ragged) else None
        if isinstance(value, Ragged) and sorting is not None and not unknown:
            found[value.dim] = sorting.length
        expected = [value.dim] if _is_ragged_value(value) and (sorting is None or unknown) else []
        if len(found) == len(shape) and unknown == expected:
            for dim in unknown:
                found[dim] = shape[dim]
            if all(sympy.simplify(sympy.sympify(a) - b) == 0 for a, b in zip(found, shape, strict=True)):
                for dim in unknown:
                    symbol = shape[dim]
                    if isinstance(value, Ragged) and isinstance(symbol, sympy.Symbol):
                        self.counts.views.setdefault(symbol, self.builder.sum(value.rows.present, [0]))
                return
        raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` has shape {shape}, its declaration {found}")

    def _require_places(self, node: torch.fx.Node, value: Sorted | Unsorted, shape: list[Any]) -> None:
        """Of all rows there are as many as torch recorded; of rows that are read from data, some number."""
        fits = len(shape) == 1 and (value.source is not None or sympy.simplify(shape[0] - value.length) == 0)
        if not fits:
            raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` has shape {shape}, where rows are sorted")

    def _custom_call(self, node: torch.fx.Node, recognised: Recognised) -> Any:
        """An operator of another library, read as a function that it was found equal to."""
        operands = self._custom_arguments(node)
        self.builder.call = Call(self._dtypes(node), self.shape_of(node), _dtype(node))
        self._check_type(node)
        value = recognised.call(self.builder, operands)
        self._check_result(node, value)
        return value

    def _custom_arguments(self, node: torch.fx.Node) -> list[Any]:
        """The arguments in the order of the schema."""
        arguments = {**dict(zip(names_of(node.target), node.args, strict=False)), **node.kwargs}
        return [self._argument(arguments[name], False) for name in names_of(node.target)]

    def _argument(self, argument: Any, keep_pieces: bool) -> Any:
        if isinstance(argument, torch.fx.Node):
            value = self.values[argument]
            if value is None and argument in self.blockers:  # a number that is read from a tensor
                raise UnsupportedError(self.blockers[argument].code, self.blockers[argument].message)
            if isinstance(value, (Ragged, Unsorted)) and argument in self._laid_out:
                return self._laid_out[argument]
            if isinstance(value, Piece) and not keep_pieces:
                value = self.values[argument] = self._piece(argument, value)
            if isinstance(value, View) and 0 in value.shape:
                return self.builder.full(0, self.builder.shape(value))
            return value
        if isinstance(argument, (list, tuple)):
            return [self._argument(a, keep_pieces) for a in argument]
        if isinstance(argument, str) and argument in self.program.groups:
            return Group(self.program.groups[argument])
        if isinstance(argument, (torch.SymInt, torch.SymFloat)):
            return self._number(argument)
        return argument

    def _piece(self, node: torch.fx.Node, piece: Piece) -> View:
        try:
            return piece.view(self.builder)
        except (UnsupportedError, UnalignedError, ShapeError) as error:
            return self._unknown(node, UNREPRESENTABLE, f"a piece of a split: {error}")

    def view(self, node: torch.fx.Node) -> View | None:
        """The value of a lowered node where it is one tensor."""
        value = self.values.get(node)
        if isinstance(value, Piece):
            value = self.values[node] = self._piece(node, value)
        if isinstance(value, (Ragged, Unsorted)):
            self.builder.call = Call()
            return laid_out(self.builder, self.counts, value)
        return value if isinstance(value, View) else None

    def has_read_rows(self, node: torch.fx.Node) -> bool:
        """Whether the number of rows of a lowered node, or their order, is read from data."""
        return _is_ragged_value(self.values.get(node))

    def unknowns(self, nodes: Iterable[torch.fx.Node]) -> set[str] | None:
        """Names of the nodes without a known value that the values of ``nodes`` are made of; None where not known.

        With those that such a node itself reads.
        """
        views = [self.view(node) for node in nodes]
        if any(view is None for view in views):
            return None
        blocked = {node.name: node for node in self.blockers}
        found: set[str] = set()
        seen: set[Term] = set()
        pending = [view.term for view in views if view is not None]
        while pending:
            term = pending.pop()
            if term in seen:
                continue
            seen.add(term)
            pending.extend(operand.term for operand in term.operands)
            if term.operation is UNKNOWN and term.attributes[0] == self.side:
                name = str(term.attributes[1])
                found.add(name)
                read = (self.view(operand) for operand in blocked[name].all_input_nodes if operand in self.values)
                pending.extend(view.term for view in read if view is not None)
        return found

    def _number(self, value: Any) -> Any:
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        unknown = value.node.expr.free_symbols - self._symbols - set(self.program.coordinates)
        if unknown - self.counts.views.keys():
            raise UnsupportedError(UNREPRESENTABLE, f"the number `{value.node.expr}` is read from a tensor")
        expression = value.node.expr.xreplace(dict(self.program.size_values))
        return int(expression) if getattr(expression, "is_Integer", False) else expression

    # -- checks

    def _dtypes(self, node: torch.fx.Node) -> Mapping[str, torch.dtype]:
        arguments = arguments_of(node.target)
        if arguments is None:
            return {}
        found: dict[str, torch.dtype] = {}
        for argument, actual in zip(arguments, node.args, strict=False):
            nodes = actual if isinstance(actual, (list, tuple)) else (actual,)
            dtypes = {_dtype(n) for n in nodes if isinstance(n, torch.fx.Node)}
            dtype = dtypes.pop() if len(dtypes) == 1 else None
            if dtype is not None:
                found[argument.name] = dtype
        return found

    def _elements(self, node: torch.fx.Node) -> tuple[Call, ...] | None:
        """The call of each element where an operator takes and gives lists of tensors of one length."""
        results = node.meta.get("val")
        arguments = arguments_of(node.target)
        given = {a.name: v for a, v in zip(arguments or (), node.args, strict=False)} | dict(node.kwargs)
        lists = [v for v in given.values() if isinstance(v, (list, tuple)) and all(map(_dtype, v))]
        if not isinstance(results, (list, tuple)) or not lists or any(len(v) != len(results) for v in lists):
            return None
        calls: list[Call] = []
        for position, result in enumerate(results):
            own = {name: v[position] if isinstance(v, (list, tuple)) else v for name, v in given.items()}
            dtypes = {name: dtype for name, v in own.items() if (dtype := _dtype(v)) is not None}
            calls.append(Call(dtypes, tuple(self.size(s) for s in result.shape), result.dtype))
        return tuple(calls)

    def _check_type(self, node: torch.fx.Node) -> None:
        values = node.meta.get("val")
        if isinstance(values, list) and self.builder.call.elements is None:  # pieces of one tensor, all of its dtype
            values = values[:1]
        tensors: Sequence[Any] = values if isinstance(values, (list, tuple)) else (values,)
        for value in tensors:
            if not isinstance(value, torch.Tensor):
                continue
            if value.dtype not in PROVABLE_DTYPES:
                raise UnsupportedError(UNSUPPORTED, f"`{node.target}` gives a tensor of {value.dtype}")
            sizes = [s for s in value.shape if isinstance(s, torch.SymInt)]
            if any(s.node.expr.free_symbols & set(self.program.coordinates) for s in sizes):
                raise UnsupportedError("VC204", f"`{node.target}` gives a tensor whose shape depends on the rank")

    def _check_result(self, node: torch.fx.Node, value: Any) -> None:
        """The declaration's shapes must be those that torch recorded."""
        recorded = node.meta.get("val")
        if isinstance(value, Pieces):
            return
        if isinstance(value, View):
            if not isinstance(recorded, torch.Tensor):
                raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` is declared to give one tensor")
            pairs: list[tuple[View | None, Any]] = [(value, recorded)]
        else:
            pairs = list(zip(value, recorded or (), strict=False))
        for view, tensor in pairs:
            if view is None or not isinstance(tensor, torch.Tensor):
                continue
            shape = tuple(self.size(s) for s in tensor.shape)
            if self.builder.shape(view) != shape and any(
                sympy.simplify(sympy.sympify(a) - sympy.sympify(b)) != 0
                for a, b in zip((*self.builder.shape(view), len(shape)), (*shape, self.builder.rank(view)), strict=True)
            ):
                raise UnsupportedError(
                    UNREPRESENTABLE, f"`{node.target}` has shape {shape}, its declaration {self.builder.shape(view)}"
                )

    def _note_cast(self, node: torch.fx.Node) -> None:
        for call in self.builder.call.elements or (self.builder.call,):
            if str(node.target) == "aten._to_copy.default" and "dtype" in node.kwargs:
                source, target = call.dtypes.get("self"), node.kwargs["dtype"]
            elif str(node.target) in ("aten.copy.default", "aten._foreach_copy.default"):
                source, target = call.dtypes.get("src"), call.dtypes.get("self")
            else:
                return
            if source != target and source is not None and target is not None:
                self.casts.setdefault(f"{source} to {target}".replace("torch.", ""), node)

    # -- leaves

    def _unknown(self, node: torch.fx.Node, code: str, message: str) -> Any:
        self.blockers[node] = Blocker(node, code, message)
        recorded = node.meta.get("val")
        if isinstance(recorded, (list, tuple)):
            return tuple(self._unknown_tensor(node, v, k) for k, v in enumerate(recorded))
        return self._unknown_tensor(node, recorded, 0)

    def _unknown_tensor(self, node: torch.fx.Node, recorded: Any, position: int) -> View | None:
        if not isinstance(recorded, torch.Tensor):
            return None
        shape = (*self.builder.mesh, *(self.size(s) for s in recorded.shape))
        if any(size != 0 and exact_quotient(size, size) is None for size in shape):
            return None  # of a size that depends on the rank and may be zero: no digits say an index
        term = self.pool.intern(UNKNOWN, (self.side, node.name, position), (), shape, len(shape), 0, (), ())
        return identity_view(term)

    def _constant(self, node: torch.fx.Node) -> Any:
        """A tensor stored in the graph. Its content is its identity: equal contents are equal terms."""
        value: Any = self.program.graph
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if not isinstance(value, torch.Tensor):
            return value
        content = constant_content(value)
        if content is None:
            return self._unknown(node, UNREPRESENTABLE, f"the constant `{node.target}` has no readable content")
        if value.dim() == 0:
            return self.builder.number(content[0])
        return stored(self.builder, value.dtype, tuple(value.shape), content)


def _undeclared(node: torch.fx.Node) -> str:
    if is_mark(node, in_flight):
        return "a tensor that a collective writes is read before the program waits for it, or where it stays undefined"
    return f"operator `{node.target}` has no declaration"


def _draws_undeclared(node: torch.fx.Node) -> bool:
    return declaration_of(node.target) is None and draws_random_numbers(node.target, node.args, node.kwargs)


def whole_split(node: torch.fx.Node) -> torch.fx.Node | None:
    """The split whose pieces, all of them and in order, a concatenation puts together.

    An all-gather along an inner dimension is written so, with one piece a rank; reading the pieces one by one
    would make the cost grow with the degree of parallelism.
    """
    if node.target not in _TAKES_PIECES:
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


def _input_symbols(program: Program) -> frozenset[sympy.Basic]:
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


def _reads_count(node: torch.fx.Node) -> bool:
    """Whether a node reads a whole number from a tensor, or gives a tensor whose size another's content says."""
    if _sorts(node):
        return True
    if node.target is READ_NUMBER:
        return isinstance(node.meta.get("val"), torch.SymInt)
    return node.target is torch.ops.aten.nonzero.default or _takes_by_mask(node)


def _takes_by_mask(node: torch.fx.Node) -> bool:
    if node.target is not torch.ops.aten.index.Tensor:
        return False
    places: Any = node.args[1]
    return any(_dtype(place) is torch.bool for place in places)


def _sorts(node: torch.fx.Node) -> bool:
    """Whether a node sorts one row, which may be by whole numbers below a bound."""
    value = node.meta.get("val")
    tensors = _tensors(value)
    return node.target in _SORTS and bool(tensors) and tensors[-1].dim() == 1 and _dtype(node.args[0]) in _WHOLE


def _is_ragged_value(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(isinstance(v, _RAGGED) for v in value)
    return isinstance(value, _RAGGED)


def _tensors(recorded: Any) -> list[torch.Tensor]:
    values = recorded if isinstance(recorded, (list, tuple)) else (recorded,)
    return [value for value in values if isinstance(value, torch.Tensor)]


def is_size(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _memory_read(node: torch.fx.Node) -> Memory | None:
    """How the operand of an operator that reads through its memory lies there, where that is a matter of numbers."""
    source = node.args[0] if node.target in _READS_MEMORY else None
    recorded = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    if not isinstance(recorded, torch.Tensor) or recorded.layout is not torch.strided:
        return None
    strides, offset = recorded.stride(), recorded.storage_offset()
    if any(isinstance(number, torch.SymInt) for number in (*strides, offset)):
        return None
    return Memory(tuple(strides), int(offset))
