"""DTensor's sharding decisions while a graph is captured and compiled, each made once.

Run eagerly, torch remembers how it shards an operator on given layouts. While it traces it decides anew at every call:
where sizes are symbolic, that is most of what it costs torch to trace a parallel model. A frame is traced several
times, for its proof and by the backend that compiles it; all of them take the decisions that were made first.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._guards import TracingContext
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from verifycompile.torch_interface.ranks.mesh import real_object
from verifycompile.torch_interface.replaced import replaced

_Decisions = dict[Any, tuple[OutputSharding, tuple[Any, ...], object]]
"""Operator and arguments, in which meshes are numbers, with what was decided, for which objects as meshes, and when.

A trace knows where its own sizes come from, and not those of another one: what was decided in another trace is used
with the sizes of the question, or not at all.
"""

_OF_FRAMES: weakref.WeakKeyDictionary[TracingContext, _Decisions] = weakref.WeakKeyDictionary()
"""All traces of a frame have one environment of symbolic sizes, in which the guards of a decision are added once."""


@contextlib.contextmanager
def sharding_decided_once() -> Generator[None]:
    """While entered, an operator on the layouts and sizes of an earlier call has the decision made there.

    Earlier calls are those since this was entered, and those in other traces of the frame under compilation.
    """
    original = ShardingPropagator.propagate_op_sharding_non_cached
    context = TracingContext.try_get()
    decisions: _Decisions = {} if context is None else _OF_FRAMES.setdefault(context, {})
    here = object()

    def decide(self: ShardingPropagator, op_schema: OpSchema) -> OutputSharding:
        meshes: dict[int, Any] = {}
        key = (op_schema.op, _frozen(op_schema.args_schema, meshes), _frozen(op_schema.kwargs_schema, meshes))
        try:
            known = decisions.get(key)
        except TypeError:  # an argument cannot be compared
            return original(self, op_schema)
        if known is not None:
            found, earlier, where = known
            renewed = dict(zip(map(id, earlier), meshes.values(), strict=True))
            sizes = {} if where is here else {size.node.expr: size for size in _sizes(_leaves(op_schema))}
            if where is here or {size.node.expr for size in _sizes(_leaves(found))} <= sizes.keys():
                is_same = list(renewed) == list(meshes) and not sizes
                return found if is_same else _renewed(found, renewed, sizes)
        found = original(self, op_schema)
        decided = _leaves(found)
        # A size that depends on data is another one at each call.
        if _symbols(decided) <= _symbols(_leaves(op_schema)) and _meshes(decided) <= meshes.keys():
            decisions[key] = found, tuple(meshes.values()), here
        return found

    with replaced([(ShardingPropagator, "propagate_op_sharding_non_cached", decide)]):
        yield


@contextlib.contextmanager
def data_has_no_hash() -> Generator[None]:
    """While entered, a question that holds a number read from data is not hashable, which torch takes as uncached.

    torch caches sharding rules by a hash of the question, for which it asks what the number is.
    """
    original = OpSchema.__hash__

    def hash_of(self: OpSchema) -> int:
        try:
            return original(self)
        except GuardOnDataDependentSymNode as unknown:
            raise TypeError("unhashable: a number of this question is read from data") from unknown

    with replaced([(OpSchema, "__hash__", hash_of)]):
        yield


def _frozen(value: Any, meshes: dict[int, Any]) -> Any:
    """``value`` with its type, for ``1``, ``1.0`` and ``True`` are equal, and with symbolic sizes as expressions.

    Equal meshes are other inputs of each trace, and of one trace where they come from several parameters: ``meshes``
    numbers them.
    """
    if isinstance(value, DTensorSpec):
        placements = tuple((type(item), item) for item in value.placements)
        sharded = (value.shard_order, value.use_strided_shard_as_shard_order)
        meshes.setdefault(id(value.mesh), value.mesh)
        mesh = (list(meshes).index(id(value.mesh)), real_object(value.mesh))
        return (DTensorSpec, mesh, placements, sharded, _frozen(value.tensor_meta, meshes))
    if isinstance(value, tuple | list):
        return (type(value), *(_frozen(item, meshes) for item in value))
    if isinstance(value, dict):
        return (dict, *((name, _frozen(item, meshes)) for name, item in value.items()))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return (type(value), value.node.expr)
    return (type(value), value)


def _renewed(value: Any, meshes: Mapping[int, Any], sizes: Mapping[Any, torch.SymInt]) -> Any:
    """A decision, or a part of one, for other objects as meshes and sizes.

    ``meshes`` has them by the identity of those in it, ``sizes`` by the expression; what it lacks stays.
    """
    if id(value) in meshes:
        return meshes[id(value)]
    if isinstance(value, torch.SymInt):
        return sizes.get(value.node.expr, value)
    if isinstance(value, DTensorSpec | OutputSharding | OpSchema):
        renewed = copy.copy(value)
        for name, item in vars(value).items():
            setattr(renewed, name, _renewed(item, meshes, sizes))
        return renewed
    if isinstance(value, dict):
        return {name: _renewed(item, meshes, sizes) for name, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_renewed(item, meshes, sizes) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return TensorMeta(*items) if isinstance(value, TensorMeta) else type(value)(items)
    return value


def _leaves(value: OutputSharding | OpSchema) -> list[Any]:
    """All that a question, or the decision on it, speaks of."""
    if isinstance(value, OpSchema):
        parts = (value.args_schema, value.kwargs_schema)
        return pytree.tree_leaves(parts, is_leaf=lambda item: isinstance(item, DTensorSpec))
    schema = value.redistribute_schema
    outputs = pytree.tree_leaves(value.output_spec, is_leaf=lambda item: isinstance(item, DTensorSpec))
    return outputs if schema is None else [*outputs, *_leaves(schema)]


def _meshes(leaves: Iterable[Any]) -> set[int]:
    return {id(leaf.mesh) for leaf in leaves if isinstance(leaf, DTensorSpec)}


def _symbols(leaves: Iterable[Any]) -> set[Any]:
    return {symbol for size in _sizes(leaves) for symbol in size.node.expr.free_symbols}


def _sizes(leaves: Iterable[Any]) -> Iterator[torch.SymInt]:
    for leaf in leaves:
        meta = leaf.tensor_meta if isinstance(leaf, DTensorSpec) else None
        sizes = (*meta.shape, *meta.stride) if isinstance(meta, TensorMeta) else (leaf,)
        yield from (size for size in sizes if isinstance(size, torch.SymInt))
