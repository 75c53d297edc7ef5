"""What an attempt says of two programs, row by row, as checks that mutants must fail."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any
from unittest import mock

import pytest
import sympy
import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

from tests.lemmas.conditions import Check
from tests.refinement.inputs_checks import MESH, NUMBERS, WHOLE, program
from verifycompile.ir.term import TermPool
from verifycompile.program import Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.refinement import part_by_part
from verifycompile.refinement.attempt import Attempt, ClaimError, plain_pool
from verifycompile.torch_interface.operators.expressions import recorded_number

PART, ROW = torch.zeros(2, 2), torch.zeros(2)
SHARD, WHOLE_ON_ALL, SUM, MEAN = Shard(0), Replicate(), Partial(), Partial("avg")
TWO = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)), (0, 1, 2, 3))
_KINDS = {"output": OutputKind.VALUE, "grad": OutputKind.GRADIENT, "mutation": OutputKind.MUTATION}
_ROLES = {"output": Role.TANGENT, "weight": Role.PARAMETER}
Told = Mapping[str, Any]
Given = Mapping[str, tuple[torch.Tensor, Told]]
Claims = Mapping[str, tuple[Placement, ...]]


def traced(run: Callable[..., Any], given: Given, ends: Mapping[str, Told], mesh: Mesh | None = None) -> Program:
    """A function as a program. ``given``, ``ends``: its inputs and outputs by name, with what is told of them."""
    graph = make_fx(run, tracing_mode="fake")(*(tensor.clone() for tensor, _ in given.values()))
    places = graph.graph.find_nodes(op="placeholder")
    inputs = [
        ProgramInput(node, **{"role": _ROLES.get(name.partition(".")[0], Role.INPUT), "name": name, **told})
        for node, (name, (_, told)) in zip(places, given.items(), strict=True)
    ]
    (returned,) = graph.graph.find_nodes(op="output")
    found = returned.args[0] if isinstance(returned.args[0], (list, tuple)) else (returned.args[0],)
    outputs = [
        ProgramOutput(node, _KINDS[name.partition(".")[0]], name, k, **told)
        for k, (node, (name, told)) in enumerate(zip(found, ends.items(), strict=True))
    ]
    return Program(graph, tuple(inputs), tuple(outputs), mesh)


def said(spec: Program, implementation: Program, claims: Claims | None = None) -> str:
    """Why the programs are not related, else the relations."""
    attempt = Attempt(spec, implementation, TermPool(), claims)
    try:
        with mock.patch.object(Attempt, "_relation", autospec=True, side_effect=Attempt._relation) as relate:
            mismatch = attempt.run()
    except ClaimError as error:
        return str(error)
    assert relate.call_count == len(attempt.relations)  # each output is compared once
    assert implementation.mesh is not None or not attempt.placements
    nodes = () if mismatch is None else (mismatch.spec_node, mismatch.impl_node)
    where = ["spec" if k == 0 else "implementation" for k, node in enumerate(nodes) if node is not None]
    return "; ".join(attempt.relations.values()) if mismatch is None else f"{mismatch.message} ({', '.join(where)})"


@dataclasses.dataclass(frozen=True)
class Row:
    """Two programs of one function or of two, and what is said of them."""

    said: str
    run: Callable[..., Any]
    given: Given
    own: Given
    ends: Mapping[str, Told]
    claims: Claims | None = None
    mesh: Mesh | None = MESH
    other: Callable[..., Any] | None = None
    own_ends: Mapping[str, Told] | None = None

    def check(self) -> None:
        spec = traced(self.run, self.given, self.ends)
        ends = self.ends if self.own_ends is None else self.own_ends
        own = traced(self.other or self.run, self.own, ends, self.mesh)
        assert said(spec, own, self.claims) == self.said, said(spec, own, self.claims)


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for number, row in enumerate((*_of_layouts(), *_of_one_device(), *_of_what_does_not_fit(), *_of_gradients())):
        yield f"row {number}", row.check
    for check in (_of_pools, _of_values_of_nodes, _of_numbers, _of_parts, _of_assumptions, _of_literals):
        yield check.__name__.strip("_"), check


ALL: Given = {"x": (WHOLE, {})}
OWN: Given = {"x": (PART, {"placements": (SHARD,)})}
T: Given = {"output.0": (WHOLE, {})}
ONE: Mapping[str, Told] = {"output.0": {}}
NONE = "no relation of `output.0`"


def _of_layouts() -> Iterator[Row]:
    """Claims are what is declared, where anything is, and hold."""
    rows, whole = {"output.0": (SHARD,)}, {"output.0": (WHOLE_ON_ALL,)}
    text = "concat(output.0, dim=0, over=x)"
    yield Row(text, torch.sin, ALL, OWN, ONE, rows)
    yield Row(NONE, torch.sin, ALL, OWN, ONE, whole)
    yield Row(NONE, torch.sin, ALL, OWN, ONE, None)
    yield Row(NONE, torch.sin, ALL, OWN, ONE, {"output.0": (SHARD, SHARD)})
    yield Row(NONE, torch.sin, ALL, OWN, ONE, {"output.0": (Shard(2),)})
    yield Row(NONE, torch.sin, ALL, OWN, ONE, rows, other=torch.cos)
    yield Row("output.0", torch.sin, ALL, ALL, ONE, whole)  # what is not said to be placed is whole on all ranks
    yield Row(NONE, torch.sin, ALL, ALL, ONE, {"output.0": ()})
    declared = {"output.0": {"placements": (SHARD,)}}
    yield Row(text, torch.sin, ALL, OWN, ONE, rows, own_ends=declared)
    yield Row(NONE, torch.sin, ALL, ALL, ONE, whole, own_ends=declared)
    partial: Given = {"x": (WHOLE, {"placements": (SUM,)})}
    yield Row("sum(output.0, over=x)", lambda x: x * 2, ALL, partial, ONE, {"output.0": (SUM,)})
    yield Row("sum(output.0, over=x)", lambda x: x.sum(0), ALL, OWN, ONE, {"output.0": (SUM,)})
    # What each rank holds of two rows, one after the other, is both rows, and yet no tensor with a dimension of ranks.
    two: Given = {"x": (torch.zeros(2, 3), {})}
    own: Given = {"x": (torch.zeros(1, 3), {"placements": (SHARD,)})}
    yield Row("concat(output.0, dim=0, over=x)", torch.sin, two, own, ONE, rows)
    for claim in (rows, whole, None):
        yield Row(NONE, torch.sin, two, own, ONE, claim, other=lambda x: torch.sin(x)[0])
    four = {"x": (torch.zeros(2, 1), {"placements": (SHARD, Shard(1))})}
    text = "concat(concat(output.0, dim=1, over=y), dim=0, over=x)"
    claim = {"output.0": (SHARD, Shard(1))}
    for placements, axes, found in (
        ((SHARD, Shard(1)), (), text), ((WHOLE_ON_ALL, Shard(1)), (0,), text), ((SHARD, WHOLE_ON_ALL), (0,), NONE),
        ((WHOLE_ON_ALL, Shard(1)), (1,), NONE),
    ):  # fmt: skip
        told = {"output.0": {"placements": placements, "open_axes": frozenset(axes)}}
        yield Row(found, torch.sin, ALL, four, ONE, claim, TWO, own_ends=told)


def _of_one_device() -> Iterator[Row]:
    """Without a mesh; what the spec reads beside may be what the implementation does without."""
    yield Row("output.0", torch.sin, ALL, ALL, ONE, mesh=None)
    yield Row(NONE, torch.sin, ALL, ALL, ONE, mesh=None, other=torch.cos)
    both: Given = {**ALL, "y": (WHOLE, {})}
    yield Row("output.0", lambda x, y: x + y - y, both, ALL, ONE, mesh=None, other=lambda x: x * 1)
    yield Row(NONE, lambda x, y: x + y, both, ALL, ONE, mesh=None, other=lambda x: x * 1)
    yield Row(NONE, lambda x: x + 1, ALL, both, ONE, mesh=None, other=lambda x, y: x + y)


def _of_what_does_not_fit() -> Iterator[Row]:
    """What shows before any value is compared."""
    yield Row("the implementation has no `output.0`", lambda x: [x * 2], ALL, ALL, ONE, other=lambda x: [], own_ends={})
    integers = {"x": (NUMBERS, {})}
    yield Row(
        "`x` is of torch.int64 in the implementation, of torch.float32 in the spec (spec, implementation)",
        lambda x: x + 1, ALL, integers, ONE, mesh=None,
    )  # fmt: skip
    wrong_shape = {"output.0": {"global_shape": (4, 3), "global_stride": (3, 1)}}
    of_dtensor = "`output.0` is a DTensor of shape [4, 3], the spec's has shape [4, 2] (spec, implementation)"
    yield Row(of_dtensor, torch.sin, ALL, ALL, ONE, {}, own_ends=wrong_shape)
    writes = "operator `aten.sin_.default` writes to its operands"
    for runs, where in (((_writing, torch.sin), "spec"), ((torch.sin, _writing), "implementation")):
        yield Row(f"{writes} ({where})", runs[0], ALL, ALL, ONE, mesh=None, other=runs[1])
    for flows, found in (((True, False), False), ((True, None), True), ((None, False), True), ((True, True), True)):
        ends = [{"output.0": {"requires_grad": flow}} for flow in flows]
        cut = "no gradient flows back from `output.0` in the implementation (spec, implementation)"
        yield Row("output.0" if found else cut, torch.sin, ALL, ALL, ends[0], mesh=None, own_ends=ends[1])
    shapes = (
        "the input `x` has shape [4, 2] on a rank; its placements [Shard(dim=0)] of [4, 2] give [2, 2]"
        " (spec, implementation)"
    )
    yield Row(shapes, torch.sin, ALL, {"x": (WHOLE, {"placements": (SHARD,)})}, ONE, {})
    for name, does in (
        ("output.1", "returns `output.1`"),
        ("grad.x", "has a gradient for `x`"),
        ("mutation.b", "writes to `b`"),
    ):
        yield Row(
            f"the implementation {does}, the spec does not (implementation)",
            lambda x: [x * 2], ALL, ALL, ONE, mesh=None, other=lambda x: [x * 2, x * 3], own_ends={"output.0": {}, name: {}},
        )  # fmt: skip


def _writing(x: torch.Tensor) -> torch.Tensor:
    y = x.cos()
    y.sin_()
    return y.exp()


def _of_gradients() -> Iterator[Row]:
    """A cotangent lies as its output does, or as it is declared; a gradient may be partial where that is declared."""
    ends, joint = {"output.0": {}, "grad.x": {}}, {**ALL, **T}
    twice = lambda x, t: [x * 2, t * 2]  # noqa: E731 - as users write it
    rows, whole = {"output.0": (SHARD,), "grad.x": (SHARD,)}, {"output.0": (WHOLE_ON_ALL,), "grad.x": (WHOLE_ON_ALL,)}
    text = "concat(output.0, dim=0, over=x); concat(grad.x, dim=0, over=x)"
    yield Row(text, twice, joint, {**OWN, "output.0": (PART, {})}, ends, rows)
    yield Row("output.0; grad.x", twice, joint, {**ALL, **T}, ends, mesh=None)
    declared = {"placements": (SHARD,)}
    mixed = {**whole, "grad.x": (SHARD,)}
    text = "output.0; concat(grad.x, dim=0, over=x)"
    yield Row(text, twice, joint, {**ALL, "output.0": (PART, declared)}, ends, mixed)
    open_there = {"placements": (WHOLE_ON_ALL,), "open_axes": frozenset({0})}
    text = "concat(output.0, dim=0, over=x); concat(grad.x, dim=0, over=x)"
    yield Row(text, twice, joint, {**OWN, "output.0": (PART, open_there)}, ends, rows)
    wrong = (
        "the input `output.0` has shape [4, 2] on a rank; its placements [Shard(dim=0)] of [4, 2] give [2, 2]"
        " (spec, implementation)"
    )
    yield Row(wrong, twice, joint, {**ALL, "output.0": (WHOLE, declared)}, ends, whole)
    summed = lambda x, t: [x.sum(0), t.expand(x.shape) * 1]  # noqa: E731 - as users write it
    text = "sum(output.0, over=x); concat(grad.x, dim=0, over=x)"
    claims = {"output.0": (SUM,), "grad.x": (SHARD,)}
    yield Row(text, summed, {**ALL, "output.0": (ROW, {})}, {**OWN, "output.0": (ROW, {})}, ends, claims)
    partial: Given = {**ALL, "output.0": (WHOLE, {"placements": (SUM,)})}
    told = {"output.0": {}, "grad.x": {"placements": (SUM,)}}
    claims = {**whole, "grad.x": (SUM,)}
    yield Row("output.0; sum(grad.x, over=x)", twice, {**ALL, **T}, partial, ends, claims, own_ends=told)
    several, all_ends = {**ALL, **T, "output.1": (WHOLE, {})}, {"output.0": {}, "output.1": {}, "grad.x": {}}
    added = lambda x, t, u: [x * 2, x * 3, t * 2 + u * 3]  # noqa: E731 - as users write it
    yield Row("output.0; output.1; grad.x", added, several, several, all_ends, {**whole, "output.1": (WHOLE_ON_ALL,)})
    alone = lambda x: [x * 2, x * 2]  # noqa: E731 - as users write it
    missing = "no gradient flows back from `output.0` in the spec ()"
    yield Row(missing, alone, ALL, {**ALL, **T}, ends, mesh=None, other=twice)
    yield Row("output.0; grad.x", lambda x: [x * 2, x * 2], ALL, ALL, ends, whole)
    yield Row("no relation of `grad.x`", alone, ALL, ALL, ends, whole, other=lambda x: [x * 2, x * 3])
    yield from _of_partial_gradients()


def _of_partial_gradients() -> Iterator[Row]:
    """Of a weight on all ranks, by the samples of each."""
    refused, rows = "no relation of `grad.weight`", {"output.0": (SHARD,)}
    joint = lambda x, w, t: [x * w, (t * x).sum(0)]  # noqa: E731 - as users write it
    weight: Given = {"weight": (ROW, {})}
    ends, outside = {"output.0": {}, "grad.weight": {}}, {"outer_mean": frozenset({0})}
    for told, claim, is_right in (
        ({}, SUM, False), ({"placements": (SUM,)}, SUM, True), ({"placements": (MEAN,)}, SUM, False),
        ({"placements": (MEAN,), **outside}, SUM, True), ({"placements": (MEAN,), **outside}, MEAN, False),
        ({"placements": (WHOLE_ON_ALL,), **outside}, SUM, False),
    ):  # fmt: skip
        found = "concat(output.0, dim=0, over=x); sum(grad.weight, over=x)" if is_right else refused
        own = {**OWN, **weight, "output.0": (PART, {})}
        claims = {**rows, "grad.weight": (claim,)}
        yield Row(
            found, joint, {**ALL, **weight, **T}, own, ends, claims, own_ends={"output.0": {}, "grad.weight": told}
        )
    piece = torch.zeros(2, 1)
    four: Given = {
        "x": (piece, {"placements": (SHARD, Shard(1))}), "weight": (torch.zeros(1), {"placements": (WHOLE_ON_ALL, SHARD)}),
        "output.0": (piece, {}),
    }  # fmt: skip
    claims = {"output.0": (SHARD, Shard(1)), "grad.weight": (SUM, SHARD)}
    yield Row(refused, joint, {**ALL, **weight, **T}, four, ends, claims, TWO)
    # The loss is in the graph, although an input has the name of an output: a mean outside divides the gradient.
    named: Given = {"output.0": (ROW, {"role": Role.INPUT})}
    told = {"output.0": {}, "grad.weight": {"placements": (WHOLE_ON_ALL,), **outside}}
    for times, found in ((4, "concat(output.0, dim=0, over=x); grad.weight"), (2, refused)):
        run, other = (functools.partial(lambda by, x, w: [x * w, w * by], by) for by in (2, times))
        claims = {**rows, "grad.weight": (WHOLE_ON_ALL,)}
        yield Row(found, run, {**ALL, **named}, {**OWN, **named}, ends, claims, other=other, own_ends=told)


# ------------------------------------------------------------------------------------------------ one by one


def _of_pools() -> None:
    """Parts and definitions are read where a program says that it has them."""
    made = traced(torch.sin, ALL, ONE)
    for given in (None, made):
        assert plain_pool(given).piecewise is None
        assert not plain_pool(given).definitions
    assert plain_pool(dataclasses.replace(made, piecewise=True)).piecewise is not None
    assert plain_pool(dataclasses.replace(made, by_definition=True)).definitions


def _of_values_of_nodes() -> None:
    """The values of two nodes by themselves, or why there are none."""
    joint = lambda x, t: [x * 2, t * 2]  # noqa: E731 - as users write it
    ends = {"output.0": {}, "grad.x": {}}
    for spec_run, run, given, own, claims, found in (
        (joint, joint, {**ALL, **T}, {**OWN, "output.0": (PART, {})}, {"output.0": (SHARD,)}, ""),
        (joint, joint, {**ALL, **T}, {**ALL, **T}, {}, ""),
        (joint, joint, {**ALL, **T}, {**OWN, **T}, {"output.0": (SHARD,)}, "has shape [4, 2] on a rank"),
        (joint, joint, {**ALL, **T}, {"x": (WHOLE, {"placements": (SHARD,)}), **T}, {}, "has shape [4, 2] on a rank"),
        (lambda x: [_writing(x), x], lambda x: [x * 2, x], ALL, ALL, {}, "writes to its operands"),
    ):  # fmt: skip
        spec, implementation = traced(spec_run, given, ends), traced(run, own, ends, MESH)
        attempt = Attempt(spec, implementation, TermPool(), claims)
        nodes = spec.outputs[1].node, implementation.outputs[1].node
        if found:
            with pytest.raises(ClaimError, match=re.escape(found)):
                attempt.value_of(*nodes)
        else:
            left, right = attempt.value_of(*nodes)
            assert left is not None
            assert right is not None
            assert left.term is right.term


def _of_numbers() -> None:
    """Outputs that are numbers must be the same; a number is no tensor."""
    for *values, is_right in ((4, 4, True), (4, 3, False), (4, WHOLE, False), (WHOLE, 4, False), (None, None, False)):
        programs = [traced(torch.sin, ALL, ONE) for _ in values]
        for made, value in zip(programs, values, strict=True):
            (output,) = made.outputs
            output.node.meta["val"] = value
        attempt = Attempt(*programs, TermPool())
        for lowering, value in zip((attempt.spec, attempt.implementation), values, strict=True):
            given = attempt.pool.leaf("x", (4, 2)) if value is WHOLE else value
            lowering.provide(lowering.program.outputs[0].node, given)
        assert attempt._relation(programs[0].outputs[0], programs[1].outputs[0]) is None
        with contextlib.nullcontext() if is_right else pytest.raises(ClaimError, match=NONE):
            assert attempt.run() is None
        assert attempt.relations == ({"output.0": "output.0"} if is_right else {})
    n, m = (recorded_number("SymInt", sympy.Symbol(name, positive=True, integer=True)) for name in "nm")
    another = "the number `a`, an input of the implementation, is not the spec's input of that name ()"
    for own, found in ((n, ""), (m, another)):
        assert said(program({"a": (Role.SIZE, n)}), program({"a": (Role.SIZE, own)})) == found


def _of_parts() -> None:
    """Without a mesh, values that differ in form are compared part by part."""
    programs = traced(torch.sin, ALL, ONE), traced(torch.cos, ALL, ONE)
    with mock.patch.object(part_by_part, "same_part_by_part", return_value=True) as asked:
        assert said(*programs) == "output.0"
        assert said(programs[0], programs[0]) == "output.0"
    assert asked.call_count == 1


def _of_assumptions() -> None:
    """What was taken on trust is listed, once."""
    spec = dataclasses.replace(traced(lambda x: x.sum(0), ALL, ONE), assumptions=("one", "two"), guards=(sympy.true,))
    told: Told = {"assumed": True}
    given: Given = {
        "x": (PART, {**told, "placements": (SHARD,)}),
        "y": (WHOLE, told),
        "output.0": (ROW, told),
        "z": (WHOLE, {}),
    }
    ends = {"grad.x": {"placements": (WHOLE_ON_ALL,)}, "output.0": {}}
    own = dataclasses.replace(
        traced(lambda x, y, t, z: [x.double(), x.sum(0)], given, ends, MESH), assumptions=("two", "three")
    )
    attempt = Attempt(dataclasses.replace(spec, outputs=(*spec.outputs, *spec.outputs)), own, TermPool())
    attempt.placements.update({"output.0": (SUM,)})
    attempt.pool.assumptions["of the pool"] = None
    attempt.spec.casts["a cast"] = attempt.implementation.casts["a cast"] = spec.outputs[0].node
    assert attempt.assumptions() == [
        "one", "two", "three", "`x` is placed (S(0)) by default", "`y` is placed (R) by default",
        *["`output.0` leaves as a partial value over x and is reduced by its consumer"] * 2, "of the pool",
        "cast treated as identity: a cast", "guard of symbolic sizes: True",
    ]  # fmt: skip
    attempt.placements["output.0"] = (WHOLE_ON_ALL,)
    assert not any("partial" in line for line in attempt.assumptions())
    named = dataclasses.replace(own, outputs=own.outputs)
    assert Attempt(named, own, TermPool()).output_names() == ["output.0", "grad.x"]


def _of_literals() -> None:
    """Constants that are read as other numbers count where anything is held in double precision."""
    text = "the constant 0.1 in {} precision is read as 0.25 (relative difference 1.5e+00)"
    for run, listed in ((torch.sin, []), (torch.Tensor.double, ["single", "double"])):
        whole = traced(torch.sin, ALL, ONE)
        for programs in ((whole, traced(run, ALL, ONE)), (traced(run, ALL, ONE), whole)):
            attempt = Attempt(*programs, TermPool())
            attempt.pool.literals.update(
                {(0.1, True): Fraction(1, 4), (0.1, False): Fraction(1, 4), (0.5, False): Fraction(1, 2)}
            )
            found = [line for line in attempt.assumptions() if line.startswith("the constant")]
            assert found == [text.format(kind) for kind in listed]
