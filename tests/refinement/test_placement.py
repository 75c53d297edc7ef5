"""Placements as relations between a whole value and a stacked one."""

from __future__ import annotations

import functools
from fractions import Fraction

import pytest
from torch.distributed.tensor import Partial, Replicate, Shard

from verifycompile.ir import relabel
from verifycompile.ir.algebra import sum_over
from verifycompile.ir.term import CONSTANT, TermPool
from verifycompile.program import Mesh, MeshAxis
from verifycompile.refinement.candidates import infer
from verifycompile.refinement.classify import Kind, classify
from verifycompile.refinement.placement import describe, holds, reduce_partial, same_value, shard
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.reduction import reduce_extreme, reduce_product
from verifycompile.rewrites.registry import UnsupportedError
from verifycompile.torch_interface.dtensor.placements import block_shard, partial_of


def mesh_of(*sizes: int) -> Mesh:
    count = 1
    for size in sizes:
        count *= size
    return Mesh(tuple(MeshAxis(name, size) for name, size in zip("xyz", sizes, strict=False)), tuple(range(count)))


@pytest.fixture
def pool():
    return TermPool()


def test_shard_splits_a_dimension(pool):
    value = shard(pool, pool.leaf("w", (8, 6)), (Shard(0),), mesh_of(2))
    assert value.shape == (2, 4, 6)
    assert value.axes == (((0, 1, 2), (1, 1, 4)), ((2, 1, 6),))


def test_outer_axis_splits_first(pool):
    value = shard(pool, pool.leaf("w", (12, 6)), (Shard(0), Shard(0)), mesh_of(2, 3))
    assert value.shape == (2, 3, 2, 6)
    assert value.axes[0] == ((0, 1, 2), (1, 1, 3), (2, 1, 2))


def test_inner_axis_splits_first_where_the_outer_one_divides_its_blocks(pool):
    value = shard(pool, pool.leaf("w", (24, 6)), (block_shard(0, 3), Shard(0)), mesh_of(2, 3))
    assert value.shape == (2, 3, 4, 6)
    assert value.axes[0] == ((1, 1, 3), (0, 1, 2), (2, 1, 4))


def test_blocks_without_an_axis_of_their_own(pool):
    value = shard(pool, pool.leaf("w", (24, 6)), (block_shard(0, 3),), mesh_of(2))
    assert value.axes[0] == ((1, 4, 3), (0, 1, 2), (1, 1, 4))
    value = shard(pool, pool.leaf("w", (24, 6)), (block_shard(0, 6), Shard(0)), mesh_of(2, 3))
    assert value.axes[0] == ((1, 1, 3), (2, 2, 2), (0, 1, 2), (2, 1, 2))
    value = shard(pool, pool.leaf("w", (24, 6)), (block_shard(0, 2), Shard(0)), mesh_of(2, 4))
    assert value.axes[0] == ((1, 2, 2), (0, 1, 2), (1, 1, 2), (2, 1, 3))
    with pytest.raises(UnsupportedError):
        shard(pool, pool.leaf("w", (24, 6)), (block_shard(0, 24),), mesh_of(2))


def test_open_axes_take_any_layout(pool):
    spec, mesh = pool.leaf("w", (8, 6)), mesh_of(2, 2)
    value = shard(pool, spec, (Shard(0), Shard(1)), mesh)
    declared = (Replicate(), Shard(1))
    assert infer(pool, spec, value, mesh, declared=(declared, frozenset({0}))) == (Shard(0), Shard(1))
    assert infer(pool, spec, value, mesh, declared=(declared, frozenset({1}))) is None
    assert infer(pool, spec, value, mesh, declared=(declared, frozenset())) is None


def test_negative_dimension_counts_from_the_end(pool):
    leaf = pool.leaf("w", (8, 6))
    for dim in (0, 1):
        assert shard(pool, leaf, (Shard(dim - 2),), mesh_of(2)) == shard(pool, leaf, (Shard(dim),), mesh_of(2))


def test_axis_of_one_rank_splits_nothing(pool):
    leaf = pool.leaf("w", (8, 6))
    assert same_value(shard(pool, leaf, (Shard(0),), mesh_of(1)), shard(pool, leaf, (Replicate(),), mesh_of(1)))


def test_uneven_shards_are_refused(pool):
    with pytest.raises(UnsupportedError, match="dimension 0 of size 7 is sharded unevenly") as caught:
        shard(pool, pool.leaf("w", (7, 6)), (Shard(0),), mesh_of(2))
    assert caught.value.code == "VC204"


@pytest.mark.parametrize(
    ("placements", "other"),
    [
        ((Shard(0),), (Shard(1),)),
        ((Shard(0),), (Replicate(),)),
        ((Replicate(),), (Shard(1),)),
        ((Replicate(),), (Partial(),)),
    ],
)
def test_a_square_value_holds_in_its_own_layout_alone(pool, placements, other):
    leaf, mesh = pool.leaf("w", (4, 4)), mesh_of(2)
    value = shard(pool, leaf, placements, mesh)
    assert holds(pool, leaf, value, placements, mesh)
    assert not holds(pool, leaf, value, other, mesh)
    assert infer(pool, leaf, value, mesh) == placements


def test_order_of_two_axes_on_one_dimension_matters(pool):
    leaf, mesh = pool.leaf("w", (8,)), mesh_of(2, 2)
    value = shard(pool, leaf, (Shard(0), Shard(0)), mesh)
    exchanged = relabel.permute(value, (1, 0, 2))
    assert holds(pool, leaf, value, (Shard(0), Shard(0)), mesh)
    assert not holds(pool, leaf, exchanged, (Shard(0), Shard(0)), mesh)
    assert infer(pool, leaf, exchanged, mesh) is None
    assert classify(pool, leaf, exchanged, mesh).kind is Kind.CLEAN


def test_a_partial_sum_is_not_the_value(pool):
    mesh = mesh_of(2)
    summands = pool.leaf("p", (2, 4))
    whole = reduce_partial(pool, summands, (Partial(),), mesh)
    spec = relabel.remove_dim(whole, 0)
    assert holds(pool, spec, summands, (Partial(),), mesh)
    assert not holds(pool, spec, summands, (Replicate(),), mesh)
    assert not holds(pool, spec, summands, (Partial("avg"),), mesh)
    assert infer(pool, spec, summands, mesh) == (Partial("sum"),)
    assert infer(pool, spec, summands, mesh, allow_partial=False) is None


def test_average_of_equal_values_is_the_value(pool):
    leaf, mesh = pool.leaf("w", (4,)), mesh_of(3)
    value = shard(pool, leaf, (Replicate(),), mesh)
    assert holds(pool, leaf, value, (Partial("avg"),), mesh)
    assert not holds(pool, leaf, value, (Partial("sum"),), mesh)


class OwnShard(Shard):
    pass


class OwnPartial(Partial):
    pass


@pytest.mark.parametrize("placement", [Partial("bxor"), OwnPartial("sum"), OwnShard(0), Shard(1), Shard(-2), Shard(2)])
def test_unknown_placements_are_refused(pool, placement):
    leaf, mesh = pool.leaf("w", (4,)), mesh_of(2)
    with pytest.raises(UnsupportedError, match="the placement "):
        holds(pool, leaf, shard(pool, leaf, (Replicate(),), mesh), (placement,), mesh)
    read = functools.partial(shard if isinstance(placement, Shard) else reduce_partial, pool)
    with pytest.raises(UnsupportedError, match="the placement "):
        read(leaf, (placement,), mesh)


def test_what_does_not_divide_is_told_by_what_is_left_of_it(pool):
    with pytest.raises(UnsupportedError, match="dimension 0 of size 6 is sharded unevenly"):
        shard(pool, pool.leaf("w", (12, 6)), (Shard(0), Shard(0)), mesh_of(2, 4))
    with pytest.raises(UnsupportedError, match="dimension 0 of size 8 is sharded unevenly"):
        shard(pool, pool.leaf("w", (8,)), (block_shard(0, 16),), mesh_of(1))
    with pytest.raises(UnsupportedError, match="dimension 0 of size 6 is sharded unevenly"):
        shard(pool, pool.leaf("w", (12,)), (block_shard(0, 3), block_shard(0, 5)), mesh_of(2, 2))


REDUCED = {
    "max": lambda pool, p: reduce_extreme(pool, p, [0], "max"),
    "min": lambda pool, p: reduce_extreme(pool, p, [0], "min"),
    "product": lambda pool, p: reduce_product(pool, p, [0]),
    "sum": lambda pool, p: sum_over(pool, p, [0]),
    "avg": lambda pool, p: sum_over(pool, p, [0]).scaled(Fraction(1, 2)),
    "norm 2": lambda pool, p: Builder(pool).power(sum_over(pool, Builder(pool).power(p, 2), [0]), Fraction(1, 2)),
}


@pytest.mark.parametrize("name", REDUCED)
def test_a_value_is_that_reduction_of_what_ranks_hold(pool, name):
    summands = pool.leaf("p", (2, 4))
    spec = REDUCED[name](pool, summands)
    assert holds(pool, spec, summands, (partial_of(name),), mesh_of(2))
    for other in REDUCED.keys() - {name}:
        assert not holds(pool, spec, summands, (partial_of(other),), mesh_of(2))


def test_values_are_the_same_in_term_factor_layout_and_shape(pool):
    x, y = pool.leaf("x", (4, 4)), pool.leaf("y", (4, 4))
    nothing = pool.zero((4, 4))
    assert same_value(x, pool.leaf("x", (4, 4)))
    row = pool.leaf("r", (4,))
    tall = relabel.insert_dim(row, 1, 3)
    for left, right in (
        (x, y),
        (x, x.scaled(2)),
        (x, relabel.permute(x, (1, 0))),
        (tall, relabel.insert_dim(row, 1, 5)),
    ):
        assert not same_value(left, right)
        assert not same_value(right, left)
    assert same_value(x.scaled(0), nothing)
    assert same_value(nothing, y.scaled(0))
    for other in (x, pool.zero((4,)), pool.constant(1, (4, 4))):
        assert not same_value(nothing, other)
        assert not same_value(other, nothing)


def test_relations_as_text():
    mesh = mesh_of(2, 2)
    assert describe("y", (Replicate(), Replicate()), mesh) == "y"
    assert describe("y", (Shard(0), Shard(0)), mesh) == "concat(concat(y, dim=0, over=y), dim=0, over=x)"
    assert describe("y", (Partial("avg"), Shard(1)), mesh) == "mean(concat(y, dim=1, over=y), over=x)"
    assert describe("y", (Partial(), Replicate()), mesh) == "sum(y, over=x)"
    assert describe("y", (Replicate(), block_shard(0, 2)), mesh) == "concat(y, dim=0, over=y, in each of 2 blocks)"


# ------------------------------------------------------------------------------------------------ classify


def test_kinds_of_relations(pool):
    leaf, mesh = pool.leaf("w", (4, 4)), mesh_of(2)
    rows = shard(pool, leaf, (Shard(0),), mesh)
    assert classify(pool, leaf, rows, mesh).kind is Kind.PLACED
    assert classify(pool, leaf, rows.scaled(2), mesh).kind is Kind.SCALED
    assert classify(pool, leaf, rows.scaled(2), mesh).factor == 2
    assert classify(pool, leaf, shard(pool, pool.leaf("v", (4, 4)), (Shard(0),), mesh), mesh).kind is Kind.DIFFERENT


def test_every_rank_with_the_first_rows_is_misplaced(pool):
    leaf, mesh = pool.leaf("w", (4, 4)), mesh_of(2)
    first = relabel.insert_dim(relabel.narrow(leaf, 0, 0, 2), 0, 2)
    assert first.axes[0][0][0] == CONSTANT
    found = classify(pool, leaf, first, mesh)
    assert found.kind is Kind.MISPLACED
    assert not found.whole
    assert not found.related
    assert found.describe("w", mesh) == "the implementation holds other elements of w than its rank's"


def test_partial_sum_names_its_axes_and_factor(pool):
    mesh = mesh_of(2, 2)
    summands = pool.leaf("p", (2, 2, 4))
    spec = relabel.remove_dim(relabel.remove_dim(reduce_partial(pool, summands, (Partial(), Partial()), mesh), 0), 0)
    found = classify(pool, spec, summands, mesh)
    assert (found.kind, found.axes, found.factor) == (Kind.PARTIAL, (0, 1), 1)
    assert found.related
    assert found.describe("p", mesh) == "the sum of the implementation's value over x, y is p"
    scaled = classify(pool, spec, summands.scaled(3), mesh)
    assert (scaled.kind, scaled.factor) == (Kind.PARTIAL, 3)
    assert not scaled.related


def test_without_a_mesh_values_are_equal_or_not(pool):
    leaf = pool.leaf("w", (4, 4))
    assert classify(pool, leaf, leaf, None).whole
    assert classify(pool, leaf, pool.leaf("v", (4, 4)), None).kind is Kind.DIFFERENT
    assert classify(pool, leaf, relabel.permute(leaf, (1, 0)), None).kind is Kind.CLEAN
