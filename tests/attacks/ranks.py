"""``python -m tests.attacks.ranks WORLD FILE [NAMES]``: the programs of a file on real processes, a JSON line for each."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.util
import inspect
import json
import pathlib
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import verifycompile
from tests.attacks.jobs import Job, Outcome, Program, Programs, cut
from tests.forked import start_ranks
from tests.oracle import _clean_layouts, _layout_error, relation
from tests.support import fake_mesh_world
from verifycompile import RefinementError, Report, refutation
from verifycompile.capture.names import clean_module_name

TOLERANCE = 1e-5
INNER = ("eager", "aot_eager", "inductor")
"""Ways of asking that also run what was verified."""


def programs_of(file: str) -> Programs:
    spec = importlib.util.spec_from_file_location(f"attacks_{pathlib.Path(file).stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.PROGRAMS


def rank_main(rank: int, world: int, store: str, file: str, names: tuple[str, ...]) -> None:
    """Verdicts are what is asked: what would mend a wrong program is not searched for, as in ``tests/conftest.py``."""
    torch.set_num_threads(1)
    refutation._SECONDS_FOR_CAUSES, refutation._PROOFS_FOR_CAUSES = 0.0, 0
    warnings.simplefilter("ignore")
    root = dist.FileStore(store, world)
    for program in programs_of(file):
        if names and program.name not in names:
            continue
        for way in program.ways:
            started = time.perf_counter()
            found = _asked(program, way, root, rank, world)
            everyone = functools.partial(_everyones, found, world)
            verdicts, texts, equal = zip(*in_job(f"{program.name} {way} end", root, rank, world, everyone), strict=True)
            if rank == 0:
                seconds = time.perf_counter() - started
                equals = None if None in equal else all(equal)
                line = Outcome(program.name, way, verdicts, texts, equals, seconds)
                sys.stdout.write(json.dumps(dataclasses.asdict(line)) + "\n")
                sys.stdout.flush()


def _asked(program: Program, way: str, root: dist.Store, rank: int, world: int) -> tuple[str, str, bool | None]:
    """Verdict and text on this rank; and, the first time that a program is asked about, what its numbers say."""
    if way in INNER:
        return in_job(f"{program.name} {way}", root, rank, world, functools.partial(run, program, way))
    if way in ("factory", "object"):
        verdict, text = on_one_process(program, way, rank, world)
    else:
        verdict, text = in_job(f"{program.name} {way}", root, rank, world, functools.partial(ask, program, way))
    if not program.numbers or way != program.ways[0]:
        return verdict, text, None
    return verdict, text, in_job(f"{program.name} numbers", root, rank, world, functools.partial(agrees, program))


def _everyones(found: object, world: int) -> list[Any]:
    values: list[Any] = [None] * world
    dist.all_gather_object(values, found)
    return values


def in_job(name: str, root: dist.Store, rank: int, world: int, action: Any) -> Any:
    """A process group of its own for every question: what one leaves behind does not reach the next."""
    torch._dynamo.reset()
    torch.distributed.tensor.debug._clear_sharding_prop_cache()
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.PrefixStore(name, root), rank=rank, world_size=world)
    try:
        return action()
    finally:
        dist.barrier()
        dist.destroy_process_group()


def on_one_process(program: Program, way: str, rank: int, world: int) -> tuple[str, str]:
    """The verdict under the fake process group, seen from ``rank``: no other process is asked."""
    torch.manual_seed(0)
    with fake_mesh_world((world,), ("tp",), rank=rank) as mesh:
        return _answer(lambda: _report(program.job(mesh), mesh, way))


def ask(program: Program, way: str) -> tuple[str, str]:
    """The verdict on this rank, and the report's text. An error of the question is a verdict of its own."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    return _answer(lambda: _report(program.job(mesh), mesh, way))


def _answer(report_of: Any) -> tuple[str, str]:
    try:
        report = report_of()
    except RefinementError as error:
        found = error.report.verdict.value, str(error)
    except Exception as error:  # noqa: BLE001 - whatever a user would see
        return "error", f"{type(error).__name__}: {error}"
    else:
        return (report.verdict.value, str(report)) if report is not None else ("verified", "")
    # Frames that have ended hold the error, and the other ranks wait until it was printed or dropped.
    gc.collect()
    return found


def run(program: Program, inner: str) -> tuple[str, str, bool | None]:
    """The verdict where ``inner`` compiles what was verified, and whether the compiled program has the spec's numbers."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    job = program.job(mesh)
    numbers: list[Any] = []

    def ask() -> None:
        compiled = torch.compile(job.build(), backend="verify", options={**_options(job, mesh), "inner": inner})
        numbers.append(_numbers(job, mesh, compiled))

    verdict, text = _answer(ask)
    values: list[Any] = [None] * mesh.size()
    dist.all_gather_object(values, numbers[0] if numbers else None)
    return verdict, text, None if any(value is None for value in values) else _are_the_spec_s(job, values, mesh)


def _report(job: Job, mesh: DeviceMesh, way: str) -> Report | None:
    options = _options(job, mesh)
    model = job.build()
    args = local_args(job, mesh)
    if way == "factory":
        options["build"] = job.build
    if way != "compile":
        return verifycompile.verify(model, args, dict(job.kwargs), **options)
    compiled = torch.compile(model, backend="verify", options={"inner": "eager", **options})
    result = compiled(*args, **job.kwargs)
    if job.backward:
        _first(result).sum().backward()
    return None


def _options(job: Job, mesh: DeviceMesh) -> dict[str, Any]:
    options: dict[str, Any] = dict(job.options)
    if job.mesh:
        options["mesh"] = mesh
    if job.placed:
        options["in_placements"] = job.in_placements
    if job.given:
        options["spec"] = job.spec
    return options


def local_args(job: Job, mesh: DeviceMesh) -> tuple[Any, ...]:
    if job.given_args is not None:
        return job.given_args
    assert job.spec is not None
    function = job.spec.forward if isinstance(job.spec, torch.nn.Module) else job.spec
    names = list(inspect.signature(function).parameters)
    placed = [job.in_placements.get(name) for name in names]
    rank, world = mesh.get_rank(), mesh.size()
    return tuple(cut(value, placed[k] if k < len(placed) else None, rank, world) for k, value in enumerate(job.args))


def agrees(program: Program) -> bool:
    """Whether the ranks' results, and their gradients where those count, are the spec's."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    job = program.job(mesh)
    assert job.spec is not None
    values: list[Any] = [None] * mesh.size()
    try:
        mine = _numbers(job, mesh, job.build())
    except Exception:  # noqa: BLE001 - a program that fails computes nothing right
        mine = None
    dist.all_gather_object(values, mine)
    return all(value is not None for value in values) and _are_the_spec_s(job, values, mesh)


def _are_the_spec_s(job: Job, values: list[Any], mesh: DeviceMesh) -> bool:
    assert job.spec is not None
    expected = _first(job.spec(*job.args, **job.kwargs))
    required = job.options.get("out_placements", {}).get("output.0")
    layouts = [required] if required else _clean_layouts(expected.dim(), (mesh.size(),))
    results = [value[0] for value in values]
    if all(_layout_error(results, expected, layout, (mesh.size(),)) > TOLERANCE for layout in layouts):
        return False
    if not job.backward:
        return True
    expected.sum().backward()
    wholes = [value.grad for value in job.args if isinstance(value, torch.Tensor) and value.requires_grad]
    if isinstance(job.spec, torch.nn.Module):
        wholes += [parameter.grad for parameter in job.spec.parameters()]
    for whole, *parts in zip(wholes, *(value[1] for value in values), strict=True):
        if any((part is None) != (whole is None) for part in parts):
            return False
        if whole is not None and relation(parts, whole, (mesh.size(),), TOLERANCE) not in ((Replicate(),), (Shard(0),), (Shard(1),)):
            return False
    return True


def _numbers(job: Job, mesh: DeviceMesh, model: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """What one rank computes: its result and its gradients, whole where they are DTensors."""
    args = local_args(job, mesh)
    result = _first(model(*args, **job.kwargs))
    if isinstance(result, DTensor):
        result = result.full_tensor()
    if job.backward and result.requires_grad:
        result.sum().backward()
    mine = [value.grad for value in args if isinstance(value, torch.Tensor) and value.requires_grad]
    if isinstance(job.spec, torch.nn.Module) and isinstance(model, torch.nn.Module):
        parameters = model.named_parameters()
        own = {clean_module_name(name.split(".")).removeprefix("module."): p for name, p in parameters}
        mine += [own[name].grad for name, _ in job.spec.named_parameters()]
    return result.detach() * 1, [_plain(g) for g in mine]


def _plain(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient as a tensor of this rank: whole where it is a DTensor. A product waits for a collective."""
    if gradient is None:
        return None
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient * 1


def _first(value: Any) -> Any:
    while isinstance(value, tuple | list | dict):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value


def main(world: str, file: str, *names: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given = (int(world), f"{folder}/store", file, names)
        start_ranks(rank_main, given, int(world))


if __name__ == "__main__":
    main(*sys.argv[1:])
