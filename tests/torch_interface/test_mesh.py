"""Meshes, submeshes, groups and coordinates as axes of the root mesh."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.support import fake_mesh, fake_mesh_world, fake_world
from verifycompile.program import Mesh, MeshAxis
from verifycompile.torch_interface.ranks.acting_rank import acting_alone
from verifycompile.torch_interface.ranks.mesh import (
    RootMesh,
    axes_of_coordinate,
    axes_of_line,
    describe_mesh,
    group_ranks,
    is_process_group,
    mesh_group_ranks,
    own_rank,
    root_of,
)

MESH = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 4)), tuple(range(8)))


def test_description_of_a_mesh() -> None:
    with fake_world(8, rank=5):
        assert describe_mesh(fake_mesh((2, 4), ("dp", "tp"))) == MESH
        assert own_rank() == 5


def test_roots_and_submeshes() -> None:
    with fake_world(8, rank=5):
        mesh = fake_mesh((2, 2, 2), ("pp", "dp", "tp"))
        assert root_of(mesh["tp"]) is mesh
        assert root_of(mesh) is mesh
        assert RootMesh(mesh).spans(mesh) == ((0,), (1,), (2,))
        assert RootMesh(mesh).spans(mesh["tp"]) == ((2,),)
        assert RootMesh(mesh).spans(mesh["pp", "tp"]) == ((0,), (2,))
        assert RootMesh(mesh).spans(mesh["dp", "tp"]._flatten("both")) == ((1, 2),)


def test_axes_of_size_one_are_found_by_name() -> None:
    with fake_world(4):
        mesh = fake_mesh((1, 4), ("dp", "tp"))
        assert RootMesh(mesh).spans(mesh["dp"]) == ((0,),)


def test_axes_of_meshes_unflattened_from_one_of_all_ranks() -> None:
    with fake_world(8, rank=5):
        world = fake_mesh((8,), ("world",))
        dense = world._unflatten(0, (1, 2, 2, 2), ("pp", "replicate", "shard", "tp"))
        root = RootMesh(world, [dense["replicate", "shard"], dense["tp"]])
        assert root.description.axes == (MeshAxis("replicate", 2), MeshAxis("shard", 2), MeshAxis("tp", 2))
        assert root.spans(dense["replicate", "shard"]) == ((0,), (1,))
        assert root.spans(world) == ((0, 1, 2),)
        assert RootMesh(world, [dense["tp"]]).description.axes == (MeshAxis("world_0", 4), MeshAxis("tp", 2))
        assert RootMesh(dense, [dense["tp"]]).description == describe_mesh(dense)


def test_lines_of_ranks() -> None:
    assert axes_of_line((4, 5, 6, 7), MESH) == (1,)
    assert axes_of_line((1, 5), MESH) == (0,)
    assert axes_of_line(tuple(range(8)), MESH) == (0, 1)
    assert axes_of_line((0, 4, 1, 5, 2, 6, 3, 7), MESH) == (1, 0)
    assert axes_of_line((3,), MESH) == ()
    assert axes_of_line((1, 2), MESH) is None
    assert axes_of_line((5, 1), MESH) is None
    assert axes_of_line((9,), MESH) is None


def test_coordinates() -> None:
    lines = torch.arange(8).reshape(2, 4)
    assert axes_of_coordinate(lines, 0, MESH) == (1,)
    assert axes_of_coordinate(lines[None], 0, MESH) == (0,)
    assert axes_of_coordinate(lines[None], 1, MESH) == (1,)
    assert axes_of_coordinate(torch.arange(8)[None], 0, MESH) == (0, 1)
    assert axes_of_coordinate(torch.arange(8)[:, None], 0, MESH) == ()
    assert axes_of_coordinate(torch.tensor([[0, 1, 2, 3], [4, 5, 7, 6]]), 0, MESH) is None
    assert axes_of_coordinate(lines[:1], 0, MESH) is None


def test_groups() -> None:
    with fake_world(8, rank=5):
        mesh = fake_mesh((2, 4), ("dp", "tp"))
        group = mesh["tp"].get_group()
        assert group_ranks(group) == (4, 5, 6, 7)
        assert group_ranks(group.group_name) == (4, 5, 6, 7)
        assert is_process_group(group)
        assert not is_process_group(mesh)
        assert mesh_group_ranks(mesh) == {(4, 5, 6, 7), (1, 5)}
        mesh._flatten("all")
        assert tuple(range(8)) in mesh_group_ranks(mesh)
        assert group_ranks(dist.group.WORLD) == tuple(range(8))


def test_a_job_of_one_process() -> None:
    with fake_mesh_world((2, 2), ("dp", "tp"), rank=3) as mesh:
        group = mesh.get_group("tp")

        def asked() -> tuple[object, ...]:
            of_mesh = (
                mesh.size(),
                mesh.size(mesh_dim=0),
                mesh.get_local_rank("tp"),
                tuple(mesh.get_coordinate() or ()),
            )
            return dist.get_world_size(), dist.get_rank(), group.size(), group.rank(), *of_mesh

        with acting_alone():
            assert asked() == (1, 0, 1, 0, 1, 1, 0, (0, 0))
        assert asked() == (4, 3, 2, 1, 4, 2, 1, (1, 1))
