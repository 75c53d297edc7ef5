"""A program in which a cause is sought, with the changes that are applied: what they mend, and whether it is proved."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator

from verifycompile import bounds
from verifycompile.capture.ranks.merged_ranks import ON_RANK
from verifycompile.cause import failures
from verifycompile.cause.draft import Draft
from verifycompile.cause.failures import UNFIT, UNKNOWN
from verifycompile.cause.lines import Change, by_line
from verifycompile.cause.moves.kinds import Kinds
from verifycompile.cause.moves.move import Move, Scene
from verifycompile.cause.subject import Subject
from verifycompile.cause.told import Cause, Step, cause_of
from verifycompile.cause.trial import Outcome, Trial
from verifycompile.program import Program

MAX_PROOFS = 6
MAX_MOVES = 4000
"""Moves of one kind that are tried."""
Focus = frozenset[str] | None
"""Names of the nodes at which changes are sought; anywhere where it is None."""
Proves = Callable[[Program, Program], bool]


class Changed:
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

    @property
    def over(self) -> bool:
        is_late = time.thread_time() > self.deadline or time.perf_counter() > self.latest
        return is_late or self.proofs >= MAX_PROOFS

    def moves(
        self, trial: Trial, outcome: Outcome, wanted: frozenset[str], kinds: Kinds, focus: Focus = None
    ) -> Iterator[Change]:
        """All moves of some kinds at the nodes of ``focus``, with those that their lines made elsewhere; those of one
        kind in all graphs together.
        """
        subject, names = self.subject, frozenset(name.partition(ON_RANK)[0] for name in wanted)
        drafts = subject.drafts()
        scenes: list[Scene] = []
        scenes += [
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
                scenes,
            )
            for draft in drafts
        ]
        for same_kind in zip(*(kinds(scene) for scene in scenes), strict=True):
            for draft, found in zip(drafts, same_kind, strict=True):
                moves = itertools.islice(self._unless_failed(found), MAX_MOVES)
                for together in by_line(moves, draft):
                    if focus is None or any(move.node in focus for move in together):
                        yield draft, together

    def steps(
        self, trial: Trial, outcome: Outcome, wanted: frozenset[str], changes: Iterable[Change]
    ) -> Iterator[tuple[Step, Outcome]]:
        """Those of some changes that mend an output, each applied while the caller looks at it."""
        for draft, moves in changes:
            if self.over:
                return
            if not self.apply(draft, moves):
                continue
            after = self.outcome(trial, outcome, wanted)
            is_half = after is not None and not after.wrong and all(move.lacks_derivative for move in moves)
            if after is not None and not is_half:
                yield Step(draft, moves, outcome.wrong & after.right), after
            self.undo()

    def mend(self, trial: Trial, outcome: Outcome, changes: Iterable[Change], *, is_proved: bool = True) -> bool:
        """Whether changes, made together, mend what is wanted first and all else, and the program is proved then."""
        made = [self.apply(draft, moves) for draft, moves in changes]
        after = self.outcome(trial, outcome, wanted_of(outcome)) if all(made) else None
        mends = after is not None and not after.wrong and (not is_proved or self.is_proved())
        for _ in range(sum(made)):
            self.undo()
        return mends

    def cause(self, step: Step) -> Cause:
        return cause_of(step, self.subject, self.proved)

    def outcome(self, trial: Trial, before: Outcome, wanted: frozenset[str]) -> Outcome | None:
        programs = self.subject.programs()
        if programs is None:
            return None
        try:
            if self.subject.values:
                (draft,) = self.subject.drafts()
                return trial.outcome(programs[1], before, draft.changed, wanted)
            return trial.with_outputs_of(programs[0]).outcome(programs[1], None, (), wanted)
        except UNFIT:
            return None
        except Exception as error:  # noqa: BLE001 - said in the report
            self.failed("the evaluation of a change", error)
            return None

    def apply(self, draft: Draft, moves: tuple[Move, ...]) -> bool:
        try:
            is_applied = self.subject.apply(draft, moves)
        except Exception as error:  # noqa: BLE001 - said in the report
            self.failed(f"a change of `{moves[0].node}`", error)
            return False
        if not is_applied:
            return False
        self.applied.append((self.subject.drafts().index(draft), moves))
        return True

    def undo(self) -> None:
        self.subject.undo()
        self.applied.pop()

    def is_proved(self, outputs: frozenset[str] | None = None) -> bool:
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

    def failed(self, doing: str, error: Exception) -> None:
        self.failures.append(failures.failure(doing, error))

    def _unless_failed(self, moves: Iterator[Move]) -> Iterator[Move]:
        """The moves of one kind, as long as they can be told."""
        try:
            yield from moves
        except UNKNOWN:
            return
        except Exception as error:  # noqa: BLE001 - said in the report
            self.failed(f"the search for changes of a kind (`{getattr(moves, '__name__', 'moves')}`)", error)

    def _holds(self, spec: Program, implementation: Program) -> bool:
        proof = functools.partial(self.proves, spec, implementation)
        return bounds.attempt("the proof of a changed program", proof, own_seconds=self.seconds_of_proof) is True


def wanted_of(outcome: Outcome) -> frozenset[str]:
    """What is to be mended first: where an output of the forward pass is wrong, no gradient can be right."""
    return outcome.wrong - outcome.backward or outcome.wrong


def _with_outputs(programs: tuple[Program, Program], names: frozenset[str] | None) -> tuple[Program, Program]:
    """Both programs with some of their outputs alone."""
    if names is None:
        return programs
    spec, implementation = (
        dataclasses.replace(program, outputs=tuple(output for output in program.outputs if output.name in names))
        for program in programs
    )
    return spec, implementation
