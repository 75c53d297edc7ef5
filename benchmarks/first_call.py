"""``python -m benchmarks first-call``: what the flag and the first call of ``backend="verify"`` cost.

Every run is a process of its own, whose caches are empty. Runs without and with the package alternate (A B A B ...), so
that what else the machine does meets both; of each pair the ratio is taken, and of all pairs the median. Seconds are
those of the processor, in the process and in the compilers that it starts.

What the flag alone costs is less than two processes differ by. A process with the package counts it by itself then:
torch calls the package at the end of its import, and the seconds inside of the package are told from all others.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.metadata
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

HEADER = ("first call", "without s", "with s", "with / without", "least", "greatest")


@dataclasses.dataclass(frozen=True)
class Case:
    """``run``: the seconds of one run, with the package or without; of a run that counts the package by itself, both.

    ``variables``: the environment of the runs with the package.
    """

    title: str
    run: Callable[[bool], float] | Callable[[], tuple[float, float]]
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    counts_itself: bool = False


def _seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _import() -> tuple[float, float]:
    """Seconds of ``import torch`` without the package, and with it: what torch runs at the end of its import."""
    started = _seconds()
    own = _import_torch()
    whole = _seconds() - started
    return whole - own, whole


def _import_torch() -> float:
    """Imports torch, and returns the seconds of it that are the package's."""
    own = 0.0
    load = importlib.metadata.EntryPoint.load

    def counted(entry: importlib.metadata.EntryPoint) -> Callable[[], Any]:
        def run() -> None:
            nonlocal own
            begun = _seconds()
            load(entry)()
            own += _seconds() - begun

        return run

    importlib.metadata.EntryPoint.load = counted
    importlib.import_module("torch")
    importlib.metadata.EntryPoint.load = load
    return own


def _plain_model() -> tuple[float, float]:
    """Seconds of a process that imports torch and makes the first step of a model without parallelism."""
    started = _seconds()
    own = _import_torch()
    importlib.import_module("torch._dynamo")  # `torch.compile` imports it, also without the package
    needed = _seconds()
    flag: Any = importlib.import_module("verifycompile.backends.flag")
    own += _seconds() - needed
    check = flag.check_graph

    def counted(*arguments: Any) -> Any:
        nonlocal own
        begun = _seconds()
        try:
            return check(*arguments)
        finally:
            own += _seconds() - begun

    flag.check_graph = counted
    import torch
    from torch import nn

    layers = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
    torch.compile(nn.Sequential(*layers))(torch.randn(8, 64)).sum().backward()
    whole = _seconds() - started
    return whole - own, whole


def _parallel_model(question: Callable[[], tuple[Any, Any, dict[str, Any]]], is_verified: bool) -> float:
    """The first step of a model: forward, loss and backward. ``question``: the model, its spec, and its arguments."""
    import torch

    model, spec, arguments = question()
    if is_verified:
        importlib.import_module("verifycompile.backends.verify")  # no cost of a model
    torch.compile(torch.nn.Linear(2, 2))(torch.randn(2, 2)).sum().backward()
    compiled = torch.compile(model, backend="verify", options={"spec": spec}) if is_verified else torch.compile(model)
    started = _seconds()
    result = compiled(**arguments)
    (result if isinstance(result, torch.Tensor) else result.loss).backward()
    return _seconds() - started


def _example(is_dynamic: bool) -> tuple[Any, Any, dict[str, Any]]:
    import torch

    from examples import tensor_parallel_transformer as example
    from verifycompile.torch_interface.operators.shapes import mark_dynamic

    model = example.parallelize(example.transformer(), _mesh(), bug=False)
    arguments = {name: torch.zeros(4, 16, dtype=torch.int64) for name in ("tokens", "labels")}
    for tensor in arguments.values() if is_dynamic else ():
        mark_dynamic(tensor, 0)
    return model, example.transformer(), arguments


def _llama() -> tuple[Any, Any, dict[str, Any]]:
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        use_cache=False,
    )
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan: dict[str, ParallelStyle] = {f"model.layers.*.{name}": ColwiseParallel() for name in columns}
    plan.update({f"model.layers.*.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")})
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    model = parallelize_module(LlamaForCausalLM(config), _mesh(), plan)
    return model, LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def _mesh() -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    return init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


_VERIFIED = functools.partial(functools.partial, _parallel_model)
CASES = {
    "import": Case("`import torch`, the flag unset", _import, counts_itself=True),
    "flag": Case(
        "the first step of a model without parallelism, the flag set",
        _plain_model,
        {"VERIFYCOMPILE": "1"},
        counts_itself=True,
    ),
    "example": Case("the example of this page", _VERIFIED(functools.partial(_example, False))),
    "dynamic": Case("the same, its batch of any size", _VERIFIED(functools.partial(_example, True))),
    "llama": Case("two layers of transformers' llama", _VERIFIED(_llama)),
}


def _pair(name: str) -> tuple[float, float]:
    if CASES[name].counts_itself:
        first, second = _measured(name, True)
        return first, second
    return _measured(name, False)[0], _measured(name, True)[0]


def _measured(name: str, is_used: bool) -> list[float]:
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.first_call", name, "--measure", str(int(is_used))],
            env={**os.environ, **caches, **(case.variables if is_used else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    return [float(number) for number in done.stdout.split()]


def row(case: Case, pairs: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """The cells of one case, in the order of ``HEADER``."""
    without, using = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = [used / unused for unused, used in pairs]
    shown = (statistics.median(ratios), min(ratios), max(ratios))
    return (case.title, f"{without:.2f}", f"{using:.2f}", *(f"{ratio:.3f}" for ratio in shown))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line a case, the cells of a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks first-call", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; all by default")
    parser.add_argument("--pairs", type=int, default=5, help="runs without and with the package (default: 5)")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if options.measure is not None:
        case: Any = CASES[options.cases[0]]
        print(*(case.run() if case.counts_itself else [case.run(bool(options.measure))]))
        return 0
    for cells in (HEADER, tuple("-" * len(cell) for cell in HEADER)):
        print(f"| {' | '.join(cells)} |", flush=True)
    for name in options.cases or CASES:
        pairs = [_pair(name) for _ in range(options.pairs)]
        print(f"| {' | '.join(row(CASES[name], pairs))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
