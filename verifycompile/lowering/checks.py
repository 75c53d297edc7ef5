"""What a declaration gives must have the shapes that torch recorded, and a dtype that the proof is about."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.lowering.recorded import DECIDES_SIZE
from verifycompile.lowering.sizes import Sizes
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.operators.elementwise import SHORT_DTYPES, is_stored
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError
from verifycompile.rewrites.values import Pieces

PROVABLE_DTYPES = frozenset(
    {
        torch.float64, torch.float32, torch.bfloat16, torch.float16,
        torch.int64, torch.int32, torch.bool, torch.complex32, torch.complex64, torch.complex128,
    }
)  # fmt: skip
"""Narrower integers wrap around and 8-bit floats saturate: a value of another dtype that is computed is an unknown."""

_OF_ONE_DTYPE: dict[str, tuple[str, ...]] = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "mv": ("self", "vec"),
    "addmm": ("self", "mat1", "mat2"),
    "baddbmm": ("self", "batch1", "batch2"),
    "addbmm": ("self", "batch1", "batch2"),
    "addmv": ("self", "mat", "vec"),
    "linear": ("input", "weight", "bias"),
    "linalg_solve_triangular": ("self", "B"),
    "index_add": ("self", "source"),
    "index_copy": ("self", "source"),
    "index_put": ("self", "values"),
    "nll_loss_forward": ("self", "weight"),
    "binary_cross_entropy": ("self", "target"),
    "_scaled_dot_product_flash_attention_for_cpu": ("query", "key", "value"),
}
"""Operators of which torch's kernels refuse operands of several dtypes, and its shape functions do not."""
_OF_REAL_NUMBERS = frozenset({"_softmax", "_log_softmax", "gelu", "silu", "mish", "var"})
"""Operators of which torch's kernels refuse whole numbers, and its shape functions do not."""


def check_type(node: torch.fx.Node, call: Call, coordinates: Collection[sympy.Basic]) -> None:
    """Raises ``UnsupportedError`` for a result of a dtype, or of a shape that depends on the rank, without proofs."""
    values = node.meta.get("val")
    tensors: Sequence[Any] = values if isinstance(values, (list, tuple)) else (values,)
    for value in tensors:
        if not isinstance(value, torch.Tensor):
            continue
        moves = value.dtype in SHORT_DTYPES and value.dtype in call.dtypes.values()
        if value.dtype not in PROVABLE_DTYPES and not moves and not isinstance(values, tuple):
            raise UnsupportedError(UNSUPPORTED, f"`{node.target}` gives a tensor of {value.dtype}")
        symbolic = [s for s in value.shape if isinstance(s, torch.SymInt)]
        if any(s.node.expr.free_symbols & set(coordinates) for s in symbolic):
            raise UnsupportedError("VC204", f"`{node.target}` gives a tensor whose shape depends on the rank")


def check_operands(node: torch.fx.Node, call: Call, *, any_precision: bool) -> None:
    """Raises ``UnsupportedError`` for dtypes with which the program would stop when it runs.

    ``any_precision``: real numbers of several precisions are taken for those of one.
    """
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    found: dict[object, str] = {}
    for argument in _OF_ONE_DTYPE.get(name, ()):
        dtype = call.dtypes.get(argument)
        if dtype is not None:
            is_real = dtype.is_floating_point and any_precision
            found.setdefault("real numbers" if is_real else dtype, f"`{argument}` of {dtype}")
    if len(found) > 1:
        message = f"torch stops at `{node.target}` with {' and '.join(found.values())}: it takes one dtype"
        raise UnsupportedError(UNSUPPORTED, message)
    dtype = call.dtypes.get("self")
    if name in _OF_REAL_NUMBERS and dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise UnsupportedError(UNSUPPORTED, f"torch stops at `{node.target}` of {dtype}: it takes real numbers")


def check_result(builder: Builder, sizes: Sizes, node: torch.fx.Node, value: Any) -> None:
    """The declaration's shapes must be those that torch recorded. Raises ``UnsupportedError``."""
    recorded = node.meta.get("val")
    if isinstance(value, View):
        if not isinstance(recorded, torch.Tensor):
            raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` is declared to give one tensor")
        value, recorded = (value,), (recorded,)
    tensors: Sequence[Any] = recorded or ()
    for position, tensor in enumerate(tensors[: len(value)]):
        view = value.view if isinstance(value, Pieces) else value[position]
        if view is None or not isinstance(tensor, torch.Tensor):
            continue
        check_stored(node, view, tensor)
        declared = builder.shape(view)
        if isinstance(value, Pieces):
            dim = builder.dim(view, value.dim) - builder.lead
            declared = (*declared[:dim], value.lengths[position], *declared[dim + 1 :])
        if node.target in DECIDES_SIZE:
            sizes.decide(tensor, declared)
        shape = sizes.shape(tensor)
        if len(declared) != len(shape) or not all(map(_are_equal, declared, shape)):
            raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` has shape {shape}, its declaration {declared}")


def _are_equal(left: Size, right: Size) -> bool:
    return left == right or sympy.simplify(sympy.sympify(left) - sympy.sympify(right)) == 0


def check_stored(node: torch.fx.Node, view: View, recorded: torch.Tensor) -> None:
    """Narrow integers may be moved, not computed. Raises ``UnsupportedError``."""
    if recorded.dtype not in PROVABLE_DTYPES and not (recorded.dtype in SHORT_DTYPES and is_stored(view)):
        raise UnsupportedError(UNSUPPORTED, f"`{node.target}` computes a tensor of {recorded.dtype}")


def casts_of(node: torch.fx.Node, call: Call) -> Iterator[str]:
    """The casts that a node does, as ``float32 to bfloat16``."""
    for element in call.elements or (call,):
        if str(node.target) == "aten._to_copy.default" and "dtype" in node.kwargs:
            source, target = element.dtypes.get("self"), node.kwargs["dtype"]
        elif str(node.target) in ("aten.copy.default", "aten._foreach_copy.default"):
            source, target = element.dtypes.get("src"), element.dtypes.get("self")
        else:
            return
        if source != target and source is not None and target is not None:
            yield f"{source} to {target}".replace("torch.", "")
