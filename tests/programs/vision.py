"""Programs on images: convolutional classifiers, a vision transformer, a block of a diffusion U-Net.

Batches are sharded over ``dp``, and parameters are DTensors over the whole mesh. In one style they are used as such,
and linear layers may be tensor-parallel over ``tp``. In the other each rank computes on plain tensors, with
parameters whose gradients are summed over the ranks: DTensor has no rule for many an operator on images.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from tests.programs.case import Case


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
    def __init__(self, channels: int, out: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, channels), nn.GroupNorm(2, out)
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
        self.first = Residual(3, channels, width)
        self.first.norm1 = nn.GroupNorm(3, 3)
        self.down = nn.Conv2d(channels, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.attention = Attention(8, 4)
        self.up = nn.Conv2d(8, channels, 3, padding=1)
        self.last = Residual(2 * channels, 3, width)
        self.last.norm2 = nn.GroupNorm(1, 3)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(torch.arange(self.width // 2) * (-math.log(1e4) / (self.width // 2)))
        angles = t[:, None] * rates
        time = self.time2(F.silu(self.time1(torch.cat([angles.sin(), angles.cos()], -1))))
        a = self.first(x, time)
        h = self.down(a)
        pixels = self.norm(h).flatten(2).transpose(1, 2)
        h = h + self.attention(pixels).transpose(1, 2).unflatten(2, h.shape[2:])
        h = self.up(self.stretch(h))
        return self.last(torch.cat([h, a], 1), time)


def images(size: int = 8, batch: int = 8) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def images_and_times() -> tuple[torch.Tensor, torch.Tensor]:
    return images(8, 4), torch.tensor([0.1, 3.0, 0.7, 2.0])


def _batch_over(axis: str, batch: Placement) -> Placement:
    return batch if axis == "dp" else Replicate()


def as_dtensors(
    columns: Sequence[str] = (), rows: Sequence[str] = (), batch: Placement | None = None
) -> Callable[[nn.Module, DeviceMesh], nn.Module]:
    """All values as DTensors: ``columns`` and ``rows`` of linear layers over ``tp``, other parameters on every rank.

    ``batch``: how the inputs lie over ``dp``, by default with the samples sharded.
    """
    shard = batch or Shard(0)

    def placements(name: str, mesh: DeviceMesh) -> tuple[Placement, ...]:
        module = name.rpartition(".")[0]
        place: Placement = Replicate()
        if any(fnmatch.fnmatch(module, pattern) for pattern in columns):
            place = Shard(0)
        elif any(fnmatch.fnmatch(module, pattern) for pattern in rows) and name.endswith("weight"):
            place = Shard(1)
        return tuple(place if axis == "tp" else Replicate() for axis in mesh.mesh_dim_names or ())

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        _distribute(model, mesh, placements)
        layout = tuple(_batch_over(axis, shard) for axis in mesh.mesh_dim_names or ())

        def enter(_: nn.Module, values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(DTensor.from_local(value, mesh, layout, run_check=False) for value in values)

        def leave(_: nn.Module, __: object, output: DTensor) -> torch.Tensor:
            kept = tuple(Replicate() if p.is_partial() else p for p in output.placements)
            return output.redistribute(mesh, kept).to_local()

        model.register_forward_pre_hook(enter)
        model.register_forward_hook(leave)
        return model

    return parallelize


def _distribute(
    model: nn.Module, mesh: DeviceMesh, placements: Callable[[str, DeviceMesh], tuple[Placement, ...]]
) -> None:
    for path, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            place = placements(f"{path}.{name}".lstrip("."), mesh)
            setattr(module, name, nn.Parameter(distribute_tensor(parameter.data, mesh, place)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, distribute_tensor(buffer, mesh, [Replicate()] * mesh.ndim))


def on_local_tensors(gradient: Placement | None = None) -> Callable[[nn.Module, DeviceMesh], nn.Module]:
    """Each rank computes on its own samples with parameters that are read as plain tensors.

    ``gradient``: what a rank's gradient of a parameter is held to be; by default a summand of the whole.
    """

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        _distribute(model, mesh, lambda _, mesh: tuple(Replicate() for _ in range(mesh.ndim)))
        kind = (gradient or Partial(),) * mesh.ndim
        for module in model.modules():
            read = {name: _reader("_parameters", name, kind) for name, _ in module.named_parameters(recurse=False)}
            read |= {name: _reader("_buffers", name, kind) for name, _ in module.named_buffers(recurse=False)}
            module.__class__ = type(type(module).__name__, (type(module),), read)
        return model

    return parallelize


def _reader(kind: str, name: str, gradient: tuple[Placement, ...]) -> property:
    return property(lambda module: getattr(module, kind)[name].to_local(grad_placements=gradient))


COLUMNS = ("*.q", "*.k", "*.v", "*blocks.*.up", "attention.[qkv]", "time1")
ROWS = ("*attention.out", "*blocks.*.down", "time2")


def _case(
    name: str,
    model: Callable[[], nn.Module],
    inputs: Callable[[], tuple[torch.Tensor, ...]],
    mesh: tuple[int, ...],
    parallelize: Callable[[nn.Module, DeviceMesh], nn.Module],
) -> Case:
    axes = tuple(zip(("dp", "tp"), mesh, strict=False))
    shards = (0,) * len(inputs())
    full_name = f"{name}-{'x'.join(map(str, mesh))}"
    return Case(full_name, axes, model, parallelize, inputs, shards, axis="dp")


def convnet_case(degree: int) -> Case:
    return _case("convnet", ConvNet, lambda: (images(),), (degree,), as_dtensors())


def local_convnet_case(degree: int) -> Case:
    return _case("convnet-local", ConvNet, lambda: (images(),), (degree,), on_local_tensors())


def pool_case(degree: int) -> Case:
    return _case("poolnet-local", PoolNet, lambda: (images(),), (degree,), on_local_tensors())


def batch_norm_case(degree: int) -> Case:
    """DTensor gathers the batch, of which batch normalization reads all."""
    return _case("batchnorm", BatchNormNet, lambda: (images(),), (degree,), as_dtensors())


def vit_case(*mesh: int) -> Case:
    return _case("vit", ViT, lambda: (images(),), mesh, as_dtensors(COLUMNS, ROWS))


def unet_case(*mesh: int) -> Case:
    return _case("unet", lambda: UNet(transposed=True), images_and_times, mesh, as_dtensors(COLUMNS, ROWS))


def local_unet_case(degree: int) -> Case:
    return _case("unet-local", UNet, images_and_times, (degree,), on_local_tensors())
