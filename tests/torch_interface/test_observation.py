"""What user code asked about its rank and about the degree, seen at run time and while Dynamo traces."""

from __future__ import annotations

import inspect
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d, get_rank, is_initialized
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.elastic.utils import get_env_variable_or_raise
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from tests.support import fake_mesh_world, fake_world
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame
from verifycompile.torch_interface.ranks.observation import Read, ReadKind, moment, reads, reads_of_trace
from verifycompile.torch_interface.ranks.observed_readers import activate
from verifycompile.torch_interface.source_lines.whose_code import is_installed


@pytest.fixture(name="mesh")
def mesh_of_four(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceMesh]:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    activate()
    with fake_world(1):
        pass  # what was read for another job is forgotten with it
    with fake_mesh_world((2, 2), ("dp", "tp"), rank=2) as mesh:
        yield mesh


RANK: list[tuple[Callable[[DeviceMesh], Any], str]] = [
    (lambda mesh: get_rank(), "get_rank"),
    (lambda mesh: dist.get_rank(mesh.get_group("tp")), "get_rank"),
    (lambda mesh: mesh.get_group("tp").rank(), "rank"),
    (lambda mesh: mesh.get_rank(), "get_rank"),
    (lambda mesh: mesh.get_local_rank("tp"), "get_local_rank"),
    (lambda mesh: mesh["tp"].get_local_rank(), "get_local_rank"),
    (lambda mesh: (mesh.get_coordinate() or ())[0], "get_coordinate"),
    (lambda mesh: dist.get_process_group_ranks(mesh.get_group("tp"))[0], "get_process_group_ranks"),
    (lambda mesh: int(os.environ["RANK"]), "os.environ['RANK']"),
    (lambda mesh: int(os.environ.get("SLURM_PROCID", "0")), "os.environ['SLURM_PROCID']"),
    (lambda mesh: int(os.getenv("RANK", "0")), "os.environ['RANK']"),
]
DEGREE: list[tuple[Callable[[DeviceMesh], Any], str]] = [
    (lambda mesh: is_initialized(), "is_initialized"),
    (lambda mesh: dist.get_world_size(), "get_world_size"),
    (lambda mesh: dist.get_world_size(mesh.get_group("tp")), "get_world_size"),
    (lambda mesh: mesh.get_group("tp").size(), "size"),
    (lambda mesh: mesh.size(), "size"),
    (lambda mesh: mesh.shape[0], "shape"),
    (lambda mesh: mesh.mesh.numel(), "mesh"),
    (lambda mesh: len(dist.get_process_group_ranks(dist.group.WORLD)), "get_process_group_ranks"),
    (lambda mesh: int(os.environ["WORLD_SIZE"]), "os.environ['WORLD_SIZE']"),
    (lambda mesh: mesh._layout.numel(), "_layout"),
    (lambda mesh: mesh._rank_map.numel(), "_rank_map"),
    (lambda mesh: len(mesh._flatten_rank_map), "_flatten_rank_map"),
]
BEFORE_THE_TRACE: list[tuple[Callable[[DeviceMesh], Any], str, ReadKind]] = [
    (lambda mesh: int(os.environb[b"RANK"]), "os.environ['RANK']", ReadKind.RANK),
    (lambda mesh: get_env_variable_or_raise("RANK"), "get_env_variable_or_raise", ReadKind.RANK),
    (
        lambda mesh: compute_local_shape_and_global_offset((4,), mesh, [Shard(0), Replicate()]),
        "compute_local_shape_and_global_offset",
        ReadKind.RANK,
    ),
    (lambda mesh: mesh._rank, "_rank", ReadKind.RANK),
    (lambda mesh: mesh["tp"]._rank, "_rank", ReadKind.RANK),
    (lambda mesh: mesh._coordinate_on_dim, "_coordinate_on_dim", ReadKind.RANK),
    (lambda mesh: mesh._compute_coordinate_on_dim(), "_compute_coordinate_on_dim", ReadKind.RANK),
    (lambda mesh: mesh._is_current_rank_part_of_mesh(), "_is_current_rank_part_of_mesh", ReadKind.RANK),
    (lambda mesh: _backend(mesh).rank(), "rank", ReadKind.RANK),
    (lambda mesh: _backend(mesh).size(), "size", ReadKind.DEGREE),
    (lambda mesh: mesh.get_group("tp") == dist.GroupMember.NON_GROUP_MEMBER, "NON_GROUP_MEMBER", ReadKind.RANK),
    (lambda mesh: distributed_c10d._rank_not_in_group(mesh.get_group("tp")), "_rank_not_in_group", ReadKind.RANK),
    (lambda mesh: distributed_c10d._world.pg_group_ranks, "pg_group_ranks", ReadKind.RANK),
    (lambda mesh: distributed_c10d._world.pg_group_ranks, "pg_group_ranks", ReadKind.DEGREE),
    (lambda mesh: dist.get_global_rank(mesh.get_group("tp"), 0), "get_global_rank", ReadKind.RANK),
    (lambda mesh: dist.get_group_rank(mesh.get_group("tp"), 2), "get_group_rank", ReadKind.RANK),
    (lambda mesh: dist.get_node_local_rank(0), "get_node_local_rank", ReadKind.RANK),
    (lambda mesh: distributed_c10d._get_group_size(mesh.get_group("tp")), "_get_group_size", ReadKind.DEGREE),
    (
        lambda mesh: distributed_c10d._get_group_size_by_name(mesh.get_group("tp").group_name),
        "_get_group_size_by_name",
        ReadKind.DEGREE,
    ),
    (lambda mesh: _sharded(mesh).num_shards, "num_shards", ReadKind.DEGREE),
    (lambda mesh: _sharded(mesh).num_shards_map, "num_shards_map", ReadKind.DEGREE),
]
"""What Dynamo does not trace, or not yet."""
KINDS = [*((*case, ReadKind.RANK) for case in RANK), *((*case, ReadKind.DEGREE) for case in DEGREE)]


@pytest.mark.parametrize(("ask", "reader", "kind"), KINDS)
def test_the_user_asks(mesh: DeviceMesh, ask: Callable[[DeviceMesh], Any], reader: str, kind: ReadKind) -> None:
    before = moment()
    ask(mesh)
    also = {ReadKind.DEGREE} if reader == "get_process_group_ranks" else set[ReadKind]()  # which are so many ranks
    assert {(read.kind, read.reader) for read in reads()} == {(one, reader) for one in {kind} | also}
    assert all(read.moment > before for read in reads())
    line = inspect.getsourcelines(ask)[1]
    assert {(read.file, read.line, read.function) for read in reads()} == {(__file__, line, "<lambda>")}
    assert not any(read.installed or read.traced for read in reads())


def _backend(mesh: DeviceMesh) -> Any:
    return mesh.get_group("tp")._get_backend(torch.device("cpu"))


def _sharded(mesh: DeviceMesh) -> DTensorSpec:
    return DTensorSpec(mesh, (Shard(0), Replicate()), TensorMeta(torch.Size((4,)), (1,), torch.float32))


@pytest.mark.parametrize(("ask", "reader", "kind"), BEFORE_THE_TRACE)
def test_torch_answers_what_tells_the_rank(
    mesh: DeviceMesh, ask: Callable[[DeviceMesh], Any], reader: str, kind: ReadKind
) -> None:
    ask(mesh)
    assert reader in {read.reader for read in reads(kind)}


@pytest.mark.parametrize(("ask", "reader", "kind"), KINDS)
def test_the_user_asks_in_traced_code(
    mesh: DeviceMesh, ask: Callable[[DeviceMesh], Any], reader: str, kind: ReadKind
) -> None:
    def program(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        return x * ask(mesh)

    def asked(context: torch._guards.TracingContext) -> set[tuple[str, int]]:
        return {(read.reader, read.line) for read in reads_of_trace(context, kind)}

    frame = frame_of_call(program, (torch.ones(2), mesh), {})
    found = trace_frame(frame, lambda traced: asked(traced.context))
    assert {name for name, _ in found} == {reader}


ASKED_BY_OTHER_NAMES = {"get_all_groups", "_compute_coordinates_from_mesh", "_sym_get_coordinate", "ndim"}
ASKED_BY_OTHER_NAMES |= {"_get_mesh_tensor_from_full_mesh"}
"""Of a mesh: groups, which are asked themselves, what is computed of the arguments, and how many axes there are."""
WHAT_A_MESH_IS = {
    *("device_type", "_device_type", "mesh_dim_names", "_mesh_dim_names", "get_group", "_pg_registry", "_thread_id"),
    *("_dim_group_names", "_root_mesh", "_get_root_mesh", "_get_root_mesh_dim", "_get_mesh_dim_by_name", "from_group"),
    *("_flatten_mapping", "_hash", "_hash_key", "_stable_hash"),
    *("_concatenate", "_flatten", "_unflatten", "_create_flatten_mesh", "_create_sub_mesh", "_create_unflatten_mesh"),
    *("_get_all_submeshes", "_get_slice_mesh_layout", "_init_one_process_group", "_init_process_groups"),
    *("_setup_world_group_and_device",),
}
"""Names and hashes, other meshes, which are asked themselves, and what makes a mesh."""
OF_THE_JOB = {
    *("_pg_group_ranks", "_get_global_rank", "_world", "GroupMember", "_hash_ranks_to_str", "_validate_output_list_for_rank"),
    *("_canonicalize_group_rank", "_check_not_self_rank", "_validate_and_process_excluded_ranks"),
    *("_find_or_create_pg_by_ranks_and_tag", "_find_pg_by_ranks_and_tag", "_resolve_group_name_by_ranks_and_tag"),
    *("_World", "_WorldMeta", "_register_pg_in_world", "RankType", "_compute_bucket_assignment_by_size"),
}
"""What rows of ``KINDS`` ask, their table of groups, and what answers with its arguments."""


def test_nothing_else_of_torch_has_such_a_name(mesh: DeviceMesh) -> None:
    """A new version of torch that tells the rank in another way has to be read."""
    asked = {reader for _, reader, _ in (*KINDS, *BEFORE_THE_TRACE)}
    of_mesh = {name for name in {*dir(mesh)} - {*dir(object)} if not name.startswith("__")}
    assert of_mesh - asked - ASKED_BY_OTHER_NAMES == WHAT_A_MESH_IS
    telling = re.compile("rank|size|world|coordinate|num_shards|member|is_init", re.IGNORECASE)
    for owner, known in (
        (distributed_c10d, OF_THE_JOB),
        (dist.ProcessGroup, set[str]()),
        (Backend, set[str]()),
        (DTensorSpec, set[str]()),
    ):
        names = {name for name in dir(owner) if telling.search(name) and not name.startswith("__")}
        assert names - asked - known == set(), owner


def test_answers_are_unchanged(mesh: DeviceMesh) -> None:
    assert (get_rank(), mesh.get_local_rank("dp"), mesh.get_coordinate()) == (2, 1, (1, 0))
    assert (dist.get_world_size(), mesh.size(), mesh.size(0), mesh.shape) == (4, 4, 2, (2, 2))
    assert is_initialized()
    assert os.environ["RANK"] == "2"
    assert os.environ.get("NO_SUCH_RANK") is None
    with pytest.raises(KeyError, match="NO_SUCH_RANK"):
        _ = os.environ["NO_SUCH_RANK"]


def test_torch_asks_for_itself(mesh: DeviceMesh) -> None:
    whole = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
    (whole @ whole).full_tensor()
    assert reads() == ()


class _Member:
    """An attribute of another name, which answers with the coordinate."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    place = property(lambda self: self.mesh.get_coordinate())


def test_the_data_of_a_parameter_is_no_coordinate(mesh: DeviceMesh) -> None:
    """Torch's dispatch of a DTensor's ``data`` has no frame of its own, and asks whether this rank is on the mesh."""
    whole = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
    whole.data.mul_(2)
    whole.data = whole.data.clone()
    assert reads() == ()
    assert _Member(mesh).place is not None
    assert {read.reader for read in reads()} == {"get_coordinate"}


@pytest.mark.parametrize("by_torch", [True, False])
def test_a_package_that_reads_all_of_the_environment_while_it_is_imported(
    by_torch: bool, mesh: DeviceMesh, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch imports for itself is none of the user's business."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    name = f"all_variables_{by_torch}".lower()
    (folder / f"{name}.py").write_text("import os\nVARIABLES = dict(os.environ.items())\n")
    monkeypatch.syspath_prepend(str(folder))
    importer = pathlib.Path(torch.__file__).with_name("importer.py") if by_torch else tmp_path / "train.py"
    exec(compile(f"import {name}", str(importer), "exec"), {"__name__": importer.stem})
    assert {read.reader for read in reads(ReadKind.DEGREE)} == (set() if by_torch else {"os.environ['WORLD_SIZE']"})


def test_other_variables_are_no_reads(mesh: DeviceMesh) -> None:
    assert os.environ.get("HOME", "") is not None
    assert reads() == ()


def test_a_new_job_begins() -> None:
    activate()
    with fake_world(2):
        dist.get_rank()
        assert [read.reader for read in reads()] == ["get_rank"]
    assert reads() == ()
    assert not is_initialized()


def test_installed_packages() -> None:
    assert is_installed(pytest.__file__)
    assert is_installed(inspect.__file__)
    assert not is_installed(__file__)


def test_the_place_is_short() -> None:
    read = Read(ReadKind.RANK, "get_rank", "/a/b/model.py", 7, "f", 1, installed=False)
    assert read.place == "model.py:7"


@pytest.mark.parametrize(
    "imports",
    ["import torch, verifycompile", "import verifycompile, torch", "from verifycompile import verify"],
    ids=["after torch", "before torch", "a name"],
)
def test_active_once_both_are_imported(imports: str) -> None:
    program = f"""{imports}
import torch.distributed as dist
dist.is_initialized()
from verifycompile.torch_interface.ranks.observation import reads
print([(read.reader, read.line) for read in reads()])
"""
    environment = {name: value for name, value in os.environ.items() if name != "VERIFYCOMPILE"}
    for variables in (environment, {**environment, "VERIFYCOMPILE": "1"}):
        done = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
        )
        assert done.stdout == "[('is_initialized', 3)]\n"
