"""Which sizes of the two programs are one: 1024 may be a part of the sequence here and the width of the keys there.

Sizes of one number that meet at a node are one, and so are those of an input or an output that both programs have.
A size whose elements are picked by numbers is one wherever it occurs: nothing says what else the numbers come from.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import sympy
import torch
import torch.fx

from verifycompile.program import Program
from verifycompile.reduction.indexed import indexed
from verifycompile.reduction.recorded import dimensions_of, shapes_of, tensors_of


class Dimension(NamedTuple):
    """Sizes that are one. ``number``: what they are in the programs; ``which``: tells those of one number apart."""

    number: int
    which: int


class Dimensions:
    """The dimensions of both programs. Numbers are looked up at a node, where a number is one dimension.

    ``joined``: whether a number is one dimension wherever it occurs: a program that cuts a dimension into heads and
    their width is to cut it as the spec does.
    """

    def __init__(self, spec: Program, implementation: Program, *, joined: bool = False) -> None:
        self._parents: list[int] = []
        self._numbers: list[int] = []
        self._results: dict[torch.fx.Node, dict[int, int]] = {}
        self._named: dict[torch.fx.Node, dict[int, int]] = {}
        self._made: dict[torch.fx.Node, list[int]] = {}
        programs = (spec, implementation)
        for program in programs:
            for node in program.graph.graph.nodes:
                self._add(node)
        for first, second in _common(spec, implementation):
            for number, place in self._results[second].items():
                if number in self._results[first]:
                    self._join(self._results[first][number], place)
        computed = set(self._numbers) if joined else {n for program in programs for n in _without_a_place(program)}
        of_number: dict[int, list[int]] = collections.defaultdict(list)
        for place, number in enumerate(self._numbers):
            of_number[number].append(place)
        for number in computed & of_number.keys():
            for place in of_number[number][1:]:
                self._join(of_number[number][0], place)
        self._roots = [self._root(place) for place in range(len(self._parents))]
        self.all = tuple(dict.fromkeys(map(Dimension, self._numbers, self._roots)))
        """Every dimension of a value, as ``at`` gives it."""
        self._alone = {
            number: next(iter(roots))
            for number, places in of_number.items()
            if len(roots := {self._roots[place] for place in places}) == 1
        }

    def at(self, node: torch.fx.Node | None, number: int) -> Dimension:
        """The dimension that a number is at a node; without one, what it is wherever it is one dimension only."""
        return Dimension(number, self.which(node, number))

    def which(self, node: torch.fx.Node | None, number: int) -> int:
        """Tells the dimension that a number is at a node from others of this number, as ``at`` does."""
        place = None if node is None or node not in self._named else self._named[node].get(number)
        return self._alone.get(number, -1) if place is None else self._roots[place]

    def made(self, node: torch.fx.Node) -> Sequence[int]:
        """The sizes of what a node gives that nothing has which it is given."""
        return self._made[node]

    def _add(self, node: torch.fx.Node) -> None:
        named: dict[int, int] = {}
        for operand in node.all_input_nodes:
            for number, place in self._results[operand].items():
                self._join(named.setdefault(number, place), place)
        results: dict[int, int] = {}
        self._made[node] = made = []
        for number in {size for shape in shapes_of(node) for size in shape if size > 1}:
            if number not in named:
                made.append(number)
                named[number] = self._new(number)
            results[number] = named[number]
        self._named[node] = named
        self._results[node] = results

    def _new(self, number: int) -> int:
        self._parents.append(len(self._parents))
        self._numbers.append(number)
        return len(self._parents) - 1

    def _root(self, place: int) -> int:
        while self._parents[place] != place:
            self._parents[place] = self._parents[self._parents[place]]
            place = self._parents[place]
        return place

    def _join(self, first: int, second: int) -> None:
        self._parents[self._root(second)] = self._root(first)


def _common(spec: Program, implementation: Program) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """The inputs and outputs that both programs have."""
    for theirs, own in ((spec.inputs, implementation.inputs), (spec.outputs, implementation.outputs)):
        nodes = {entry.name: entry.node for entry in theirs}
        yield from ((nodes[entry.name], entry.node) for entry in own if entry.name in nodes)


def _without_a_place(program: Program) -> Iterator[int]:
    """Sizes that a program calculates with, or picks elements by: nothing there says which dimension they are of."""
    for node in program.graph.graph.nodes:
        if node.op == "call_function":
            yield from (size for size, _ in indexed(node))
        if node.op == "call_function" and getattr(node.target, "__module__", "") == "_operator":
            yield from (argument for argument in node.args if type(argument) is int)
        recorded = node.meta.get("val")
        if not isinstance(recorded, torch.SymInt) and not any(None in shape for shape in dimensions_of(node)):
            continue
        sizes: Iterable[Any] = (recorded,) if isinstance(recorded, torch.SymInt) else ()
        for size in (*sizes, *(size for tensor in tensors_of(recorded) for size in tensor.shape)):
            if isinstance(size, torch.SymInt):
                yield from (int(number) for number in size.node.expr.atoms(sympy.Integer))
