"""The traced frame as other ranks have it: with the objects of this rank, or with a model that was built for each."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from verifycompile.capture.copied_frame import copied_frame
from verifycompile.capture.meshes import Root
from verifycompile.errors import UsageError
from verifycompile.torch_interface.data_parallel.unwrapped import without_outer_wrappers
from verifycompile.torch_interface.dtensor.globalize import Relocator
from verifycompile.torch_interface.dtensor.tensors import of_acting_rank
from verifycompile.torch_interface.dynamo.closures import globals_in, values_closed_over
from verifycompile.torch_interface.dynamo.frames import Frame, with_callable
from verifycompile.torch_interface.ranks.acting_rank import acted_variables, acting_as, groups_of_its_own
from verifycompile.torch_interface.ranks.kept_answers import with_holders
from verifycompile.torch_interface.ranks.mesh import own_rank
from verifycompile.torch_interface.ranks.observation import (
    Read,
    ReadKind,
    answers_given,
    asked_by_first_build,
    listed_reads,
    rank_reads_ignored,
)

Build = Callable[[], Callable[..., Any]]

_FIRST_CALL = "what the first call of `build` set, such as a cache, for the next one as this rank did not ask again"


class AsRanks(Protocol):
    """How a frame is had as another rank."""

    def frame(self, rank: int, root: Root) -> AbstractContextManager[Frame]:
        """The frame of ``rank``, to be traced while the context is entered, in which this process acts as ``rank``."""
        ...


@dataclasses.dataclass(frozen=True)
class WithSameObjects:
    """Every rank is taken to have the objects of this one."""

    own: Frame

    @contextlib.contextmanager
    def frame(self, rank: int, root: Root) -> Generator[Frame]:
        with acting_as(rank, root.mesh):
            yield self.own


@dataclasses.dataclass(frozen=True)
class Built:
    """Every rank has the model that ``build`` makes while this process acts as it. ``remake``: its call of a model.

    ``calls``: what ``build`` made so far, as which rank, and where it asked for it.
    """

    build: Build
    remake: Callable[[Callable[..., Any]], Frame]
    calls: list[tuple[Callable[..., Any], int, frozenset[tuple[str, int]]]] = dataclasses.field(
        default_factory=list[Any]
    )

    @contextlib.contextmanager
    def frame(self, rank: int, root: Root) -> Generator[Frame]:
        with groups_of_its_own(), acting_as(rank, root.mesh):
            with listed_reads() as asked:
                made = called(self.build, f"for rank {rank}")
            self.calls.append((made, rank, frozenset((read.file, read.line) for read in asked)))
            yield self.remake(made)

    @property
    def given_before(self) -> tuple[Read, ...]:
        """Answers about the rank that not every call of ``build`` asked for again, with what may still hold them."""
        again = frozenset[tuple[str, int]].intersection(*(asked for _, _, asked in self.calls))
        given = [read for read in answers_given() if (read.file, read.line) not in again]
        kept = with_holders(given, [self.build, *(made for made, _, _ in self.calls)])
        found = {(read.reader, read.file, read.line): read for read in kept}
        for read in self._kept_by_itself():
            place = read.reader, read.file, read.line
            if place not in found or not found[place].holder:
                found[place] = read
        return tuple(found.values())

    def _kept_by_itself(self) -> tuple[Read, ...]:
        """What the first call of ``build`` asked and a later one as the same rank did not: the answer was kept."""
        again = [asked for _, rank, asked in self.calls if rank == own_rank()]
        if not again:
            return ()
        anew = frozenset[tuple[str, int]].union(*again)
        first = (read for read in asked_by_first_build() if read.kind is ReadKind.RANK)
        kept = (read for read in first if (read.file, read.line) not in anew)
        return tuple(dataclasses.replace(read, holder=_FIRST_CALL) for read in kept)


def relocated(frame: Frame) -> Frame:
    """The frame with the shards of DTensors that the acted rank has, which may have other sizes."""
    return copied_frame(frame, Relocator(of_acting_rank))


def called(build: Build, when: str) -> Callable[..., Any]:
    """What ``build`` makes, from the same state of the random number generators on every call.

    Raises ``UsageError`` VC306 for what it raises, and where it makes nothing that can be called.
    """
    numbers = random.getstate()
    try:
        with rank_reads_ignored(), listed_reads() as asked, torch.random.fork_rng(devices=()):
            made: object = build()
    except UsageError:
        raise
    except Exception as error:
        text = f"option `build` failed when it was called {when}: {type(error).__name__}: {error}"
        raise UsageError("VC306", text) from error
    finally:
        random.setstate(numbers)
    unknown = [read for read in unknown_variables(asked) if not read.installed]
    if unknown:
        where = "whose value on other ranks is not known here: ask for the rank instead"
        text = f"option `build` reads {unknown[0]}, {where}."
        raise UsageError("VC306", text)
    if not callable(made):
        text = f"option `build` must make the parallel model; it made a value of type `{type(made).__name__}` {when}."
        raise UsageError("VC306", text)
    return made


def unknown_variables(reads: Iterable[Read]) -> tuple[Read, ...]:
    """Reads of environment variables and devices whose values on other ranks are not known."""
    known = [f"os.environ['{name}']" for name in acted_variables(own_rank())]
    of_rank = (read for read in reads if read.kind is ReadKind.RANK)
    return tuple(read for read in of_rank if read.is_of_this_process and read.reader not in known)


def frame_with_model(frame: Frame, model: Callable[..., Any]) -> Frame:
    """The compiled ``frame`` with ``model`` in the place of the model that it is of, or that it calls.

    Raises ``UsageError`` VC306 where the frame holds no model of this kind, or several.
    """
    function, outer = without_outer_wrappers(uncompiled(model))
    own = with_callable(frame, function)
    if own is not None:
        return dataclasses.replace(own, wrappers=outer)
    found = {id(held): held for value in _values(frame) if _is_like(held := uncompiled(value), function)}
    if len(found) != 1:
        what = type(function).__name__ if isinstance(function, nn.Module) else getattr(function, "__name__", "function")
        count = "none" if not found else f"{len(found)}"
        raise UsageError(
            "VC306",
            f"option `build` makes `{what}`, of which the compiled function `{frame.code.co_name}` "
            f"({frame.code.co_filename.rpartition('/')[2]}:{frame.code.co_firstlineno}) holds {count}: it must be the "
            "compiled model itself, or the one model of its class among the function's arguments and variables.",
        )

    def swapped(value: Any) -> Any:
        return function if id(uncompiled(value)) in found else value

    return dataclasses.replace(copied_frame(frame, swapped), wrappers=outer)


def _is_like(held: Any, function: Any) -> bool:
    return isinstance(function, nn.Module) and isinstance(held, type(function))


def _values(frame: Frame) -> Iterator[Any]:
    yield from frame.locals.values()
    yield from values_closed_over(frame.code, frame.closure)
    yield from (frame.globals[name] for name in dict.fromkeys(globals_in(frame.code)) if name in frame.globals)


def uncompiled(model: Any) -> Any:
    """The module or function that was given to ``torch.compile``."""
    original = getattr(model, "_orig_mod", None) if isinstance(model, nn.Module) else None
    return original if isinstance(original, nn.Module) else getattr(model, "_torchdynamo_orig_callable", model)
