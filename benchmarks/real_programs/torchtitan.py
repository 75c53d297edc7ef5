"""torchtitan's models under their own ``parallelize`` functions.

What torchtitan imports and these programs do not use (a command-line parser, tokenizers, Triton kernels) is replaced by
empty modules where it is not installed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import math
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import verifycompile
from benchmarks.coverage import Case, Package

PACKAGE = Package("torchtitan", "pip install --no-deps torchtitan==0.2.2 tomli")

SEQUENCE, VOCABULARY = 16, 64
AXES = ("dp_replicate", "fsdp", "tp")
PLANS = {
    "llama3": ("torchtitan.models.llama3.infra.parallelize", "parallelize_llama"),
    "llama4": ("torchtitan.models.llama4.infra.parallelize", "parallelize_llama"),
    "deepseek_v3": ("torchtitan.models.deepseek_v3.infra.parallelize", "parallelize_deepseekv3"),
    "llama3 simple_fsdp": ("torchtitan.experiments.simple_fsdp.llama3.parallelize", "parallelize_llama"),
    "deepseek_v3 simple_fsdp": (
        "torchtitan.experiments.simple_fsdp.deepseek_v3.parallelize",
        "parallelize_deepseekv3",
    ),
}
"""Program -> module and name of the function that parallelizes it."""


def cases(_version: str) -> Iterator[Case]:
    """Tensor parallelism with sequence and loss parallelism, data parallelism in the graph, and both."""
    for program in ("llama3", "llama4", "deepseek_v3"):
        for degree in (2, 4):
            yield Case(program, f"tp={degree}", "training")
        yield Case(program, "tp=2", "training, logits")
        yield Case(program, "tp=2", "training, full activation checkpointing")
        yield Case(program, "tp=2", "training, selective activation checkpointing")
    for program in ("llama3 simple_fsdp", "deepseek_v3 simple_fsdp"):
        for degree in ("fsdp=2", "fsdp=4", "dp_replicate=2", "dp_replicate=2,fsdp=2", "fsdp=2,tp=2"):
            yield Case(program, degree, "training")
        yield Case(program, "dp_replicate=2,fsdp=2,tp=2", "training, selective activation checkpointing")


def check(case: Case) -> verifycompile.Report:
    """Build the model of one case, parallelize it by torchtitan's own function, and verify a step of it."""
    sizes = {name: int(size) for name, size in (part.split("=") for part in case.degree.split(","))}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(sizes.values()))
    sys.meta_path.insert(0, _EmptyModules())
    torch.manual_seed(0)
    dimensions, config = _configuration(sizes, case.mode)
    module, function = PLANS[case.program]
    model = getattr(importlib.import_module(module), function)(_model(case.program, sizes), dimensions, config)
    tokens = torch.zeros(2, SEQUENCE, dtype=torch.int64)
    step, arguments = (model, (tokens,)) if "logits" in case.mode else (_Step(model), (tokens, tokens.clone()))
    options: dict[str, Any] = {}
    if dimensions.dp_enabled:
        axes = [name for name in AXES if sizes.get(name, 1) > 1]
        placements = tuple(Replicate() if name == "tp" else Shard(0) for name in axes)
        names = ("tokens",) if step is model else ("tokens", "labels")
        options = {"mesh": dimensions.get_mesh(axes), "in_placements": dict.fromkeys(names, placements)}
    sharded_logits = sizes.get("tp", 1) > 1 and step is not model
    with loss_parallel() if sharded_logits else contextlib.nullcontext():
        return verifycompile.verify(step, arguments, **options)


class _Step(nn.Module):
    """A model and torchtitan's loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from torchtitan.components.loss import cross_entropy_loss

        return cross_entropy_loss(self.model(tokens), labels)


def _configuration(sizes: dict[str, int], mode: str) -> tuple[Any, Any]:
    from torchtitan.config import JobConfig
    from torchtitan.distributed import ParallelDims, parallel_dims

    parallel_dims.device_type = "cpu"
    degrees = {"dp_replicate": 1, "fsdp": 1, "tp": 1, **sizes}
    dimensions = ParallelDims(
        dp_replicate=degrees["dp_replicate"],
        dp_shard=degrees["fsdp"],
        cp=1,
        tp=degrees["tp"],
        pp=1,
        ep=1,
        etp=1,
        world_size=math.prod(sizes.values()),
    )
    dimensions.build_mesh()
    config = JobConfig()
    config.training.seq_len = SEQUENCE
    config.activation_checkpoint.mode = next((kind for kind in ("full", "selective") if kind in mode), "none")
    config.activation_checkpoint.selective_ac_option = "op"
    return dimensions, config


def _model(program: str, sizes: dict[str, int]) -> nn.Module:
    name, _, experiment = program.partition(" ")
    heads = max(4, 2 * sizes.get("tp", 1))
    package = importlib.import_module(f"torchtitan.models.{name}")
    common = {"n_layers": 2, "n_heads": heads, "vocab_size": VOCABULARY, "max_seq_len": SEQUENCE}
    if name == "deepseek_v3":
        kind: Any = package.DeepSeekV3Model
        attention = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
        arguments = package.DeepSeekV3ModelArgs(**common, **attention, dim=32, inter_dim=64, n_dense_layers=2)
    else:
        kind = package.Transformer
        arguments = package.TransformerModelArgs(**common, dim=8 * heads, n_kv_heads=heads // 2, multiple_of=16)
    if experiment:
        module = importlib.import_module(f"torchtitan.experiments.simple_fsdp.{name}.model")
        kind = next(value for key, value in vars(module).items() if key.startswith("SimpleFSDP"))
    return kind(arguments)


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for modules that are not installed, and for those that need a GPU's compiler."""

    _ABSENT = ("datasets", "einops", "rich", "safetensors", "tensorboard", "tokenizers", "torchdata", "tyro", "wandb")
    _REPLACED = ("torchtitan.config.manager", "torchtitan.models.moe.kernels", "torch.utils.tensorboard")

    def find_spec(self, fullname: str, *_where: Any) -> importlib.machinery.ModuleSpec | None:
        """A module without content, for the names above."""
        if fullname in self._REPLACED or fullname.partition(".")[0] in self._ABSENT:
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Every name in it is a class that does nothing."""
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class _Empty(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__call__": lambda self, *_args, **_keywords: self})
