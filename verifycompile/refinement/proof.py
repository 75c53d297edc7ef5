"""Proof steps: for every spec node the implementation nodes that hold its term, and the lemmas used."""

from __future__ import annotations

import dataclasses

import torch.fx

from verifycompile.ir.term import Term, View
from verifycompile.lowering.lower import Lowering
from verifycompile.refinement.result import NodeCounts
from verifycompile.rewrites.values import Pieces


@dataclasses.dataclass(frozen=True)
class LemmaUse:
    """One application of a lemma: its name and the term that it rewrote."""

    lemma: str
    term: str


@dataclasses.dataclass(frozen=True)
class ProofStep:
    """``spec_node`` equals ``coefficient * term`` at ``axes``; ``impl_nodes`` hold the same term."""

    spec_node: str
    term: int
    operation: str
    coefficient: str
    axes: tuple[tuple[tuple[int, str, str], ...], ...]
    impl_nodes: tuple[str, ...]
    lemmas: tuple[LemmaUse, ...]


def collect_steps(spec: Lowering, implementation: Lowering) -> tuple[ProofStep, ...]:
    """One step per spec node whose value is a single tensor, in topological order."""
    holders: dict[Term, list[torch.fx.Node]] = {}
    for node, value in implementation.values.items():
        if isinstance(value, View):
            holders.setdefault(value.term, []).append(node)
    steps: list[ProofStep] = []
    for node, value in spec.values.items():
        if not isinstance(value, View):
            continue
        related = holders.get(value.term, [])
        uses = [*spec.lemmas.get(node, ()), *(u for n in related for u in implementation.lemmas.get(n, ()))]
        steps.append(
            ProofStep(
                node.name,
                value.term.id,
                value.term.operation.name,
                str(value.coefficient),
                tuple(tuple((d, str(divisor), str(size)) for d, divisor, size in axis) for axis in value.axes),
                tuple(n.name for n in related),
                tuple(LemmaUse(name, term) for name, term in dict.fromkeys(uses)),
            )
        )
    return tuple(steps)


def count_nodes(spec: Lowering, implementation: Lowering, equalities: int) -> NodeCounts:
    """How many spec nodes found their term among the implementation's. ``equalities``: those of the e-graph."""
    terms = {v.term for v in implementation.values.values() if isinstance(v, View)}
    terms |= {v.view.term for v in implementation.values.values() if isinstance(v, Pieces)}
    values = [v for v in spec.values.values() if isinstance(v, View)]
    found = sum(v.term in terms for v in values)
    solved = sum(any(u[0] == "merge-shifted-one-hot" for u in uses) for uses in implementation.lemmas.values())
    solved = min(found, solved)
    searched = min(found - solved, equalities)
    return NodeCounts(
        normal_form=found - solved - searched, egraph=searched, solver=solved, unrelated=len(values) - found
    )
