"""What enters and leaves corresponds both ways: what requires grad, what is returned, what is written, and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

Forward = Callable[[nn.Module, torch.Tensor], Any]
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        yield mesh


class Perceptron(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.register_buffer("count", torch.zeros(()))
        self.function = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def parallel(forward: Forward, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(Perceptron(forward), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in names)
    return model


def value(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.down(torch.relu(model.up(x)))


def compared(mesh: DeviceMesh, spec: Forward, implementation: Forward, x: torch.Tensor = X) -> Report:
    return verifycompile.verify(parallel(implementation, mesh), (x,), mesh=mesh, spec=Perceptron(spec))


def messages(report: Report) -> list[str]:
    return [f"{finding.code} {finding.message}" for finding in report.findings]


# ---------------------------------------------------------------------------------------- what requires grad

TRAINED_IN_THE_SPEC = "VC111 in the spec, and not in the model, {}. Let the same parameters require grad in both: on one device these would be trained."  # fmt: skip
TRAINED_IN_THE_MODEL = "VC111 in the model, and not in the spec, {}. If the spec was only made without gradients, say `spec.requires_grad_(True)`; else freeze in the model what the spec does not train."  # fmt: skip
ALL = ("up.weight", "up.bias", "down.weight", "down.bias")
SEVERAL = "`up.weight`, `up.bias`, `down.weight` and 1 more require grad"

FLAGS = [
    ((), ("up.weight",), [TRAINED_IN_THE_SPEC.format("`up.weight` requires grad")]),
    (("up.weight",), (), [TRAINED_IN_THE_MODEL.format("`up.weight` requires grad")]),
    ((), ALL, [TRAINED_IN_THE_SPEC.format(SEVERAL)]),
    (ALL, (), [TRAINED_IN_THE_MODEL.format(SEVERAL)]),
    (
        ("up.weight",),
        ("down.bias",),
        [
            TRAINED_IN_THE_MODEL.format("`up.weight` requires grad"),
            TRAINED_IN_THE_SPEC.format("`down.bias` requires grad"),
        ],
    ),
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("of_spec", "of_model", "expected"), FLAGS)
def test_what_is_frozen_on_one_side(
    of_spec: tuple[str, ...], of_model: tuple[str, ...], expected: list[str], mesh: DeviceMesh
) -> None:
    model, spec = frozen(parallel(value, mesh), *of_model), frozen(Perceptron(value), *of_spec)
    report = verifycompile.verify(model, (X,), mesh=mesh, spec=spec)
    assert not report
    assert messages(report) == expected


@pytest.mark.parametrize("names", [(), ("up.weight",), ALL])
def test_what_is_frozen_on_both_sides(names: tuple[str, ...], mesh: DeviceMesh) -> None:
    model, spec = frozen(parallel(value, mesh), *names), frozen(Perceptron(value), *names)
    assert verifycompile.verify(model, (X,), mesh=mesh, spec=spec)
    assert verifycompile.verify(model, (X,), mesh=mesh)


def test_flags_do_not_matter_without_gradients(mesh: DeviceMesh) -> None:
    model, spec = parallel(value, mesh), frozen(Perceptron(value), *ALL)
    with torch.no_grad():
        assert verifycompile.verify(model, (X,), mesh=mesh, spec=spec)


# ------------------------------------------------------------------------------------- what is returned


def both(model: Any, x: torch.Tensor) -> Any:
    y = value(model, x)
    return y, y * 2


def second_detached(model: Any, x: torch.Tensor) -> Any:
    y, z = both(model, x)
    return y, z.detach()


def counted(model: Any, x: torch.Tensor) -> Any:
    model.count.add_(1)
    return value(model, x)


def inner_detached(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.down(torch.relu(model.up(x)).detach())


ONE_SIDED: list[tuple[Forward, Forward, str]] = [
    (value, inner_detached, "VC111 the implementation has no gradient `grad.up.weight`"),
    (inner_detached, value, "VC111 the implementation has a gradient for `up.weight`, the spec does not"),
    (both, second_detached, "VC111 no gradient flows back from `output.1` in the implementation"),
    (second_detached, both, "VC111 no gradient flows back from `output.1` in the spec"),
    (both, lambda m, x: (value(m, x),), "VC111 the implementation has no output `output.1`"),
    (
        lambda m, x: (value(m, x),),
        lambda m, x: (value(m, x), x),
        "VC111 the implementation returns `output.1`, the spec does not",
    ),
    (
        lambda m, x: (value(m, x),),
        lambda m, x: (value(m, x), m.count + 1),
        "VC111 the implementation returns `output.1`, the spec does not",
    ),
    (
        lambda m, x: {"y": value(m, x)},
        lambda m, x: {"count": m.count + 1, "y": value(m, x)},
        "VC111 the implementation returns `output.0`, the spec does not",
    ),
    (
        lambda m, x: (value(m, x), None),
        lambda m, x: (value(m, x), x.sin()),
        "VC107 what is returned at [1] differs: None in the spec, a tensor in the implementation",
    ),
    (
        lambda m, x: (value(m, x),),
        lambda m, x: (value(m, x), 3),
        "VC111 the implementation returns 3 at [1], the spec returns nothing there",
    ),
    (
        lambda m, x: (value(m, x), "mean"),
        lambda m, x: (value(m, x),),
        "VC111 the spec returns 'mean' at [1], the implementation returns nothing there",
    ),
    (
        lambda m, x: (value(m, x), "mean", {"of": 3}),
        lambda m, x: (value(m, x),),
        "VC111 the spec returns 'mean' at [1] and 1 more, the implementation returns nothing there",
    ),
    (value, counted, "VC111 the implementation writes to `count`, the spec does not"),
    (counted, value, "VC111 the implementation has no output `mutation.count`"),
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("number", range(len(ONE_SIDED)))
def test_what_one_program_alone_does(number: int, mesh: DeviceMesh) -> None:
    spec, implementation, message = ONE_SIDED[number]
    report = compared(mesh, spec, implementation)
    assert not report
    assert messages(report) == [message]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "forward",
    [both, second_detached, counted, inner_detached, lambda m, x: (value(m, x), x, None, 3, "mean", m.count + 1)],
)
def test_what_both_programs_do(forward: Forward, mesh: DeviceMesh) -> None:
    assert compared(mesh, forward, forward)


def test_a_gradient_of_an_input_on_one_side(mesh: DeviceMesh) -> None:
    x = X.clone().requires_grad_()
    cut: Forward = lambda model, x: value(model, x.detach())  # noqa: E731
    assert messages(compared(mesh, value, cut, x)) == ["VC111 the implementation has no gradient `grad.x`"]
    assert messages(compared(mesh, cut, value, x)) == [
        "VC111 the implementation has a gradient for `x`, the spec does not"
    ]
    assert compared(mesh, cut, cut, x)
    assert compared(mesh, value, value, x)


def test_places_that_differ_are_listed(mesh: DeviceMesh) -> None:
    report = compared(mesh, value, lambda m, x: (value(m, x),))
    assert report
    assert (
        "outputs correspond in their order, since their places differ: the result itself in the spec, at [0] in the "
        "implementation"
    ) in report.assumptions
    assert not [text for text in compared(mesh, both, both).assumptions if "places" in text]


# -------------------------------------------------------------------------------------------------- dtypes


def index(model: Any, x: torch.Tensor) -> torch.Tensor:
    return value(model, x).argmax(-1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_other_kinds_of_numbers(dtype: torch.dtype, mesh: DeviceMesh) -> None:
    other: Forward = lambda model, x: index(model, x).to(dtype)  # noqa: E731
    report = compared(mesh, index, other)
    assert not report
    assert messages(report) == [f"VC111 `output.0` is of {dtype} in the implementation, of torch.int64 in the spec"]
    assert compared(mesh, other, other)


def test_other_precisions_are_listed(mesh: DeviceMesh) -> None:
    report = compared(mesh, value, lambda m, x: value(m, x).bfloat16())
    text = (
        "rounding is no difference: `output.0` is of torch.bfloat16 in the implementation, of torch.float32 in the spec"
    )
    assert report.verdict is Verdict.VERIFIED
    assert text in report.assumptions
    model = parallel(value, mesh).bfloat16()
    report = verifycompile.verify(model, (X.bfloat16(),), mesh=mesh, spec=Perceptron(value))
    assert report
    (text,) = (text for text in report.assumptions if text.startswith("rounding"))
    assert text == (
        "rounding is no difference: `up.weight`, `up.bias`, `down.weight`, `down.bias`, `output.0` are of "
        "torch.bfloat16 in the implementation, of torch.float32 in the spec"
    )


def test_inputs_that_the_model_cannot_take(mesh: DeviceMesh) -> None:
    report = verifycompile.verify(parallel(value, mesh), (X.long(),), mesh=mesh)
    assert report.verdict is Verdict.UNPROVED
    assert messages(report) == [
        (
            "VC202 torch stops at `aten.addmm.default` with `self` of torch.float32 and `mat1` of torch.int64: it takes one "
            "dtype"
        )
    ]
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        Perceptron(value)(X.long())
    softmax: Forward = lambda model, x: torch.softmax(x.long(), -1)  # noqa: E731
    assert messages(compared(mesh, softmax, softmax)) == [
        "VC202 torch stops at `aten._softmax.default` of torch.int64: it takes real numbers"
    ]


# -------------------------------------------------------------------------------------------------- memory


class Twins(nn.Module):
    """Two parameters of equal values, in one memory or not."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        value = torch.ones(4, 4)
        self.first = nn.Parameter(value)
        self.second = nn.Parameter(value if shared else value.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.first + torch.relu(x @ self.second)


@pytest.mark.parametrize(("of_spec", "of_model"), [(False, True), (True, False)])
def test_parameters_that_share_memory_on_one_side(of_spec: bool, of_model: bool, mesh: DeviceMesh) -> None:
    report = verifycompile.verify(Twins(of_model), (X,), mesh=mesh, spec=Twins(of_spec))
    has, lacks = ("spec", "model") if of_spec else ("model", "spec")
    assert not report
    assert messages(report) == [
        f"VC304 `first` and `second` share memory in the {has}, and not in the {lacks}: what updates one updates the other."
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_parameters_that_share_memory_on_both_sides(shared: bool, mesh: DeviceMesh) -> None:
    assert verifycompile.verify(Twins(shared), (X,), mesh=mesh, spec=Twins(shared))


# ------------------------------------------------------------------------------------------------- buffers


def shifted(model: Any, x: torch.Tensor) -> torch.Tensor:
    return value(model, x) + model.count


def test_buffers_that_hold_other_values(mesh: DeviceMesh) -> None:
    spec = Perceptron(shifted)
    spec.count.fill_(1.0)  # pyright: ignore[reportCallIssue]
    report = verifycompile.verify(parallel(shifted, mesh), (X,), mesh=mesh, spec=spec)
    assert messages(report) == ["VC304 buffer `count` holds other values in the spec than in the model."]


def test_buffers_whose_values_are_not_known_are_listed(mesh: DeviceMesh) -> None:
    text = "buffer `count` holds the same in the spec and in the model: its values are not known"
    with torch.device("meta"):
        spec = Perceptron(shifted)
    report = verifycompile.verify(parallel(shifted, mesh), (X,), mesh=mesh, spec=spec)
    assert report, str(report)
    assert text in report.assumptions
    assert text not in compared(mesh, shifted, shifted).assumptions
