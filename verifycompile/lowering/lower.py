"""Lower the nodes of one captured program to views of terms.

Only nodes that an output needs are lowered. A node that no declaration covers becomes an unknown: a term equal to
nothing else, so that everything computed from it stays unproved, with the node named as the blocker.
"""

from __future__ import annotations

import functools
import operator as python_operator
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
import torch.fx

from verifycompile.ir import limit
from verifycompile.ir.budget import BudgetExceededError
from verifycompile.ir.build import ShapeError
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import NonFiniteScalarError
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.checks import casts_of, check_operands, check_result, check_type
from verifycompile.lowering.recorded import (
    TAKES_PIECES,
    constant_content,
    dtype_of,
    dtypes_of,
    is_size,
    memory_read,
    reads_count,
    reads_place,
    whole_split,
)
from verifycompile.lowering.sizes import Sizes
from verifycompile.program import Blocker, Program, Role
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.operators.layout import piece_of
from verifycompile.rewrites.registry import (
    EXHAUSTED,
    UNREPRESENTABLE,
    Group,
    RandomError,
    UndefinedError,
    UnsupportedError,
    bind,
    declaration_of,
)
from verifycompile.rewrites.side_conditions import solver
from verifycompile.rewrites.values import Piece, Pieces, ReadRows, are_read_rows
from verifycompile.torch_interface.operators.prims import reads_real_number
from verifycompile.torch_interface.operators.schema import draws_random_numbers

if TYPE_CHECKING:
    from verifycompile.lowering.ragged import ReadRowsCalls
    from verifycompile.lowering.undeclared import UndeclaredCalls

_TAKES_REAL_NUMBERS = (
    *(getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul", "div")),
    torch.ops.aten.rsub.Scalar,
)
_SIZE_ARITHMETIC = (python_operator.add, python_operator.sub, python_operator.mul, python_operator.neg)


class Lowering:
    """Lowers one program into a pool. ``side`` ("spec" or "impl") keeps unknowns of the two programs apart."""

    def __init__(self, program: Program, pool: TermPool, side: str) -> None:
        self.program = program
        self.pool = pool
        self.side = side
        mesh = program.mesh.shape if program.mesh is not None else ()
        self.builder = Builder(pool, mesh, program.coordinates, takes_facts=side == "spec")
        self.values: dict[torch.fx.Node, Any] = {}
        self.blockers: dict[torch.fx.Node, Blocker] = {}
        self._undefined: set[torch.fx.Node] = set()
        """Nodes whose values may be no numbers: zero times such a value is not zero, so what takes it is unknown."""
        self.lemmas: dict[torch.fx.Node, tuple[tuple[str, str], ...]] = {}
        self.solved: set[torch.fx.Node] = set()
        """Nodes in whose normal form the solver proved something."""
        self.casts: dict[str, torch.fx.Node] = {}
        self.seconds: list[float] = []
        self.sizes = Sizes(program, side)
        self._call_under_way: torch.fx.Node
        self._laid_out: dict[torch.fx.Node, View] = {}
        self._blocked_by_program = {b.node: b for b in program.blockers if b.node is not None}
        for program_input in program.inputs:
            if program_input.role is Role.OPAQUE:
                self.values[program_input.node] = None

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
        if node.name in self.program.groups:
            return ()
        if node.op == "call_function" and _draws_undeclared(node):
            return ()  # whatever the memory holds that it fills
        split = whole_split(node)
        return node.all_input_nodes if split is None else (split,)

    def _lower_node(self, node: torch.fx.Node) -> None:
        limit.note_place(node)
        started, before, proved = time.perf_counter(), len(self.pool.lemma_trace), solver.number_proved()
        outside, self.pool.place = self.pool.place, f"{self.side}.{node.name}"
        self.values[node] = self._checked_value(node)
        self.pool.place = outside
        self.seconds.append(time.perf_counter() - started)
        if solver.number_proved() > proved:
            self.solved.add(node)
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
        except Exception as error:  # noqa: BLE001 - a defect of a declaration is no crash of the user's program
            message = f"`{node.target}`: internal error, {type(error).__name__}: {error}"
            return self._unknown(node, UNREPRESENTABLE, message)

    def _value(self, node: torch.fx.Node) -> Any:
        if node in self._blocked_by_program:
            blocker = self._blocked_by_program[node]
            return self._unknown(node, blocker.code, blocker.message)
        if is_size(node):
            return self.size_value(node)
        if node.name in self.program.groups:
            return Group(self.program.groups[node.name])
        if node.op == "get_attr":
            return self.constant(node, self.program.graph)
        if node.op == "placeholder":
            name = _name(node, self.program)
            return self._unknown(node, UNREPRESENTABLE, f"the input `{name}` has no counterpart in the other program")
        if node.op != "call_function":
            return self._unknown(node, UNREPRESENTABLE, f"a graph node of kind `{node.op}`")
        undefined = next((operand for operand in self._operands(node) if operand in self._undefined), None)
        if undefined is not None:
            self._undefined.add(node)
            return self._unknown(node, self.blockers[undefined].code, self.blockers[undefined].message)
        if node.target is python_operator.getitem:
            empty = self._without_elements(node)
            return self.element(node) if empty is None else empty
        self._call_under_way = node
        return self.call(node)

    def element(self, node: torch.fx.Node) -> Any:
        """One of the results of a call. Raises ``UnsupportedError`` for one that has no value."""
        source: Any
        source, index = node.args
        found = piece_of(self.values[source], index)  # pyright: ignore[reportArgumentType]  # an argument that torch's schema makes a node
        recorded = node.meta.get("val")
        if isinstance(recorded, torch.Tensor):
            if found is None:
                self._refuse_unknown(source)
                raise UnsupportedError(UNREPRESENTABLE, f"`{source.target}`: result {index} is not declared")
            if self.sizes.shape(recorded) != self.sizes.shape(source.meta["val"][index]):
                raise UnsupportedError(UNREPRESENTABLE, f"`{_name(node)}` is recorded in another shape than its call")
        return found

    def size_value(self, node: torch.fx.Node) -> Any:
        """The number that torch recorded, which must be what the values of the node's operands give."""
        if reads_real_number(node) and isinstance(read := self.view(node.all_input_nodes[0]), View):
            return read
        if reads_count(node):
            self.sizes.note_count(node.meta["val"], self.values[node.all_input_nodes[0]])
        value = self.sizes.number(node.meta["val"])
        if reads_place(node):
            return value
        for operand in node.all_input_nodes:
            self._refuse_unknown(operand)
        if node.target in _SIZE_ARITHMETIC:
            operands = self.argument(node.args, False)
            computed: Any = node.target(*operands)  # pyright: ignore[reportCallIssue]  # one of these
        else:
            from verifycompile.lowering.numbers import number_of  # here, because few programs have symbolic sizes

            computed = number_of(self, node, value)
        sides: list[Any] = [sympy.sympify(side) for side in (computed, value)]
        are_numbers = all(isinstance(side, sympy.Expr) for side in sides)  # and no truths
        if sides[0] == sides[1] or (are_numbers and sympy.simplify(sides[0] - sides[1]) == 0):
            return value
        told = f"`{_name(node)}` is recorded as {value} where its operands give {computed}"
        raise UnsupportedError(UNREPRESENTABLE, told)

    def call(self, node: torch.fx.Node) -> Any:
        """The value of a call of operands that have values. Raises ``UnsupportedError``, as others that refuse."""
        self._laid_out = {}
        for operand in node.all_input_nodes:
            if is_size(operand) and isinstance(self.values[operand], View) and not _takes_real_number(node, operand):
                raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` with a number that is read from a tensor")
        if self.sizes.reads_counts and self.read_rows.are_read_by(node):
            try:
                return self.read_rows.call(node)
            except UnsupportedError:
                laid_out = self.read_rows.laid_out_operands(node)
                if laid_out is None:
                    raise
                self._laid_out = laid_out
        if (empty := self._without_elements(node)) is not None:
            return empty
        declaration = declaration_of(node.target)
        if _draws_undeclared(node):
            raise RandomError(f"`{node.target}`")
        if declaration is None:
            return self._undeclared.call(node)
        keep_pieces = node.target in TAKES_PIECES
        split = whole_split(node)
        if split is not None and isinstance(self.values[split], Pieces):
            args = [self.values[split], *node.args[1:]]
        else:
            for piece in node.all_input_nodes:
                if piece not in self.values:  # of an operator that gives no pieces of one tensor, as `unbind`
                    self._lower_node(piece)
            args = [self.argument(a, keep_pieces) for a in node.args]
        kwargs = {k: self.argument(a, keep_pieces) for k, a in node.kwargs.items()}
        self.builder.call = Call(
            dtypes_of(node), self.sizes.shape_of(node), dtype_of(node), self._elements(node), memory_read(node)
        )
        check_type(node, self.builder.call, self.program.coordinates)
        # A given spec may be of another precision than the inputs that the model takes.
        check_operands(node, self.builder.call, any_precision=self.side == "spec")
        call = self.builder.call
        try:
            value = declaration.handler(self.builder, **bind(declaration, args, kwargs))
            check_result(self.builder, self.sizes, node, value)
        except UndefinedError:
            raise
        except (UnsupportedError, UnalignedError, ShapeError) as refusal:
            return self._undeclared.unfolded_or(node, refusal)
        self.note_casts(node, call)
        return value

    @functools.cached_property
    def _undeclared(self) -> UndeclaredCalls:
        from verifycompile.lowering.undeclared import UndeclaredCalls  # here, because few programs have such calls

        return UndeclaredCalls(self)

    @functools.cached_property
    def read_rows(self) -> ReadRowsCalls:
        from verifycompile.lowering.ragged import ReadRowsCalls  # here, because few programs read rows from data

        return ReadRowsCalls(self)

    def note_casts(self, node: torch.fx.Node, call: Call) -> None:
        """Remember the casts of a call, at the call of the program that it is part of."""
        self.casts.update({cast: self.casts.get(cast, self._call_under_way) for cast in casts_of(node, call)})

    def _without_elements(self, node: torch.fx.Node) -> Any:
        """The value of a node all of whose tensors have no elements, else None."""
        recorded = node.meta.get("val")
        values = list(recorded) if isinstance(recorded, (list, tuple)) else [recorded]
        shapes = [self.sizes.shape(v) for v in values if isinstance(v, torch.Tensor)]
        if len(shapes) < len(values) or not all(0 in shape for shape in shapes):
            return None
        from verifycompile.lowering.unknowns import without_elements  # here, because few tensors are

        return without_elements(self, node, shapes)

    def _refuse_unknown(self, node: torch.fx.Node) -> None:
        """Raises ``UnsupportedError`` with what blocks a node."""
        if node in self.blockers:
            raise UnsupportedError(self.blockers[node].code, self.blockers[node].message)

    def argument(self, argument: Any, keep_pieces: bool) -> Any:
        """The value of an argument of a call. ``keep_pieces``: those of a split stay as they are."""
        if isinstance(argument, torch.fx.Node):
            value = self.values[argument]
            if value is None:
                self._refuse_unknown(argument)
            if isinstance(value, ReadRows) and argument in self._laid_out:
                return self._laid_out[argument]
            if isinstance(value, Piece) and not keep_pieces:
                value = self.values[argument] = self._piece(argument, value)
            if isinstance(value, View) and 0 in value.shape:
                return self.builder.full(0, self.builder.shape(value))
            return value
        if isinstance(argument, (list, tuple)):
            return [self.argument(a, keep_pieces) for a in argument]
        if isinstance(argument, str) and argument in self.program.groups:
            return Group(self.program.groups[argument])
        if isinstance(argument, (torch.SymInt, torch.SymFloat)):
            expression = self.sizes.expression(argument)
            if self.sizes.is_unknown(expression):  # a number of the same name in the other program is another one
                raise UnsupportedError(UNREPRESENTABLE, f"the number `{expression}` is read from a tensor")
            return self.sizes.number(argument)
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
        if isinstance(value, ReadRows):
            return self.read_rows.laid_out(value)
        return value if isinstance(value, View) else None

    def has_read_rows(self, node: torch.fx.Node) -> bool:
        """Whether the number of rows of a lowered node, or their order, is read from data."""
        return are_read_rows(self.values.get(node))

    def _elements(self, node: torch.fx.Node) -> tuple[Call, ...] | None:
        """The call of each element where an operator takes and gives lists of tensors."""
        takes_list = any(isinstance(argument, (list, tuple)) for argument in node.args)
        if not takes_list or not isinstance(node.meta.get("val"), (list, tuple)):
            return None
        from verifycompile.lowering.elements import calls_of_elements  # here, because few calls do

        return calls_of_elements(self.sizes, node)

    # -- leaves

    def _unknown(self, node: torch.fx.Node, code: str, message: str) -> Any:
        self.blockers[node] = Blocker(node, code, message)
        from verifycompile.lowering.unknowns import unknown_value  # here, because a proof needs none

        return unknown_value(self, node)

    def constant(self, node: torch.fx.Node, graph: torch.fx.GraphModule) -> Any:
        """A tensor stored in the graph. Its content is its identity: equal contents are equal terms."""
        value: Any = python_operator.attrgetter(str(node.target))(graph)
        if not isinstance(value, torch.Tensor):
            return value
        content = constant_content(value)
        if content is None:
            return self._unknown(node, UNREPRESENTABLE, f"the constant `{node.target}` has no readable content")
        self.builder.call = Call(dtype=value.dtype)
        from verifycompile.rewrites.operators.stored_tensors import stored  # here, because few programs store tensors

        return stored(self.builder, value.dtype, tuple(value.shape), content)


def _name(node: torch.fx.Node, program: Program | None = None) -> str:
    """A node as a message names it."""
    # Here, because they are for messages alone.
    from verifycompile.torch_interface.source_lines.value_names import names_of_inputs, value_name

    return value_name(node, None if program is None else names_of_inputs(program))


def _takes_real_number(node: torch.fx.Node, number: torch.fx.Node) -> bool:
    """Whether the number stands for a tensor without dimensions: as an operand, not as ``alpha``."""
    elsewhere = (*node.args[2:], *node.kwargs.values())
    return node.target in _TAKES_REAL_NUMBERS and number in node.args[:2] and number not in elsewhere


def _draws_undeclared(node: torch.fx.Node) -> bool:
    return declaration_of(node.target) is None and draws_random_numbers(node.target, node.args, node.kwargs)
