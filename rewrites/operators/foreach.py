"""Operators over lists of tensors: each applies the declaration of its single-tensor form to every element.

Optimizers and gradient clipping call them. An element has dtypes of its own, so that lists may mix them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.registry import (
    UNSUPPORTED,
    UnsupportedError,
    bind,
    declaration_of,
    operator,
    with_arguments,
)
from verifycompile.torch_interface.operators.schema import names_of

aten = torch.ops.aten

ForElement = Callable[[Builder, int, Mapping[str, Any]], View]
"""The value of one element: its position, and its arguments by the names of the list form."""


def _over_elements(overload: Any, for_element: ForElement) -> None:
    """Declare the list form ``overload``."""

    def handler(b: Builder, **given: Any) -> tuple[View, ...]:
        if b.call.elements is None:
            raise UnsupportedError(UNSUPPORTED, f"`{overload}` of lists whose elements are not known")
        whole, results = b.call, list[View]()
        for position, call in enumerate(whole.elements or ()):
            b.call = call
            results.append(for_element(b, position, {name: _element(v, position) for name, v in given.items()}))
        b.call = whole
        return tuple(results)

    operator(overload)(with_arguments(handler, names_of(overload)))


def _element(value: Any, position: int) -> Any:
    return value[position] if isinstance(value, (list, tuple)) else value


def _declare(overload: Any, single: Any, **renamed: str) -> None:
    """Element by element it is ``single``. ``renamed``: names of the list form -> those of the single form."""

    def for_element(b: Builder, position: int, given: Mapping[str, Any]) -> View:
        declaration = declaration_of(single)
        if declaration is None:
            raise UnsupportedError(UNSUPPORTED, f"`{overload}`: `{single}` has no declaration")
        arguments = {renamed.get(name, name): value for name, value in given.items()}
        dtypes = {renamed.get(name, name): dtype for name, dtype in b.call.dtypes.items()}
        b.call = dataclasses.replace(b.call, dtypes=dtypes)
        return declaration.handler(b, **bind(declaration, (), arguments))

    _over_elements(overload, for_element)


for _name in ("add", "sub", "mul", "div"):
    _lists, _single = getattr(aten, f"_foreach_{_name}"), getattr(aten, _name)
    _declare(_lists.List, _single.Tensor)
    _declare(_lists.Scalar, _single.Scalar, scalar="other")
    _declare(_lists.ScalarList, _single.Scalar, scalars="other")
    if "Tensor" in _lists.overloads():
        _declare(_lists.Tensor, _single.Tensor)

for _name, _bound in (
    ("clamp_min", "clamp_min"),
    ("maximum", "clamp_min"),
    ("clamp_max", "clamp_max"),
    ("minimum", "clamp_max"),
):
    _lists, _single = getattr(aten, f"_foreach_{_name}"), getattr(aten, _bound)
    _argument = _bound.removeprefix("clamp_")
    _declare(_lists.List, _single.Tensor, other=_argument)
    _declare(_lists.Scalar, _single.default, scalar=_argument)
    _declare(_lists.ScalarList, _single.default, scalars=_argument)

for _name in ("addcmul", "addcdiv"):
    _lists, _single = getattr(aten, f"_foreach_{_name}"), getattr(aten, _name)
    _declare(_lists.Scalar, _single.default)
    _declare(_lists.ScalarList, _single.default, scalars="value")

_declare(aten._foreach_lerp.Scalar, aten.lerp.Scalar, tensors1="end")
_declare(aten._foreach_lerp.ScalarList, aten.lerp.Scalar, tensors1="end")
_declare(aten._foreach_lerp.List, aten.lerp.Tensor, tensors1="end", weights="weight")
_declare(aten._foreach_pow.List, aten.pow.Tensor_Tensor)
_declare(aten._foreach_pow.Scalar, aten.pow.Tensor_Scalar)
_declare(aten._foreach_pow.ScalarList, aten.pow.Tensor_Scalar)
_declare(aten._foreach_pow.ScalarAndTensor, aten.pow.Scalar)
_declare(aten._foreach_norm.Scalar, aten.linalg_vector_norm.default)
_declare(aten._foreach_max.default, aten.max.default)
_declare(aten._foreach_copy.default, aten.copy.default)
_declare(aten._foreach_clone.default, aten.clone.default)
_declare(aten._foreach_zero.default, aten.zeros_like.default)

for _name in (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "lgamma", "log",
    "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
):  # fmt: skip
    _declare(getattr(aten, f"_foreach_{_name}").default, getattr(aten, _name).default)


def _add_scaled(product: Callable[[Builder, View, View], View]) -> ForElement:
    """``self + scalars[position] * product``, where the scalars are the elements of one tensor."""

    def for_element(b: Builder, position: int, given: Mapping[str, Any]) -> View:
        require_real(b)
        factor = b.select(given["scalars"], 0, position)
        return b.add(given["self"], b.mul(factor, product(b, given["tensor1"], given["tensor2"])))

    return for_element


_over_elements(aten._foreach_addcmul.Tensor, _add_scaled(lambda b, left, right: b.mul(left, right)))
_over_elements(aten._foreach_addcdiv.Tensor, _add_scaled(lambda b, left, right: b.divide(left, right)))
