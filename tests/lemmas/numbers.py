"""Lemmas on numbers: values that meet the guards are drawn, both sides are computed.

Each index is an axis, and one more stands for all other dimensions. A value is an array over all axes, constant along
those that it does not depend on; a sum stands repeated along its own. Where no guard says otherwise, elements may be
infinite; a factor of zero is a mask, as everywhere in the IR: it wins over an infinity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from verifycompile.rewrites.lemmas.lemma import FUNCTIONS, INDEX, NUMBER, VALUE, Lemma, Pattern
from verifycompile.rewrites.lemmas.spelling import names

ELEMENTS = (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Few and simple, so that comparisons find equal ones."""


def holds(lemma: Lemma, seed: int, *, masks: bool = True) -> bool:
    """Whether both sides are equal on one draw. ``masks``: whether a factor of zero wins over an infinity."""
    return holds_on(lemma, np.random.default_rng(seed), masks=masks)


def holds_on(lemma: Lemma, generator: np.random.Generator | Drawn, *, masks: bool = True) -> bool:
    """The same on what a generator draws."""
    with np.errstate(all="ignore"):
        draw = Draw(lemma, generator, masks=masks)
        left, right = (draw.evaluate(side) for side in (lemma.left, lemma.right))
    return bool(np.allclose(*np.broadcast_arrays(left, right), rtol=1e-9, atol=1e-12, equal_nan=True))


def times(left: Any, right: Any) -> Any:
    return np.where((left == 0) | (right == 0), 0.0, left * right)


class Drawn:
    """What a generator of numpy draws here, drawn by hypothesis: what fails becomes few, small and simple numbers."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def choice(self, values: Sequence[float], shape: tuple[int, ...] = ()) -> Any:
        return self._array(st.sampled_from(sorted(values, key=abs)), shape)

    def integers(self, low: int, high: int, shape: Any = ()) -> Any:
        return self._array(st.integers(low, high - 1), (shape,) if isinstance(shape, int) else shape)

    def random(self, shape: tuple[int, ...]) -> Any:
        return self._array(st.sampled_from((1.0, 0.1)), shape)

    def _array(self, of: st.SearchStrategy[Any], shape: tuple[int, ...]) -> Any:
        count = math.prod(shape)
        return np.array(self._data.draw(st.lists(of, min_size=count, max_size=count))).reshape(shape)


class Draw:
    """One draw of everything that a lemma speaks of."""

    def __init__(self, lemma: Lemma, generator: np.random.Generator | Drawn, *, masks: bool = True) -> None:
        self.random = generator
        self.masks = masks
        self.guards = set(lemma.guards)
        self.axes = {name: 1 + k for k, name in enumerate(names(lemma, INDEX))}
        self.shape = (2, *(int(generator.integers(1, 4)) for _ in self.axes))
        self.numbers = self._numbers(lemma)
        self._order(lemma)
        self.values: dict[str, Any] = {name: self._value(name) for name in names(lemma, VALUE)}
        for kind, *arguments in lemma.guards:
            if kind in _TOGETHER:
                _TOGETHER[str(kind)](self, *arguments)

    def _numbers(self, lemma: Lemma) -> dict[str, float]:
        drawn = {name: float(self.random.choice(ELEMENTS[3:])) * self._sign() for name in names(lemma, NUMBER)}
        positions = self.random.integers(-1, 5, len(drawn))
        for (name, number), position in zip(drawn.items(), positions, strict=True):
            said = {guard[0] for guard in lemma.guards if name in guard[1:]}
            if said & {"digit", "within_or"} or self._is_end(lemma, name):
                drawn[name] = float(position if self._is_end(lemma, name) else self.random.integers(1, 4))
            if said & {"positive_number", "negative_number"}:
                drawn[name] = abs(number) * (1 if "positive_number" in said else -1)
            for guard in lemma.guards:
                if guard[:2] == ("outside", name):
                    drawn[name] = float(self.random.choice((-1, 0.5, self._size(guard[2]), 7)))
                if guard[0] == "within_or" and guard[3] == name:
                    drawn[name] = float(self.random.choice((-3, self._size(guard[2]), 7)))
            if number == 0 and not self._is_end(lemma, name):
                drawn[name] = 1.0
        return drawn

    def _is_end(self, lemma: Lemma, name: str) -> bool:
        """Whether a number is an end of a range."""
        return any(name in ends for side in (lemma.left, lemma.right) for ends in _ends(side))

    def _order(self, lemma: Lemma) -> None:
        """Numbers in the order that guards demand, and in any other where none does."""
        ordered = [name for guard in lemma.guards if guard[0] == "ordered" for name in map(str, guard[1:])]
        kept = list(dict.fromkeys(ordered))
        for name, number in zip(kept, sorted(self.numbers[name] for name in kept), strict=True):
            self.numbers[name] = number

    def _sign(self) -> int:
        return int(self.random.choice((-1, 1)))

    def _size(self, index: Pattern) -> int:
        return self.shape[self.axes[str(index)]]

    def _value(self, name: str) -> Any:
        said = {guard[0]: guard for guard in self.guards if len(guard) > 1 and guard[1] == name}
        fixed = {self.axes[str(g[2])] for g in self.guards if g[0] == "independent" and g[1] == name}
        shape = tuple(1 if axis in fixed else size for axis, size in enumerate(self.shape))
        drawn = self.random.choice(ELEMENTS, shape)
        if "indicator" in said:
            drawn = self.random.integers(0, 2, shape).astype(float)
        elif "positive" in said:
            drawn = np.exp(drawn)
        elif "nonnegative" in said:
            drawn = abs(drawn)
        elif "whole" in said:
            drawn = self.random.integers(-2, 3, shape).astype(float)
        elif "within" in said:
            drawn = self.random.integers(0, self._size(said["within"][2]), shape).astype(float)
        elif "digit" in said:
            drawn = self.random.integers(0, int(self.numbers[str(said["digit"][2])]), shape).astype(float)
        elif "within_or" in said:
            _, _, index, exception = said["within_or"]
            inside = self.random.integers(0, self._size(index), shape).astype(float)
            drawn = np.where(self.random.random(shape) < 0.5, inside, self.numbers[str(exception)])
        elif not {"finite", "number", "defined"} & said.keys():
            infinite = self.random.random(shape) < 0.15
            drawn = np.where(infinite, self.random.choice((-np.inf, np.inf), shape), drawn)
        return np.broadcast_to(drawn, self.shape).copy()

    def is_indicator(self, name: Pattern) -> bool:
        return ("indicator", name) in self.guards

    def make_implied(self, given: Pattern, wanted: str) -> None:
        self.values[wanted] = np.where(self.evaluate(given) == 1, 1.0, self.values[wanted])

    def make_equivalent(self, given: Pattern, wanted: str) -> None:
        other = 0.0 if self.is_indicator(wanted) else 2.0
        value = self.values[wanted]
        self.values[wanted] = np.where(self.evaluate(given) == 1, 1.0, np.where(value == 1, other, value))

    def make_beside(self, mask: Pattern, name: str, other: str) -> None:
        self.values[other] = np.where(self.evaluate(mask) == 1, self.values[name], self.values[other])

    def make_above(self, name: str, number: str) -> None:
        self.values[name] = self.numbers[number] + np.exp(np.clip(self.values[name], -3, 3))

    def make_not_below(self, name: str, number: str) -> None:
        self.values[name] = self.numbers[number] + abs(np.clip(self.values[name], -3, 3))

    def make_known(self, name: str) -> None:
        self.values[name] = np.ones(self.shape)

    def make_read(self, name: str, window: str, first: str, after: str, line: str, *ends: str) -> None:
        inside = self.evaluate(("range", window, first, after)) == 1
        one, other = (self.evaluate(("range", line, *ends[k : k + 2])) for k in (0, 2))
        self.values[name] = np.where(inside & (one != other), 0.0, self.values[name])

    def evaluate(self, pattern: Pattern) -> Any:
        """An array that broadcasts to all axes."""
        if isinstance(pattern, str):
            return self.values[pattern] if pattern in self.values else np.float64(self.numbers[pattern])
        operator, *arguments = pattern
        if operator in ("sum", "each", "max"):
            body = np.broadcast_to(self.evaluate(arguments[1]), self.shape)
            reduce = np.max if operator == "max" else np.sum
            return np.broadcast_to(reduce(body, axis=self.axes[str(arguments[0])], keepdims=True), self.shape)
        if operator == "place":
            axis = self.axes[str(arguments[0])]
            positions = np.arange(self.shape[axis], dtype=float)
            return positions.reshape([-1 if k == axis else 1 for k in range(len(self.shape))])
        if operator == "range":
            place = self.evaluate(("place", arguments[0]))
            first, after = (self.evaluate(argument) for argument in arguments[1:])
            return ((first <= place) & (place < after)).astype(float)
        if operator == "at":
            return self._at(*arguments)
        if operator == "mul" and not self.masks:
            return functools.reduce(np.multiply, map(self.evaluate, arguments))
        return _FUNCTIONS[str(operator)](*(self.evaluate(argument) for argument in arguments))

    def _at(self, value: Pattern, index: Pattern, position: Pattern) -> Any:
        """Where there is no such position, no number is the right one."""
        axis = self.axes[str(index)]
        array = np.broadcast_to(self.evaluate(value), self.shape)
        wanted = np.broadcast_to(self.evaluate(position), self.shape)
        place = np.where(np.isfinite(wanted), wanted, -1)
        inside = (place == np.floor(place)) & (place >= 0) & (place < self.shape[axis])
        taken = np.take_along_axis(array, np.where(inside, place, 0).astype(int), axis)
        return np.where(inside, taken, 1234.5)


def _ends(pattern: Pattern) -> list[tuple[Pattern, ...]]:
    if isinstance(pattern, str):
        return []
    own = [pattern[2:]] if pattern[0] == "range" else []
    return [*own, *(found for argument in pattern[1:] for found in _ends(argument))]


def _by_torch(name: str, value: Any) -> Any:
    function = torch.nn.functional.logsigmoid if name == "log_sigmoid" else getattr(torch, name)
    return function(torch.as_tensor(value, dtype=torch.float64)).numpy()


_TOGETHER: dict[str, Any] = {
    "implies": Draw.make_implied,
    "equivalent": Draw.make_equivalent,
    "beside": Draw.make_beside,
    "known": Draw.make_known,
    "above": Draw.make_above,
    "not_below": Draw.make_not_below,
    "reads": Draw.make_read,
}
_FUNCTIONS: dict[str, Any] = {
    "zero": lambda: np.float64(0),
    "one": lambda: np.float64(1),
    "two": lambda: np.float64(2),
    "half": lambda: np.float64(0.5),
    "minus_infinity": lambda: np.float64(-np.inf),
    "minus_one": lambda: np.float64(-1),
    "number": lambda p: p,
    "add": lambda *parts: functools.reduce(np.add, parts),
    "plus": np.add,
    "mul": lambda *factors: functools.reduce(times, factors),
    "times": np.multiply,
    "scale": times,
    "exp": np.exp,
    "log": np.log,
    "power": lambda p, a: np.power(a, p),
    "or": lambda a, b: ((a != 0) | (b != 0)).astype(float),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "where": lambda c, a, b: np.where(c != 0, a, b),
    **{name: functools.partial(_by_torch, name) for name in FUNCTIONS},
    "not": lambda a: np.equal(a, 0).astype(float),
    "equal": lambda a, b: np.equal(a, b).astype(float),
    "less": lambda a, b: np.less(a, b).astype(float),
    "less_equal": lambda a, b: np.less_equal(a, b).astype(float),
    "spell": lambda p, a, b: p * a + b,
}
