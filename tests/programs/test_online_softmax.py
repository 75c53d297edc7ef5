"""Online softmax and flash decoding verify; what goes wrong in them is refuted."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import verifycompile
from tests.programs.online_softmax import BLOCKWISE, DECODING, merged, whole
from tests.programs.rank_graphs import trace
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

SEQUENCE, SAME = (Shard(2),), (Replicate(),)


def blockwise(name: str, mistake: str = "", ranks: int = 2) -> Report:
    spec, program, _ = BLOCKWISE[name]
    with fake_mesh_world((ranks,), ("x",), rank=1) as mesh:
        return verifycompile.verify(
            None,
            tuple(torch.randn(1, 2, 4, 6, requires_grad=True) for _ in range(3)),
            build=lambda: program(mesh, mistake),
            spec=spec,
            mesh=mesh,
            in_placements={"query": SEQUENCE, "key": SEQUENCE, "value": SEQUENCE},
            out_placements={"output.0": SEQUENCE},
        )


def decoding(name: str, mistake: str = "") -> Report:
    program, _ = DECODING[name]
    with fake_mesh_world((2,), ("x",), rank=1) as mesh:
        return verifycompile.verify(
            None,
            tuple(torch.randn(1, 2, rows, 6) for rows in (3, 4, 4)),
            build=lambda: program(mesh, mistake),
            spec=whole,
            mesh=mesh,
            in_placements={"query": SAME, "key": SEQUENCE, "value": SEQUENCE},
            out_placements={"output.0": SAME},
        )


@pytest.mark.parametrize("name", BLOCKWISE)
def test_blocks_are_the_whole(name: str) -> None:
    report = blockwise(name)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", "grad.query", "grad.key", "grad.value"}


@pytest.mark.sampled(every=5, of=("name",))
@pytest.mark.parametrize(("name", "mistake"), [(name, m) for name, case in BLOCKWISE.items() for m in case[2]])
def test_mistake_in_blocks_is_refuted(name: str, mistake: str) -> None:
    report = blockwise(name, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.parametrize("name", DECODING)
def test_decoding(name: str) -> None:
    report = decoding(name)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=3, of=("name",))
@pytest.mark.parametrize(("name", "mistake"), [(name, m) for name, case in DECODING.items() for m in case[1]])
def test_mistake_in_decoding_is_refuted(name: str, mistake: str) -> None:
    report = decoding(name, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.parametrize("mistake", ["", "output not rescaled"])
@pytest.mark.parametrize("first", [0, 3])
def test_eight_blocks_that_are_merged_in_turn(first: int, mistake: str) -> None:
    """Every merge divides all that was merged before by one more sum."""

    def parallel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        blocks = [(k, v, None) for k, v in zip(key.chunk(8, 2), value.chunk(8, 2), strict=True)]
        return merged(query, [blocks[(first - step) % 8] for step in range(8)], mistake)

    operands = {name: torch.randn(1, 2, 16, 4) for name in ("query", "key", "value")}
    report = verifycompile.verify_graphs(trace(whole, operands), [trace(parallel, operands)], {}, None)
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
