"""Small graphs with the metadata that a capture records, and their lowering."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from verifycompile.ir.term import TermPool
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Mesh, MeshAxis, Program


class GraphBuilder:
    """A graph whose nodes record what torch computes on the values of their operands."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()

    def input(self, name: str, value: Any) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def constant(self, name: str, value: torch.Tensor) -> torch.fx.Node:
        self.root.register_buffer(name, value)
        node = self.graph.get_attr(name)
        node.meta["val"] = value
        return node

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        values = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta["val"] = target(*values[0], **values[1])
        return node

    def item(self, node: torch.fx.Node, index: int) -> torch.fx.Node:
        return self.call(operator.getitem, node, index)

    def lower(
        self,
        *results: torch.fx.Node,
        pool: TermPool | None = None,
        side: str = "spec",
        mesh: tuple[int, ...] = (),
        **program: Any,
    ) -> Lowering:
        """Lower ``results``. Placeholders are leaves called by their names, equal on all ranks."""
        pool = TermPool() if pool is None else pool
        device_mesh = None
        if mesh:
            device_mesh = Mesh(
                tuple(MeshAxis(f"axis{k}", s) for k, s in enumerate(mesh)), tuple(range(torch.Size(mesh).numel()))
            )
        module = torch.fx.GraphModule(self.root, self.graph)
        module.graph = self.graph
        lowering = Lowering(Program(module, (), (), device_mesh, **program), pool, side)
        for node in self.graph.find_nodes(op="placeholder"):
            if isinstance(node.meta["val"], torch.Tensor):
                leaf = pool.leaf(node.name, tuple(node.meta["val"].shape))
                lowering.provide(
                    node, lowering.builder.expand(leaf, leaf.shape) if not mesh else _replicated(leaf, mesh)
                )
        lowering.lower(results)
        return lowering


def _replicated(view: Any, mesh: tuple[int, ...]) -> Any:
    from verifycompile.ir.relabel import insert_dim

    for size in reversed(mesh):
        view = insert_dim(view, 0, size)
    return view


def blockers(lowering: Lowering) -> list[tuple[str, str, str]]:
    """(node, code, message) of everything that could not be lowered."""
    return [(node.name, b.code, b.message) for node, b in lowering.blockers.items()]
