"""The cause by counterfactual: which change of a program makes its outputs the spec's?

A change is tried on numbers first, all failed outputs at once; the changed program is then proved. What proves is the
cause of the refusal, and the way to mend it. Where no single change mends all outputs, changes that mend some are put
together, each of which is a cause of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import cast

import torch.fx

from verifycompile import bounds
from verifycompile.capture.merged_ranks import ON_RANK
from verifycompile.cause import failures
from verifycompile.cause.collectives import summed
from verifycompile.cause.draft import Draft
from verifycompile.cause.failures import UNFIT, UNKNOWN
from verifycompile.cause.frontier import Frontier, first_lost, frontier, held_with, reaches
from verifycompile.cause.kinds import AT_FIRST, Kinds, Stage, arranged, as_spec, likely, missing, of_places
from verifycompile.cause.move import Move, Scene, is_derivative, is_floating, is_tensor
from verifycompile.cause.origins import beside_others, first_summand, line_of_detached, line_of_own
from verifycompile.cause.subject import OneGraph, Subject
from verifycompile.cause.trial import Outcome, Trial
from verifycompile.diagnostics.finding import Label
from verifycompile.program import OutputKind, Program, SourceLocation
from verifycompile.reduction.search import evaluable
from verifycompile.torch_interface.elements import real_tensors
from verifycompile.torch_interface.gradient_marks import noted_owner
from verifycompile.torch_interface.logs import without_logged_failures
from verifycompile.torch_interface.model_lines import (
    caller_of,
    innermost_in_file,
    line_beside,
    model_location_of,
    only_caller_of,
    within_helper,
    written_backward_of,
)
from verifycompile.torch_interface.number_lines import line_of_number
from verifycompile.torch_interface.source import at_line, lines_of
from verifycompile.torch_interface.threads import one_thread
from verifycompile.torch_interface.value_names import is_backward
from verifycompile.witness.comparison import Agreement
from verifycompile.witness.draw import draw
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.few_kinds import of_few_kinds
from verifycompile.witness.interpreter import ancestors, descendants
from verifycompile.witness.search import attempts, elements

MAX_CAUSES = 8
MAX_PROOFS = 6
MAX_HINTS = 6
"""What there is to do at more places of one line is not told for each of them."""
MAX_ALTERNATIVES = 2
"""Changes that are tried as the first of several that are needed."""
MAX_OF_PAIRS = 24
"""Of so many changes of where a rank's part lies two are tried at once."""
MAX_MOVES = 4000
"""Moves of one kind that are tried."""
_SHARE_OF_SEARCH = 0.7
"""Of the time until a limit; the rest is for the proof of what was found by then."""
_SHARE_OF_PROOF = 0.25
"""Of the seconds of the search; a changed program that is right is proved in far less."""
MAX_ELEMENTS = 5_000_000
"""Elements of all values of a program that is evaluated many times."""

_SHARE_OF_FEW = 4
"""Nodes are few where this many times as many are in all graphs."""

_OF_CALLERS = frozenset({"drop", "leave out"})
"""Kinds of changes of what a function does for one caller, and not for others."""
_OF_WRITES = frozenset({"overwritten"})
"""Kinds of changes of what a write does to memory, at the line that writes."""
_OF_NUMBERS = frozenset({
    "argument", "as spec", "bound", "coordinate", "counted from part", "divided by all", "factor", "no factor",
    "number", "own entry", "own number", "own piece", "own positions", "own slice", "scale", "step",
})  # fmt: skip
"""Kinds of changes of a number that a line computes with, which another line may have made."""
_OF_BODIES = frozenset({"reduction", "scattered along"})
"""Kinds of changes of what the body of a function says, not the line that calls it."""

_DETACHED = "no gradient passes what is detached here"

LARGE = 300_000
"""From so many elements on, changes where the spec is left first are tried before all others."""
_Focus = frozenset[str] | None
"""Names of the nodes at which changes are sought; anywhere where it is None."""

Change = tuple[Draft, tuple[Move, ...]]
Proves = Callable[[Program, Program], bool]


@dataclasses.dataclass(frozen=True)
class Cause:
    """One change that belongs to the repair of a program. ``outputs``: those that were wrong without it.

    ``node``: where to point; ``moves``: one, or the same change at each node that one source line made. ``texts``: what
    is wrong, and what to do. ``proved``: the outputs that are proved with all changes where that is not all of them.
    ``unmended``: those that differ then. ``draft``: which of the subject's drafts is changed. ``place``: the line to
    point at where it is another one: of a call of what is right for other callers, or within a helper. ``began``: the
    line behind which a gradient that is summed where it leaves became a partial sum, where that is another line.
    ``made``: where the node's line, which the spec runs too, gets what is wrong: a number, or a gradient's reduction.
    """

    node: torch.fx.Node
    moves: tuple[Move, ...]
    outputs: tuple[str, ...]
    texts: tuple[str, str]
    proved: tuple[str, ...] = ()
    unmended: tuple[str, ...] = ()
    draft: int = 0
    place: SourceLocation | None = None
    began: SourceLocation | None = None
    made: Label | None = None

    @property
    def move(self) -> Move:
        return self.moves[0]


@dataclasses.dataclass(frozen=True)
class _Step:
    """What mends some outputs: the change, and the outputs."""

    draft: Draft
    moves: tuple[Move, ...]
    mended: frozenset[str]


def find_causes(
    subject: Subject,
    proves: Proves,
    *,
    seconds: float,
    suspected: Collection[SourceLocation] = (),
    shown: tuple[Program, Program] | None = None,
    failures: list[str] | None = None,
) -> tuple[Cause, ...]:
    """The changes that together make the program provable; () where none were found in the time given.

    ``suspected``: lines at which a reduction may be missing, which are looked at first. ``shown``: the programs at the
    sizes at which they are known to differ. ``failures``: what failed on the way is added to them.

    ``seconds``: of this thread's own work, so that what else the machine does changes no report.
    """
    limits = bounds.current()
    latest = time.perf_counter() + (seconds * 4 if limits is None else _SHARE_OF_SEARCH * limits.seconds_left)
    deadline = time.thread_time() + seconds
    for evaluated in _evaluable(subject, shown):
        try:
            with real_tensors(), without_logged_failures(), one_thread():
                search = _Search(evaluated, subject, proves, deadline, latest)
                search.failures = search.failures if failures is None else failures
                search.suspected = frozenset(map(_place, suspected))
                search.seconds_of_proof = _SHARE_OF_PROOF * seconds
                found = search.run()
        except UNKNOWN:
            continue
        if found or search.over:
            return found
    return ()


def _evaluable(subject: Subject, shown: tuple[Program, Program] | None) -> Iterator[Subject]:
    """What is evaluated in the place of ``subject``: itself, or the same graphs at reduced sizes.

    Sizes that are equal by chance may be reduced to others each, which repairs more; those that are equal because they
    mean the same have to stay equal, or no one change is a repair.
    """
    programs = subject.programs()
    if programs is None:
        return
    if max(map(elements, programs)) <= MAX_ELEMENTS:
        yield subject
        return
    if subject.values and shown is not None:
        yield OneGraph(*shown)  # evaluated as a whole before, and now once more: a change costs what depends on it
    for is_joined in (False, True) if subject.values and shown is None else (True,):
        reduced = evaluable(*programs, MAX_ELEMENTS, joined=is_joined)
        smaller = None if reduced is None else subject.reduced(reduced)
        if smaller is not None:
            yield smaller


class _Search:
    """``subject``: what is evaluated. ``proved``: the same at its own sizes, whose changed form has to be proved.

    The search ends at ``deadline`` of the thread's time, and at ``latest`` on the clock. ``failures``: what was raised
    that no change may raise; each ends one kind of change, or one change.
    """

    def __init__(self, subject: Subject, proved: Subject, proves: Proves, deadline: float, latest: float) -> None:
        self.subject, self.proved, self.proves = subject, proved, proves
        self.deadline, self.latest = deadline, latest
        self.failures: list[str] = []
        self.applied: list[tuple[int, tuple[Move, ...]]] = []
        self.proofs = 0
        self.seconds_of_proof = math.inf
        self.suspected: frozenset[tuple[str, int]] = frozenset()
        self.partial: list[_Step] = []
        """What mends some outputs of the program as it is."""

    @property
    def over(self) -> bool:
        is_late = time.thread_time() > self.deadline or time.perf_counter() > self.latest
        return is_late or self.proofs >= MAX_PROOFS

    def run(self) -> tuple[Cause, ...]:
        started = self._start()
        if started is None:
            return ()
        trial, outcome = started
        found = self._mended(trial, outcome, ())
        found = self._needed(trial, outcome, found) if found else self._of_some_outputs(trial, outcome)
        while self.applied:
            self._undo()
        return tuple(self._with_origin(trial, outcome, cause, is_alone=len(found) == 1) for cause in found)

    def _with_origin(self, trial: Trial, outcome: Outcome, cause: Cause, *, is_alone: bool) -> Cause:
        """The cause with the line behind which a gradient that leaves as a partial sum became one, and with a reduction
        there as a help, where that is proved too.
        """
        first, draft = cause.move, self.subject.drafts()[cause.draft]
        is_sum = first.is_late and first.kind[:2] == ("reduce", "sum")
        # Where a layout is declared, as of a DTensor, the line that leaves it says how its gradient comes back.
        name = next(iter(cause.outputs), "").partition(".")[2]
        entries = [item for item in draft.program.inputs if item.name == name]
        is_declared = any(item.placements is not None and not item.assumed for item in entries)
        if not is_sum or is_declared or not self.subject.values or self.over:
            return cause

        axes = cast("tuple[int, ...]", first.kind[2])

        def mends(node: torch.fx.Node) -> bool:
            if self.over or not is_floating(node) or not self._apply(draft, (summed(node, axes),)):
                return False
            after = self._outcome(trial, outcome, frozenset(cause.outputs))
            self._undo()
            return after is not None and after.right >= set(cause.outputs)

        origin = first_summand(draft.node(first.node), mends)
        began = line_of_own(self.proved.drafts()[cause.draft].node(origin.name), cause.node, trial.spec)
        message, hint = cause.texts
        if began is not None and is_alone and self._apply(draft, (summed(origin, axes),)):
            over = " and ".join(f"`{self.subject.mesh.axes[axis].name}`" for axis in axes)
            there = f"all-reduce the gradient that line {began.line} computes over {over} (sum) in its backward pass"
            hint = f"{there}; or {hint}" if self._proved() else hint
            self._undo()
        return dataclasses.replace(cause, began=began, texts=(message, hint))

    def _needed(self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """``causes`` without those that mend nothing by themselves, and that the others do without."""
        while self.applied:
            self._undo()
        for cause in causes:
            others = tuple(other for other in causes if other is not cause)
            if cause.outputs or not others:
                continue
            made = [self._apply(self.subject.drafts()[other.draft], other.moves) for other in others]
            after = self._outcome(trial, outcome, _wanted(outcome)) if all(made) else None
            if after is not None and not after.wrong and self._proved():
                causes = others
            for _ in range(sum(made)):
                self._undo()
        return causes

    @functools.cached_property
    def _lacking(self) -> frozenset[str]:
        """Outputs that the program does not have: gradients that its backward pass does not compute."""
        programs = self.subject.programs()
        spec, own = ({output.name for output in program.outputs} for program in programs or ())
        return frozenset(spec - own)

    def _start(self) -> tuple[Trial, Outcome] | None:
        """An input on which an output is wrong."""
        programs = self.subject.programs()
        if programs is None:
            return None
        for distribution, largest_index, seed in attempts(programs[0], max(map(elements, programs))):
            try:
                inputs = draw(*programs, seed, distribution, largest_index)
                inputs = of_few_kinds(inputs, programs[1]) if self._is_large(programs) else inputs
                trial = Trial(programs[0], inputs, seed)
                outcome = trial.outcome(programs[1])
            except EvaluationError:
                continue
            if outcome is not None and outcome.wrong:
                return trial, outcome
        return None

    def _mended(self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """``causes``, which are applied, with those of the outputs that are still wrong."""
        if not outcome.wrong:
            return causes if _with_derivatives(causes) and self._proved() else ()
        if len(causes) == MAX_CAUSES:
            return ()
        focus, stages = self._focus(trial, outcome)
        if focus:
            found = self._mended_at(trial, outcome, causes, focus, stages)
            if found or self.over:
                return found
        return self._mended_at(trial, outcome, causes, None, Stage)

    def _is_large(self, programs: tuple[Program, Program]) -> bool:
        return self.subject.values and max(map(elements, programs)) > LARGE

    def _focus(self, trial: Trial, outcome: Outcome) -> tuple[_Focus, Iterable[Stage]]:
        """Where changes are sought first, and which: in a large program near where the spec is left; in ranks' graphs,
        which every change assembles again, at nodes that no output depends on that is right.
        """
        if self._is_large((trial.spec, outcome.program)):
            return first_lost(trial, outcome.program, outcome.values, _wanted(outcome)), AT_FIRST
        if self.subject.values:
            return None, ()
        found: set[str] = set()
        names = {name.partition(ON_RANK)[0] for name in outcome.wrong}
        for draft in self.subject.drafts():
            wrong, right = (
                ancestors(output.node for output in draft.program.outputs if (output.name in names) is is_wrong)
                for is_wrong in (True, False)
            )
            found |= {node.name for node in wrong - right if node.op == "call_function"}
        count = sum(len(draft.nodes) for draft in self.subject.drafts())
        return (frozenset(found), Stage) if len(found) * _SHARE_OF_FEW < count else (None, ())

    def _mended_at(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], focus: _Focus, stages: Iterable[Stage]
    ) -> tuple[Cause, ...]:
        """What ``_mended`` finds of some stages at the nodes of ``focus``."""
        wanted = _wanted(outcome)
        partial: list[_Step] = []
        to_try = {Stage.NEAR, Stage.MISSING}
        is_on_the_way = any(not cause.outputs for cause in causes)
        for stage in stages:
            if stage is Stage.LAST and is_on_the_way:
                continue  # with a guess before it, what mends many mistakes says nothing
            forward: list[_Step] = []
            changes = self._changes(trial, outcome, wanted, stage, focus)
            for step, after in self._steps(trial, outcome, wanted, changes):
                is_whole = step.mended >= outcome.wrong and not after.wrong
                if is_whole and not self._lacking and self._proved():
                    self._undo()  # the texts are of the program as it is
                    return (*causes, self._cause(step))
                is_open = bool(self._lacking or _unknown(after))
                is_part = bool(step.mended) and (not is_whole or is_open)
                if is_part and all(step.mended != other.mended for other in partial):
                    partial.append(step)
                    self.partial += [] if causes else [step]
                    forward += [step] if after.wrong <= outcome.backward else []
                if self.over:
                    break
            for step in forward if wanted != outcome.wrong else ():
                found = () if self.over else self._with_its_derivative(trial, outcome, causes, step, stage)
                if found:
                    return found
            is_last_missing = stage in to_try and len(to_try) == 1
            to_try.discard(stage)
            if is_last_missing and not partial:
                found = self._on_the_way(trial, outcome, causes, focus, (likely, missing))
            else:
                found = self._together(trial, outcome, causes, partial) if stage.is_last_of_likely else ()
            found = found or (() if self.subject.values else self._in_all_graphs(trial, outcome, causes, stage))
            if stage is Stage.UNLIKELY and not found and not partial:
                found = self._in_pairs(trial, outcome, causes, focus)
            if found or self.over:
                return found
        is_last = focus is None and not partial
        kinds = (arranged,) if causes else (arranged, as_spec)
        return self._on_the_way(trial, outcome, causes, None, kinds) if is_last else ()

    def _in_all_graphs(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], stage: Stage
    ) -> tuple[Cause, ...]:
        """The same change at one line that ranks run in graphs of their own, or of one output that these return, as one
        cause for each graph.
        """
        lines: dict[object, dict[int, Change]] = {}
        for draft, moves in self._changes(trial, outcome, _wanted(outcome), stage, None):
            line, outputs = _line(moves[0], draft), draft.program.outputs if moves[0].kind[0] == "reduce" else ()
            returned = [output.name for output in outputs if output.node.name == moves[0].node]
            for place in [*returned, line] if line is not None else returned:
                lines.setdefault((place, moves[0].kind), {})[id(draft)] = draft, moves  # at last all nodes of the line
        for changes in [list(of_line.values()) for of_line in lines.values() if len(of_line) > 1]:
            if self.over:
                return ()
            of_graphs = tuple(self._cause(_Step(draft, moves, outcome.wrong)) for draft, moves in changes)
            if self._mend(trial, outcome, changes):
                return (*causes, *of_graphs)
        return ()

    def _in_pairs(self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], focus: _Focus) -> tuple[Cause, ...]:
        """Two changes of where a rank's part lies: who forgets it at one place forgets it at others."""
        wanted = _wanted(outcome)
        moves = self._moves(trial, outcome, wanted, of_places, focus)
        changes = list(itertools.islice((change for change in moves if len(change[1]) == 1), MAX_OF_PAIRS))
        for first, second in itertools.combinations(changes, 2):
            if self.over:
                return ()
            if first[1][0].node == second[1][0].node or first[0] is not second[0]:
                continue
            if self._mend(trial, outcome, (first, second)):  # the texts are of the program as it is
                return (*causes, *(self._cause(_Step(*change, outcome.wrong)) for change in (first, second)))
        return ()

    def _mend(self, trial: Trial, outcome: Outcome, changes: Iterable[Change]) -> bool:
        """Whether changes, made together, mend what is wanted first and all else, and the program is proved then."""
        made = [self._apply(draft, moves) for draft, moves in changes]
        after = self._outcome(trial, outcome, _wanted(outcome)) if all(made) else None
        is_proved = after is not None and not after.wrong and self._proved()
        for _ in range(sum(made)):
            self._undo()
        return is_proved

    def _with_its_derivative(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], step: _Step, stage: Stage
    ) -> tuple[Cause, ...]:
        """A change that mends the forward pass, with one in the backward of the same line that mends the rest."""
        cause = self._cause(step)
        after = self._outcome(trial, outcome, step.mended) if self._apply(step.draft, step.moves) else None
        if after is None:
            return ()
        changed = step.draft.node(step.moves[0].node)
        changes = (
            (draft, moves)
            for draft, moves in self._moves(trial, after, after.wrong, stage.kinds)
            if draft is step.draft and all(is_derivative(draft.node(move.node), changed) for move in moves)
        )
        for other, at_last in self._steps(trial, after, after.wrong, changes):
            if not at_last.wrong and self._proved():
                self._undo()
                found = self._cause(other)
                self._undo()
                return (*causes, cause, found)
        self._undo()
        return ()

    def _changes(
        self, trial: Trial, outcome: Outcome, wanted: frozenset[str], stage: Stage, focus: _Focus
    ) -> Iterable[Change]:
        if stage is Stage.SUSPECTED:
            moves = self._moves(trial, outcome, wanted, missing, focus) if self.suspected else ()
            return (change for change in moves if all(self._is_suspected(change[0], move) for move in change[1]))
        if stage is Stage.NEAR:
            return [change for _, change in self._near(trial, outcome, wanted, (missing,), focus)]
        return self._moves(trial, outcome, wanted, stage.kinds, focus)

    def _is_suspected(self, draft: Draft, move: Move) -> bool:
        node = draft.node(move.node)
        place = model_location_of(node)
        # How a parameter's gradient leaves the program says more than where in the backward pass it was computed.
        return place is not None and _place(place) in self.suspected and not is_backward(node)

    def _near(
        self, trial: Trial, outcome: Outcome, wanted: frozenset[str], kinds: tuple[Kinds, ...], focus: _Focus
    ) -> list[tuple[int, Change]]:
        """The changes behind which a value of the spec is held that is missing now, and how many are held then."""
        if not self.subject.values:
            return []
        lost = frontier(trial, outcome.program, outcome.values, wanted)
        found: list[tuple[int, Change]] = []
        moves_of_kinds = (self._moves(trial, outcome, wanted, kind, focus) for kind in kinds)
        for draft, moves in itertools.chain.from_iterable(moves_of_kinds) if lost.missing else ():
            if self.over:
                break
            known = set(draft.changed)
            if not self._apply(draft, moves):
                continue
            held = self._held(outcome, lost, draft, draft.changed - known)
            if held > lost.held:
                found.append((held, (draft, moves)))
            self._undo()
        return found

    def _on_the_way(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], focus: _Focus, kinds: tuple[Kinds, ...]
    ) -> tuple[Cause, ...]:
        """A change that mends no output but the next values behind it, with what else is wrong further on."""
        near = self._near(trial, outcome, _wanted(outcome), kinds, focus)
        # A line that made several nodes is wrong at all of them where that mends as much.
        ordered = sorted(near, key=lambda item: (item[1][1][0].inserts, -item[0], -len(item[1][1])))
        for _, (draft, moves) in ordered[:MAX_ALTERNATIVES]:
            found = () if self.over else self._with_step(trial, outcome, causes, _Step(draft, moves, frozenset()))
            if found:
                return found
        return ()

    def _with_step(self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], step: _Step) -> tuple[Cause, ...]:
        """The causes with a change that mends no output by itself."""
        cause = self._cause(step)
        programs = self.subject.programs() if self._apply(step.draft, step.moves) else None
        if programs is None:
            return ()
        after = trial.outcome(programs[1], outcome, step.draft.changed)
        found = () if after is None else self._mended(trial, after, (*causes, cause))
        if not found:
            self._undo()
        return found

    def _held(self, before: Outcome, lost: Frontier, draft: Draft, new: set[torch.fx.Node]) -> int:
        """How many of the spec's values are held with what is applied, where it mends the next one."""
        program = draft.program
        try:
            values = before.values.again(program, descendants(draft.changed))
            if not reaches(lost, program, values, new):
                return 0
            return held_with(lost, program, values, _wanted(before), draft.changed)
        except UNFIT:
            return 0
        except Exception as error:  # noqa: BLE001 - said in the report
            self._failed("looking at the values behind a change", error)
            return 0

    def _together(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], partial: list[_Step]
    ) -> tuple[Cause, ...]:
        """Several changes, that with the most outputs first, and a search for what is still wrong then."""
        more, after = self._applied_together(trial, outcome, partial)
        found = self._mended(trial, after, (*causes, *more)) if more and not self.over else ()
        if not found:
            for _ in more:
                self._undo()
        return found

    def _applied_together(
        self, trial: Trial, outcome: Outcome, partial: list[_Step]
    ) -> tuple[tuple[Cause, ...], Outcome]:
        """The changes that still mend an output with those before them, which are applied, and how outputs compare."""
        causes: list[Cause] = []
        for step in sorted(partial, key=lambda step: -len(step.mended)):
            if not step.mended & outcome.wrong:
                continue
            cause = self._cause(step)
            if not self._apply(step.draft, step.moves):
                continue
            after = self._outcome(trial, outcome, step.mended & outcome.wrong)
            if after is None:
                self._undo()
                continue
            causes.append(cause)
            outcome = after
        return tuple(causes), outcome

    def _of_some_outputs(self, trial: Trial, outcome: Outcome) -> tuple[Cause, ...]:
        """The causes of those outputs that are proved with them, where nothing mends the others."""
        while self.applied:
            self._undo()  # what the search was trying when its time was over
        causes, outcome = self._applied_together(trial, outcome, self.partial)
        right = outcome.right if _forward(outcome) <= outcome.right else outcome.right - outcome.backward
        proved = tuple(sorted(right)) if causes and self._proved(right) else ()
        while self.applied:
            self._undo()
        unmended = tuple(sorted(outcome.wrong | (_unknown(outcome) & outcome.backward) | self._lacking))
        return tuple(dataclasses.replace(item, proved=proved, unmended=unmended) for item in causes) if proved else ()

    def _cause(self, step: _Step) -> Cause:
        """The nodes and texts of a cause are those of the program at its own sizes."""
        first = step.moves[0]
        index = self.subject.drafts().index(step.draft)
        draft, mended = self.proved.drafts()[index], tuple(sorted(step.mended))
        node = draft.node(first.node) if first.pointed is None else first.pointed
        with within_helper([draft.node(move.node) for move in step.moves]) as place:
            message, hint = _texts(step.moves, draft)
        if place is None:
            place = caller_of(node, _of_same_line(node, step.moves, draft))
            place = only_caller_of(node) if place is None and first.kind[0] in _OF_CALLERS else place
            hint = hint if place is None else f"{hint}, for the call at line {place.line} alone"
        if place is None and (first.pointed is not None or first.kind[0] in _OF_BODIES):
            place = written_backward_of(node)
        if first.kind[0] in _OF_WRITES:
            place = innermost_in_file(node)
        if first.runs_beside:
            place = line_beside(node, draft.node(first.runs_beside))
        made = self._made(node, draft, first) if place is None else None
        if made is not None and made.text == _DETACHED:
            hint = f"leave out `detach` at line {made.location.line}, or {hint}"
        return Cause(node, step.moves, mended, (message, hint), draft=index, place=place, made=made)

    def _made(self, node: torch.fx.Node, draft: Draft, move: Move) -> Label | None:
        if not is_tensor(node):  # a number that the graph computes has the line of what takes it
            later = descendants([node])
            node = next((user for user in node.graph.nodes if user in later and is_tensor(user)), node)
        programs, place = self.subject.programs(), model_location_of(node)
        if programs is None or place is None:
            return None
        spec = programs[0].graph.graph
        if move.kind[0] == "as spec" and is_backward(node) and self.subject.values:  # stages detach what they send
            detached = line_of_detached(draft.program.graph.graph, spec)
            if detached is not None:
                return Label(detached, _DETACHED)
        is_number = move.kind[0] in _OF_NUMBERS
        if at_line(place) not in lines_of(spec):
            is_number = move.kind[0] == "factor"  # what else is wrong there is written there
        elif move.kind[0] == "reduce":
            return beside_others(node)
        # What another line of the spec computes is no number of this one.
        is_number = is_number and (move.kind[0] != "as spec" or move.kind[1] == at_line(place))
        line = line_of_number(node, draft.program.beside) if is_number else None
        # Where the spec does not run the line, it may be that another variable or attribute was meant.
        is_chosen = line is not None and line.function in (place.function, "__init__")
        if is_chosen and at_line(place) not in lines_of(spec):
            return None
        text = f"the number that line {place.line} computes with is made here"
        return None if line is None else Label(line, text)

    def _steps(
        self, trial: Trial, outcome: Outcome, wanted: frozenset[str], changes: Iterable[Change]
    ) -> Iterator[tuple[_Step, Outcome]]:
        """Those of some changes that mend an output, each applied while the caller looks at it."""
        for draft, moves in changes:
            if self.over:
                return
            if not self._apply(draft, moves):
                continue
            after = self._outcome(trial, outcome, wanted)
            is_half = after is not None and not after.wrong and all(move.lacks_derivative for move in moves)
            if after is not None and not is_half:
                yield _Step(draft, moves, outcome.wrong & after.right), after
            self._undo()

    def _moves(
        self, trial: Trial, outcome: Outcome, wanted: frozenset[str], kinds: Kinds, focus: _Focus = None
    ) -> Iterator[Change]:
        """All moves of some kinds at the nodes of ``focus``, those of one kind in all graphs together."""
        subject, names = self.subject, frozenset(name.partition(ON_RANK)[0] for name in wanted)
        drafts = subject.drafts()
        scenes = [
            Scene(
                trial.spec,
                draft,
                subject.mesh,
                trial,
                outcome,
                names,
                subject.axes(draft),
                subject.values,
                subject.parts(draft, outcome.program),
            )
            for draft in drafts
        ]
        for same_kind in zip(*(kinds(scene) for scene in scenes), strict=True):
            for draft, found in zip(drafts, same_kind, strict=True):
                moves = self._unless_failed(found)
                near = moves if focus is None else (move for move in moves if move.node in focus)
                for together in _by_line(itertools.islice(near, MAX_MOVES), draft):
                    yield draft, together

    def _unless_failed(self, moves: Iterator[Move]) -> Iterator[Move]:
        """The moves of one kind, as long as they can be told."""
        try:
            yield from moves
        except UNKNOWN:
            return
        except Exception as error:  # noqa: BLE001 - said in the report
            self._failed(f"the search for changes of a kind (`{getattr(moves, '__name__', 'moves')}`)", error)

    def _outcome(self, trial: Trial, before: Outcome, wanted: frozenset[str]) -> Outcome | None:
        programs = self.subject.programs()
        if programs is None:
            return None
        try:
            if self.subject.values:
                (draft,) = self.subject.drafts()
                return trial.outcome(programs[1], before, draft.changed, wanted)
            return Trial(programs[0], trial.inputs, trial.seed).outcome(programs[1], None, (), wanted)
        except UNFIT:
            return None
        except Exception as error:  # noqa: BLE001 - said in the report
            self._failed("the evaluation of a change", error)
            return None

    def _failed(self, doing: str, error: Exception) -> None:
        self.failures.append(failures.failure(doing, error))

    def _apply(self, draft: Draft, moves: tuple[Move, ...]) -> bool:
        try:
            is_applied = self.subject.apply(draft, moves)
        except Exception as error:  # noqa: BLE001 - said in the report
            self._failed(f"a change of `{moves[0].node}`", error)
            return False
        if not is_applied:
            return False
        self.applied.append((self.subject.drafts().index(draft), moves))
        return True

    def _undo(self) -> None:
        self.subject.undo()
        self.applied.pop()

    def _proved(self, outputs: frozenset[str] | None = None) -> bool:
        """Whether the program is proved with the changes that are applied, or ``outputs`` of it."""
        if outputs is None and self.over:
            return False
        self.proofs += 1
        if self.proved is self.subject:
            programs = self.subject.programs()
            return programs is not None and self._holds(*_with_outputs(programs, outputs))
        made = [self.proved.apply(self.proved.drafts()[index], moves) for index, moves in self.applied]
        programs = self.proved.programs() if all(made) else None
        holds = programs is not None and self._holds(*_with_outputs(programs, outputs))
        for _ in range(sum(made)):
            self.proved.undo()
        return holds

    def _holds(self, spec: Program, implementation: Program) -> bool:
        proof = functools.partial(self.proves, spec, implementation)
        return bounds.attempt("the proof of a changed program", proof, own_seconds=self.seconds_of_proof) is True


def _with_outputs(programs: tuple[Program, Program], names: frozenset[str] | None) -> tuple[Program, Program]:
    """Both programs with some of their outputs alone."""
    if names is None:
        return programs
    spec, implementation = (
        dataclasses.replace(program, outputs=tuple(output for output in program.outputs if output.name in names))
        for program in programs
    )
    return spec, implementation


def _forward(outcome: Outcome) -> frozenset[str]:
    """The outputs of the forward pass."""
    return frozenset(outcome.results) - outcome.backward


def _unknown(outcome: Outcome) -> frozenset[str]:
    """The outputs that cannot be compared, because a value that they depend on has another shape."""
    return frozenset(name for name, found in outcome.results.items() if found.agreement is Agreement.UNKNOWN)


def _wanted(outcome: Outcome) -> frozenset[str]:
    """What is to be mended first: where an output of the forward pass is wrong, no gradient can be right."""
    return outcome.wrong - outcome.backward or outcome.wrong


def _with_derivatives(causes: Collection[Cause]) -> bool:
    """Whether each change that changes gradients in the source comes with one of the backward pass of its line."""
    lacking = [cause.node for cause in causes if cause.move.lacks_derivative]
    return all(any(is_derivative(other.node, node) for other in causes) for node in lacking)


def _texts(moves: tuple[Move, ...], draft: Draft) -> tuple[str, str]:
    """Message and hint of the same change at several nodes: the first message, and what there is to do at each."""
    texts = [move.texts(draft) for move in moves]
    hints = list(dict.fromkeys(hint for _, hint in texts))
    more = len(hints) - MAX_HINTS
    told = [*hints[:MAX_HINTS], f"and so at {more} more {'place' if more == 1 else 'places'}"] if more > 0 else hints
    return texts[0][0], "; ".join(told)


def _of_same_line(node: torch.fx.Node, moves: Collection[Move], draft: Draft) -> Iterator[torch.fx.Node]:
    """The other calls of one operator that one line makes, which no move changes."""
    changed, place = {move.node for move in moves}, model_location_of(node)
    for other in draft.program.graph.graph.nodes if place is not None else ():
        if other.target == node.target and other.name not in changed and is_backward(other) == is_backward(node):
            own = model_location_of(other)
            if own is not None and place is not None and _place(own) == _place(place):
                yield other


def _place(location: SourceLocation) -> tuple[str, int]:
    return location.file, location.line


def _by_line(moves: Iterable[Move], draft: Draft) -> Iterator[tuple[Move, ...]]:
    """Each move; then, for each line that made several nodes, the same move at all of them."""
    lines: dict[object, list[Move]] = {}
    for move in moves:
        lines.setdefault(_line(move, draft), []).append(move)
        yield (move,)
    for line, same in lines.items():
        nearest = {move.node: move for move in reversed(same)}
        if line is not None and len(nearest) > 1:
            yield tuple(nearest[name] for name in dict.fromkeys(move.node for move in same))


def _becomes_a_gradient(node: torch.fx.Node, draft: Draft) -> bool:
    """Whether nothing but one gradient that leaves the program is computed from a value."""
    gradients = {output.node for output in draft.program.outputs if output.kind is OutputKind.GRADIENT}
    while node not in gradients and len(node.users) == 1:
        (node,) = node.users
    return node in gradients


def _line(move: Move, draft: Draft) -> object:
    node = draft.node(move.node)
    place = model_location_of(node)
    # Gradients that lack a reduction are told one by one, as those that lack it where they leave the program.
    if place is None or move.is_late or (move.kind[0] == "reduce" and _becomes_a_gradient(node, draft)):
        return None
    # A backward pass makes the gradients of parameters by whatever operators it takes.
    target = "" if noted_owner(node) else str(node.target)
    return place.file, place.line, target, move.kind, is_backward(node)
