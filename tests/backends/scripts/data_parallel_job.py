"""Steps of a data-parallel job on two gloo processes under ``torch.compile``, against one device with all samples.

    data_parallel_job.py layer|batch

Two steps accumulate without synchronisation and a third reduces. Exits with 0 where the gradients are those of one
device; prints which ranks were stopped otherwise.
"""

import contextlib
import pathlib
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.forked import start_ranks

WORLD_SIZE = 2


class Model(nn.Module):
    def __init__(self, norm: str) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8) if norm == "layer" else nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.norm(self.layer(x)), y)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(8, 6, generator=generator), torch.randn(8, 8, generator=generator)) for _ in range(3)]


def work(rank: int, norm: str, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(0)
    single = Model(norm)
    for x, y in batches():
        single(x, y).backward()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(norm))
    compiled = torch.compile(model, backend="aot_eager")
    try:
        for step, (x, y) in enumerate(batches()):
            with model.no_sync() if step < 2 else contextlib.nullcontext():
                compiled(x.chunk(WORLD_SIZE)[rank], y.chunk(WORLD_SIZE)[rank]).backward()
    except Exception:  # noqa: BLE001 - whatever stops a rank is printed, and the test reads it
        traceback.print_exc()
        (pathlib.Path(folder) / f"stopped-{rank}").touch()
    else:
        pairs = list(zip(model.module.parameters(), single.parameters(), strict=True))
        for mine, whole in pairs:
            torch.testing.assert_close(mine.grad, whole.grad)
        if rank == 0:
            print(f"equal: {len(pairs)} gradients, 2 of {len(batches())} steps accumulated")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(work, (sys.argv[1], folder), WORLD_SIZE)
        stopped = [rank for rank in range(WORLD_SIZE) if (pathlib.Path(folder) / f"stopped-{rank}").exists()]
        if stopped:
            print(f"stopped: {stopped}")
            sys.exit(1)
