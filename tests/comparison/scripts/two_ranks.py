"""A job of two gloo processes that compares a model, right and wrong; prints what each rank is told, as JSON."""

# ruff: noqa: T201 - a script of a user prints

import json
import linecache
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import verifycompile
from tests.comparison.programs import LeavesPartial, Model, miscompiles, tensor_parallel, tokens
from tests.forked import start_ranks


def told(model: nn.Module, **options: Any) -> dict[str, Any]:
    own = [t.chunk(2)[dist.get_rank()] for t in tokens()] if options.pop("own", False) else tokens()
    before = [p.detach().clone() for p in model.parameters()]
    found = verifycompile.compare(model, own, **options)
    kept = all(torch.equal(p.detach(), b) for p, b in zip(model.parameters(), before, strict=True))
    finding = found.findings[0] if found.findings else None
    return {
        "verdict": found.verdict.value,
        "how": found.how,
        "tensors": len(found.tensors),
        "output": finding.output if finding else "",
        "kept": kept and all(p.grad is None for p in model.parameters()),
        "text": str(found),
    }


class Adds(nn.Module):
    """Sums over its own group of ranks; ``raises``: rank 1 does not come, else it has nothing to add."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.layer, self.group, self.raises = nn.Linear(4, 4), dist.new_group(), raises

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        if dist.get_rank() == 1 and self.raises:
            raise ValueError("no such expert")
        if dist.get_rank() == 0:
            dist.all_reduce(x.detach(), group=self.group)
        return x


def run(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("ranks",))
    torch.manual_seed(0)
    spec = Model()
    answers: dict[str, Any] = {}
    answers["right"] = told(tensor_parallel(Model(), mesh), spec=spec)
    answers["wrong"] = told(tensor_parallel(Model(), mesh, LeavesPartial), spec=spec)
    answers["data parallel"] = told(DistributedDataParallel(Model()), own=True, mesh=mesh, optimizer=torch.optim.AdamW)
    sharded = Model()
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    answers["sharded"] = told(sharded, own=True)
    torch.manual_seed(rank)
    answers["other values"] = told(Model(), spec=spec, mesh=mesh)
    torch.manual_seed(0)
    compiled = torch.compile(tensor_parallel(Model(layers=1), mesh), backend="aot_eager")
    answers["compiled"] = told(compiled, spec=Model(layers=1))
    torch._dynamo.reset()
    other = torch.compile(tensor_parallel(Model(layers=1), mesh), backend=miscompiles)
    answers["compiled wrongly"] = told(other, spec=Model(layers=1))
    for name, raises in (("raises", True), ("never comes", False)):
        started, x = time.monotonic(), torch.ones(2, 4)
        found = verifycompile.compare(Adds(raises), (x,), spec=nn.Identity(), mesh=mesh, patience=4.0)
        place = found.findings[0].impl_location
        answers[name] = {
            "verdict": found.verdict.value,
            "message": found.findings[0].message,
            "line": "" if place is None else linecache.getline(place.file, place.line).strip(),
            "seconds": time.monotonic() - started,
        }
    made = verifycompile.compare(build=lambda: 1 // dist.get_rank(), args=(x,), spec=nn.Identity(), mesh=mesh)
    answers["cannot be made"] = {"verdict": made.verdict.value, "message": made.findings[0].message}
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(run, (int(sys.argv[1]), folder), 2)
        ranks = [json.loads(pathlib.Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
    print(json.dumps({name: [rank[name] for rank in ranks] for name in ranks[0]}))
