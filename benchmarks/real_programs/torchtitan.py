"""torchtitan's models under their own ``parallelize`` functions.

What torchtitan imports and these programs do not use (a command-line parser, tokenizers, Triton kernels) is replaced by
empty modules where it is not installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import inspect
import math
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.attention import SDPBackend
from torch.testing._internal.distributed.fake_pg import FakeStore

import verifycompile
from benchmarks.coverage import Case, Package
from benchmarks.real_programs.cpu_attention import shard_attention_on_the_cpu
from verifycompile.backends.verify import check_graph
from verifycompile.options import Options

PACKAGE = Package("torchtitan", "pip install --no-deps torchtitan==0.2.2 tomli")

SEQUENCE, VOCABULARY, LAYERS = 16, 64, 2
DATA_AXES = ("dp_replicate", "dp_shard", "dp_shard_mod_ep", "dp_shard_in_ep", "fsdp", "ep")
"""Names of the mesh axes over which the batch is divided, in any version."""

_MODELS = "torchtitan.models.{}.infra.parallelize"
_EXPERIMENTS = "torchtitan.experiments.{}.infra.parallelize"
_SIMPLE = "torchtitan.experiments.simple_fsdp.{}.parallelize"
_SIMPLE_OLD = "torchtitan.experiments.simple_fsdp.parallelize"
PLANS: dict[str, tuple[tuple[str, ...], str]] = {
    "llama3": ((_MODELS,), "parallelize_llama"),
    "llama4": ((_MODELS, _EXPERIMENTS), "parallelize_llama"),
    "deepseek_v3": ((_MODELS,), "parallelize_deepseekv3"),
    "qwen3": ((_MODELS,), "parallelize_qwen3"),
    "llama3 simple_fsdp": ((_SIMPLE, _SIMPLE_OLD), "parallelize_llama"),
    "deepseek_v3 simple_fsdp": ((_SIMPLE,), "parallelize_deepseekv3"),
}
"""Program -> modules that may hold it, and name, of the function that parallelizes it."""

MUTANTS = ("parts not summed", "scaled by the degree", "order of the shards")
"""Changes of the first layer under tensor parallelism that must not verify: see ``_mutate``."""

SQUARES = "mean of squares"
"""Part of a mode: a loss whose mean over all ranks is the mean of their means."""

EXPERTS = "experts"
"""Part of a mode: feed-forward layers are experts."""


BLOCKS = "block by block"
"""Part of a mode: each block is compiled by itself, as torchtitan does it."""

WAITED = "embeddings waited for"
"""Part of a mode: the first block gets no pending result of a collective (see docs/found.md)."""


def cases(version: str) -> Iterator[Case]:
    """Tensor parallelism with sequence and loss parallelism, data parallelism in the graph and outside, and both."""
    old = version.startswith("0.1")
    # The mean over the tokens of all ranks is not the mean of means where labels are ignored.
    sums = not version.startswith(("0.1", "0.2.0", "0.2.1"))
    for program in ("llama3", "llama4", *(() if old else ("deepseek_v3", "qwen3"))):
        yield Case(program, "tp=2", "training")
        yield Case(program, "fsdp=2,tp=2", "training" if sums else "training, logits")
        yield Case(program, "tp=4", "training")
        if program != "llama3" and not old:
            yield Case(program, "tp=2", f"training, {EXPERTS}")
        if not sums:
            for mutant in MUTANTS:
                yield Case(program, "tp=2", f"training, mutant: {mutant}", "refuted")
            continue  # older versions in brief
        for mode in ("logits", "no loss parallelism", "full activation checkpointing"):
            yield Case(program, "tp=2", f"training, {mode}")
        yield Case(program, "tp=2", "training, selective activation checkpointing")
        if program in ("llama3", "qwen3"):
            yield Case(program, "tp=2", f"training, {BLOCKS}", "refuted")
            yield Case(program, "tp=2", f"training, {BLOCKS}, {WAITED}")
            yield Case(program, "tp=2", f"training, {BLOCKS}, {WAITED}, full activation checkpointing")
            yield Case(program, "fsdp=2,tp=2", f"training, {BLOCKS}, {WAITED}")
        for mutant in MUTANTS:
            yield Case(program, "tp=2", f"training, mutant: {mutant}", "refuted")
        for degree in ("fsdp=2", "fsdp=4", "dp_replicate=2,fsdp=2"):
            yield Case(program, degree, "training")
        # DDP takes the mean of the ranks' own sums of losses, which a trainer could make up for: docs/found.md.
        yield Case(program, "dp_replicate=2", "training", "unproved")
        yield Case(program, "fsdp=2", "training, mutant: mean of gradients", "refuted")
        yield Case(program, "dp_replicate=2", "training, logits")
    for program in ("llama3 simple_fsdp", *(() if old else ("deepseek_v3 simple_fsdp",))):
        for degree in ("fsdp=2", "fsdp=4", "dp_replicate=2", "dp_replicate=2,fsdp=2", "fsdp=2,tp=2"):
            yield Case(program, degree, "training" if sums else f"training, {SQUARES}")
        if sums:
            step = "training, selective activation checkpointing"
            yield Case(program, "dp_replicate=2,fsdp=2,tp=2", step)


def check(case: Case) -> verifycompile.Report:
    """Build the model of one case, parallelize it by torchtitan's own function, and verify a step of it."""
    sizes = {name: int(size) for name, size in (part.split("=") for part in case.degree.split(","))}
    world = math.prod(size for name, size in sizes.items() if name != "ep")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    sys.meta_path.insert(0, _EmptyModules())
    shard_attention_on_the_cpu()
    _attend_on_the_cpu()
    _count_integers_on_the_cpu()
    torch.manual_seed(0)
    dimensions = _dimensions(sizes, world)
    mesh = dimensions.build_mesh(**_only_known(dimensions.build_mesh, device_type="cpu"))
    config = _configuration(case.mode)
    blocks = _Blocks(sizes)
    if BLOCKS in case.mode:
        config.compile.enable, config.compile.components, config.compile.backend = True, ["model"], blocks
    function = _function(case.program)
    known = _only_known(function, world_mesh=mesh, parallel_dims=dimensions, job_config=config)
    model = function(_model(case.program, sizes, case.mode), **known)
    _mutate(model, case.mode, dimensions, mesh)
    tokens = torch.zeros(2, SEQUENCE, dtype=torch.int64)
    step = model if "logits" in case.mode else _Step(model, case.mode)
    arguments = (tokens,) if step is model else (tokens, tokens.clone())
    options: dict[str, Any] = dict(NO_NUMBERS)
    axes = [name for name in _axis_names(dimensions, mesh) if name in (*DATA_AXES, "tp")]
    if any(name in DATA_AXES for name in axes):
        placements = tuple(Replicate() if name == "tp" else Shard(0) for name in axes)
        names = ("tokens",) if step is model else ("tokens", "labels")
        whole = dimensions.get_mesh(axes) if hasattr(dimensions, "get_mesh") else mesh[tuple(axes)]
        options |= {"mesh": whole, "in_placements": dict.fromkeys(names, placements)}
    sharded_logits = sizes.get("tp", 1) > 1 and not any(kind in case.mode for kind in ("logits", "no loss", SQUARES))
    with loss_parallel() if sharded_logits else contextlib.nullcontext():
        if BLOCKS in case.mode:
            return blocks.check(model, step, arguments, waits=WAITED in case.mode)
        return verifycompile.verify(step, arguments, **options)


NO_NUMBERS: dict[str, Any] = {"per_rank_numbers": []}
"""torchtitan asks for the number of processes before a model is made, so a user would be asked to say it (VC209)."""


class _Blocks:
    """The backend that blocks are compiled by: it asks what ``backend="verify"`` does, and keeps the answers."""

    def __init__(self, sizes: dict[str, int]) -> None:
        # A block does not know that its rank has a part of the batch.
        parts = {"x": (Shard(0), Shard(1))} if {"fsdp", "tp"} <= set(sizes) else {}
        self.options = Options.from_mapping({"in_placements": parts, **NO_NUMBERS})
        self.reports: list[verifycompile.Report] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> torch.fx.GraphModule:
        """A Dynamo backend."""
        report = check_graph(graph, inputs, self.options).report
        if report is not None:
            self.reports.append(report)
        return graph

    def check(self, model: nn.Module, step: nn.Module, arguments: Any, *, waits: bool) -> verifycompile.Report:
        """Run a step; the first report that is none of a verified graph, else the last."""
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        embeddings: Any = model.tok_embeddings
        if waits:
            embeddings.register_forward_hook(lambda _module, _inputs, output: output.clone())
        step(*arguments)
        return next((report for report in self.reports if not report), self.reports[-1])


def _count_integers_on_the_cpu() -> None:
    """``torch.histc`` of integers, which torch has for GPUs alone and the routers count tokens by."""
    histogram = torch.histc

    def counted(values: torch.Tensor, bins: int, min: float, max: float) -> torch.Tensor:  # noqa: A002
        return histogram(values.float(), bins, min, max).to(values.dtype)

    torch.histc = counted


def _attend_on_the_cpu() -> None:
    """Old versions ask for kernels that only GPUs have."""
    from torchtitan.models import attention

    for kind in vars(attention).values():
        for name in ("sdpa_backends", "backends"):
            if isinstance(getattr(kind, name, None), list):
                setattr(kind, name, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])


def _mutate(model: Any, mode: str, dimensions: Any, mesh: Any) -> None:
    """Make the program wrong as the mode says."""
    mutant = mode.partition("mutant: ")[2]
    if mutant == "mean of gradients":
        model.set_gradient_divide_factor(2.0)
        for block in model.layers.values():
            block.set_gradient_divide_factor(2.0)
    if mutant not in MUTANTS:
        return
    axis = dimensions.get_mesh("tp") if hasattr(dimensions, "get_mesh") else mesh["tp"]
    last = model.layers["0"].feed_forward.w2
    last._forward_hooks.clear()  # noqa: SLF001 - the hook that adds the parts

    def changed(_module: nn.Module, _inputs: Any, output: DTensor) -> torch.Tensor:
        if mutant == "parts not summed":
            whole = DTensor.from_local(output.to_local(), axis, [Replicate()])
        else:
            whole = output.redistribute(placements=[Replicate()])
        if mutant == "order of the shards":
            whole = DTensor.from_local(whole.to_local().flip(1), axis, [Replicate()])
        part = whole.redistribute(placements=[Shard(1)]).to_local()
        return part / axis.size() if mutant == "scaled by the degree" else part

    last.register_forward_hook(changed)


class _Step(nn.Module):
    """A model and torchtitan's loss."""

    def __init__(self, model: nn.Module, mode: str) -> None:
        super().__init__()
        self.model, self.squares = model, SQUARES in mode

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from torchtitan.components.loss import cross_entropy_loss

        if self.squares:
            return self.model(tokens).float().square().mean()
        return cross_entropy_loss(self.model(tokens), labels)


def _only_known(function: Any, **arguments: Any) -> dict[str, Any]:
    """Versions differ in what a function takes."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}


def _function(program: str) -> Any:
    places, name = PLANS[program]
    for place in places:
        with contextlib.suppress(ModuleNotFoundError):
            return getattr(importlib.import_module(place.format(program.partition(" ")[0])), name)
    raise ModuleNotFoundError(f"no module of this version parallelizes {program}")


def _dimensions(sizes: dict[str, int], world: int) -> Any:
    from torchtitan.distributed import ParallelDims, parallel_dims

    parallel_dims.device_type = "cpu"
    degrees = {"dp_replicate": 1, "tp": 1, "cp": 1, "pp": 1, "ep": 1, "etp": 1, **sizes}
    degrees["dp_shard"] = degrees.pop("fsdp", 1)
    degrees.update(world_size=world, enable_loss_parallel=True)
    return ParallelDims(**_only_known(ParallelDims, **degrees))


def _axis_names(dimensions: Any, mesh: Any) -> tuple[str, ...]:
    if hasattr(dimensions, "get_mesh"):
        return tuple(name for name in ("dp_replicate", "fsdp", "tp") if dimensions.get_optional_mesh(name))
    return tuple(mesh.mesh_dim_names)


def _configuration(mode: str) -> Any:
    try:
        from torchtitan.config import JobConfig
    except ModuleNotFoundError:
        from torchtitan.config_manager import JobConfig
    config = JobConfig()
    config.training.seq_len = SEQUENCE
    config.activation_checkpoint.mode = next((kind for kind in ("full", "selective") if kind in mode), "none")
    config.activation_checkpoint.selective_ac_option = "op"
    config.parallelism.disable_loss_parallel = "no loss" in mode
    return config


def _model(program: str, sizes: dict[str, int], mode: str) -> nn.Module:
    name, _, experiment = program.partition(" ")
    heads = max(4, 2 * sizes.get("tp", 1))
    try:
        package = importlib.import_module(f"torchtitan.models.{name}")
    except ModuleNotFoundError:
        package = importlib.import_module(f"torchtitan.experiments.{name}")
    common = {"n_layers": LAYERS, "n_heads": heads, "vocab_size": VOCABULARY, "max_seq_len": SEQUENCE}
    narrow = {"dim": 8 * heads, "n_kv_heads": heads // 2}
    attention = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    dense, experts = LAYERS, EXPERTS in mode
    options: dict[str, dict[str, Any]] = {
        "llama3": {**narrow, "multiple_of": 16},
        # Every so many layers are experts; in old versions a switch of its own says so.
        "llama4": {**narrow, "multiple_of": 16, "interleave_moe_layer_step": 1 if experts else 2 * dense + 1},
        "deepseek_v3": {**attention, "dim": 32, "inter_dim": 64, "n_dense_layers": 0 if experts else dense},
        "qwen3": {**narrow, "head_dim": 8, "hidden_dim": 64, "moe_enabled": experts},
    }
    kind, arguments_kind = _classes(package)
    switches = {"moe_enabled": experts, "moe_inter_dim": 16}
    known = {field.name for field in dataclasses.fields(arguments_kind)}
    chosen = {key: value for key, value in {**switches, **common, **options[name]}.items() if key in known}
    arguments = arguments_kind(**chosen)
    if experts:
        arguments.moe_args.num_experts = 4
        arguments.moe_impl = "standard"
        arguments.moe_args.use_grouped_mm = "grouped" in mode
    if experiment:
        try:
            module = importlib.import_module(f"torchtitan.experiments.simple_fsdp.{name}.model")
        except ModuleNotFoundError:
            module = importlib.import_module("torchtitan.experiments.simple_fsdp.model")
        kind = next(value for key, value in vars(module).items() if key.startswith("SimpleFSDP"))
    return kind(arguments)


def _classes(package: Any) -> tuple[Any, Any]:
    """The classes of the model and of its arguments."""
    arguments = next(value for key, value in vars(package).items() if key.endswith("ModelArgs"))
    model = next(
        value
        for key, value in vars(package).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and key.endswith(("Model", "Transformer"))
    )
    return model, arguments


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for modules that are not installed, and for those that need a GPU's compiler."""

    _ABSENT = (
        "datasets",
        "einops",
        "rich",
        "safetensors",
        "tensorboard",
        "tiktoken",
        "tokenizers",
        "torchdata",
        "tyro",
        "wandb",
    )
    _REPLACED = ("torchtitan.config.manager", "torchtitan.models.moe.kernels", "torch.utils.tensorboard")

    def find_spec(self, fullname: str, *_where: Any) -> importlib.machinery.ModuleSpec | None:
        """A module without content, for the names above."""
        if fullname in self._REPLACED or fullname.partition(".")[0] in self._ABSENT:
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """What stands in for it."""
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class _Empty(types.ModuleType):
    """Every name in it is a class that does nothing, or, where it begins small, a module or function like this one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].islower():
            return _Empty(name)
        return type(name, (), {"__call__": _returned, "__getattr__": lambda _self, inner: _Empty(inner)})

    def __call__(self, *arguments: Any, **_keywords: Any) -> Any:
        return _returned(self, *arguments)


def _returned(self: Any, *arguments: Any, **_keywords: Any) -> Any:
    """What a decorator gives back: the function that it is put on."""
    return arguments[0] if arguments else self
