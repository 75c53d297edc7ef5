"""Both programs are run and compared: a right program has no difference beyond rounding, a wrong one is named."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.comparison.programs import LeavesPartial, Model, all_reduce, on_ranks, tensor_parallel, tokens
from tests.support import fake_mesh_world
from verifycompile import UsageError, Verdict

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
FILE = Path(__file__).parent / "programs.py"


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


class SignedSum(nn.Module):
    """A loss whose terms cancel: rounding moves it by more than an epsilon of its own value."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.factor = factor

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.down(torch.relu(self.up(x))) * y).sum() * self.factor


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.VERIFIED), (1.0001, Verdict.REFUTED)])
def test_a_scalar_is_off_only_where_more_than_two_runs_say_so(factor: float, verdict: Verdict) -> None:
    """With this seed rounding moves the right loss 1.36 times as far as two runs do."""
    torch.manual_seed(1)
    spec, model = SignedSum(), SignedSum(factor)
    with fake_mesh_world((2,), ("tp",)) as mesh:
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        found = verifycompile.compare(model, (torch.randn(32, 64, 16), torch.randn(32, 64, 16)), spec=spec)
    assert found.verdict is verdict, str(found)
    assert [finding.output for finding in found.findings] == ([] if factor == 1.0 else ["output.0"])


@DTYPES
def test_a_right_program_has_no_difference_beyond_rounding(dtype: torch.dtype) -> None:
    spec = Model(dtype=dtype)
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = tensor_parallel(Model(dtype=dtype), mesh)
        before = hooks(model)
        found = verifycompile.compare(model, tokens(), spec=spec)
        assert hooks(model) == before
    assert found.verdict is Verdict.VERIFIED, str(found)
    assert found
    assert max(item.ratio for item in found.tensors) < 1.0
    named = {item.name: item for item in found.tensors}
    assert named["blocks.1.up.output.0"].layout_text == "S(2) over tp"
    assert named["grad.blocks.0.down.weight"].layout_text == "S(1) over tp"
    assert named["output.0"].threshold > 0.0
    assert {"grad.embedding.weight", "grad.head.weight", "input.tokens"} <= set(named)


def test_a_sum_that_is_not_reduced_is_named_with_the_line_that_uses_it() -> None:
    spec = Model()
    with fake_mesh_world((2,), ("tp",)) as mesh:
        found = verifycompile.compare(tensor_parallel(Model(), mesh, LeavesPartial), tokens(), spec=spec)
    assert found.verdict is Verdict.REFUTED
    first = found.findings[0]
    assert first.code == "VC120"
    assert first.output == "blocks.0.output.0"
    assert first.impl_location is not None
    assert first.impl_location.file == str(FILE)
    assert first.impl_location.module == "blocks.0"
    assert [label.text for label in first.labels] == [
        "`blocks.0` is called here",
        "`blocks.0.down.output.0` is a partial sum over tp here",
    ]
    assert "it is called" not in str(found)
    assert "module         rank 0" in found.heat


class Recipe(Model):
    """Computes in bfloat16, with parameters in float32."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(tokens, labels)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    """Inside of the model or around the comparison: results in its dtype are rounded as coarsely in both programs."""
    kind = Recipe if inside else Model
    for row, verdict in ((RowwiseParallel, Verdict.VERIFIED), (LeavesPartial, Verdict.REFUTED)):
        with fake_mesh_world((2,), ("tp",)) as mesh, torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            found = verifycompile.compare(tensor_parallel(kind(), mesh, row), tokens(), spec=kind())
        assert found.verdict is verdict, str(found)
    assert found.findings[0].output == "blocks.0.output.0"
    # Where the spec has no such recipe, the program's is a loss of precision.
    with fake_mesh_world((2,), ("tp",)) as mesh:
        assert verifycompile.compare(tensor_parallel(Recipe(), mesh), tokens(), spec=Model()).verdict is Verdict.REFUTED


def test_the_spec_is_recovered_where_none_is_given() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        found = verifycompile.compare(tensor_parallel(Model(), mesh), tokens())
    assert found.verdict is Verdict.VERIFIED, str(found)
    assert "the spec was recovered from the parallel model" in found.assumptions


def test_the_users_models_keep_their_values() -> None:
    spec = Model()
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = tensor_parallel(Model(), mesh)
        values = {
            name: value.detach().to_local().clone() if hasattr(value, "to_local") else value.detach().clone()
            for name, value in model.named_parameters()
        }
        own = {name: value.clone() for name, value in spec.state_dict().items()}
        verifycompile.compare(model, tokens(), spec=spec, optimizer=torch.optim.AdamW)
        for name, value in model.named_parameters():
            local = value.detach().to_local() if hasattr(value, "to_local") else value.detach()
            assert torch.equal(local, values[name])
            assert value.grad is None
    assert all(torch.equal(value, own[name]) for name, value in spec.state_dict().items())


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no room for {tuple(self.layer(x).shape)}")


def test_an_error_of_the_program_is_a_finding_and_leaves_no_hook() -> None:
    model = Raises()
    found = verifycompile.compare(model, (torch.ones(2, 4),), spec=nn.Sequential(nn.Linear(4, 4)))
    assert found.verdict is Verdict.UNPROVED
    assert [finding.code for finding in found.findings] == ["VC214"]
    assert "no room for (2, 4)" in found.findings[0].message
    assert hooks(model) == 0


def test_training_is_compared_step_by_step() -> None:
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    found = on_ranks(lambda mesh: tensor_parallel(Model(), mesh), tokens(), spec=Model(), optimizer=optimizer, steps=3)
    assert found.verdict is Verdict.VERIFIED, str(found)
    names = {item.name for item in found.tensors}
    assert {"parameter.head.weight", "pass2.parameter.head.weight", "pass2.state.head.weight.momentum_buffer"} <= names


def clipped(parameters: list[nn.Parameter], whole: bool = True) -> None:
    """By the norm of all gradients, or else every rank by that of its own parts."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = [
        (held.full_tensor() if whole else held.to_local()).norm() if isinstance(held, DTensor) else held.norm()
        for held in gradients
    ]
    scale = 0.05 / float(torch.stack(norms).norm())
    for held in gradients:
        held.mul_(min(1.0, scale))


clipped_by_parts = functools.partial(clipped, whole=False)


@pytest.mark.parametrize(("clip", "right"), [(clipped, True), (clipped_by_parts, False), (None, False)])
def test_gradients_that_add_up_and_are_clipped(clip: Callable[..., None] | None, right: bool) -> None:
    def build(mesh: DeviceMesh) -> nn.Module:
        return tensor_parallel(Model(), mesh)

    given = {"clip": clip or (lambda _: None), "spec_clip": clipped, "steps": 2, "accumulation": 2}
    found = on_ranks(build, tokens(), spec=Model(), optimizer=functools.partial(torch.optim.SGD, lr=0.1), **given)
    assert found.verdict is (Verdict.VERIFIED if right else Verdict.REFUTED), str(found)
    names = {item.name for item in found.tensors}
    assert {"pass1.grad.head.weight", "pass1.parameter.head.weight"} <= names
    assert ("pass3.parameter.head.weight" in names) == right
    assert "parameter.head.weight" not in names
    if not right:
        place = found.findings[0].impl_location
        assert found.findings[0].output.startswith("pass1.clipped.")
        assert place is not None
        assert place.function == ("clipped" if clip else "<lambda>")


class Stale(Model):
    """Keeps the hidden states of the first batch."""

    kept: torch.Tensor | None = None

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = tokens
        return super().forward(self.kept, labels)


@pytest.mark.parametrize(("model", "right"), [(Model, True), (Stale, False)])
def test_each_pass_has_its_own_batch(model: type[Model], right: bool) -> None:
    def build(mesh: DeviceMesh) -> nn.Module:
        return tensor_parallel(model(), mesh)

    given = {"spec": Model(), "optimizer": functools.partial(torch.optim.SGD, lr=0.1), "steps": 2, "accumulation": 2}
    assert on_ranks(build, tokens(), **given).verdict is Verdict.VERIFIED
    batches = [tuple(t.roll(turn, 1) for t in tokens()) for turn in range(3)]
    found = on_ranks(build, (), batches=batches, **given)
    assert found.verdict is (Verdict.VERIFIED if right else Verdict.REFUTED), str(found)
    if not right:
        assert found.findings[0].output.startswith("pass1.")
        assert "; first in pass 2" in found.findings[0].notes[0]


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"steps": 2}, "VC310", "option `steps` does not apply: there is no `optimizer`."),
        ({"clip": clipped}, "VC310", "option `clip` does not apply: there is no `optimizer`."),
        ({"args": (), "batches": [tokens(), tokens()]}, "VC310", "option `batches` does not apply: there is no"),
        (
            {"batches": [tokens()]},
            "VC306",
            "option `batches` is a list of the arguments of each pass, in the place of `args`.",
        ),
        (
            {"optimizer": torch.optim.SGD, "accumulation": 0},
            "VC306",
            "options `steps` and `accumulation` must be whole numbers greater than zero.",
        ),
    ],
)
def test_options_of_training_that_do_not_apply(given: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        verifycompile.compare(Model(), **{"args": tokens(), **given})
    assert raised.value.code == code
    assert message in str(raised.value)


def test_the_report_as_json_and_as_a_page(tmp_path: Path) -> None:
    spec = Model(layers=1)
    with fake_mesh_world((2,), ("tp",)) as mesh:
        found = verifycompile.compare(tensor_parallel(Model(layers=1), mesh, LeavesPartial), tokens(), spec=spec)
    told = json.loads(found.to_json())
    assert told["verdict"] == "refuted"
    assert told["findings"][0]["code"] == "VC120"
    assert {"name", "ratio", "by_rank", "threshold"} <= set(told["tensors"][0])
    found.save_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "<td>blocks.0.down</td>" in page


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.both(x)


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.other(x)], -1)


def test_parameters_without_a_counterpart_make_no_difference_certain() -> None:
    found = verifycompile.compare(Fused(), (torch.ones(2, 4),), spec=Split())
    assert found.verdict is Verdict.UNPROVED
    assert any(
        "the spec's parameter `one.bias` has no counterpart, nor has the program's `both.bias`" in note
        for note in found.notes
    )
    assert ("grad.one.weight", "the parallel program has no such tensor") in found.not_compared


def test_names_that_differ_are_given() -> None:
    names = {"layer.weight": "both.weight", "layer.bias": "both.bias"}

    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    found = verifycompile.compare(Renamed(), (torch.ones(2, 4),), spec=Fused(), param_names=names)
    assert found.verdict is Verdict.VERIFIED, str(found)
    assert ("both.input.0", "the parallel program has no such tensor") not in found.not_compared
    assert ("layer.output.0", "the spec has no such tensor") in found.not_compared


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.layer(x))


def test_random_numbers_that_are_drawn_alike_agree_and_others_are_undecided() -> None:
    spec, x = Dropped(), torch.randn(4, 8)
    assert on_ranks(lambda mesh: Dropped(), (x,), spec=spec).verdict is Verdict.VERIFIED
    found = on_ranks(lambda mesh: Dropped(), (x,), spec=spec, in_placements={"x": (Shard(0),)})
    assert found.verdict is Verdict.UNPROVED
    assert any(note.startswith("random numbers were drawn") for note in found.notes)


def test_a_model_of_one_rank_does_not_speak_for_others() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.distributed.get_rank() + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    with fake_mesh_world((2,), ("tp",)) as mesh:
        found = verifycompile.compare(Asking(), (torch.ones(4),), spec=nn.Identity(), mesh=mesh)
    assert found.verdict is Verdict.UNPROVED
    assert [finding.code for finding in found.findings] == ["VC207"]
    built = on_ranks(lambda mesh: Asking(), (torch.ones(4),), spec=nn.Identity())
    assert built.verdict is Verdict.REFUTED
    assert "ranks that are off: 1" in str(built)


def test_ranks_that_hang_are_told() -> None:
    class Hangs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.distributed.get_rank() == 0:
                torch.distributed.all_reduce(x)
            return x

    found = on_ranks(lambda mesh: Hangs(), (torch.ones(4),), spec=nn.Identity())
    assert found.verdict is Verdict.UNPROVED
    assert "the ranks wait without end: rank 0 for all_reduce(sum)" in found.findings[0].message


class Remembers(nn.Module):
    """Adds what it was called with before."""

    def __init__(self, forgets: bool = False) -> None:
        super().__init__()
        self.layer, self.forgets = nn.Linear(4, 4), forgets
        self.cache, self.listed, self.kept = {"sum": torch.zeros(4)}, [torch.zeros(4)], None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) + self.cache["sum"] + (0 if self.kept is None else self.kept) * len(self.listed)
        self.cache["sum"] += 0 if self.forgets else 1
        self.listed.append(x)
        self.kept = x.detach()
        return y


def test_what_modules_keep_in_attributes_is_put_back_before_every_run() -> None:
    model, x = Remembers(), torch.randn(3, 4)
    given: dict[str, Any] = {"spec": Remembers(), "optimizer": functools.partial(torch.optim.SGD, lr=0.1), "steps": 2}
    assert verifycompile.compare(model, (x,), **given).verdict is Verdict.VERIFIED
    assert (len(model.listed), model.kept, float(model.cache["sum"].sum())) == (1, None, 0.0)
    found = verifycompile.compare(Remembers(forgets=True), (x,), **given)
    assert found.findings[0].output == "pass1.output.0"
    assert found.findings[0].label.startswith("`add` gives the first value of this forward")


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.tanh(self.layer(x)))


@pytest.mark.parametrize("left_out", ["", "norm.weight"])
@pytest.mark.parametrize("after", [False, True])
def test_the_copy_of_each_rank_has_the_hooks_of_the_model(left_out: str, after: bool) -> None:
    spec, x, rows = Normed(), torch.randn(4, 4), {"x": (Shard(0),)}
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = Normed()

        def replaced(parameter: nn.Parameter) -> None:
            assert parameter.grad is not None
            parameter.grad.copy_(all_reduce(parameter.grad, mesh.get_group()))

        for name, parameter in model.named_parameters():
            if name == left_out:
                continue
            if after:
                parameter.register_post_accumulate_grad_hook(replaced)
            else:
                parameter.register_hook(lambda gradient: all_reduce(gradient, mesh.get_group()))
        given = {"in_placements": rows, "mesh": mesh}
        found = verifycompile.compare(model, (x,), spec=spec, **given)
        recovered = verifycompile.compare(model, (x,), **given)
    assert found.verdict is (Verdict.REFUTED if left_out else Verdict.VERIFIED), str(found)
    assert [finding.output for finding in found.findings] == ([f"grad.{left_out}"] if left_out else [])
    # What a hook does on one device nobody has said.
    assert recovered.verdict is (Verdict.UNPROVED if left_out else Verdict.VERIFIED), str(recovered)
