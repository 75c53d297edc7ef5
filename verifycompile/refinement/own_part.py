"""Operators that a rank applies to its own part of a dimension, where they need all of it.

Each operand is the spec's, in some placements; the operator reads a dimension as a whole (a norm, a softmax, a loss, a
cut into pieces, a look-up by index), and along it the ranks hold parts. What a user has to change depends on the kind
of the operator, so each kind has a code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Placement, Shard

from verifycompile.rewrites.operators.loss import SUM
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.ranks.rank_values import RANK_NAMESPACES, namespace
from verifycompile.torch_interface.source_lines.value_names import call_name, operator_of, value_name

MEAN_OF_OWN, STATISTICS, CLASSES, INDEX, PIECES = "VC113", "VC114", "VC115", "VC117", "VC118"

_LOSSES = frozenset({"nll_loss_forward", "nll_loss2d_forward"})
_CUTS = frozenset({"split", "split_with_sizes", "chunk", "unbind", "slice", "select"})
_LOOK_UPS = frozenset({"gather", "index_select", "embedding", "take_along_dim"})

Arguments = Mapping[int, Any]


def _at(position: int, default: Any = None) -> Callable[[Arguments, int], tuple[int, ...]]:
    """The dimensions that an argument names; all of them where it is not given."""

    def dims(arguments: Arguments, rank: int) -> tuple[int, ...]:
        found = arguments.get(position, default)
        listed = tuple(found) if isinstance(found, (list, tuple)) else (found,)
        whole = tuple(range(rank))
        return tuple(d % rank for d in listed if isinstance(d, int)) if found is not None and found != [] else whole

    return dims


def _last(arguments: Arguments, rank: int) -> tuple[int, ...]:
    """The dimensions of a normalized shape."""
    return tuple(range(rank - len(arguments[1]), rank))


def _all_but_channels(_: Arguments, rank: int) -> tuple[int, ...]:
    return tuple(dim for dim in range(rank) if dim != 1)


_WHOLE_DIMENSIONS: Mapping[str, Callable[[Arguments, int], tuple[int, ...]]] = {
    "_softmax": _at(1), "softmax": _at(1), "_log_softmax": _at(1), "log_softmax": _at(1), "logsumexp": _at(1),
    "mean": _at(1), "var": _at(1), "var_mean": _at(1), "std": _at(1), "std_mean": _at(1), "linalg_vector_norm": _at(2),
    "native_layer_norm": _last, "_fused_rms_norm": _last,
    "native_batch_norm": _all_but_channels, "_native_batch_norm_legit": _all_but_channels,
    "_native_batch_norm_legit_functional": _all_but_channels, "cudnn_batch_norm": _all_but_channels,
    "_batch_norm_with_update": _all_but_channels, "_batch_norm_with_update_functional": _all_but_channels,
    "native_group_norm": lambda _, rank: tuple(range(1, rank)),
    "cumsum": _at(1), "cumprod": _at(1), "topk": _at(2, -1), "sort": _at(1, -1), "argsort": _at(1, -1),
    "argmax": _at(1), "argmin": _at(1), "median": _at(1),
}  # fmt: skip
"""Operators, by name, with the dimensions of their first operand that they read as a whole."""

_REDUCTION = 3
"""The position of a loss's argument ``reduction``."""
_CUT_ALONG = {"split": 2, "split_with_sizes": 2, "chunk": 2, "unbind": 1, "slice": 1, "select": 1}
_LOOK_UP_ALONG = {"gather": 1, "index_select": 1, "take_along_dim": 2}


def dimensions_read_whole(node: torch.fx.Node) -> tuple[int, ...]:
    """The dimensions of its first operand that a call reads as a whole; () where it is none of those."""
    name, operands = operator_of(node), node.all_input_nodes
    value = operands[0].meta.get("val") if operands else None
    if node.op != "call_function" or name not in _WHOLE_DIMENSIONS or not isinstance(value, torch.Tensor):
        return ()
    return _WHOLE_DIMENSIONS[name](dict(enumerate(node.args)), value.dim())


Layouts = Sequence[Sequence[Placement] | None]


def fault_of_operator(
    node: torch.fx.Node,
    layouts: Layouts,
    axes: Sequence[str],
    ignored: object | None,
    inputs: Mapping[torch.fx.Node, str] | None = None,
) -> tuple[str, str] | None:
    """Code and message for ``node`` of the implementation; None where it reads no dimension that is sharded.

    ``layouts``: the placements of its tensor operands, None where they are not known. ``ignored``: the class that a
    mean leaves out of its count. ``inputs``: what the program's placeholders are called.
    """
    operands = node.all_input_nodes
    if not operands or not layouts or layouts[0] is None:
        return None
    name, first, own = operator_of(node), operands[0], call_name(node)
    sharded = _sharded(layouts[0], axes)
    rank = first.meta["val"].dim() if isinstance(first.meta.get("val"), torch.Tensor) else 0
    if not sharded or not rank:
        return None
    arguments: Arguments = dict(enumerate(node.args))
    value = f"`{value_name(first, inputs)}`"
    if name in _LOSSES:
        found = _loss(own, value, sharded, rank, ignored)
        return None if found[0] == MEAN_OF_OWN and arguments.get(_REDUCTION) == SUM else found
    if name in _LOOK_UPS:
        dims = _at(_LOOK_UP_ALONG[name])(arguments, rank) if name in _LOOK_UP_ALONG else (0,)
        dim, over = next(((dim, sharded[dim]) for dim in dims if dim in sharded), (None, ""))
        text = f"{own} picks along dimension {dim} of {value}, of which each rank of {over} holds a part"
        return None if dim is None else (INDEX, f"{text}: an index counts from the beginning of the rank's own")
    if name in _CUTS:
        (dim,) = _at(_CUT_ALONG[name], 0)(arguments, rank)
        text = f"{own} cuts dimension {dim} of {value}, of which each rank of {sharded.get(dim, '')} holds a part"
        # Whole numbers are labels, indices or positions, which are no parts of a fused parameter.
        code = PIECES if first.meta["val"].is_floating_point() else INDEX
        return (code, f"{text}: the rank's pieces are not parts of the whole's pieces") if dim in sharded else None
    if name not in _WHOLE_DIMENSIONS:
        return None
    dims = _WHOLE_DIMENSIONS[name](arguments, rank)
    if name == "mean" and (len(dims) == rank or _is_reduced(node)):
        return None  # The mean of equal shares is that of the ranks' means: what is wrong is how they are used.
    dim, over = next(((dim, sharded[dim]) for dim in dims if dim in sharded), (None, ""))
    if dim is None:
        return None
    text = f"{own} runs over dimension {dim} of {value}, of which each rank of {over} holds a part"
    code = CLASSES if any(operator_of(user) in _LOSSES for user in node.users) else STATISTICS
    return code, f"{text}: each rank has the result of its own part"


def _loss(own: str, value: str, sharded: Mapping[int, str], rank: int, ignored: object | None) -> tuple[str, str]:
    classes = 1 if rank > 1 else 0
    if classes in sharded:
        text = f"{own} picks each row's class along dimension {classes} of {value}"
        return CLASSES, f"{text}, of which each rank of {sharded[classes]} holds a part"
    text = f"{own} is the mean over a rank's own targets other than {ignored}"
    return MEAN_OF_OWN, f"{text}; ranks may have different numbers of them. Divide the sum by the number on all ranks"


def _is_reduced(node: torch.fx.Node) -> bool:
    """Whether a collective takes the value, as it is or in another shape."""
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if namespace(user) in RANK_NAMESPACES:
            return True
        if is_view(user.target) or operator_of(user) in ("clone", "contiguous"):
            pending.extend(user.users)
    return False


def _sharded(layout: Sequence[Placement], axes: Sequence[str]) -> dict[int, str]:
    """The dimensions along which ranks hold parts, with the names of their mesh axes."""
    found: dict[int, list[str]] = {}
    for placement, name in zip(layout, axes, strict=True):
        if isinstance(placement, Shard):
            found.setdefault(placement.dim, []).append(f"`{name}`")
    return {dim: " and ".join(names) for dim, names in found.items()}
