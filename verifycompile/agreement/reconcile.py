"""Ranks that captured different programs: every rank reads those of all, and checks them together against the spec.

All ranks do the same with the same data, and so come to the same report. Where the programs differ in numbers that are
linear in the rank's coordinates they are one program; else what each rank runs is checked rank by rank.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.fx

from verifycompile.agreement import channel
from verifycompile.agreement.written import Written, large_constants, read, write
from verifycompile.assumption import from_data
from verifycompile.capture.ranks.all_ranks import EACH_UP_TO
from verifycompile.capture.ranks.common_graph import DifferentGraphsError, check_equal
from verifycompile.capture.ranks.common_program import common_program, on_axes
from verifycompile.captured_notes import BROKEN_ON_SOME
from verifycompile.certificate.storage import StorageError
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.pipeline import verify_captured
from verifycompile.program import Blocker, OutputKind, Program, ProgramInput, Role
from verifycompile.question import Provenance, Question
from verifycompile.two_programs import verify_programs

OF_ONE_RANK = ("VC203",)
"""Blockers that say that nobody knows whether the other ranks captured the same."""
Parts = Mapping[str, Any]
"""Digests of what the ranks compare: the program, the spec, the options, and by name the tensors that are held."""


class NoAnswerError(Exception):
    """A rank that had answered does not go on."""


@dataclasses.dataclass(frozen=True)
class Conversation:
    """What the ranks of one question still have to say. ``digests``: of each rank, which are not all equal."""

    channel: channel.Channel
    question: channel.Question
    digests: Mapping[int, str]
    seconds: float

    def everybody(self, what: str, own: object, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """What each of ``ranks`` says about ``what``; this rank says ``own``. Raises ``NoAnswerError``."""
        ranks = self.question.ranks if ranks is None else ranks
        if self.channel.rank in ranks:
            self.channel.give(self.question, f"{what}/{self.channel.rank}", json.dumps(own).encode())
        found: dict[int, Any] = {}
        for rank in ranks:
            content = self.channel.take(self.question, f"{what}/{rank}", self.seconds)
            if content is None:
                raise NoAnswerError(f"rank {rank} does not say which it runs")
            found[rank] = json.loads(content)
        return found

    def given_up(self, reason: str) -> str:
        """Who gave up first, and why: this rank, where no other did. The others then need not wait."""
        failure = self.channel.failure(self.question)
        if failure is None:
            failure = self.channel.rank, reason
            self.channel.give_up(self.question, reason)
        rank, text = failure
        return f"rank {rank} does not go on: {text}"

    def programs(self, what: str, written: Written, digests: Mapping[int, str]) -> dict[int, Written]:
        """What each rank wrote; of ranks with equal digests one says it for all."""
        speakers = {digest: rank for rank, digest in sorted(digests.items(), reverse=True)}
        said = self.everybody(what, [written.data, written.places], sorted(speakers.values()))
        by_digest = {digest: Written(*said[rank]) for digest, rank in speakers.items()}
        return {rank: by_digest[digest] for rank, digest in digests.items()}


def blocked(
    spec: Program, implementation: Program, options: Options, messages: Sequence[str], node: torch.fx.Node | None = None
) -> Report:
    """Unproved, because of what is known, or not known, of the ranks. ``node``: where their graphs part."""
    own = implementation.own
    blockers = tuple(Blocker(node, "VC208", message) for message in messages)
    nothing = dataclasses.replace(
        implementation,
        inputs=(),
        outputs=(),
        blockers=blockers,
        assumptions=tuple(a for a in implementation.assumptions if own is None or a not in own.unless_compared),
    )
    report = verify_programs(dataclasses.replace(spec, blockers=()), nothing, options)
    return dataclasses.replace(report, question=Question(spec.provenance, Provenance.OBSERVED))


@dataclasses.dataclass(frozen=True)
class Captured:
    """What one rank has: both programs, its own as it is told to the others, and what of these is compared.

    ``written``: more than one where shards differ in size, what each rank runs.
    """

    spec: Program
    implementation: Program
    written: Sequence[Written]
    parts: Parts


def reconcile(conversation: Conversation, captured: Captured, options: Options) -> Report:
    """The report on what all ranks captured together."""
    try:
        report = _reconciled(conversation, captured, options)
    except NoAnswerError as error:
        message = f"the ranks run programs that differ, and {conversation.given_up(str(error))}."
        report = blocked(captured.spec, captured.implementation, options, [message])
    conversation.channel.finish(conversation.question, conversation.seconds)
    return dataclasses.replace(report, differing_ranks=_minority(conversation.digests))


def _minority(digests: Mapping[int, str]) -> tuple[int, ...]:
    """The ranks that captured something else than most did."""
    counts: dict[str, int] = {}
    for _, digest in sorted(digests.items()):
        counts[digest] = counts.get(digest, 0) + 1
    common = max(counts, key=lambda digest: counts[digest])
    return tuple(rank for rank, digest in sorted(digests.items()) if digest != common)


def _reconciled(conversation: Conversation, captured: Captured, options: Options) -> Report:
    said = conversation.everybody("parts", captured.parts)
    if any(item["options"]["on_unproved"] != captured.parts["options"]["on_unproved"] for item in said.values()):
        options = dataclasses.replace(options, on_unproved="error")  # a rank that goes on would wait for the others
    spec = dataclasses.replace(captured.spec, assumptions=_assumptions(said, "spec"))
    own = captured.implementation.own
    assert own is not None
    taken = (*own.unless_compared, *_assumptions(said, "implementation"))
    implementation = dataclasses.replace(captured.implementation, assumptions=taken)
    messages = [
        *_held_messages(said, implementation),
        *_before_messages(said),
        *_open_messages(said),
        *(places := _place_messages(said)),
        *_constant_messages(said),
        *_later_messages(said),
        *_wrapper_messages(said),
        *_option_messages(said),
        *_blocker_messages(said),
    ]
    node: torch.fx.Node | None = None
    specs = {rank: item["spec"] for rank, item in said.items()}
    if len(set(specs.values())) > 1 and not places:
        message, node = _spec_message(conversation, spec, specs)
        messages.append(message)
    if broken := _break_messages(said):
        return blocked(spec, implementation, options, broken)  # all else follows from it
    if messages:
        return blocked(spec, implementation, options, messages, node)
    message = "the ranks run programs that differ: their shards differ in size."
    common: Report | None = None
    # All ranks take the same way: where one wrote what each rank runs, all go on rank by rank.
    if all(item["general"] for item in said.values()):
        digests = {rank: item["program"] for rank, item in said.items()}
        written = conversation.programs("program", captured.written[0], digests)
        try:
            common = verify_captured(spec, _common(_read_all(written, captured)), options)
        except DifferentGraphsError as error:
            message, node = f"the ranks run programs that differ: {error.message}.", error.node
    if common is not None and common.verdict is not Verdict.UNPROVED:
        return common
    if len(conversation.question.ranks) > EACH_UP_TO:
        return common or blocked(spec, implementation, options, [message], node)
    alone = conversation.everybody("alone", _alone(implementation))
    failed = {rank: item["failed"] for rank, item in alone.items() if "failed" in item}
    if failed:
        rank, text = next(iter(failed.items()))
        message = f"the ranks run programs that differ, and rank {rank} cannot say what it runs: {text}."
        return common or blocked(spec, implementation, options, [message])
    each = _read_all({rank: Written(item["data"], item["places"]) for rank, item in alone.items()}, captured)
    known = {output.name for output in spec.outputs}
    for rank, program in zip(alone, each, strict=True):
        added = next((o for o in program.outputs if o.kind is OutputKind.VALUE and o.name not in known), None)
        if added is not None:
            message = f"rank {rank} returns `{added.name}`, which the spec does not."
            return blocked(spec, implementation, options, [message], added.node)
    whole = dataclasses.replace(each[0], ranks=tuple(each), provenance=Provenance.OBSERVED)
    return verify_captured(spec, whole, options)


def _common(programs: Sequence[Program]) -> Program:
    """The program that stands for all, with what was assumed on any rank and is not answered by the comparison."""
    mesh = programs[0].mesh
    assert mesh is not None
    common = common_program(programs, mesh)
    return dataclasses.replace(
        common,
        assumptions=tuple(dict.fromkeys(text for program in programs for text in program.assumptions)),
        blockers=tuple(blocker for blocker in common.blockers if blocker.code not in OF_ONE_RANK),
        provenance=Provenance.OBSERVED,
    )


def _alone(implementation: Program) -> dict[str, Any]:
    """What this rank runs, with its coordinates as numbers, or why that is not known."""
    assert implementation.own is not None
    try:
        program = implementation.own.alone()
        # Nodes of a rank's graph are not those of the program that all ranks' graphs are merged to.
        blockers = tuple(dataclasses.replace(blocker, node=None) for blocker in program.blockers)
        written = write(dataclasses.replace(program, blockers=blockers))
    except Exception as error:  # noqa: BLE001 - whatever fails is said to all ranks, and proves nothing
        return {"failed": f"{type(error).__name__}: {error}"}
    return {"data": written.data, "places": written.places}


def _read_all(written: Mapping[int, Written], captured: Captured) -> list[Program]:
    """The programs of all ranks in their order, on the mesh of these ranks."""
    own = captured.implementation.own
    assert own is not None
    constants = large_constants(captured.implementation)
    try:
        return [on_axes(read(item, constants), own.axes, tuple(written)) for item in written.values()]
    except StorageError as error:
        raise NoAnswerError(f"the programs cannot be exchanged: {error}") from error


def _assumptions(said: Mapping[int, Parts], what: str) -> tuple[str, ...]:
    """What is assumed on any rank: all ranks say the same."""
    listed = (text for rank in sorted(said) for text in from_data(said[rank]["assumptions"][what]))
    return tuple(dict.fromkeys(listed))


def _held_messages(said: Mapping[int, Parts], implementation: Program) -> list[str]:
    advice = {item.name: _advice(item) for item in implementation.inputs}
    if implementation.own is not None:
        advice.update(dict.fromkeys(implementation.own.dtensors, _SENT))
    held = _differing({rank: item["held"] for rank, item in said.items()})
    messages = [_held_otherwise(name, "every rank", ranks, advice) for name, ranks in held]
    return [*messages, *_differing_on_some(said, advice)]


def _differing(said: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each name under which two ranks say something else, with the first two such ranks."""
    for name in dict.fromkeys(name for rank in sorted(said) for name in said[rank]):
        first, *others = (rank for rank in sorted(said) if name in said[rank])
        other = next((rank for rank in others if said[rank][name] != said[first][name]), None)
        if other is not None:
            yield name, (first, other)


def _advice(item: ProgramInput) -> str:
    option = "in_placements" if item.role is Role.INPUT else "param_placements"
    return f"say how it is laid out with `{option}`, or give all ranks the same."


_SENT = (
    "its DTensor says so. Make it with `distribute_tensor`, which sends one rank's numbers to all, or of the same "
    "numbers on all ranks."
)


def _differing_on_some(said: Mapping[int, Parts], advice: Mapping[str, str]) -> list[str]:
    first: dict[tuple[str, str], int] = {}
    messages: dict[str, str] = {}
    for rank in sorted(said):
        for name, (place, digest) in said[rank]["held on some"].items():
            other = first.setdefault((name, repr(place)), rank)
            if said[other]["held on some"][name][1] != digest:
                messages.setdefault(name, _held_otherwise(name, "these ranks", (other, rank), advice))
    return list(messages.values())


def _held_otherwise(name: str, where: str, ranks: tuple[int, int], advice: Mapping[str, str]) -> str:
    first, second = ranks
    return (
        f"`{name}` is taken to be the same tensor on {where}, and ranks {first} and {second} hold other numbers in it; "
        f"{advice[name]}"
    )


def _before_messages(said: Mapping[int, Parts]) -> list[str]:
    """The first input that a graph returns of which nothing was asked, and which is another one on another rank."""
    found = {rank: item["before"] for rank, item in said.items()}
    return [
        f"`{name}` is taken to be the same tensor on every rank, and the graph that returns it, before a graph break, "
        f"is not the same on ranks {first} and {other}: give all ranks the same numbers, tensors and branches there, "
        "or say how it is laid out with `in_placements`."
        for name, (first, other) in itertools.islice(_differing(found), 1)
    ]


def _open_messages(said: Mapping[int, Parts]) -> list[str]:
    """The first input whose sizes or number, left open by the graph, are other ones on another rank."""
    found = {rank: item["open"] for rank, item in said.items()}
    return [
        f"the graph leaves sizes or numbers of `{name}` open, which are {', '.join(found[first][name])} on rank "
        f"{first} and {', '.join(found[other][name])} on rank {other}: what is proved holds where all ranks have the "
        "same. Pass the same, or compile with `dynamic=False`."
        for name, (first, other) in itertools.islice(_differing(found), 1)
    ]


def _break_messages(said: Mapping[int, Parts]) -> list[str]:
    """Where the graphs of ranks end at other lines, since some of them alone meet a graph break there."""
    first, *others = sorted(said)
    for rank in others:
        ours, theirs = said[first]["broken at"], said[rank]["broken at"]
        if ours != theirs:
            place, ends, goes_on = (ours, first, rank) if ours else (theirs, rank, first)
            return [BROKEN_ON_SOME.format(f"rank {ends}", place, f"rank {goes_on} goes on there")]
    return []


def _place_messages(said: Mapping[int, Parts]) -> list[str]:
    """The first place where other ranks return another one of the values that their programs compute."""
    found = {rank: item["places"] for rank, item in said.items()}
    return [
        f"what the graph leaves behind{place} is `{found[first][place]}` on rank {first} and `{found[other][place]}` "
        f"on rank {other}: return the same at each place, and in the same order, on all ranks."
        for place, (first, other) in itertools.islice(_differing(found), 1)
    ]


def _constant_messages(said: Mapping[int, Parts]) -> list[str]:
    """The first number or text that is returned and is another one on another rank. None says that there is none."""
    found = {
        rank: {place: text for place, text in item["constants"].items() if text != "None"}
        for rank, item in said.items()
    }
    return [
        f"what is returned{place} is {found[first][place]} on rank {first} and {found[other][place]} on rank {other}, "
        "and the spec returns one of them. Return the same on all ranks, or return it from code that is not compiled."
        for place, (first, other) in itertools.islice(_differing(found), 1)
    ]


def _later_messages(said: Mapping[int, Parts]) -> list[str]:
    """That a reduction of gradients is left to a later step on some ranks alone: the others wait for it in this one."""
    first, *others = sorted(said)
    for rank in others:
        for one, other in ((first, rank), (rank, first)):
            left = [text for text in said[one]["left for later"] if text not in said[other]["left for later"]]
            if left:
                where = f"on rank {one}, and not on rank {other}"
                return [f"{where}: {left[0]}. Synchronize in the same steps on all ranks."]
    return []


def _wrapper_messages(said: Mapping[int, Parts]) -> list[str]:
    """The first setting by which a data-parallel wrapper sends a parameter otherwise on another rank."""
    first, *others = sorted(said)
    for rank in others:
        for name, ours in said[first]["wrappers"].items():
            theirs = said[rank]["wrappers"].get(name, ours)
            for own, other in zip(ours, theirs, strict=False):
                if own != other:
                    message = (
                        f"`{ours[0]}` does not send `{name}` alike on all ranks: it has `{own}` on rank {first} and "
                        f"`{other}` on rank {rank}, so that ranks wait for each other without end, or take other bytes "
                        "for it. Wrap the model in the same way on all ranks."
                    )
                    return [message]
    return []


def _blocker_messages(said: Mapping[int, Parts]) -> list[str]:
    """Where the program does not correspond to the spec on some ranks alone."""
    common = set.intersection(*(set(item["blockers"]) for item in said.values()))
    return [f"on rank {rank}: {text}" for rank in sorted(said) for text in said[rank]["blockers"] if text not in common]


def _option_messages(said: Mapping[int, Parts]) -> list[str]:
    first, *others = sorted(said)
    for rank in others:
        ours, theirs = said[first]["options"], said[rank]["options"]
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                return [f"the option `{name}` is not the same on ranks {first} and {rank}: give all ranks the same."]
    return []


def _spec_message(
    conversation: Conversation, spec: Program, digests: Mapping[int, str]
) -> tuple[str, torch.fx.Node | None]:
    """Where the specs of two ranks part."""
    first = min(digests)
    other = min(rank for rank, digest in digests.items() if digest != digests[first])
    where, node = "", None
    written = conversation.programs("spec", write(spec), digests)
    try:
        programs = {rank: read(written[rank], large_constants(spec)) for rank in (first, other)}
        check_equal({rank: program.graph for rank, program in programs.items()})
    except DifferentGraphsError as error:
        where, node = f": {error}", error.node
    except StorageError:
        pass
    given = "pass the same single-device program on all ranks as the option `spec`."
    if spec.provenance is Provenance.GIVEN:
        return f"ranks {first} and {other} were compared with specs that differ{where}; {given}", node
    text = (
        f"ranks {first} and {other} run code of which specs are recovered that differ{where}; run the same on all "
        "ranks, keep what one rank alone does, as logging, from being compiled (`torch.compiler.disable`), or "
    )
    return text + given, node
