"""The cause by counterfactual: which change of a program makes its outputs the spec's?

A change is tried on numbers first, all failed outputs at once; the changed program is then proved. What proves is the
cause of the refusal, and the way to mend it. Where no single change mends all outputs, changes that mend some are put
together, each of which is a cause of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch.fx

from verifycompile import bounds
from verifycompile.capture.ranks.merged_ranks import ON_RANK
from verifycompile.cause.changed import Changed, Focus, Proves, wanted_of
from verifycompile.cause.derivatives import are_derivatives, with_derivatives, without_derivatives
from verifycompile.cause.draft import Draft
from verifycompile.cause.failures import UNFIT, UNKNOWN
from verifycompile.cause.frontier import Frontier, first_lost, frontier, held_with, reaches
from verifycompile.cause.lines import Change, in_graph, of_all_graphs, of_line
from verifycompile.cause.moves.kinds import (
    AT_FIRST,
    Kinds,
    Stage,
    arranged,
    as_spec,
    likely,
    missing,
    of_places,
    scaled,
)
from verifycompile.cause.moves.move import Move
from verifycompile.cause.subject import OneGraph, Subject
from verifycompile.cause.summands import at_first_summand, with_origin
from verifycompile.cause.told import Cause, Step
from verifycompile.cause.trial import Outcome, Trial
from verifycompile.program import Program, SourceLocation
from verifycompile.reduction.search import evaluable
from verifycompile.torch_interface.logs import without_logged_failures
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.torch_interface.rank_threads.operator_threads import one_thread
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.source import at_line
from verifycompile.torch_interface.source_lines.value_names import is_backward
from verifycompile.witness.comparison import Agreement
from verifycompile.witness.draw import draw
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.few_kinds import of_few_kinds
from verifycompile.witness.interpreter import ancestors, descendants
from verifycompile.witness.search import attempts, elements

MAX_CAUSES = 8
MAX_ALTERNATIVES = 2
"""Changes that are tried as the first of several that are needed."""
MAX_OF_PAIRS = 24
"""Of so many changes of where a rank's part lies two are tried at once."""
_SHARE_OF_SEARCH = 0.7
"""Of the time until a limit; the rest is for the proof of what was found by then."""
_SHARE_OF_PROOF = 0.6
"""Of the seconds of the search."""
MAX_ELEMENTS = 5_000_000
"""Elements of all values of a program that is evaluated many times."""
_SHARE_OF_FEW = 4
"""Nodes are few where this many times as many are in all graphs."""
LARGE = 300_000
MANY = 400
"""From so many elements or nodes on, changes where the spec is left first are tried before all others."""


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
                search.suspected = frozenset(map(at_line, suspected))
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


class _Search(Changed):
    """The order in which changes are tried and combined."""

    def __init__(self, subject: Subject, proved: Subject, proves: Proves, deadline: float, latest: float) -> None:
        super().__init__(subject, proved, proves, deadline, latest)
        self.suspected: frozenset[tuple[str, int]] = frozenset()
        self.partial: list[tuple[Step, ...]] = []
        """What mends some outputs of the program as it is."""

    def run(self) -> tuple[Cause, ...]:
        started = self._start()
        if started is None:
            return ()
        trial, outcome = started
        found = self._mended(trial, outcome, ())
        found = self._needed(trial, outcome, found) if found else self._of_some_outputs(trial, outcome)
        while self.applied:
            self.undo()
        if len(found) == 1:
            found = (at_first_summand(self, trial, outcome, found[0]),)
        told = without_derivatives(found)
        return tuple(with_origin(self, trial, outcome, cause, is_alone=len(told) == 1) for cause in told)

    def _needed(self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """``causes`` without those that mend nothing by themselves, and that the others do without."""
        while self.applied:
            self.undo()
        for cause in causes:
            others = tuple(other for other in causes if other is not cause)
            if cause.outputs or not others:
                continue
            made = [self.apply(self.subject.drafts()[other.draft], other.moves) for other in others]
            after = self.outcome(trial, outcome, wanted_of(outcome)) if all(made) else None
            if after is not None and not after.wrong and self.is_proved():
                causes = others
            for _ in range(sum(made)):
                self.undo()
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
            return causes if with_derivatives(causes) and self.is_proved() else ()
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

    def _focus(self, trial: Trial, outcome: Outcome) -> tuple[Focus, Iterable[Stage]]:
        """Where changes are sought first, and which: in a large program, or one of many layers, near where the spec is
        left; in ranks' graphs, which every change assembles again, at nodes that no output depends on that is right.
        """
        is_long = self.subject.values and len(outcome.program.graph.graph.nodes) > MANY
        if is_long or self._is_large((trial.spec, outcome.program)):
            return first_lost(trial, outcome.program, outcome.values, wanted_of(outcome)), AT_FIRST
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
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], focus: Focus, stages: Iterable[Stage]
    ) -> tuple[Cause, ...]:
        """What ``_mended`` finds of some stages at the nodes of ``focus``."""
        wanted = wanted_of(outcome)
        partial: list[Step] = []
        to_try = {Stage.NEAR, Stage.MISSING}
        is_on_the_way = any(not cause.outputs for cause in causes)
        for stage in stages:
            if stage is Stage.LAST and is_on_the_way:
                continue  # with a guess before it, what mends many mistakes says nothing
            forward: list[Step] = []
            found = () if self.subject.values else self._in_all_graphs(trial, outcome, causes, stage)
            if found or self.over:
                return found
            changes = self._changes(trial, outcome, wanted, stage, focus)
            for step, after in self.steps(trial, outcome, wanted, changes):
                is_whole = step.mended >= outcome.wrong and not after.wrong
                if is_whole and not self._lacking and self.is_proved():
                    self.undo()  # the texts are of the program as it is
                    return (*causes, self.cause(self._at_one_node(trial, outcome, step)))
                is_open = bool(self._lacking or _unknown(after))
                is_part = bool(step.mended) and (not is_whole or is_open)
                if is_part and all(step.mended != other.mended for other in partial):
                    partial.append(step)
                    self.partial += [] if causes else [(step,)]
                    forward += [step] if after.wrong <= outcome.backward else []
                if self.over:
                    break
            for step in forward if wanted != outcome.wrong else ():
                found = () if self.over else self._with_its_derivative(trial, outcome, causes, [step], stage)
                if found:
                    return found
            is_last_missing = stage in to_try and len(to_try) == 1
            to_try.discard(stage)
            if is_last_missing and not partial:
                found = self._on_the_way(trial, outcome, causes, focus, (likely, missing))
            else:
                found = self._together(trial, outcome, causes, partial) if stage.is_last_of_likely else ()
            if stage is Stage.UNLIKELY and not found and not partial:
                found = self._in_pairs(trial, outcome, causes, focus)
            if found or self.over:
                return found
        is_last = focus is None and not partial
        kinds = (arranged,) if causes else (arranged, as_spec)
        return self._on_the_way(trial, outcome, causes, None, kinds) if is_last else ()

    def _at_one_node(self, trial: Trial, outcome: Outcome, step: Step) -> Step:
        """A step that is enough at one of its nodes; what is done at the others changes nothing then."""
        if len(step.moves) > 1:
            for move in step.moves:
                if self.mend(trial, outcome, ((step.draft, (move,)),)):
                    return dataclasses.replace(step, moves=(move,))
        return step

    def _in_all_graphs(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], stage: Stage
    ) -> tuple[Cause, ...]:
        """The same change at one line that ranks run in graphs of their own, or of one output that these return, as one
        cause for each graph.
        """
        for changes in of_all_graphs(self._changes(trial, outcome, wanted_of(outcome), stage, None), of_line, least=2):
            if self.over:
                return ()
            steps = [Step(*change, outcome.wrong) for change in changes]
            found = self._with_its_derivative(trial, outcome, causes, steps, stage)
            if found:
                return found
        return ()

    def _in_pairs(self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], focus: Focus) -> tuple[Cause, ...]:
        """Two changes of where a rank's part lies: who forgets it at one place forgets it at others."""
        wanted = wanted_of(outcome)
        moves = self.moves(trial, outcome, wanted, of_places, focus)
        changes = list(itertools.islice((change for change in moves if len(change[1]) == 1), MAX_OF_PAIRS))
        for first, second in itertools.combinations(changes, 2):
            if self.over:
                return ()
            if first[1][0].node == second[1][0].node or first[0] is not second[0]:
                continue
            if self.mend(trial, outcome, (first, second)):  # the texts are of the program as it is
                return (*causes, *(self.cause(Step(*change, outcome.wrong)) for change in (first, second)))
        return ()

    def _with_its_derivative(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], steps: Sequence[Step], stage: Stage
    ) -> tuple[Cause, ...]:
        """A change of one graph, or of several, that mends all, or the forward pass and one in the backward of the same
        line the rest.
        """
        found = tuple(map(self.cause, steps))  # the texts are of the program as it is
        made = [self.apply(step.draft, step.moves) for step in steps]
        mended = frozenset[str]().union(*(step.mended for step in steps))
        after = self.outcome(trial, outcome, mended) if all(made) else None
        if after is not None and len(steps) > 1 and not causes:
            mended = outcome.wrong & after.right
            self.partial.append(tuple(dataclasses.replace(step, mended=mended) for step in steps))
        of_backward = () if after is None else self._of_derivative(trial, after, steps, stage)
        for _ in range(sum(made)):
            self.undo()
        if of_backward is None or after is None:
            return ()
        return (*causes, *found, *of_backward)

    def _of_derivative(
        self, trial: Trial, after: Outcome, steps: Sequence[Step], stage: Stage
    ) -> tuple[Cause, ...] | None:
        """The changes in the backward of the lines of ``steps``, which are applied, with which all is mended."""
        if not after.wrong:
            return () if self.is_proved() else None
        changed = {step.draft: step.moves for step in steps}
        changes = (
            change
            for kinds in (stage.kinds, *((scaled,) if any(step.moves[0].takes_means for step in steps) else ()))
            for change in self.moves(trial, after, after.wrong, kinds)
            if change[0] in changed and are_derivatives(change, changed[change[0]])
        )
        for together in of_all_graphs(changes, in_graph) if len(steps) > 1 else ([change] for change in changes):
            if self.over:
                return None
            if self.mend(trial, after, together):
                return tuple(self.cause(Step(draft, moves, after.wrong)) for draft, moves in together)
        return None

    def _changes(
        self, trial: Trial, outcome: Outcome, wanted: frozenset[str], stage: Stage, focus: Focus
    ) -> Iterable[Change]:
        if stage is Stage.SUSPECTED:
            moves = self.moves(trial, outcome, wanted, missing, focus) if self.suspected else ()
            return (change for change in moves if all(self._is_suspected(change[0], move) for move in change[1]))
        if stage is Stage.NEAR:
            return [change for _, change in self._near(trial, outcome, wanted, (missing,), focus)]
        return self.moves(trial, outcome, wanted, stage.kinds, focus)

    def _is_suspected(self, draft: Draft, move: Move) -> bool:
        node = draft.node(move.node)
        place = model_location_of(node)
        # How a parameter's gradient leaves the program says more than where in the backward pass it was computed.
        return place is not None and at_line(place) in self.suspected and not is_backward(node)

    def _near(
        self, trial: Trial, outcome: Outcome, wanted: frozenset[str], kinds: tuple[Kinds, ...], focus: Focus
    ) -> list[tuple[int, Change]]:
        """The changes behind which a value of the spec is held that is missing now, and how many are held then."""
        if not self.subject.values:
            return []
        lost = frontier(trial, outcome.program, outcome.values, wanted)
        found: list[tuple[int, Change]] = []
        moves_of_kinds = (self.moves(trial, outcome, wanted, kind, focus) for kind in kinds)
        for draft, moves in itertools.chain.from_iterable(moves_of_kinds) if lost.missing else ():
            if self.over:
                break
            known = set(draft.changed)
            if not self.apply(draft, moves):
                continue
            held = self._held(outcome, lost, draft, draft.changed - known)
            if held > lost.held:
                found.append((held, (draft, moves)))
            self.undo()
        return found

    def _on_the_way(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], focus: Focus, kinds: tuple[Kinds, ...]
    ) -> tuple[Cause, ...]:
        """A change that mends no output but the next values behind it, with what else is wrong further on."""
        near = self._near(trial, outcome, wanted_of(outcome), kinds, focus)
        # A line that made several nodes is wrong at all of them where that mends as much.
        ordered = sorted(near, key=lambda item: (item[1][1][0].inserts, -item[0], -len(item[1][1])))
        for _, (draft, moves) in ordered[:MAX_ALTERNATIVES]:
            found = () if self.over else self._with_step(trial, outcome, causes, Step(draft, moves, frozenset()))
            if found:
                return found
        return ()

    def _with_step(self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], step: Step) -> tuple[Cause, ...]:
        """The causes with a change that mends no output by itself."""
        cause = self.cause(step)
        programs = self.subject.programs() if self.apply(step.draft, step.moves) else None
        if programs is None:
            return ()
        after = trial.outcome(programs[1], outcome, step.draft.changed)
        found = () if after is None else self._mended(trial, after, (*causes, cause))
        if not found:
            self.undo()
        return found

    def _held(self, before: Outcome, lost: Frontier, draft: Draft, new: set[torch.fx.Node]) -> int:
        """How many of the spec's values are held with what is applied, where it mends the next one."""
        program = draft.program
        try:
            values = before.values.again(program, descendants(draft.changed))
            if not reaches(lost, program, values, new):
                return 0
            return held_with(lost, program, values, wanted_of(before), draft.changed)
        except UNFIT:
            return 0
        except Exception as error:  # noqa: BLE001 - said in the report
            self.failed("looking at the values behind a change", error)
            return 0

    def _together(
        self, trial: Trial, outcome: Outcome, causes: tuple[Cause, ...], partial: list[Step]
    ) -> tuple[Cause, ...]:
        """Several changes, that with the most outputs first, and a search for what is still wrong then."""
        more, after = self._applied_together(trial, outcome, [(step,) for step in partial])
        found = self._mended(trial, after, (*causes, *more)) if more and not self.over else ()
        if not found:
            for _ in more:
                self.undo()
        return found

    def _applied_together(
        self, trial: Trial, outcome: Outcome, partial: list[tuple[Step, ...]]
    ) -> tuple[tuple[Cause, ...], Outcome]:
        """The changes that still mend an output with those before them, which are applied, and how outputs compare;
        each of one graph, or the same one of several.
        """
        causes: list[Cause] = []
        for steps in sorted(partial, key=lambda steps: -len(steps[0].mended)):
            mended = steps[0].mended & outcome.wrong
            if not mended:
                continue
            found = tuple(map(self.cause, steps))
            made = [self.apply(step.draft, step.moves) for step in steps]
            after = self.outcome(trial, outcome, mended) if all(made) else None
            if after is None:
                for _ in range(sum(made)):
                    self.undo()
                continue
            causes += found
            outcome = after
        return tuple(causes), outcome

    def _of_some_outputs(self, trial: Trial, outcome: Outcome) -> tuple[Cause, ...]:
        """The causes of those outputs that are proved with them, where nothing mends the others."""
        while self.applied:
            self.undo()  # what the search was trying when its time was over
        causes, outcome = self._applied_together(trial, outcome, self.partial)
        right = outcome.right if _forward(outcome) <= outcome.right else outcome.right - outcome.backward
        proved = tuple(sorted(right)) if causes and self.is_proved(right) else ()
        while self.applied:
            self.undo()
        unmended = tuple(sorted(outcome.wrong | (_unknown(outcome) & outcome.backward) | self._lacking))
        return tuple(dataclasses.replace(item, proved=proved, unmended=unmended) for item in causes) if proved else ()


def _forward(outcome: Outcome) -> frozenset[str]:
    """The outputs of the forward pass."""
    return frozenset(outcome.results) - outcome.backward


def _unknown(outcome: Outcome) -> frozenset[str]:
    """The outputs that cannot be compared, because a value that they depend on has another shape."""
    return frozenset(name for name, found in outcome.results.items() if found.agreement is Agreement.UNKNOWN)
