"""Programs on images: convolutional classifiers, a vision transformer, a block of a diffusion U-Net.

Batches are sharded over ``dp``, and parameters are DTensors over the whole mesh. In one style they are used as such,
and linear layers may be tensor-parallel over ``tp``. In the other each rank computes on plain tensors, with
parameters whose gradients are summed over the ranks: DTensor has no rule for many an operator on images.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.placement_types import Placement

from tests.programs.case import Case, Plan, tensor_parallel, tensor_parallel_mesh


class ConvNet(nn.Module):
    """Strided, grouped, dilated and transposed convolutions; group normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.stem(x)))
        x = F.relu(self.pointwise(self.depthwise(x)))
        return self.head(F.adaptive_avg_pool2d(F.relu(self.up(x)), 1).flatten(1))


class PoolNet(nn.Module):
    """Normalized by running statistics, as in fine-tuning; pooled in three ways, interpolated and padded."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.norm.running_mean.normal_()
        self.norm.eval()
        self.head = nn.Linear(8 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(F.pad(x, (1, 1, 1, 1), mode="reflect")))), 3, stride=2)
        x = F.avg_pool2d(F.interpolate(x, scale_factor=2.0, mode="bilinear"), 3, stride=2, padding=1)
        return self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))


class BatchNormNet(nn.Module):
    """Statistics over the batch of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.stem(x))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for w in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ViTBlock(nn.Module):
    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, head)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Patches are embedded by a convolution whose stride is its kernel."""

    def __init__(self, width: int = 16, head: int = 4, layers: int = 1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width))
        self.blocks = nn.ModuleList(ViTBlock(width, head) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.classes = nn.Linear(width, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.classes(self.norm(x)[:, 0])


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, width: int, groups: tuple[int, int] = (2, 2)) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups[0], channels), nn.GroupNorm(groups[1], out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(width, out)
        self.skip = nn.Conv2d(channels, out, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """Down, attention over all pixels, up again beside the skip connection; conditioned on the time."""

    def __init__(self, channels: int = 4, width: int = 8, transposed: bool = False) -> None:
        super().__init__()
        self.width = width
        self.stretch = nn.ConvTranspose2d(8, 8, 2, stride=2) if transposed else nn.Upsample(scale_factor=2.0)
        self.time1, self.time2 = nn.Linear(width, 16), nn.Linear(16, width)
        self.first = Residual(3, channels, width, (3, 2))
        self.down = nn.Conv2d(channels, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.attention = Attention(8, 4)
        self.up = nn.Conv2d(8, channels, 3, padding=1)
        self.last = Residual(2 * channels, 3, width, (2, 1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(torch.arange(self.width // 2) * (-math.log(1e4) / (self.width // 2)))
        angles = t[:, None] * rates
        time = self.time2(F.silu(self.time1(torch.cat([angles.sin(), angles.cos()], -1))))
        a = self.first(x, time)
        h = self.down(a)
        pixels = self.norm(h).flatten(2).transpose(1, 2)
        h = h + self.attention(pixels).transpose(1, 2).unflatten(2, h.shape[2:])
        return self.last(self.join(self.up(self.stretch(h)), a), time)

    def join(self, h: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return torch.cat([h, skip], 1)


def images(size: int = 8, batch: int = 8) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def images_and_times() -> tuple[torch.Tensor, torch.Tensor]:
    return images(8, 4), torch.tensor([0.1, 3.0, 0.7, 2.0])


def as_dtensors(batch: Placement | None = None) -> Callable[[nn.Module, DeviceMesh], nn.Module]:
    """All values as DTensors, parameters on every rank. ``batch``: how the inputs lie, by default samples sharded."""
    shard = batch or Shard(0)

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        _distribute(model, mesh)

        def enter(_: nn.Module, values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(DTensor.from_local(value, mesh, (shard,), run_check=False) for value in values)

        def leave(_: nn.Module, __: object, output: DTensor) -> torch.Tensor:
            (placement,) = output.placements
            return output.redistribute(mesh, (Replicate() if placement.is_partial() else placement,)).to_local()

        model.register_forward_pre_hook(enter)
        model.register_forward_hook(leave)
        return model

    return parallelize


def _distribute(model: nn.Module, mesh: DeviceMesh) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Replicate()])))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, distribute_tensor(buffer, mesh, [Replicate()]))


def on_local_tensors(gradient: Placement | None = None) -> Callable[[nn.Module, DeviceMesh], nn.Module]:
    """Each rank computes on its own samples with parameters that are read as plain tensors.

    ``gradient``: what a rank's gradient of a parameter is held to be; by default a summand of the whole.
    """

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        _distribute(model, mesh)
        kind = (gradient or Partial(),)
        for module in model.modules():
            read = {name: _reader("_parameters", name, kind) for name, _ in module.named_parameters(recurse=False)}
            read |= {name: _reader("_buffers", name, kind) for name, _ in module.named_buffers(recurse=False)}
            module.__class__ = type(type(module).__name__, (type(module),), read)
        return model

    return parallelize


def _reader(kind: str, name: str, gradient: tuple[Placement, ...]) -> property:
    return property(lambda module: getattr(module, kind)[name].to_local(grad_placements=gradient))


def _case(
    name: str,
    model: Callable[[], nn.Module],
    inputs: Callable[[], tuple[torch.Tensor, ...]],
    degree: int,
    parallelize: Callable[[nn.Module, DeviceMesh], nn.Module],
) -> Case:
    """Samples are sharded over the only mesh axis."""
    return Case(f"{name}-dp-{degree}", (("dp", degree),), model, parallelize, inputs, batch=("dp",))


def convnet_case(degree: int) -> Case:
    return _case("convnet", ConvNet, lambda: (images(),), degree, on_local_tensors())


def pool_case(degree: int) -> Case:
    return _case("poolnet", PoolNet, lambda: (images(),), degree, on_local_tensors())


def strided_case(degree: int) -> Case:
    """A convolution whose stride is its kernel, after one whose windows overlap."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 2, stride=2))

    return _case("strided", model, lambda: (images(),), degree, as_dtensors())


def with_input_shard(original: Case, dim: int, parallelize: Callable[[nn.Module, DeviceMesh], nn.Module]) -> Case:
    """The case whose images are sharded along another dimension than the samples."""
    mesh = tensor_parallel_mesh(original.world_size)
    cut = (dim,) * len(original.inputs())
    return dataclasses.replace(original, mesh=mesh, batch=(), sharded=cut, parallelize=parallelize)


def batch_norm_case(degree: int) -> Case:
    """DTensor gathers the batch, of which batch normalization reads all."""
    return _case("batchnorm", BatchNormNet, lambda: (images(),), degree, as_dtensors())


def vit_case(degree: int) -> Case:
    return _case("vit", ViT, lambda: (images(),), degree, on_local_tensors())


def unet_case(degree: int) -> Case:
    return _case("unet", UNet, images_and_times, degree, on_local_tensors())


ATTENTION = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel()}
VIT_PLAN: Plan = {
    **{f"blocks.*.attention.{name}": style for name, style in ATTENTION.items()},
    "blocks.*.up": ColwiseParallel(),
    "blocks.*.down": RowwiseParallel(),
}
UNET_PLAN: Plan = {
    **{f"attention.{name}": style for name, style in ATTENTION.items()},
    "time1": ColwiseParallel(),
    "time2": RowwiseParallel(),
}


def tensor_parallel_vit_case(degree: int) -> Case:
    """Convolution and norms on every rank, attention by heads, perceptrons by columns and rows."""
    mesh = tensor_parallel_mesh(degree)
    return Case(f"vit-tp-{degree}", mesh, ViT, tensor_parallel(VIT_PLAN), lambda: (images(batch=2),))


def tensor_parallel_unet_case(degree: int) -> Case:
    mesh = tensor_parallel_mesh(degree)
    return Case(f"unet-tp-{degree}", mesh, UNet, tensor_parallel(UNET_PLAN), images_and_times)


CASES = (
    convnet_case(2),
    pool_case(2),
    strided_case(2),
    batch_norm_case(2),
    vit_case(4),
    unet_case(2),
    tensor_parallel_vit_case(4),
    tensor_parallel_unet_case(2),
)
