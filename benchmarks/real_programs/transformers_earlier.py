"""Versions of Hugging Face transformers in which parameters are plain local tensors, whose layouts are said beside.

In version 4 a parameter is laid out when it is loaded, some of them as DTensors; in version 5 up to 5.12 the plan only
tells the shape of the local part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from benchmarks.coverage import Case

DENSE = (
    "llama", "qwen2", "qwen3", "phi3", "gpt_neox", "olmo2", "granite", "gemma2", "gemma3_text", "glm", "glm4", "cohere",
    "cohere2", "starcoder2", "phi", "smollm3", "helium", "ernie4_5", "ministral3", "exaone4", "jamba",
)  # fmt: skip
MIXTURES = ("mixtral", "gpt_oss", "glm4_moe", "olmoe", "deepseek_v2", "minimax_m2", "qwen3_moe")
FOUR_RANKS = ("gemma2", "glm4", "cohere2", "smollm3", "phi")

SINCE: dict[str, tuple[int, int]] = {"ministral3": (5, 0)}
"""The version since which a model is in the package."""

BETWEEN = ("qwen3", "gemma3_text", "qwen3_moe", "exaone4")
"""Models with weights between sharded projections. Nothing adds their gradients; since 5.8 a hook of the module does.

torch compiles no such hooks. Nor does it compile the experts of version 4, which are a loop over those that were
chosen, or a message that jamba's forward logs. Up to 5.8 it takes grouped products of bfloat16 alone, and in 5.8 the
batched ones write to the indices that the gradient needs.
"""


def cases(version: str) -> Iterator[Case]:
    """Training at two and four ranks, and inference."""
    known = _numbers(version)
    for model in DENSE:
        if known < SINCE.get(model, (0, 0)):
            continue
        expected = _expected(model, known)
        yield Case(model, "tp=2", "training", expected)
        if model in FOUR_RANKS:
            yield Case(model, "tp=4", "training", expected)
        if model in FOUR_RANKS[:1]:
            yield Case(model, "tp=2", "inference")
    for model in MIXTURES:
        if known < (5, 10):
            yield Case(model, "tp=2", "training", "refused")
        if known >= (5, 10) or (5, 0) <= known < (5, 3):
            yield Case(model, "tp=2", "training, batched experts", _expected(model, known))


def _expected(model: str, version: tuple[int, ...]) -> str:
    if model == "jamba":
        return "refused"
    if model in BETWEEN:
        return "refused" if version >= (5, 8) else "refuted"
    return "verified"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in itertools.islice(version.split("."), 2))


def is_local(version: str) -> bool:
    """Whether this version of the package keeps parameters as plain local tensors."""
    return _numbers(version) < (5, 13)


def is_loaded(version: str) -> bool:
    """Whether parameters are laid out when they are loaded."""
    return _numbers(version) < (5, 0)


def loaded(model: Any, degree: int, whole: nn.Module) -> tuple[nn.Module, DeviceMesh]:
    """The model of version 4, its parameters laid out one by one."""
    from transformers.integrations import tensor_parallel

    mesh = tensor_parallel.initialize_tensor_parallelism("auto", tp_size=degree)[2]
    model = tensor_parallel.distribute_model(model, None, mesh, degree)
    for name, parameter in list(whole.named_parameters()):
        value = parameter.detach().clone()
        tensor_parallel.shard_and_distribute_module(model, value, value, name, value.dtype, False, 0, mesh)
    copy_buffers(model, whole)
    return model, mesh


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
    copy_buffers(model, whole)
    return model, mesh


def copy_buffers(model: nn.Module, whole: nn.Module) -> None:
    """Buffers that are computed, as they are on one device."""
    buffers = dict(whole.named_buffers())
    with torch.no_grad():
        for owner_name, owner in model.named_modules():
            for name, buffer in list(owner.named_buffers(recurse=False)):
                known = buffers[f"{owner_name}.{name}" if owner_name else name]
                if buffer.is_meta:
                    setattr(owner, name, known.clone())
                else:
                    buffer.copy_(known)


def local_placements(model: Any, whole: nn.Module, degree: int) -> dict[str, tuple[Any, ...]]:
    """Placements of plain local parameters, from their shapes; packed ones hold a part of each of two weights."""
    from transformers.integrations import tensor_parallel

    placements: dict[str, tuple[Any, ...]] = {}
    wholes = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            continue
        shape, local = wholes[name].shape, parameter.shape
        dims = [dim for dim, (size, part) in enumerate(zip(shape, local, strict=True)) if size == part * degree]
        style = tensor_parallel._get_parameter_tp_plan(name, model.tp_plan) or ""  # noqa: SLF001 - its only way
        packed = style.startswith("packed") and len(shape) > 1
        if shape == local:
            placements[name] = (Replicate(),)
        else:
            placements[name] = (_StridedShard(dims[0], split_factor=2) if packed else Shard(dims[0]),)
    return placements
