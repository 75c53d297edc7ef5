"""Mistakes in programs on images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import RowwiseParallel

from tests.mutants import edits, users
from tests.mutants.edits import ALL_REDUCE
from tests.mutants.mutant import Mutant
from tests.programs import vision
from tests.programs.case import Case, tensor_parallel

CONVNET, POOLNET, BATCH_NORM = vision.convnet_case(2), vision.pool_case(2), vision.batch_norm_case(2)
VIT, UNET = vision.vit_case(4), vision.unet_case(2)
VIT_TP, UNET_TP = vision.tensor_parallel_vit_case(4), vision.tensor_parallel_unet_case(2)


def _user(kind: str, detail: str, case: Case, changed: Case) -> Mutant:
    return Mutant(kind, detail, case, changed=changed)


def _set(path: str, **attributes: object) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for name, value in attributes.items():
            setattr(model.get_submodule(path), name, value)

    return change


def _code(kind: type[nn.Module]) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        model.__class__ = kind

    return change


class _PoolNet(vision.PoolNet):
    """The right program, each step of which a mutant replaces."""

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (1, 1, 1, 1), mode="reflect")

    def largest(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 3, stride=2)

    def resize(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="bilinear")

    def average(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.largest(F.relu(self.norm(self.stem(self.pad(x)))))
        return self.head(F.adaptive_avg_pool2d(self.average(self.resize(x)), 2).flatten(1))


class RepeatedBorder(_PoolNet):
    def pad(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (1, 1, 1, 1), mode="replicate")


class SmallerWindows(_PoolNet):
    def largest(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 2, stride=2)


class AlignedCorners(_PoolNet):
    def resize(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)


class PaddingNotCounted(_PoolNet):
    def average(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)


class SkipFirst(vision.UNet):
    """The skip connection before the upsampled channels."""

    def join(self, h: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return torch.cat([skip, h], 1)


class FlippedPatches(vision.ViT):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flip(-1))


def local_mutants() -> Iterator[Mutant]:
    """Attributes and operators changed in the parallel program alone; gradients that nobody adds up."""
    for path, attributes in (
        ("stem", {"stride": (1, 1)}),
        ("stem", {"padding": (0, 0)}),
        ("depthwise", {"dilation": (1, 1)}),
        ("up", {"stride": (1, 1)}),
        ("norm", {"num_groups": 4}),
        ("norm", {"eps": 0.1}),
    ):
        (name,) = attributes
        yield _user("attribute", f"{path}.{name}", CONVNET, users.with_model(CONVNET, _set(path, **attributes)))
    for kind in (RepeatedBorder, SmallerWindows, AlignedCorners, PaddingNotCounted):
        yield _user("code", kind.__name__, POOLNET, users.with_model(POOLNET, _code(kind)))
    yield _user("code", "mode", UNET, users.with_model(UNET, _set("stretch", mode="bilinear")))
    yield _user("code", "groups", UNET, users.with_model(UNET, _set("norm", num_groups=2)))
    yield _user("code", "skip", UNET, users.with_model(UNET, _code(SkipFirst)))
    yield _user("code", "flip", VIT, users.with_model(VIT, _code(FlippedPatches)))
    for case in (CONVNET, POOLNET, VIT, UNET):
        for kind in (Replicate(), Partial("avg")):
            changed = users.replaced(case, vision.on_local_tensors(kind))
            yield _user("gradient", type(kind).__name__.lower(), case, changed)


def statistics_mutants() -> Iterator[Mutant]:
    """Batch normalization by what each rank has of the batch."""
    yield _user("statistics", "per-rank", BATCH_NORM, users.replaced(BATCH_NORM, vision.on_local_tensors()))
    yield _user("statistics", "epsilon", BATCH_NORM, users.with_model(BATCH_NORM, _set("norm", eps=0.1)))
    wrong = users.with_model(BATCH_NORM, lambda model: model.norm.eval() and None)
    yield _user("statistics", "running", BATCH_NORM, wrong)


def tensor_parallel_mutants() -> Iterator[Mutant]:
    for case, plan, rows, columns in (
        (VIT_TP, vision.VIT_PLAN, "blocks.*.attention.out", "blocks.*.up"),
        (UNET_TP, vision.UNET_PLAN, "attention.out", "time1"),
    ):
        for position in (0, 1):
            edit = edits.drop(ALL_REDUCE, position, backward=position > 0)
            yield Mutant("drop", f"all-reduce-{position}", case, edit=edit)
        kept = {**plan, rows: RowwiseParallel(output_layouts=Partial())}
        yield _user("partial-kept", rows, case, users.replaced(case, tensor_parallel(kept)))
        for path, factor in ((rows, 2.0), (columns, 0.5)):
            hooked = users.with_output_hook(case, path.replace("*", "0"), users.scaled(factor))
            yield _user("hook-scale", path, case, hooked)


IMAGE_MUTANTS: tuple[Mutant, ...] = (
    *local_mutants(),
    *statistics_mutants(),
    *tensor_parallel_mutants(),
)
