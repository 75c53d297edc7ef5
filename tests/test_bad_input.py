"""Misuse of the public functions: each is refused with one sentence that says what to type."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from verifycompile import RefinementError, UsageError, Verdict, compare, verify, verify_graphs
from verifycompile.testing import fake_mesh, over_meshes, run_on_ranks
from verifycompile.torch_interface.errors import CompileUsageError

X = torch.ones(4, 8)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Added(Perceptron):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x) + y


def parallel(mesh: DeviceMesh, kind: type[nn.Module] = Perceptron) -> nn.Module:
    return parallelize_module(kind(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


class Silent(Perceptron):
    def forward(self, x: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().forward(x)


class Listed(Perceptron):
    def forward(self, x: list[torch.Tensor]) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x[0])


def doubled() -> torch.fx.GraphModule:
    return make_fx(lambda x: x * 2)(X)


def compiled(mesh: DeviceMesh, **options: Any) -> torch.Tensor:
    return torch.compile(parallel(mesh), backend="verify", options=options)(X)


def itself(mesh: DeviceMesh) -> Any:
    model = parallel(mesh)
    return verify(model, (X,), spec=model)


class Holder:
    def __init__(self, model: nn.Module, reference: nn.Module | None = None) -> None:
        self.model, self.reference = model, reference

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) if self.reference is None else self.reference(x)


def held_by(mesh: DeviceMesh, holder: Callable[[nn.Module], Any]) -> Any:
    model = parallel(mesh)
    return verify(model, (X,), spec=holder(model))


def yielding(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x


class Raising(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not today")


HELD = "error[VC307]: the option `spec` is no single-device program: it holds DTensors or collectives."
TUPLE = "error[VC306]: `args` must be a tuple of arguments, not a value of type"
CALL = "error[VC303]: the model cannot be called with these `args` and `kwargs`:"
RUN = "error[VC303]: the model does not run on these inputs."
MODEL = "error[VC306]: `model` must be an nn.Module or a Python function;"
RANK_GRAPHS = (
    "error[VC306]: `rank_graphs` must be a list of torch.fx.GraphModules, one a rank, or one graph that all ranks run."
)
PLACEMENTS = "error[VC306]: option `in_placements`"
OPTIONS = (
    "the options are `spec`, `mesh`, `in_placements`, `param_placements`, `param_names`, `out_placements`, "
    "`grad_placements`, `build`, `per_rank_numbers`, `inner`, `on_unproved`, `time_limit`, `memory_limit`, `waivers`."
)
MISUSE: dict[str, tuple[Callable[[DeviceMesh], Any], str]] = {
    "a tensor as args": (lambda m: verify(parallel(m), X), f"{TUPLE} `Tensor`: write `(x,)`."),
    "a function of C": (lambda m: verify(torch.relu, (X,), mesh=m), "error[VC306]: `relu` is not written in Python, so that torch cannot trace it: pass a module or a function."),
    "a number as args": (lambda m: verify(parallel(m), 3), f"{TUPLE} `int`: write `(x,)`."),
    "text as args": (lambda m: verify(parallel(m), "x"), f"{TUPLE} `str`: write `(x,)`."),
    "a mapping as args": (lambda m: verify(parallel(m), {"x": X}), f"{TUPLE} `dict`: write `(x,)`."),
    "no args": (lambda m: verify(parallel(m)), f"{CALL} missing a required argument: 'x'."),
    "too many args": (lambda m: verify(parallel(m), (X, X)), f"{CALL} too many positional arguments."),
    "unknown kwargs": (lambda m: verify(parallel(m), (X,), {"z": 1}), f"{CALL} got an unexpected keyword argument 'z'."),
    "a list as kwargs": (lambda m: verify(parallel(m), (), [1]), "error[VC306]: `kwargs` must map names of arguments to values."),
    "a number in kwargs": (lambda m: verify(parallel(m), (), {1: X}), "error[VC306]: `kwargs` must map names of arguments to values."),
    "another width": (lambda m: verify(parallel(m), (torch.ones(4, 7),)), RUN),
    "None for a tensor": (lambda m: verify(parallel(m), (None,)), RUN),
    "a scalar": (lambda m: verify(parallel(m), (torch.tensor(1.0),)), RUN),
    "complex numbers": (lambda m: verify(parallel(m), (X.to(torch.complex64),)), RUN),
    "a tensor without memory": (lambda m: verify(parallel(m), (X.to("meta"),)), RUN),
    "a sparse tensor": (lambda m: verify(parallel(m), (torch.eye(4, 8).to_sparse(),)), "error[VC306]: the arguments hold a tensor in the layout torch.sparse_coo, which torch does not trace: pass its `to_dense()`."),
    "a nested tensor": (
        lambda m: verify(parallel(m), (torch.nested.nested_tensor([torch.ones(2, 8)]),)),
        "error[VC306]: the arguments hold a nested tensor, whose rows torch does not trace as one tensor: pass one that is padded.",
    ),
    "a quantized tensor": (
        lambda m: verify(parallel(m), (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),)),
        "error[VC306]: the arguments hold a quantized tensor, which torch does not trace: pass its `dequantize()`.",
    ),
    "a class as spec": (lambda m: verify(parallel(m), (X,), spec=Perceptron), "error[VC306]: option `spec` must be an nn.Module or a function; it is the class `Perceptron`: make a model of it first."),
    "no model": (lambda _: verify(None, (X,)), "error[VC306]: there is nothing to verify: pass a model, or the option `build` that makes it."),
    "a number as model": (lambda _: verify(3, (X,)), f"{MODEL} it is a value of type `int`, which cannot be called."),
    "a list as model": (lambda m: verify([parallel(m)], (X,)), f"{MODEL} it is a value of type `list`, which cannot be called."),
    "a class as model": (lambda _: verify(Perceptron, (X,)), f"{MODEL} it is the class `Perceptron`: make a model of it first."),
    "an exported program as model": (
        lambda m: verify(torch.export.export(Perceptron(), (X,)), (X,), mesh=m),
        f"{MODEL} it is an exported program: pass the model that was exported, or its graphs to `verify_graphs`.",
    ),
    "a scripted model": (
        lambda m: verify(torch.jit.script(Perceptron()), (X,), mesh=m),
        f"{MODEL} it is scripted: pass the Python program that was scripted.",
    ),
    "a model that returns nothing": (lambda m: verify(parallel(m, Silent), (X,)), "error[VC306]: the model returns no tensor and changes none, so that there is nothing to verify: return what it computes."),
    "a builder of a class": (lambda _: verify(None, (X,), build=lambda: Perceptron), f"{MODEL} it is the class `Perceptron`: make a model of it first."),
    "a generator as model": (lambda m: verify(yielding, (X,), mesh=m), "error[VC306]: `yielding` yields or awaits: torch traces functions that return their results."),
    "arguments of a spec given twice": (lambda m: verify(parallel(m), (X,), spec=functools.partial(Perceptron(), X)), "error[VC306]: the option `spec` cannot be called as the model is: too many positional arguments."),
    "the model in a partial as its own spec": (lambda m: held_by(m, functools.partial), HELD),
    "a method of the model as its own spec": (lambda m: held_by(m, lambda model: model.forward), HELD),
    "an object that holds the model as its own spec": (lambda m: held_by(m, Holder), HELD),
    "a number to compare": (lambda _: compare(3, (X,)), f"{MODEL} it is a value of type `int`, which cannot be called."),
    "a tensor as args of compare": (lambda m: compare(parallel(m), X, spec=Perceptron()), f"{TUPLE} `Tensor`: write `(x,)`."),
    "a tensor as one of the batches": (lambda m: compare(parallel(m), batches=[X], spec=Perceptron()), "error[VC306]: each of `batches` must be a tuple of arguments: write `(x,)`."),
    "a number as optimizer": (lambda m: compare(parallel(m), (X,), spec=Perceptron(), optimizer=3), "error[VC306]: option `optimizer` must be a function of parameters: write `lambda parameters: torch.optim.SGD(parameters, lr=0.1)`."),
    "a number to clip at": (lambda m: compare(parallel(m), (X,), spec=Perceptron(), optimizer=torch.optim.SGD, clip=1.0), "error[VC306]: option `clip` must be a function of parameters: write `lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0)`."),
    "a number as batches": (lambda m: compare(parallel(m), batches=3, spec=Perceptron()), "error[VC306]: option `batches` is a list of the arguments of each pass, in the place of `args`."),
    "text as number of steps": (lambda m: compare(parallel(m), (X,), spec=Perceptron(), optimizer=torch.optim.SGD, steps="2"), "error[VC306]: options `steps` and `accumulation` must be whole numbers greater than zero."),
    "text as proof": (lambda m: compare(parallel(m), (X,), spec=Perceptron(), proof="report"), "error[VC306]: option `proof` must be a report of `verifycompile.verify`."),
    "no args of compare": (lambda m: compare(parallel(m), spec=Perceptron()), f"{CALL} missing a required argument: 'x'."),
    "a dimension that is none of compare": (lambda m: compare(parallel(m), (X,), spec=Perceptron(), in_placements={"x": Shard(5)}), "error[VC303]: `x` has 2 dimensions, but its placement is Shard(dim=5): (Shard(dim=5),)."),
    "a function that makes no optimizer": (lambda m: compare(parallel(m), (X,), spec=Perceptron(), optimizer=lambda p: None), "error[VC306]: option `optimizer` must be a function that makes an optimizer: it returned a value of type `NoneType`."),
    "no patience": (lambda m: compare(parallel(m), (X,), spec=Perceptron(), patience=-1), "error[VC306]: option `patience` must be a number of seconds greater than zero."),
    "an unknown mode": (
        lambda m: torch.compile(parallel(m), backend="verify", mode="nope")(X),
        "error[VC306]: argument `mode` of torch.compile: Unrecognized mode=nope, should be one of: default, lite, reduce-overhead, max-autotune-no-cudagraphs, max-autotune.",
    ),
    "a number to cross_check": (lambda _: verifycompile.cross_check(3, (X,)), f"{MODEL} it is a value of type `int`, which cannot be called."),
    "a number as spec": (lambda m: verify(parallel(m), (X,), spec=3), "error[VC306]: option `spec` must be an nn.Module or a callable."),
    "a spec with another argument": (lambda m: verify(parallel(m), (X,), spec=Added()), "error[VC306]: the option `spec` cannot be called as the model is: missing a required argument: 'y'."),
    "a spec with another default": (
        lambda m: verify(lambda x, scale=1.0: x * scale, (X,), spec=lambda x, scale=2.0: x * scale, mesh=m),
        "error[VC306]: the option `spec` has the default 2.0 for `scale`, and the model has 1.0: a call that leaves it out means something else to each. Give both the same default.",
    ),
    "a spec with the arguments in another order": (
        lambda m: verify(lambda x, y: x - y, (X, X), spec=lambda y, x: x - y, mesh=m),
        "error[VC306]: the option `spec` takes `y` where the model takes `x`, and both take the two: whether a call passes them by place or by name is not known. Let both take them in the same order.",
    ),
    "a spec of other parameters": (
        lambda m: verify(parallel(m), (X,), spec=nn.Linear(8, 8)),
        "error[VC304]: the spec and the model have different parameters. Only in the model: `down.bias`, `down.weight`, `up.bias`, `up.weight`. Only in the spec: `bias`, `weight`. Map names that differ with the option `param_names`.",
    ),
    "the model as its own spec": (itself, "error[VC307]: the option `spec` is no single-device program: its tensor `up.weight` is a DTensor."),
    "a spec in a wrapper": (
        lambda m: verify(parallel(m), (X,), spec=nn.parallel.DistributedDataParallel(Perceptron())),
        "error[VC307]: the option `spec` is no single-device program: it is wrapped in `DistributedDataParallel`: pass the module that was wrapped, `spec.module`.",
    ),
    "a plain model without a mesh": (lambda _: verify(Perceptron(), (X,)), "error[VC301]: no device mesh: no parameter or input of this graph is a DTensor. Name the mesh of your process groups with the option `mesh`."),
    "a number as mesh": (lambda m: verify(parallel(m), (X,), mesh=2), 'error[VC306]: option `mesh` must be a DeviceMesh: make one with `torch.distributed.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))`.'),
    "placements in a list": (lambda m: verify(parallel(m), (X,), in_placements=[Shard(0)]), f"{PLACEMENTS} must map names to tuples of placements: `in_placements={{\"x\": (Shard(0),)}}`."),
    "placements as text": (lambda m: verify(parallel(m), (X,), in_placements={"x": "Shard(0)"}), f'{PLACEMENTS}: the value for `x` must be a tuple of placements: write `{{"x": (Shard(0),)}}`.'),
    "placements of a position": (lambda m: verify(parallel(m), (X,), in_placements={0: Shard(0)}), f"{PLACEMENTS} must map names to tuples of placements; `0` is no name."),
    "placements of an unknown input": (lambda m: verify(parallel(m), (X,), in_placements={"z": Shard(0)}), f"{PLACEMENTS} names `z`; the plain tensor inputs are `x`."),
    "placements of a part of a tensor": (lambda m: verify(parallel(m), (X,), in_placements={"x.0": Shard(0)}), f"{PLACEMENTS} names `x.0`; the plain tensor inputs are `x`."),
    "placements of an item that is none": (lambda m: verify(parallel(m, Listed), ([X],), in_placements={"x.1": Shard(0)}), f"{PLACEMENTS} names `x.1`; the plain tensor inputs are `x.0`."),
    "too many placements": (lambda m: verify(parallel(m), (X,), in_placements={"x": (Shard(0), Shard(1))}), "error[VC303]: `x` has 2 placements, but the mesh has 1 axis (tp)."),
    "no placements": (lambda m: verify(parallel(m), (X,), in_placements={"x": ()}), "error[VC303]: option `in_placements`: `x` has 0 placements, but the mesh has 1 axis (tp)."),
    "no placements of an output": (lambda m: verify(lambda x: x * 2, (X,), mesh=m, out_placements={"output.0": ()}), "error[VC303]: `output.0` has 0 placements, but the mesh has 1 axis (tp)."),
    "a dimension from the end": (lambda m: verify(parallel(m), (X,), in_placements={"x": Shard(-1)}), f"{PLACEMENTS}: `x` counts a dimension from the end, S(-1); count it from the front."),
    "a dimension that is none": (lambda m: verify(parallel(m), (X,), in_placements={"x": Shard(5)}), "error[VC303]: `x` has 2 dimensions, but its placement is Shard(dim=5): (Shard(dim=5),)."),
    "placements of a DTensor": (lambda m: verify(parallel(m), (X,), param_placements={"up.weight": Shard(1)}), "error[VC310]: option `param_placements` does not apply to `up.weight`: it is a DTensor and has placements (S(0)) of its own."),
    "placements of no parameter": (lambda m: verify(parallel(m), (X,), param_placements={"z.*": Shard(1)}), "error[VC306]: option `param_placements`: nothing matches `z.*`; the plain tensors are none."),
    "names in a list": (lambda m: verify(parallel(m), (X,), param_names=["up"]), "error[VC306]: option `param_names` must map implementation names to spec names."),
    "a name that the spec does not have": (
        lambda m: verify(parallel(m), (X,), spec=Perceptron(), param_names={"up.weight": "z"}),
        "error[VC304]: option `param_names` maps `up.weight` to `z`, which the spec does not have; its tensors are `down.bias`, `down.weight`, `up.bias`, `up.weight`.",
    ),
    "one name for two tensors": (
        lambda m: verify(parallel(m), (X,), spec=Perceptron(), param_names={"up.weight": "up.bias", "up.bias": "up.bias"}),
        "error[VC304]: option `param_names` maps `up.weight` and `up.bias` both to `up.bias`.",
    ),
    "a number as a name": (lambda m: verify(parallel(m), (X,), param_names={"up.weight": 3}), "error[VC306]: option `param_names` must map implementation names to spec names."),
    "an unknown output": (lambda m: verify(parallel(m), (X,), out_placements={"output.7": Shard(0)}), "error[VC306]: option `out_placements` names `output.7`; the outputs are `output.0`."),
    "an unknown option": (lambda m: verify(parallel(m), (X,), placements={}), f"error[VC306]: unknown option `placements`; did you mean `in_placements`? The {OPTIONS.removeprefix('the ')}"),
    "ignoring what is unproved": (lambda m: verify(parallel(m), (X,), on_unproved="ignore"), 'error[VC306]: option `on_unproved` must be "error" or "warn".'),
    "text as time": (lambda m: verify(parallel(m), (X,), time_limit="10"), "error[VC306]: option `time_limit` must be a number of seconds greater than zero."),
    "no memory": (lambda m: verify(parallel(m), (X,), memory_limit=0), "error[VC306]: option `memory_limit` must be a number of bytes greater than zero."),
    "a number as builder": (lambda _: verify(None, (X,), build=3), "error[VC306]: option `build` must be a callable without arguments that makes the model."),
    "a builder of nothing": (lambda _: verify(None, (X,), build=lambda: None), "error[VC306]: option `build` must make the parallel model; it made a value of type `NoneType` for this rank."),
    "a builder that fails": (lambda _: verify(None, (X,), build=lambda: 1 / 0), "error[VC306]: option `build` failed when it was called for this rank: ZeroDivisionError: division by zero"),
    "one pattern": (lambda m: verify(parallel(m), (X,), per_rank_numbers="n"), "error[VC306]: option `per_rank_numbers` must be a list of patterns of attributes."),
    "an unknown number": (lambda m: verify(parallel(m), (X,), per_rank_numbers=["z"]), "error[VC306]: `per_rank_numbers` names `z`, which is no number that the program reads; those are none."),
    "an unknown inner backend": (lambda m: compiled(m, inner="nope"), "error[VC306]: option `inner` names no backend of torch.compile: `nope`; `torch.compiler.list_backends(())` lists them."),
    "an inner backend that returns nothing": (
        lambda m: compiled(m, inner=lambda graph, inputs: None),
        "error[VC306]: the backend that compiles what was verified must return a function of the graph's inputs, not a value of type `NoneType`.",
    ),
    "a number as inner backend": (lambda m: compiled(m, inner=3), "error[VC306]: option `inner` must be the name of a backend of torch.compile, or a callable."),
    "itself as inner backend": (lambda m: compiled(m, inner="verify"), "error[VC306]: option `inner` must be another backend than `verify`."),
    "options without names": (
        lambda m: torch.compile(parallel(m), backend="verify", options=["spec"])(X),  # type: ignore[arg-type]
        "error[VC306]: `options` must map names of options to values: `options={...}`.",
    ),
    "an unknown option of the backend": (lambda m: compiled(m, z=3), f"error[VC306]: unknown option `z`; {OPTIONS}"),
    "text as graphs": (lambda _: verify_graphs("a", "b"), RANK_GRAPHS),
    "a module as graphs": (lambda _: verify_graphs(doubled(), Perceptron()), RANK_GRAPHS),
    "no graphs": (lambda _: verify_graphs(doubled(), []), RANK_GRAPHS),
    "numbers as graphs": (lambda _: verify_graphs(doubled(), [1, 2]), "error[VC306]: the graph of rank 0 is no torch.fx.GraphModule but of type `int`: pass what `make_fx(f)(*args)` returns."),
    "exported programs as graphs": (
        lambda _: verify_graphs(torch.export.export(Perceptron(), (X,)), [doubled()]),
        "error[VC306]: the spec's graph is no torch.fx.GraphModule but of type `ExportedProgram`: pass its `module()`.",
    ),
    "graphs of the ranks before the spec's": (lambda _: verify_graphs([doubled()], doubled()), "error[VC306]: `spec_graph`, the first argument, is one graph; those of the ranks are the second."),
    "graphs of unknown shapes": (
        lambda _: verify_graphs(torch.fx.symbolic_trace(Perceptron()), [doubled()]),
        "error[VC303]: the spec's graph records no example value for `x`; pass `spec_inputs` and `rank_inputs`.",
    ),
    "relations of an unknown input": (lambda _: verify_graphs(doubled(), [doubled()] * 2, in_relations={"z": Shard(0)}), "error[VC306]: `in_relations` names `z`, the graph of rank 0 has the inputs `x_1`."),
    "relations of an unknown output": (lambda _: verify_graphs(doubled(), [doubled()] * 2, out_relations={"output.5": Shard(0)}), "error[VC306]: `out_relations` names `output.5`, which the graph of rank 0 does not return."),
    "a mesh of no ranks": (lambda _: verify_graphs(doubled(), [doubled()] * 2, mesh={"tp": -2}), "error[VC306]: the sizes of `mesh` must be numbers of ranks greater than zero, not {'tp': -2}."),
    "a mesh of names": (lambda _: verify_graphs(doubled(), [doubled()] * 2, mesh={"tp": "two"}), "error[VC306]: the sizes of `mesh` must be numbers of ranks greater than zero, not {'tp': 'two'}."),
    "a mesh of another size": (lambda _: verify_graphs(doubled(), [doubled()] * 2, mesh={"tp": 3}), "error[VC303]: the mesh has 3 ranks and there are 2 rank graphs."),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", MISUSE)
def test_misuse_is_one_sentence(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    call, said = MISUSE[kind]
    with fake_mesh({"tp": 2}) as mesh, pytest.raises((UsageError, CompileUsageError)) as raised:
        call(mesh)
    assert str(raised.value).splitlines()[0] == said
    assert "Traceback" not in capfd.readouterr().err


def test_why_a_model_does_not_run_is_what_torch_says_at_the_users_line() -> None:
    with fake_mesh({"tp": 2}) as mesh, pytest.raises(UsageError) as raised:
        verify(parallel(mesh), (torch.ones(4, 7),))
    lines = str(raised.value).splitlines()
    assert lines[1] == "RuntimeError: a and b must have same reduction dim, but got [4, 7] X [8, 16]."
    assert "  From:" in lines
    assert any("return self.down(torch.relu(self.up(x)))" in line for line in lines)


@pytest.mark.parametrize(
    "option", ["in_placements", "param_placements", "param_names", "out_placements", "grad_placements"]
)
def test_none_for_a_mapping_says_nothing(option: str) -> None:
    with fake_mesh({"tp": 2}) as mesh:
        assert verify(parallel(mesh), (X,), **{option: None}).verdict is Verdict.VERIFIED


def test_an_array_and_no_samples_are_no_misuse() -> None:
    with fake_mesh({"tp": 2}) as mesh:
        assert verify(parallel(mesh), (X.numpy(),))
        assert verify(parallel(mesh), (torch.empty(0, 8),))


def test_sizes_that_torch_leaves_open_and_cannot_trace() -> None:
    x = torch.ones(4, 6, 8)
    with fake_mesh({"tp": 2}) as mesh, pytest.raises(UsageError) as raised:
        torch.compile(parallel(mesh), backend="verify", dynamic=True)(x)
    assert str(raised.value).splitlines()[0] == (
        "error[VC303]: torch cannot trace the model's forward and backward where it leaves sizes of the inputs open, as "
        "it does once a size has changed: write `torch.compile(..., dynamic=False)`, and each size is compiled by itself."
    )
    torch._dynamo.reset()
    with fake_mesh({"tp": 2}) as mesh:  # what the sentence says to type
        assert torch.compile(parallel(mesh), backend="verify", dynamic=False)(x).shape == x.shape


def sine(input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name that `torch.cos` has
    return input.sin()


def test_a_refusal_at_open_sizes_says_how_to_fix_them() -> None:
    x = torch.ones(4, 8)
    torch._dynamo.mark_dynamic(x, 0)
    with fake_mesh({"tp": 2}) as mesh, pytest.raises(RefinementError) as raised:
        torch.compile(sine, backend="verify", options={"spec": torch.cos, "mesh": mesh})(x)
    note = (
        "torch leaves sizes of the inputs open here, as it does once a size has changed; with "
        "`torch.compile(..., dynamic=False)` each size is compiled, and proved, by itself"
    )
    assert note in raised.value.report.findings[0].notes


def test_pieces_of_sizes_that_are_read_from_a_tensor_are_no_parts() -> None:
    def pieces(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return torch.cat(x.split(sizes.tolist()))

    with fake_mesh({"tp": 2}) as mesh:
        report = verify(pieces, (X, torch.tensor([1, 3])), mesh=mesh)
    assert (report.verdict, report.findings[0].code) == (Verdict.UNPROVED, "VC206")


def test_what_a_model_raises_is_said() -> None:
    with fake_mesh({"tp": 2}) as mesh, pytest.raises(UsageError) as raised:
        verify(Raising(), (X,), mesh=mesh)
    lines = str(raised.value).splitlines()
    assert lines[:3] == [
        "error[VC305]: the model does not trace to one graph.", "It raises RuntimeError('not today')", "  From:"
    ]  # fmt: skip
    assert '    raise RuntimeError("not today")' in lines
    # What is printed is the sentence, behind no steps of torch's tracing or of this package's.
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert raised.traceback[-1].name == "report_of"


def test_a_spec_may_be_a_partial_and_an_object_that_holds_the_model_too() -> None:
    with fake_mesh({"tp": 2}) as mesh:
        model = parallel(mesh)
        assert verify(model, (X,), spec=functools.partial(Perceptron()))
        assert verify(model, (X,), spec=Holder(model, Perceptron()))


@pytest.mark.parametrize("axes", [2, [2], {}, {"tp": 0}, {"tp": "2"}, {2: 2}])
def test_axes_that_are_none(axes: Any) -> None:
    said = f'a mesh is named axes with their numbers of ranks, {{"dp": 2, "tp": 4}}, not {axes!r}.'
    with pytest.raises(ValueError, match=r"^a mesh is named axes") as raised, fake_mesh(axes):
        pass
    assert str(raised.value) == said
    with pytest.raises(ValueError, match=r"^a mesh is named axes"):
        over_meshes(axes)
    with pytest.raises(ValueError, match=r"^name a mesh or several: "):
        over_meshes()


def test_functions_that_cannot_go_to_other_processes() -> None:
    said = "the function and its arguments go to other processes: give functions of modules, no lambda"
    with pytest.raises(ValueError, match=f"^{said}"):
        run_on_ranks(lambda rank: rank, 2)
    with pytest.raises(ValueError, match=r"^`world_size` must be a number of processes greater than zero, not 0\.$"):
        run_on_ranks(print, 0)
