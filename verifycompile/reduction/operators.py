"""What the operators of a graph require of the sizes in it.

Sizes that are equal at a node stay equal there. Most operators require nothing but that; those that multiply, add or
cut sizes are listed here. What is not understood is pinned: its sizes stay as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx

from verifycompile.program import Program
from verifycompile.reduction.constraints import NEAR, Constraints, keeps_proportion
from verifycompile.reduction.indexed import indexed, ranges_in
from verifycompile.reduction.recorded import dimensions_of, named_arguments
from verifycompile.torch_interface.operators.evaluation import operator_name

_MOST_RANKS = 64


def collect(program: Program, into: Constraints) -> None:
    """Adds what one program's operators require."""
    for node in program.graph.graph.nodes:
        into.node = node
        if node.op == "get_attr":
            into.pin_node(node, f"the graph holds the values of `{node.name}`")
        elif node.op == "call_function":
            _collect_call(node, into)


def _collect_call(node: torch.fx.Node, into: Constraints) -> None:
    name = operator_name(node.target)
    if name is None:
        return
    for size, index in indexed(node):
        for numbers in () if index is None else ranges_in(index):
            into.covers(size, numbers)
    rule = _pin if "fft" in name else _RULES.get(name.split(".")[1])
    if rule is not None:
        rule(node, named_arguments(node), into)
        return
    _only_equalities(node, into)


def _only_equalities(node: torch.fx.Node, into: Constraints) -> None:
    """An operator without a rule: each size that it gives is one that it is given, or an argument."""
    made = into.dimensions.made(node)
    if not made:
        return
    arguments = named_arguments(node)
    sizes = {size for name in SIZES & arguments.keys() for size in _numbers(arguments[name])}
    counts = {count for name, value in arguments.items() if name not in SIZES for count in _numbers(value)}
    new = set(made) - sizes
    into.pin(new & counts, f"`{operator_name(node.target)}` gives so many")
    if new - counts and node.all_input_nodes:
        into.pin_node(node, f"how `{operator_name(node.target)}` comes to its sizes is not known")


def _numbers(value: Any) -> list[int]:
    values: Sequence[Any] = value if isinstance(value, (list, tuple)) else (value,)
    return [number for number in values if type(number) is int]


def _range(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    """A range has as many elements as are asked for, wherever it starts; one that takes steps is left alone."""
    if arguments.get("step", 1) != 1 or not all(type(arguments.get(key, 0)) is int for key in ("start", "end")):
        into.pin_node(node, f"`{node.name}` takes steps")


def _pin(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    del arguments
    into.pin_node(node, f"`{operator_name(node.target)}` does arithmetic with positions")


def _operand(arguments: Mapping[str, Any], *names: str) -> tuple[int | None, ...]:
    for name in names:
        node = arguments.get(name)
        if isinstance(node, torch.fx.Node) and dimensions_of(node):
            return dimensions_of(node)[0]
    return ()


def _view(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    if isinstance(arguments.get("dtype"), torch.dtype):
        return _pin(node, arguments, into)
    before, after = _operand(arguments, "self"), dimensions_of(node)[0]
    if before.count(None) != after.count(None):
        return into.pin_node(node, f"`{node.name}` mixes numbers with a size that is read from data")
    return into.product(before, after)


def _cat(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    result = dimensions_of(node)[0]
    dim = arguments.get("dim", 0) % max(len(result), 1)
    operands = [dimensions_of(item)[0] for item in arguments["tensors"] if isinstance(item, torch.fx.Node)]
    parts = [shape[dim] for shape in operands if len(shape) == len(result)]
    if len(parts) != len(operands) or len(operands) != len(arguments["tensors"]):
        return into.pin_node(node, f"`{node.name}` joins tensors of different dimensions")
    _join(parts, result[dim], into, node)
    return None


def _join(parts: Sequence[int | None], whole: int | None, into: Constraints, node: torch.fx.Node) -> None:
    known = [part for part in parts if part is not None]
    if whole is None or len(known) != len(parts):
        into.pin([*known, *([] if whole is None else [whole])], f"`{node.name}` joins sizes that are read from data")
        return
    into.parts(known, whole)


def _stack(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    into.pin([len(arguments["tensors"])], f"`{node.name}` takes so many tensors")


def _unbind(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    del arguments
    into.pin([len(dimensions_of(node))], f"`{node.name}` gives so many tensors")


def _slice(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    """A slice, what is written over one, or the gradient of one, which gives the whole."""
    result = dimensions_of(node)[0]
    whole, part = _operand(arguments, "self") or result, _operand(arguments, "src", "grad_output") or result
    dim = arguments.get("dim", 0) % len(whole)
    size, length = whole[dim], part[dim]
    start, end = arguments.get("start"), arguments.get("end")
    if size is None or length is None:
        into.pin([s for s in (size, length) if s is not None], f"`{node.name}` cuts at a number that is read from data")
    elif arguments.get("step", 1) != 1 and _every(size, length, arguments):
        into.product((length,), (size,), arguments["step"])
    elif arguments.get("step", 1) != 1:
        into.pin([size, length], f"`{node.name}` takes every so many elements")
    elif isinstance(start, (torch.fx.Node, torch.SymInt)) or isinstance(end, (torch.fx.Node, torch.SymInt)):
        # The rank says where: whatever it is, the part is the same share of the whole.
        into.proportion(length, size)
    elif length != size and length > 0:
        first = 0 if start is None else max(start + size, 0) if start < 0 else start
        into.extent(size, first, first + length, length)
    elif length == 0:
        into.pin([size], f"`{node.name}` is empty")


def _every(size: int, length: int, arguments: Mapping[str, Any]) -> bool:
    """Whether a cut takes every so many elements of a whole dimension."""
    start, end, step = arguments.get("start") or 0, arguments.get("end"), arguments["step"]
    whole = end is None or (isinstance(end, int) and end >= size)
    return isinstance(start, int) and 0 <= start < step and whole and length * step == size


def _select(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    whole = dimensions_of(node)[0] if "input_sizes" in arguments else _operand(arguments, "self")
    size, index = whole[arguments.get("dim", 0) % len(whole)], arguments.get("index")
    if size is None:
        return
    if not isinstance(index, int):
        into.pin([size], f"`{node.name}` selects at a number that is no constant")
    elif index not in (0, -1, size - 1):
        into.extent(size, index % size, index % size + 1, 1)


def _split(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    whole = _operand(arguments, "self")
    dim = arguments.get("dim", 0) % len(whole)
    parts = [shape[dim] for shape in dimensions_of(node)]
    _join(parts, whole[dim], into, node)
    known = [part for part in parts if part is not None]
    if isinstance(arguments.get("split_size"), int):
        into.note(arguments["split_size"])
        if len(set(known)) > 1 and not keeps_proportion(known, sum(known)):
            into.pin_node(node, f"`{node.name}` has a last part of another size")
    if len(known) == 1 and arguments.get("split_size") != whole[dim]:
        into.pin_node(node, f"`{node.name}` gives one part")


def _repeat(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    before, after, repeats = _operand(arguments, "self"), dimensions_of(node)[0], arguments["repeats"]
    padded = (1,) * (len(after) - len(before)) + before
    for size, count, result in zip(padded, repeats, after, strict=True):
        if size is None or result is None or not isinstance(count, int):
            into.pin([s for s in (size, result) if s is not None], f"`{node.name}` repeats as often as data say")
        elif size == 1:
            into.note(count)
        elif count != 1:
            into.product((size,), (result,), count)


def _pad(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    before, after = _operand(arguments, "self"), dimensions_of(node)[0]
    if any(not isinstance(size, int) or size < 0 for size in arguments["pad"]) or None in (*before, *after):
        return into.pin_node(node, f"`{node.name}` crops, or pads by what data say")
    for position, (size, result) in enumerate(zip(reversed(before), reversed(after), strict=True)):
        pads = [count for count in arguments["pad"][2 * position : 2 * position + 2] if count]
        if pads and size is not None and result is not None:
            into.parts([size, *pads], result)
    return None


def _takes_largest(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    count = arguments.get("k")
    whole = _operand(arguments, "self")
    size = whole[arguments.get("dim", -1) % len(whole)] if whole else None
    if not isinstance(count, int) or size is None:
        return into.pin_node(node, f"`{node.name}` takes as many as data say")
    into.pin([count], f"`{node.name}` takes so many")
    if count > NEAR:
        return into.pin([size], f"`{node.name}` takes a part of it")
    return into.at_least(size, min(size, count + 1))


def _diagonal(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    diagonal = arguments.get("diagonal", 0)
    if not isinstance(diagonal, int) or abs(diagonal) > 1:
        into.pin_node(node, f"`{node.name}` has its diagonal elsewhere")


def _roll(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    if any(not isinstance(shift, int) or abs(shift) > 1 for shift in arguments["shifts"]):
        into.pin_node(node, f"`{node.name}` shifts by more than one")


def _convolution(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    """Samples and channels of images may shrink; what a kernel moves along does not."""
    shapes = [shape for item in (node, *node.all_input_nodes) for shape in dimensions_of(item)]
    reason = f"`{operator_name(node.target)}` moves a kernel along it"
    grouped = arguments.get("groups", 1) != 1
    for shape in shapes:
        into.pin([size for size in shape[0 if grouped else 2 :] if size is not None], reason)


def _gather(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints, *, scatters: bool = False) -> None:
    before, after = _operand(arguments, "input", "self"), dimensions_of(node)[0]
    ranks = arguments.get("group_size")
    if ranks is None or not before:
        return into.pin_node(node, f"`{operator_name(node.target)}` of several tensors")
    return into.product(*((after, before) if scatters else (before, after)), int(ranks))


def _exchange(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    before, after = _operand(arguments, "input"), dimensions_of(node)[0]
    for name, shape in (("input_split_sizes", before), ("output_split_sizes", after)):
        sizes = arguments.get(name) or ()
        if sizes and shape[0] is not None and all(isinstance(size, int) for size in sizes):
            into.parts(list(sizes), shape[0])
        elif not sizes and shape[0] is not None and shape[0] > 1:
            ranks = arguments.get("group_size")
            into.multiple(shape[0], ranks if isinstance(ranks, int) else _divisor(shape[0]))


def _divisor(size: int) -> int:
    """A number of ranks that is not recorded, but divides the size: all of its powers of two, up to a node's."""
    return math.gcd(size, _MOST_RANKS)


def _exchange_dimension(node: torch.fx.Node, arguments: Mapping[str, Any], into: Constraints) -> None:
    before, after = _operand(arguments, "input", "self"), dimensions_of(node)[0]
    for size, result in zip(before, after, strict=True):
        if size is None or result is None or size == result:
            continue
        small, large = sorted((size, result))
        if large % small:
            into.pin_node(node, f"`{node.name}` exchanges parts that differ")
        else:
            into.product((small,), (large,), large // small)


SIZES = frozenset(
    {
        *("size", "sizes", "shape", "input_sizes", "normalized_shape", "split_size", "split_sizes", "num_weights"),
        *("max_q", "max_k", "max_seqlen_q", "max_seqlen_k", "N", "C", "HxW", "n", "m", "length", "pad", "bias_sizes"),
        *("input_split_sizes", "output_split_sizes"),
    }
)
"""Names of arguments that are sizes wherever torch's operators have them."""
_VIEWS = ("view", "_unsafe_view", "reshape", "flatten", "unflatten")
_CUTS = ("slice", "slice_copy", "narrow", "slice_scatter", "slice_backward")
_POSITIONS = (
    *("as_strided", "as_strided_copy", "as_strided_scatter", "unfold", "unfold_backward", "_reshape_alias", "im2col"),
    *("col2im", "diag_embed", "diagonal", "diagonal_backward", "repeat_interleave", "native_group_norm"),
    *("native_group_norm_backward", "tensor_split", "multinomial", "randperm", "bincount", "empty_strided"),
    *("new_empty_strided", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "affine_grid_generator"),
)
_Rule = Callable[[torch.fx.Node, Mapping[str, Any], Constraints], None]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_CUTS, _slice),
    **dict.fromkeys(_POSITIONS, _pin),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("split_copy", "split_with_sizes_copy"), _split),
    **dict.fromkeys(("select", "select_backward", "select_scatter"), _select),
    **dict.fromkeys(("topk", "kthvalue"), _takes_largest),
    **dict.fromkeys(("tril", "triu"), _diagonal),
    **dict.fromkeys(("convolution", "convolution_backward", "conv2d", "_convolution"), _convolution),
    "arange": _range,
    "cat": _cat,
    "stack": _stack,
    "unbind": _unbind,
    "repeat": _repeat,
    "constant_pad_nd": _pad,
    "roll": _roll,
    "all_gather_into_tensor": _gather,
    "reduce_scatter_tensor": functools.partial(_gather, scatters=True),
    "all_to_all_single": _exchange,
    "shard_dim_alltoall": _exchange_dimension,
}
