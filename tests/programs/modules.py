"""Every module of ``torch.nn`` with simple arguments, on a rank's own samples, as under data parallelism.

The gradients of parameters are summands of the whole. Beside most modules stands the same one with another attribute:
a program that is wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard

from verifycompile import Report, verify


@dataclasses.dataclass(frozen=True)
class Entry:
    """One module. ``twin``: keywords that make another function of it; ``batch``: the dimension of samples."""

    name: str
    args: tuple[Any, ...]
    inputs: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    twin: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    batch: int = 0
    training: bool = True
    whole: tuple[int, ...] = ()

    def module(self, **changed: Any) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            inner = getattr(nn, self.name)(*self.args, **{**self.kwargs, **changed})
            inner.train(self.training)
            if any(isinstance(p, nn.parameter.UninitializedParameter) for p in inner.parameters()):
                inner(*self.inputs())
        return Harness(inner)

    def __str__(self) -> str:
        return self.name


class Harness(nn.Module):
    """Calls a module; what it gives beside tensors is left out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        return self.inner(*args)


def check(entry: Entry, mesh: DeviceMesh, **changed: Any) -> Report:
    """The module, with attributes ``changed``, on half of the samples, against the module on all of them."""
    spec = entry.module()
    model = entry.module(**changed)
    summed = {name: (Partial(),) for name, _ in model.named_parameters()}
    placements: dict[str, Any] = {}
    local: list[Any] = []
    for position, value in enumerate(entry.inputs()):
        shard = isinstance(value, torch.Tensor) and value.dim() > entry.batch and position not in entry.whole
        if isinstance(value, torch.Tensor):
            placements[f"args.{position}"] = (Shard(entry.batch) if shard else Replicate(),)
        local.append(value.chunk(mesh.size(), entry.batch)[0].detach().clone() if shard else value)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            local[-1].requires_grad_(value.requires_grad)
    return verify(model, tuple(local), spec=spec, mesh=mesh, in_placements=placements, grad_placements=summed)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def positive(*shape: int) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 0.8 + 0.1).requires_grad_()


def given(*shape: int) -> torch.Tensor:
    """Targets, without a gradient."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(2))


def classes(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(3))


def signs(*shape: int) -> torch.Tensor:
    return 2.0 * classes(2, *shape) - 1


def rows() -> tuple[Any, ...]:
    return (real(4, 6),)


def lines() -> tuple[Any, ...]:
    return (real(4, 4, 8),)


def images() -> tuple[Any, ...]:
    return (real(4, 4, 6, 8),)


def volumes() -> tuple[Any, ...]:
    return (real(4, 4, 4, 6, 4),)


SPACES = {1: lines, 2: images, 3: volumes}


def pair() -> tuple[Any, ...]:
    return real(4, 6), given(4, 6)


def _entries() -> list[Entry]:
    found: list[Entry] = []

    def add(name: str, args: tuple[Any, ...], inputs: Callable[[], tuple[Any, ...]], **options: Any) -> None:
        found.append(Entry(name, args, inputs, **options))

    for name in (
        "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Identity", "LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU",
        "SiLU", "Sigmoid", "Softsign", "Tanh", "Tanhshrink", "PReLU", "Flatten",
    ):  # fmt: skip
        add(name, (), rows)
    add("CELU", (), rows, twin={"alpha": 0.5})
    add("ELU", (), rows, twin={"alpha": 0.5})
    add("Hardtanh", (-0.5, 0.5), rows)
    add("LeakyReLU", (), rows, twin={"negative_slope": 0.2})
    add("Softplus", (), rows, twin={"beta": 2.0})
    add("Softshrink", (), rows, twin={"lambd": 0.2})
    add("Threshold", (0.1, 2.0), rows)
    add("GLU", (), rows)
    for name in ("Softmax", "Softmin", "LogSoftmax"):
        add(name, (), rows, kwargs={"dim": 1}, twin={"dim": 0})
    add("Softmax2d", (), images)
    add("Unflatten", (1, (2, 3)), rows)
    add("ChannelShuffle", (2,), images)
    add("PixelShuffle", (2,), images)
    add("PixelUnshuffle", (2,), images)
    for name in ("Dropout", "AlphaDropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout", "RReLU"):
        space = int(name[7]) if name[-1] == "d" else 1
        add(name, (), SPACES[space], training=False)

    add("Linear", (6, 5), rows)
    add("LazyLinear", (5,), rows)
    add("Bilinear", (6, 3, 5), lambda: (real(4, 6), real(4, 3)))
    add("Embedding", (7, 5), lambda: (classes(7, 4, 3),), kwargs={"padding_idx": 1}, twin={"padding_idx": 2})
    add("EmbeddingBag", (7, 5), lambda: (classes(7, 4, 3),), twin={"mode": "sum"})
    for space, inputs in SPACES.items():
        add(f"Conv{space}d", (4, 6, 3), inputs, kwargs={"padding": 1}, twin={"padding_mode": "circular"})
        add(f"ConvTranspose{space}d", (4, 3, 2), inputs, kwargs={"stride": 2})
        add(f"LazyConv{space}d", (6, 3), inputs)
        add(f"LazyConvTranspose{space}d", (6, 3), inputs)
        add(f"AvgPool{space}d", (2,), inputs, kwargs={"padding": 1}, twin={"count_include_pad": False})
        add(f"MaxPool{space}d", (2,), inputs)
        add(f"LPPool{space}d", (), inputs, kwargs={"norm_type": 2.0, "kernel_size": 2}, twin={"norm_type": 3.0})
        add(f"AdaptiveAvgPool{space}d", (2,), inputs)
        add(f"AdaptiveMaxPool{space}d", (2,), inputs)
        add(f"InstanceNorm{space}d", (4,), inputs, kwargs={"affine": True}, twin={"eps": 0.1})
        add(f"BatchNorm{space}d", (4,), inputs, training=False, twin={"eps": 0.1})
        add(f"LazyBatchNorm{space}d", (), inputs, training=False)
        add(f"LazyInstanceNorm{space}d", (), inputs, kwargs={"track_running_stats": False})
        for kind in ("Circular", "Reflection", "Replication", "Zero"):
            add(f"{kind}Pad{space}d", (1,), inputs)
        add(f"ConstantPad{space}d", (1, 0.5), inputs)
        add(f"MaxUnpool{space}d", (2,), lambda n=space: _pooled(n))
    add("LayerNorm", (6,), rows, twin={"eps": 0.1})
    add("RMSNorm", (6,), rows, twin={"eps": 0.1})
    add("GroupNorm", (2, 4), images, twin={"eps": 0.1})
    add("LocalResponseNorm", (3,), images, twin={"alpha": 0.1})
    add("CrossMapLRN2d", (3,), images)
    add("Fold", ((4, 4), 2), lambda: (real(4, 8, 9),))
    add("Unfold", (2,), images)
    add("Upsample", (), images, kwargs={"scale_factor": 2.0, "mode": "bilinear"}, twin={"align_corners": True})
    trilinear = {"scale_factor": 2.0, "mode": "trilinear"}
    add("Upsample", (), lambda: (real(4, 2, 3, 3, 3),), kwargs=trilinear, twin={"align_corners": True})
    add("UpsamplingBilinear2d", (), images, kwargs={"scale_factor": 2.0})
    add("UpsamplingNearest2d", (), images, kwargs={"scale_factor": 2.0})
    add("CosineSimilarity", (), lambda: (real(4, 6), positive(4, 6)), kwargs={"dim": 1})
    add("PairwiseDistance", (), lambda: (real(4, 6), positive(4, 6)), twin={"p": 1.0})

    total = {"reduction": "sum"}
    for name in ("L1Loss", "MSELoss"):
        add(name, (), pair, kwargs=total, twin={"reduction": "mean"})
    add("SmoothL1Loss", (), pair, kwargs=total, twin={"beta": 0.3})
    add("HuberLoss", (), pair, kwargs=total, twin={"delta": 0.3})
    add("KLDivLoss", (), pair, kwargs=total, twin={"log_target": True})
    add("BCELoss", (), lambda: (positive(4, 6), given(4, 6)), kwargs=total)
    add("BCEWithLogitsLoss", (), pair, kwargs=total)
    add("PoissonNLLLoss", (), pair, kwargs=total, twin={"log_input": False})
    add("SoftMarginLoss", (), lambda: (real(4, 6), signs(4, 6)), kwargs=total)
    add("HingeEmbeddingLoss", (), lambda: (real(4, 6), signs(4, 6)), kwargs=total, twin={"margin": 0.3})
    add("MarginRankingLoss", (), lambda: (real(4), positive(4), signs(4)), kwargs=total, twin={"margin": 0.3})
    add("CosineEmbeddingLoss", (), lambda: (real(4, 6), positive(4, 6), signs(4)), kwargs=total, twin={"margin": 0.3})
    add("MultiLabelSoftMarginLoss", (), lambda: (real(4, 6), classes(2, 4, 6).float()), kwargs=total)
    add("MultiLabelMarginLoss", (), lambda: (real(4, 6), classes(6, 4, 6)), kwargs=total, twin={"reduction": "mean"})
    add("MultiMarginLoss", (), lambda: (real(4, 6), classes(6, 4)), kwargs=total, twin={"margin": 0.3})
    add("NLLLoss", (), lambda: (real(4, 6), classes(6, 4)), kwargs=total, twin={"ignore_index": 2})
    add("NLLLoss2d", (), lambda: (real(4, 6, 2, 3), classes(6, 4, 2, 3)), kwargs=total)
    add("CrossEntropyLoss", (), lambda: (real(4, 6), classes(6, 4)), kwargs=total, twin={"label_smoothing": 0.1})
    add("TripletMarginLoss", (), lambda: (real(4, 6), positive(4, 6), given(4, 6)), kwargs=total, twin={"margin": 0.3})
    add("TripletMarginWithDistanceLoss", (), lambda: (real(4, 6), positive(4, 6), given(4, 6)), kwargs=total)
    add("GaussianNLLLoss", (), lambda: (real(4, 6), given(4, 6), positive(4, 6)), kwargs=total)
    add("AdaptiveLogSoftmaxWithLoss", (6, 9, [3, 6], 2.0), lambda: (real(4, 6), classes(9, 4)))
    add("CTCLoss", (), lambda: (real(5, 4, 3), classes(2, 4, 2) + 1, torch.full((4,), 5), torch.full((4,), 2)), batch=1)
    add("LinearCrossEntropyLoss", (6, 5), lambda: (real(4, 6), classes(5, 4)), kwargs=total)

    for name in ("RNNCell", "GRUCell", "LSTMCell"):
        add(name, (6, 5), rows)
    for name in ("RNN", "GRU", "LSTM"):
        add(name, (6, 5), lambda: (real(4, 3, 6),), kwargs={"batch_first": True})
    attention = {"batch_first": True}
    tokens = {"dropout": 0.0, "batch_first": True}
    add("MultiheadAttention", (8, 2), lambda: (real(4, 3, 8),) * 3, kwargs=attention)
    add("TransformerEncoderLayer", (8, 2, 16), lambda: (real(4, 3, 8),), kwargs=tokens, twin={"norm_first": True})
    add("TransformerDecoderLayer", (8, 2, 16), lambda: (real(4, 3, 8), positive(4, 2, 8)), kwargs=tokens)
    add("Transformer", (8, 2, 1, 1, 16), lambda: (real(4, 3, 8), positive(4, 2, 8)), kwargs=tokens)
    add("FractionalMaxPool2d", (2,), images, kwargs={"output_size": 3})
    add("FractionalMaxPool3d", (2,), volumes, kwargs={"output_size": 2})
    return found


def _pooled(space: int) -> tuple[Any, ...]:
    pool = getattr(torch.nn.functional, f"max_pool{space}d")
    values, indices = pool(SPACES[space]()[0].detach(), 2, return_indices=True)
    return values.requires_grad_(), indices


ENTRIES = _entries()

CONTAINERS = frozenset({
    "Container", "DataParallel", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "RNNBase",
    "RNNCellBase", "Sequential", "TransformerDecoder", "TransformerEncoder", "SyncBatchNorm",
})  # fmt: skip
"""No operators of their own, parts of others, or not for a CPU (SyncBatchNorm)."""
