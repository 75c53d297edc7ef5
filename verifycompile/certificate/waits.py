"""What a functional collective gives is under way until `wait_tensor`: nothing else reads it.

Calls of a certificate are in no order but that each is behind what it takes, so no other call may have waited before.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
import torch.fx

from verifycompile.certificate.storage import StorageError, StoredModule, outside_of
from verifycompile.program import Program

_WAIT = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001 - an operator
_SIZE = torch.ops.aten.sym_size.int


def require_waits(program: Program) -> None:
    """Raises StorageError where a call or an output reads what is under way."""
    under_way: set[torch.fx.Node] = set()
    for block in cast("StoredModule", program.graph).blocks:
        taken = dict(zip(outside_of(block.sources), block.operands, strict=True))
        within: set[torch.fx.Node] = set()
        for place, source in enumerate(block.sources):
            target: Any = source.call.target
            reads = any(operand in within or taken.get(operand) in under_way for operand in source.operands)
            passes_on = target is operator.getitem or getattr(target, "is_view", False)
            if reads and not passes_on and target not in (_WAIT, _SIZE):
                raise StorageError(f"`{source.call.name}` reads the result of a collective before `wait_tensor`")
            is_launch = getattr(target, "namespace", "") == "_c10d_functional" and target is not _WAIT
            if is_launch or (reads and passes_on):
                within.add(source.call)
                if place in block.made:
                    under_way.add(block.made[place])
    for output in program.outputs:
        if output.node in under_way:
            raise StorageError(f"`{output.name}` is the result of a collective before `wait_tensor`")
