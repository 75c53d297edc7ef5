"""Numbers of the source: two literals that differ in their dtype are different; what is rounded is listed."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.attacks.graphs import differ, report_on
from verifycompile import Verdict

DOUBLE, SINGLE = torch.float64, torch.float32

NEAR = {
    "the issue's": (0.0499, 0.04989999905228615),
    "one unit in the last place": (0.1, math.nextafter(0.1, 1)),
    "one unit below": (1 / 3, math.nextafter(1 / 3, 0)),
    "large": (123456.789, math.nextafter(123456.789, 1e9)),
    "small": (1e-12, math.nextafter(1e-12, 1)),
    "a single's value": (0.7, torch.tensor(0.7).item()),
    "a half's value": (0.2, torch.tensor(0.2, dtype=torch.float16).item()),
    "a third cut off": (1 / 3, 0.3333333333),
    "pi cut off": (math.pi, 3.14159265358979),
    "eps": (1e-5, 1.0000000116860974e-05),
}

USES = {
    "factor": lambda c: lambda x: x * c,
    "divisor": lambda c: lambda x: x / c,
    "summand": lambda c: lambda x: x + c,
    "subtracted from": lambda c: lambda x: c - x,
    "power": lambda c: lambda x: (x * x + 1) ** c,
    "alpha": lambda c: lambda x: torch.add(x, x * x, alpha=c),
    "limit": lambda c: lambda x: torch.clamp(x * 1e9, max=c),
    "slope": lambda c: lambda x: F.leaky_relu(x, c),
    "fill": lambda c: lambda x: torch.full_like(x, c) * x,
    "threshold value": lambda c: lambda x: F.threshold(x, 0.0, c),
    "hidden in a sum": lambda c: lambda x: x.sin() + (x * c).cos(),
    "epsilon of a norm": lambda c: lambda x: F.layer_norm(x * 1e-5, (4,), eps=abs(c)),
    "temperature": lambda c: lambda x: F.softmax(x * c, -1),
    "where": lambda c: lambda x: torch.where(x > 0, x, c),
    "masked": lambda c: lambda x: x.masked_fill(x > 0, c),
    "attention scale": lambda c: lambda x: F.softmax((x @ x.t()) * c, -1) @ x,
    "lerp": lambda c: lambda x: torch.lerp(x, x * x, c),
    "elu": lambda c: lambda x: F.elu(x, c),
    "base": lambda c: lambda x: torch.pow(c, x),
}


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(4, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("near", ["the issue's", "one unit below", "a single's value", "a third cut off", "eps"])
@pytest.mark.parametrize("use", USES)
def test_two_literals_that_differ_are_different(use: str, near: str) -> None:
    spec, implementation = (USES[use](number) for number in NEAR[near])
    x = sample(DOUBLE)
    report = report_on(spec, implementation, [x])
    if differ(spec, implementation, [x]):
        assert report.verdict is not Verdict.VERIFIED or any("is read as" in text for text in report.assumptions), str(report)


def test_bases_of_powers_whose_logarithms_round_alike_are_different() -> None:
    base, other = NEAR["large"]
    assert math.log(base) == math.log(other)
    x = sample(DOUBLE)
    assert report_on(USES["base"](base), USES["base"](other), [x]).verdict is not Verdict.VERIFIED
    assert report_on(USES["base"](base), USES["base"](base), [x]).verdict is Verdict.VERIFIED


@pytest.mark.parametrize(("base", "written"), [(10000, math.log(10000)), (2, math.log(2)), (100.0, 2 * math.log(10))])
def test_a_power_of_a_number_is_an_exponential(base: float, written: float) -> None:
    x = sample(DOUBLE)
    assert report_on(USES["base"](base), lambda x: torch.exp(x * written), [x]).verdict is Verdict.VERIFIED
    wrong = math.nextafter(written, 0)
    assert report_on(USES["base"](base), lambda x: torch.exp(x * wrong), [x]).verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("near", NEAR)
@pytest.mark.parametrize("use", ["factor", "summand", "limit", "temperature", "epsilon of a norm"])
def test_a_literal_is_itself(use: str, near: str) -> None:
    number = NEAR[near][0]
    report = report_on(USES[use](number), USES[use](number), [sample(DOUBLE)])
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda x: x * 0.1 + x * 0.2, lambda x: x * 0.3),
        (lambda x: x * 3.0 / 3.0, lambda x: x),
        (lambda x: x * (1 / 3), lambda x: x / 3.0),
        (lambda x: x * 0.1 * 10.0, lambda x: x * 1.0),
    ],
)
def test_rounding_between_two_right_forms_is_listed_or_unproved(left: object, right: object) -> None:
    """Equal in exact arithmetic or by one rounding of a constant: if verified, the constants' reading is listed."""
    report = report_on(left, right, [sample(DOUBLE)])  # pyright: ignore[reportArgumentType]
    assert report.verdict is not Verdict.REFUTED


@pytest.mark.parametrize(("left", "right"), [(2**24 + 1, 2**24), (2**53 + 1, 2**53), (10**17 + 1, 10**17)])
def test_whole_numbers_that_a_float_cannot_tell_apart(left: int, right: int) -> None:
    x = torch.tensor([3, 5, 7])
    report = report_on(lambda x: x + left, lambda x: x + right, [x])
    assert report.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_whole_numbers_that_go_through_a_short_float_are_others(dtype: torch.dtype) -> None:
    x = torch.tensor([3, 257, 4099])

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).to(torch.int64)

    assert differ(lambda x: x, rounded, [x])
    assert report_on(lambda x: 2 * x, lambda x: 2 * rounded(x), [x]).verdict is Verdict.UNPROVED
    assert report_on(lambda x: rounded(x) + rounded(x), lambda x: 2 * rounded(x), [x]).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("divisor", [1, 2])
def test_half_of_a_position_need_not_be_one(divisor: int) -> None:
    """The comparisons of a number with all positions are one in all where it is a position, and none elsewhere."""

    def looked_up(w: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return F.embedding(y, w).sum() + F.embedding(z, w).sum()

    def counted(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        place = y + z if divisor == 1 else y + z / divisor
        return looked_up(w, y, z) + (x * (place[:, None] == torch.arange(8)).sum(-1)).sum()

    def once(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return looked_up(w, y, z) + x.sum()

    inputs = [torch.randn(4, 2), torch.randn(3), torch.tensor([0, 1, 3]), torch.tensor([1, 2, 3])]
    report = report_on(counted, once, inputs)
    assert report.verdict is (Verdict.VERIFIED if divisor == 1 else Verdict.REFUTED), str(report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, SINGLE, DOUBLE])
def test_constants_two_percent_apart_differ_in_every_dtype(dtype: torch.dtype) -> None:
    report = report_on(lambda x: x * 0.50, lambda x: x * 0.51, [sample(DOUBLE).to(dtype)])
    assert report.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("near", ["the issue's", "a third cut off", "eps"])
def test_constants_in_tensors_differ_too(near: str) -> None:
    one, other = NEAR[near]
    report = report_on(
        lambda x: x * torch.tensor(one, dtype=DOUBLE), lambda x: x * torch.tensor(other, dtype=DOUBLE), [sample(DOUBLE)]
    )
    assert report.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize(
    ("spec", "implementation"),
    [
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x + float("inf"), lambda x: x + 1e308 * 10),
    ],
)
def test_special_numbers_do_not_crash(spec: object, implementation: object) -> None:
    assert report_on(spec, implementation, [sample(DOUBLE)]).verdict in Verdict  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("largest", [1e308, 3.4028234663852886e38])
def test_infinity_is_not_a_large_number(largest: float) -> None:
    report = report_on(lambda x: x.clamp(max=float("inf")), lambda x: x.clamp(max=largest / 1e300), [sample(DOUBLE) * 1e9])
    assert report.verdict is not Verdict.VERIFIED
