"""The transformer of torch's own DTensor tests under its own plans: dense and with experts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import verifycompile
from benchmarks.coverage import Case, Package
from benchmarks.real_programs.cpu_attention import shard_attention_on_the_cpu

PACKAGE = Package("torch", "pip install torch==2.13.0")


def cases(_: str) -> Iterator[Case]:
    """Tensor parallelism with and without sequence parallelism, and experts over ranks."""
    for degree in ("tp=2", "tp=4"):
        for mode in ("training", "training, sequence parallel"):
            yield Case("Transformer", degree, mode)
            yield Case("Transformer", degree, f"{mode}, tied weights")
            yield Case("Transformer", degree, f"{mode}, attention on local tensors")
    # Nothing adds the gradient of the experts' tokens: see docs/found.md.
    yield Case("Transformer with experts", "tp=2", "training", "refuted")
    yield Case("Transformer with experts", "ep=2", "training")
    yield Case("Transformer with experts", "ep=4", "training")
    yield Case("Transformer with experts", "ep=2,tp=2", "training")


def check(case: Case) -> verifycompile.Report:
    """Build the model, parallelize it by its own function, and verify a step."""
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

    sizes = {name: int(size) for name, size in (part.split("=") for part in case.degree.split(","))}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(sizes.values()))
    shard_attention_on_the_cpu()
    torch.manual_seed(0)
    experts = 4 if "experts" in case.program else 0
    arguments: dict[str, Any] = {"n_layers": 2, "vocab_size": 16, "max_seq_len": 16, "dim": 16, "n_heads": 4}
    model = Transformer(ModelArgs(**arguments, dropout_p=0.0, weight_tying="tied" in case.mode, num_experts=experts))
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    axes = {name: mesh[name] if name in sizes else None for name in ("tp", "ep")}
    parallel = Transformer.parallelize(model, axes["tp"], "sequence" in case.mode, "local" in case.mode, axes["ep"])
    tokens = torch.zeros(4, 8, dtype=torch.int64)
    options: dict[str, Any] = {}
    if "ep" in sizes:
        # Each rank has a part of the batch; its data-parallel wrapper adds the gradients of what is not an expert.
        others = [name for name, _ in parallel.named_parameters() if "experts" not in name]
        rest = tuple(Replicate() for name in sizes if name != "ep")
        options = {"mesh": mesh, "in_placements": {"tokens": (Shard(0), *rest)}}
        options["grad_placements"] = {name: _added_over_experts(parallel.get_parameter(name), rest) for name in others}
    return verifycompile.verify(parallel, (tokens,), **options)


def _added_over_experts(parameter: torch.Tensor, rest: tuple[Placement, ...]) -> tuple[Placement, ...]:
    return (Partial(), *(parameter.placements if isinstance(parameter, DTensor) else rest))
