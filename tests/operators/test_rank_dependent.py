"""Numbers computed from a rank's coordinate, and lookups in shards, on the stacked tensor against every rank."""

from __future__ import annotations

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.validate_terms import validate_pool
from verifycompile.ir import relabel
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.validate import validate
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.operations import FLOOR, TRUNCATED
from verifycompile.rewrites.operators.elementwise import choose
from verifycompile.rewrites.registry import UnsupportedError, bind, declaration_of

aten = torch.ops.aten
RANKS = 2
U = sympy.Symbol("u0", integer=True, nonnegative=True)
REAL = Call(
    {"self": torch.float64, "src": torch.float64, "values": torch.float64, "grad_output": torch.float64},
    dtype=torch.float64,
)


class Ranks:
    """A builder over one mesh axis, and leaves that are equal on all ranks."""

    def __init__(self) -> None:
        self.pool = TermPool()
        self.b = Builder(self.pool, (RANKS,), {U: 0})
        self.b.call = REAL
        self.leaves: dict[str, torch.Tensor] = {}

    def leaf(self, value: torch.Tensor) -> View:
        name = f"x{len(self.leaves)}"
        self.leaves[name] = value
        return relabel.insert_dim(self.pool.leaf(name, tuple(value.shape)), 0, RANKS)

    def call(self, target: object, *args: object) -> View:
        declaration = declaration_of(target)
        assert declaration is not None
        result = declaration.handler(self.b, **bind(declaration, args, {}))
        validate(result)
        validate_pool(self.pool)
        return result

    def values(self, view: View) -> list[torch.Tensor]:
        return list(Evaluator(self.leaves).view(view))


NUMBERS = [
    (aten.add.Scalar, lambda x, u: (x, 2 * u + 1)),
    (aten.sub.Scalar, lambda x, u: (x, u, 3)),
    (aten.mul.Scalar, lambda x, u: (x, u)),
    (aten.div.Scalar, lambda x, u: (x, u + 1)),
    (aten.eq.Scalar, lambda x, u: (x, u)),
    (aten.lt.Scalar, lambda x, u: (x, 2 * u)),
    (aten.ge.Scalar, lambda x, u: (x, u)),
    (aten.clamp_min.default, lambda x, u: (x, u)),
    (aten.clamp.default, lambda x, u: (x, u - 1, u)),
    (aten.tril.default, lambda x, u: (x, u)),
    (aten.triu.default, lambda x, u: (x, 1 - u)),
    (aten.threshold_backward.default, lambda x, u: (x, x, u)),
    (aten.slice.Tensor, lambda x, u: (x, 1, 2 * u, 2 * u + 2)),
    (aten.full_like.default, lambda x, u: (x, u)),
    (aten.slice_backward.default, lambda x, u: (x, [4, 8], 1, 4 * u, 4 * u + 4, 1)),
    (aten.slice_backward.default, lambda x, u: (x, [11, 4], 0, 4 * u + 2, 4 * u + 6, 1)),
    (aten.select_backward.default, lambda x, u: (x, [4, 2, 4], 1, u)),
]


@pytest.mark.parametrize(("target", "arguments"), NUMBERS, ids=lambda v: str(v) if hasattr(v, "_schema") else "")
def test_numbers(target: object, arguments: object) -> None:
    ranks = Ranks()
    x = torch.tensor(
        [[0.0, 1.0, 2.0, -1.0], [1.5, -0.5, 0.0, 1.0], [2.0, 2.0, 1.0, 0.0], [0.5, 0.25, 3.0, 1.0]], dtype=torch.float64
    )
    result = ranks.call(target, *arguments(ranks.leaf(x), U))  # type: ignore[operator]
    for rank, value in enumerate(ranks.values(result)):
        expected = target(*arguments(x, rank))  # type: ignore[operator]
        torch.testing.assert_close(value, expected.double())


ATTRIBUTES = [
    (aten.pow.Tensor_Scalar, lambda x: (x, U + 2), "`exponent=u0 + 2` depends on the rank"),
    (aten.softplus.default, lambda x: (x, 1, U), "`threshold=u0` depends on the rank"),
    (aten.softplus_backward.default, lambda x: (x, x, U, 20), "`beta=u0` depends on the rank"),
    (
        aten.select_backward.default,
        lambda x: (x, [8, 4, 4], 0, 2 * U),
        "slice offset steps by 2 a rank where the slices are 1 long",
    ),
    (
        aten.slice_backward.default,
        lambda x: (x, [8, 4], 0, U, U + 4, 1),
        "slice offset steps by 1 a rank where the slices are 4 long",
    ),
    (aten.constant_pad_nd.default, lambda x: (x, [U, U]), "`pad=2*(u0 + 2)` depends on the rank"),
    (aten.constant_pad_nd.default, lambda x: (x, [0, U]), "`pad=u0` depends on the rank"),
    (aten.slice.Tensor, lambda x: (x, 1, U, U + 2), "slice offset steps by 1 a rank where the slices are 2 long"),
    (aten.mul.Scalar, lambda x: (x, U**2), "`u0**2` is not linear in the rank's coordinates"),
]


@pytest.mark.parametrize(
    ("target", "arguments", "message"), ATTRIBUTES, ids=lambda v: str(v) if hasattr(v, "_schema") else ""
)
def test_attributes_have_one_value_for_all_ranks(target: object, arguments: object, message: str) -> None:
    ranks = Ranks()
    x = ranks.leaf(torch.ones(4, 4, dtype=torch.float64))
    with pytest.raises(UnsupportedError) as refused:
        ranks.call(target, *arguments(x))  # type: ignore[operator]
    assert refused.value.message == message


@pytest.mark.parametrize(("offset", "dim"), [(0, 0), (1, 0), (2, 1)])
def test_writes_to_the_place_of_each_rank(offset: int, dim: int) -> None:
    ranks = Ranks()
    whole, rows, row = (torch.randn(*shape, dtype=torch.float64) for shape in ((6, 6), (2, 6), (6,)))
    rows = rows if dim == 0 else rows.t().contiguous()
    x, parts, part = (ranks.leaf(value) for value in (whole, rows, row))
    slices = ranks.call(aten.slice_scatter.default, x, parts, dim, 2 * U + offset, 2 * U + offset + 2, 1)
    selected = ranks.call(aten.select_scatter.default, x, part, dim, U + offset)
    for rank in range(RANKS):
        start = 2 * rank + offset
        expected = aten.slice_scatter.default(whole, rows, dim, start, start + 2, 1)
        torch.testing.assert_close(ranks.values(slices)[rank], expected)
        expected = aten.select_scatter.default(whole, row, dim, rank + offset)
        torch.testing.assert_close(ranks.values(selected)[rank], expected)


def test_zeros_around_the_place_of_each_rank() -> None:
    ranks = Ranks()
    rows = torch.randn(2, 3, dtype=torch.float64)
    padded = ranks.call(aten.constant_pad_nd.default, ranks.leaf(rows), [0, 0, 2 * U + 1, 2 * RANKS - 2 * U])
    for rank in range(RANKS):
        expected = aten.constant_pad_nd.default(rows, [0, 0, 2 * rank + 1, 2 * RANKS - 2 * rank])
        torch.testing.assert_close(ranks.values(padded)[rank], expected)


@pytest.mark.parametrize(
    ("start", "end", "step"), [(2 * U - 2, 2 * U, 1), (2 * U, 2 * U + 3, 1), (2 * U, 2 * U + 2, 2)]
)
def test_other_writes_are_refused(start: sympy.Expr, end: sympy.Expr, step: int) -> None:
    """Counted from the end, longer than what is written, with gaps."""
    ranks = Ranks()
    x, rows = ranks.leaf(torch.randn(6, 6).double()), ranks.leaf(torch.randn(2, 6).double())
    with pytest.raises(UnsupportedError):
        ranks.call(aten.slice_scatter.default, x, rows, 0, start, end, step)


# ------------------------------------------------------------------------------------------------ rows of a shard

ROWS, CLASSES = 5, 3


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_one_element_a_row(accumulate: bool, transposed: bool, single: bool) -> None:
    """``x[arange, index] = values`` where the index of another rank's class is masked to 0."""
    ranks = Ranks()
    b = ranks.b
    target = torch.tensor([0, 5, 2, 3, 4])
    x, values = (
        torch.randn(ROWS, CLASSES, dtype=torch.float64),
        torch.randn(() if single else ROWS, dtype=torch.float64),
    )
    x = x.t().contiguous() if transposed else x
    tokens = ranks.leaf(target)
    outside = b.either(b.less(tokens, CLASSES * U), b.less_equal(CLASSES * U + CLASSES, tokens))
    index = choose(b, outside, 0, b.sub(tokens, CLASSES * U))
    rows = b.iota(ROWS)
    indices = [index, rows] if transposed else [rows, index]
    result = ranks.call(aten.index_put.default, ranks.leaf(x), indices, ranks.leaf(values), accumulate)
    for rank, value in enumerate(ranks.values(result)):
        local = torch.where(
            (target < CLASSES * rank) | (target >= CLASSES * rank + CLASSES), 0, target - CLASSES * rank
        )
        places = (local, torch.arange(ROWS)) if transposed else (torch.arange(ROWS), local)
        torch.testing.assert_close(value, aten.index_put.default(x, places, values, accumulate))


@pytest.mark.parametrize("dim", [0, 1])
def test_places_of_the_largest_are_distinct(dim: int) -> None:
    """Some of them, so that the other rows stay."""
    ranks = Ranks()
    b = ranks.b
    keys, x = torch.randn(ROWS, dtype=torch.float64), torch.randn(ROWS, ROWS, dtype=torch.float64)
    declaration = declaration_of(aten.topk.default)
    assert declaration is not None
    _, places = declaration.handler(b, **bind(declaration, [ranks.leaf(keys), 2], {}))
    values = torch.randn((2, ROWS) if dim == 0 else (ROWS, 2), dtype=torch.float64)
    indices: list[torch.Tensor | None] = [None] * dim
    b.call = Call({**REAL.dtypes, "indices": torch.int64}, dtype=torch.float64)
    result = ranks.call(aten.index_put.default, ranks.leaf(x), [*indices, places], ranks.leaf(values), False)
    expected = aten.index_put.default(x, [*indices, keys.topk(2).indices], values, False)
    for value in ranks.values(result):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("accumulate", [False, True])
def test_an_index_that_may_be_negative_counts_from_the_end(accumulate: bool) -> None:
    ranks = Ranks()
    target = torch.arange(ROWS) % (2 * CLASSES) - CLASSES
    x, values = torch.randn(ROWS, CLASSES, dtype=torch.float64), torch.randn(ROWS, dtype=torch.float64)
    result = ranks.call(
        aten.index_put.default,
        ranks.leaf(x),
        [ranks.b.iota(ROWS), ranks.leaf(target.double())],
        ranks.leaf(values),
        accumulate,
    )
    expected = aten.index_put.default(x, (torch.arange(ROWS), target), values, accumulate)
    for value in ranks.values(result):
        torch.testing.assert_close(value, expected)


def test_a_rank_s_own_index_may_be_moved() -> None:
    """It is the spec's, where it is right by assumption."""
    ranks = Ranks()
    table = ranks.leaf(torch.ones(ROWS, ROWS, dtype=torch.float64))
    own = ranks.pool.leaf("own", (RANKS, ROWS), whole=True)
    moved = ranks.call(aten.roll.default, own, [1], [0])
    assert ranks.call(aten.embedding.default, table, moved).shape == (RANKS, ROWS, ROWS)


@pytest.mark.parametrize("operation", ["", "floor", "trunc", "roll"])
@pytest.mark.parametrize(
    "target",
    [
        aten.embedding.default, aten.gather.default, aten.index_select.default, aten.embedding_dense_backward.default,
        aten.index.Tensor, aten.index_put.default,
    ],
)  # fmt: skip
def test_a_lookup_that_may_leave_its_table_is_refused(target: object, operation: str) -> None:
    """What is computed of such an index is no position either."""
    ranks = Ranks()
    ranks.b.call = Call({**REAL.dtypes, "indices": torch.int64}, dtype=torch.float64)
    table = ranks.leaf(torch.ones(ROWS, ROWS, dtype=torch.float64))
    index = ranks.b.sub(ranks.leaf(torch.zeros(ROWS)), ROWS * U)
    if operation == "roll":
        index = ranks.call(aten.roll.default, index, [1], [0])
    elif operation:
        index = ranks.b.pointwise(FLOOR if operation == "floor" else TRUNCATED, ranks.b.scale(index, 0.5))
    wide = ranks.b.unsqueeze(index, 0)
    arguments = {
        aten.embedding.default: (table, index),
        aten.gather.default: (table, 1, wide),
        aten.index_select.default: (table, 0, index),
        aten.embedding_dense_backward.default: (table, index, ROWS, -1, False),
        aten.index.Tensor: (table, [index]),
        aten.index_put.default: (table, [index], table, True),
    }
    with pytest.raises(UnsupportedError) as refused:
        ranks.call(target, *arguments[target])
    assert refused.value.message == "an index that may lie outside of a table of size 5"


def test_an_index_that_the_spec_takes() -> None:
    """What a rank takes says nothing, nor what the spec takes of a part, of other numbers, or for another dimension."""
    ranks = Ranks()
    spec, merged = Builder(ranks.pool), Builder(ranks.pool, takes_facts=False)
    index = spec.combination((2, ranks.pool.leaf("i", (3, 4))), (1, spec.iota(4)))
    for builder in (ranks.b, merged):
        assert not builder.spec_takes(index, 8, "one way")
        assert not builder.spec_takes(index, 8, "one way")
    assert not spec.spec_takes(relabel.select(index, 0, 1), 8, "one way")
    assert not ranks.b.spec_takes(index, 8, "one way")
    assert spec.spec_takes(index, 8, "one way")
    for view in (index, relabel.select(index, 0, 1), relabel.insert_dim(index, 0, RANKS)):
        assert ranks.b.spec_takes(view, 8, "one way")
    for view, size, way in ((index.scaled(as_scalar(2)), 8, "one way"), (index, 4, "one way"), (index, 8, "another")):
        assert not ranks.b.spec_takes(view, size, way)


@pytest.mark.parametrize("index", [4, -5])
def test_torch_takes_no_index_outside_of_a_dimension(index: int) -> None:
    """What the spec takes is a position by this, of operators that are called unsafe as well."""
    table, given = torch.ones(4), [torch.tensor([index])]
    for target in (aten.index.Tensor, aten._unsafe_index.Tensor):
        with pytest.raises(IndexError, match="is out of bounds for dimension 0 with size 4"):
            target(table, given)
    for target in (aten.index_put.default, aten._unsafe_index_put.default):
        with pytest.raises(IndexError, match="is out of bounds for dimension 0 with size 4"):
            target(table, given, torch.ones(1))


def test_whole_numbers_are_no_mask() -> None:
    """An index tensor that happens to hold 0 and 1 writes rows, it selects no elements."""
    ranks = Ranks()
    b = ranks.b
    x, value = ranks.leaf(torch.zeros(2, 4, dtype=torch.float64)), ranks.leaf(torch.ones((), dtype=torch.float64))
    index = b.full(0, [3])
    with pytest.raises(UnsupportedError) as refused:
        ranks.call(aten.index_put.default, x, [index], value, False)
    assert refused.value.message == "index_put with whole numbers as its mask"
    b.call = Call({"self": torch.float64, "values": torch.float64, "indices": torch.int64}, dtype=torch.float64)
    with pytest.raises(UnsupportedError) as refused:
        ranks.call(aten.index_put.default, x, [b.full(0, [2])], value, False)
    assert refused.value.message == "index_put with whole numbers as its mask"
