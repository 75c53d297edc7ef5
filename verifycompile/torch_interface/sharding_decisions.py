"""DTensor's sharding decisions at capture, each made once.

Run eagerly, torch remembers how it shards an operator on given layouts. While it traces it decides anew at every call:
for a model of equal layers whose sizes are symbolic, that was a fifth of what a check of its graph costs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils import _pytree as pytree


@contextlib.contextmanager
def sharding_decided_once() -> Generator[dict[Any, OutputSharding]]:
    """While entered, an operator on the layouts and sizes of an earlier call has the decision made there; yields them.

    Enter it around traces that share one environment of symbolic sizes: the guards of a decision are added once.
    """
    original = ShardingPropagator.propagate_op_sharding_non_cached
    decisions: dict[Any, OutputSharding] = {}
    asked: list[OpSchema] = []  # keeps the meshes, which are told apart by their addresses

    def decide(self: ShardingPropagator, op_schema: OpSchema) -> OutputSharding:
        key = _key(op_schema)
        if key is None:
            return original(self, op_schema)
        found = decisions.get(key)
        if found is None:
            found = original(self, op_schema)
            # A size that depends on data is another one at each call.
            if _symbols(found.output_spec) <= _symbols((op_schema.args_schema, op_schema.kwargs_schema)):
                decisions[key] = found
                asked.append(op_schema)
        return found

    ShardingPropagator.propagate_op_sharding_non_cached = decide  # type: ignore[method-assign]
    try:
        yield decisions
    finally:
        ShardingPropagator.propagate_op_sharding_non_cached = original  # type: ignore[method-assign]


def _key(op_schema: OpSchema) -> Any:
    """What a decision depends on; None where an argument cannot be compared."""
    key = (op_schema.op, _frozen(op_schema.args_schema), _frozen(op_schema.kwargs_schema))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: Any) -> Any:
    """``value`` with its type, for ``1``, ``1.0`` and ``True`` are equal, and with symbolic sizes as expressions."""
    if isinstance(value, DTensorSpec):
        placements = tuple((type(item), item) for item in value.placements)
        sharded = (value.shard_order, value.use_strided_shard_as_shard_order)
        # The mesh of another trace is equal, and not the input of this one.
        return (DTensorSpec, id(value.mesh), placements, sharded, _frozen(value.tensor_meta))
    if isinstance(value, tuple | list):
        return (type(value), *map(_frozen, value))
    if isinstance(value, dict):
        return (dict, *((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return (type(value), value.node.expr)
    return (type(value), value)


def _symbols(value: Any) -> set[Any]:
    leaves = pytree.tree_leaves(value, is_leaf=lambda item: isinstance(item, DTensorSpec))
    found: set[Any] = set()
    for leaf in leaves:
        meta = leaf.tensor_meta if isinstance(leaf, DTensorSpec) else None
        sizes = (*meta.shape, *meta.stride) if isinstance(meta, TensorMeta) else (leaf,)
        found.update(*(size.node.expr.free_symbols for size in sizes if isinstance(size, torch.SymInt)))
    return found
