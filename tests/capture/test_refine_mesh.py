"""Mesh axes cut into digits for process groups that are no axes."""

from __future__ import annotations

import pytest

from verifycompile.capture.refine_mesh import refine
from verifycompile.program import Mesh, MeshAxis
from verifycompile.torch_interface.ranks.mesh import axes_of_line

WORLD = Mesh((MeshAxis("world", 8),), tuple(range(8)))
GRID = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 4)), tuple(range(8)))


def axes(mesh: Mesh, *groups: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(axis.name, axis.size) for axis in refine(mesh, groups).mesh.axes]


def test_nothing_is_cut_without_need():
    assert refine(GRID, []).mesh == GRID
    assert axes(GRID, (0, 1, 2, 3), (1, 5), tuple(range(8)), (3,)) == [("dp", 2), ("tp", 4)]


def test_consecutive_and_strided_ranks():
    assert axes(WORLD, (0, 1)) == [("world.0", 4), ("world.1", 2)]
    assert axes(WORLD, (4, 5, 6, 7)) == [("world.0", 2), ("world.1", 4)]
    assert axes(WORLD, (1, 3, 5, 7)) == [("world.0", 4), ("world.1", 2)]
    assert axes(WORLD, (2, 6), (2, 3)) == [("world.0", 2), ("world.1", 2), ("world.2", 2)]
    assert axes(GRID, (4, 6)) == [("dp", 2), ("tp.0", 2), ("tp.1", 2)]


def test_parts_of_the_axes_that_the_user_knows():
    assert refine(GRID, [(0, 1)]).parts == ((0,), (1, 2))
    assert refine(Mesh((MeshAxis("dp", 1), MeshAxis("tp", 4)), (0, 1, 2, 3)), [(0, 1)]).parts == ((0,), (1, 2))


def test_every_group_that_is_cut_out_is_a_product_of_axes():
    for group in ((0, 1), (1, 3, 5, 7), (0, 4), (0, 1, 4, 5), (2, 3, 6, 7)):
        assert axes_of_line(group, refine(WORLD, [group]).mesh) is not None


@pytest.mark.parametrize(
    "group",
    [(0, 3), (0, 1, 2), (1, 2), (2, 3, 4, 5), (0, 1, 3, 4), (6, 7, 8), (0, 1, 2, 4)],
)
def test_groups_that_are_no_digits(group: tuple[int, ...]):
    assert refine(WORLD, [group]).mesh == WORLD


def test_cuts_that_cross_the_axes_are_not_made():
    mesh = Mesh((MeshAxis("a", 2), MeshAxis("b", 3)), tuple(range(6)))
    assert refine(mesh, [(0, 1)]).mesh == mesh
