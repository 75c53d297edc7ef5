"""Inputs, dtypes, returned DTensors and names of values, row by row, as checks that mutants must fail."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
import torch.fx
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from tests.lemmas.conditions import Check
from verifycompile.certificate.storage import StoredModule
from verifycompile.ir.algebra import iota
from verifycompile.ir.exponential import MAXIMUM, WHERE
from verifycompile.ir.indicator import less
from verifycompile.ir.relabel import insert_dim, permute, select
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import CONSTANT, INDICATOR_LEAF, INTEGER_LEAF, LEAF, TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.refinement.definitions import DEFINED, DEFINED_INDICATOR, Definitions, is_real, renamed
from verifycompile.refinement.dtensor_results import _equal, _strides, misread_output, misread_strides
from verifycompile.refinement.dtypes import differing_precisions, mismatched_dtype
from verifycompile.refinement.inputs import leaf_of, relate, tensor_inputs, unrelated_number
from verifycompile.refinement.placement import reduce_partial, shard
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import UnsupportedError
from verifycompile.torch_interface.operators.expressions import recorded_number, recorded_tensor

MESH = Mesh((MeshAxis("x", 2),), (0, 1))
WHOLE, ROWS, HALF, COMPLEX, NUMBERS, TRUTHS = (
    torch.zeros(4, 2, dtype=dtype)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.complex64, torch.int64, torch.bool)
)
Given = Mapping[str, tuple[Role, Any]]


def program(inputs: Given, outputs: Mapping[str, tuple[OutputKind, Any]] | None = None, mesh: Mesh | None = None) -> Program:
    """A program of which only what is recorded at its ends counts."""
    graph = torch.fx.Graph()
    ends: list[ProgramOutput] = []
    given: list[ProgramInput] = []
    for number, (name, (role, value)) in enumerate(inputs.items()):
        node = graph.placeholder(f"p{number}")
        node.meta["val"] = value
        given.append(ProgramInput(node, role, name.partition(" ")[0], None, None))
    for number, (name, (kind, value)) in enumerate((outputs or {}).items()):
        node = graph.call_function(torch.ops.aten.alias.default, (given[0].node,))
        node.meta["val"] = value
        ends.append(ProgramOutput(node, kind, name, number))
    graph.output(())
    return Program(cast("torch.fx.GraphModule", StoredModule(graph, {}, ())), tuple(given), tuple(ends), mesh)


def dtype_checks() -> Iterator[tuple[str, Check]]:
    """Of dtypes, by name."""
    for number, (spec, implementation, said) in enumerate(_dtypes()):
        for of_inputs in (True, False):
            yield f"dtypes {number}", functools.partial(_dtype_is_told, spec, implementation, said, of_inputs=of_inputs)
    yield "what is compared", _of_compared
    yield "precisions", _of_precisions


def _dtypes() -> Iterator[tuple[Any, Any, str]]:
    """What is recorded in both programs, and whether they are of another kind."""
    for one, other in ((WHOLE, ROWS), (WHOLE, HALF), (COMPLEX, torch.zeros(4, 2, dtype=torch.complex128)), (NUMBERS, NUMBERS)):
        yield one, other, ""
    for one, other in (
        (WHOLE, COMPLEX), (COMPLEX, WHOLE), (WHOLE, NUMBERS), (NUMBERS, TRUTHS), (NUMBERS, NUMBERS.to(torch.int32)),
    ):  # fmt: skip
        yield one, other, f"is of {other.dtype} in the implementation, of {one.dtype} in the spec"
    yield None, WHOLE, ""
    yield WHOLE, None, ""
    yield None, None, ""


def _dtype_is_told(one: Any, other: Any, said: str, *, of_inputs: bool) -> None:
    programs = [
        program({"x": (Role.INPUT, value)} if of_inputs else {"x": (Role.INPUT, WHOLE)},
                {} if of_inputs else {"output.0": (OutputKind.VALUE, value)})
        for value in (one, other)
    ]  # fmt: skip
    found = mismatched_dtype(*programs)
    name = "x" if of_inputs else "output.0"
    assert (found.message if found else "") == (f"`{name}` {said}" if said else "")


def _of_compared() -> None:
    """Of inputs what is no cotangent, of outputs what is no gradient, and what the spec has as well."""
    for role in Role:
        one, other = (program({"x": (role, value)}) for value in (WHOLE, NUMBERS))
        compared = role in (Role.INPUT, Role.PARAMETER, Role.BUFFER)
        assert (mismatched_dtype(one, other) is not None) is compared
        named = program({"y": (Role.INPUT, NUMBERS)})
        assert mismatched_dtype(one, named) is None
        of_cotangent = program({"x": (role, NUMBERS), "x of the output": (Role.TANGENT, WHOLE)})
        assert (mismatched_dtype(one, of_cotangent) is not None) is compared
    for kind in OutputKind:
        one, other = (program({"x": (Role.INPUT, WHOLE)}, {"o": (kind, value)}) for value in (WHOLE, NUMBERS))
        assert (mismatched_dtype(one, other) is not None) is (kind is not OutputKind.GRADIENT)
        given: Given = {"x": (Role.INPUT, WHOLE), "o": (Role.TANGENT, NUMBERS)}
        assert mismatched_dtype(one, program(given, {"o": (kind, WHOLE)})) is None


def _of_precisions() -> None:
    def told(*names: str) -> list[str]:
        one, other = (program(dict.fromkeys(names, (Role.INPUT, value))) for value in (WHOLE, HALF))
        return list(map(str, differing_precisions(one, other)))

    rest = "of torch.float16 in the implementation, of torch.float32 in the spec"
    assert told("x") == [f"rounding is no difference: `x` is {rest}"]
    assert told("x", "y") == [f"rounding is no difference: `x`, `y` are {rest}"]
    same = program({"x": (Role.INPUT, WHOLE)})
    assert differing_precisions(same, same) == []


# ------------------------------------------------------------------------------------------------ inputs


def input_checks() -> Iterator[tuple[str, Check]]:
    """Of inputs, by name."""
    for check in (_of_kinds, _of_tensors, _of_numbers, _of_values, _of_partial_values, _of_what_does_not_fit):
        yield check.__name__.strip("_"), check


def _of_kinds() -> None:
    """The leaf of an input says what is known of its elements."""
    pool = TermPool()
    for value, operation in ((WHOLE, LEAF), (COMPLEX, LEAF), (NUMBERS, INTEGER_LEAF), (TRUTHS, INDICATOR_LEAF), (None, LEAF)):
        (given,) = program({"x": (Role.INPUT, value)}).inputs
        assert leaf_of(pool, given, (4, 2)).term.operation is operation


def _of_tensors() -> None:
    """Those that are tensors, and a cotangent apart from the value of its name."""
    of_all = {f"{role.name} of it": (role, WHOLE) for role in Role} | {"a number": (Role.INPUT, 3)}
    found = tensor_inputs(Lowering(program(of_all), TermPool(), "impl"))
    wanted = (Role.INPUT, Role.PARAMETER, Role.BUFFER)
    assert found.keys() == {*(("input", role.name) for role in wanted), ("tangent", "TANGENT")}


def _of_numbers() -> None:
    """A number is one of the spec's of this name, or a size of a tensor that the implementation has, or none of the
    spec's at all.
    """
    n, m = (recorded_number("SymInt", sympy.Symbol(name, positive=True, integer=True)) for name in "nm")
    rows = recorded_tensor([m, 2], torch.float32, [2, 1], 0)
    for told, own, unrelated in (
        ({"a": n, "b": m}, {"b": m, "a": n}, None), ({"a": n, "b": m}, {"a": n, "b": n}, "b"), ({"a": n}, {"b": n}, "b"),
        ({"a": n}, {"b": m, "x": rows}, None), ({"a": n}, {"b": n, "x": rows}, "b"), ({"a": 3}, {"a": 4}, None), ({}, {"a": n}, None),
        ({"b": m}, {"a": n}, None), ({"x": rows}, {"a": m}, "a"), ({"x": rows}, {"a": n}, None),
        ({"a": n}, {"a": m, "x": rows}, None),
    ):  # fmt: skip
        sides = [program({name: (Role.INPUT, value) for name, value in inputs.items()}) for inputs in (told, own)]
        assert unrelated_number(*(Lowering(side, TermPool(), "") for side in sides)) == unrelated
    replaced = dataclasses.replace(program({"a": (Role.SIZE, m)}), size_values={m.node.expr: n.node.expr})
    assert unrelated_number(*(Lowering(p, TermPool(), "") for p in (replaced, program({"a": (Role.SIZE, n)})))) is None


class Pair:
    """One input in both programs. ``related``: why they do not fit, else ``""``."""

    def __init__(self, whole: Any, part: Any, *placements: Placement, mesh: Mesh | None = MESH, times: int = 1) -> None:
        pool = TermPool()
        self.spec = Lowering(program({"x": (Role.INPUT, whole)}), pool, "spec")
        self.own = Lowering(program({"x": (Role.INPUT, part)}, mesh=mesh), pool, "impl")
        self.nodes = self.spec.program.inputs[0].node, self.own.program.inputs[0].node
        self.related = ""
        self.found: list[View] = []
        try:
            for _ in range(times):
                relate(self.spec, self.own, self.spec.program.inputs[0], self.own.program.inputs[0], placements)
                self.found.append(self.spec.values[self.nodes[0]])
        except UnsupportedError as error:
            self.related = f"{error.code} {error.message}"

    @property
    def values(self) -> tuple[View, View]:
        return self.spec.values[self.nodes[0]], self.own.values[self.nodes[1]]


def _of_values() -> None:
    """The implementation's value is the spec's leaf as placed; there is one leaf, however often it is asked for."""
    part = torch.zeros(2, 2)
    rows = (
        (None, WHOLE, ()), (None, WHOLE, (Partial(),)), (MESH, WHOLE, (Replicate(),)), (MESH, part, (Shard(0),)),
    )  # fmt: skip
    for mesh, given, placements in rows:
        pair = Pair(WHOLE, given, *placements, mesh=mesh, times=2)
        assert pair.related == ""
        spec, own = pair.values
        assert spec.term.operation is LEAF
        assert own == (spec if mesh is None else shard(pair.spec.pool, spec, placements, mesh))
        assert pair.found == [spec, spec]


def _of_partial_values() -> None:
    pair = Pair(WHOLE, WHOLE, Partial())
    assert pair.related == ""
    spec, own = pair.values
    assert own.term.operation is LEAF
    assert insert_dim(spec, 0, 2) == reduce_partial(pair.spec.pool, own, (Partial(),), MESH)
    plane = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)), (0, 1, 2, 3))
    for placements in ((Partial(), Shard(0)), (Shard(0), Partial())):
        both = Pair(WHOLE, WHOLE[:2], *placements, mesh=plane)
        assert both.related == ""
        whole, part = both.values
        assert part != shard(pair.spec.pool, whole, placements, plane)  # which takes a summand for the whole
        assert part.term.operation is LEAF
        assert part.shape == (2, 2, 2, 2)
    again = Pair(WHOLE, WHOLE, Partial(), times=2)
    assert again.related.endswith("two inputs are `x`, one of them partial")
    relate(pair.spec, pair.own, pair.spec.program.inputs[0], pair.own.program.inputs[0], (Replicate(),))
    assert pair.values == (spec, shard(pair.spec.pool, spec, (Replicate(),), MESH))


def _of_what_does_not_fit() -> None:
    rows: Sequence[tuple[Callable[[], Pair], str]] = (
        (lambda: Pair(3, WHOLE, Replicate()), "the input `x` is no tensor"),
        (lambda: Pair(WHOLE, 3, Replicate()), "the input `x` is no tensor"),
        (lambda: Pair(WHOLE, NUMBERS, Replicate()), "the input `x` is integer, in the spec floating"),
        (lambda: Pair(COMPLEX, WHOLE, Replicate()), "the input `x` is floating, in the spec complex"),
        (lambda: Pair(TRUTHS, NUMBERS, mesh=None), "the input `x` is integer, in the spec torch.bool"),
        (
            lambda: Pair(WHOLE, WHOLE, Shard(0)),
            "the input `x` has shape [4, 2] on a rank; its placements [Shard(dim=0)] of [4, 2] give [2, 2]",
        ),
    )
    for make, said in rows:
        assert make().related.endswith(f" {said}"), make().related


# ------------------------------------------------------------------------------------------------ DTensors that leave


def dtensor_checks() -> Iterator[tuple[str, Check]]:
    """Of DTensors that are returned, by name."""
    yield "shapes", _of_shapes
    yield "parts of the mesh", _of_parts_of_the_mesh
    for number, row in enumerate(_strides_of()):
        yield f"strides {number}", functools.partial(_strides_are_told, *row)


def returned(value: Any, *, name: str = "o", kind: OutputKind = OutputKind.VALUE, **told: Any) -> Program:
    made = program({"x": (Role.INPUT, WHOLE)}, {name: (kind, value)}, MESH)
    return dataclasses.replace(made, outputs=tuple(dataclasses.replace(o, **told) for o in made.outputs))


def _said(spec: Program, own: Program) -> str:
    pool = TermPool()
    found = misread_output(Lowering(spec, pool, "spec"), Lowering(own, pool, "impl"))
    return found.message if found is not None else ""


def _of_parts_of_the_mesh() -> None:
    """On the axes that its own mesh lacks, a DTensor may be any part of the spec's value: its shards say how large."""
    two = Mesh((MeshAxis("x", 2), MeshAxis("y", 3)), tuple(range(6)))
    for placements, open_axes, shape, made in (
        ((Shard(0), Replicate()), {1}, (4, 2), (4, 2)), ((Shard(0), Replicate()), {1}, (2, 2), (4, 2)),
        ((Shard(0), Shard(1)), {1}, (4, 2), (4, 2)), ((Shard(0), Shard(1)), {0}, (2, 6), (2, 6)),
        ((Shard(0), Partial()), {0}, (2, 2), (2, 2)), ((Shard(0), Shard(1)), {0, 1}, (2, 2), (2, 2)), (None, {0}, (2, 2), (2, 2)),
    ):  # fmt: skip
        told = {"placements": placements, "open_axes": frozenset(open_axes)}
        own = returned(torch.zeros(2, 2), global_shape=shape, global_stride=(shape[1], 1), **told)
        wrong = f"`o` is a DTensor of shape {list(shape)}, its shards make shape {list(made)}"
        assert _said(returned(WHOLE), dataclasses.replace(own, mesh=two)) == ("" if shape == made else wrong)
    told = {"placements": (Shard(0),), "open_axes": frozenset({1})}
    number = returned(3, global_shape=(2,), global_stride=(1,), open_axes=frozenset({0}))
    assert _said(returned(WHOLE), number) == "`o` is a DTensor of shape [2], its shards make shape []"
    alone = returned(torch.zeros(2, 2), global_shape=(2, 2), global_stride=(2, 1), **told)
    assert _said(returned(WHOLE), dataclasses.replace(alone, mesh=None)) == ""


def _of_shapes() -> None:
    """The whole that a DTensor records has the shape of the spec's value."""
    spec, part = returned(WHOLE), torch.zeros(2, 2)
    for shape, stride, is_right in (
        ((4, 2), (2, 1), True), ((4, 3), (3, 1), False), ((3, 2), (2, 1), False), ((4,), (1,), False),
        ((4, 2, 1), (2, 1, 1), False),
    ):  # fmt: skip
        told = f"`o` is a DTensor of shape {list(shape)}, the spec's has shape [4, 2]"
        assert _said(spec, returned(part, global_shape=shape, global_stride=stride)) == ("" if is_right else told)
    assert _said(spec, returned(part, global_shape=None)) == ""
    number = returned(part, global_shape=(4, 2), global_stride=(2, 1))
    assert _said(returned(3), number) == "`o` is a DTensor of shape [4, 2], the spec's has shape []"
    assert _said(returned(torch.zeros(())), returned(torch.zeros(()), global_shape=(), global_stride=None)) == ""
    (ends,) = returned(WHOLE.to_sparse(), global_shape=None, global_stride=None).outputs
    assert (_strides(ends.node), misread_strides(ends, ends)) == ((), None)
    assert _said(spec, returned(part, name="p", global_shape=(4, 3), global_stride=(3, 1))) == ""
    s = sympy.Symbol("s", positive=True, integer=True)
    assert _equal((2 * s + 2, 3), (2 * (s + 1), 3))
    assert not _equal((s, 3), (s + 1, 3))
    assert not _equal((s, 3), (s, 4))


def _strides_of() -> Iterator[tuple[torch.Tensor, torch.Tensor, tuple[int, ...], bool, OutputKind]]:
    """The spec's value, the shard, the strides that are recorded of the whole, and whether these are right."""
    turned, part = torch.zeros(2, 4).t(), torch.zeros(2, 2)
    for spec, shard_of_it, strides, is_right in (
        (WHOLE, part, (2, 1), True), (WHOLE, part, (1, 4), False), (WHOLE, part.t(), (1, 4), True),
        (turned, part, (1, 4), True), (turned, part, (2, 1), True), (turned, part.t(), (2, 1), False),
        (WHOLE, part, (3, 1), False), (torch.zeros(4, 1), torch.zeros(2, 1), (1, 7), True),
        (torch.zeros(4, 1), torch.zeros(2, 1), (2, 1), False), (torch.zeros(1, 2), torch.zeros(1, 1), (9, 1), True),
        (torch.zeros(0, 2), torch.zeros(0, 2), (5, 7), True),
    ):  # fmt: skip
        yield spec, shard_of_it, strides, is_right, OutputKind.VALUE
    yield WHOLE, part, (sympy.Symbol("s"), 4), True, OutputKind.VALUE  # pyright: ignore[reportReturnType]  # no number
    yield WHOLE, part, (1, 4), True, OutputKind.GRADIENT
    yield WHOLE, part, (1, 4), True, OutputKind.MUTATION


def _strides_are_told(
    spec: torch.Tensor, part: torch.Tensor, strides: tuple[int, ...], is_right: bool, kind: OutputKind
) -> None:
    own = returned(part, kind=kind, global_shape=tuple(spec.shape), global_stride=strides)
    said = _said(returned(spec, kind=kind), own)
    assert (said == "") is is_right
    assert is_right or said.startswith(f"`o` is a DTensor of strides {list(strides)}; ")


# ------------------------------------------------------------------------------------------------ names of values


def definition_checks() -> Iterator[tuple[str, Check]]:
    """Of opaque terms in the place of others, by name."""
    for check in (_of_fresh_terms, _of_what_is_kept, _of_names, _of_real_nodes):
        yield check.__name__.strip("_"), check


def _of_fresh_terms() -> None:
    made = Definitions(TermPool())
    terms = [made.fresh((2, 3), indicator) for indicator in (False, True, False)]
    assert [term.operation for term in terms] == [DEFINED, DEFINED_INDICATOR, DEFINED]
    assert len(set(terms)) == 3
    assert all(term.shape == (2, 3) for term in terms)


def _of_what_is_kept() -> None:
    """Opaque terms and constants, what is infinite somewhere, and whole numbers that are no mask."""
    b = Builder(TermPool())
    x, y = (b.pool.leaf(name, (3,)) for name in "xy")
    mask, counted = less(b.pool, x, y), iota(b.pool, 3)
    infinite = b.add(x, b.full(float("-inf"), (3,)))
    hidden = b.mul(mask, b.exp(x))
    made = Definitions(b.pool)
    for view, kept, exactly in (
        (x, True, True), (counted, True, True), (b.exp(counted), True, True), (b.exp(x), False, True),
        (mask, False, False), (hidden, False, True), (b.add(x, counted), False, True),
    ):  # fmt: skip
        assert (made.keeps(view.term, False), made.keeps(view.term, True)) == (kept, exactly), view
        assert made.is_closed(view.term) is (view.term in (counted.term, b.exp(counted).term))
    masked = b.pointwise(WHERE, mask, x, b.full(float("-inf"), (3,)))
    for view in (infinite, masked, b.pointwise(MAXIMUM, masked, y)):
        if view.term.operands:
            assert made.keeps(view.term, False), view
    assert masked.term.operands


def _of_names() -> None:
    """The name has the dimensions that a value reads, in their order; of a part of a term the whole is named."""
    b = Builder(TermPool())
    x, y = (b.pool.leaf(name, (2, 3)) for name in "xy")
    made = Definitions(b.pool)
    value, mask = b.exp(x), less(b.pool, x, y)
    square = b.exp(b.pool.leaf("s", (3, 3)))
    diagonal = View(ONE, square.term, (3,), (((0, 1, 3),), ((0, 1, 3),)))
    for view, operation, shape in (
        (value, DEFINED, (2, 3)), (permute(value, (1, 0)), DEFINED, (3, 2)), (value.scaled(ONE * 2), DEFINED, (2, 3)),
        (insert_dim(value, 0, 5), DEFINED, (2, 3)), (select(value, 0, 1), DEFINED, (2, 3)), (diagonal, DEFINED, (3, 3)),
        (mask, DEFINED_INDICATOR, (2, 3)), (permute(mask, (1, 0)), DEFINED_INDICATOR, (3, 2)),
        (mask.scaled(ONE * 2), DEFINED, (2, 3)), (select(mask, 0, 1), DEFINED_INDICATOR, (2, 3)),
        (select(mask, 0, 1).scaled(ONE * 2), DEFINED_INDICATOR, (2, 3)),
    ):  # fmt: skip
        named = made.name(view)
        assert (named.term.operation, named.term.shape) == (operation, shape), view
        assert named.shape == view.term.shape
        found = renamed(view, named)
        assert found.shape == view.shape
        if view.term is not square.term and not any(d[0] == CONSTANT for axis in view.axes for d in axis):
            assert found.coefficient == 1
            used = [d[0] for axis in found.axes for d in axis]
            assert used == sorted(used)
        else:
            assert (found.axes, found.coefficient) == (view.axes, view.coefficient)


def _of_real_nodes() -> None:
    for value, is_one in ((WHOLE, True), (COMPLEX, True), (NUMBERS, False), (TRUTHS, False), (3, False), (None, False)):
        (given,) = program({"x": (Role.INPUT, value)}).inputs
        assert is_real(given.node) is is_one
