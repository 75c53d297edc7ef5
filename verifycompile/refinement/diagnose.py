"""From outputs without a relation to the first root cause, as one diagnostic code with both nodes.

The spec's nodes are compared with the implementation's in topological order. The root cause is the first node of the
spec without a relation whose operands all have one; a collective whose input has a relation and whose output has
none is the most precise place of all and is looked for first.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial

from verifycompile.ir.term import View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Blocker, OutputKind, ProgramOutput
from verifycompile.refinement.candidates import infer
from verifycompile.refinement.classify import Found, Kind, classify
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.refinement.own_part_search import OwnPart, on_another_line, own_part, quotient_of_own_sums
from verifycompile.refinement.placement import describe
from verifycompile.refinement.relations import Diagnosis, NodeRelations, first_value, ordered_ancestors, producer
from verifycompile.refinement.unknowns import unknowns
from verifycompile.rewrites.operators.collective import REDUCTION_ARGUMENT
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.model_lines import model_location_of, pass_over_functions_of_spec
from verifycompile.torch_interface.source_lines.value_names import call_name, names_of_inputs, operator_of, value_name

aten = torch.ops.aten

_CUTS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int)

_LOST = (
    "what is written to a copy is lost: a slice of a DTensor along the sharded dimension, for one, is a copy, since it "
    "is gathered first; `x.copy_(...)` of the whole writes to `x`"
)
"""What is said of a tensor that stays as it was."""


def diagnose(case: Diagnosis) -> Mismatch:
    """Return the first root cause of the failed outputs."""
    pass_over_functions_of_spec(case.spec.program.graph.graph, case.implementation.program.graph.graph)
    cause = _Cause(case)
    mismatch = cause.boundary() or cause.collective() or cause.mean() or cause.lost_piece() or cause.node()
    mismatch = mismatch or cause.output_layout() or cause.output()
    return dataclasses.replace(mismatch, followers=len(case.failed) - 1)


@dataclasses.dataclass(frozen=True)
class _Site:
    """Where a fault shows: the two nodes, and the spec value that is meant."""

    spec_node: torch.fx.Node
    impl_node: torch.fx.Node
    value: str
    origin: torch.fx.Node | None = None
    origin_label: str = ""


class _Cause:
    def __init__(self, case: Diagnosis) -> None:
        self.relations = NodeRelations(case)
        self.pool, self.failed, self.means = case.pool, case.failed, case.means
        self.spec, self.implementation = case.spec, case.implementation
        self.mesh = self.relations.mesh
        self.spec_output, self.impl_output = case.failed[0]
        self.inputs = names_of_inputs(self.spec.program)

    def name(self, node: torch.fx.Node) -> str:
        """What a value of the spec is called in its source."""
        return value_name(node, self.inputs)

    def boundary(self) -> Mismatch | None:
        """Of no failed output it is known how it may leave the program: nothing else can be said of them."""
        blockers = {blocker.node: blocker for blocker in self.implementation.program.blockers}
        if any(impl_output.node not in blockers for _, impl_output in self.failed):
            return None
        return self._from_blocker(blockers[self.impl_output.node], None, self.impl_output.node)

    # -- collectives

    def collective(self) -> Mismatch | None:
        """The first reducing collective whose input has a relation and whose output has none."""
        if self.mesh is None:
            return None
        for node in self.relations.impl_order:
            position = REDUCTION_ARGUMENT.get(node.target)
            if position is None or node.args[position] not in ("sum", "avg"):
                continue
            source = node.all_input_nodes[0]
            before, after = self.implementation.view(source), self.implementation.view(node)
            if before is None or after is None or self.relations.of_implementation(after) is not None:
                continue
            related = self.relations.of_implementation(before)
            if related is None:
                continue
            spec_node, found = related
            group = self._group_axes(node)
            fault = self._collective_fault(node, str(node.args[position]), before, found, group)
            if fault is None:
                continue
            origin = self.relations.first_holder(source) if found.axes else None
            label = f"the value became partial over {self._axes(found.axes)} here" if found.axes else ""
            value = self.name(spec_node)
            site = _Site(spec_node, node, value, origin, label)
            return self._at(*fault, site, found, f"{value} on every rank of {self._axes(group)}")
        return None

    def _collective_fault(
        self, node: torch.fx.Node, reduction: str, source: View, found: Found, group: tuple[int, ...]
    ) -> tuple[str, str] | None:
        over, operator = self._axes(group), operator_name(node)
        if found.kind is Kind.PARTIAL:
            partial = self._axes(found.axes)
            if not set(group) & set(found.axes):
                return "VC105", f"{operator} over {over} of a value that is a partial sum over {partial}"
            if reduction == "avg":
                return "VC103", f"{operator} takes the mean over {over} of a value that is a partial sum over {partial}"
            if set(group) - set(found.axes):
                return "VC102", f"{operator} over {over} of a value that is partial over {partial} only"
            return None
        if reduction == "sum" and not any(source.uses(axis) for axis in group):
            return "VC102", f"{operator} over {over} of a value that is already the full sum"
        return None

    def mean(self) -> Mismatch | None:
        """A gradient that is each rank's own, or their sum, though a forward output is the mean over the ranks."""
        for spec_output, impl_output in self.failed:
            found = self.relations.classify(spec_output.node, impl_output.node) if self.means else None
            if found is None or self.mesh is None:
                continue
            if found.kind is Kind.PARTIAL and self.means.issuperset(found.axes):
                if found.factor == math.prod(self.mesh.axes[axis].size for axis in found.axes):
                    text = f"`{spec_output.name}` is returned as each rank's own over {self._axes(found.axes)}"
                    return self._at_output("VC101", f"{text}; it must be the mean", spec_output, impl_output, found)
            if found.kind is Kind.SCALED:
                for node in reversed(ordered_ancestors(self.implementation, [impl_output.node])):
                    position = REDUCTION_ARGUMENT.get(node.target)
                    group = () if position is None or node.args[position] != "sum" else self._group_axes(node)
                    ranks = math.prod(self.mesh.axes[axis].size for axis in group)
                    if group and self.means.issuperset(group) and found.factor == ranks:
                        over, site = self._axes(group), _Site(spec_output.node, node, spec_output.name)
                        message = f"{operator_name(node)} sums over {over}, where the mean is expected"
                        return self._at("VC103", message, site, found)
        return None

    def _group_axes(self, node: torch.fx.Node) -> tuple[int, ...]:
        group = node.args[-1]
        name = group.name if isinstance(group, torch.fx.Node) else str(group)
        return tuple(self.implementation.program.groups.get(name, ()))

    # -- nodes

    def node(self) -> Mismatch | None:
        """The first spec node without a relation, all of whose operands have one."""
        roots = self.relations.roots()
        if not roots:
            return None
        root = producer(roots[0])
        if root in self.spec.blockers:
            return self._from_blocker(self.spec.blockers[root], root, self.relations.counterpart(root))
        twin = self.relations.counterpart(root)
        if twin is None:
            own = on_another_line(self.relations, root)
            if own is not None:
                return self._at_own_part(root, own)
            return self._blocked(self.implementation, [output.node for _, output in self.failed])
        if twin in self.implementation.blockers:
            return self._from_blocker(self.implementation.blockers[twin], root, twin)
        if self.relations.is_repeated(root):
            # Micro-batches, chunks: no single one of them is the counterpart, and each rightly has a part alone.
            return None
        return self._operand_fault(root, twin)

    def _operand_fault(self, root: torch.fx.Node, twin: torch.fx.Node) -> Mismatch:
        """Compare the operands of both nodes one by one; if all agree, the fault is in how they fit together."""
        pairs = list(zip(root.all_input_nodes, twin.all_input_nodes, strict=False))
        quotient = quotient_of_own_sums(self.relations, root, twin)
        if quotient is not None:
            return self._at_own_part(root, quotient)
        for spec_operand, impl_operand in pairs:
            found = self.relations.classify(spec_operand, impl_operand)
            if found is None or found.whole:
                continue
            if found.kind is Kind.DIFFERENT:
                blocked = self._blocked(self.implementation, [impl_operand])
                if blocked is not None:
                    return blocked
            return self._fault(found, root, twin, spec_operand, impl_operand)
        found = self.relations.classify(root, twin) or Found(Kind.DIFFERENT)
        own = own_part(self.relations, root, twin)
        if own is not None:
            return self._at_own_part(root, own)
        if found.kind is Kind.DIFFERENT and len(pairs) > 1:
            message = f"the operands of {call_name(twin)} are sharded in ways that do not fit together"
            return self._at("VC104", message + self._layouts(pairs), _Site(root, twin, self.name(root)), found)
        return self._fault(found, root, twin, root, twin)

    def _layouts(self, pairs: Sequence[tuple[torch.fx.Node, torch.fx.Node]]) -> str:
        """How operands lie on the ranks, for messages; "" where that is not known of all of them."""
        told: list[str] = []
        for spec_operand, impl_operand in (map(_looked_at, pair) for pair in pairs):
            left, right = self.spec.view(spec_operand), self.implementation.view(impl_operand)
            if left is None or right is None or self.mesh is None:
                return ""
            placements = infer(self.pool, left, right, self.mesh, allow_partial=False)
            if placements is None:
                return ""
            told.append(f"`{self.name(spec_operand)}` is {_show(placements)}")
        axes = range(0 if self.mesh is None else len(self.mesh.axes))
        return f": over {self._axes(axes)}, {', '.join(told)}"

    def _at_own_part(self, root: torch.fx.Node, own: OwnPart) -> Mismatch:
        mismatch = self._at(own.code, own.message, _Site(root, own.node, self.name(root)), own.found)
        if own.cut is None:
            return mismatch
        return dataclasses.replace(
            mismatch, impl_node=own.cut, impl_label=own.cut_label, origin_node=own.node, origin_label=own.message
        )

    def _fault(
        self,
        found: Found,
        root: torch.fx.Node,
        twin: torch.fx.Node,
        spec_operand: torch.fx.Node,
        impl_operand: torch.fx.Node,
    ) -> Mismatch:
        operand = self.name(spec_operand)
        site = _Site(root, twin, operand)
        if found.kind in (Kind.PARTIAL, Kind.PARTIAL_PIECE):
            return self._partial_fault(found, site, call_name(twin), impl_operand)
        if found.kind is Kind.SCALED:
            origin = self.relations.first_scaled(impl_operand)
            site = dataclasses.replace(site, origin=origin, origin_label="the value has the wrong scale from here on")
            ratio = found.describe(operand, self.mesh)
            return self._at("VC103", f"`{operand}` is scaled wrongly: {ratio}", site, found)
        if found.kind is Kind.MISPLACED:
            return self._at("VC104", f"`{operand}` holds another part of the tensor than this rank's", site, found)
        other = self._other_value(impl_operand)
        if other is not None:
            return self._other_fault(found, site, spec_operand, other)
        return self._at("VC107", f"no relation for `{operand}`", site, found)

    def _other_fault(self, found: Found, site: _Site, expected: torch.fx.Node, other: torch.fx.Node) -> Mismatch:
        wanted, used = _looked_at(expected), _looked_at(other)
        turns = self.relations.turns(wanted, used)
        if turns is not None:
            value, (turn, other_turn) = self.name(wanted), turns
            text = f"`{value}` of turn {other_turn + 1} is used, where that of turn {turn + 1} is expected"
            return self._at("VC119", text, site, found)
        message = f"`{site.value}` is expected here, the implementation uses `{self.name(other)}`"
        return self._at("VC108", message, site, found)

    def _partial_fault(self, found: Found, site: _Site, operator: str, impl_operand: torch.fx.Node) -> Mismatch:
        axes = self._axes(found.axes)
        site = dataclasses.replace(
            site,
            origin=self.relations.first_partial(impl_operand, found.axes),
            origin_label=f"the value became partial over {axes} here",
        )
        if found.factor != 1 and self._is_other_axis(found):
            message = f"`{site.value}` is reduced over the wrong mesh axis; it is still partial over {axes}"
            return self._at("VC105", message, site, found)
        message = f"{operator} needs the full value of `{site.value}`, which is a partial sum over {axes}"
        return self._at("VC101", message, site, found)

    def _other_value(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """The spec's node of the value that the implementation uses, where it is one of the spec's."""
        view = first_value(self.implementation, node)
        related = None if view is None else self.relations.of_implementation(view)
        return None if related is None else related[0]

    def _is_other_axis(self, found: Found) -> bool:
        axes = () if self.mesh is None else enumerate(self.mesh.axes)
        return any(found.factor == a.size for i, a in axes if i not in found.axes)

    def lost_piece(self) -> Mismatch | None:
        """A piece of an input with which a line of the spec computes, and the implementation on that line does not."""
        of_spec = {_line(node): (node, pieces) for node, pieces in _cut_inputs(self.relations.spec_order)}
        for node, pieces in _cut_inputs(self.relations.impl_order):
            cut, wanted = of_spec.get(_line(node), (node, pieces))
            if not pieces or wanted <= pieces or model_location_of(node) is None:
                continue
            name = value_name(node.all_input_nodes[0], names_of_inputs(self.implementation.program))
            lost = f"piece {min(wanted - pieces) + 1} of `{name}`"
            message = f"{lost} takes no part in `{self.spec_output.name}`, as it does in the spec"
            return self._at("VC119", message, _Site(cut, node, name), Found(Kind.DIFFERENT))
        return None

    # -- outputs

    def output_layout(self) -> Mismatch | None:
        """The value is right, its layout is not the required one."""
        for spec_output, impl_output in self.failed:
            left, right = self.spec.view(spec_output.node), self.implementation.view(impl_output.node)
            if left is None or right is None or self.mesh is None:
                continue
            found = classify(self.pool, left, right, self.mesh)
            if found.kind is Kind.PARTIAL and found.factor == 1:
                return self._partial_output(spec_output, impl_output, found)
            actual = infer(self.pool, left, right, self.mesh, allow_partial=True)
            # A mean that happens to be right is a wrong scale, not another layout.
            if actual is None or Partial("avg") in actual:
                continue
            if actual == impl_output.placements:
                text = f"`{spec_output.name}` is the gradient of a loss that is summed over the ranks"
                return self._at_output("VC103", f"{text}; it must be their mean", spec_output, impl_output, found)
            declared = impl_output.declared or "its requirement"
            required = _show(impl_output.placements or ())
            message = f"`{spec_output.name}` has the placements {_show(actual)}, {declared} says {required}"
            return self._at_output("VC106", message, spec_output, impl_output, found)
        return None

    def _partial_output(self, spec_output: ProgramOutput, impl_output: ProgramOutput, found: Found) -> Mismatch:
        axes = self._axes(found.axes)
        required = impl_output.placements or ()
        if required and all(required[axis] == Partial("avg") for axis in found.axes):
            message = f"`{spec_output.name}` is averaged over {axes}, though the ranks hold parts of a sum"
            return self._at_output("VC103", message, spec_output, impl_output, found)
        message = f"`{spec_output.name}` is returned as a partial sum over {axes}; it must be the full value"
        mismatch = self._at_output("VC101", message, spec_output, impl_output, found)
        origin = self.relations.first_holder(impl_output.node)
        if origin is None or origin is impl_output.node:
            return mismatch
        label = f"the value became partial over {axes} here"
        return dataclasses.replace(mismatch, origin_node=origin, origin_label=label)

    def output(self) -> Mismatch:
        """No node could be named: say how the output itself stands to the spec's."""
        name = self.spec_output.name
        found = self.relations.classify(self.spec_output.node, self.impl_output.node) or Found(Kind.DIFFERENT)
        codes = {
            Kind.SCALED: "VC103",
            Kind.MISPLACED: "VC104",
            Kind.CLEAN: "VC104",
            Kind.PARTIAL: "VC101",
            Kind.PARTIAL_PIECE: "VC101",
        }
        code = codes.get(found.kind, "VC107")
        if code == "VC107":
            blocked = self._blocked(self.implementation, [output.node for _, output in self.failed])
            blocked = blocked or self._blocked(self.spec, [output.node for output, _ in self.failed])
            if blocked is not None:
                return blocked
        message = f"`{name}`: {found.describe(name, self.mesh)}"
        written = name.partition(".")[2]
        if found.kind is Kind.DIFFERENT and self.spec_output.kind is OutputKind.MUTATION and self._is_kept(written):
            message = f"`{written}` stays as it was, where the spec writes to it"
            mismatch = self._at_output("VC108", message, self.spec_output, self.impl_output, found)
            return dataclasses.replace(mismatch, notes=(_LOST,))
        if found.kind is Kind.DIFFERENT:
            message = f"`{name}` has no relation to the spec's value"
        return self._at_output(code, message, self.spec_output, self.impl_output, found)

    def _is_kept(self, name: str) -> bool:
        """Whether a tensor that the spec writes to leaves the implementation as it came."""
        before = (item.node for item in self.spec.program.inputs if item.name == name)
        found = (self.relations.classify(node, self.impl_output.node) for node in before)
        return any(item is not None and item.kind in (Kind.PLACED, Kind.CLEAN) for item in found)

    # -- blockers and messages

    def _blocked(self, lowering: Lowering, nodes: Sequence[torch.fx.Node]) -> Mismatch | None:
        """The first blocker that the values of ``nodes`` depend on: memory that is overwritten does not matter."""
        unknown = unknowns(lowering, nodes)
        for node in ordered_ancestors(lowering, nodes):
            if node in lowering.blockers and (unknown is None or node.name in unknown):
                on_spec = lowering is self.spec
                return self._from_blocker(lowering.blockers[node], node if on_spec else None, None if on_spec else node)
        return None

    def _from_blocker(
        self, blocker: Blocker, spec_node: torch.fx.Node | None, impl_node: torch.fx.Node | None
    ) -> Mismatch:
        return Mismatch(blocker.code, blocker.message, self.spec_output.name, spec_node, impl_node)

    def _axes(self, axes: Iterable[int]) -> str:
        return ", ".join(self.mesh.axes[a].name for a in axes) if self.mesh is not None else ""

    def _at(self, code: str, message: str, site: _Site, found: Found, expected: str = "") -> Mismatch:
        has_relation = found.kind is not Kind.DIFFERENT
        return Mismatch(
            code=code,
            message=message,
            output=self.spec_output.name,
            spec_node=site.spec_node,
            impl_node=site.impl_node,
            relation_found=found.describe(site.value, self.mesh) if has_relation else "",
            relation_expected=expected or (f"{site.value}, whole or sharded" if has_relation else ""),
            impl_label=message,
            origin_node=site.origin if site.origin is not site.impl_node else None,
            origin_label=site.origin_label,
        )

    def _at_output(
        self, code: str, message: str, spec_output: ProgramOutput, impl_output: ProgramOutput, found: Found
    ) -> Mismatch:
        name = spec_output.name
        required = impl_output.placements
        expected = name if required is None or self.mesh is None else describe(name, required, self.mesh)
        return dataclasses.replace(
            self._at(code, message, _Site(spec_output.node, impl_output.node, name), found, expected), output=name
        )


def _cut_inputs(order: Iterable[torch.fx.Node]) -> Iterator[tuple[torch.fx.Node, frozenset[int]]]:
    """The calls among ``order`` that cut an input into pieces, with the numbers of those that are in it."""
    nodes = dict.fromkeys(order)
    for node in nodes:
        if node.target in _CUTS and _looked_at(node.all_input_nodes[0]).op == "placeholder":
            pieces = [user.args[1] for user in node.users if user in nodes and user.target is operator.getitem]
            yield node, frozenset(piece for piece in pieces if isinstance(piece, int))


def _line(node: torch.fx.Node) -> tuple[object, ...]:
    place = model_location_of(node)
    return (node.target,) if place is None else (node.target, place.file, place.line)


def _looked_at(node: torch.fx.Node) -> torch.fx.Node:
    """What a view, or a view of a view, looks at."""
    while node.op == "call_function" and is_view(node.target):
        node = node.all_input_nodes[0]
    return node


def operator_name(node: torch.fx.Node) -> str:
    """The operator of a node as reports name it."""
    return f"`{operator_of(node)}`"


def _show(placements: Sequence[object]) -> str:
    return "(" + ", ".join(str(p) for p in placements) + ")"
