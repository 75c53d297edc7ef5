"""Numbers in a program's arithmetic that may come from a size: the 4096 by which a mean over the width is divided.

A graph does not say where a number comes from. One that is a size, a product of sizes of one tensor, their reciprocal
or their square root is read as such; that the other readings, among them that the number is just a number, show the
same difference is what ``control.py`` looks at.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.program import Program
from verifycompile.reduction.constraints import shapes_of
from verifycompile.reduction.solve import Sizes
from verifycompile.torch_interface.evaluation import operator_name
from verifycompile.torch_interface.schema import number_arguments

Number = int | float

_NO_SIZES = frozenset({"exponent", "eps", "p", "dropout_p", "negative_slope", "momentum", "lower", "upper"})
"""Names of arguments that are numbers of their own."""
_PRECISION = 1e-6
_LARGEST_DIMENSIONS = 6
_ROOTS: tuple[float, ...] = (0.5, -0.5, 0.25, -0.25)
_FACTORS: tuple[float, ...] = (1.0, 2.0, 0.5)


@dataclasses.dataclass(frozen=True)
class Constants:
    """``chosen``: number -> what takes its place; every other number stays."""

    chosen: Mapping[Number, Number] = dataclasses.field(default_factory=dict[Number, Number])

    def value(self, number: Number) -> Number:
        """What takes the place of a number, of the same type."""
        new = self.chosen.get(abs(number))
        if new is None:
            return number
        signed = math.copysign(new, number)
        return int(signed) if type(number) is int and signed == int(signed) else signed

    def argument(self, argument: Any, name: str, node: torch.fx.Node) -> Any:
        """An argument of a call with its numbers replaced, where the argument is one that calculates."""
        if name in _NO_SIZES or name not in number_arguments(node.target):
            return argument
        if isinstance(argument, (list, tuple)):
            return [self.argument(item, name, node) for item in argument]
        return self.value(argument) if type(argument) in (int, float) else argument


def readings(programs: Sequence[Program], sizes: Sizes) -> dict[Number, tuple[Number, ...]]:
    """Each number of the programs that may come from a size that changes -> what it may become, likeliest first."""
    singles = {number: new for number, new in sizes.sizes.items() if number != new}
    products = _products(programs, sizes)
    ranks = max((len(p.mesh.ranks) for p in programs if p.mesh is not None), default=1)
    found: dict[Number, tuple[Number, ...]] = {}
    for number in dict.fromkeys(abs(n) for program in programs for n in _numbers(program)):
        candidates = [*_from_products(number, products), *_from_roots(number, singles)]
        if type(number) is int:
            candidates += _from_multiples(number, singles, ranks)
        distinct = tuple(dict.fromkeys(new for new in candidates if new != number))
        if distinct:
            found[number] = distinct
    return found


def _numbers(program: Program) -> Iterator[Number]:
    for node in program.graph.graph.nodes:
        if node.op != "call_function":
            continue
        if operator_name(node.target) is None:
            if getattr(node.target, "__module__", "") == "_operator":
                yield from _flat(argument for argument in node.args if type(argument) is int)
            continue
        names = number_arguments(node.target)
        for name, argument in _named(node).items():
            if name in names and name not in _NO_SIZES:
                yield from _flat([argument])
        if operator_name(node.target) == "aten.arange.start_step":
            yield from _flat(node.args[:1])


def _named(node: torch.fx.Node) -> dict[str, Any]:
    from verifycompile.torch_interface.schema import names_of

    return {**dict(zip(names_of(node.target), node.args, strict=False)), **node.kwargs}


def _flat(arguments: Iterable[Any]) -> Iterator[Number]:
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from _flat(argument)
        elif type(argument) in (int, float) and math.isfinite(argument) and argument != 0:
            yield argument


def _products(programs: Sequence[Program], sizes: Sizes) -> dict[int, dict[int, None]]:
    """Products of sizes of one tensor that change -> what they become."""
    shapes = {shape for program in programs for node in program.graph.graph.nodes for shape in shapes_of(node)}
    found: dict[int, dict[int, None]] = {}
    for shape in sorted({tuple(sorted(size for size in shape if size > 1)) for shape in shapes}):
        if len(shape) > _LARGEST_DIMENSIONS:
            continue
        for count in range(1, len(shape) + 1):
            for chosen in itertools.combinations(shape, count):
                old, new = math.prod(chosen), math.prod(sizes.size(size) for size in chosen)
                if old != new:
                    found.setdefault(old, {})[new] = None
    return found


def _nearest(value: float) -> int | None:
    """The whole number above 1 that ``value`` is, if any."""
    if not 1.5 < value < 1e18:
        return None
    return round(value) if abs(value - round(value)) <= _PRECISION * value else None


def _from_products(number: Number, products: Mapping[int, Mapping[int, None]]) -> Iterator[Number]:
    for factor, reciprocal in itertools.product(_FACTORS, (False, True)):
        source = _nearest(factor / number if reciprocal else number / factor)
        if source is None or (factor != 1.0 and source <= _simple(number)):
            continue
        for shift in (0, 1):  # variances are divided by one less
            if shift and (factor != 1.0 or source + 1 not in products):
                continue
            for new in products.get(source + shift, ()):
                value = factor / (new - shift) if reciprocal else factor * (new - shift)
                yield int(value) if type(number) is int and value == int(value) else value


def _simple(number: Number) -> int:
    """Twice and half of small numbers are no sign of a size."""
    return 16 if number == int(number) or 1 / number == int(1 / number) else 1


def _from_roots(number: Number, singles: Mapping[int, int]) -> Iterator[Number]:
    for exponent in _ROOTS:
        if abs(exponent) < 0.5 and _simple(number) == 16:
            continue
        source = _nearest(number ** (1 / exponent))
        if source is not None and source in singles:
            yield singles[source] ** exponent


def _from_multiples(number: int, singles: Mapping[int, int], ranks: int) -> Iterator[int]:
    """The offset of a rank's part: a multiple of a size, or the last number before it."""
    for shift, (size, new) in itertools.product((0, 1), singles.items()):
        count, rest = divmod(number + shift, size)
        if rest == 0 and 1 <= count <= ranks and (count > 1 or shift):
            yield count * new - shift
