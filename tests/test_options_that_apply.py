"""Options that do not apply to a program are errors that name them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

import verifycompile
from tests.programs import mlp
from tests.support import fake_mesh_world
from verifycompile import Report, UsageError, Verdict

R = Replicate()


class Frozen(mlp.MLP):
    """An MLP whose second bias is frozen and which has a parameter that it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.down.bias.requires_grad_(False)
        self.unread = nn.Parameter(torch.randn(3))


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(Frozen(), mesh["tp"], dict(mlp.plan()))


def verified(model: Callable[[DeviceMesh], nn.Module] = tensor_parallel, **options: Any) -> Report:
    """The report under options, of which `mesh` may be a function of the model's mesh."""
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        if "mesh" in options:
            options["mesh"] = options["mesh"](mesh)
        return verifycompile.verify(model(mesh), (torch.randn(4, 16),), **options)


def refused(**options: Any) -> str:
    with pytest.raises(UsageError) as raised:
        verified(**options)
    return str(raised.value)


def other(_: DeviceMesh) -> DeviceMesh:
    return init_device_mesh("cpu", (4,), mesh_dim_names=("ranks",))


def renamed(_: DeviceMesh) -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))


def test_a_mesh_that_the_program_does_not_lie_on() -> None:
    lie = "but the program's DTensors and wrappers lie on (dp=2, tp=2) on ranks 0 to 3."
    assert refused(mesh=other) == (
        f"error[VC310]: option `mesh` does not apply: it is (ranks=4) on ranks 0 to 3, {lie}"
    )
    assert refused(mesh=renamed) == (
        f"error[VC310]: option `mesh` does not apply: it is (a=2, b=2) on ranks 0 to 3, {lie}"
    )
    assert refused(mesh=lambda mesh: mesh["dp"]) == (
        "error[VC310]: option `mesh` does not apply: it is the part (dp=2) on ranks 0 to 2 of (dp=2, tp=2) on ranks 0 to "
        "3, and the program also lies on (tp=2) on ranks 0 to 1; name the whole mesh."
    )
    assert refused(model=lambda mesh: fully_shard(mlp.MLP(), mesh=mesh["dp"]), mesh=other) == (
        f"error[VC310]: option `mesh` does not apply: it is (ranks=4) on ranks 0 to 3, {lie}"
    )
    assert verified(mesh=lambda mesh: mesh).verdict is Verdict.VERIFIED
    assert verified(mesh=lambda mesh: mesh["tp"]).verdict is Verdict.VERIFIED


def test_the_name_under_which_a_parametrization_holds_a_parameter() -> None:
    model = nn.utils.parametrize.register_parametrization(nn.Linear(4, 4, bias=False), "weight", nn.Identity())
    held: dict[str, Any] = {"parametrizations.weight.original": (Partial(),)}
    with fake_mesh_world((2,), ("dp",)) as mesh, pytest.raises(UsageError) as refusal:
        verifycompile.verify(model, (torch.randn(4, 4),), mesh=mesh, grad_placements=held)
    assert str(refusal.value) == (
        "error[VC306]: option `grad_placements`: nothing matches `parametrizations.weight.original`; the tensors are "
        "`input`, `weight`."
    )


def test_parameters_with_placements_of_their_own() -> None:
    assert refused(param_placements={"up.weight": (R, Shard(1))}) == (
        "error[VC310]: option `param_placements` does not apply to `up.weight`: it is a DTensor and has placements "
        "(S(0)) of its own."
    )
    assert refused(param_placements={"missing.*": (R, R)}) == (
        "error[VC306]: option `param_placements`: nothing matches `missing.*`; the plain tensors are none."
    )
    assert verified(param_placements={"unread": (R, R)}).verdict is Verdict.VERIFIED


def test_renamed_parameters_that_nobody_has() -> None:
    names = "`down.bias`, `down.weight`, `unread`, `up.bias`, `up.weight`"
    assert refused(spec=Frozen(), param_names={"up.wieght": "up.weight"}) == (
        f"error[VC306]: option `param_names` names `up.wieght`, which the model does not have; its tensors are {names}."
    )
    with pytest.raises(UsageError, match=r"error\[VC304\]"):
        verified(spec=Frozen(), param_names={"up.weight": "up.wieght"})
    assert refused(param_names={"up.weight": "up.weight"}) == (
        "error[VC310]: option `param_names` does not apply: without the option `spec` the spec has the model's own names."
    )


def test_inputs_with_placements_of_their_own() -> None:
    class Doubled(nn.Module):
        def forward(self, x: DTensor, times: int) -> torch.Tensor:
            return x * times

    with fake_mesh_world((4,), ("dp",)) as mesh:
        x = DTensor.from_local(torch.randn(2, 3), mesh, [Shard(0)])
        with pytest.raises(UsageError) as raised:
            verifycompile.verify(Doubled(), (x, 2), in_placements={"x": (R,)})
        assert str(raised.value) == (
            "error[VC310]: option `in_placements` does not apply to `x`: it is a DTensor and has placements (S(0)) of its "
            "own."
        )
        with pytest.raises(UsageError) as raised:
            verifycompile.verify(Doubled(), (x, 2), in_placements={"times": (R,)})
        assert str(raised.value) == (
            "error[VC310]: option `in_placements` does not apply to `times`: it is no tensor, but 2."
        )
        with pytest.raises(UsageError) as raised:
            verifycompile.verify(Doubled(), (x, 2), out_placements={"output.0": (R,)})
        assert str(raised.value) == (
            "error[VC310]: option `out_placements` does not apply to `output.0`: it is a DTensor and has placements "
            "(S(0)) of its own."
        )


def test_gradients_that_there_are_not() -> None:
    assert refused(grad_placements={"down.bias": (R, R)}) == (
        "error[VC310]: option `grad_placements` does not apply to `down.bias`: it requires no gradient."
    )
    assert refused(grad_placements={"up.weight": (Partial("avg"), R)}) == (
        "error[VC310]: option `grad_placements` does not apply to `up.weight` on mesh axis `tp`: its gradient is a "
        "DTensor, placed S(0) there."
    )
    found = verified(grad_placements={"up.weight": (R, Shard(0))})
    assert found.verdict is Verdict.VERIFIED, str(found)


@pytest.mark.parametrize("option", ["in_placements", "param_placements", "grad_placements"])
def test_numbers_of_placements(option: str) -> None:
    name, spoken = ("x", "") if option == "in_placements" else ("unread", f"option `{option}`: ")
    assert refused(**{option: {name: (R,)}}) == (
        f"error[VC303]: {spoken}`{name}` has 1 placements, but the mesh has 2 axes (dp, tp)."
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_names_of_another_part_of_a_broken_graph_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Report] = []
    monkeypatch.setattr("verifycompile.backends.verify.keep_report", reports.append)
    with fake_mesh_world((2,), ("tp",)) as mesh:
        layers = [parallelize_module(mlp.MLP(), mesh, dict(mlp.plan())) for _ in range(2)]

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = layers[0](x)
            torch._dynamo.graph_break()
            return F.mse_loss(layers[1](z), y)

        options = {"inner": "eager", "in_placements": {"x": (R,), "y": (R,)}}
        with contextlib.suppress(verifycompile.RefinementError):
            torch.compile(step, backend="verify", options=options)(torch.randn(4, 16), torch.randn(4, 16))
    assert "option `in_placements` names `x`, which this part of a broken graph does not have" in reports[1].assumptions


def test_numbers_per_rank_are_those_of_a_recovered_spec() -> None:
    assert refused(spec=Frozen(), per_rank_numbers=["n_heads"]) == (
        "error[VC310]: option `per_rank_numbers` does not apply: it is about a recovered spec."
    )
