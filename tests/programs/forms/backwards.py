"""Backward passes written by hand: norms, softmax, gated activations, over sharded samples, columns or both."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms import comm
from tests.programs.forms.form import S0, S1, Form, R

WIDTH = 8
EPS = 1e-5


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mistake: str) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        root = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + EPS)
        hat = centred * root
        ctx.save_for_backward(hat, root, weight)
        ctx.mistake = mistake
        return hat * weight + bias

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        hat, root, weight = ctx.saved_tensors
        scaled = grad * weight
        mean = scaled.mean(-1, keepdim=True)
        along = (scaled * hat).mean(-1, keepdim=True)
        if ctx.mistake == "mean of the gradient kept":
            mean = torch.zeros_like(mean)
        own = (scaled - mean - hat * along) * (1 if ctx.mistake == "root forgotten" else root)
        return own, (grad * hat).sum(0), grad.sum(0), None


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, style: str, mistake: str) -> torch.Tensor:
        square = x.square().mean(-1, keepdim=True) + EPS
        root = {"rsqrt": torch.rsqrt, "sqrt": lambda s: 1.0 / torch.sqrt(s), "pow": lambda s: s.pow(-0.5)}[style](
            square
        )
        ctx.save_for_backward(x, weight, root)
        ctx.style, ctx.mistake = style, mistake
        return x * root * weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        x, weight, root = ctx.saved_tensors
        along = (grad * weight * x).sum(-1, keepdim=True)
        power = root**2 if ctx.mistake == "square for cube" else root**3
        size = 1 if ctx.mistake == "size forgotten" else x.shape[-1]
        if ctx.style == "sqrt":
            own = grad * weight * root - x * power / size * along
        else:
            hat = x * root
            own = root * (grad * weight - hat * (grad * weight * hat).mean(-1, keepdim=True))
            if ctx.mistake:
                own = grad * weight * root - x * power / size * along
        return own, (grad * x * root).sum(0), None, None


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, mistake: str) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.mistake = mistake
        return gate * torch.sigmoid(gate) * up

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        gate, up = ctx.saved_tensors
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        if ctx.mistake == "sigmoid alone":
            return grad * up * sigmoid, grad * silu, None
        if ctx.mistake == "gate of up":
            return grad * up * sigmoid * (1 + up * (1 - sigmoid)), grad * silu, None
        return grad * up * (sigmoid + silu * (1 - sigmoid)), grad * silu, None


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mistake: str) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.mistake = mistake
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + torch.tanh(inner))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        (x,) = ctx.saved_tensors
        factor = math.sqrt(2 / math.pi)
        t = torch.tanh(factor * (x + 0.044715 * x**3))
        cube = 1 if ctx.mistake == "three forgotten" else 3
        slope = factor * (1 + cube * 0.044715 * x**2)
        half = 1 if ctx.mistake == "half forgotten" else 0.5
        return grad * (
            half * (1 + t) + 0.5 * x * (1 - (t if ctx.mistake == "tanh not squared" else t * t)) * slope
        ), None


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mistake: str) -> torch.Tensor:
        power = torch.exp(x - x.max(-1, keepdim=True)[0])
        p = power / power.sum(-1, keepdim=True)
        ctx.save_for_backward(p)
        ctx.mistake = mistake
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        (p,) = ctx.saved_tensors
        if ctx.mistake == "diagonal alone":
            return grad * p * (1 - p), None
        along = (grad * p).sum(-1, keepdim=True) * (0.5 if ctx.mistake == "half" else 1)
        return (p * grad - along if ctx.mistake == "along not weighted" else p * (grad - along)), None


class Linear(torch.autograd.Function):
    """The gradient of the input is reduced here, before that of the weight is computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: Any, mistake: str) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.mistake = group, mistake
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        own = grad.matmul(weight)
        if ctx.mistake != "gradient of the input not reduced":
            own = comm.total(own, ctx.group)
        gradient = grad.t().mm(x)
        if ctx.mistake == "gradient of the weight reduced":
            gradient = comm.total(gradient, ctx.group)
        return own, gradient * (2 if ctx.mistake == "gradient of the weight doubled" else 1), None, None


Apply = Callable[..., Any]


class OverSamples(nn.Module):
    """A function with its own backward; parameters are used by the samples of all ranks."""

    def __init__(self, function: Any, parameters: int, extra: tuple[Any, ...], mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        self.function, self.extra, self.mesh, self.mistake = function, extra, mesh, mistake
        self.weight = nn.Parameter(torch.rand(WIDTH)) if parameters else None
        self.bias = nn.Parameter(torch.rand(WIDTH)) if parameters > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = self.mesh.get_group("dp")
        given = [p for p in (self.weight, self.bias) if p is not None]
        if self.mistake != "gradient not reduced":
            given = [comm.enter(p, group) for p in given]
        return self.function.apply(x, *given, *self.extra, self.mistake)


class Native(nn.Module):
    def __init__(self, function: Apply, parameters: int) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.rand(WIDTH)) if parameters else None
        self.bias = nn.Parameter(torch.rand(WIDTH)) if parameters > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *[p for p in (self.weight, self.bias) if p is not None])


def over_samples(
    name: str,
    ranks: int,
    function: Any,
    native: Apply,
    *mistakes: str,
    parameters: int = 0,
    extra: tuple[Any, ...] = (),
) -> Form:
    return Form(
        f"{name}-{ranks}",
        {"dp": ranks},
        lambda: Native(native, parameters),
        lambda mesh, mistake: OverSamples(function, parameters, extra, mesh, mistake),
        lambda: (torch.randn(3, WIDTH, requires_grad=True),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (S0,)}},
        mistakes,
    )


class GatedMLP(nn.Module):
    """Column-parallel gate and up in hand-written linear layers, a row-parallel down."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        width = 16 // (1 if mesh is None else mesh["tp"].size())
        self.gate = nn.Parameter(torch.randn(width, WIDTH))
        self.up = nn.Parameter(torch.randn(width, WIDTH))
        self.down = nn.Parameter(torch.randn(WIDTH, width))
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return (F.silu(x @ self.gate.t()) * (x @ self.up.t())) @ self.down.t()
        group = self.mesh.get_group("tp")
        gate: Any = Linear.apply(x, self.gate, group, self.mistake)
        up: Any = Linear.apply(x, self.up, group, self.mistake)
        hidden: Any = SwiGLU.apply(gate, up, self.mistake)
        return comm.leave(hidden @ self.down.t(), group)


def gated(ranks: int) -> Form:
    return Form(
        f"gated-{ranks}",
        {"tp": ranks},
        GatedMLP,
        GatedMLP,
        lambda: (torch.randn(3, WIDTH, requires_grad=True),),
        {
            "in_placements": {"x": (R,)},
            "param_placements": {"gate": (S0,), "up": (S0,), "down": (S1,)},
            "out_placements": {"output.0": (R,)},
        },
        (
            "gradient of the input not reduced",
            "gradient of the weight reduced",
            "gradient of the weight doubled",
            "sigmoid alone",
            "gate of up",
        ),
    )


class ShardedRMSNorm(torch.autograd.Function):
    """A norm over columns that are sharded: the square and, in backward, what lies along it are summed over ranks."""

    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd calls it
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: Any, size: int, mistake: str
    ) -> torch.Tensor:
        square = x.pow(2).sum(-1, keepdim=True)
        square = square if mistake == "own square" else comm.total(square, group)
        root = torch.rsqrt(square / size + EPS)
        ctx.save_for_backward(x, weight, root)
        ctx.group, ctx.size, ctx.mistake = group, size, mistake
        return x * root * weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        x, weight, root = ctx.saved_tensors
        hat = x * root
        along = (grad * weight * hat).sum(-1, keepdim=True)
        along = along if ctx.mistake == "own along" else comm.total(along, ctx.group)
        size = x.shape[-1] if ctx.mistake == "own size" else ctx.size
        return root * (grad * weight - hat * along / size), (grad * hat).sum(0), None, None, None


class ShardedNorm(nn.Module):
    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH // (1 if mesh is None else mesh["tp"].size())))
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return F.rms_norm(x, (WIDTH,), self.weight, EPS)
        norm: Any = ShardedRMSNorm.apply(x, self.weight, self.mesh.get_group("tp"), WIDTH, self.mistake)
        return norm


def sharded_norm(ranks: int) -> Form:
    return Form(
        f"sharded-norm-{ranks}",
        {"tp": ranks},
        ShardedNorm,
        ShardedNorm,
        lambda: (torch.randn(3, WIDTH // ranks, requires_grad=True),),
        {"in_placements": {"x": (S1,)}, "param_placements": {"weight": (S0,)}, "out_placements": {"output.0": (S1,)}},
        ("own square", "own along", "own size"),
    )


class BatchStatistics(torch.autograd.Function):
    """SyncBN: sums, sums of squares and counts in one reduction; backward reduces two sums as well."""

    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd calls it
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, group: Any, mistake: str
    ) -> Any:
        count = torch.full((1,), float(x.shape[0]))
        packed = torch.cat([x.sum(0), x.square().sum(0), count])
        packed = packed if mistake == "own statistics" else comm.total(packed, group)
        size = packed[-1]
        mean, square = packed[:WIDTH] / size, packed[WIDTH : 2 * WIDTH] / size
        variance = square - mean * mean
        root = torch.rsqrt(variance + EPS)
        hat = (x - mean) * root
        ctx.save_for_backward(hat, weight, root, size)
        ctx.group, ctx.mistake = group, mistake
        return hat * weight + bias

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        hat, weight, root, size = ctx.saved_tensors
        sums = torch.stack([grad.sum(0), (grad * hat).sum(0)])
        every = sums if ctx.mistake == "own sums in backward" else comm.total(sums, ctx.group)
        own = weight * root * (grad - every[0] / size - hat * every[1] / size)
        given = sums if ctx.mistake == "parameters' gradients not reduced" else every
        return own, given[1], given[0], None, None


class BatchNorm(nn.Module):
    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))
        self.bias = nn.Parameter(torch.rand(WIDTH))
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=EPS)
        group = self.mesh.get_group("dp")
        result: Any = BatchStatistics.apply(x, self.weight, self.bias, group, self.mistake)
        return result


def batch_norm(ranks: int) -> Form:
    return Form(
        f"sync-batch-norm-{ranks}",
        {"dp": ranks},
        BatchNorm,
        BatchNorm,
        lambda: (torch.randn(3, WIDTH, requires_grad=True),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("own statistics", "own sums in backward", "parameters' gradients not reduced"),
    )


class AutogradBatchNorm(nn.Module):
    """The same by autograd: mean and mean of squares are reduced, and so are their gradients."""

    def __init__(self, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))
        self.bias = nn.Parameter(torch.rand(WIDTH))
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group, ranks = self.mesh.get_group("dp"), self.mesh["dp"].size()

        def everywhere(value: torch.Tensor) -> torch.Tensor:
            value = comm.leave(value, group)
            value = value if self.mistake == "gradient of the statistics not reduced" else comm.enter(value, group)
            return value if self.mistake == "sum for mean" else value / ranks

        weight, bias = self.weight, self.bias
        if self.mistake != "parameters' gradients not reduced":
            weight, bias = comm.enter(weight, group), comm.enter(bias, group)
        mean = everywhere(x.mean(0))
        if self.mistake == "variance of the rank":
            return (x - mean) / torch.sqrt((x - mean).square().mean(0) + EPS) * weight + bias
        variance = everywhere((x - mean).square().mean(0))
        return (x - mean) / torch.sqrt(variance + EPS) * weight + bias


class PackedBatchNorm(AutogradBatchNorm):
    """The same with sums, sums of squares and the number of samples in one reduction."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = self.mesh.get_group("dp")
        packed = torch.cat([x.sum(0), x.square().sum(0), torch.tensor([float(len(x))])])
        if self.mistake != "own statistics":
            packed = comm.leave(packed, group)
            packed = packed if self.mistake == "gradient of the statistics not reduced" else comm.enter(packed, group)
        count = len(x) if self.mistake == "counted as those of one rank" else packed[-1:]
        mean, square = packed[:WIDTH] / count, packed[WIDTH:-1] / count
        weight, bias = comm.enter(self.weight, group), comm.enter(self.bias, group)
        return (x - mean) * torch.rsqrt(square - mean.square() + EPS) * weight + bias


def packed_batch_norm(ranks: int) -> Form:
    return Form(
        f"packed-batch-norm-{ranks}",
        {"dp": ranks},
        BatchNorm,
        PackedBatchNorm,
        lambda: (torch.randn(3, WIDTH, requires_grad=True),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("own statistics", "counted as those of one rank", "gradient of the statistics not reduced"),
    )


def autograd_batch_norm(ranks: int) -> Form:
    return Form(
        f"autograd-batch-norm-{ranks}",
        {"dp": ranks},
        BatchNorm,
        AutogradBatchNorm,
        lambda: (torch.randn(3, WIDTH, requires_grad=True),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (S0,)}},
        (
            "gradient of the statistics not reduced",
            "sum for mean",
            "parameters' gradients not reduced",
            "variance of the rank",
        ),
    )


def native_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (WIDTH,), weight, bias, EPS)


def native_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (WIDTH,), weight, EPS)


FORMS: tuple[Form, ...] = (
    over_samples(
        "layer-norm", 2, LayerNorm, native_layer_norm, "mean of the gradient kept", "root forgotten",
        "gradient not reduced", parameters=2,
    ),
    *(
        over_samples(
            f"rms-norm-{style}", ranks, RMSNorm, native_rms_norm, "square for cube", "size forgotten",
            "gradient not reduced", parameters=1, extra=(style,),
        )
        for style, ranks in (("rsqrt", 2), ("sqrt", 4), ("pow", 2))
    ),
    over_samples(
        "gelu", 2, Gelu, lambda x: F.gelu(x, approximate="tanh"), "three forgotten", "half forgotten",
        "tanh not squared",
    ),
    over_samples("softmax", 4, Softmax, lambda x: F.softmax(x, -1), "diagonal alone", "along not weighted", "half"),
    gated(2),
    gated(4),
    sharded_norm(4),
    batch_norm(2),
    autograd_batch_norm(2),
    packed_batch_norm(2),
)  # fmt: skip
