"""What one rank runs of a program for all ranks: the rank's own numbers in the place of its coordinates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.capture.ranks.merged_collectives import UnmergeableError
from verifycompile.program import Program
from verifycompile.torch_interface.dynamo.graph_modules import module_of
from verifycompile.torch_interface.operators.evaluation import symbolic_expression


def at_rank(program: Program, place: Sequence[int]) -> Program:
    """``program`` as the rank with the coordinates ``place`` runs it.

    Raises ``UnmergeableError`` where a shape depends on the rank: only a capture tells what it is there.
    """
    graph = torch.fx.Graph()
    known = {symbol: place[axis] for symbol, axis in program.coordinates.items()}
    copies: dict[torch.fx.Node, Any] = {}
    for node in program.graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and any(_number(size, known) is not None for size in value.shape):
            raise UnmergeableError("a shape depends on the rank")
        number = _number(value, known)
        copies[node] = number
        if number is None:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), copies.__getitem__)
            copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
            copies[node].meta = dict(node.meta)
    return dataclasses.replace(
        program,
        graph=module_of(graph, program.graph),
        inputs=tuple(dataclasses.replace(item, node=copies[item.node]) for item in program.inputs),
        outputs=tuple(dataclasses.replace(item, node=copies[item.node]) for item in program.outputs),
        blockers=tuple(dataclasses.replace(item, node=None) for item in program.blockers),
        coordinates={},
        each_rank=None,
        doubt=None,
    )


def _number(value: object, known: Mapping[sympy.Symbol, int]) -> int | None:
    """What an expression of coordinates is on the rank; None for anything else."""
    expression = symbolic_expression(value)
    if expression is None or not expression.free_symbols or not expression.free_symbols <= set(known):
        return None
    found = expression.subs(list(known.items()))
    return int(found) if found.is_integer else None
