"""Proof steps: for every spec node the implementation nodes that hold its term, and the lemmas used."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping

import torch.fx

from verifycompile.ir.term import Term, View
from verifycompile.lowering.lower import Lowering
from verifycompile.refinement.result import Means, NodeCounts
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


def count_nodes(
    spec: Lowering, implementation: Lowering, proved: Mapping[Means, Collection[str]] | None = None
) -> NodeCounts:
    """Which means gave the spec nodes their terms among the implementation's.

    ``proved``: names of the spec nodes whose equality with an implementation node was proved, by the means.
    """
    terms = {v.term for v in implementation.values.values() if isinstance(v, View)}
    terms |= {v.view.term for v in implementation.values.values() if isinstance(v, Pieces)}
    answered = (implementation.values.get(node) for node in implementation.solved)
    solved = {value.term for value in answered if isinstance(value, View)}
    counts: collections.Counter[str] = collections.Counter()
    for node, value in spec.values.items():
        if not isinstance(value, View):
            continue
        means = next((means for means, names in (proved or {}).items() if node.name in names), None)
        if value.term not in terms:
            counts["unrelated"] += 1
        elif means is not None:
            counts[means] += 1
        else:
            counts["solver" if node in spec.solved or value.term in solved else "normal_form"] += 1
    return NodeCounts(**counts)
