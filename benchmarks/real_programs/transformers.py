"""Causal language models of Hugging Face transformers, under the tensor-parallel plan that each brings along.

Built from tiny configurations, without weights or a hub. Parameters are DTensors; for versions in which they are plain
local tensors see ``transformers_earlier``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import verifycompile
from benchmarks.coverage import Case, Package
from benchmarks.real_programs import transformers_earlier as earlier

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

NOT_COMPILED = ("doge", "inkling_text", "llama4_text", "longcat_flash")
"""Models that fail without us: three under their plan in eager mode too, the last one alone under ``torch.compile``."""

RANDOM = ("phimoe",)
"""Models that draw random numbers in training."""

SAMPLE = tuple(SIZES)[:10]

DATA_PARALLEL = (
    ("llama", "fsdp=2,tp=2", "training, logits"),
    ("qwen3_moe", "fsdp=2,tp=2", "training, logits"),
    ("qwen3", "fsdp=2,tp=2", "training, loss of all tokens"),
    ("gemma2", "dp_replicate=2,fsdp=2", "training, logits"),
    ("mixtral", "ep=2,tp=2", "training, logits"),
    ("mixtral", "ep=2,tp=2", "training, logits, batched experts, experts of all ranks added up"),
    ("mixtral", "ep=2,tp=2", "inference, logits"),
    ("mixtral", "ep=2,tp=2", "training, logits, bfloat16, experts of all ranks added up"),
    *(
        (program, degree, "training, logits, experts of all ranks added up")
        for program in ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "glm4_moe", "ernie4_5_moe", "olmoe")
        for degree in ("ep=2,tp=2", "ep=4,tp=4")
    ),
)
"""Program, degree and mode of what the package calls fully sharded data parallelism and expert parallelism."""


def cases(version: str) -> Iterator[Case]:
    """Training of every model; those of ``SAMPLE`` at every degree, against a given spec and in inference too."""
    if earlier.is_local(version):
        yield from earlier.cases(version)
        return
    for model in (*SIZES, *MORE):
        expected = _expected(model)
        yield Case(model, "tp=2", "training", expected)
        if model in SAMPLE:
            yield Case(model, "tp=4", "training", expected)
            yield Case(model, "tp=2", "inference")
            yield Case(model, "tp=2", "training, spec given", expected)
    for program, degree, mode in DATA_PARALLEL:
        # Tokens are sent by counts that the package's code compares with zero.
        sent = mode == "training, logits" and degree.startswith("ep")
        yield Case(program, degree, mode, "refused" if sent else "verified")


def _expected(model: str) -> str:
    if model in WRONG:
        return "refuted"
    if model in NOT_COMPILED:
        return "refused"
    return "unproved" if model in RANDOM else "verified"


def check(case: Case) -> verifycompile.Report:
    """Build the model of one case, distribute it by its own plan, and verify a step of it."""
    import transformers

    sizes = {name: int(size) for name, _, size in (part.partition("=") for part in case.degree.split(","))}
    experts = "batched_mm" if "batched experts" in case.mode else None
    spec = single(case.program, "eager", experts)
    if set(sizes) != {"tp"}:
        return _check_data_parallel(case, sizes, spec, experts)
    degree = sizes["tp"]
    start(degree)
    training = case.mode.startswith("training")
    options: dict[str, Any] = {"spec": spec} if "spec" in case.mode else {}
    if earlier.is_local(transformers.__version__):
        build = earlier.loaded if earlier.is_loaded(transformers.__version__) else earlier.locally_distributed
        empty = single_empty(case.program, "eager", experts)
        model, mesh = build(empty, degree, spec)
        placements = earlier.local_placements(model, spec, degree)
        options = {"spec": spec, "mesh": mesh, "param_placements": placements}
    else:
        model = distributed(single_empty(case.program, "eager", experts), {"tp": degree}, spec)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
    if training:
        arguments["labels"] = tokens.clone()
    model.train(training)
    spec.train(training)
    with torch.set_grad_enabled(training):
        return verifycompile.verify(model, (), arguments, **options)


class Step(nn.Module):
    """Logits, or the loss per token of all ranks' batches, of which a rank has its part."""

    def __init__(self, model: nn.Module, ranks: int) -> None:
        super().__init__()
        self.model, self.ranks = model, ranks

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None, count: Any = None) -> torch.Tensor:
        if labels is None:
            return self.model(input_ids=tokens, use_cache=False).logits
        found = self.model(input_ids=tokens, labels=labels, num_items_in_batch=count, use_cache=False)
        return found.loss * self.ranks


def _check_data_parallel(
    case: Case, sizes: dict[str, int], spec: nn.Module, experts: str | None
) -> verifycompile.Report:
    """Each rank along the data-parallel mesh axes has its part of the batch."""
    start(math.prod(size for name, size in sizes.items() if name != "ep"))
    options = {"ep_implementation": "all_reduce"} if "added up" in case.mode else {}
    model: Any = distributed(single_empty(case.program, "eager", experts), sizes, spec, **options)
    if "bfloat16" in case.mode:
        model, spec = model.bfloat16(), spec.bfloat16()
    mesh: DeviceMesh = model._mesh_manager._dense_mesh  # noqa: SLF001 - its only way
    axes = {"fsdp", "dp_replicate"} & set(sizes)
    replicated = tuple(Replicate() for _ in mesh.mesh_dim_names or ())
    parts = tuple(Shard(0) if name in axes else Replicate() for name in mesh.mesh_dim_names or ())
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    arguments: tuple[torch.Tensor, ...] = (tokens,)
    placements = {"tokens": parts}
    ranks = 1
    if "logits" not in case.mode:
        arguments = (tokens, tokens.clone(), torch.tensor(tokens.numel() * math.prod(sizes[name] for name in axes)))
        placements |= {"labels": parts, "count": replicated}
        # The gradients outside of the graph are a mean over the ranks.
        ranks = math.prod(sizes[name] for name in axes)
    with torch.set_grad_enabled(case.mode.startswith("training")):
        step, whole = Step(model, ranks), Step(spec, 1)
        return verifycompile.verify(step, arguments, mesh=mesh, spec=whole, in_placements=placements)


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


def distributed(model: Any, sizes: dict[str, int], whole: nn.Module, **options: str) -> nn.Module:
    """The model under its own plans. Its weights are not initialised; its buffers are those of ``whole``."""
    from transformers.distributed import DistributedConfig
    from transformers.distributed.utils import initialize_distributed_mesh

    config = DistributedConfig(**{f"{name}_size": size for name, size in sizes.items()}, **options)
    _, mesh = initialize_distributed_mesh(config)
    model = type(model).maybe_distribute_model(model, config, mesh).to_empty(device="cpu")
    earlier.copy_buffers(model, whole)
    return model
