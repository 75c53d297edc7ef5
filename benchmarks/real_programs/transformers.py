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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
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
    "gemma": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "cohere": {},
    "cohere2": {"head_dim": 8, "sliding_window": 8},
    "starcoder2": {},
    "phi": {},
    "olmo": {},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**MIXTURE, "num_experts": 4, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {**MIXTURE, "head_dim": 8, "num_experts": 4},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "smollm3": {"head_dim": 8},
    "exaone4": {"head_dim": 8, "sliding_window": 8, "sliding_window_pattern": 2},
    "ernie4_5": {"head_dim": 8},
    "dots1": {**DEEPSEEK, "head_dim": 8},
    "glm4_moe": {**DEEPSEEK, "head_dim": 8},
    "deepseek_v2": DEEPSEEK,
    "seed_oss": {"head_dim": 8, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "helium": {"head_dim": 8},
    "llama4_text": {"head_dim": 8, "num_local_experts": 4, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 2},
}
"""Model -> what its tiny configuration has beside ``BASE``."""

GENERAL: dict[str, Any] = {
    **DEEPSEEK,
    "num_experts": 4,
    "num_local_experts": 4,
    "shared_expert_intermediate_size": 16,
    "head_dim": 8,
    "sliding_window": 8,
    "query_pre_attn_scalar": 8,
}
"""What the tiny configurations of all other models have beside ``BASE``: each takes what it knows."""

OWN: dict[str, dict[str, Any]] = {
    # Layers with a window have twice as many heads of keys.
    "mimo_v2_flash": {**GENERAL, "num_key_value_heads": 2},
}
"""Those of them that need sizes of their own."""

MORE = (
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "axk1",
    "axk2",
    "bailing_hybrid",
    "beam",
    "cohere2_moe",
    "cwm",
    "deepseek_v32",
    "deepseek_v4",
    "doge",
    "dots3_note_text",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "flint",
    "gemma4_text",
    "gemma4_unified_text",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "hrm_text",
    "hunyuan_v1_moe",
    "hy_v3",
    "hy_v4",
    "hyperclovax",
    "inkling2_text",
    "inkling_text",
    "internlm3",
    "iquestcoder",
    "jais2",
    "jamba",
    "kimi_linear",
    "kolibri1",
    "laguna",
    "longcat_flash",
    "mellum",
    "mimo_v2_flash",
    "minicpm3",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl_text",
    "ministral",
    "ministral3",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "olmo3",
    "olmo_hybrid",
    "phi4_multimodal",
    "phimoe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "qwen4_exp_text",
    "solar_open",
    "vaultgemma",
    "youtu",
)
"""Further models whose configuration brings a plan along."""

WRONG = ("apertus", "inkling2_text")
"""Models whose plan is wrong, see ``docs/found.md``."""

SAMPLE = tuple(SIZES)[:10]


def cases(version: str) -> Iterator[Case]:
    """Training of every model; those of ``SAMPLE`` at every degree, against a given spec and in inference too."""
    local = is_local(version)
    for model in SAMPLE if local else (*SIZES, *MORE):
        # Gradients of weights between sharded projections are never summed over the ranks there.
        wrong = model == "qwen3" if local else model in WRONG
        expected = "refuted" if wrong else "verified"
        yield Case(model, "tp=2", "training", expected)
        if model in SAMPLE:
            yield Case(model, "tp=4", "training", expected)
            yield Case(model, "tp=2", "inference")
            if not local:
                yield Case(model, "tp=2", "training, spec given", expected)


def is_local(version: str) -> bool:
    """Whether this version of the package keeps parameters as plain local tensors."""
    return tuple(int(part) for part in version.split(".")[:2]) < (5, 13)


def check(case: Case) -> verifycompile.Report:
    """Build the model of one case, distribute it by its own plan, and verify a step of it."""
    import transformers

    degree = int(case.degree.partition("=")[2])
    start(degree)
    training = case.mode.startswith("training")
    attention = "sdpa" if "sdpa" in case.mode else "eager"
    experts = "batched_mm" if "batched experts" in case.mode else None
    spec = single(case.program, attention, experts)
    options: dict[str, Any] = {"spec": spec} if "spec" in case.mode else {}
    if is_local(transformers.__version__):
        model, mesh = locally_distributed(single_empty(case.program, attention, experts), degree, spec)
        placements = local_placements(model, spec, degree)
        options = {"spec": spec, "mesh": mesh, "param_placements": placements}
    else:
        model = distributed(single_empty(case.program, attention, experts), degree, spec)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": "cache" in case.mode}
    if training and "logits" not in case.mode:
        arguments["labels"] = tokens.clone()
    model.train(training)
    spec.train(training)
    with torch.set_grad_enabled(training):
        return verifycompile.verify(model, (), arguments, **options)


def start(degree: int) -> None:
    """A fake process group, which the package takes for one that ``torchrun`` made."""
    os.environ.update(RANK="0", WORLD_SIZE=str(degree), LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="29500")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=degree)


def single(name: str, attention: str, experts: str | None = None) -> nn.Module:
    """The single-device model; ``experts``: how it computes them, where not as the package prefers."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[name](**{**BASE, **SIZES.get(name, OWN.get(name, GENERAL))})
    if experts is not None:
        config._experts_implementation = experts  # noqa: SLF001 - its only way
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def single_empty(name: str, attention: str, experts: str | None) -> nn.Module:
    """The single-device model without memory."""
    with torch.device("meta"):
        return single(name, attention, experts)


def distributed(model: Any, degree: int, whole: nn.Module) -> nn.Module:
    """The model under its own plan. Its weights are not initialised; its buffers are those of ``whole``."""
    from transformers.distributed import DistributedConfig
    from transformers.distributed.utils import initialize_distributed_mesh

    config = DistributedConfig(tp_size=degree)
    _, mesh = initialize_distributed_mesh(config)
    model = type(model).maybe_distribute_model(model, config, mesh).to_empty(device="cpu")
    _copy_buffers(model, whole)
    return model


def locally_distributed(model: Any, degree: int, whole: nn.Module) -> tuple[nn.Module, DeviceMesh]:
    """The model of an earlier version, whose parameters are this rank's plain local tensors."""
    from transformers.integrations import tensor_parallel

    _, mesh, _ = tensor_parallel.initialize_tensor_parallelism("auto", tp_size=degree)
    model = tensor_parallel.distribute_model(model, "auto", None, mesh, degree)
    for parameter_name, parameter in list(model.named_parameters()):
        style_name = tensor_parallel._get_parameter_tp_plan(parameter_name, model.tp_plan)  # noqa: SLF001 - its only way
        shape = tuple(parameter.shape)
        if style_name is not None:
            style: Any = tensor_parallel.ALL_PARALLEL_STYLES[style_name]
            style.device_mesh, style.rank, style.empty_param = mesh, 0, parameter
            shape = style.get_expected_sharded_shape(shape)
        owner, _, attribute = parameter_name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, nn.Parameter(torch.empty(shape, device="cpu")))
    for owner in model.modules():
        for buffer_name, buffer in list(owner.named_buffers(recurse=False)):
            setattr(owner, buffer_name, torch.empty_like(buffer, device="cpu"))
    _copy_buffers(model, whole)
    return model, mesh


def _copy_buffers(model: nn.Module, whole: nn.Module) -> None:
    buffers = dict(whole.named_buffers())
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def local_placements(model: Any, whole: nn.Module, degree: int) -> dict[str, tuple[Any, ...]]:
    """Placements of plain local parameters, from their shapes; packed ones hold a part of each of two weights."""
    from transformers.integrations import tensor_parallel

    placements: dict[str, tuple[Any, ...]] = {}
    wholes = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        shape, local = wholes[name].shape, parameter.shape
        dims = [dim for dim, (size, part) in enumerate(zip(shape, local, strict=True)) if size == part * degree]
        style = tensor_parallel._get_parameter_tp_plan(name, model.tp_plan) or ""  # noqa: SLF001 - its only way
        packed = style.startswith("packed") and len(shape) > 1
        if shape == local:
            placements[name] = (Replicate(),)
        else:
            placements[name] = (_StridedShard(dims[0], split_factor=2) if packed else Shard(dims[0]),)
    return placements
