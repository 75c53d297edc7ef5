"""Relations of single nodes: which spec values the implementation holds, whole or as partial sums, and where."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator as python_operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch.fx

from verifycompile.ir import algebra
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Mesh, ProgramOutput
from verifycompile.refinement.classify import Found, Kind, classify
from verifycompile.refinement.unknowns import unknowns
from verifycompile.torch_interface.source_lines.source import location_of
from verifycompile.walks import reached


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What failed: the pool and both lowered programs, and the outputs without a relation.

    ``means``: mesh axes over whose ranks a forward output is a mean.
    """

    pool: TermPool
    spec: Lowering
    implementation: Lowering
    failed: Sequence[tuple[ProgramOutput, ProgramOutput]]
    means: frozenset[int] = frozenset()


class NodeRelations:
    """Looks up relations between the nodes on which the failed outputs depend."""

    def __init__(self, case: Diagnosis) -> None:
        self.pool = case.pool
        self.spec, self.implementation = case.spec, case.implementation
        self.failed, self._means = case.failed, case.means
        self.mesh: Mesh | None = case.implementation.program.mesh
        self.spec_order = ordered_ancestors(self.spec, [o.node for o, _ in case.failed])
        self.impl_order = ordered_ancestors(self.implementation, [o.node for _, o in case.failed])
        self.impl_by_term = _by_term(self.implementation, self.impl_order)
        self.spec_by_term = _by_term(self.spec, self.spec_order)

    # -- relations

    def classify(self, spec_node: torch.fx.Node, impl_node: torch.fx.Node) -> Found | None:
        """How the value of one node stands to that of another; None where one has none."""
        left, right = first_value(self.spec, spec_node), first_value(self.implementation, impl_node)
        if left is None or right is None:
            return None
        return classify(self.pool, left, right, self.mesh)

    def is_unrelated(self, node: torch.fx.Node) -> bool:
        """Whether no implementation value is this spec value, whole or as a partial sum."""
        view = self.spec.view(node)
        if view is None or node.op == "placeholder" or view.term is self.pool.unit or self.spec.has_read_rows(node):
            return False
        candidates = (*self.impl_by_term.get(view.term, ()), *self._partial_holders.get(view.term, ()))
        if node in self.spec.blockers and self._spec_unknowns is not None and node.name not in self._spec_unknowns:
            return False  # memory that is overwritten before it is read
        for candidate in candidates:
            other = self.implementation.view(candidate)
            found = None if other is None else classify(self.pool, view, other, self.mesh)
            if found is not None and (found.related or self._becomes_mean(found)):
                return False
        return True

    def _becomes_mean(self, found: Found) -> bool:
        """Whether a value has the scale that makes it right where the mean over ranks is taken outside."""
        return found.kind in (Kind.SCALED, Kind.PARTIAL) and found.factor in self._mean_scales

    @functools.cached_property
    def _mean_scales(self) -> frozenset[int]:
        """Numbers of ranks over which means are taken, unless a failed output has that scale itself."""
        if self.mesh is None:
            return frozenset()
        sizes = [self.mesh.axes[axis].size for axis in sorted(self._means)]
        products = {math.prod(some) for n in range(1, len(sizes) + 1) for some in itertools.combinations(sizes, n)}
        for spec_output, impl_output in self.failed:
            left, right = self.spec.view(spec_output.node), self.implementation.view(impl_output.node)
            found = None if left is None or right is None else classify(self.pool, left, right, self.mesh)
            if found is not None and found.kind is Kind.SCALED:
                products.discard(found.factor)
        return frozenset(products)

    def of_implementation(self, view: View) -> tuple[torch.fx.Node, Found] | None:
        """A spec node to which an implementation value is related, and how."""
        for term in (view.term, *self._summed_terms(view)):
            for node in self.spec_by_term.get(term, ()):
                spec_view = self.spec.view(node)
                if spec_view is None:
                    continue
                found = classify(self.pool, spec_view, view, self.mesh)
                if found.related:
                    return node, found
        return None

    @functools.cached_property
    def _spec_unknowns(self) -> set[str] | None:
        return unknowns(self.spec, [output.node for output, _ in self.failed])

    @functools.cached_property
    def _partial_holders(self) -> dict[Term, list[torch.fx.Node]]:
        """Terms that implementation values become when summed over the mesh axes that they use."""
        holders: dict[Term, list[torch.fx.Node]] = {}
        for node in self.impl_order:
            view = self.implementation.view(node)
            if view is None or view.term in self.spec_by_term:
                continue
            for term in self._summed_terms(view):
                holders.setdefault(term, []).append(node)
        return holders

    def _summed_terms(self, view: View) -> Iterator[Term]:
        """The term summed over all mesh axes that it uses, and over each alone."""
        if self.mesh is None:
            return
        used = [a for a in range(len(self.mesh.axes)) if view.uses(a)]
        for axes in (used, *([a] for a in used if len(used) > 1)):
            if not axes:
                continue
            try:
                yield algebra.sum_over(self.pool, view, axes).term
            except (ValueError, RecursionError):  # finders whose steps undo each other never end
                continue

    # -- the way from a failed output to its cause

    def unrelated_chain(self) -> list[torch.fx.Node]:
        """Spec nodes without a relation that are reached from a failed output through such nodes, operands first."""
        unrelated = {n for n in self.spec_order if self.is_unrelated(n)}
        reached: set[torch.fx.Node] = set()
        stack = [o.node for o, _ in self.failed if o.node in unrelated]
        while stack:
            node = stack.pop()
            if node not in reached:
                reached.add(node)
                stack.extend(i for i in self._operands(node) if i in unrelated)
        return [n for n in self.spec_order if n in reached]

    def roots(self) -> list[torch.fx.Node]:
        """The nodes of the unrelated chain whose operands all have a relation.

        Those that are computed of nothing come last: the numbers of a rank's own rows rightly have no relation.
        """
        chain = self.unrelated_chain()
        members = set(chain)
        roots = [n for n in chain if not any(i in members for i in self._operands(n))]
        return sorted(roots, key=lambda n: not self._operands(n))

    def unmatched(self) -> list[torch.fx.Node]:
        """Implementation nodes whose terms no spec node has, one per term."""
        return [
            nodes[0] for term, nodes in self.impl_by_term.items() if term not in self.spec_by_term and term.operands
        ]

    def counterpart(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """The implementation node that the same user line made, with the same operator, at the same turn."""
        key = _origin_key(node)
        same_impl = self._impl_by_origin.get(key)
        if not same_impl:
            return None
        index = self._spec_by_origin[key].index(node)
        return same_impl[min(index, len(same_impl) - 1)]

    def turns(self, node: torch.fx.Node, other: torch.fx.Node) -> tuple[int, int] | None:
        """The turns in which one line of the spec, a loop's, made both values; None where two lines did."""
        key, place = _origin_key(node), location_of(node)
        if node is other or place is None or place != location_of(other) or key != _origin_key(other):
            return None
        made = self._spec_by_origin[key]
        return made.index(node), made.index(other)

    def is_repeated(self, node: torch.fx.Node) -> bool:
        """Whether the line that made ``node`` ran more often in the implementation than in the spec."""
        key = _origin_key(node)
        return len(self._impl_by_origin.get(key, ())) > len(self._spec_by_origin.get(key, ()))

    @functools.cached_property
    def _impl_by_origin(self) -> dict[tuple[object, ...], list[torch.fx.Node]]:
        return _by_origin(self.impl_order)

    @functools.cached_property
    def _spec_by_origin(self) -> dict[tuple[object, ...], list[torch.fx.Node]]:
        return _by_origin(self.spec_order)

    def first_holder(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """The first implementation node that holds the value of ``node``, up to its coefficient."""
        view = self.implementation.view(node)
        holders = [] if view is None else self.impl_by_term.get(view.term, [])
        return holders[0] if holders else None

    def first_partial(self, node: torch.fx.Node, axes: tuple[int, ...]) -> torch.fx.Node | None:
        """The earliest implementation node from which on the value of ``node`` is a partial sum over ``axes``."""
        found = self.first_holder(node)
        pending = [] if found is None else self._computed_of(found)
        while pending:
            view = self.implementation.view(operand := pending.pop())
            related = None if view is None else self.of_implementation(view)
            if related is not None and related[1].kind is Kind.PARTIAL and related[1].axes == axes:
                found = self.first_holder(operand)
                pending = [] if found is None else self._computed_of(found)
        return found

    def _computed_of(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        return [operand for operand in producer(node).all_input_nodes if operand.op == "call_function"]

    def first_scaled(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """The first implementation node that holds the value of ``node`` with its coefficient."""
        view = self.implementation.view(node)
        for holder in () if view is None else self.impl_by_term.get(view.term, ()):
            other = self.implementation.view(holder)
            if other is not None and view is not None and other.coefficient == view.coefficient:
                return holder
        return None

    def _operands(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """Operands with a tensor value; for an element of a tuple, those of the operator that made the tuple.

        For rows in an order that is read from data, which are not compared, the operands that they were made of.
        """
        found: dict[torch.fx.Node, None] = {}
        pending = [producer(node)]
        while pending:
            for operand in pending.pop().all_input_nodes:
                if self.spec.has_read_rows(operand):
                    pending.append(producer(operand))
                elif self.spec.view(operand) is not None:
                    found[operand] = None
        return list(found)


def first_value(lowering: Lowering, node: torch.fx.Node) -> View | None:
    """The value of a node; for an operator with several results, the first."""
    view = lowering.view(node)
    value: Any = lowering.values.get(node)
    if view is None and isinstance(value, tuple) and value and isinstance(value[0], View):
        return value[0]
    return view


def _by_term(lowering: Lowering, nodes: Sequence[torch.fx.Node]) -> dict[Term, list[torch.fx.Node]]:
    holders: dict[Term, list[torch.fx.Node]] = {}
    for node in nodes:
        view = lowering.view(node)
        if view is not None:
            holders.setdefault(view.term, []).append(node)
    return holders


def _by_origin(nodes: Sequence[torch.fx.Node]) -> dict[tuple[object, ...], list[torch.fx.Node]]:
    found: dict[tuple[object, ...], list[torch.fx.Node]] = {}
    for node in nodes:
        found.setdefault(_origin_key(node), []).append(node)
    return found


def ordered_ancestors(lowering: Lowering, nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    """Lowered nodes that ``nodes`` depend on, in graph order."""
    wanted = reached(nodes, lambda node: node.all_input_nodes)
    return [n for n in lowering.program.graph.graph.nodes if n in wanted and n in lowering.values]


def producer(node: torch.fx.Node) -> torch.fx.Node:
    """The operator that computed a value: for an element of a tuple, the operator that returned the tuple."""
    source = node.args[0] if node.target is python_operator.getitem else node
    return source if isinstance(source, torch.fx.Node) else node


def _origin_key(node: torch.fx.Node) -> tuple[object, ...]:
    location = location_of(node)
    place = None if location is None else (location.file, location.line)
    return str(node.target), place, bool(node.meta.get("autograd_backward"))
