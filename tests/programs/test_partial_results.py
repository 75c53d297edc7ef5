"""Operators whose result DTensor leaves for a later reduction, by product, "or", or a norm; and wrong forms of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._ops._math_ops import _NormPartial

import verifycompile
from tests.support import fake_mesh_world

Function = Callable[..., torch.Tensor]
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
TRUTH = X > 0


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((2,), ("x",)) as mesh:
        yield mesh


def verdict(function: Function, mesh: DeviceMesh, *values: torch.Tensor, spec: Function | None = None) -> str:
    args = [distribute_tensor(v.detach().clone(), mesh, [Shard(0)]).requires_grad_(v.requires_grad) for v in values]
    return verifycompile.verify(function, tuple(args), {}, mesh=mesh, spec=spec).verdict.name


RIGHT: list[tuple[Function, tuple[torch.Tensor, ...]]] = [
    (lambda x: x.prod(0), (X,)),
    (lambda x: x.prod(), (X,)),
    (lambda x: x.any(0), (TRUTH,)),
    (lambda x: x.all(), (TRUTH,)),
    (lambda x: x.norm(dim=0), (X.clone().requires_grad_(),)),
    (lambda x: torch.linalg.vector_norm(x, 4), (X,)),
    (lambda x, y: torch.dist(x, y, 2), (X, X.flip(0))),
    (lambda x: x.norm(dim=0) + 1, (X,)),
    (lambda x, y: F.pairwise_distance(x.t(), y.t()) + 1, (X.clone().requires_grad_(), X.flip(0))),
    (lambda x: x.split([2, 0, 4], dim=1)[1], (X,)),
    (lambda x: torch.linalg.inv(x), (torch.randn(2, 3, 3).requires_grad_(),)),
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_verified(number: int, mesh: DeviceMesh) -> None:
    function, values = RIGHT[number]
    assert verdict(function, mesh, *values) == "VERIFIED"


WRONG: list[tuple[Function, Callable[[DTensor], torch.Tensor], Partial | Replicate, torch.Tensor]] = [
    (lambda x: x.prod(0), lambda x: x.to_local().prod(0), Partial("sum"), X),
    (lambda x: x.prod(0), lambda x: x.to_local().prod(0), Replicate(), X),
    (lambda x: x.any(0), lambda x: x.to_local().any(0), Partial("product"), TRUTH),
    (lambda x: x.any(0), lambda x: x.to_local().any(0), Replicate(), TRUTH),
    (lambda x: x.all(), lambda x: x.to_local().all(), Partial("sum"), TRUTH[:2, :1]),
    (lambda x: x.norm(dim=0), lambda x: x.to_local().norm(dim=0), Partial("sum"), X),
    (lambda x: x.norm(dim=0), lambda x: x.to_local().norm(dim=0), _NormPartial(4), X),
    (lambda x: x.norm(dim=0), lambda x: x.to_local().norm(p=4, dim=0), _NormPartial(2), X),
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("number", range(len(WRONG)))
def test_refuted(number: int, mesh: DeviceMesh) -> None:
    spec, local, placement, value = WRONG[number]

    def implementation(x: DTensor) -> torch.Tensor:
        return DTensor.from_local(local(x), mesh, [placement], run_check=False)

    assert verdict(implementation, mesh, value, spec=spec) == "REFUTED"


def test_dtensor_adds_partial_norms_like_partial_sums(mesh: DeviceMesh) -> None:
    """See docs/found.md."""
    assert verdict(lambda x: x.norm(dim=0).sum(), mesh, X) == "REFUTED"


def test_a_write_that_the_implementation_leaves_out(mesh: DeviceMesh) -> None:
    def written(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        kept.mul_(2)
        return x + 1

    assert verdict(written, mesh, X, X.abs()) == "VERIFIED"
    assert verdict(lambda x, kept: x + 1 + 0 * kept, mesh, X, X.abs(), spec=written) == "REFUTED"


@pytest.mark.causes
@pytest.mark.parametrize("is_summed", [True, False])
def test_a_number_read_from_data(mesh: DeviceMesh, is_summed: bool) -> None:
    """``float`` of a DTensor that is a partial sum is the rank's own number, and an operand of DTensor's operators."""

    def implementation(x: DTensor) -> torch.Tensor:
        total = x.pow(2).sum()
        return x / float(total.full_tensor() if is_summed else total)

    args = (distribute_tensor(X, mesh, [Shard(0)]),)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        report = verifycompile.verify(implementation, args, spec=lambda x: x / float(x.pow(2).sum()))
    if is_summed:
        assert report.verdict.name == "VERIFIED"
        return
    finding = report.findings[0]
    at = finding.impl_location
    assert at is not None
    line = implementation.__code__.co_firstlineno + 1
    assert (report.verdict.name, finding.code, at.line) == ("REFUTED", "VC101", line)
    assert finding.hint == f"all-reduce `total` over `x` (sum) after line {line} (checked)"
