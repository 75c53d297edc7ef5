"""The transformer of torch's own DTensor tests under its own plan."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.case import Case, tensor_parallel_mesh

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # torch's test utilities look for hypothesis
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer


def inputs() -> tuple[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(0, 16, (2, 16), generator=generator),)


def case(
    degree: int, *, data_parallel: int = 1, sequence_parallel: bool = True, tied: bool = True, layers: int = 1
) -> Case:
    """Attention runs on local tensors: DTensor has no rule for the CPU's fused attention."""
    heads = max(4, degree)

    def model() -> nn.Module:
        arguments = ModelArgs(
            n_layers=layers,
            vocab_size=16,
            max_seq_len=16,
            dim=4 * heads,
            n_heads=heads,
            dropout_p=0.0,
            weight_tying=tied,
        )
        return Transformer(arguments)

    def parallelize(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, Transformer)
        return Transformer.parallelize(module, mesh["tp"], sequence_parallel, local_output_for_attn=True)

    mesh = tensor_parallel_mesh(degree, data_parallel)
    kind = (
        ("sp" if sequence_parallel else "tp") + ("" if tied else "-untied") + (f"-{layers}layers" if layers > 1 else "")
    )
    return Case(f"transformer-{kind}-{'x'.join(str(size) for _, size in mesh)}", mesh, model, parallelize, inputs)
