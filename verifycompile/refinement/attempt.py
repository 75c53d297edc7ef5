"""One attempt to relate two programs: both are lowered into one pool, and every output is compared as it is claimed.

Both graphs are programs over the same leaves once the input relation is substituted, so a spec value and the
implementation's value are equal when their normal forms are (DESIGN section 3). Forward outputs are related first:
where a plain output's layout is not declared, its cotangent follows from the relation found.

Nothing here searches: ``check.py`` looks for relations, and the checker of certificates is told them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import difference
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.recorded import computes_in_double
from verifycompile.program import Mesh, OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.refinement.dtensor_results import misread_output
from verifycompile.refinement.dtypes import differing_precisions, mismatched_dtype
from verifycompile.refinement.inputs import leaf_of, relate, tensor_inputs, unrelated_number
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.refinement.placement import Placements, describe, holds, same_value, with_open_axes
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.torch_interface.operators.schema import is_mutable

_EFFECTS = {
    OutputKind.VALUE: "returns",
    OutputKind.GRADIENT: "has a gradient for",
    OutputKind.MUTATION: "writes to",
}


class ClaimError(Exception):
    """A claim about two programs that does not hold."""


def plain_pool(program: Program | None = None) -> TermPool:
    """A pool without lemmas, for an implementation ``program``."""
    pool = TermPool()
    if program is not None and program.piecewise:
        from verifycompile.rewrites.parts.piecewise import Piecewise  # here, because few programs have parts

        pool.piecewise = Piecewise()
    if program is not None and program.by_definition:
        from verifycompile.rewrites.interpretation import definitions  # the same

        pool.definitions = definitions()
    return pool


class Attempt:
    """One attempt: lower both programs into ``pool`` and relate their outputs as ``claims`` says, their placements.

    What does not hold raises ClaimError, because no cause of it is asked for.
    """

    def __init__(
        self, spec: Program, implementation: Program, pool: TermPool, claims: Mapping[str, Placements] | None = None
    ) -> None:
        self.pool = pool
        self.spec = Lowering(spec, self.pool, "spec")
        self.implementation = Lowering(implementation, self.pool, "impl")
        self.relations: dict[str, str] = {}
        self.placements: dict[str, Placements] = {}
        self._claims = claims or {}
        self._tangents = [name for space, name in tensor_inputs(self.implementation) if space == "tangent"]

    @property
    def _forward(self) -> list[ProgramOutput]:
        return [o for o in self.spec.program.outputs if o.kind is not OutputKind.GRADIENT]

    @property
    def _flowing(self) -> list[Placements]:
        """Of the forward outputs through which gradients flow."""
        return [self.placements[name] for name in self._tangents if name in self.placements]

    def run(self) -> Mismatch | None:
        """Relate all outputs. Raises ClaimError where a relation that is claimed does not hold."""
        outputs = {o.name: o for o in self.implementation.program.outputs}
        for output in self.spec.program.outputs:
            if output.name not in outputs:
                raise ClaimError(f"the implementation has no `{output.name}`")
        return self._unfit(outputs) or self._relate(outputs)

    def _unfit(self, outputs: Mapping[str, ProgramOutput]) -> Mismatch | None:
        """What shows without a value of any node that the programs do not fit each other; their inputs are related."""
        return (
            mismatched_dtype(self.spec.program, self.implementation.program)
            or misread_output(self.spec, self.implementation)
            or self._mutation()
            or self._cut_gradient(outputs)
            or self._relate_inputs()
        )

    def _relate(self, outputs: Mapping[str, ProgramOutput]) -> Mismatch | None:
        backward = [o for o in self.spec.program.outputs if o.kind is OutputKind.GRADIENT]
        return (
            self._relate_outputs(self._forward, outputs)
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
            nodes = lowering.program.graph.graph.nodes
            targets = {id(node.target): node.target for node in nodes}  # torch hashes an operator in Python
            if any(map(is_mutable, targets.values())):
                node = next(node for node in nodes if is_mutable(node.target))
                message = f"operator `{node.target}` writes to its operands"
                both = (node, None) if lowering is self.spec else (None, node)
                return Mismatch(UNREPRESENTABLE, message, "output.0", *both)
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
        """The values of one node of each program, before any output is related. Raises ClaimError."""
        self.placements.update(self._claims)
        if mismatch := self._mutation() or self._relate_inputs() or self._relate_tangents():
            raise ClaimError(mismatch.message)
        self.spec.lower([spec_node])
        self.implementation.lower([impl_node])
        return self.spec.view(spec_node), self.implementation.view(impl_node)

    # -- inputs

    def _relate_inputs(self) -> Mismatch | None:
        if number := unrelated_number(self.spec, self.implementation):
            message = f"the number `{number}`, an input of the implementation, is not the spec's input of that name"
            return Mismatch("VC303", message, number)
        spec_inputs = tensor_inputs(self.spec)
        for key, program_input in tensor_inputs(self.implementation).items():
            if key[0] == "tangent" or key not in spec_inputs:
                continue
            placements = program_input.placements or self._replicated()
            if mismatch := self._relate_input(spec_inputs[key], program_input, placements):
                return mismatch
        for key, spec_input in spec_inputs.items():
            if key[0] != "tangent" and spec_input.node not in self.spec.values:
                shape = self.spec.sizes.shape_of(spec_input.node)
                assert shape is not None
                self.spec.provide(spec_input.node, leaf_of(self.pool, spec_input, shape))
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
            if mismatch := self._relate_input(spec_inputs[key], program_input, placements):
                return mismatch
        return None

    # -- outputs

    def _relate_outputs(
        self, outputs: Sequence[ProgramOutput], implementations: Mapping[str, ProgramOutput]
    ) -> Mismatch | None:
        self._lower(outputs, implementations)
        failed = [
            (output, implementations[output.name])
            for output in outputs
            if not self._relate_output(output, implementations[output.name])
        ]
        return self._failure(failed) if failed else None

    def _lower(self, outputs: Sequence[ProgramOutput], implementations: Mapping[str, ProgramOutput]) -> None:
        self.spec.lower(o.node for o in outputs)
        self.implementation.lower(implementations[o.name].node for o in outputs)

    def _failure(self, failed: Sequence[tuple[ProgramOutput, ProgramOutput]]) -> Mismatch | None:
        """What to say of outputs without a relation; None where the attempt goes on without them."""
        raise ClaimError(f"no relation of `{failed[0][0].name}`")

    def _relate_output(self, spec: ProgramOutput, implementation: ProgramOutput) -> bool:
        if self.spec.view(spec.node) is None:
            return self._same_size(spec, implementation)
        if (placements := self._relation(spec, implementation)) is not None:
            self._note_relation(spec, placements)
        return placements is not None

    def _relation(self, spec: ProgramOutput, implementation: ProgramOutput) -> Placements | None:
        """How the implementation holds an output; no placements at all where it has no mesh."""
        left, right = self.spec.view(spec.node), self.implementation.view(implementation.node)
        if left is None or right is None:
            return None
        mesh = self.implementation.program.mesh
        if mesh is None:
            return () if same_value(left, right) or _are_same_part_by_part(self.pool, left, right) else None
        try:
            compared = right.scaled(Fraction(1, implementation.scale(self._flowing, mesh)))
            return self._find_placements(left, compared, implementation, mesh)
        except (UnsupportedError, UnalignedError, ValueError):
            return None

    def _note_relation(self, output: ProgramOutput, placements: Placements) -> None:
        self.relations[output.name] = output.name
        if (mesh := self.implementation.program.mesh) is not None:
            self.placements[output.name] = placements
            self.relations[output.name] = describe(output.name, placements, mesh)

    def _same_size(self, spec: ProgramOutput, implementation: ProgramOutput) -> bool:
        """Outputs that are numbers (sizes) must be the same expression."""
        left, right = self.spec.values[spec.node], self.implementation.values[implementation.node]
        if is_same := left is not None and left == right:
            self.relations[spec.name] = spec.name
        return is_same

    def _find_placements(self, left: View, right: View, output: ProgramOutput, mesh: Mesh) -> Placements | None:
        """The placements claimed, where they are those that must be, and hold."""
        found = self._claims.get(output.name)
        if found is None or len(found) != len(mesh.axes):
            return None
        if output.placements is None:
            allowed = output.kind is OutputKind.VALUE or not any(isinstance(p, Partial) for p in found)
        elif output.open_axes:
            allowed = with_open_axes(output.placements, found, output.open_axes) == found
        else:
            allowed = output.required(self._flowing) == found
        return found if allowed and holds(self.pool, left, right, found, mesh) else None

    # -- assumptions

    def _rounded_literals(self) -> Iterator[str]:
        """Literals that torch holds as other numbers than those that they are read as.

        Of those in single precision the ones with which a program goes on in double precision: all results in single
        precision are rounded.
        """
        if not any(computes_in_double(lowering.program) for lowering in (self.spec, self.implementation)):
            return
        for (value, single), number in self.pool.literals.items():
            change = difference(value, number, single)
            if change:
                text = (
                    f"the constant {value!r} in {'single' if single else 'double'} precision is read as "
                    f"{float(number)!r} (relative difference {change:.1e})"
                )
                yield Assumption(text, AssumptionKind.PRECISION)

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
                text = f"`{program_input.name}` is placed ({placements}) by default"
                listed.append(Assumption(text, AssumptionKind.PLACEMENT, [program_input.name]))
        for name in (name for name in self.output_names() if name in self.placements):
            placements = self.placements[name]
            assert program.mesh is not None
            axes = [a.name for a, p in zip(program.mesh.axes, placements, strict=True) if isinstance(p, Partial)]
            if axes:
                text = f"`{name}` leaves as a partial value over {', '.join(axes)} and is reduced by its consumer"
                listed.append(Assumption(text, AssumptionKind.CONSUMER, [name]))
        listed.extend(self.pool.assumptions)
        listed.extend(differing_precisions(self.spec.program, program))
        listed.extend(self._rounded_literals())
        casts = dict.fromkeys((*self.spec.casts, *self.implementation.casts))
        listed.extend(Assumption(f"cast treated as identity: {cast}", AssumptionKind.PRECISION) for cast in casts)
        guards = (*self.spec.program.guards, *program.guards)
        listed.extend(Assumption(f"guard of symbolic sizes: {guard}", AssumptionKind.SIZES) for guard in guards)
        return listed


def _are_same_part_by_part(pool: TermPool, left: View, right: View) -> bool:
    from verifycompile.refinement.part_by_part import same_part_by_part  # here, because few values differ in form

    return same_part_by_part(pool, left, right)
