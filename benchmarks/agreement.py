"""``python -m benchmarks agreement``: what the comparison of the ranks costs, beside the capture that it follows.

A rank writes what it captured as text and takes the digest of it, which it gives to the store of the job. Seconds are
those of the processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from benchmarks.programs import PROGRAMS

LAYERS = (1, 2, 4, 8, 16)
DEGREE = 8
HEADER = ("program", "layers", "nodes", "capture s", "digest s", "digest / capture")


def row(name: str, layers: int) -> tuple[str, ...]:
    """The cells of one program, in the order of ``HEADER``. Inside of a fake process group."""
    from torch.distributed.device_mesh import init_device_mesh

    from verifycompile.agreement.together import said_of
    from verifycompile.agreement.written import digest_of
    from verifycompile.capture import capture_model
    from verifycompile.options import Options

    program = PROGRAMS[name]
    model = program.parallel(layers, init_device_mesh("cpu", (DEGREE,), mesh_dim_names=("tp",)))
    options = Options()
    started = time.process_time()
    spec, implementation = capture_model(model, program.inputs(), {}, options)
    captured = time.process_time()
    assert implementation.own is not None
    _, parts = said_of(spec, implementation, implementation.own, options)
    digest_of(parts)
    ended = time.process_time()
    capture, taken = captured - started, ended - captured
    nodes = len(implementation.graph.graph.nodes)
    return (name, str(layers), f"{nodes:,}", f"{capture:.2f}", f"{taken:.3f}", f"{taken / capture:.1%}")


def main(arguments: Sequence[str]) -> int:
    """Prints one row a program. Exit status: 0."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    parser = argparse.ArgumentParser(prog="python -m benchmarks agreement", description=__doc__)
    parser.add_argument("--program", action="append", choices=sorted(PROGRAMS))
    parser.add_argument("--layers", action="append", type=int, metavar="N")
    given = parser.parse_args(arguments)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=DEGREE)
    names = given.program or ["mlp", "transformer"]
    row(names[0], 1)  # what is imported and cached is no part of what is measured
    print("  ".join(HEADER))
    for name in names:
        for layers in given.layers or LAYERS:
            print("  ".join(row(name, layers)), flush=True)
    return 0
