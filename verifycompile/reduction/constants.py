"""Numbers in a program's arithmetic that may come from a size: the 4096 by which a mean over the width is divided.

A graph does not say where a number comes from. One that is a size, a product of sizes of one tensor, their reciprocal
or their square root is read as such; that the other readings, among them that the number is just a number, show the
same difference is what ``control.py`` looks at.
"""

from __future__ import annotations

import collections
import dataclasses
import fractions
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.program import Program
from verifycompile.reduction.recorded import shapes_of, tensors_of
from verifycompile.reduction.solve import Sizes
from verifycompile.torch_interface.operators.calls import number_arguments
from verifycompile.torch_interface.operators.elements import constant_value
from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.torch_interface.operators.schema import names_of

Number = int | float

_NO_SIZES = frozenset({"exponent", "eps", "p", "dropout_p", "negative_slope", "momentum", "lower", "upper"})
"""Names of arguments that are numbers of their own."""
_PRECISION = 1e-6
_LARGEST_DIMENSIONS = 6
_DIGITS = 2
_SMALL = 8
_LARGEST_WRITTEN = 256
_MOST_HELD = 1024
_RANGES = ("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
_ROOTS: tuple[float, ...] = (0.5, -0.5, 0.25, -0.25)
_FACTORS: tuple[float, ...] = (1.0, 2.0, 0.5)


@functools.cache
def _calculates_with(target: object) -> frozenset[str]:
    """Names of an operator's arguments whose numbers may come from sizes."""
    return number_arguments(target) - _NO_SIZES


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
        if isinstance(argument, torch.fx.Node) or name not in _calculates_with(node.target):
            return argument
        if isinstance(argument, (list, tuple)):
            return [self.argument(item, name, node) for item in argument]
        return self.value(argument) if type(argument) in (int, float) else argument


@dataclasses.dataclass(frozen=True)
class Reading:
    """Numbers that are read together -> what each may become, likeliest first.

    A number is read alone, but for positions, such as the first row of each rank's part: those that may be multiples of
    the same sizes are all multiples of one of them, or none is.
    """

    numbers: Mapping[Number, tuple[Number, ...]]

    @property
    def taken(self) -> dict[Number, Number]:
        """What the numbers become in the reduced programs."""
        return {number: candidates[0] for number, candidates in self.numbers.items()}

    def alternatives(self) -> list[dict[Number, Number]]:
        """All that the numbers may be, first what was taken and last the numbers themselves."""
        columns = zip(*self.numbers.values(), strict=True)
        read = [dict(zip(self.numbers, column, strict=True)) for column in columns]
        return [*read, {number: number for number in self.numbers}]


def readings(programs: Sequence[Program], sizes: Sizes) -> tuple[Reading, ...]:
    """How the numbers of the programs that may come from a size that changes may be read."""
    singles = sizes.changed
    products = _products(programs, sizes)
    ranks = max((len(p.mesh.ranks) for p in programs if p.mesh is not None), default=1)
    is_factor: dict[Number, bool] = {}
    for number, is_position in itertools.chain.from_iterable(map(_numbers, programs)):
        is_factor[abs(number)] = is_factor.get(abs(number), False) or not is_position
    found: list[Reading] = []
    positions: dict[int, dict[fractions.Fraction, int]] = {}
    for number, factor in is_factor.items():
        if not factor and type(number) is int:
            positions[number] = _as_position(number, products, singles, ranks)
            continue
        candidates = [*_from_products(number, products), *_from_roots(number, singles)]
        distinct = tuple(dict.fromkeys(new for new in candidates if new != number))
        if distinct:
            found.append(Reading({number: distinct}))
    return (*found, *_position_readings(positions))


def _position_readings(positions: Mapping[int, Mapping[fractions.Fraction, int]]) -> Iterator[Reading]:
    """Positions that shrink by the same factors, one reading for each set of factors; the commonest factor first."""
    common = collections.Counter(factor for candidates in positions.values() for factor in candidates)
    classes: dict[tuple[fractions.Fraction, ...], dict[Number, tuple[Number, ...]]] = {}
    for number, candidates in positions.items():
        factors = tuple(sorted(candidates, key=lambda factor: (-common[factor], factor)))
        if factors:
            classes.setdefault(factors, {})[number] = tuple(candidates[factor] for factor in factors)
    return (Reading(numbers) for numbers in classes.values())


def unexplained(programs: Sequence[Program], sizes: Sizes, known: Collection[Number]) -> list[Number]:
    """Numbers that may come from a size in a way that was not read: then another reading is missing.

    They are in one program only, or a graph holds them as a tensor. A factor of few digits is one that somebody wrote,
    and so is a small position. ``known``: the numbers that were read.
    """
    own = [{abs(number): is_position for number, is_position in _numbers(program)} for program in programs]
    alone = own[0].keys() ^ own[1].keys()
    is_position = {**own[0], **own[1]}
    strange = {n for n in alone - set(known) if not (n <= _SMALL if is_position[n] else _is_written(n))}
    singles, products = sizes.changed, _products(programs, sizes)
    held = {number for program in programs for number in _held(program)}
    strange |= {n for n in held if any(_from_products(n, products)) or any(_from_roots(n, singles))}
    return sorted(strange)


def _is_written(factor: Number) -> bool:
    return any(
        abs(float(f"{value:.{_DIGITS - 1}e}") - value) <= _PRECISION * value
        or (value <= _LARGEST_WRITTEN and abs(value - round(value)) <= _PRECISION)
        for value in (factor, 1 / factor)
    )


def _held(program: Program) -> Iterator[Number]:
    """The numbers in small tensors that a graph holds."""
    for node in program.graph.graph.nodes:
        if node.op != "get_attr":
            continue
        held: Any = program.graph
        for part in str(node.target).split("."):
            held = getattr(held, part)
        value = constant_value(held) if isinstance(held, torch.Tensor) else None
        if (
            value is not None
            and value.dtype is not torch.bool
            and not value.is_complex()
            and value.numel() <= _MOST_HELD
        ):
            yield from (abs(number) for number in _flat(value.flatten().tolist()))


def _numbers(program: Program) -> Iterator[tuple[Number, bool]]:
    """The numbers that a program calculates with, each with whether it calculates positions there."""
    for node in program.graph.graph.nodes:
        if node.op != "call_function":
            continue
        if operator_name(node.target) is None:
            if getattr(node.target, "__module__", "") == "_operator":
                yield from ((n, True) for n in _flat(argument for argument in node.args if type(argument) is int))
            continue
        calculates = _calculates_with(node.target)
        given = itertools.chain(zip(names_of(node.target), node.args, strict=False), node.kwargs.items())
        # Where a range ends follows from where it starts, and from its size.
        ignored = ("end", "step") if operator_name(node.target) in _RANGES else ()
        numbers = list(_flat(value for name, value in given if name in calculates and name not in ignored))
        if numbers:
            is_position = _calculates_positions(node)
            yield from ((number, is_position) for number in numbers)


def _calculates_positions(node: torch.fx.Node) -> bool:
    """Whether all that an operator takes are whole numbers: indices, labels, positions."""
    operands = [value for operand in node.all_input_nodes for value in tensors_of(operand.meta.get("val"))]
    if not operands:
        return operator_name(node.target) in _RANGES
    return all(not value.dtype.is_floating_point and not value.dtype.is_complex for value in operands)


def _flat(arguments: Iterable[Any]) -> Iterator[Number]:
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from _flat(argument)
        elif type(argument) in (int, float) and math.isfinite(argument) and argument != 0:
            yield argument


def _products(programs: Sequence[Program], sizes: Sizes) -> dict[int, dict[int, None]]:
    """Products of sizes of one tensor that change, and their squares -> what they become."""
    shapes = {
        tuple(sorted((size, sizes.size(size, node)) for size in shape if size > 1))
        for program in programs
        for node in program.graph.graph.nodes
        for shape in shapes_of(node)
    }
    found: dict[int, dict[int, None]] = {}
    pairs = [(size, new) for size, news in sizes.changed.items() for new in news]
    shapes |= {((size, new), (size, new)) for size, new in pairs}
    for shape in sorted(shapes):
        if len(shape) > _LARGEST_DIMENSIONS:
            continue
        for count in range(1, len(shape) + 1):
            for chosen in itertools.combinations(shape, count):
                old, new = (math.prod(column) for column in zip(*chosen, strict=True))
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
        for shift in (0, 1, -1):  # variances are divided by one less
            if shift and (factor != 1.0 or source + shift not in products):
                continue
            for new in products.get(source + shift, ()):
                if new <= shift:
                    continue
                value = factor / (new - shift) if reciprocal else factor * (new - shift)
                yield int(value) if type(number) is int and value == int(value) else value


def _simple(number: Number) -> int:
    """Twice and half of small numbers are no sign of a size."""
    return 16 if number == int(number) or 1 / number == int(1 / number) else 1


def _from_roots(number: Number, singles: Mapping[int, Sequence[int]]) -> Iterator[Number]:
    for exponent in _ROOTS:
        if abs(exponent) < 0.5 and _simple(number) == 16:
            continue
        source = _nearest(number ** (1 / exponent))
        if source is not None and source in singles:
            yield from (new**exponent for new in singles[source])


def _as_position(
    number: int, products: Mapping[int, Mapping[int, None]], singles: Mapping[int, Sequence[int]], ranks: int
) -> dict[fractions.Fraction, int]:
    """What a position becomes that is a multiple of a size, or next to one, by the factor of that size.

    The part of a rank begins at such a multiple.
    """
    found: dict[fractions.Fraction, int] = {}
    sources = [(size, new) for size, found in singles.items() for new in found]
    for shift, (size, new) in itertools.product((0, 1, -1), sources):
        count, rest = divmod(number + shift, size)
        if rest == 0 and 1 <= count <= ranks:
            found.setdefault(fractions.Fraction(new, size), count * new - shift)
    for new in products.get(number, ()):
        found.setdefault(fractions.Fraction(new, number), new)
    return found
