"""Megatron-core on a CPU, under a fake process group, as any rank of any number of ranks.

Three things that need a GPU are replaced: the current device, the random number tracker of dropout (which is zero),
and the norm that refuses sequence parallelism.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore


class Norm(nn.LayerNorm):
    """Layer norm that marks its parameters as megatron's own does."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def enter_world(rank: int, ranks: int) -> None:
    """Become this rank; the process groups of the rank before are gone."""
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    from megatron.core import parallel_state, tensor_parallel

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks, create_gloo_process_groups=False)
    for place in (tensor_parallel, tensor_parallel.random, tensor_parallel.layers):
        place.get_cuda_rng_tracker = _NoRandomState


def forget_buffers() -> None:
    """Buffers that were made outside of a trace are no part of it, and the other way round."""
    from megatron.core import parallel_state

    parallel_state._GLOBAL_MEMORY_BUFFER = None  # noqa: SLF001 - there is no public way
    parallel_state._set_global_memory_buffer()  # noqa: SLF001


class _NoRandomState:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def fork(self, *_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def configuration(ranks: int, options: Mapping[str, Any]) -> Any:
    """Everything that is a fused kernel or random is off."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    chosen = {
        "num_layers": 1,
        "num_attention_heads": 8,
        "ffn_hidden_size": 2 * options["hidden_size"],
        "use_cpu_initialization": True,
        "tensor_model_parallel_size": ranks,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_dropout_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "apply_rope_fusion": False,
        **options,
    }
    return TransformerConfig(**{name: value for name, value in chosen.items() if name in known})
