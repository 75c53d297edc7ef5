"""Coalesced collectives, which take a list of tensors, as one collective a tensor."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import cast

import torch.fx

from verifycompile.torch_interface.ranks import functional_collectives, namespace

_functional = functional_collectives()
_SINGLE = {
    _functional.all_reduce_coalesced.default: _functional.all_reduce.default,
    _functional.all_gather_into_tensor_coalesced.default: _functional.all_gather_into_tensor.default,
    _functional.reduce_scatter_tensor_coalesced.default: _functional.reduce_scatter_tensor.default,
}
"""Coalesced collective -> the one that has the same arguments but for the first, which is a tensor."""


def split_coalesced(graph: torch.fx.GraphModule) -> None:
    """Rewrite every coalesced collective of ``graph`` in place, in the order of its tensors."""
    for node in list(graph.graph.nodes):
        if namespace(node) != "_c10d_functional" or node.target not in _SINGLE:
            continue
        if node.kwargs or any(user.target is not operator.getitem for user in node.users):
            continue
        tensors = cast("Sequence[torch.fx.Node]", node.args[0])
        singles: list[torch.fx.Node] = []
        with graph.graph.inserting_before(node):
            for tensor, value in zip(tensors, node.meta["val"], strict=True):
                single = graph.graph.call_function(_SINGLE[node.target], (tensor, *node.args[1:]))
                single.meta.update({**node.meta, "val": value})
                singles.append(single)
        for user in list(node.users):
            position = user.args[1]
            assert isinstance(position, int)
            user.replace_all_uses_with(singles[position])
            graph.graph.erase_node(user)
        graph.graph.erase_node(node)
    graph.recompile()
