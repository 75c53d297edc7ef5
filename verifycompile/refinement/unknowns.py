"""Which nodes without a known value others are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch.fx

from verifycompile.ir.term import Term, terms_of
from verifycompile.lowering.lower import Lowering
from verifycompile.rewrites.operations import UNKNOWN
from verifycompile.walks import reached


def unknowns(lowering: Lowering, nodes: Iterable[torch.fx.Node]) -> set[str] | None:
    """Names of the nodes without a known value that the values of ``nodes`` are made of; None where not known.

    With those that such a node itself reads.
    """
    views = [lowering.view(node) for node in nodes]
    if any(view is None for view in views):
        return None
    blocked = {node.name: node for node in lowering.blockers}

    def is_own(term: Term) -> bool:
        return term.operation is UNKNOWN and term.attributes[0] == lowering.side

    def read(term: Term) -> Iterator[Term]:
        yield from terms_of(term)
        if is_own(term):
            taken = (n for n in blocked[str(term.attributes[1])].all_input_nodes if n in lowering.values)
            yield from (view.term for view in map(lowering.view, taken) if view is not None)

    terms = reached((view.term for view in views if view is not None), read)
    return {str(term.attributes[1]) for term in terms if is_own(term)}
