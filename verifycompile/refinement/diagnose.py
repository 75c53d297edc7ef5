"""From outputs without a relation to the first root cause.

The spec's nodes are compared with the implementation's in topological order. The root cause is the first node of the
spec without a relation whose operands all have one; a collective whose input has a relation and whose output has
none is the most precise place of all and is looked for first.
"""

from __future__ import annotations

import dataclasses
import operator as python_operator
from collections.abc import Iterable, Sequence

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial

from verifycompile.ir import algebra
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Blocker, Mesh, ProgramOutput
from verifycompile.refinement.classify import Found, Kind, classify
from verifycompile.refinement.placement import describe, infer
from verifycompile.refinement.result import Mismatch
from verifycompile.torch_interface.source import location_of

c10d = torch.ops._c10d_functional
_SUMS = {
    c10d.all_reduce.default: 1,
    c10d.reduce_scatter_tensor.default: 1,
}
"""Summing collectives, with the position of their reduction argument."""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What failed: the pool and both lowered programs, and the outputs without a relation."""

    pool: TermPool
    spec: Lowering
    implementation: Lowering
    failed: Sequence[tuple[ProgramOutput, ProgramOutput]]


def diagnose(case: Diagnosis) -> Mismatch:
    """Return the first root cause of the first failed output."""
    analysis = Analysis(case)
    mismatch = analysis.collective() or analysis.node() or analysis.output_layout() or analysis.output()
    return dataclasses.replace(mismatch, followers=len(case.failed) - 1)


class Analysis:
    def __init__(self, case: Diagnosis) -> None:
        self.pool = case.pool
        self.spec, self.implementation = case.spec, case.implementation
        self.failed = case.failed
        self.spec_output, self.impl_output = case.failed[0]
        self.mesh: Mesh | None = case.implementation.program.mesh
        self.spec_order = _ordered_ancestors(self.spec, [o.node for o, _ in case.failed])
        self.impl_order = _ordered_ancestors(self.implementation, [o.node for _, o in case.failed])
        self._by_term: dict[Term, list[torch.fx.Node]] = {}
        for node in self.impl_order:
            view = self.implementation.view(node)
            if view is not None:
                self._by_term.setdefault(view.term, []).append(node)
        self._spec_by_term: dict[Term, list[torch.fx.Node]] = {}
        for node in self.spec_order:
            view = self.spec.view(node)
            if view is not None:
                self._spec_by_term.setdefault(view.term, []).append(node)
        self._partial: dict[Term, list[torch.fx.Node]] | None = None

    # -- the output itself

    def output_layout(self) -> Mismatch | None:
        """The value is right, its layout is not the required one."""
        for spec_output, impl_output in self.failed:
            left, right = self.spec.view(spec_output.node), self.implementation.view(impl_output.node)
            if left is None or right is None or self.mesh is None:
                continue
            found = classify(self.pool, left, right, self.mesh)
            required = impl_output.placements
            expected = "" if required is None else describe(spec_output.name, required, self.mesh)
            if found.kind is Kind.PARTIAL and found.factor == 1:
                axes = self._axes(found.axes)
                return self._mismatch(
                    "VC101",
                    f"`{spec_output.name}` is returned as a partial sum over {axes}; it must be the full value",
                    spec_output,
                    impl_output.node,
                    found,
                    expected or f"`{spec_output.name}` on every rank",
                    origin=self._origin(impl_output.node),
                    origin_label=f"the value became partial over {axes} here",
                )
            actual = infer(self.pool, left, right, self.mesh, allow_partial=True)
            if actual is not None and Partial("avg") not in actual:
                return self._mismatch(
                    "VC106",
                    f"`{spec_output.name}` has the placements {_show(actual)}, {impl_output.declared or 'its requirement'} "
                    f"says {_show(required or ())}",
                    spec_output,
                    impl_output.node,
                    found,
                    expected,
                )
        return None

    # -- collectives

    def collective(self) -> Mismatch | None:
        """The first summing collective whose input has a relation and whose output has none."""
        if self.mesh is None:
            return None
        for node in self.impl_order:
            if node.target not in _SUMS or node.args[_SUMS[node.target]] not in ("sum", "avg"):  # pyright: ignore[reportArgumentType]
                continue
            source = node.args[0]
            assert isinstance(source, torch.fx.Node)
            before, after = self.implementation.view(source), self.implementation.view(node)
            if before is None or after is None or self._spec_relation(after) is not None:
                continue
            found = self._spec_relation(before)
            if found is None:
                continue
            spec_node, relation = found
            group = self._group_axes(node)
            code, message = self._collective_fault(node, relation, group)
            if code is None:
                continue
            name = _name(spec_node)
            return Mismatch(
                code=code,
                message=message,
                output=self.spec_output.name,
                spec_node=spec_node,
                impl_node=node,
                relation_found=relation.describe(name, self.mesh),
                relation_expected=f"{name} on every rank of {self._axes(group)}",
                impl_label=message,
                origin_node=self._origin(source) if relation.axes else None,
                origin_label=f"the value became partial over {self._axes(relation.axes)} here" if relation.axes else "",
            )
        return None

    def _collective_fault(self, node: torch.fx.Node, found: Found, group: tuple[int, ...]) -> tuple[str | None, str]:
        kind = str(node.args[_SUMS[node.target]])  # pyright: ignore[reportArgumentType]
        over = self._axes(group)
        operator = _operator_name(node)
        if found.kind is Kind.PARTIAL:
            partial = self._axes(found.axes)
            if not set(group) & set(found.axes):
                return "VC105", f"{operator} over {over} of a value that is a partial sum over {partial}"
            if kind == "avg":
                return "VC103", f"{operator} takes the mean over {over} of a value that is a partial sum over {partial}"
            if set(group) - set(found.axes):
                return "VC102", f"{operator} over {over} of a value that is partial over {partial} only"
            return None, ""
        value = self.implementation.view(node.all_input_nodes[0])
        if kind == "sum" and value is not None and not any(value.uses(axis) for axis in group):
            return "VC102", f"{operator} over {over} of a value that is already the full sum"
        return None, ""

    def _group_axes(self, node: torch.fx.Node) -> tuple[int, ...]:
        group = node.args[-1]
        name = group.name if isinstance(group, torch.fx.Node) else str(group)
        return tuple(self.implementation.program.groups.get(name, ()))

    # -- nodes

    def node(self) -> Mismatch | None:
        """The first spec node without a relation, all of whose operands have one."""
        roots = self.roots()
        if not roots:
            return None
        root = producer(roots[0])
        if root in self.spec.blockers:
            return self._from_blocker(self.spec.blockers[root], root, None)
        twin = self.counterpart(root)
        if twin is None:
            blocked = self._blocked(self.implementation, self.impl_order)
            if blocked is not None:
                return blocked
            return None
        if twin in self.implementation.blockers:
            return self._from_blocker(self.implementation.blockers[twin], root, twin)
        return self._operand_fault(root, twin)

    def roots(self) -> list[torch.fx.Node]:
        """The nodes of the unrelated chain whose operands all have a relation."""
        chain = self.unrelated_chain()
        members = set(chain)
        return [n for n in chain if not any(i in members for i in self._operands(n))]

    def unrelated_chain(self) -> list[torch.fx.Node]:
        """Spec nodes without a relation that are reached from a failed output through such nodes, operands first."""
        unrelated = {n for n in self.spec_order if self._unrelated(n)}
        reached: set[torch.fx.Node] = set()
        stack = [o.node for o, _ in self.failed if o.node in unrelated]
        while stack:
            node = stack.pop()
            if node not in reached:
                reached.add(node)
                stack.extend(i for i in self._operands(node) if i in unrelated)
        return [n for n in self.spec_order if n in reached]

    def unmatched(self) -> list[torch.fx.Node]:
        """Implementation nodes whose terms no spec node has, one per term."""
        return [nodes[0] for term, nodes in self._by_term.items() if term not in self._spec_by_term and term.operands]

    def _operand_fault(self, root: torch.fx.Node, twin: torch.fx.Node) -> Mismatch:
        pairs = list(zip(root.all_input_nodes, twin.all_input_nodes))
        name = _operator_name(root)
        for spec_operand, impl_operand in pairs:
            left, right = self._value(self.spec, spec_operand), self._value(self.implementation, impl_operand)
            if left is None or right is None:
                continue
            found = classify(self.pool, left, right, self.mesh)
            if found.whole:
                continue
            blocked = self._blocked(self.implementation, _ordered_ancestors(self.implementation, [impl_operand]))
            if blocked is not None and found.kind is Kind.DIFFERENT:
                return blocked
            return self._fault(found, name, root, twin, spec_operand, impl_operand)
        left, right = self._value(self.spec, root), self._value(self.implementation, twin)
        found = (
            classify(self.pool, left, right, self.mesh)
            if left is not None and right is not None
            else Found(Kind.DIFFERENT)
        )
        if found.kind is Kind.DIFFERENT and len(pairs) > 1:
            return self._at(
                "VC104",
                f"the operands of {name} are sharded in ways that do not fit together",
                root,
                twin,
                found,
            )
        return self._fault(found, name, root, twin, root, twin)

    def _fault(
        self,
        found: Found,
        name: str,
        root: torch.fx.Node,
        twin: torch.fx.Node,
        spec_operand: torch.fx.Node,
        impl_operand: torch.fx.Node,
    ) -> Mismatch:
        operand = _name(spec_operand)
        if found.kind is Kind.PARTIAL:
            axes = self._axes(found.axes)
            if found.factor != 1 and self._is_other_axis(found):
                return self._at(
                    "VC105",
                    f"`{operand}` is reduced over the wrong mesh axis; it is still partial over {axes}",
                    root,
                    twin,
                    found,
                    operand=spec_operand,
                )
            return self._at(
                "VC101",
                f"{name} needs the full value of `{operand}`, which is a partial sum over {axes}",
                root,
                twin,
                found,
                self._origin(impl_operand),
                f"the value became partial over {axes} here",
                operand=spec_operand,
            )
        if found.kind is Kind.SCALED:
            ratio = found.describe(operand, self.mesh)
            return self._at(
                "VC103",
                f"`{operand}` is scaled wrongly: {ratio}",
                root,
                twin,
                found,
                self._first_scaled(impl_operand),
                "the value has the wrong scale from here on",
                operand=spec_operand,
            )
        if found.kind is Kind.MISPLACED:
            return self._at(
                "VC104",
                f"`{operand}` holds another part of the tensor than this rank's",
                root,
                twin,
                found,
                operand=spec_operand,
            )
        other = self._other_value(impl_operand)
        if other is not None:
            return self._at(
                "VC108",
                f"`{operand}` is expected here, the implementation uses `{other}`",
                root,
                twin,
                found,
                operand=spec_operand,
            )
        return self._at("VC107", f"no relation for `{operand}`", root, twin, found, operand=spec_operand)

    def _other_value(self, node: torch.fx.Node) -> str | None:
        """The spec's name of the value that the implementation uses, where it is one of the spec's."""
        view = self._value(self.implementation, node)
        relation = None if view is None else self._spec_relation(view)
        return None if relation is None else _name(relation[0])

    def _is_other_axis(self, found: Found) -> bool:
        if self.mesh is None:
            return False
        return any(found.factor == a.size for i, a in enumerate(self.mesh.axes) if i not in found.axes)

    # -- the fallback

    def output(self) -> Mismatch:
        """No node could be named: say what relates the output itself."""
        left, right = self.spec.view(self.spec_output.node), self.implementation.view(self.impl_output.node)
        if left is None or right is None:
            return Mismatch(
                "VC107",
                f"no relation for `{self.spec_output.name}`",
                self.spec_output.name,
                self.spec_output.node,
                self.impl_output.node,
            )
        found = classify(self.pool, left, right, self.mesh)
        code = {Kind.SCALED: "VC103", Kind.MISPLACED: "VC104", Kind.CLEAN: "VC104"}.get(found.kind, "VC107")
        blocked = self._blocked(self.implementation, self.impl_order) or self._blocked(self.spec, self.spec_order)
        if blocked is not None and code == "VC107":
            return blocked
        return self._mismatch(
            code,
            f"`{self.spec_output.name}`: {found.describe(self.spec_output.name, self.mesh)}",
            self.spec_output,
            self.impl_output.node,
            found,
            self.spec_output.name,
        )

    # -- relations of single nodes

    def _unrelated(self, node: torch.fx.Node) -> bool:
        view = self.spec.view(node)
        if view is None or node.op == "placeholder" or view.term is self.pool.unit:
            return False
        for candidate in self._by_term.get(view.term, ()):
            other = self.implementation.view(candidate)
            if other is not None and classify(self.pool, view, other, self.mesh).related:
                return False
        for candidate in self._partial_terms().get(view.term, ()):
            other = self.implementation.view(candidate)
            if other is not None and classify(self.pool, view, other, self.mesh).related:
                return False
        return True

    def _partial_terms(self) -> dict[Term, list[torch.fx.Node]]:
        """Terms that implementation values become when summed over all mesh axes that they use, and over each."""
        if self._partial is None:
            self._partial = {}
            for node in self.impl_order:
                view = self.implementation.view(node)
                if view is None or view.term in self._spec_by_term or self.mesh is None:
                    continue
                for term in self._sums(view):
                    self._partial.setdefault(term, []).append(node)
        return self._partial

    def _sums(self, view: View) -> Iterable[Term]:
        assert self.mesh is not None
        used = [a for a in range(len(self.mesh.axes)) if view.uses(a)]
        choices = [used, *([a] for a in used if len(used) > 1)]
        for axes in choices:
            if axes:
                try:
                    yield algebra.sum_over(self.pool, view, axes).term
                except ValueError:
                    continue

    def _spec_relation(self, view: View) -> tuple[torch.fx.Node, Found] | None:
        """A spec node to which an implementation value is related, and how."""
        terms = [view.term, *(self._sums(view) if self.mesh is not None else ())]
        for term in terms:
            for node in self._spec_by_term.get(term, ()):
                spec_view = self.spec.view(node)
                if spec_view is None:
                    continue
                found = classify(self.pool, spec_view, view, self.mesh)
                if found.related:
                    return node, found
        return None

    def _operands(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """Operands with a tensor value; for an element of a tuple, those of the operator that made the tuple."""
        return [i for i in producer(node).all_input_nodes if self.spec.view(i) is not None]

    def _value(self, lowering: Lowering, node: torch.fx.Node) -> View | None:
        view = lowering.view(node)
        if view is not None:
            return view
        value = lowering.values.get(node)
        if isinstance(value, tuple) and value and isinstance(value[0], View):
            return value[0]
        return None

    def counterpart(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """The implementation node that the same user line made, with the same operator, at the same turn."""
        key = _origin_key(node)
        same_spec = [n for n in self.spec_order if _origin_key(n) == key]
        same_impl = [n for n in self.impl_order if _origin_key(n) == key]
        if not same_impl:
            return None
        index = same_spec.index(node)
        return same_impl[min(index, len(same_impl) - 1)]

    def _origin(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """The first node that holds the value of ``node``."""
        view = self.implementation.view(node)
        if view is None:
            return None
        holders = self._by_term.get(view.term, [])
        return holders[0] if holders else None

    def _first_scaled(self, node: torch.fx.Node) -> torch.fx.Node | None:
        view = self.implementation.view(node)
        if view is None:
            return None
        for holder in self._by_term.get(view.term, ()):
            other = self.implementation.view(holder)
            if other is not None and other.coefficient == view.coefficient:
                return holder
        return None

    # -- blockers and messages

    def _blocked(self, lowering: Lowering, order: Sequence[torch.fx.Node]) -> Mismatch | None:
        for node in order:
            if node in lowering.blockers:
                blocker = lowering.blockers[node]
                on_spec = lowering is self.spec
                return self._from_blocker(blocker, node if on_spec else None, None if on_spec else node)
        return None

    def _from_blocker(
        self, blocker: Blocker, spec_node: torch.fx.Node | None, impl_node: torch.fx.Node | None
    ) -> Mismatch:
        return Mismatch(blocker.code, blocker.message, self.spec_output.name, spec_node, impl_node)

    def _axes(self, axes: Iterable[int]) -> str:
        return ", ".join(self.mesh.axes[a].name for a in axes) if self.mesh is not None else ""

    def _at(
        self,
        code: str,
        message: str,
        spec_node: torch.fx.Node,
        impl_node: torch.fx.Node,
        found: Found,
        origin: torch.fx.Node | None = None,
        origin_label: str = "",
        operand: torch.fx.Node | None = None,
    ) -> Mismatch:
        name = _name(spec_node if operand is None else operand)
        return Mismatch(
            code=code,
            message=message,
            output=self.spec_output.name,
            spec_node=spec_node,
            impl_node=impl_node,
            relation_found=found.describe(name, self.mesh),
            relation_expected=f"{name}, whole or sharded",
            impl_label=message,
            origin_node=origin if origin is not impl_node else None,
            origin_label=origin_label,
        )

    def _mismatch(
        self,
        code: str,
        message: str,
        output: ProgramOutput,
        impl_node: torch.fx.Node,
        found: Found,
        expected: str,
        origin: torch.fx.Node | None = None,
        origin_label: str = "",
    ) -> Mismatch:
        return Mismatch(
            code=code,
            message=message,
            output=output.name,
            spec_node=output.node,
            impl_node=impl_node,
            relation_found=found.describe(output.name, self.mesh),
            relation_expected=expected,
            impl_label=message,
            origin_node=origin if origin is not impl_node else None,
            origin_label=origin_label,
        )


def _ordered_ancestors(lowering: Lowering, nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    """Lowered nodes that ``nodes`` depend on, in graph order."""
    wanted: set[torch.fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in wanted:
            wanted.add(node)
            stack.extend(node.all_input_nodes)
    return [n for n in lowering.program.graph.graph.nodes if n in wanted and n in lowering.values]


def producer(node: torch.fx.Node) -> torch.fx.Node:
    """The operator that computed a value: for an element of a tuple, the operator that returned the tuple."""
    source = node.args[0] if node.target is python_operator.getitem else node
    return source if isinstance(source, torch.fx.Node) else node


def _origin_key(node: torch.fx.Node) -> tuple[object, ...]:
    location = location_of(node)
    place = None if location is None else (location.file, location.line)
    return str(node.target), place, bool(node.meta.get("autograd_backward"))


def _operator_name(node: torch.fx.Node) -> str:
    target = node.target
    return (
        f"`{target.__name__.split('.')[0]}`" if callable(target) and hasattr(target, "__name__") else f"`{node.name}`"
    )


def _name(node: torch.fx.Node) -> str:
    return node.name


def _show(placements: Sequence[object]) -> str:
    return "(" + ", ".join(str(p) for p in placements) + ")"
