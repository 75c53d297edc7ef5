"""Which nodes without a known value others are made of."""

from __future__ import annotations

from collections.abc import Iterable

import torch.fx

from verifycompile.ir.term import Term
from verifycompile.lowering.lower import Lowering
from verifycompile.rewrites.builder import UNKNOWN


def unknowns(lowering: Lowering, nodes: Iterable[torch.fx.Node]) -> set[str] | None:
    """Names of the nodes without a known value that the values of ``nodes`` are made of; None where not known.

    With those that such a node itself reads.
    """
    views = [lowering.view(node) for node in nodes]
    if any(view is None for view in views):
        return None
    blocked = {node.name: node for node in lowering.blockers}
    found: set[str] = set()
    seen: set[Term] = set()
    pending = [view.term for view in views if view is not None]
    while pending:
        term = pending.pop()
        if term in seen:
            continue
        seen.add(term)
        pending.extend(operand.term for operand in term.operands)
        if term.operation is UNKNOWN and term.attributes[0] == lowering.side:
            name = str(term.attributes[1])
            found.add(name)
            read = (lowering.view(operand) for operand in blocked[name].all_input_nodes if operand in lowering.values)
            pending.extend(view.term for view in read if view is not None)
    return found
