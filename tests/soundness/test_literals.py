"""Literals: those that differ are different numbers, and what single precision rounds is listed with its size."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.graphs import verify_graphs

Function = Callable[[torch.Tensor], torch.Tensor]


def _verify(spec: Function, implementation: Function, dtype: torch.dtype) -> tuple[Verdict, list[str]]:
    x = torch.randn(4, dtype=dtype)
    report = verify_graphs(make_fx(spec)(x), make_fx(implementation)(x), mesh=(2,))
    return report.verdict, [text for text in report.assumptions if "the constant" in text]


_DIFFERENT = {
    "a decimal in single precision": (0.0499, 0.04989999905228615),
    "the last digit": (0.123456789012345, 0.123456789012346),
    "a root": (math.sqrt(2), math.sqrt(2) * (1 + 1e-14)),
    "a small number": (1e-12, 1.0000000000001e-12),
    "a large number": (123456789.125, 123456789.1251),
    "a product": (0.12345678912345678 * 0.9876543219876543, 0.12193263126352207),
}


@pytest.mark.parametrize(("left", "right"), _DIFFERENT.values(), ids=_DIFFERENT.keys())
def test_literals_in_double_precision_that_differ_are_different(left: float, right: float) -> None:
    assert left != right
    for spec, implementation in (
        (lambda x: x * left, lambda x: x * right),
        (lambda x: x + left, lambda x: x + right),
        (lambda x: x / left, lambda x: x / right),
        (lambda x: x * torch.full((), left, dtype=x.dtype), lambda x: x * torch.full((), right, dtype=x.dtype)),
        (lambda x: torch.pow(x.exp(), left), lambda x: torch.pow(x.exp(), right)),
    ):
        verdict, _ = _verify(spec, implementation, torch.float64)
        assert verdict is not Verdict.VERIFIED


def test_a_product_of_literals_is_exact() -> None:
    left, right = 0.12345678912345678, 1 / 0.12345678912345678
    verdict, _ = _verify(lambda x: x * left * right, lambda x: x * 1.0, torch.float64)
    assert verdict is not Verdict.VERIFIED


_WAYS = {
    "root": (1 / math.sqrt(41), 41**-0.5 * (1 + 2.5e-16)),
    "fourth root": ((1 / math.sqrt(12)) ** 0.5, math.sqrt(1 / math.sqrt(12)) * (1 + 2.5e-16)),
    "sum": (0.1 + 0.2, 0.3),
}


@pytest.mark.parametrize(("left", "right"), _WAYS.values(), ids=_WAYS.keys())
def test_a_number_that_is_computed_in_two_ways_is_two_numbers_in_double_precision(left: float, right: float) -> None:
    assert left != right
    verdict, _ = _verify(lambda x: x * left, lambda x: x * right, torch.float64)
    assert verdict is not Verdict.VERIFIED
    for dtype in (torch.float32, torch.bfloat16):
        assert _verify(lambda x: x * left, lambda x: x * right, dtype) == (Verdict.VERIFIED, [])


def test_literals_that_are_one_float_in_single_precision_are_equal() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = _verify(lambda x: x * 0.0499, lambda x: x * 0.04989999905228615, dtype)
        assert found == (Verdict.VERIFIED, [])
    verdict, _ = _verify(lambda x: x * 0.0499, lambda x: x * 0.0499001, torch.float32)
    assert verdict is not Verdict.VERIFIED


def test_a_constant_in_single_precision_that_meets_double_precision_is_listed() -> None:
    verdict, listed = _verify(lambda x: x * 0.1, lambda x: x * torch.full((), 0.1, dtype=torch.float32), torch.float64)
    assert verdict is Verdict.VERIFIED
    text = "the constant 0.1 in single precision is read as 0.1 (relative difference 1.5e-08)"
    assert listed == [text]


_HALF_CONSTANTS: dict[str, tuple[Callable[[torch.dtype], torch.Tensor], torch.dtype, str]] = {
    "a tenth": (lambda dtype: torch.full((4,), 0.1, dtype=dtype), torch.float16, "0.1 in float16 precision is read as 0.1 (relative difference 2.4e-04)"),
    "positions": (lambda dtype: torch.arange(300, dtype=dtype)[:, None], torch.bfloat16, "257 in bfloat16 precision is read as 257 (relative difference 3.9e-03)"),
    "few positions": (lambda dtype: torch.arange(200, dtype=dtype)[:, None], torch.bfloat16, ""),
    "a half": (lambda dtype: torch.full((4,), 0.5, dtype=dtype), torch.bfloat16, ""),
}  # fmt: skip


@pytest.mark.parametrize(("make", "dtype", "text"), _HALF_CONSTANTS.values(), ids=_HALF_CONSTANTS.keys())
def test_a_constant_that_half_precision_rounds_is_listed(
    make: Callable[[torch.dtype], torch.Tensor], dtype: torch.dtype, text: str
) -> None:
    verdict, listed = _verify(lambda x: x[0] + make(torch.float32), lambda x: x[0] + make(dtype), torch.float32)
    assert verdict is Verdict.VERIFIED
    assert listed == ([f"the constant {text}"] if text else [])


def _times(factor: float) -> Function:
    return lambda x: x * factor


@pytest.mark.parametrize("number", [2, 3, 6, 12, 24, 96, 128, 80])
def test_the_inverse_of_a_root_is_the_root_of_the_inverse_in_double_precision_and_listed(number: int) -> None:
    inverse = 1 / math.sqrt(number)
    verdict, listed = _verify(lambda x: x * inverse, lambda x: x / math.sqrt(number), torch.float64)
    assert verdict is Verdict.VERIFIED
    exact = number**-0.5
    assert all(f"the constant {inverse!r} in double precision is read as {exact!r}" in text for text in listed)
    assert bool(listed) == (inverse != exact)
    for neighbour in (math.nextafter(min(inverse, exact), 0), math.nextafter(max(inverse, exact), 1)):
        verdict, _ = _verify(_times(neighbour), lambda x: x / math.sqrt(number), torch.float64)
        assert verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("number", [2, 3, 6, 1.5, 40])
@pytest.mark.parametrize("towards", [0, 10])
def test_the_neighbour_of_a_root_is_another_number_in_double_precision(number: float, towards: float) -> None:
    root = math.sqrt(number)
    neighbour = math.nextafter(root, towards)
    verdict, _ = _verify(_times(neighbour), _times(root), torch.float64)
    assert verdict is not Verdict.VERIFIED


def test_roots_cancel_exactly() -> None:
    def spec(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0 / 3.0

    def implementation(x: torch.Tensor) -> torch.Tensor:
        return x * math.sqrt(2) * math.sqrt(6) / math.sqrt(3) / 3.0

    assert _verify(spec, implementation, torch.float32) == (Verdict.VERIFIED, [])
