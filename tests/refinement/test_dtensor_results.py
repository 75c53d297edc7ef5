"""DTensors that leave a program are those that DTensor reads: their shape, and chunks as ``torch.chunk`` cuts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict
from verifycompile.certificate import check_certificate

Function = Callable[[Any], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Program:
    """``make``: mesh -> what a rank runs on ``x``, which is distributed as ``placements`` say, else passed whole."""

    ranks: int
    make: Callable[[DeviceMesh], Function]
    spec: Function
    x: torch.Tensor
    placements: tuple[Placement, ...] | None
    message: str = ""
    record: str = ""
    """The placements, the shape and the strides with which the result is to be made again, "" where that is no help."""

    def argument(self, mesh: DeviceMesh) -> torch.Tensor:
        return self.x if self.placements is None else distribute_tensor(self.x, mesh, self.placements)


def same(function: Function) -> Callable[[DeviceMesh], Function]:
    return lambda mesh: function


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def shuffled(x: Any) -> torch.Tensor:
    return F.pixel_shuffle(torch.tanh(x), 2)


def shuffled_whole(mesh: DeviceMesh) -> Function:
    def program(x: Any) -> torch.Tensor:
        return F.pixel_shuffle(torch.tanh(x.redistribute(placements=[Replicate()])), 2)

    return program


def doubled(x: Any) -> torch.Tensor:
    return torch.tanh(x) * 2


def doubled_locally(mesh: DeviceMesh) -> Function:
    mapped = local_map(lambda t: t * 2, out_placements=[Shard(0)], in_placements=([Shard(0)],), device_mesh=mesh)
    return lambda x: mapped(torch.tanh(x))  # pyright: ignore[reportCallIssue]


def cut(
    at: int,
    shape: tuple[int, ...] = (2, 5),
    stride: tuple[int, ...] = (5, 1),
    then: Function = lambda y: y,
) -> Callable[[DeviceMesh], Function]:
    """The first ``at`` columns on rank 0, the others on rank 1, as a DTensor of ``shape`` and ``stride``."""

    def make(mesh: DeviceMesh) -> Function:
        def program(x: torch.Tensor) -> torch.Tensor:
            own = x[:, :at] if mesh.get_local_rank() == 0 else x[:, at:]
            return then(
                DTensor.from_local(own.contiguous(), mesh, [Shard(1)], shape=torch.Size(shape), stride=stride) * 2
            )

        return program

    return make


def rows(**whole: Any) -> Callable[[DeviceMesh], Function]:
    """Twice the rows of each rank, as a DTensor that says ``whole`` of itself."""
    return lambda mesh: lambda x: DTensor.from_local(x.to_local() * 2, mesh, [Shard(0)], **whole)


def turned(contiguous: bool) -> Callable[[DeviceMesh], Function]:
    def make(mesh: DeviceMesh) -> Function:
        def program(x: Any) -> torch.Tensor:
            own = x.to_local().t()
            return DTensor.from_local(own.contiguous() if contiguous else own, mesh, [Shard(1)])

        return program

    return make


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


LINES, COLUMNS = (Shard(0),), (Shard(1),)

WRONG = {
    "chunks of an operator": Program(
        3, same(shuffled), shuffled, numbers(2, 4, 4, 4), (Shard(3),),
        "the shards of `output.0` have shape [2, 1, 8, 4] on rank 0, [2, 1, 8, 4] on rank 1, [2, 1, 8, 0] on rank 2, "
        "DTensor's chunks have shape [2, 1, 8, 3] on rank 0, [2, 1, 8, 3] on rank 1, [2, 1, 8, 2] on rank 2",
    ),
    "every rank another shape": Program(
        2, doubled_locally, doubled, numbers(3, 4), LINES,
        "`output.0` is a DTensor of shape [4, 4] on rank 0, [2, 4] on rank 1, the spec's has shape [3, 4]",
        "(Shard(0),), shape=torch.Size((3, 4)), stride=(4, 1)",
    ),
    "chunks of its own": Program(
        2, cut(2), twice, numbers(2, 5), None,
        "the shards of `output.0` have shape [2, 2] on rank 0, [2, 3] on rank 1, DTensor's chunks have shape [2, 3] on "
        "rank 0, [2, 2] on rank 1",
    ),
    "another shape than the spec's": Program(
        2, cut(3, (2, 6), (6, 1)), twice, numbers(2, 5), None,
        "`output.0` is a DTensor of shape [2, 6], the spec's has shape [2, 5]",
        "(Shard(1),), shape=torch.Size((2, 5)), stride=(5, 1)",
    ),
    "another shape, of even shards": Program(
        2, rows(shape=torch.Size((6, 4)), stride=(4, 1)), twice, numbers(4, 4), LINES,
        "`output.0` is a DTensor of shape [6, 4], the spec's has shape [4, 4]",
        "(Shard(0),), shape=torch.Size((4, 4)), stride=(4, 1)",
    ),
}  # fmt: skip

OTHER_STRIDES = {
    "even": Program(
        2, rows(shape=torch.Size((4, 4)), stride=(1, 4)), twice, numbers(4, 4), LINES,
        "`output.0` is a DTensor of strides [1, 4]; the spec's has strides [4, 1], and the shard's memory says "
        "otherwise too",
    ),
    "uneven": Program(
        2, cut(3, (2, 5), (1, 2)), twice, numbers(2, 5), None,
        "`output.0` is a DTensor of strides [1, 2]; the spec's has strides [5, 1], and the shard's memory says "
        "otherwise too, on rank 0",
    ),
}  # fmt: skip

RIGHT = {
    "gathered before an operator": Program(3, shuffled_whole, shuffled, numbers(2, 4, 4, 4), (Shard(3),)),
    "an operator on uneven shards": Program(2, same(doubled), doubled, numbers(3, 4), LINES),
    "an operator on even shards": Program(2, same(shuffled), shuffled, numbers(2, 4, 4, 4), (Shard(3),)),
    "local_map of even shards": Program(2, doubled_locally, doubled, numbers(4, 4), LINES),
    "cut as torch cuts": Program(2, cut(3), twice, numbers(2, 5), None),
    "even shards": Program(2, rows(), twice, numbers(4, 4), LINES),
    "even shards that say what they are": Program(
        2, rows(shape=torch.Size((4, 4)), stride=(4, 1)), twice, numbers(4, 4), LINES
    ),
    "strides of the spec": Program(2, turned(False), lambda x: x.t(), numbers(4, 4), LINES),
    "strides of the shard": Program(2, turned(True), lambda x: x.t(), numbers(4, 4), LINES),
    "an empty shard": Program(3, same(doubled), doubled, numbers(4, 4), LINES),
}


def verified(program: Program) -> Report:
    with fake_mesh_world((program.ranks,), ("tp",)) as mesh:
        argument, build = program.argument(mesh), lambda: program.make(mesh)
        return verifycompile.verify(None, (argument,), spec=program.spec, mesh=mesh, build=build)


@pytest.mark.parametrize("name", WRONG)
def test_another_tensor_than_the_spec_s(name: str) -> None:
    report = verified(WRONG[name])
    assert report.verdict is Verdict.REFUTED
    (finding,) = report.findings
    assert (finding.code, finding.message) == ("VC110", WRONG[name].message)
    assert finding.impl_location is not None
    assert finding.impl_location.file == __file__
    call = f"`DTensor.from_local(result.to_local(), mesh, {WRONG[name].record})`"
    assert finding.hint == (f"record the shape of the whole: {call} (checked)" if WRONG[name].record else None)


@pytest.mark.causes
def test_parts_that_are_said_to_be_replicas() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:

        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(DTensor.from_local(x, mesh, [Replicate()]))

        report = verifycompile.verify(program, (numbers(2, 3),), spec=torch.tanh, mesh=mesh, in_placements={"x": LINES})
    (finding,) = report.findings
    assert (report.verdict, finding.code) == (Verdict.REFUTED, "VC110")
    assert finding.hint == (
        "say where its parts lie: `DTensor.from_local(result.to_local(), mesh, (Shard(0),))` (checked)"
    )


@pytest.mark.parametrize("name", OTHER_STRIDES)
def test_strides_of_neither_the_spec_nor_the_shard(name: str) -> None:
    report = verified(OTHER_STRIDES[name])
    assert report.verdict is Verdict.UNPROVED
    assert [(f.code, f.message) for f in report.findings] == [("VC110", OTHER_STRIDES[name].message)]


@pytest.mark.parametrize("name", RIGHT)
def test_what_dtensor_reads_is_the_spec_s(name: str) -> None:
    report = verified(RIGHT[name])
    assert report, str(report)


USES: list[tuple[Function, Function]] = [
    (lambda y: y.full_tensor(), twice),
    (lambda y: y.redistribute(placements=[Replicate()]), twice),
    (lambda y: torch.softmax(y, 1), lambda x: torch.softmax(x * 2, 1)),
]


@pytest.mark.parametrize("number", range(len(USES)))
def test_what_operators_read_of_such_shards(number: int) -> None:
    """Within a program the graph itself says what DTensor makes of them."""
    use, spec = USES[number]
    assert verified(Program(2, cut(3, then=use), spec, numbers(2, 5), None))
    assert verified(Program(2, cut(2, then=use), spec, numbers(2, 5), None)).verdict is Verdict.REFUTED


@pytest.mark.parametrize("factor", [1, 2])
def test_samples_that_a_part_of_the_mesh_holds_as_a_dtensor(factor: int) -> None:
    """As a hook of tensor parallelism makes one of the samples that data parallelism gives a rank."""
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:

        def program(x: torch.Tensor) -> DTensor:
            shape, stride = torch.Size((4, 3 * factor)), (3 * factor, 1)
            return DTensor.from_local(x * 2, mesh["tp"], [Replicate()], shape=shape, stride=stride)

        options = {"mesh": mesh, "in_placements": {"x": (Shard(0), Replicate())}}
        report = verifycompile.verify(program, (numbers(4, 3),), spec=lambda x: x * 2, **options)
    if factor == 1:
        assert report.verdict is Verdict.VERIFIED, str(report)
        assert report.relations == {"output.0": "concat(output.0, dim=0, over=dp)"}
    else:
        said = "`output.0` is a DTensor of shape [4, 6], its shards make shape [4, 3]"
        assert (report.verdict, report.findings[0].code, report.findings[0].message) == (Verdict.REFUTED, "VC110", said)


def test_gradients_of_uneven_parameters() -> None:
    weight = numbers(5, 4).requires_grad_()
    report = verified(Program(2, same(lambda w: torch.tanh(w).sum()), lambda w: torch.tanh(w).sum(), weight, LINES))
    assert report.relations == {"output.0": "sum(output.0, over=tp)", "grad.w": "concat(grad.w, dim=0, over=tp)"}


def test_the_shape_is_part_of_a_certificate() -> None:
    certificate = verified(RIGHT["even shards"]).certificate
    assert certificate is not None
    assert check_certificate(certificate)
    (output,) = certificate.data["implementation"]["outputs"]
    assert (output["global_shape"], output["global_stride"]) == ([4, 4], [4, 1])


# ------------------------------------------------------------------------------------------- real processes


def run_on_rank(rank: int, name: str, store: str) -> None:
    """What torch itself makes of the result: that ``verify`` speaks the truth about it."""
    program = (WRONG | RIGHT)[name]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=program.ranks)
    mesh = init_device_mesh("cpu", (program.ranks,))
    result = program.make(mesh)(program.argument(mesh))
    assert isinstance(result, DTensor)
    expected = program.spec(program.x)
    shapes: list[Any] = [None] * program.ranks
    dist.all_gather_object(shapes, tuple(result.shape))
    right = set(shapes) == {tuple(expected.shape)} and torch.allclose(result.full_tensor(), expected)
    dist.barrier()  # a rank that leaves while another one still reads ends that one
    dist.destroy_process_group()
    assert right is (name in RIGHT), name


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "name", ["chunks of an operator", "every rank another shape", "chunks of its own", "cut as torch cuts"]
)
def test_torch_agrees(name: str, tmp_path: Path) -> None:
    program = (WRONG | RIGHT)[name]
    mp.start_processes(run_on_rank, (name, str(tmp_path / "store")), program.ranks, start_method="forkserver")


class TakenOut(nn.Module):
    """A product whose contracted dimension is sharded, in a DTensor that is told what it is."""

    def __init__(self, mesh: DeviceMesh, claimed: Placement, how: str, reduced: bool) -> None:
        super().__init__()
        self.mesh, self.claimed, self.how, self.reduced = mesh, claimed, how, reduced
        self.weight = nn.Parameter(numbers(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight @ self.weight.t()
        if self.reduced:
            y = DTensor.from_local(y, self.mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local()
        told = DTensor.from_local(y, self.mesh, [self.claimed])
        return told.full_tensor() if self.how == "full_tensor" else told.to_local()


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight @ self.weight.t()


@pytest.mark.parametrize(
    ("claimed", "how", "reduced", "verdict"),
    [
        (Replicate(), "full_tensor", False, Verdict.REFUTED),
        (Replicate(), "to_local", False, Verdict.REFUTED),
        (Replicate(), "full_tensor", True, Verdict.VERIFIED),
        (Replicate(), "to_local", True, Verdict.VERIFIED),
        (Partial(), "full_tensor", False, Verdict.VERIFIED),
        (Partial(), "full_tensor", True, Verdict.REFUTED),
        (Partial(), "to_local", False, Verdict.VERIFIED),  # a plain part of a sum, which the report lists
    ],
)
def test_a_plain_result_that_a_dtensor_calls_whole_is_whole(
    claimed: Placement, how: str, reduced: bool, verdict: Verdict
) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = TakenOut(mesh, claimed, how, reduced)
        report = verifycompile.verify(
            model, (numbers(2, 8),), spec=Whole(), param_placements={"weight": (Shard(1),)}
        )
        assert report.verdict is verdict
        if verdict is Verdict.REFUTED and not reduced:
            message = "`output.0` is returned as a partial sum over tp; it must be the full value"
            assert (report.findings[0].code, report.findings[0].message) == ("VC101", message)


def test_what_out_placements_say_of_such_a_result_counts() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = verifycompile.verify(
            TakenOut(mesh, Replicate(), "to_local", reduced=False),
            (numbers(2, 8),),
            spec=Whole(),
            param_placements={"weight": (Shard(1),)},
            out_placements={"output.0": (Partial(),)},
        )
        assert report.verdict is Verdict.VERIFIED
