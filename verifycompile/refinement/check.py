"""Relation inference for a whole program: lower both sides into one pool, then relate every output.

Both graphs are programs over the same leaves once the input relation is substituted, so a spec value and the
implementation's value are equal when their normal forms are (DESIGN section 3). Forward outputs are related first:
where a plain output's layout is not declared, its cotangent follows from the relation found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from fractions import Fraction

import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile import bounds
from verifycompile.bounds import RanOut
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import difference
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.recorded import computes_in_double
from verifycompile.program import OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.refinement import egraph, ring
from verifycompile.refinement.diagnose import diagnose
from verifycompile.refinement.dtensor_results import misread_output
from verifycompile.refinement.dtypes import differing_precisions, mismatched_dtype
from verifycompile.refinement.inputs import leaf_of, relate, tensor_inputs
from verifycompile.refinement.lemma_stage import ProvedEquality, prove_one_more
from verifycompile.refinement.memo import NotRepeatedError
from verifycompile.refinement.missing_gradient import missing_output
from verifycompile.refinement.part_by_part import same_part_by_part
from verifycompile.refinement.parts import Parts
from verifycompile.refinement.placement import Placements, describe, holds, infer, same_value, with_open_axes
from verifycompile.refinement.proof import collect_steps, count_nodes
from verifycompile.refinement.relations import Diagnosis
from verifycompile.refinement.result import Means, Mismatch, RefinementResult
from verifycompile.refinement.stages import Stopwatch
from verifycompile.rewrites import solver
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS, CONTRACTION_LEMMAS
from verifycompile.rewrites.piecewise import Piecewise
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.torch_interface.schema import is_mutable

# Each equality costs another lowering of both programs.
_MAX_EQUALITIES = 32

_SHARE_OF_DIAGNOSIS = 0.5
"""Of the time that is left."""

# Faults that a missing lemma would explain as well. The others say what the wrong value is, so no lemma is missing.
_OPEN_QUESTIONS = frozenset({"VC104", "VC107", "VC108"})
_PRODUCTS = frozenset({"VC101"})
"""What takes a partial sum may be linear in it: products are written out, but nothing is searched for."""


_EFFECTS = {
    OutputKind.VALUE: "returns",
    OutputKind.GRADIENT: "has a gradient for",
    OutputKind.MUTATION: "writes to",
}


class ClaimError(Exception):
    """A claim about two programs that does not hold."""


def check_refinement(spec: Program, implementation: Program) -> RefinementResult:
    """Prove that the implementation refines the spec, or say at which output and node it fails.

    The result's ``mismatch`` is None exactly when every spec output has a relation that meets its requirement.
    """
    with _collection_paused():
        return _check(spec, implementation)


@contextlib.contextmanager
def _collection_paused() -> Generator[None]:
    """Terms hold no cycles, and a collection of what a capture left behind costs more than a whole proof."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check(spec: Program, implementation: Program) -> RefinementResult:
    started = time.perf_counter()
    ring.take_durations()
    egraph.take_durations()
    egraph.take_exhausted()
    solver.take_durations()
    solver.take_unanswered()
    by_parts = _check_by_parts(spec, implementation, started)
    if by_parts is not None:
        return by_parts
    pool, stopwatch = new_pool(implementation), Stopwatch()
    proved: list[ProvedEquality] = []
    while True:
        checker = Checker(spec, implementation, pool)
        mismatch = checker.run()
        checker.note_seconds(stopwatch)
        open_question = mismatch is not None and mismatch.code in _OPEN_QUESTIONS
        products = mismatch is not None and mismatch.code in _PRODUCTS
        if mismatch is not None and pool.learn():
            continue
        tried = (open_question or products) and len(proved) < _MAX_EQUALITIES
        equality = checker.prove_one_more(search=open_question) if tried else None
        note_questions(stopwatch)
        if equality is None:
            break
        proved.append(equality)
    return RefinementResult(
        relations=checker.relations,
        placements=checker.placements,
        exhausted=_exhausted() if mismatch is not None else (),
        mismatch=mismatch,
        assumptions=tuple(checker.assumptions()),
        counts=count_nodes(checker.spec, checker.implementation, _nodes_by_means(proved)),
        spec_nodes=len(spec.graph.graph.nodes),
        impl_nodes=len(implementation.graph.graph.nodes),
        seconds=time.perf_counter() - started,
        stages=stopwatch.costs(),
        steps=(*proved, *collect_steps(checker.spec, checker.implementation)) if mismatch is None else (),
    )


def _nodes_by_means(proved: Sequence[ProvedEquality]) -> Mapping[Means, Collection[str]]:
    means: dict[Means, set[str]] = {}
    for equality in proved:
        means.setdefault(equality.proof.means, set()).add(equality.spec_node)
    return means


def _check_by_parts(spec: Program, implementation: Program, started: float) -> RefinementResult | None:
    """Prove parts that repeat themselves once; None where that proves nothing, which says nothing either."""
    pool = new_pool(implementation)
    while True:
        checker = Checker(spec, implementation, pool)
        try:
            if checker.run(by_parts=True) is None:
                return _result_of_parts(checker, started)
        except NotRepeatedError:
            pass
        finally:
            checker.parts = None  # it refers to the checker: thousands of objects would wait for the garbage collector
        if not pool.learn():
            return None


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
    )


def _exhausted() -> tuple[str, ...]:
    """The budgets that ran out since the check began, as text."""
    solved = len(solver.take_unanswered())
    questions = [f"the solver's steps, at {solved} questions"] if solved else []
    return (*(f"the e-graph's {budget}" for budget in egraph.take_exhausted()), *questions)


def new_pool(program: Program | None = None) -> TermPool:
    """A pool with all lemmas, for an implementation ``program``."""
    pool = TermPool()
    if program is not None and program.piecewise:
        pool.piecewise = Piecewise()
    pool.contraction_rules.extend(CONTRACTION_LEMMAS)
    pool.combination_rules.extend(COMBINATION_LEMMAS)
    return pool


def note_questions(stopwatch: Stopwatch) -> None:
    """What the questions cost that were asked since the last call."""
    stopwatch.seconds["ring"] += ring.take_durations()
    stopwatch.seconds["egraph"] += egraph.take_durations()
    stopwatch.seconds["solver"] += solver.take_durations()


class Checker:
    """One attempt: lower both programs into ``pool`` and relate their outputs.

    ``claims``: placements of the outputs that are tensors, which are then checked and not searched for. What does not
    hold raises ClaimError, because no cause of it is asked for.
    """

    def __init__(
        self, spec: Program, implementation: Program, pool: TermPool, claims: Mapping[str, Placements] | None = None
    ) -> None:
        self.pool = pool
        self.spec = Lowering(spec, self.pool, "spec")
        self.implementation = Lowering(implementation, self.pool, "impl")
        self.relations: dict[str, str] = {}
        self.placements: dict[str, Placements] = {}
        self.parts: Parts | None = None
        self._claims = claims
        self._failed: Diagnosis | None = None

    def note_seconds(self, stopwatch: Stopwatch) -> None:
        """What the nodes lowered by this attempt cost, and the questions that were asked for them."""
        stopwatch.seconds["normal_form"] += [*self.spec.seconds, *self.implementation.seconds]
        note_questions(stopwatch)

    def prove_one_more(self, *, search: bool) -> ProvedEquality | None:
        """After a failed run: one more equality by the e-graph, upon which another attempt may succeed."""
        return None if self._failed is None else prove_one_more(self._failed, search=search)

    @property
    def _forward(self) -> list[ProgramOutput]:
        return [o for o in self.spec.program.outputs if o.kind is not OutputKind.GRADIENT]

    def run(self, *, by_parts: bool = False) -> Mismatch | None:
        """Relate all outputs. ``by_parts``: equal parts once; raises NotRepeatedError where that does not succeed."""
        for program in (self.spec.program, self.implementation.program):
            for blocker in program.blockers:
                if blocker.node is None:
                    return Mismatch(blocker.code, blocker.message, "output.0")
        outputs = {o.name: o for o in self.implementation.program.outputs}
        programs = self.spec.program, self.implementation.program
        missing = missing_output(*programs)
        if missing is not None:
            return missing
        mismatch = (
            mismatched_dtype(*programs)
            or misread_output(self.spec, self.implementation)
            or self._mutation()
            or self._cut_gradient(outputs)
            or self._relate_inputs()
        )
        if mismatch is not None:
            return mismatch
        if by_parts and (self.spec.sizes.reads_counts or self.implementation.sizes.reads_counts):
            raise NotRepeatedError  # numbers read from tensors hold in the whole program
        if by_parts:
            pairs = [(o, outputs[o.name]) for o in self.spec.program.outputs]
            self.parts = Parts(self.spec, self.implementation, pairs, self._relation, self._note_relation)
            self.parts.require_repetitions()
            self.parts.lower_given()
        forward = self._forward
        backward = [o for o in self.spec.program.outputs if o.kind is OutputKind.GRADIENT]
        return (
            self._relate_outputs(forward, outputs)
            or self._relate_tangents()
            or self._relate_outputs(backward, outputs)
            or self._side_effect()
        )

    def _side_effect(self) -> Mismatch | None:
        """What the implementation returns, and does to a parameter, buffer or input, must be done by the spec too."""
        expected = {o.name for o in self.spec.program.outputs}
        for output in self.implementation.program.outputs:
            if output.name in expected:
                continue
            target = output.name if output.kind is OutputKind.VALUE else output.name.partition(".")[2]
            message = f"the implementation {_EFFECTS[output.kind]} `{target}`, the spec does not"
            return Mismatch("VC111", message, output.name, impl_node=output.node)
        return None

    def _mutation(self) -> Mismatch | None:
        """A node that writes to its operands changes values that the proof takes as fixed."""
        for lowering in (self.spec, self.implementation):
            for node in lowering.program.graph.graph.nodes:
                if node.op == "call_function" and is_mutable(node.target):
                    on_spec = lowering is self.spec
                    message = f"operator `{node.target}` writes to its operands"
                    return Mismatch(
                        UNREPRESENTABLE, message, "output.0", node if on_spec else None, None if on_spec else node
                    )
        return None

    def _cut_gradient(self, implementations: Mapping[str, ProgramOutput]) -> Mismatch | None:
        """An output through which the spec's gradient flows must pass it on in the implementation too."""
        for output in self._forward:
            implementation = implementations[output.name]
            if output.requires_grad and implementation.requires_grad is False:
                message = f"no gradient flows back from `{output.name}` in the implementation"
                return Mismatch("VC111", message, output.name, output.node, implementation.node)
        return None

    def value_of(self, spec_node: torch.fx.Node, impl_node: torch.fx.Node) -> tuple[View | None, View | None]:
        """The values of one node of each program, before any output is related. Claims only. Raises ClaimError."""
        self.placements.update(self._claims or {})
        mismatch = self._mutation() or self._relate_inputs() or self._relate_tangents()
        if mismatch is not None:
            raise ClaimError(mismatch.message)
        self.spec.lower([spec_node])
        self.implementation.lower([impl_node])
        return self.spec.view(spec_node), self.implementation.view(impl_node)

    # -- inputs

    def _relate_inputs(self) -> Mismatch | None:
        spec_inputs = tensor_inputs(self.spec)
        for key, program_input in tensor_inputs(self.implementation).items():
            if key[0] == "tangent" or key not in spec_inputs:
                continue
            placements = program_input.placements or self._replicated()
            mismatch = self._relate_input(spec_inputs[key], program_input, placements)
            if mismatch is not None:
                return mismatch
        for key, spec_input in spec_inputs.items():
            if key[0] != "tangent" and spec_input.node not in self.spec.values:
                shape = self.spec.sizes.shape_of(spec_input.node)
                assert shape is not None
                leaf = leaf_of(self.pool, spec_input, shape)
                self.spec.provide(spec_input.node, leaf)
        return None

    def _relate_input(
        self, spec_input: ProgramInput, program_input: ProgramInput, placements: Sequence[Placement]
    ) -> Mismatch | None:
        try:
            relate(self.spec, self.implementation, spec_input, program_input, placements)
        except UnsupportedError as error:
            return Mismatch(error.code, error.message, program_input.name, spec_input.node, program_input.node)
        return None

    def _replicated(self) -> Placements:
        mesh = self.implementation.program.mesh
        return tuple(Replicate() for _ in mesh.axes) if mesh is not None else ()

    def _relate_tangents(self) -> Mismatch | None:
        """Give the cotangents their layout: declared, or that of the output they belong to."""
        spec_inputs = tensor_inputs(self.spec)
        for key, program_input in tensor_inputs(self.implementation).items():
            if key[0] != "tangent":
                continue
            if key not in spec_inputs:
                message = f"no gradient flows back from `{program_input.name}` in the spec"
                return Mismatch("VC111", message, program_input.name)
            found = self.placements.get(program_input.name, self._replicated())
            found = tuple(Replicate() if isinstance(p, Partial) else p for p in found)
            placements = with_open_axes(program_input.placements or found, found, program_input.open_axes)
            mismatch = self._relate_input(spec_inputs[key], program_input, placements)
            if mismatch is not None:
                return mismatch
        return None

    # -- outputs

    def _relate_outputs(
        self, outputs: Sequence[ProgramOutput], implementations: dict[str, ProgramOutput]
    ) -> Mismatch | None:
        self._lower(outputs, implementations)
        failed: list[tuple[ProgramOutput, ProgramOutput]] = []
        for output in outputs:
            if not self._relate_output(output, implementations[output.name]):
                failed.append((output, implementations[output.name]))
        if not failed:
            return None
        if self._claims is not None:
            raise ClaimError(f"no relation of `{failed[0][0].name}`")
        if self.parts is not None:
            raise NotRepeatedError
        means = frozenset(
            axis for found in self.placements.values() for axis, item in enumerate(found) if item == Partial("avg")
        )
        self._failed = Diagnosis(self.pool, self.spec, self.implementation, failed, means)
        case, (spec, implementation) = self._failed, failed[0]
        found = bounds.attempt("the search for a cause", lambda: diagnose(case), _SHARE_OF_DIAGNOSIS)
        if not isinstance(found, RanOut):
            return found
        message, notes = f"no relation for `{spec.name}`", (found.describe(),)
        return Mismatch("VC107", message, spec.name, spec.node, implementation.node, notes=notes)

    def _lower(self, outputs: Sequence[ProgramOutput], implementations: dict[str, ProgramOutput]) -> None:
        if self.parts is not None:
            backward = any(o.kind is OutputKind.GRADIENT for o in outputs)
            (self.parts.backward if backward else self.parts.forward).lower()
            return
        self.spec.lower(o.node for o in outputs)
        self.implementation.lower(implementations[o.name].node for o in outputs)

    def _relate_output(self, spec: ProgramOutput, implementation: ProgramOutput) -> bool:
        if self.parts is not None and self.parts.is_settled(spec):
            return True
        left, right = self.spec.view(spec.node), self.implementation.view(implementation.node)
        if left is None or right is None:
            return left is right and self._same_size(spec, implementation)
        placements = self._relation(spec, implementation)
        if placements is None:
            return False
        self._note_relation(spec, placements)
        return True

    def _relation(self, spec: ProgramOutput, implementation: ProgramOutput) -> Placements | None:
        """How the implementation holds an output; no placements at all where it has no mesh."""
        left, right = self.spec.view(spec.node), self.implementation.view(implementation.node)
        if left is None or right is None:
            return None
        if self.implementation.program.mesh is None:
            return () if same_value(left, right) or same_part_by_part(self.pool, left, right) else None
        return self._find_placements(left, right, implementation)

    def _note_relation(self, output: ProgramOutput, placements: Placements) -> None:
        mesh = self.implementation.program.mesh
        if mesh is None:
            self.relations[output.name] = output.name
            return
        self.placements[output.name] = placements
        self.relations[output.name] = describe(output.name, placements, mesh)

    def _same_size(self, spec: ProgramOutput, implementation: ProgramOutput) -> bool:
        """Outputs that are numbers (sizes) must be the same expression."""
        left, right = self.spec.values[spec.node], self.implementation.values[implementation.node]
        if left is None or left != right:
            return False
        self.relations[spec.name] = spec.name
        return True

    def _claimed(self, left: View, right: View, output: ProgramOutput, claims: Mapping[str, Placements]) -> bool:
        """Whether the placements claimed are those that must be, and hold."""
        mesh, found = self.implementation.program.mesh, claims.get(output.name)
        right = self._at_scale(output, right)
        if mesh is None or found is None or len(found) != len(mesh.axes):
            return False
        if output.placements is None:
            allowed = output.kind is OutputKind.VALUE or not any(isinstance(p, Partial) for p in found)
        elif output.open_axes:
            allowed = with_open_axes(output.placements, found, output.open_axes) == found
        else:
            allowed = (
                output.required(self.placements[o.name] for o in self._forward if o.name in self.placements) == found
            )
        try:
            return allowed and holds(self.pool, left, right, found, mesh)
        except (UnsupportedError, UnalignedError, ValueError):
            return False

    def _find_placements(self, left: View, right: View, output: ProgramOutput) -> Placements | None:
        mesh = self.implementation.program.mesh
        assert mesh is not None
        if self._claims is not None:
            return self._claims[output.name] if self._claimed(left, right, output, self._claims) else None
        right = self._at_scale(output, right)
        if output.placements is None:
            # A gradient that stays a partial sum is an error unless someone declared that it is reduced later.
            return infer(self.pool, left, right, mesh, allow_partial=output.kind is OutputKind.VALUE)
        forward = [self.placements[o.name] for o in self._forward if o.name in self.placements]
        required = output.required(forward)
        assert required is not None
        if output.open_axes:
            declared = (output.placements, output.open_axes)
            return infer(self.pool, left, right, mesh, allow_partial=True, declared=declared)
        try:
            return required if holds(self.pool, left, right, required, mesh) else None
        except (UnsupportedError, ValueError):
            return None

    def _at_scale(self, output: ProgramOutput, view: View) -> View:
        """The value of an output as it compares with the spec's."""
        mesh = self.implementation.program.mesh
        if mesh is None or not output.outer_mean:
            return view
        forward = [self.placements[o.name] for o in self._forward if o.name in self.placements]
        return view.scaled(Fraction(1, output.scale(forward, mesh)))

    # -- assumptions

    def _rounded_literals(self) -> Iterator[str]:
        """Literals in single precision with which a program goes on in double precision.

        One in single precision is held as another number than the one written, as all results in single precision are.
        """
        if not any(computes_in_double(lowering.program) for lowering in (self.spec, self.implementation)):
            return
        for value, number in self.pool.singles.items():
            change = difference(value, number)
            if change:
                yield (
                    f"the constant {value!r} in single precision is read as {float(number)!r} "
                    f"(relative difference {change:.1e})"
                )

    def output_names(self) -> list[str]:
        """In the order in which outputs are related: forward ones first."""
        outputs = self.spec.program.outputs
        return [o.name for o in sorted(outputs, key=lambda o: o.kind is OutputKind.GRADIENT)]

    def assumptions(self) -> list[str]:
        program = self.implementation.program
        listed = list(dict.fromkeys((*self.spec.program.assumptions, *program.assumptions)))
        for program_input in program.inputs:
            if program_input.assumed and program_input.role is not Role.TANGENT:
                placements = ", ".join(str(p) for p in program_input.placements or self._replicated())
                listed.append(f"`{program_input.name}` is placed ({placements}) by default")
        for name in (name for name in self.output_names() if name in self.placements):
            placements = self.placements[name]
            assert program.mesh is not None
            axes = [a.name for a, p in zip(program.mesh.axes, placements, strict=True) if isinstance(p, Partial)]
            if axes:
                listed.append(
                    f"`{name}` leaves as a partial value over {', '.join(axes)} and is reduced by its consumer"
                )
        listed.extend(self.pool.assumptions)
        listed.extend(differing_precisions(self.spec.program, program))
        listed.extend(self._rounded_literals())
        casts = dict.fromkeys((*self.spec.casts, *self.implementation.casts))
        listed.extend(f"cast treated as identity: {cast}" for cast in casts)
        listed.extend(f"guard of symbolic sizes: {guard}" for guard in (*self.spec.program.guards, *program.guards))
        return listed
