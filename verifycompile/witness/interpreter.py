"""Evaluation of a captured graph on all ranks at once.

The value of a node is one object a rank. Ranks whose operands are the same objects share one evaluation, so
replicated computation costs what it costs on one device. Collectives are evaluated across the ranks of each
group; no process group is used.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import sympy
import torch
import torch.fx

from verifycompile import bounds
from verifycompile.program import Mesh, Program
from verifycompile.torch_interface.operators.calls import by_name
from verifycompile.torch_interface.operators.elements import constant_value
from verifycompile.torch_interface.operators.evaluation import (
    is_view,
    operator_name,
    returns_fresh_memory,
    symbolic_expression,
)
from verifycompile.torch_interface.operators.schema import is_mutable, names_of
from verifycompile.torch_interface.source_lines.value_names import value_name
from verifycompile.walks import parts_first, reached
from verifycompile.witness import collectives, operators, rounding, ties
from verifycompile.witness.cost import ELEMENTS_OF_A_CALL, elements_of
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.layout import coordinates, shared
from verifycompile.witness.rounding import Rounding

RankValues = Sequence[object]
TOO_MUCH_WORK = "an evaluation on all ranks would take too long"
_COORDINATE = "device_mesh._runtime_compute_coordinate_on_dim.default"
_GROUP = "_dtensor.mesh_get_process_group.default"
_OPAQUE = object()
_OVERWRITING = ("aten.fill.", "aten.copy.", "aten.zero.")
"""Operators that take their first operand's shape and dtype, never its content."""


class Interpreter:
    """Values of one program's nodes, computed on demand and kept.

    ``inputs`` gives one value a rank for placeholders; a placeholder without a value fails what depends on it.
    ``filling``: what uninitialised memory is filled with, see ``operators.unset``. ``rounded``: where given, results
    are rounded otherwise than they were.
    """

    def __init__(
        self,
        program: Program,
        inputs: Mapping[torch.fx.Node, RankValues],
        filling: int | None = None,
        rounded: Rounding | None = None,
    ) -> None:
        self._program = program
        self._filling = filling
        self._rounding = rounded
        self._mesh_shape = program.mesh.shape if program.mesh is not None else ()
        self._coordinates = coordinates(self._mesh_shape)
        self._inputs: dict[torch.fx.Node, RankValues] = dict(inputs)
        self._values: dict[torch.fx.Node, RankValues] = dict(inputs)
        self.work = 0
        """Elements that were computed, as ``cost.elements`` counts them."""
        self.most_work = math.inf
        """With so many, an evaluation ends in an error."""
        self.uninitialised = False
        """Whether an evaluated operator returned uninitialised memory (filled here)."""
        self.unspecified = False
        """Whether an evaluated operator chose among equal elements as torch does not specify."""

    @property
    def ranks(self) -> int:
        return len(self._coordinates)

    @property
    def mesh(self) -> Mesh | None:
        return self._program.mesh

    def again(self, program: Program, changed: Container[torch.fx.Node]) -> Interpreter:
        """Of ``program``, the same graph in which ``changed`` nodes are others now, on the same inputs."""
        after = Interpreter(program, self._inputs, self._filling)
        after._values = {node: value for node, value in self._values.items() if node not in changed} | self._inputs
        after.uninitialised, after.unspecified = self.uninitialised, self.unspecified
        return after

    def forget(self, changed: Container[torch.fx.Node]) -> None:
        """Lets the values of ``changed`` nodes be computed again."""
        self._values = {node: value for node, value in self._values.items() if node not in changed} | self._inputs

    def withdraw(self, node: torch.fx.Node) -> None:
        """Takes a placeholder's values away."""
        self._inputs.pop(node, None)
        self.forget(descendants([node]))

    def on_other_inputs(self, inputs: Mapping[torch.fx.Node, RankValues]) -> Interpreter:
        """Of the same program, where these inputs are others; what depends on none of them is not computed again."""
        after = self.again(self._program, descendants(inputs))
        for node, values in inputs.items():
            after.provide(node, values)
        return after

    def provide(self, node: torch.fx.Node, values: RankValues) -> None:
        """Gives a placeholder its values, one a rank."""
        self._inputs[node] = values
        self._values[node] = values

    def with_filling(self, filling: int) -> Interpreter:
        """The same program on the same inputs, with uninitialised memory filled otherwise."""
        return Interpreter(self._program, self._inputs, filling)

    def with_rounding(self, rounding: Rounding) -> Interpreter:
        """The same program on the same inputs, with its results rounded otherwise."""
        return Interpreter(self._program, self._inputs, self._filling, rounding)

    def value(self, wanted: torch.fx.Node) -> RankValues:
        """The value of a node, one object a rank. Raises :class:`EvaluationError` where it has none."""
        return parts_first(self._values, wanted, lambda node: reversed(_dependencies(node)), self._evaluate)

    def _evaluate(self, node: torch.fx.Node) -> RankValues:
        bounds.check()
        if self.work > self.most_work:
            raise EvaluationError(TOO_MUCH_WORK)
        if node.op == "get_attr":
            return [self._constant(node)] * self.ranks
        if node.op != "call_function":
            raise EvaluationError(f"no value for the {node.op} `{value_name(node)}`")
        name = operator_name(node.target) or ""
        if name == _COORDINATE:
            return self._coordinate(node)
        if name == _GROUP:
            return [_OPAQUE] * self.ranks
        alike = self._alike(node)
        distinct = {rank: self._arguments(node, rank) for rank in dict.fromkeys(alike)}
        arguments = [distinct[rank] for rank in alike]
        if collectives.is_wait(name):
            return [args[0] for args, _ in arguments]
        if is_mutable(node.target) and not _overwrites_its_own(node):
            # Other readers of the memory, on this rank or on one that shares the value, would see the old value.
            raise EvaluationError(f"`{value_name(node)}` writes to a value that is read elsewhere")
        if collectives.is_collective(name):
            return self._collective(node, name, arguments, alike)
        if name == "aten.as_strided.default":
            _check_strides(node, list(distinct.values()))
        results = {rank: self._call(node, name, args, kwargs) for rank, (args, kwargs) in distinct.items()}
        return [results[rank] for rank in alike]

    def _alike(self, node: torch.fx.Node) -> list[int]:
        """For each rank the first one that has the same operands, with which it shares an evaluation."""
        operands = [self._values[operand] for operand in node.all_input_nodes]
        columns = [list(map(_identity, values)) for values in operands if len(set(map(id, values))) > 1]
        if not columns:
            return [0] * self.ranks
        first: dict[object, int] = {}
        return [first.setdefault(held, rank) for rank, held in enumerate(zip(*columns, strict=True))]

    def _constant(self, node: torch.fx.Node) -> object:
        value: object = operator.attrgetter(str(node.target))(self._program.graph)
        if not isinstance(value, torch.Tensor):
            return _OPAQUE
        constant = constant_value(value)
        if constant is None:
            raise EvaluationError(f"the constant {node.target} has no values")
        return operators.precise(constant.detach().clone())

    def _coordinate(self, node: torch.fx.Node) -> RankValues:
        symbol = symbolic_expression(node.meta.get("val"))
        axis = self._program.coordinates.get(symbol) if isinstance(symbol, sympy.Symbol) else None
        if axis is None:
            raise EvaluationError(f"`{value_name(node)}` is the coordinate of an unknown mesh axis")
        return [coordinate[axis] for coordinate in self._coordinates]

    def _arguments(self, node: torch.fx.Node, rank: int) -> tuple[tuple[object, ...], dict[str, object]]:
        def value_of(argument: torch.fx.Node) -> object:
            return self._values[argument][rank]

        args = tuple(_resolve(argument, value_of) for argument in node.args)
        return args, {name: _resolve(argument, value_of) for name, argument in node.kwargs.items()}

    def _call(self, node: torch.fx.Node, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        result = operators.evaluate(node.target, args, kwargs)
        self.work += max(0 if is_view(node.target) else elements_of(result), ELEMENTS_OF_A_CALL)
        self.unspecified = self.unspecified or ties.are_unspecified(node.target, name, args, kwargs)
        if name and operators.is_uninitialised(name):
            self.uninitialised = self.uninitialised or not _is_overwritten(node)
            return operators.unset(result, self._filling)
        if self._rounding is not None and not rounding.is_exact(node.target, name):
            return self._rounding.change(result)
        return result

    def _collective(
        self,
        node: torch.fx.Node,
        name: str,
        arguments: Sequence[tuple[tuple[object, ...], dict[str, object]]],
        alike: Sequence[int],
    ) -> RankValues:
        named = [by_name(node.target, args, kwargs) for args, kwargs in arguments]
        if "group_name" not in names_of(node.target):
            raise EvaluationError(f"{name} has no group")
        group = by_name(node.target, node.args, node.kwargs).get("group_name")
        axes = self._program.groups.get(group.name if isinstance(group, torch.fx.Node) else str(group))
        if axes is None:
            raise EvaluationError(f"the group of `{value_name(node)}` spans no known mesh axes")
        results: list[object] = [None] * self.ranks
        of_groups: dict[tuple[int, ...], Sequence[object]] = {}
        for members in self._groups(axes):
            key = tuple(alike[rank] for rank in members)
            if key not in of_groups:
                of_groups[key] = collectives.evaluate(name, [named[rank] for rank in members])
                self.work += sum(max(elements_of(value), ELEMENTS_OF_A_CALL) for value in of_groups[key])
            for rank, value in zip(members, of_groups[key], strict=True):
                results[rank] = value
        return shared(results)

    def _groups(self, axes: Sequence[int]) -> list[list[int]]:
        groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for rank, coordinate in enumerate(self._coordinates):
            others = tuple(index for axis, index in enumerate(coordinate) if axis not in axes)
            groups.setdefault(others, []).append((tuple(coordinate[axis] for axis in axes), rank))
        size = math.prod(self._mesh_shape[axis] for axis in axes)
        members = [[rank for _, rank in sorted(group)] for group in groups.values()]
        if any(len(group) != size for group in members):
            raise EvaluationError(f"the mesh axes {tuple(axes)} form no groups of {size} ranks")
        return members


def _dependencies(node: torch.fx.Node) -> list[torch.fx.Node]:
    # A coordinate is known from the mesh, a group from the capture: their operands need no value.
    if operator_name(node.target) in (_COORDINATE, _GROUP):
        return []
    return node.all_input_nodes


def ancestors(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """``nodes`` and everything that their values depend on."""
    return set(reached(nodes, _dependencies))


def descendants(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """``nodes`` and all that depends on them."""
    return set(reached(nodes, lambda node: node.users))


def _resolve(argument: object, value_of: Callable[[torch.fx.Node], object]) -> object:
    if isinstance(argument, torch.fx.Node):
        return value_of(argument)
    if isinstance(argument, (list, tuple)):
        return [_resolve(item, value_of) for item in argument]
    if isinstance(argument, slice):
        return slice(*(_resolve(part, value_of) for part in (argument.start, argument.stop, argument.step)))
    if isinstance(argument, torch.SymInt):
        raise EvaluationError(f"the size {argument} is no node of the graph")
    return argument


def _identity(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return tuple(_identity(item) for item in value)
    if isinstance(value, (bool, int, str, type(None))):
        return type(value), value
    if isinstance(value, float):
        return repr(value)
    return id(value)


def _overwrites_its_own(node: torch.fx.Node) -> bool:
    name = operator_name(node.target) or ""
    sources = node.all_input_nodes[:1]
    return collectives.is_collective(name) and all(
        source.op == "call_function" and len(source.users) == 1 and returns_fresh_memory(source.target)
        for source in sources
    )


def _is_overwritten(node: torch.fx.Node) -> bool:
    """Whether all that reads a value writes over all of it."""
    return all(
        (operator_name(user.target) or "").startswith(_OVERWRITING) and user.all_input_nodes.index(node) == 0
        for user in node.users
    )


def _check_strides(node: torch.fx.Node, arguments: Sequence[tuple[tuple[object, ...], dict[str, object]]]) -> None:
    source = node.args[0]
    traced = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    for args, _ in arguments:
        actual = args[0]
        if not isinstance(actual, torch.Tensor) or not isinstance(traced, torch.Tensor):
            raise EvaluationError(f"`{value_name(node)}`: unknown strides")
        if tuple(traced.stride()) != actual.stride():
            raise EvaluationError(f"`{value_name(node)}`: the operand's strides differ from the traced ones")
