"""Data-parallel wrappers in every state: a gradient is verified only where the wrapper makes it the whole batch's.

Each rank has its own rows. The loss is a mean, whose gradient the wrapper makes the mean over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.nn.parallel import DistributedDataParallel

from tests.attacks.jobs import ROWS, Job, Programs, failures, outcomes

PROGRAMS = Programs()
Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]


class Model(nn.Module):
    """A loss; ``reduction`` makes it a mean or a sum of the rank's rows."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.reduction = reduction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        errors = self.down(torch.tanh(self.up(x))).square().mean(1)
        return errors.mean() if self.reduction == "mean" else errors.sum()


def rows() -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def job(wrap: Wrap, reduction: str = "mean") -> Callable[[DeviceMesh], Job]:
    return lambda mesh: Job(
        lambda: wrap(Model(reduction), mesh), Model(reduction), (rows(),), {"x": ROWS}, mesh=False, backward=True
    )


def right(wrap: Wrap) -> Wrap:
    PROGRAMS.add(f"right_{wrap.__name__}", job(wrap), right=True)
    return wrap


def wrong(wrap: Wrap) -> Wrap:
    PROGRAMS.add(f"wrong_{wrap.__name__}", job(wrap), right=False)
    return wrap


ACCUMULATING: set[str] = set()


def accumulating(wrap: Wrap) -> Wrap:
    """Gradients of this step are not reduced: right if a later step takes their mean, which the report must say."""
    PROGRAMS.add(wrap.__name__, job(wrap), right=False, ways=("verify",))
    ACCUMULATING.add(wrap.__name__)
    return wrap


@right
def ddp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model)


@right
def composable(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return replicate(model, device_mesh=mesh)


@right
def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(model, mesh=mesh)


@right
def allreduce_hook(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    return wrapped


@right
def mean_by_the_hook_of_every_parameter(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for parameter in model.parameters():
        parameter.register_hook(
            lambda gradient: dist._functional_collectives.all_reduce(gradient, "avg", mesh)
        )
    return model


class WithSpare(Model):
    """A parameter that takes no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 4)


def job_with_spare(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[DeviceMesh], Job]:
    return lambda mesh: Job(
        lambda: wrap(WithSpare()), WithSpare(), (rows(),), {"x": ROWS}, mesh=False, backward=True
    )


def accumulating_under_ddp(wrapped: DistributedDataParallel) -> nn.Module:
    """A later step reduces nothing either."""
    wrapped.require_backward_grad_sync = False
    return wrapped


WAITING: dict[str, tuple[Callable[[nn.Module], nn.Module], bool]] = {
    "a_parameter_without_gradient": (DistributedDataParallel, False),
    "a_parameter_without_gradient_composable": (replicate, False),
    "a_parameter_without_gradient_while_others_accumulate": (
        lambda model: accumulating_under_ddp(DistributedDataParallel(model)), False,
    ),
    "a_parameter_without_gradient_that_is_looked_for": (
        lambda model: DistributedDataParallel(model, find_unused_parameters=True), True,
    ),
    "a_parameter_without_gradient_in_a_static_graph": (
        lambda model: DistributedDataParallel(model, static_graph=True), True,
    ),
}  # fmt: skip
for name, (wrap, is_right) in WAITING.items():
    PROGRAMS.add(name, job_with_spare(wrap), right=is_right)


def synchronization_off_on_rank_1(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    wrapped.require_backward_grad_sync = mesh.get_rank() == 0
    return wrapped


# The numbers of ranks of which one waits for the others without end are not asked for.
PROGRAMS.add("wrong_synchronization_off_on_rank_1", job(synchronization_off_on_rank_1), right=False, numbers=False)


def other_weights_on_rank_1(model: nn.Module) -> None:
    if dist.get_rank() == 1:
        for parameter in model.parameters():
            nn.init.normal_(parameter.data, generator=torch.Generator().manual_seed(9))


@wrong
def replicas_never_made_equal(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    other_weights_on_rank_1(model)
    return DistributedDataParallel(model, init_sync=False)


@wrong
def replicas_changed_after(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    other_weights_on_rank_1(model)
    return wrapped


@wrong
def no_wrapper(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return model


@wrong
def ignored_modules(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return replicate(model, device_mesh=mesh, ignored_modules=[model.down])


@wrong
def ignored_parameters(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["down.weight", "down.bias"])
    return DistributedDataParallel(model)


@accumulating
def synchronization_off(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    wrapped.require_backward_grad_sync = False
    return wrapped


@accumulating
def composable_synchronization_off(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = replicate(model, device_mesh=mesh)
    wrapped.set_requires_gradient_sync(False)
    return wrapped


@accumulating
def sharded_synchronization_off(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = fully_shard(model, mesh=mesh)
    wrapped.set_requires_gradient_sync(False)
    return wrapped


@accumulating
def one_layer_synchronization_off(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    fully_shard(model.up, mesh=mesh)
    wrapped = fully_shard(model, mesh=mesh)
    model.up.set_requires_gradient_sync(False)
    return wrapped


@wrong
def another_divide_factor(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = fully_shard(model, mesh=mesh)
    wrapped.set_gradient_divide_factor(1.0)
    return wrapped


class ScalesBeforeReducing(DefaultReduceScatter):
    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *rest: Any, **options: Any) -> Any:
        return super().__call__(output_tensor, input_tensor.mul_(3), *rest, **options)


class ScalesBeforeGathering(DefaultAllGather):
    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *rest: Any, **options: Any) -> Any:
        return super().__call__(output_tensor, input_tensor * 2, *rest, **options)


@wrong
def reduce_scatter_of_a_class_made_from_torch_s(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = fully_shard(model, mesh=mesh)
    wrapped.set_custom_reduce_scatter(ScalesBeforeReducing())
    return wrapped


@wrong
def gather_of_a_class_made_from_torch_s(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = fully_shard(model, mesh=mesh)
    wrapped.set_custom_all_gather(ScalesBeforeGathering())
    return wrapped


@right
def torch_s_own_communication_given(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = fully_shard(model, mesh=mesh)
    wrapped.set_custom_reduce_scatter(DefaultReduceScatter())
    wrapped.set_custom_all_gather(DefaultAllGather())
    return wrapped


@wrong
def only_one_layer(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    fully_shard(model.up, mesh=mesh)
    return model


@wrong
def ignored_by_fsdp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(model, mesh=mesh, ignored_params=set(model.down.parameters()))


@wrong
def reduced_twice(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: dist._functional_collectives.all_reduce(gradient, "sum", mesh))
    return DistributedDataParallel(model)


@wrong
def scaled_before(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    model.up.weight.register_hook(lambda gradient: gradient * 2)
    return DistributedDataParallel(model)


@wrong
def summed_by_the_hook(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, hook)
    return wrapped


@wrong
def unfrozen_after(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    model.down.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    model.down.requires_grad_(True)
    return wrapped


@wrong
def added_after(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(1)
    model.up = nn.Linear(4, 8)
    return wrapped


for name, wrap in (("ddp", ddp), ("composable", composable), ("sharded", sharded)):
    # The mean of sums is not the sum.
    PROGRAMS.add(f"wrong_sum_under_{name}", job(wrap, "sum"), right=False)


def doubled_once_reduced(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = fully_shard(model, mesh=mesh)
    next(model.parameters()).register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))
    return wrapped


PROGRAMS.add("doubled_once_reduced", job(doubled_once_reduced), right=False, ways=("verify",))


def _is_second(mesh: DeviceMesh) -> bool:
    return mesh.get_rank() == 1


def _compressed(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    if _is_second(mesh):
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return wrapped


def _prefetching(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = fully_shard(model, mesh=mesh)
    if _is_second(mesh):
        wrapped.set_modules_to_backward_prefetch([wrapped])
    return wrapped


SET_OTHERWISE_ON_RANK_1: dict[str, tuple[Wrap, tuple[str, str]]] = {
    "gathered_again": (
        lambda model, mesh: fully_shard(model, mesh=mesh, reshard_after_forward=_is_second(mesh)),
        ("reshard_after_forward False", "reshard_after_forward 2"),
    ),
    "reduced_in_another_dtype": (
        lambda model, mesh: fully_shard(
            model, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=(torch.float16, torch.bfloat16)[mesh.get_rank()])
        ),
        ("reduce_dtype torch.float16", "reduce_dtype torch.bfloat16"),
    ),
    "prefetched": (_prefetching, ("set_modules_to_backward_prefetch []", "set_modules_to_backward_prefetch ['']")),
    "in_other_buckets": (
        lambda model, mesh: DistributedDataParallel(model, bucket_cap_mb=1 + mesh.get_rank()),
        ("bucket sizes (1048576, False)", "bucket sizes (2097152, False)"),
    ),
    "compressed": (_compressed, ("communication hooks []", "communication hooks ['fp16_compress_hook']")),
    "unused_ones_looked_for": (
        lambda model, mesh: DistributedDataParallel(model, find_unused_parameters=_is_second(mesh)),
        ("find_unused_parameters False", "find_unused_parameters True"),
    ),
}  # fmt: skip
for name, (wrap, _) in SET_OTHERWISE_ON_RANK_1.items():
    # Ranks that send otherwise wait for each other without end, or take other bytes for a gradient.
    PROGRAMS.add(f"wrong_{name}_on_rank_1", job(wrap), right=False, numbers=False)


class Layers(nn.Module):
    """Two layers of one size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))).square().mean()


def layers(is_other: Callable[[DeviceMesh], bool]) -> Callable[[DeviceMesh], Job]:
    """``is_other``: whether this rank registers the layers in the other order, by which the wrapper sends them."""

    def build(mesh: DeviceMesh) -> nn.Module:
        model = Layers()
        if is_other(mesh):
            model._modules["first"] = model._modules.pop("first")
        return DistributedDataParallel(model, init_sync=False)

    return lambda mesh: Job(lambda: build(mesh), Layers(), (rows(),), {"x": ROWS}, mesh=False, backward=True)


PROGRAMS.add("right_layers_in_another_order", layers(lambda mesh: True), right=True)
PROGRAMS.add("wrong_layers_in_another_order_on_rank_1", layers(_is_second), right=False)


def test_programs() -> None:
    found = outcomes(__file__)
    hooked = found.pop(("doubled_once_reduced", "verify"))
    assert hooked.equal is False
    assert all("what they do comes after what is proved" in text for text in hooked.texts), hooked
    for name, (_, is_right) in WAITING.items():
        waits = "it waits for the gradients of all its parameters, and there is none of `spare.weight` and 1 more"
        assert is_right or all(waits in text for text in found[name, "compile"].texts), found[name, "compile"]
    later = "on rank 1, and not on rank 0: gradients of this step are accumulated on each rank, not reduced (no_sync()): "
    assert all(later in text for text in found["wrong_synchronization_off_on_rank_1", "compile"].texts)
    for name, (_, (first, second)) in SET_OTHERWISE_ON_RANK_1.items():
        differ = f"alike on all ranks: it has `{first}` on rank 0 and `{second}` on rank 1"
        assert all(differ in text for text in found[f"wrong_{name}_on_rank_1", "compile"].texts), name
    moved = "does not send `first.weight` alike on all ranks: it has `place 1 of 4` on rank 0 and `place 3 of 4` on rank 1"
    assert all(moved in text for text in found["wrong_layers_in_another_order_on_rank_1", "compile"].texts)
    others = {
        name: program for name, program in PROGRAMS.found.items() if name not in {*ACCUMULATING, "doubled_once_reduced"}
    }
    assert failures(Programs(others), found) == []
    for name in ACCUMULATING:
        outcome = found[name, "verify"]
        assert outcome.equal is False
        assert all("a later step must take the mean of what was accumulated" in text for text in outcome.texts), outcome
