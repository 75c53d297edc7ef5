"""From inputs on which an output differs to fewer and simpler numbers on which it still does.

Every step is a proposal that is evaluated; what no longer differs is not taken. The number of evaluations is bounded by
their cost, so that the same programs always give the same counterexample.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from verifycompile import bounds
from verifycompile.program import Program, Role
from verifycompile.witness.comparison import Agreement, OutputComparison
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.inputs import Inputs
from verifycompile.witness.side_by_side import Compared, compare_programs

ELEMENTS = 50_000_000
"""What all evaluations together may cost, in elements of both programs that are computed; see ``cost.elements``."""
_FEWEST, _MOST = 20, 500
"""Evaluations of all of both programs, however large they are; and of parts of them, however small they are."""
_CERTAINLY = 4
"""So many times the work it takes to measure what rounding explains."""
_DEAR = 1_000_000
"""Elements of an evaluation from which on few numbers are few enough."""
_FEW = 16
"""Numbers other than 0 that anyone can look through."""
_ENDS = 4
"""Inputs that are used first, and last, are seldom those of a layer that does not matter."""
_BESIDE = 10
"""As many inputs before and behind one are likely to be those of its layer."""
_CLEAR = 20
"""A difference is kept clearly above what rounding may explain: by this factor."""
_FAINT = 1e-4
"""What is less than this part of the first difference is likely to be explained by rounding, once that is measured."""

_Item = TypeVar("_Item")
_Key = tuple[bool, str]
"""Whether it is a tangent, and the name of an input."""


@dataclasses.dataclass(frozen=True)
class Found:
    """Inputs, and how both programs compare on them in the output that differs."""

    inputs: Inputs
    compared: Compared
    result: OutputComparison


def minimised(spec: Program, implementation: Program, found: Found, *, seed: int, cost: int) -> Found:
    """``found``, or simpler inputs on which the same output differs. ``cost``: elements of one evaluation."""
    search = _Minimisation(spec, implementation, found, seed, cost)
    # Where a limit ends this, what was found stands.
    bounds.attempt("fewer numbers for the input", search.run, share=0.5)
    return search.best


class _Minimisation:
    def __init__(self, spec: Program, implementation: Program, found: Found, seed: int, cost: int) -> None:
        self._spec, self._implementation, self._seed, self._cost = spec, implementation, seed, cost
        self._left, self._elements_left = _MOST, max(ELEMENTS, _FEWEST * cost)
        self._enough = _FEW if cost >= _DEAR else 0
        self._known = found
        """What is taken for the best as long as a step goes on."""
        self._certain = False
        self._faintest = _FAINT * found.result.max_abs_difference
        self.best = found

    # -- steps

    def run(self) -> None:
        """All steps, as far as the evaluations go."""
        for step in (self.make_whole, self.drop_inputs, self.drop_elements, self.make_ones):
            if self._is_simple():
                return
            step()
            if not self._settled() and not self._certain:
                # What a step took for differences hung on rounding, or on a choice: each is measured from now on.
                self._certain = True
                step()
                self._settled()

    def _settled(self) -> bool:
        """Whether what the step found is a difference beyond rounding, which is then the best known."""
        if self._known is self.best:
            return True
        found = self._known if self._certain else self._compared(self._known.inputs, certain=True)
        self.best = found or self.best
        self._known = self.best
        return found is not None

    def keep_places(self) -> bool:
        """Whether the output differs with small whole numbers at the same few places of every dimension alone."""
        generator = torch.Generator().manual_seed(self._seed)
        for places in _PLACES:
            for make in _WHOLE[:3]:
                proposed = {
                    key: make(value, generator) if value.is_floating_point() else value for key, value in self._values()
                }
                if self._try({key: _kept(value, places) for key, value in proposed.items()}):
                    return True
        return False

    def make_whole(self) -> None:
        """Small whole numbers in all inputs at once; where none will do, in as many inputs as possible."""
        if self.keep_places():
            return
        generator = torch.Generator().manual_seed(self._seed)
        for make in _WHOLE:
            if self._known.inputs.are_whole or self._try(
                {key: make(value, generator) for key, value in self._floats()}
            ):
                return
        for key, value in list(self._floats()):
            simpler = (torch.ones_like(value), value.round(), (value * 4).round() / 4)
            _ = any(self._try({key: candidate}) for candidate in simpler)

    def drop_inputs(self) -> None:
        """Zeros in the place of whole inputs: first of those that are used amid the program, as its layers are many."""
        keys = [key for key in self._in_order_of_use() if _is_set(self._value(key))]
        near, middle = self._near(keys), keys[_ENDS:-_ENDS]
        far = [key for key in middle if key not in near]
        if not (near and self._without_inputs(far)):
            _ = _drop(middle, self._without_inputs)
        _ = _drop([key for key in keys if _is_set(self._value(key))], self._without_inputs)

    def _without_inputs(self, keys: Sequence[_Key]) -> bool:
        return not self._is_simple() and self._try({key: torch.zeros_like(self._value(key)) for key in keys})

    def _in_order_of_use(self) -> list[_Key]:
        places = {node: place for place, node in enumerate(self._spec.graph.graph.nodes)}
        entries = {(entry.role is Role.TANGENT, entry.name): entry.node for entry in self._spec.inputs}
        first = {key: min((places[user] for user in entries[key].users), default=0) for key, _ in self._values()}
        return sorted(first, key=first.__getitem__)

    def _near(self, keys: Sequence[_Key]) -> Sequence[_Key]:
        """Inputs that are used next to the one whose gradient differs; none where it is another output."""
        own = (False, self.best.result.name.partition(".")[2])
        place = keys.index(own) if own in keys else None
        return () if place is None else keys[max(place - _BESIDE, 0) : place + _BESIDE + 1]

    def drop_elements(self) -> None:
        """Zeros in the place of elements, first of the smallest inputs."""
        for key, value in sorted(self._values(), key=lambda item: item[1].numel()):
            if _is_set(value):
                places = value.flatten().nonzero().flatten().tolist()
                _ = _drop(places, lambda some, key=key: self._without_places(key, some))

    def _without_places(self, key: _Key, places: Sequence[int]) -> bool:
        return not self._is_simple() and self._try({key: self._without(key, places)})

    def make_ones(self) -> None:
        """1 in the place of other numbers."""
        for key, value in list(self._floats()):
            ones = (value != 0).to(value.dtype)
            if not torch.equal(ones, value) and not self._try({key: ones}):
                self._try({key: value.sign()})

    # -- values

    def _is_simple(self) -> bool:
        """Whether the inputs are simple enough for what an evaluation costs."""
        if self._enough == 0 or not self._known.inputs.are_whole:
            return False
        return sum(int(value.count_nonzero()) for _, value in self._values()) <= self._enough

    def _values(self) -> list[tuple[_Key, torch.Tensor]]:
        inputs = self._known.inputs
        named = [((False, name), value) for name, value in inputs.spec.items()]
        return named + [((True, name), value) for name, value in inputs.tangents.items()]

    def _floats(self) -> Iterator[tuple[_Key, torch.Tensor]]:
        return ((key, value) for key, value in self._values() if value.is_floating_point())

    def _value(self, key: _Key) -> torch.Tensor:
        tangent, name = key
        return (self._known.inputs.tangents if tangent else self._known.inputs.spec)[name]

    def _without(self, key: _Key, places: Sequence[int]) -> torch.Tensor:
        value = self._value(key)
        flat = value.flatten().clone()
        flat[list(places)] = 0
        return flat.reshape(value.shape)

    # -- trials

    def _try(self, changes: Mapping[_Key, torch.Tensor]) -> bool:
        """Whether the output still differs with these values, which are then taken."""
        if self._left <= 0 or self._elements_left <= 0 or not changes:
            return False
        self._left -= 1
        inputs = dataclasses.replace(
            self._known.inputs,
            spec={name: changes.get((False, name), value) for name, value in self._known.inputs.spec.items()},
            tangents={name: changes.get((True, name), value) for name, value in self._known.inputs.tangents.items()},
        )
        found = self._compared(inputs, certain=False)
        if found is not None and self._certain:
            found = self._compared(inputs, certain=True)
        self._known = found or self._known
        return found is not None

    def _compared(self, inputs: Inputs, *, certain: bool) -> Found | None:
        """``inputs`` where the output differs on them as clearly as before, None elsewhere."""
        name = self.best.result.name
        try:
            compared = compare_programs(
                self._spec,
                self._implementation,
                inputs,
                self._seed,
                only=name,
                certain=certain,
                before=self._known.compared,
            )
        except EvaluationError:
            self._elements_left -= self._cost
            return None
        self._elements_left -= compared.work * (_CERTAINLY if certain else 1)
        result = compared.outputs.get(name)
        return Found(inputs, compared, result) if result is not None and self._is_as_clear(result) else None

    def _is_as_clear(self, result: OutputComparison) -> bool:
        known = self.best.result
        if result.agreement is not Agreement.DIFFERENT:
            return False
        if math.isfinite(known.impl_value) != math.isfinite(result.impl_value):
            return False
        least = max(_CLEAR * result.tolerance, self._faintest)
        return result.max_abs_difference >= least or not math.isfinite(known.impl_value)


def _kept(value: torch.Tensor, places: Callable[[int], set[int]]) -> torch.Tensor:
    """``value`` with zeros but at the places that are kept of each dimension; single whole numbers stay."""
    if value.dim() == 0:
        return value
    kept = torch.zeros(value.shape, dtype=torch.bool)
    kept[torch.meshgrid(*(torch.tensor(sorted(places(size))) for size in value.shape), indexing="ij")] = True
    return value.masked_fill(~kept, 0) if value.numel() else value


def _is_set(value: torch.Tensor) -> bool:
    """Whether an input has elements other than 0; a single whole number may be a count, by which programs divide."""
    return bool(value.any()) and (value.dim() > 0 or value.is_floating_point() or value.dtype == torch.bool)


def _drop(items: Sequence[_Item], without: Callable[[Sequence[_Item]], bool], *, are_needed: bool = False) -> bool:
    """Tries to do without all items, else without each half; the later half first, so that the first places stay.

    Whether it does without all of them. ``are_needed``: whether it is known that it does not.
    """
    if not items or (not are_needed and without(items)):
        return True
    if len(items) == 1:
        return False
    middle = len(items) // 2
    is_without = _drop(items[middle:], without)
    # Without all of the later half, to do without the other one is what was tried first.
    _ = _drop(items[:middle], without, are_needed=is_without)
    return False


def _between(low: int, high: int) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    def make(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(low, high, value.shape, generator=generator).to(value.dtype)

    return make


def _ones(value: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return torch.ones_like(value)


_PLACES: tuple[Callable[[int], set[int]], ...] = (
    lambda size: {0, size // 2},
    lambda size: {0, size // 4, size // 2, 3 * size // 4},
)
"""Which places of a dimension are kept: on two ranks that share it, on four."""
_WHOLE = (_ones, _between(0, 2), _between(-1, 2), _between(1, 4), _between(-2, 3), _between(-2, 3))
