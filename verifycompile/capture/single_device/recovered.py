"""The single-device spec that the parallel program's own Python frame gives at whole shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import sympy
import torch
from torch import nn

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export, export
from verifycompile.capture.copied_frame import copied_frame
from verifycompile.capture.names import call_arguments
from verifycompile.capture.numbers.listed_numbers import listed_numbers
from verifycompile.capture.numbers.plain_values import (
    PlainRead,
    asked_before,
    changed_since_construction,
    dotted,
    module_names,
    plain_reads,
    put,
)
from verifycompile.capture.numbers.readings import (
    AmbiguityError,
    Assignment,
    Chosen,
    Degrees,
    Number,
    Source,
    choose,
    doubt_of_free,
    doubt_of_module,
    doubt_of_separated,
    doubt_of_size,
    numbers_of,
)
from verifycompile.capture.single_device.local_parameters import check_whole_parameters
from verifycompile.capture.single_device.whole_tensors import WholeTensors
from verifycompile.captured_notes import BROKEN_ON_SOME
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Blocker, Program
from verifycompile.question import Provenance
from verifycompile.torch_interface.communication.wrappers import module_behind
from verifycompile.torch_interface.dtensor.alone import methods_of_whole_tensors
from verifycompile.torch_interface.dtensor.globalize import Globalizer
from verifycompile.torch_interface.dtensor.parallel_styles import without_style
from verifycompile.torch_interface.dynamo.frames import (
    Frame,
    GraphBreakError,
    Result,
    TracedFrame,
    frame_of_call,
    trace_frame,
)
from verifycompile.torch_interface.dynamo.graph_text import graph_text
from verifycompile.torch_interface.guards.argument_guards import ArgumentsRead
from verifycompile.torch_interface.operators.shapes import trace_guards
from verifycompile.torch_interface.ranks.acting_rank import acting_alone
from verifycompile.torch_interface.ranks.constructed import MISSING, Attribute, last_constructed, resized, separated
from verifycompile.torch_interface.ranks.observation import listed_places
from verifycompile.torch_interface.ranks.parallelism import has_parallelism, without_unread_meshes

STILL_PARALLEL = (
    "the single-device program cannot be recovered from this model: without the hooks of torch.distributed it still "
    "holds DTensors or collectives. Pass the single-device program as the option `spec`."
)

AFTER_BREAK = Assumption(
    "a graph break ends the graph: what comes after it is asked on its own where it is parallel, and what Python "
    "computes in between is taken as it is",
    AssumptionKind.UNCOMPARED,
)


@dataclasses.dataclass(frozen=True)
class Captured:
    """``doubt``: asks whether another reading of the model's numbers gives another program.

    ``empty``: tensors that stand for others and hold nobody's values. ``read``: what a given spec reads of a call.
    """

    exported: Export
    guards: tuple[sympy.Basic, ...]
    assumptions: tuple[str, ...]
    blockers: tuple[Blocker, ...] = ()
    provenance: Provenance = Provenance.GIVEN
    doubt: Callable[[], Blocker | None] | None = None
    empty: tuple[torch.Tensor, ...] = ()
    read: ArgumentsRead | None = None


def recovered(exported: Export, implementation: Program, options: Options) -> Captured:
    """The implementation's own frame at whole shapes, with the numbers that the model was constructed with."""
    return _Recovery(exported, implementation, options).captured()


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """``places``: where its results are, those that are no tensors too."""

    captured: Captured
    text: str
    places: str


class _Recovery:
    """Attempts to trace the implementation's frame at whole shapes, each under one reading of the model's numbers."""

    def __init__(self, exported: Export, implementation: Program, options: Options) -> None:
        self.exported = exported
        self.options = options
        self.implementation = implementation
        self.reads: dict[tuple[object, ...], PlainRead] = {}
        self.names: dict[int, str] = {}
        self.modules: tuple[nn.Module, ...] = ()
        self.first_failure: GraphBreakError | None = None

    def captured(self) -> Captured:
        preferred = self._attempt({})
        numbers = self._numbers()
        given = {
            place: number.readings[0] for number in numbers if number.source is Source.GIVEN for place in number.places
        }
        if given:
            preferred = self._attempt(given)
        blockers = tuple(doubt_of_separated(*map(self._name, pair)) for pair in separated(self.modules))
        chosen = Chosen({}, {})

        def trace(assignment: Assignment) -> str | None:
            return self._trace({**given, **assignment}, lambda traced, _: graph_text(traced.graph))

        def trace_with_places(assignment: Assignment) -> str | None:
            return self._trace({**given, **assignment}, lambda traced, _: graph_text(traced.graph) + _places(traced))

        try:
            chosen = choose(numbers, None if preferred is None else preferred.text, trace)
        except AmbiguityError as ambiguous:
            blockers += (ambiguous.blocker,)
            preferred = preferred or self._attempt({**given, **ambiguous.assignment})
        if preferred is None and chosen.assignment:
            preferred = self._attempt({**given, **chosen.assignment})
        if preferred is None:
            raise UsageError(blockers[0].code, blockers[0].message) if blockers else self._failure()
        check_whole_parameters(self.exported, self.implementation, self.options)
        listed = tuple(listed_numbers(numbers, chosen.read_as, self.reads.values()))
        whole = preferred.text + preferred.places
        between = (AFTER_BREAK,) if self.exported.traced.is_broken else ()
        return dataclasses.replace(
            preferred.captured,
            blockers=blockers,
            assumptions=(*preferred.captured.assumptions, *listed, *between),
            provenance=Provenance.RECORDED if _is_recorded(numbers) else Provenance.READ,
            doubt=None if blockers else lambda: _doubt(numbers, whole, trace_with_places) or self._doubt_of_the_rest(),
        )

    def _attempt(self, assignment: Assignment) -> _Attempt | None:
        """The spec under ``assignment``; None where it does not run on whole tensors."""

        def capture(traced: TracedFrame, parts: _Parts) -> _Attempt:
            inputs = without_unread_meshes(traced.graph, traced.example_inputs)
            traced = dataclasses.replace(traced, example_inputs=inputs)
            if has_parallelism(traced.graph, traced.example_inputs):
                raise UsageError("VC307", STILL_PARALLEL)
            originals = {id(copy): original for original, copy in parts.copies}
            self._note_reads(traced, lambda module: originals.get(id(module), module))
            exported = export(traced, parts.tensors.names)
            assumptions = tuple(dict.fromkeys(parts.globalizer.assumptions))
            captured = Captured(exported, trace_guards(traced.context), assumptions)
            return _Attempt(captured, graph_text(traced.graph), _places(traced))

        return self._trace(assignment, capture)

    def _trace(self, assignment: Assignment, use: Callable[[TracedFrame, _Parts], Result]) -> Result | None:
        tensors = WholeTensors(self.exported, self.implementation, self.options)
        is_broken = self.exported.traced.is_broken
        globalizer = Globalizer(tensors, keeps_breaks=is_broken)
        frame = _frame_without_wrapper(self.exported.traced.frame, globalizer)
        if not self.names:
            self.modules = tuple(globalizer.modules)
            self.names = module_names(self.modules)
            self._note_reads(self.exported.traced, lambda module: module)
        copies = tuple((module, globalizer(module)) for module in tuple(globalizer.modules))
        constructed = {place: place.constructed for place in changed_since_construction(module for module, _ in copies)}
        for place, value in {**constructed, **assignment}.items():
            copied = dataclasses.replace(place, owner=globalizer(place.owner))
            if copied.now() is not MISSING:  # else it is of a wrapper that the spec is without
                put(copied.owner, copied.steps, value)
        parts = _Parts(tensors, globalizer, copies)
        try:
            with acting_alone(), methods_of_whole_tensors():
                return trace_frame(frame, lambda traced: use(traced, parts), up_to_break=is_broken)
        except GraphBreakError as broken:
            self.first_failure = self.first_failure or broken
        return None

    def _note_reads(self, traced: TracedFrame, original: Callable[[nn.Module], nn.Module]) -> None:
        for key, read in plain_reads(traced, original, self.names).items():
            self.reads.setdefault(key, read)

    def _numbers(self) -> tuple[Number, ...]:
        degrees = Degrees.of(self.implementation.inputs, self.implementation.mesh)
        return numbers_of(self.reads.values(), degrees, self.options.per_rank_numbers)

    def _name(self, attribute: Attribute) -> str:
        owner, name = attribute
        return dotted(self.names.get(id(owner), ""), ((".", name),))

    def _described(self, module: nn.Module) -> str:
        name = self.names.get(id(module), "")
        return f"module `{name}`" if name else f"`{type(module).__name__}`"

    def _doubt_of_the_rest(self) -> Blocker | None:
        """A number that is no module's, and sizes, are read as they are: they may be those of one rank.

        A number, where code asked for a degree; a size, where it is not the one that the model was constructed with;
        and a module, where an answer may have reached its constructor, which may have kept it in any form.
        """
        if self.options.per_rank_numbers is not None:
            return None
        for owner in self.modules:
            for name, size, now in resized(owner):
                return doubt_of_size(self._name((owner, name)), size, now)
        degrees = Degrees.of(self.implementation.inputs, self.implementation.mesh)
        free = [read for read in self.reads.values() if read.place is None and not read.is_early]
        if (doubt := next(filter(None, (doubt_of_free(read, degrees) for read in free)), None)) is not None:
            return doubt
        for owner in self.modules if degrees.sharding else ():
            asked = asked_before(last_constructed(owner))
            own = dict.fromkeys(str(read) for read in asked if not (read.traced or read.installed))
            if own and not type(owner).__module__.startswith("torch.nn."):
                return doubt_of_module(self._described(owner), listed_places(list(own)))
        return None

    def _failure(self) -> UsageError:
        failure = self.first_failure
        if failure is not None and failure.is_graph_break and self.exported.traced.returned is None:
            return UsageError("VC305", f"the spec does not trace to one graph.\n{failure}")
        if failure is not None and failure.place and not self.exported.traced.is_broken:
            alone = "the only process of a job, as which the spec is recovered,"
            broken = BROKEN_ON_SOME.format(alone, failure.place, "this rank goes on there")
            return UsageError("VC305", f"{broken}\n{failure}")
        reason = f"\n{failure}" if failure is not None else ""
        return UsageError(
            "VC307",
            "the single-device program cannot be recovered from this model: it does not run on whole tensors. "
            f"Pass the single-device program as the option `spec`.{reason}",
        )


@dataclasses.dataclass(frozen=True)
class _Parts:
    tensors: WholeTensors
    globalizer: Globalizer
    copies: tuple[tuple[nn.Module, nn.Module], ...]


def _is_recorded(numbers: Sequence[Number]) -> bool:
    return bool(numbers) and all(number.source is Source.RECORDED for number in numbers)


def _places(traced: TracedFrame) -> str:
    return "".join(sorted(f"\n{place}" for place in traced.left_behind.returned))


def _doubt(numbers: Sequence[Number], text: str, trace: Callable[[Assignment], str | None]) -> Blocker | None:
    changed = [number for number in numbers if number.source is Source.CHANGED]
    try:
        choose(changed, text, trace, changed=True)
    except AmbiguityError as ambiguous:
        return ambiguous.blocker
    return None


def _frame_without_wrapper(frame: Frame, globalizer: Globalizer) -> Frame:
    """The copied frame; of the forward that a wrapper calls, where the frame is that of a wrapper that communicates.

    Of the hook of a parallel style, which Dynamo compiles alone where what calls its module runs as Python code, a
    frame that passes on what the hook is given: on a single device no such hook is registered.
    """
    if (passing := without_style(frame.code)) is not None:
        code = passing.__code__
        names = zip(code.co_varnames, frame.code.co_varnames, strict=False)
        values = {name: globalizer(frame.locals[old]) for name, old in names}
        return Frame(code, passing.__globals__, values, ())
    module = module_behind(frame.code, frame.closure)
    if module is None:
        return copied_frame(frame, globalizer)
    args, kwargs = call_arguments(frame, skip=False)
    return frame_of_call(globalizer(module).forward, globalizer(args), globalizer(kwargs))
