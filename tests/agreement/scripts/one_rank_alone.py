"""What rank 0 alone does in compiled code, and calls past a wrapper, on two gloo processes; prints what is said."""

import contextlib
import datetime as dt
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.agreement.asked_on_two_ranks import tell
from verifycompile import RefinementError, UsageError
from verifycompile.backends.reports import VerificationWarning

INNER: Any = {"inner": "eager"}
LOG = logging.getLogger("one")


def printed(y: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        sys.stderr.write(str(y.shape))


def logged(y: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        logging.getLogger("one").info("mean %s", y.mean())


def listed(y: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        print("mean", y.mean())  # noqa: T201 - what users do
        LOG.info("mean %s", y.mean())


def on_all_ranks(y: torch.Tensor) -> None:
    logging.getLogger("one").info("mean %s", y.mean())


def printed_on_the_last(y: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        sys.stderr.write(str(y.shape))


class Net(nn.Module):
    def __init__(self, log: Callable[[torch.Tensor], None] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.log = nn.Linear(4, 8), nn.Linear(8, 4), log

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.tanh(self.up(x)))
        if self.log is not None:
            self.log(y)
        return y * 2


class Deep(Net):
    """What it calls is compiled on its own where a graph break is in it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def said(model: nn.Module, **options: Any) -> str:
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.compile(model, backend="verify", options={**INNER, **options})(torch.ones(2, 4))
        except RefinementError as error:
            (finding,) = error.report.findings
            return f"{error.report.verdict.value} {finding.code}: {'; '.join((finding.message, *finding.notes))}"
        except UsageError as error:
            return str(error).partition("\n")[0]
    return next((str(item.message) for item in caught if item.category is VerificationWarning), "ran")


def answers_of_rank(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    def parallel(log: Callable[[torch.Tensor], None], kind: type[Net] = Net) -> nn.Module:
        return parallelize_module(kind(log), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    answers: dict[str, Any] = {}
    for log in (printed, printed_on_the_last, logged, on_all_ranks):
        answers[log.__name__] = said(parallel(log))
    lists: Any = {"reorderable_logging_functions": {print}, "ignore_logging_functions": {logging.Logger.info}}
    with torch._dynamo.config.patch(lists), contextlib.redirect_stdout(sys.stderr):
        answers["listed"] = said(parallel(listed))
    answers["called"] = said(parallel(printed, Deep))
    answers["given"] = said(parallel(printed), spec=Net())
    wrapped = DistributedDataParallel(Net())
    answers["past the wrapper"] = said(wrapped.module)
    answers["the wrapper"] = said(DistributedDataParallel(Net()))
    with torch.no_grad():
        answers["evaluated past the wrapper"] = said(wrapped.module)
    return answers


if __name__ == "__main__":
    tell(answers_of_rank, dt.timedelta(seconds=60))
