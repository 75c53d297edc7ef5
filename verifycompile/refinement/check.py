"""Relation inference for a whole program: attempts (``attempt.py``) in which relations and lemmas are looked for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from torch.distributed.tensor.placement_types import Partial

from verifycompile import bounds
from verifycompile.bounds import RanOut
from verifycompile.collection import collection_paused
from verifycompile.ir.term import INTEGER_LEAF, TermPool, View
from verifycompile.program import Mesh, OutputKind, Program, ProgramOutput
from verifycompile.refinement import egraph, ring
from verifycompile.refinement.attempt import Attempt, plain_pool
from verifycompile.refinement.candidates import infer
from verifycompile.refinement.diagnose import diagnose
from verifycompile.refinement.lemma_stage import ProvedEquality, prove_one_more
from verifycompile.refinement.memo import NotRepeatedError
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.refinement.missing_gradient import missing_output, told_at_detached
from verifycompile.refinement.parts import Parts
from verifycompile.refinement.placement import Placements, holds
from verifycompile.refinement.proof import collect_steps, count_nodes
from verifycompile.refinement.relations import Diagnosis
from verifycompile.refinement.result import Means, RefinementResult
from verifycompile.refinement.stages import Stopwatch
from verifycompile.rewrites import families
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS, product_lemma
from verifycompile.rewrites.side_conditions import solver

families.load()

# Each equality costs another lowering of both programs.
_MAX_EQUALITIES = 32

_SHARE_OF_DIAGNOSIS = 0.5
"""Of the time that is left."""

# Faults that a missing lemma would explain as well. The others say what the wrong value is, so no lemma is missing.
_OPEN_QUESTIONS = frozenset({"VC104", "VC107", "VC108"})
_OF_DEFINITIONS = _OPEN_QUESTIONS | {"VC103"}
"""A function that another writes differently may seem to be a multiple of it."""
_PRODUCTS = frozenset({"VC101"})
"""What takes a partial sum may be linear in it: products are written out, but nothing is searched for."""


def check_refinement(
    spec: Program, implementation: Program, different: Callable[[], Collection[str]] = tuple
) -> RefinementResult:
    """Prove that the implementation refines the spec, or say at which output and node it fails.

    The result's ``mismatch`` is None exactly when every spec output has a relation that meets its requirement.
    ``different``: names of outputs that are known to differ, asked where a proof would take a search.
    """
    return check_with_values(spec, implementation, different)[0]


def check_with_values(
    spec: Program, implementation: Program, different: Callable[[], Collection[str]] = tuple
) -> tuple[RefinementResult, Checker]:
    """As ``check_refinement``, with what the nodes of both programs came to.

    Where the steps hold a ``Repetition``, its nodes stand for those of an earlier part, which have the values.
    """
    with collection_paused():
        return _check(spec, implementation, different)


def _check(
    spec: Program, implementation: Program, different: Callable[[], Collection[str]]
) -> tuple[RefinementResult, Checker]:
    started = time.perf_counter()
    ring.take_durations()
    egraph.take_durations()
    egraph.take_exhausted()
    solver.take_durations()
    solver.take_unanswered()
    by_parts = _check_by_parts(spec, implementation, started)
    if not isinstance(by_parts, TermPool):
        return by_parts
    pool, stopwatch = _with_facts(new_pool(implementation), by_parts), Stopwatch()
    proved: list[ProvedEquality] = []
    exhausted = set[str]()
    while True:
        checker = Checker(spec, implementation, pool)
        mismatch = checker.run()
        checker.note_seconds(stopwatch)
        open_codes = _OF_DEFINITIONS if implementation.by_definition else _OPEN_QUESTIONS
        open_question = mismatch is not None and mismatch.code in open_codes
        products = mismatch is not None and mismatch.code in _PRODUCTS
        if mismatch is not None and pool.learn():
            continue
        tried = (open_question or products) and len(proved) < _MAX_EQUALITIES
        if not tried:
            break
        equality = checker.prove_one_more(search=open_question, different=different, exhausted=exhausted)
        note_questions(stopwatch)
        if equality is None:
            break
        proved.append(equality)
    result = RefinementResult(
        relations=checker.relations,
        placements=checker.placements,
        exhausted=(*_exhausted(), *sorted(exhausted)) if mismatch is not None else (),
        mismatch=None if mismatch is None else told_at_detached(mismatch, spec, implementation),
        assumptions=tuple(checker.assumptions()),
        counts=count_nodes(checker.spec, checker.implementation, _nodes_by_means(proved)),
        spec_nodes=len(spec.graph.graph.nodes),
        impl_nodes=len(implementation.graph.graph.nodes),
        seconds=time.perf_counter() - started,
        stages=stopwatch.costs(),
        steps=(*proved, *collect_steps(checker.spec, checker.implementation)) if mismatch is None else (),
    )
    return result, checker


def _nodes_by_means(proved: Sequence[ProvedEquality]) -> Mapping[Means, Collection[str]]:
    means: dict[Means, set[str]] = {}
    for equality in proved:
        means.setdefault(equality.proof.means, set()).add(equality.spec_node)
    return means


def _with_facts(pool: TermPool, other: TermPool) -> TermPool:
    """``pool``, in which is known what another one learned of the programs' own indices."""
    for term, facts in other.facts.items():
        if term.operation is INTEGER_LEAF:
            leaf = pool.intern(INTEGER_LEAF, term.attributes, (), term.index_sizes, term.free, term.summed, (), ())
            pool.noted[leaf] = facts
    _ = pool.learn()
    return pool


def _check_by_parts(
    spec: Program, implementation: Program, started: float
) -> tuple[RefinementResult, Checker] | TermPool:
    """Prove parts that repeat themselves once; where that proves nothing, what was learned: it says nothing else."""
    pool = new_pool(implementation)
    while True:
        checker = Checker(spec, implementation, pool)
        try:
            if checker.run(by_parts=True) is None:
                result = _result_of_parts(checker, started)
                return pool if result is None else (result, checker)
        except NotRepeatedError:
            pass
        finally:
            checker.parts = None  # it refers to the checker: thousands of objects would wait for the garbage collector
        if not pool.learn():
            return pool


def _result_of_parts(checker: Checker, started: float) -> RefinementResult | None:
    spec, implementation = checker.spec.program, checker.implementation.program
    if checker.parts is None or checker.relations.keys() != {o.name for o in spec.outputs}:
        return None
    memo, lowerings = checker.parts.memo, (checker.spec, checker.implementation)
    memo.restore()
    checker.note_seconds(memo.stopwatch)
    counts = count_nodes(*lowerings)
    return RefinementResult(
        relations={name: checker.relations[name] for name in checker.output_names()},
        placements=checker.placements,
        mismatch=None,
        assumptions=tuple(checker.assumptions()),
        counts=dataclasses.replace(counts, memo=memo.related, unrelated=counts.unrelated + memo.unrelated),
        spec_nodes=len(spec.graph.graph.nodes),
        impl_nodes=len(implementation.graph.graph.nodes),
        seconds=time.perf_counter() - started,
        stages=memo.stopwatch.costs(),
        steps=(*memo.definitions.made, *collect_steps(*lowerings), *memo.repetitions),
        parts=checker.parts.found(),
    )


def _exhausted() -> tuple[str, ...]:
    """The budgets that ran out since the check began, as text."""
    solved = len(solver.take_unanswered())
    questions = [f"the solver's steps, at {solved} questions"] if solved else []
    return (*(f"the e-graph's {budget}" for budget in egraph.take_exhausted()), *questions)


def new_pool(program: Program | None = None) -> TermPool:
    """A pool with all lemmas, for an implementation ``program``."""
    pool = plain_pool(program)
    pool.contraction_rules.append(product_lemma)
    pool.combination_rules.extend(COMBINATION_LEMMAS)
    return pool


def note_questions(stopwatch: Stopwatch) -> None:
    """What the questions cost that were asked since the last call."""
    stopwatch.seconds["ring"] += ring.take_durations()
    stopwatch.seconds["egraph"] += egraph.take_durations()
    stopwatch.seconds["solver"] += solver.take_durations()


class Checker(Attempt):
    """An attempt that looks for relations, and for the cause where there is none."""

    def __init__(self, spec: Program, implementation: Program, pool: TermPool) -> None:
        super().__init__(spec, implementation, pool)
        self.parts: Parts | None = None
        self._failed: Diagnosis | None = None

    def note_seconds(self, stopwatch: Stopwatch) -> None:
        """What the nodes lowered by this attempt cost, and the questions that were asked for them."""
        stopwatch.seconds["normal_form"] += [*self.spec.seconds, *self.implementation.seconds]
        note_questions(stopwatch)

    def prove_one_more(
        self, *, search: bool, different: Callable[[], Collection[str]], exhausted: set[str]
    ) -> ProvedEquality | None:
        """After a failed run: one more equality by the e-graph, upon which another attempt may succeed."""
        if self._failed is None:
            return None
        return prove_one_more(self._failed, search=search, different=different, exhausted=exhausted)

    def run(self, *, by_parts: bool = False) -> Mismatch | None:
        """Relate all outputs. ``by_parts``: equal parts once; raises NotRepeatedError where that does not succeed."""
        for program in (self.spec.program, self.implementation.program):
            for blocker in program.blockers:
                if blocker.node is None:
                    return Mismatch(blocker.code, blocker.message, "output.0")
        outputs = {o.name: o for o in self.implementation.program.outputs}
        mismatch = missing_output(self.spec.program, self.implementation.program) or self._unfit(outputs)
        if mismatch is not None:
            return mismatch
        if by_parts and (self.spec.sizes.reads_counts or self.implementation.sizes.reads_counts):
            raise NotRepeatedError  # numbers read from tensors hold in the whole program
        if by_parts:
            pairs = [(o, outputs[o.name]) for o in self.spec.program.outputs]
            self.parts = Parts(self.spec, self.implementation, pairs, self._relation, self._note_relation)
            self.parts.require_repetitions()
            self.parts.lower_given()
        return self._relate(outputs)

    def _lower(self, outputs: Sequence[ProgramOutput], implementations: Mapping[str, ProgramOutput]) -> None:
        if self.parts is None:
            super()._lower(outputs, implementations)
            return
        backward = any(o.kind is OutputKind.GRADIENT for o in outputs)
        (self.parts.backward if backward else self.parts.forward).lower()

    def _relate_tangents(self) -> Mismatch | None:
        try:
            for output in self.implementation.program.outputs:
                output.required(self._flowing)
        except ValueError as error:
            return Mismatch("VC107", str(error), self.spec.program.outputs[0].name)
        return super()._relate_tangents()

    def _relate_output(self, spec: ProgramOutput, implementation: ProgramOutput) -> bool:
        if self.parts is not None and self.parts.is_settled(spec):
            return True
        return super()._relate_output(spec, implementation)

    def _failure(self, failed: Sequence[tuple[ProgramOutput, ProgramOutput]]) -> Mismatch | None:
        if self.parts is not None:
            raise NotRepeatedError
        means = frozenset(
            axis for found in self.placements.values() for axis, item in enumerate(found) if item == Partial("avg")
        )
        self._failed = Diagnosis(self.pool, self.spec, self.implementation, list(failed), means)
        case, (spec, implementation) = self._failed, failed[0]
        found = bounds.attempt("the search for a cause", lambda: diagnose(case), _SHARE_OF_DIAGNOSIS)
        if not isinstance(found, RanOut):
            return found
        message, notes = f"no relation for `{spec.name}`", (found.describe(),)
        return Mismatch("VC107", message, spec.name, spec.node, implementation.node, notes=notes)

    def _find_placements(self, left: View, right: View, output: ProgramOutput, mesh: Mesh) -> Placements | None:
        if output.placements is None:
            # A gradient that stays a partial sum is an error unless someone declared that it is reduced later.
            return infer(self.pool, left, right, mesh, allow_partial=output.kind is OutputKind.VALUE)
        required = output.required(self._flowing)
        assert required is not None
        if output.open_axes:
            declared = (output.placements, output.open_axes)
            return infer(self.pool, left, right, mesh, allow_partial=True, declared=declared)
        return required if holds(self.pool, left, right, required, mesh) else None
