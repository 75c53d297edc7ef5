"""The report on a captured model in a job: the ranks that run it together compare what each of them captured.

Where all captured the same, that is what every rank runs. Where they did not, see ``reconcile.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import weakref
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Replicate

from verifycompile.agreement.channel import Alike, Answer, Channel
from verifycompile.agreement.reconcile import OF_ONE_RANK, Captured, Conversation, blocked, reconcile
from verifycompile.agreement.written import EXCHANGED, Written, digest_of, digest_of_bytes, write
from verifycompile.assumption import AssumptionKind, kind_of, to_data
from verifycompile.capture import identity_of
from verifycompile.captured_notes import BROKEN_ON_SOME, OwnCapture
from verifycompile.diagnostics.report import Report
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.pipeline import verify_captured
from verifycompile.program import Program, ProgramInput
from verifycompile.question import Provenance
from verifycompile.torch_interface.dynamo.backend import is_compiled_again
from verifycompile.torch_interface.dynamo.frames import Frame
from verifycompile.torch_interface.operators.contents import content_of
from verifycompile.torch_interface.operators.recorded_values import hints_of
from verifycompile.torch_interface.ranks.job_store import Store, job_store
from verifycompile.torch_interface.ranks.mesh import coordinate_of, line_through, own_rank, ranks_of_job

TIMEOUT_VARIABLE = "VERIFYCOMPILE_RANKS_TIMEOUT"
"""Seconds to wait for the other ranks' digests, besides the time that this rank's own capture took."""
_TIMEOUT = 60.0
_channels: weakref.WeakKeyDictionary[Store, Channel] = weakref.WeakKeyDictionary()


def job_channel() -> Channel | None:
    """This process's side of the conversation; None where it plays all ranks itself."""
    store = job_store()
    if store is None:
        return None
    if store not in _channels:
        _channels[store] = Channel(store, own_rank())
    return _channels[store]


@contextlib.contextmanager
def captured_in_job(frame: Frame) -> Generator[Channel | None]:
    """Inside, this rank captures ``frame``: where that fails, the others are told why, so that none waits for it."""
    channel = job_channel()
    if channel is None:
        yield None
        return
    name = identity_of(frame)
    channel.begin(name)
    try:
        yield channel
    except BaseException as error:  # Ctrl-C included: the others would wait for a rank that is gone
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        channel.stop(name, f"it stopped with {text.rstrip('.')}")
        raise


def waiting_time() -> float:
    """Raises ``UsageError`` VC306 for an environment variable that holds no number of seconds."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text) if text else _TIMEOUT
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError("VC306", f"{TIMEOUT_VARIABLE} must be a number of seconds, not {text!r}.")
    return seconds


def verify_together(spec: Program, implementation: Program, options: Options, channel: Channel | None = None) -> Report:
    """``verify_captured`` for a program of which other processes run their part. All of them give the same report.

    ``channel``: None outside of a job. A rank that does not answer is named, and nothing is proved.
    """
    if channel is None:
        return verify_captured(spec, implementation, options)
    report = _in_job(spec, implementation, options, channel)
    return dataclasses.replace(report, question=dataclasses.replace(report.question, job=ranks_of_job()))


def _in_job(spec: Program, implementation: Program, options: Options, channel: Channel) -> Report:
    own, ranks = implementation.own, ranks_together(implementation, channel)
    if own is None or len(ranks) == 1:
        return verify_captured(spec, implementation, options)
    seconds = waiting_time() + spec.seconds + implementation.seconds
    written, parts = said_of(spec, implementation, own, options)
    digest = digest_of(parts)
    taken = {"spec": spec.assumptions, "implementation": as_compared(implementation, own).assumptions}
    parts["assumptions"] = {name: to_data(listed) for name, listed in taken.items()}
    parts["held on some"] = held_on_some(implementation, own, channel.rank)
    question = channel.publish(own.frame, ranks, digest, alike_on(parts["held on some"], implementation))
    answer = channel.answers(question, digest, seconds)
    if answer.absent:
        report = blocked(spec, implementation, options, [_absent(answer, own.broken_at)])
    elif answer.agrees:
        report = verify_captured(spec, as_compared(implementation, own), options)
    else:
        conversation = Conversation(channel, question, answer.digests, seconds)
        report = reconcile(conversation, Captured(spec, implementation, written, parts), options)
    return dataclasses.replace(report, question=dataclasses.replace(report.question, count=len(ranks)))


def ranks_together(implementation: Program, channel: Channel | None) -> tuple[int, ...]:
    """The ranks of the job that run ``implementation`` together, this one among them; rank 0 alone outside of a job."""
    if channel is None:
        return (0,)
    own, mesh = implementation.own, implementation.mesh
    if own is None or mesh is None or channel.rank not in mesh.ranks:
        return (channel.rank,)
    return line_through(channel.rank, own.axes, mesh)


def said_of(
    spec: Program, implementation: Program, own: OwnCapture, options: Options
) -> tuple[tuple[Written, ...], dict[str, Any]]:
    """What this rank captured, as text, and all of which its digest is taken."""
    written = write_captured(implementation)
    return written, {
        "program": digest_of([item.digest for item in written]),
        "general": len(written) == 1,
        "spec": write(dataclasses.replace(spec, blockers=())).digest,
        "blockers": [blocker.message for blocker in spec.blockers],
        "broken at": own.broken_at,
        "places": dict(own.places),
        "constants": dict(own.constants),
        "held": held_digests(implementation, own),
        "before": {
            item.name: own.returned[item.name]
            for item in implementation.inputs
            if item.name in own.returned and not cut_axes(item, own)
        },
        "open": open_numbers(implementation, own),
        "wrappers": {name: list(settings) for name, settings in own.wrappers.items()},
        "left for later": [text for text in implementation.assumptions if kind_of(text) is AssumptionKind.LATER],
        "options": _options(options),
    }


def write_captured(implementation: Program) -> tuple[Written, ...]:
    """What this rank captured; of ranks whose shards differ in size what each of them runs."""
    if implementation.ranks and any(blocker.code == "VC204" for blocker in implementation.blockers):
        return tuple(write(program) for program in implementation.ranks)
    return (write(implementation),)


def open_numbers(implementation: Program, own: OwnCapture) -> dict[str, list[str]]:
    """What this call has for the sizes and numbers that the graph leaves open, by the name of the input.

    One symbol stands for the number of every rank: what is proved is of ranks that have the same.
    """
    sizes = {item.name: hints_of([item.node.meta.get("val")]).values() for item in implementation.inputs}
    found = {name: [*map(repr, numbers)] for name, numbers in sizes.items() if numbers}
    return {**found, **{name: [repr(number)] for name, (_, number) in own.numbers.items()}}


CHOSEN_ALIKE = "at every call the ranks run the same one of the graphs that were compiled of this code"
PASSED_ALIKE = "at every call the ranks have the same sizes and numbers, which the graph leaves open"


def as_compared(implementation: Program, own: OwnCapture) -> Program:
    """The program without what a comparison of the ranks has answered, and with what it has not.

    Which of its graphs a rank runs, and with which sizes, is decided on what it alone holds, at every call.
    """
    blockers = tuple(blocker for blocker in implementation.blockers if blocker.code not in OF_ONE_RANK)
    replaced = set(own.unless_compared)
    return dataclasses.replace(
        implementation,
        blockers=blockers,
        assumptions=(
            *(text for text in implementation.assumptions if text not in replaced),
            *((CHOSEN_ALIKE,) if is_compiled_again() else ()),
            *((PASSED_ALIKE,) if open_numbers(implementation, own) else ()),
        ),
        ranks=implementation.ranks if any(blocker.code == "VC204" for blocker in blockers) else (),
        provenance=Provenance.OBSERVED,
    )


def held_digests(implementation: Program, own: OwnCapture) -> dict[str, str]:
    """What this rank holds of the tensors that all ranks are taken to hold alike, by name."""
    compared = ((item.name, _digest_of(item, own)) for item in implementation.inputs if not cut_axes(item, own))
    return {name: digest for name, digest in compared if digest is not None}


def held_on_some(implementation: Program, own: OwnCapture, rank: int) -> dict[str, list[Any]]:
    """The same of the tensors that some ranks alone are taken to hold alike. By name: which of them, and the digest."""
    assert implementation.mesh is not None
    place = coordinate_of(rank, implementation.mesh)
    found: dict[str, list[Any]] = {}
    for item in implementation.inputs:
        cut = cut_axes(item, own)
        digest = _digest_of(item, own) if cut and len(cut) < len(own.axes) else None
        if digest is not None:
            found[item.name] = [[[axis, place[axis]] for axis in cut], digest]
    return found


def alike_on(held: Mapping[str, Sequence[Any]], implementation: Program) -> Alike:
    """What of ``held_on_some`` this rank publishes: a digest for each set of axes, and how many differ by right."""
    assert implementation.mesh is not None
    by_place: dict[str, list[Any]] = {}
    places: dict[tuple[int, ...], int] = {}
    for name, (place, digest) in held.items():
        by_place.setdefault(repr(place), []).append([name, digest])
        axes = tuple(axis for axis, _ in place)
        places[axes] = math.prod(implementation.mesh.axes[axis].size for axis in axes)
    return Alike({place: digest_of(listed) for place, listed in by_place.items()}, sum(places.values()))


def cut_axes(item: ProgramInput, own: OwnCapture) -> tuple[int, ...]:
    """Of the axes along which the ranks lie that run the program, those along which the input is not the same."""
    placements = item.placements
    return tuple(axis for axis in own.axes if placements is None or not isinstance(placements[axis], Replicate))


def _digest_of(item: ProgramInput, own: OwnCapture) -> str | None:
    tensor = own.held.get(item.name, own.passed.get(item.name))
    return None if tensor is None else content_digest(tensor)


def content_digest(tensor: torch.Tensor) -> str | None:
    """Of what this rank holds; None where it cannot be read."""
    content = content_of(tensor, EXCHANGED)
    if content is None:
        return None
    return digest_of([str(tensor.dtype), list(tensor.shape), digest_of_bytes(content)])


def _options(options: Options) -> Mapping[str, str]:
    """Options that are texts, numbers or placements. What the others do is in the programs."""
    values: dict[str, Any] = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    return {
        name: repr(value)
        for name, value in values.items()
        if name != "inner" and isinstance(value, (str, int, float, Mapping, tuple, list, type(None)))
    }


def _absent(answer: Answer, broken_at: str) -> str:
    listed = [f"rank {rank}: {reason}" for rank, reason in answer.absent.items()]
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    ranks = "a rank that runs this program has" if len(listed) == 1 else "ranks that run this program have"
    text = f"{ranks} not said what it captured: {'; '.join(listed[:4])}{more}"
    if not broken_at or broken_at in text:
        return f"{text}."
    return f"{text}; {BROKEN_ON_SOME.format('this rank', broken_at, 'other ranks may go on there')}"
