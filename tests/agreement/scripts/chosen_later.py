"""What calls decide after their graphs were verified, on two gloo processes; prints what becomes of it."""

import contextlib
import datetime as dt
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.agreement.asked_on_two_ranks import tell
from tests.agreement.scripts.changed_later import Layer, counted, parallel, said


class Flagged(nn.Module):
    """Runs one of three graphs, by a flag."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.layer = parallel(Layer(), mesh)

    def forward(self, x: torch.Tensor, flag: str) -> torch.Tensor:
        return self.layer(x) * {"double": 2, "treble": 3, "single": 1}[flag]


class Loss(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


def compiled(model: nn.Module, **settings: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="verify", options={"inner": "eager"}, **settings)


def flags(mesh: DeviceMesh, *names: str) -> list[str]:
    """What becomes of each call; the three graphs are compiled before."""
    run = compiled(Flagged(mesh))

    def call(flag: str) -> str:
        return said(lambda: run(torch.ones(4, 8), flag))

    for flag in ("double", "treble", "single"):
        call(flag)
    with counted() as begun:
        found = [call(flag) for flag in names]
    return [*found, f"{len(begun)} comparisons"]


def rows(model: nn.Module, numbers: tuple[int, ...], **settings: Any) -> list[str]:
    """What becomes of training steps of so many rows."""
    run = compiled(model, **settings)
    return [said(lambda number=number: backward(run(torch.ones(number, 8)))) for number in numbers]


def backward(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss.detach()


def no_sync(model: Any, is_off: bool) -> contextlib.AbstractContextManager[Any]:
    return model.no_sync() if is_off else contextlib.nullcontext()


def off(model: Any, is_off: bool) -> contextlib.AbstractContextManager[Any]:
    model.set_requires_gradient_sync(not is_off)
    return contextlib.nullcontext()


SWITCHES: dict[str, tuple[Callable[[nn.Module, DeviceMesh], Any], Any]] = {
    "DDP": (lambda model, _: DistributedDataParallel(model), no_sync),
    "fully_shard": (lambda model, mesh: fully_shard(model, mesh=mesh), off),
}


def switched(mesh: DeviceMesh, name: str, by_step: tuple[bool, ...]) -> list[str]:
    """What becomes of forward passes whose gradients are left for a later step, or not."""
    wrap, switch = SWITCHES[name]
    model = wrap(Loss(), mesh)
    run = compiled(model)
    found: list[str] = []
    for is_off in by_step:
        with switch(model, is_off):
            found.append(said(lambda: run(torch.ones(4, 8)).detach()))
    return found


@contextlib.contextmanager
def patience(is_short: bool) -> Any:
    if is_short:
        os.environ["VERIFYCOMPILE_RANKS_TIMEOUT"] = "1"
    yield
    os.environ.pop("VERIFYCOMPILE_RANKS_TIMEOUT", None)


def evaluated_alone(rank: int) -> list[str]:
    """Rank 0 evaluates between steps of training."""
    model = DistributedDataParallel(Loss(), broadcast_buffers=False)
    run = compiled(model)
    found: list[str] = []
    for _ in range(3):
        found.append(said(lambda: backward(run(torch.ones(4, 8)))))
        if rank == 0:
            with torch.no_grad():
                run(torch.ones(4, 8))
    return found


def answers_of_rank(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    answers["right flags"] = flags(mesh, "double", "treble", "treble", "double")
    answers["wrong flags"] = flags(mesh, ("double", "treble")[rank])[:1]
    wrapped = DistributedDataParallel(Loss())
    answers["right rows"] = rows(wrapped, (2, 4, 6, 4))
    answers["wrong rows"] = rows(wrapped, (2, 4, 6, 6 + 2 * (rank + 1)))[-1:]
    answers["wrong rows of one graph each"] = rows(wrapped, (2, 4, 6, 2 + 2 * rank), dynamic=False)[-1:]
    for name in SWITCHES:
        answers[f"right {name}"] = switched(mesh, name, (False, True, False))
        with patience(rank == 1):
            answers[f"wrong {name}"] = switched(mesh, name, (False, rank == 1))[-1:]
    answers["evaluated alone"] = evaluated_alone(rank)
    return answers


if __name__ == "__main__":
    tell(answers_of_rank, dt.timedelta(seconds=60))
