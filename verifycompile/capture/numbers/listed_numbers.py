"""What a report says of the numbers that a recovered spec has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.numbers.plain_values import PlainRead, shown
from verifycompile.capture.numbers.readings import Number, Source
from verifycompile.torch_interface.ranks.confined_answers import stayed_where_asked
from verifycompile.torch_interface.ranks.observation import Read, ReadKind, listed_places, reads

Named = tuple[str, object]


def listed_numbers(
    numbers: Sequence[Number], read_as: Mapping[Number, object], plain_reads: Iterable[PlainRead]
) -> Iterator[Assumption]:
    """One sentence for each number that the spec has otherwise than a rank; one for all others of the same kind.

    ``plain_reads``: those without a place are no module's, and of them the spec has what is there now. Flags and texts
    of installed packages, whose code knows of no job, have a sentence apart from what the user's own code holds;
    numbers of a package's modules are those that the user gave it.
    """
    constructed: list[Named] = []
    unnamed: list[Named] = []
    own: list[Named] = []
    of_packages: list[Named] = []
    for number in numbers:
        value = read_as.get(number, number.readings[0])
        named = (number.path, value)
        is_of_package = isinstance(value, bool | str) and number.places[0].is_of_installed_package
        if value != number.now:
            yield Assumption(_difference(number, value), AssumptionKind.NUMBER, [number.path])
        elif number.source is Source.RECORDED:
            constructed += [] if is_of_package else [named]
        elif number.source is Source.GIVEN:
            unnamed += [] if is_of_package else [named]
        else:
            (of_packages if is_of_package else own).append(named)
    for read in plain_reads:
        if read.place is None:
            (of_packages if read.is_of_installed_package else own).append((read.path, read.value))
    if constructed:
        yield _together("the spec has the numbers with which the model was constructed: {}", constructed)
    if unnamed:
        yield _together("the spec has the numbers that `per_rank_numbers` does not name as they are: {}", unnamed)
    if own:
        yield _together(f"the spec has {{}}, as {'it is' if len(own) == 1 else 'they are'} now", own)
    if of_packages:
        yield _together("the spec has what objects of installed packages hold, as it is now: {}", of_packages)
    if asked := _asked_and_passed_on():
        text = (
            "the spec has what code chose by the number of ranks beside numbers, such as functions and the contents of "
            f"tensors: {listed_places(asked)}"
        )
        yield Assumption(text, AssumptionKind.NUMBER)


def _asked_and_passed_on() -> tuple[str, ...]:
    """Where the user's code asked how many ranks there are, or whether there is a job, and may have passed that on.

    A constructor passes it on in what it makes, also where it only branches by it.
    """
    asked = [read for read in reads(ReadKind.DEGREE) if not read.traced and not read.installed]
    passed_on = (read for read in asked if _in_constructor(read) or not stayed_where_asked([read], ()))
    return tuple(dict.fromkeys(map(str, passed_on)))


def _in_constructor(read: Read) -> bool:
    return any(asker.code.co_name == "__init__" for asker in read.askers)


def _together(text: str, values: Iterable[Named]) -> Assumption:
    """One sentence for all ``values``: numbers first, flags and texts behind them."""
    ordered = sorted(values, key=lambda item: not _is_of_numbers(item[1]))
    named = dict.fromkeys(f"`{path}` = {shown(value)}" for path, value in ordered)
    return Assumption(text.format(", ".join(named)), AssumptionKind.NUMBER, dict.fromkeys(path for path, _ in ordered))


def _is_of_numbers(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_of_numbers(item) for item in cast("tuple[object, ...]", value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _difference(number: Number, value: object) -> str:
    """What the report says of a number of which a rank has another one."""
    if number.source in (Source.RECORDED, Source.CHANGED):
        return (
            f"the spec has `{number.path}` = {shown(value)}, as the model was constructed; "
            f"it is {shown(number.now)} now"
        )
    if number.source is Source.GIVEN:
        return f"the spec has `{number.path}` = {shown(value)} by `per_rank_numbers`; a rank has {shown(number.now)}"
    return (
        f"the spec has `{number.path}` = {shown(value)}, the only reading that gives a program; "
        f"a rank has {shown(number.now)}"
    )
