"""A job of two gloo processes that compares a model, right and wrong; prints what each rank is told, as JSON."""

# ruff: noqa: T201 - a script of a user prints

import json
import os
import pathlib
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import verifycompile
from tests.comparison.programs import LeavesPartial, Model, tensor_parallel, tokens


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
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(int(sys.argv[1]), folder), nprocs=2)
        ranks = [json.loads(pathlib.Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
    print(json.dumps({name: [rank[name] for rank in ranks] for name in ranks[0]}))
