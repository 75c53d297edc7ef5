"""Captured programs: names, layouts, groups, coordinates and sizes of spec and implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.placement_types import Placement
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from tests.programs.torch_transformer import ModelArgs, Transformer
from tests.support import fake_mesh, fake_mesh_world, fake_world
from verifycompile.capture import capture_implementation, capture_model, recover_spec
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.model import verify
from verifycompile.options import Options
from verifycompile.program import OutputKind, Program, Role
from verifycompile.torch_interface.ranks.parallelism import has_parallelism

TENSORS = (Role.INPUT, Role.PARAMETER, Role.BUFFER)
R = Replicate()


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MLP(), MLP()])
        self.register_buffer("running", torch.zeros(8))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> Any:
        for layer in self.layers:
            x = layer(x)
        self.running.add_(x.detach().mean(0))
        return x * scale + self.running, {"total": x.sum()}


def tensor_parallel(model: nn.Module, mesh: DeviceMesh, **layouts: Any) -> nn.Module:
    plan = {
        "up": ColwiseParallel(input_layouts=layouts.get("input_layouts")),
        "down": RowwiseParallel(output_layouts=layouts.get("output_layouts")),
    }
    for layer in model.layers if isinstance(model, Net) else [model]:
        parallelize_module(layer, mesh, plan)  # type: ignore[arg-type]
    return model


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((2, 4), ("dp", "tp"), rank=5) as mesh:
        yield mesh


def tensors(program: Program) -> dict[str, Any]:
    return {item.name: item for item in program.inputs if item.role in TENSORS}


def outputs(program: Program) -> dict[str, tuple[Placement, ...] | None]:
    return {item.name: item.placements for item in program.outputs}


def assert_alike(spec: Program, implementation: Program) -> None:
    """The same inputs at the same whole shapes, the same outputs and tangents, nothing blocked."""
    assert implementation.blockers == spec.blockers == ()
    assert {name: item.role for name, item in tensors(spec).items()} == {
        name: item.role for name, item in tensors(implementation).items()
    }
    for name, item in tensors(spec).items():
        other = tensors(implementation)[name]
        assert item.requires_grad == other.requires_grad, name
        whole = [sympy.sympify(size).xreplace(dict(implementation.size_values)) for size in other.global_shape]
        assert [sympy.sympify(size).xreplace(dict(spec.size_values)) for size in item.global_shape] == whole, name
    assert set(outputs(spec)) == set(outputs(implementation))
    assert {item.name for item in spec.inputs if item.role is Role.TANGENT} == {
        item.name for item in implementation.inputs if item.role is Role.TANGENT
    }


def compiled(function: Callable[..., Any], *args: Any, **options: Any) -> list[tuple[Program, Program]]:
    """Programs captured in a backend of torch.compile, one pair a graph."""
    torch._dynamo.reset()
    pairs: list[tuple[Program, Program]] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        chosen = Options.from_mapping(options)
        implementation = capture_implementation(graph, example_inputs, chosen)
        pairs.append((recover_spec(chosen, implementation), implementation))
        return graph.forward

    target = torch.compile(function, backend=backend)
    target(*args)
    return pairs


def test_tensor_parallel_mlp(mesh: DeviceMesh) -> None:
    model = tensor_parallel(MLP(), mesh["tp"])
    spec, implementation = capture_model(model, (torch.randn(4, 8),), {}, Options())
    assert_alike(spec, implementation)
    assert implementation.mesh is not None
    assert [(axis.name, axis.size) for axis in implementation.mesh.axes] == [("dp", 2), ("tp", 4)]
    assert implementation.mesh.ranks == tuple(range(8))
    inputs = tensors(implementation)
    assert inputs["x"].placements == (R, R)
    assert inputs["x"].assumed
    assert inputs["up.weight"].placements == (R, Shard(0))
    assert inputs["down.weight"].placements == (R, Shard(1))
    assert inputs["up.weight"].global_shape == (16, 8)
    assert not inputs["up.weight"].assumed
    assert outputs(implementation) == {
        "output.0": (R, R),  # whole over tp, as the DTensor says that it is taken from; over dp nothing is said
        "grad.up.weight": (R, Shard(0)),
        "grad.down.weight": (R, Shard(1)),
    }
    (tangent,) = [item for item in implementation.inputs if item.role is Role.TANGENT]
    assert (tangent.name, tangent.placements) == ("output.0", None)
    assert set(implementation.groups.values()) == {(1,)}
    assert spec.mesh is None
    assert all(item.placements is None for item in spec.inputs)


@pytest.mark.parametrize("sequence_parallel", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_transformer_of_torch(mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    model = Transformer(ModelArgs(n_layers=1, dropout_p=0.0))
    model = Transformer.parallelize(model, mesh["tp"], sequence_parallel, local_output_for_attn=True)
    tokens = torch.randint(0, 8, (2, 16))
    spec, implementation = capture_model(model, (tokens,), {}, Options())
    assert_alike(spec, implementation)
    assert "tokens" in tensors(implementation)
    assert set(implementation.coordinates.values()) == {1}
    changed, constructed = spec.assumptions
    assert changed == "the spec has `layers.0.attention.n_heads` = 4, as the model was constructed; it is 1 now"
    assert constructed == (
        "the spec has the numbers with which the model was constructed: `max_seq_len` = 16, `*.norm_type` = 2.0, "
        "`dropout.p` = 0.0, `layers.0.*.normalized_shape` = (16,), `layers.0.*.eps` = 1e-05, `layers.0.attention.head_dim`"
        " = 4, `layers.0.attention.dropout_p` = 0.0, `layers.0.*.resid_dropout.p` = 0.0, `norm.normalized_shape` = (16,), "
        "`norm.eps` = 1e-05"
    )
    ((compiled_spec, compiled_implementation),) = compiled(model, tokens)
    assert_alike(compiled_spec, compiled_implementation)
    assert set(tensors(compiled_implementation)) == set(tensors(implementation))
    assert len(compiled_spec.graph.graph.nodes) == len(spec.graph.graph.nodes)
    given, _ = capture_model(model, (tokens,), {}, Options(spec=Transformer(ModelArgs(n_layers=1, dropout_p=0.0))))
    assert [str(node.target) for node in given.graph.graph.nodes] == [
        str(node.target) for node in spec.graph.graph.nodes
    ]
    assert model.layers[0].attention.n_heads == 1


def test_gradients_and_tangents_of_dtensors(mesh: DeviceMesh) -> None:
    model = parallelize_module(
        nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8, bias=False)),
        mesh["tp"],
        {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1), use_local_output=False)},
    )
    _, implementation = capture_model(model, (torch.randn(2, 4, 8),), {}, Options())
    assert outputs(implementation) == {
        "output.0": (R, Shard(2)),
        "grad.0.weight": (R, Partial()),
        "grad.0.bias": (R, Partial()),
        "grad.1.weight": (R, Shard(0)),
    }
    assert {item.declared for item in implementation.outputs} == {"DTensor metadata"}
    (tangent,) = [item for item in implementation.inputs if item.role is Role.TANGENT]
    assert tangent.placements == (R, Shard(2))
    assert tangent.global_shape == (2, 16, 8)
    assert tensors(implementation)["input"].placements == (R, Shard(1))
    assert tensors(implementation)["input"].global_shape == (2, 16, 8)


def test_a_gradient_that_is_no_dtensor_is_whole(mesh: DeviceMesh) -> None:
    """Zeros that AOTAutograd makes for an input of which no output depends smoothly: plain, of the whole shape."""
    x = distribute_tensor(torch.randn(8, 4), mesh["tp"], [Shard(0)]).requires_grad_()
    _, implementation = capture_model(lambda v: torch.sgn(v), (x,), {}, Options.from_mapping({}))
    gradient = next(item for item in implementation.outputs if item.kind is OutputKind.GRADIENT)
    assert tuple(gradient.node.meta["val"].shape) == (8, 4)
    assert gradient.placements == (R, R)
    assert gradient.declared == "its plain gradient's shape"
    assert verify(lambda v: torch.sgn(v), (x,)).verdict is Verdict.VERIFIED


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("wrap", ["model", "compile method", "step", "global step", "closure", "method", "hooked"])
def test_ways_to_compile(mesh: DeviceMesh, wrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tensor_parallel(Net(), mesh["tp"])
    x = torch.randn(4, 8)
    monkeypatch.setitem(globals(), "global_model", model)

    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x)[0], y)

    def closure(x: torch.Tensor) -> torch.Tensor:
        return model(x)[0].sum()

    class Trainer:
        def __init__(self) -> None:
            self.model = model

        def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.model(batch["x"])[0].sum()

    if wrap == "hooked":
        model.register_forward_hook(lambda module, args, output: output)
    function, args, prefix = {
        "model": (model, (x,), "x"),
        "hooked": (model, (x,), "x"),
        "compile method": (model, (x,), "x"),
        "step": (step, (model, x, x.clone()), "x"),
        "global step": (global_step, (x,), "x"),
        "closure": (closure, (x,), "x"),
        "method": (Trainer().step, ({"x": x},), "batch.x"),
    }[wrap]
    before = {name: id(value) for name, value in model.named_parameters()}
    spec, implementation = capture_model(function, args, {}, Options())
    assert_alike(spec, implementation)
    ((compiled_spec, compiled_implementation),) = compiled(function, *args)
    assert_alike(compiled_spec, compiled_implementation)
    for program in (implementation, compiled_implementation):
        names = {"layers.0.up.weight", "layers.0.down.weight", "layers.1.up.weight", "layers.1.down.weight"}
        assert {name for name, item in tensors(program).items() if item.role is Role.PARAMETER} == names
        assert {name for name, item in tensors(program).items() if item.role is Role.BUFFER} == {"running"}
        assert prefix in tensors(program)
        assert outputs(program)["mutation.running"] == (R, R)
    assert {name: id(value) for name, value in model.named_parameters()} == before
    assert isinstance(model.layers[0].up.weight, DTensor)


global_model: nn.Module | None = None


def global_step(x: torch.Tensor) -> torch.Tensor:
    assert global_model is not None
    return global_model(x)[0].sum()


def test_compiled_models_are_unwrapped(mesh: DeviceMesh) -> None:
    model = torch.compile(tensor_parallel(Net(), mesh["tp"]))
    for _ in range(2):
        assert_alike(*capture_model(model, (torch.randn(4, 8),), {}, Options()))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo, of a block's input
def test_blocks_compiled_one_by_one(mesh: DeviceMesh) -> None:
    model = tensor_parallel(Net(), mesh["tp"])
    names: list[set[str]] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        implementation = capture_implementation(graph, example_inputs, Options())
        recover_spec(Options(), implementation)
        names.append(set(tensors(implementation)))
        return graph.forward

    for layer in model.layers:  # type: ignore[union-attr]
        layer.compile(backend=backend)  # type: ignore[union-attr]
    model(torch.randn(4, 8))
    assert names == [{"x", "up.weight", "down.weight"}] * 2


def test_dtensor_inputs(mesh: DeviceMesh) -> None:
    weight = nn.Parameter(distribute_tensor(torch.randn(8, 8), mesh, [Shard(0), Shard(1)]))
    x = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0), Replicate()])
    spec, implementation = capture_model(lambda x, weight: x * weight[:4].sum(), (x, weight), {}, Options())
    assert tensors(implementation)["x"].placements == (Shard(0), R)
    assert tensors(implementation)["weight"].placements == (Shard(0), Shard(1))
    assert tensors(implementation)["weight"].role is Role.INPUT
    assert tensors(implementation)["weight"].requires_grad
    assert tensors(spec)["x"].global_shape == (4, 8)


def test_forward_only_without_grad(mesh: DeviceMesh) -> None:
    model = tensor_parallel(MLP(), mesh["tp"])
    with torch.no_grad():
        spec, implementation = capture_model(model, (torch.randn(4, 8),), {}, Options())
        ((compiled_spec, compiled_implementation),) = compiled(model, torch.randn(4, 8))
    for program in (spec, implementation, compiled_spec, compiled_implementation):
        assert list(outputs(program)) == ["output.0"]
        assert not [item for item in program.inputs if item.role is Role.TANGENT]


def test_training_and_evaluation_mode(mesh: DeviceMesh) -> None:
    class Dropped(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(super().forward(x), 0.5, training=self.training)

    model = tensor_parallel(Dropped(), mesh["tp"])
    for training in (True, False):
        model.train(training)
        for program in capture_model(model, (torch.randn(4, 8),), {}, Options()):
            assert any("dropout" in str(node.target) for node in program.graph.graph.nodes) == training


def test_autocast(mesh: DeviceMesh) -> None:
    model = tensor_parallel(MLP(), mesh["tp"])
    with torch.autocast("cpu", torch.bfloat16):
        spec, implementation = capture_model(model, (torch.randn(4, 8),), {}, Options())
    for program in (spec, implementation):
        casts = [node for node in program.graph.graph.nodes if "_to_copy" in str(node.target)]
        assert len(casts) >= 5
    assert_alike(spec, implementation)


def test_outputs_in_the_users_order(mesh: DeviceMesh) -> None:
    class Many(MLP):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
            y = super().forward(x)
            self.last = x * 2
            return x, {"b": y, "a": (x + 1, None, 3)}, y

    model = tensor_parallel(Many(), mesh["tp"])
    ((spec, implementation),) = compiled(model, torch.randn(4, 8))
    assert_alike(spec, implementation)
    values = {item.name: item.node for item in implementation.outputs if item.kind is OutputKind.VALUE}
    assert sorted(values) == ["output.0", "output.1", "output.2", "output.3", "output.4"]
    assert values["output.0"].op == "placeholder"  # `x` itself
    assert values["output.1"] is values["output.3"]
    assert str(values["output.2"].target) == "aten.add.Tensor"
    assert str(values["output.4"].target) == "aten.mul.Tensor"  # `self.last`


def test_dynamic_batch(mesh: DeviceMesh) -> None:
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    model = tensor_parallel(MLP(), mesh["tp"])
    spec, implementation = capture_model(model, (x,), {}, Options())
    assert_alike(spec, implementation)
    (symbol,) = tensors(implementation)["x"].global_shape[0].free_symbols
    (spec_symbol,) = tensors(spec)["x"].global_shape[0].free_symbols
    assert spec.size_values == {spec_symbol: symbol}
    assert not isinstance(x.shape[0], torch.SymInt)


def test_dynamic_batch_sharded(mesh: DeviceMesh) -> None:
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    model = tensor_parallel(MLP(), mesh["tp"], input_layouts=Shard(0), output_layouts=Shard(0))
    ((spec, implementation),) = compiled(model, x)
    assert_alike(spec, implementation)
    (symbol,) = tensors(implementation)["x"].global_shape[0].free_symbols
    assert tensors(implementation)["x"].global_shape[0] == 4 * symbol
    assert list(spec.size_values.values()) == [4 * symbol]


def test_divisibility_guards_are_solved(mesh: DeviceMesh) -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 8)
            self.norm = nn.LayerNorm(8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.norm(self.embedding(tokens))

    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
    }
    model = parallelize_module(Embedded(), mesh["tp"], plan)
    tokens = torch.randint(0, 32, (2, 16))
    torch._dynamo.mark_dynamic(tokens, 1)
    spec, implementation = capture_model(model, (tokens,), {}, Options())
    assert_alike(spec, implementation)
    ((symbol, value),) = implementation.size_values.items()
    assert value == 4 * sympy.Symbol(f"{symbol.name}_4", integer=True, positive=True)
    assert not any(sympy.Eq(sympy.Mod(symbol, 4), 0) == guard for guard in implementation.guards)
    assert list(spec.size_values.values()) == [value]


def test_explicit_collectives(mesh: DeviceMesh) -> None:
    group = mesh["tp"].get_group()

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 4, bias=False)
            self.down = nn.Linear(4, 8, bias=False)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return collectives.all_reduce(self.down(torch.relu(self.up(x))), "sum", group)

    options = Options(
        spec=MLP(),
        mesh=mesh,
        in_placements={"x": (Shard(0), R)},
        param_placements={"up.*": (R, Shard(0)), "down.weight": (R, Shard(1))},
        out_placements={"output.0": (Shard(0), R)},
        grad_placements={"up.weight": (Partial(), Shard(0))},
    )
    spec, implementation = capture_model(Local(), (torch.randn(4, 8),), {}, options)
    assert_alike(spec, implementation)
    assert tensors(implementation)["x"].global_shape == (8, 8)
    assert not tensors(implementation)["x"].assumed
    assert outputs(implementation) == {
        "output.0": (Shard(0), R),
        "grad.up.weight": (Partial(), Shard(0)),
        "grad.down.weight": (R, Shard(1)),
    }
    declared = {item.name: item.declared for item in implementation.outputs}
    assert declared == {
        "output.0": "out_placements",
        "grad.up.weight": "grad_placements",
        "grad.down.weight": "the parameter's placements",
    }
    assert list(implementation.groups.values()) == [(1,)]
    (tangent,) = [item for item in implementation.inputs if item.role is Role.TANGENT]
    assert tangent.placements == (Shard(0), R)
    assert implementation.assumptions == ("the model object is the one that rank 5 built, and stands for all 8 ranks",)


def test_a_given_callable_and_other_names(mesh: DeviceMesh) -> None:
    model = tensor_parallel(MLP(), mesh["tp"])
    sequential = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 8, bias=False))
    options = Options(spec=sequential, param_names={"up.weight": "0.weight", "down.weight": "2.weight"})
    spec, implementation = capture_model(model, (torch.randn(4, 8),), {}, options)
    assert_alike(spec, implementation)
    assert set(tensors(spec)) == {"x", "0.weight", "2.weight"}

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    def other_step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).mean() * x.numel()

    spec, implementation = capture_model(step, (model, torch.randn(4, 8)), {}, Options(spec=other_step))
    assert_alike(spec, implementation)
    spec, implementation = capture_model(step, (model, torch.randn(4, 8)), {}, Options(spec=MLP()))
    assert_alike(spec, implementation)


def test_frozen_parameters(mesh: DeviceMesh) -> None:
    model = tensor_parallel(MLP(), mesh["tp"])
    model.up.weight.requires_grad_(False)  # type: ignore[union-attr]
    given = MLP()
    given.up.weight.requires_grad_(False)
    for options in (Options(), Options(spec=given)):
        spec, implementation = capture_model(model, (torch.randn(4, 8),), {}, options)
        assert_alike(spec, implementation)
        assert "grad.up.weight" not in outputs(spec)


def test_a_spec_on_the_meta_device(mesh: DeviceMesh) -> None:
    with torch.device("meta"):
        given = MLP()
    model = tensor_parallel(MLP(), mesh["tp"])
    assert_alike(*capture_model(model, (torch.randn(4, 8),), {}, Options(spec=given)))
    assert given.up.weight.is_meta


def test_tied_parameters(mesh: DeviceMesh) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 8)
            self.head = nn.Linear(8, 32, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(tokens))

    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    model = parallelize_module(Tied(), mesh["tp"], plan)
    model.head.weight = model.embedding.weight
    for options in (Options(), Options(spec=Tied())):
        spec, implementation = capture_model(model, (torch.randint(0, 32, (2, 4)),), {}, options)
        assert_alike(spec, implementation)
        assert set(tensors(implementation)) == {"tokens", "embedding.weight"}


def test_checkpoint_wrappers_do_not_show_in_names(mesh: DeviceMesh) -> None:
    model = tensor_parallel(Net(), mesh["tp"])
    model.layers[0] = checkpoint_wrapper(model.layers[0])  # type: ignore[index]
    spec, implementation = capture_model(model, (torch.randn(4, 8),), {}, Options())
    assert_alike(spec, implementation)
    assert "layers.0.up.weight" in tensors(implementation)


def test_a_checkpointed_layer_that_changes_what_is_outside_of_it(mesh: DeviceMesh) -> None:
    model = tensor_parallel(MLP(), mesh["tp"])
    calls: list[str] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append("layer")
        return model(x)

    def run(x: torch.Tensor) -> Any:
        return checkpoint(counted, x, use_reentrant=False)

    report = verify(run, (torch.randn(4, 8),))
    assert report.verdict is Verdict.VERIFIED
    assert any("checkpointed functions" in text for text in report.assumptions)
    assert calls == []
    plain = verify(lambda x: checkpoint(model, x, use_reentrant=False), (torch.randn(4, 8),))
    assert plain.verdict is Verdict.VERIFIED
    assert not any("checkpointed functions" in text for text in plain.assumptions)


def test_a_frame_that_is_the_wrapper_of_a_module(mesh: DeviceMesh) -> None:
    """What Dynamo compiles on its own where the program around it has a graph break."""

    def wrapper(scale: float) -> Callable[..., Any]:
        layer = nn.Linear(16, 8, bias=False)
        layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh["tp"], [Shard(1)]))
        original = layer.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            placed = DTensor.from_local(x, mesh["tp"], [Shard(1)], run_check=False)
            return original(placed * scale).redistribute(placements=[R]).to_local()

        layer.forward = forward
        return forward

    report = verify(wrapper(1.0), (torch.randn(4, 4),))
    assert report.verdict is Verdict.VERIFIED
    assert any("communicates and moves data only" in text for text in report.assumptions)
    assert verify(wrapper(0.5), (torch.randn(4, 4),)).verdict is Verdict.REFUTED


def test_parametrizations_that_gather(mesh: DeviceMesh) -> None:
    class Gather(nn.Module):
        def forward(self, weight: DTensor) -> torch.Tensor:
            return weight.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

    model = MLP()
    for layer in (model.up, model.down):
        layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh["dp"], [Shard(0)]))
        parametrize.register_parametrization(layer, "weight", Gather(), unsafe=True)
    options = Options(in_placements={"x": (Shard(0), R)})
    spec, implementation = capture_model(model, (torch.randn(4, 8),), {}, options)
    assert_alike(spec, implementation)
    assert outputs(implementation)["grad.up.weight"] == (Shard(0), R)
    assert spec.assumptions == ("parametrization Gather of `weight` in Linear only moves data; the spec is without it",)


def test_flattened_mesh_axes() -> None:
    with fake_world(8, rank=5):
        mesh = fake_mesh((2, 2, 2), ("pp", "dp", "tp"))
        flat = mesh["dp", "tp"]._flatten("both")
        whole = distribute_tensor(torch.randn(8, 4), flat, [Replicate()])
        spec, implementation = capture_model(
            lambda x: x.redistribute(placements=[Shard(0)]) * 2, (whole,), {}, Options(spec=lambda x: x * 2)
        )
        assert implementation.blockers == ()
        assert outputs(implementation) == {"output.0": (R, Shard(0), Shard(0))}
        ((symbol, value),) = implementation.size_values.items()
        first, second = (sympy.Symbol(f"coordinate_{axis}", integer=True, nonnegative=True) for axis in (1, 2))
        assert value == 2 * first + second
        assert implementation.coordinates == {first: 1, second: 2}
        assert symbol not in implementation.coordinates
        assert tensors(spec)["x"].global_shape == (8, 4)


def test_parallelism_is_detectable(mesh: DeviceMesh) -> None:
    found: list[bool] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        found.append(has_parallelism(graph, example_inputs))
        return graph.forward

    for function in (
        MLP(),
        tensor_parallel(MLP(), mesh["tp"]),
        lambda x: collectives.all_reduce(x, "sum", mesh["tp"].get_group()),
    ):
        torch.compile(function, backend=backend)(torch.randn(4, 8))
    assert found == [False, True, True]


def test_the_dynamo_graph_can_be_compiled_after_capture(mesh: DeviceMesh) -> None:
    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        code = graph.code
        implementation = capture_implementation(graph, example_inputs, Options())
        recover_spec(Options(), implementation)
        assert graph.code == code
        return torch._dynamo.lookup_backend("aot_eager")(graph, example_inputs)

    model = torch.compile(tensor_parallel(MLP(), mesh["tp"]), backend=backend)
    model(torch.randn(4, 8)).sum().backward()
    assert isinstance(model.up.weight.grad, DTensor)


def test_seconds_are_measured(mesh: DeviceMesh) -> None:
    spec, implementation = capture_model(tensor_parallel(MLP(), mesh["tp"]), (torch.randn(4, 8),), {}, Options())
    assert spec.seconds > 0
    assert implementation.seconds > 0
