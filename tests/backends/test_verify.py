"""The backend on the fake process group: what it proves runs, what it refuses does not."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Placement

import verifycompile
from tests.support import fake_mesh_world
from verifycompile.backends.reports import VerificationWarning


class Block(nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.activation(self.up(x)))
        return x + nn.functional.layer_norm(y, (8,))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((4,), ("tp",), rank=1) as mesh:
        yield mesh


def parallel(mesh: DeviceMesh, layout: Placement | None = None, block: nn.Module | None = None) -> nn.Module:
    styles = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=layout or Replicate())}
    return parallelize_module(block or Block(), mesh, styles)


def compiled(model: nn.Module, **options: Any) -> Callable[..., torch.Tensor]:
    return torch.compile(model, backend="verify", options={"inner": "eager", **options})


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_verified_program_runs_forward_and_backward(mesh: DeviceMesh, inner: str) -> None:
    model = parallel(mesh)
    result = compiled(model, inner=inner)(torch.ones(4, 8))
    result.sum().backward()
    assert result.shape == (4, 8)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_inner_backend_gets_graph_and_inputs_as_dynamo_gave_them(mesh: DeviceMesh) -> None:
    seen: list[tuple[list[str], list[Any]]] = []

    def inner(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        seen.append(([str(node.op) for node in gm.graph.nodes], list(example_inputs)))
        return gm.forward

    model = parallel(mesh)
    torch.compile(model, backend=inner)(torch.ones(4, 8))
    torch._dynamo.reset()
    compiled(model, inner=inner)(torch.ones(4, 8))
    (plain_ops, plain_inputs), (checked_ops, checked_inputs) = seen
    assert checked_ops == plain_ops
    assert [type(value) for value in checked_inputs] == [type(value) for value in plain_inputs]


def test_mode_goes_to_the_inner_backend(mesh: DeviceMesh) -> None:
    modes: list[str | None] = []

    def inner(gm: torch.fx.GraphModule, example_inputs: list[Any], mode: str | None = None) -> Callable[..., Any]:
        modes.append(mode)
        return gm.forward

    from verifycompile.backends.verify import verify

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return verify(gm, example_inputs, options={"inner": inner}, mode="reduce-overhead")

    torch.compile(parallel(mesh), backend=backend)(torch.ones(4, 8))
    assert modes == ["reduce-overhead"]


@pytest.mark.parametrize("suppress_errors", [False, True])
def test_refuted_program_raises_unwrapped_and_does_not_run(mesh: DeviceMesh, suppress_errors: bool) -> None:
    calls: list[torch.fx.GraphModule] = []

    def inner(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        calls.append(gm)
        return gm.forward

    model = compiled(parallel(mesh, Partial()), inner=inner)
    with (
        torch._dynamo.config.patch(suppress_errors=suppress_errors),
        pytest.raises(verifycompile.RefinementError) as raised,
    ):
        model(torch.ones(4, 8))
    assert raised.value.report.verdict is verifycompile.Verdict.REFUTED
    assert [finding.code for finding in raised.value.report.findings] == ["VC101"]
    assert calls == []


def _under_way(mesh: DeviceMesh) -> tuple[torch.Tensor, torch.Tensor]:
    """A leaf, and the result of a collective of it that nobody has waited for."""
    leaf = torch.ones(1, 8, requires_grad=True)
    shard = DTensor.from_local(leaf, mesh, [Shard(0)])
    return leaf, shard.redistribute(placements=[Replicate()], async_op=True).to_local()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_a_gradient_flows_back_into_a_collective_under_way(mesh: DeviceMesh, inner: str) -> None:
    """See docs/found.md: torch by itself waits for such an input outside of autograd."""
    torch._dynamo.reset()  # what earlier tests compiled of this code is run as well
    leaf, pending = _under_way(mesh)
    compiled(parallel(mesh), inner=inner)(pending).sum().backward()
    assert leaf.grad is not None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_collective_under_way_is_not_changed_in_place(mesh: DeviceMesh) -> None:
    class ChangesItsInput(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.mul_(2))

    class Doubles(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * 2)

    torch._dynamo.reset()
    pending = all_gather_single_autograd(torch.ones(1, 8, requires_grad=True), 0, (mesh, 0))
    with pytest.raises(verifycompile.RefinementError) as raised:
        compiled(parallel(mesh, block=ChangesItsInput()), spec=Doubles())(pending)
    finding, *_ = raised.value.report.findings
    assert finding.code == "VC206"
    assert finding.message == (
        "`x` is the result of a collective that is still under way, and is changed in place: change a copy of it, "
        "`x.clone()`."
    )


def test_on_unproved_warn_does_not_let_a_refuted_program_pass(mesh: DeviceMesh) -> None:
    model = compiled(parallel(mesh, Partial()), on_unproved="warn")
    with pytest.raises(verifycompile.RefinementError):
        model(torch.ones(4, 8))


def test_an_error_that_was_caught_is_dropped_with_the_frames_of_the_program(mesh: DeviceMesh) -> None:
    def refused() -> weakref.ref[verifycompile.RefinementError]:
        try:
            compiled(parallel(mesh, Partial()))(torch.ones(4, 8))
        except verifycompile.RefinementError as error:
            return weakref.ref(error)
        raise AssertionError

    held = refused()
    gc.collect()
    assert held() is None


def test_unproved_program_is_an_error_unless_the_user_asks_for_a_warning(mesh: DeviceMesh) -> None:
    block = parallel(mesh, block=Block(lambda x: torch._add_relu(x, x)))
    with torch.no_grad():
        with pytest.raises(verifycompile.RefinementError) as raised:
            compiled(block)(torch.ones(4, 8))
        assert raised.value.report.verdict is verifycompile.Verdict.UNPROVED
        torch._dynamo.reset()
        with pytest.warns(VerificationWarning, match="VC201") as caught:
            assert compiled(block, on_unproved="warn")(torch.ones(4, 8)).shape == (4, 8)
    assert caught[0].filename == __file__


def test_program_without_parallelism_is_passed_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: Any) -> None:
        raise AssertionError("captured a program without parallelism")

    monkeypatch.setattr("verifycompile.frontends.frame.capture_implementation", unexpected)
    x = torch.ones(4, 8)
    block = Block()
    assert torch.equal(compiled(block)(x), block(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": "nope"}, "error[VC306]: option `inner` names no backend of torch.compile: `nope`; `torch.compiler.list_backends(())` lists them."),
        ({"inner": "verify"}, "error[VC306]: option `inner` must be another backend than `verify`."),
        ({"on_unproved": "ignore"}, 'error[VC306]: option `on_unproved` must be "error" or "warn".'),
    ],
)
def test_misuse_is_a_usage_error(mesh: DeviceMesh, options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(verifycompile.UsageError) as raised:
        compiled(parallel(mesh), **options)(torch.ones(4, 8))
    assert str(raised.value) == message


@pytest.mark.parametrize("failure", [KeyError("lost"), DataDependentOutputException("aten.item")])
def test_own_failure_is_never_a_graph_break(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr("verifycompile.frontends.frame.capture_implementation", fail)
    with (
        torch._dynamo.config.patch(suppress_errors=True),
        pytest.raises(RuntimeError, match=f"verifycompile failed with {type(failure).__name__}"),
    ):
        compiled(parallel(mesh))(torch.ones(4, 8))


def test_recompilation_is_verified_again(mesh: DeviceMesh) -> None:
    model = compiled(parallel(mesh))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [model(torch.ones(size, 8)).shape[0] for size in (2, 4, 6)] == [2, 4, 6]
