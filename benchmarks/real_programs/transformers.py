"""Causal language models of Hugging Face transformers, under the tensor-parallel plan that each brings along.

Built from tiny configurations, without weights or a hub. Two generations of the package: up to 5.2 parameters are
plain local tensors and the layouts are said with ``param_placements``; later ones hold DTensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import verifycompile
from benchmarks.coverage import Case, Package

PACKAGE = Package("transformers", "pip install transformers==5.23.0")

BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
MIXTURE: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
DEEPSEEK: dict[str, Any] = {
    **MIXTURE,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "first_k_dense_replace": 1,
}
SIZES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "phi3": {},
    "gpt_neox": {},
    "olmo2": {},
    "granite": {},
    "deepseek_v3": DEEPSEEK,
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "mistral": {"head_dim": 8},
}
"""Model -> what its tiny configuration has beside ``BASE``."""

DEGREES = (2, 4)


def cases(version: str) -> Iterator[Case]:
    """Training of every model at every degree, then inference."""
    local = is_local(version)
    for model in SIZES:
        # Gradients of weights between sharded projections are never summed over the ranks there.
        wrong = local and model == "qwen3"
        for degree in DEGREES:
            yield Case(model, f"tp={degree}", "training", "refuted" if wrong else "verified")
        yield Case(model, "tp=2", "inference")


def is_local(version: str) -> bool:
    """Whether this version of the package keeps parameters as plain local tensors."""
    return tuple(int(part) for part in version.split(".")[:2]) < (5, 10)


def check(case: Case) -> verifycompile.Report:
    """Build the model of one case, distribute it by its own plan, and verify a step of it."""
    degree = int(case.degree.partition("=")[2])
    start(degree)
    training = case.mode.startswith("training")
    attention = "sdpa" if "sdpa" in case.mode else "eager"
    spec = single(case.program, attention)
    model = distributed(case.program, attention, degree, spec)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
    if training:
        arguments["labels"] = tokens.clone()
    model.train(training)
    spec.train(training)
    options: dict[str, Any] = {"spec": spec} if "spec" in case.mode else {}
    with torch.set_grad_enabled(training):
        return verifycompile.verify(model, (), arguments, **options)


def start(degree: int) -> None:
    """A fake process group, which the package takes for one that ``torchrun`` made."""
    os.environ.update(RANK="0", WORLD_SIZE=str(degree), LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="29500")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=degree)


def single(name: str, attention: str, **sizes: Any) -> nn.Module:
    """The single-device model."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[name](**{**BASE, **SIZES.get(name, {}), **sizes})
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def distributed(name: str, attention: str, degree: int, whole: nn.Module, **sizes: Any) -> nn.Module:
    """The model under its own plan. Its weights are not initialised; its buffers are those of ``whole``."""
    from transformers.distributed import DistributedConfig
    from transformers.distributed.utils import initialize_distributed_mesh

    with torch.device("meta"):
        model: Any = single(name, attention, **sizes)
    config = DistributedConfig(tp_size=degree)
    _, mesh = initialize_distributed_mesh(config)
    model = type(model).maybe_distribute_model(model, config, mesh).to_empty(device="cpu")
    buffers = dict(whole.named_buffers())
    with torch.no_grad():
        for buffer_name, buffer in model.named_buffers():
            buffer.copy_(buffers[buffer_name])
    return model


def local_placements(model: nn.Module, whole: nn.Module, degree: int) -> dict[str, tuple[Any, ...]]:
    """Placements of plain local parameters, from their shapes."""
    placements: dict[str, tuple[Any, ...]] = {}
    wholes = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        shape, local = wholes[name].shape, parameter.shape
        dims = [dim for dim, (size, part) in enumerate(zip(shape, local, strict=True)) if size == part * degree]
        placements[name] = (Shard(dims[0]),) if shape != local else (Replicate(),)
    return placements
