"""Which numbers of a model may be per rank, and which readings of them give a program.

A number that no record confirms may be the single-device one or that of a rank. Each reading is traced; where two give
different programs nothing decides between them, and the user is asked.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from verifycompile.capture.numbers.plain_values import Place, PlainRead, pattern, same_value, shown, shown_line
from verifycompile.captured_notes import BareDoubt
from verifycompile.errors import UsageError
from verifycompile.program import Blocker, Mesh, ProgramInput, Role
from verifycompile.torch_interface.dtensor.placements import sharded_dimension
from verifycompile.torch_interface.ranks.constructed import MISSING, Size

LIMIT = 12
"""Further traces for the readings of numbers."""

Assignment = Mapping[Place, object]
Trace = Callable[[Assignment], str | None]
"""The text of the spec under an assignment of values; None where it does not run."""


class Source(enum.Enum):
    """What says that the preferred reading of a number is the single-device one."""

    RECORDED = enum.auto()
    """It had this value when the model was constructed, and the ranks have a part of it, or the same."""
    CHANGED = enum.auto()
    """It had this value when the model was constructed; what changed it since is not known."""
    GIVEN = enum.auto()
    """The option `per_rank_numbers`."""
    NOTHING = enum.auto()


@dataclasses.dataclass(frozen=True)
class Number:
    """A plain value of the model, in all the layers that have the same. ``readings``: the preferred one first.

    ``named``: what the spec has where the option `per_rank_numbers` names it.
    """

    path: str
    places: tuple[Place, ...]
    now: object
    readings: tuple[object, ...]
    source: Source
    line: tuple[str, int] | None
    named: object


@dataclasses.dataclass(frozen=True)
class Degrees:
    """``sharding``: in how many parts an input is cut, ``of_parameters``: of these the parameters and buffers.

    ``axes``: sizes of mesh axes and of their products.
    """

    sharding: tuple[int, ...]
    of_parameters: tuple[int, ...]
    axes: tuple[int, ...]

    @staticmethod
    def of(inputs: Iterable[ProgramInput], mesh: Mesh | None) -> Degrees:
        if mesh is None:
            return Degrees((), (), ())
        sharding: set[int] = set()
        of_parameters: set[int] = set()
        for item in inputs:
            cut = [
                axis.size
                for axis, placement in zip(mesh.axes, item.placements or (), strict=False)
                if sharded_dimension(placement) is not None
            ]
            sharding.update((*cut, math.prod(cut)))
            if item.role in (Role.PARAMETER, Role.BUFFER):
                of_parameters.update((*cut, math.prod(cut)))
        sizes = [axis.size for axis in mesh.axes]
        products = (itertools.combinations(sizes, count) for count in range(1, len(sizes) + 1))
        axes = {math.prod(chosen) for combinations in products for chosen in combinations}
        return Degrees(*(tuple(sorted(found - {1})) for found in (sharding, of_parameters, axes)))

    def explain(self, constructed: object, now: object) -> bool:
        """Whether ``now`` is ``constructed`` divided by a degree, or a degree where it was 1."""
        if isinstance(constructed, bool) or not isinstance(constructed, int | float):
            return False
        if type(constructed) is not type(now):
            return False
        divided = any(constructed == now * degree for degree in self.axes)  # type: ignore[operator]  # nn.Module has none of its own
        return divided or (constructed == 1 and now in self.axes)


def numbers_of(reads: Iterable[PlainRead], degrees: Degrees, per_rank: Sequence[str] | None) -> tuple[Number, ...]:
    """The numbers that are read, equal ones of repeated layers together.

    Raises ``UsageError`` VC306 for a pattern of ``per_rank_numbers`` that names no number.
    """
    groups: dict[tuple[object, ...], list[PlainRead]] = {}
    for read in reads:
        if read.place is not None:
            kind, value = type(read.place.owner), read.place.now()
            constructed = read.place.constructed
            said = per_rank is not None and any(fnmatch.fnmatchcase(read.path, item) for item in per_rank)
            key = (kind, read.path.count("."), read.place.steps, repr(value), repr(constructed), said)
            groups.setdefault(key, []).append(read)
    _check_patterns([read.path for read in reads], per_rank)
    return tuple(_number(group, degrees, per_rank) for group in groups.values())


def _check_patterns(paths: Sequence[str], per_rank: Sequence[str] | None) -> None:
    for item in per_rank or ():
        if not any(fnmatch.fnmatchcase(path, item) for path in paths):
            known = ", ".join(f"`{path}`" for path in paths) or "none"
            raise UsageError(
                "VC306",
                f"`per_rank_numbers` names `{item}`, which is no number that the program reads; those are {known}.",
            )


def _number(group: Sequence[PlainRead], degrees: Degrees, per_rank: Sequence[str] | None) -> Number:
    first = group[0]
    assert first.place is not None
    places = tuple(read.place for read in group if read.place is not None)
    path = pattern([read.path for read in group])
    readings, source = _readings(first.path, first.place, degrees, per_rank)
    return Number(path, places, first.place.now(), readings, source, first.line, _named_value(first.place, degrees))


def _readings(
    path: str, place: Place, degrees: Degrees, per_rank: Sequence[str] | None
) -> tuple[tuple[object, ...], Source]:
    now, constructed = place.now(), place.constructed
    has_changed = constructed is not MISSING and not same_value(now, constructed)
    if per_rank is not None:
        if not any(fnmatch.fnmatchcase(path, item) for item in per_rank):
            return (now,), Source.GIVEN
        return (_named_value(place, degrees),), Source.GIVEN
    if has_changed:
        known = degrees.explain(constructed, now)
        return ((constructed,), Source.RECORDED) if known else ((constructed, now), Source.CHANGED)
    if place.is_confirmed:
        return (now,), Source.RECORDED
    if isinstance(now, bool):
        # A flag is that of a degree only where one was asked for before it was set, by code that knows of the job.
        varied = constructed is not MISSING and not place.is_of_installed_package
        return ((now, not now) if varied else (now,)), Source.NOTHING
    if type(place.owner).__module__.startswith("torch.nn."):
        # Torch's own modules keep sizes of their parameters, and nothing of the batch or of the job.
        return (now, *_scaled(now, degrees.of_parameters)), Source.NOTHING
    # What equals a degree may be the degree itself, which is 1 on a single device.
    single = (1,) if type(now) is int and now in degrees.axes else ()
    return (now, *_scaled(now, degrees.sharding), *single), Source.NOTHING


def _named_value(place: Place, degrees: Degrees) -> object:
    """What a single device has of a number of which each rank has a share."""
    now, constructed = place.now(), place.constructed
    if constructed is not MISSING and not same_value(now, constructed):
        return constructed
    return next(iter(_scaled(now, degrees.sharding)), now)


def _scaled(now: object, degrees: Sequence[int]) -> tuple[object, ...]:
    """What a single device has where ``now`` is the number of one rank."""
    return tuple(now * degree for degree in degrees) if type(now) is int and now > 0 else ()


def doubt_of_free(read: PlainRead, degrees: Degrees) -> Blocker | None:
    """That a number outside of all modules may be one rank's, where it may."""
    others = (*_scaled(read.value, degrees.sharding), *((1,) if read.value in degrees.axes else ()))
    if not others:
        return None
    line = f" (read at {shown_line(read.line)})" if read.line is not None else ""
    return Blocker(
        None,
        "VC209",
        f"`{read.path}` is {shown(read.value)}{line}. Code asked how many ranks there are before it was set, and "
        "nothing says whether it is the number of the single-device program or that of one rank, in the place of "
        f"{shown(others[0])}. Pass the single-device program as the option `spec`, or say with `per_rank_numbers=[]` "
        "that no number is per rank.",
    )


def doubt_of_size(path: str, constructed: Size, now: Size) -> Blocker:
    """That what was replaced since the construction, a list of modules or a buffer, may be one rank's part."""
    return Blocker(
        None,
        "VC209",
        f"`{path}` was of size {constructed} when the model was constructed and is of size {now} now, and nothing says "
        "which of the two the single-device program has. Pass that program as the option `spec`, or say with "
        "`per_rank_numbers=[]` that it is the one of now.",
    )


def doubt_of_module(described: str, asked: str) -> Blocker:
    """That a constructor that may have known how many ranks there are may have made a module for one of them."""
    return BareDoubt(
        None,
        "VC209",
        f"{described} was made after code had asked how many ranks there are ({asked}), and nothing says whether it is "
        "that of the single-device program: it may hold sizes, texts or lists of one rank. Pass that program as the "
        "option `spec`, or say with `per_rank_numbers=[]` that it holds none.",
    )


def doubt_of_separated(first: str, second: str) -> Blocker:
    """That two parameters were one, whose gradients add up, when the model was constructed."""
    return Blocker(
        None,
        "VC209",
        f"`{first}` and `{second}` were one parameter when the model was constructed and are two now, each with a "
        f"gradient of its own. Share the parameter again once the model is parallelized, or pass the single-device "
        "program as the option `spec`.",
    )


class AmbiguityError(Exception):
    """Two readings give different programs; ``blocker`` says so, ``assignment`` is one of them."""

    def __init__(self, blocker: Blocker, assignment: Assignment) -> None:
        super().__init__(blocker.message)
        self.blocker = blocker
        self.assignment = assignment


@dataclasses.dataclass(frozen=True)
class Chosen:
    """``assignment``: of the numbers whose reading is not the preferred one."""

    assignment: Assignment
    read_as: Mapping[Number, object]


def choose(numbers: Sequence[Number], preferred: str | None, trace: Trace, *, changed: bool = False) -> Chosen:
    """The one reading that gives a program. ``preferred``: the text of the program under the preferred readings.

    ``changed``: look also at the values to which a model was changed since it was constructed; without it only where
    the preferred readings give no program. Raises ``AmbiguityError`` where there are several readings, or too many.
    """
    open_numbers = [
        number
        for number in numbers
        if len(number.readings) > 1 and (changed or preferred is None or number.source is not Source.CHANGED)
    ]
    found: dict[str, dict[Number, object]] = {} if preferred is None else {preferred: {}}
    tried = 0
    for reading in _candidates(open_numbers):
        if tried == LIMIT:
            raise AmbiguityError(_too_many(open_numbers), _assigned(next(iter(found.values()), {})))
        tried += 1
        text = trace(_assigned(reading))
        if text is None or text in found:
            continue
        found[text] = reading
        if len(found) > 1:
            one, other = found.values()
            raise AmbiguityError(_ambiguous(one, other, numbers), _assigned(one))
    if preferred is not None or not found:
        return Chosen({}, {})
    (reading,) = found.values()
    return Chosen(_assigned(reading), reading)


def _assigned(reading: Mapping[Number, object]) -> Assignment:
    return {place: value for number, value in reading.items() for place in number.places}


def _candidates(numbers: Sequence[Number]) -> Iterator[dict[Number, object]]:
    """Other readings than the preferred ones: of one number, of all and of two by the same degree, of all changed."""
    for number in numbers:
        for value in number.readings[1:]:
            yield {number: value}
    changed = {number: number.now for number in numbers if number.source is Source.CHANGED}
    if len(changed) > 1:
        yield changed
    by_degree: dict[int, dict[Number, object]] = {}
    for number in numbers:
        for value in number.readings[1:]:
            if type(value) is int and type(number.now) is int and value > number.now > 0:
                by_degree.setdefault(value // number.now, {})[number] = value
    for scaled in by_degree.values():
        if len(scaled) > 1:
            yield scaled
        if len(scaled) > 2:
            yield from (dict(pair) for pair in itertools.combinations(scaled.items(), 2))


def _ambiguous(one: Mapping[Number, object], other: Mapping[Number, object], numbers: Sequence[Number]) -> Blocker:
    number = next(iter({**one, **other}))
    if one and not set(one) & set(other):
        first, second = (_named(reading) for reading in (one, other))
        what = (
            f"nothing says which numbers are those of one rank: with {first} and with {second} the spec is another "
            "program, and it does not run with the numbers as they are."
        )
    else:
        first, second = (reading.get(number, number.readings[0]) for reading in (one, other))
        what = _question(number, first, second)
    return Blocker(None, "VC209", f"{what} {_remedies(numbers)}")


def _named(reading: Mapping[Number, object]) -> str:
    return ", ".join(
        f"`{number.path}` = {shown(value)}{_read_at(number)} in place of {shown(number.now)}"
        for number, value in reading.items()
    )


def _read_at(number: Number) -> str:
    return f" (read at {shown_line(number.line)})" if number.line is not None else ""


def _question(number: Number, first: object, second: object) -> str:
    line = _read_at(number)
    if number.source is Source.CHANGED:
        return (
            f"`{number.path}`{line} was {shown(first)} when the model was constructed and is {shown(second)} now, and "
            "both give a program, not the same one."
        )
    return (
        f"`{number.path}` is {shown(number.now)}{line}, and nothing says whether that is the number of the "
        f"single-device program or that of one rank: with {shown(first)} and with {shown(second)} the spec is "
        "another program."
    )


def _remedies(numbers: Sequence[Number]) -> str:
    """What to type, and what it says, for the numbers of which nothing is known."""
    either = "Pass the single-device program as the option `spec`, or"
    named = [item for item in numbers if len(item.readings) > 1 and not same_value(item.named, item.now)]
    if not named:
        return f"{either} say with `per_rank_numbers=[]` that it has the numbers as they are."
    first = named[0]
    share = f'`per_rank_numbers=["{first.path}"]`'
    if len(named) == 1:
        has = f"where it has {shown(first.named)}, and `per_rank_numbers=[]` where it has {shown(first.now)}"
        return f"{either} say by an option what it has: {share} {has}."
    listed = ", ".join(f"`{item.path}` = {shown(item.now)}" for item in named)
    return (
        f"{either} name all numbers that are one rank's out of {listed}: {share} where it has {shown(first.named)} "
        "of the first and the others as they are, and `per_rank_numbers=[]` where it has all as they are."
    )


def _too_many(numbers: Sequence[Number]) -> Blocker:
    what = (
        "nothing says which numbers are those of the single-device program and which those of one rank, and there are "
        "more ways to read them than are tried."
    )
    return Blocker(None, "VC209", f"{what} {_remedies(numbers)}")
