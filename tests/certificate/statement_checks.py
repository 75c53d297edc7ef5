"""What two programs must be for a certificate to speak of them, row by row: what it says, or why it says nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import sympy
import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.fx import Graph

from tests.lemmas.conditions import Check
from verifycompile.certificate import statement
from verifycompile.certificate.statement import Statement, StatementError, statement_of
from verifycompile.certificate.storage import StoredModule
from verifycompile.program import Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.question import Provenance
from verifycompile.torch_interface.operators.expressions import recorded_number, recorded_tensor

S, K = sympy.symbols("s k", integer=True, positive=True)
RANK = sympy.Symbol("rank", integer=True, nonnegative=True)
WHOLE, ROWS = (Replicate(), Replicate()), (Shard(0), Replicate())
MESH = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 3)), tuple(range(6)))

Parts = tuple[Program, Program, Mapping[str, tuple[Placement, ...]]]
Edit = Callable[[Program, Program], Any]


def _size(size: Any) -> Any:
    return recorded_number("SymInt", size) if isinstance(size, sympy.Basic) else size


def _program(
    rows: Any, layouts: Mapping[str, tuple[Placement, ...]], opaque: bool, number: Any = None, **others: Any
) -> Program:
    """``number``: what the input `n` is, where it is no tensor."""
    graph = Graph()
    shapes: dict[str, tuple[Any, ...]] = {"x": (rows, 4), "n": (3,), "w": (4, 2), "b": (2,), "t": (rows, 2)}
    wholes = {**shapes, "x": (S, 4), "t": (S, 2)} if layouts else shapes
    roles = (Role.INPUT, Role.INPUT, Role.PARAMETER, Role.BUFFER, Role.TANGENT)
    inputs: list[ProgramInput] = []
    for (name, shape), role in zip(shapes.items(), roles, strict=True):
        node = graph.placeholder(name)
        node.meta["val"] = recorded_tensor([_size(s) for s in shape], torch.float32)
        if name == "n" and number is not None:
            node.meta["val"] = recorded_number("SymInt", number)
        kind = "output.0" if role is Role.TANGENT else name
        inputs.append(ProgramInput(node, role, kind, layouts.get(name), wholes[name]))
    if opaque:
        inputs.extend(ProgramInput(graph.placeholder(f"mesh{k}"), Role.OPAQUE, "mesh") for k in range(2))
    x, w, b = (inputs[k].node for k in (0, 2, 3))
    outputs = tuple(
        ProgramOutput(graph.call_function(torch.neg, (node,)), kind, name, k, requires_grad=flows)
        for k, (node, kind, name, flows) in enumerate((
            (x, OutputKind.VALUE, "output.0", True),
            (w, OutputKind.GRADIENT, "grad.w", None),
            (b, OutputKind.MUTATION, "mutation.b", None),
        ))
    )  # fmt: skip
    module: Any = StoredModule(graph, {}, ())
    return Program(module, tuple(inputs), outputs, size_values={S: 2 * K}, **others)


@functools.cache
def _right(number: sympy.Expr | None = None) -> Parts:
    layouts = {"x": ROWS, "w": WHOLE, "b": (Replicate(), Partial()), "t": ROWS}
    known = {"mesh": MESH, "groups": {"g": (0, 1)}, "coordinates": {RANK: 1}, "provenance": Provenance.OBSERVED}
    implementation = _program(K, layouts, True, number, **known)
    return _program(S, {}, False, number, provenance=Provenance.GIVEN), implementation, {"output.0": ROWS}


def _cotangent(name: str, lies: str = "concat({}, dim=0, over=dp)") -> dict[str, str]:
    return {f"cotangent of {name}": lies.format(name)}


SAID = Statement(
    ("output.0",), ("grad.w",), ("mutation.b",),
    {"x": "concat(x, dim=0, over=dp)", "n": "n", "w": "w", "b": "sum(b, over=tp)", **_cotangent("output.0")},
    "dp=2, tp=3", "spec given; 6 ranks compared", ("s is 2*k",),
)  # fmt: skip


def checks() -> Iterator[tuple[str, Check]]:
    yield "of numbers", _of_numbers
    yield "of a number alone", _of_a_number_alone
    for number, (parts, said) in enumerate(_rows()):
        yield f"statement {number}", functools.partial(_says, parts, said)


def _of_numbers() -> None:
    """Sizes that are numbers are compared as they are: a program has thousands."""
    with mock.patch.object(statement, "normalize_size", side_effect=AssertionError):
        assert statement._size(_right()[0], 4) == 4


def _of_a_number_alone() -> None:
    program = dataclasses.replace(_right(K)[1], size_values={})
    assert [*statement._sizes(program)] == ["n is x.size(0)"]
    assert [*statement._sizes(_program(2 * K, {}, False))] == ["s is 2*k", "x.size(0) is 2*k"]
    assert [*statement._sizes(_program(4, {}, False))] == ["s is 2*k"]


def _says(parts: Parts, said: Statement | str) -> None:
    try:
        found: Statement | str = statement_of(*parts)
    except StatementError as error:
        found = str(error)
    assert found == said, (found, said)


def _inputs(program: Program, wanted: str, /, **changes: Any) -> Program:
    changed = (dataclasses.replace(i, **changes) if i.name == wanted else i for i in program.inputs)
    return dataclasses.replace(program, inputs=tuple(changed))


def _outputs(program: Program, wanted: str, /, **changes: Any) -> Program:
    changed = (dataclasses.replace(o, **changes) if o.name == wanted else o for o in program.outputs)
    return dataclasses.replace(program, outputs=tuple(changed))


def _rows() -> Iterator[tuple[Parts, Statement | str]]:
    spec, own, placed = _right()
    yield (spec, own, placed), SAID
    yield (spec, own, {}), SAID
    single = dataclasses.replace(own, mesh=None, groups={}, coordinates={})
    plain = dataclasses.replace(SAID, mesh="", question="spec given; 1 rank compared")
    yield (spec, single, {}), dataclasses.replace(
        plain, inputs={name: name.removeprefix("cotangent of ") for name in SAID.inputs}
    )
    without = {name: lies for name, lies in SAID.inputs.items() if "cotangent" not in name}
    as_its_output = _inputs(own, "output.0", placements=None, global_shape=None)
    yield (spec, as_its_output, placed), dataclasses.replace(SAID, inputs=without)
    no_outputs = dataclasses.replace(spec, outputs=())
    yield (no_outputs, dataclasses.replace(own, outputs=()), {}), "it covers no output"
    yield (spec, own, {"output.1": ROWS}), "it places `output.1`, which is no output"
    yield from _rows_of_memory()
    yield from _rows_of_outputs()
    yield from _rows_of_mesh()
    yield from _rows_of_inputs()
    yield from _rows_of_shapes()


def _rows_of_memory() -> Iterator[tuple[Parts, Statement]]:
    """Where inputs lie is told of those whose elements do not follow one another, where memory is read."""
    of_spec, of_own = " (at strides {} in the spec)", " (at strides {} in the implementation)"
    for reads_spec, reads_own in ((True, False), (False, True), (False, False), (True, True)):
        for strides, offset, told in (
            ((4, 1), 0, ""), ((4, 1), 3, "4, 1 from 3"), ((1, S), 0, "1, 2*k from 0"), ((1, 4), 0, "1, 4 from 0"),
        ):  # fmt: skip
            layouts = {"x": ROWS, "w": WHOLE, "b": (Replicate(), Partial()), "t": ROWS}
            known: Any = {"mesh": MESH, "groups": {"g": (0, 1)}, "coordinates": {RANK: 1}}
            own = _program(K, layouts, True, provenance=Provenance.OBSERVED, **known)
            hidden = ProgramInput(own.graph.graph.placeholder("hidden"), Role.OPAQUE, "x")  # hides no tensor of its name
            own = dataclasses.replace(own, inputs=(*own.inputs, hidden))
            spec = _program(S, {}, False, provenance=Provenance.GIVEN)
            for program, reads in ((spec, reads_spec), (own, reads_own)):
                x, n = program.inputs[0].node, program.inputs[1].node
                sizes = x.meta["val"].shape
                x.meta["val"] = recorded_tensor(sizes, torch.float32, tuple(map(_size, strides)), offset)
                n.meta["val"] = 3
                if reads:
                    program.graph.graph.call_function(torch.ops.aten.as_strided.default, (x, (2,), (1,)))
            text = SAID.inputs["x"] + "".join(
                side.format(told) for side, reads in ((of_spec, reads_spec), (of_own, reads_own)) if reads and told
            )
            yield (spec, own, {"output.0": ROWS}), dataclasses.replace(SAID, inputs={**SAID.inputs, "x": text})


def _both(change: Callable[[Program], Program], said: str) -> Iterator[tuple[Parts, str]]:
    """One side changed, then the other one; of ``said`` the side is left open."""
    spec, own, placed = _right()
    yield (change(spec), own, placed), said.format("spec")
    yield (spec, change(own), placed), said.format("implementation")


def _rows_of_outputs() -> Iterator[tuple[Parts, Statement | str]]:
    spec, own, placed = _right()
    yield from _both(
        lambda p: dataclasses.replace(p, outputs=(*p.outputs, p.outputs[1])), "an output of the {} occurs twice"
    )
    yield from _both(lambda p: _outputs(p, "grad.w", kind=OutputKind.VALUE), "`grad.w` of the {} is no value")
    yield from _both(lambda p: _outputs(p, "grad.w", name="other.w"), "`other.w` of the {} is no gradient")
    fewer = dataclasses.replace(own, outputs=own.outputs[:2])
    yield (spec, fewer, placed), SAID  # what has no counterpart is for the proof to say
    flows = "a gradient flows back from `output.0` in one of the programs"
    for value in (False, None):
        yield from _both(lambda p, value=value: _outputs(p, "output.0", requires_grad=value), flows)
    axes = "`grad.w` speaks of an axis that the mesh does not have"
    for field in ("open_axes", "outer_mean"):
        told = [SAID, SAID]
        if field == "outer_mean":
            means = [f"grad.w (its mean over {axis} is taken outside)" for axis in ("dp", "tp")]
            told = [dataclasses.replace(SAID, gradients=(mean,)) for mean in means]
        for axis, said in ((-1, axes), (0, told[0]), (1, told[1]), (2, axes)):
            yield (spec, _outputs(own, "grad.w", **{field: frozenset({axis})}), placed), said
        single = dataclasses.replace(own, mesh=None, groups={}, coordinates={})
        yield (spec, _outputs(single, "grad.w", **{field: frozenset({0})}), {}), axes
        yield (_outputs(spec, "grad.w", **{field: frozenset({0})}), own, {}), "its spec speaks of a mesh"
    yield (_outputs(spec, "grad.w", placements=ROWS), own, {}), "its spec speaks of a mesh"


def _rows_of_mesh() -> Iterator[tuple[Parts, Statement | str]]:
    spec, own, placed = _right()
    yield (dataclasses.replace(spec, mesh=MESH), own, placed), "its spec has a mesh"
    none = "its mesh is none: an axis occurs twice, or has no ranks"
    axes = MESH.axes
    for mesh in (
        Mesh((axes[0], MeshAxis("dp", 3)), tuple(range(6))), Mesh((axes[0], MeshAxis("tp", 0)), ()),
        Mesh((MeshAxis("dp", -2), MeshAxis("tp", -3)), tuple(range(6))), Mesh((), (0,)),
    ):  # fmt: skip
        yield (spec, dataclasses.replace(own, mesh=mesh), placed), none
    of_one = dataclasses.replace(own, mesh=Mesh((axes[0], MeshAxis("tp", 1)), (0, 1)))
    said = dataclasses.replace(SAID, mesh="dp=2, tp=1", question="spec given; 2 ranks compared")
    yield (spec, of_one, placed), said
    yield (spec, _inputs(own, "w", placements=WHOLE[:1]), placed), "`w` has no placement for each axis of the mesh"
    yield (spec, _inputs(own, "w", placements=(*WHOLE, Replicate())), {}), _placements("w")
    yield (spec, _outputs(own, "grad.w", placements=WHOLE[:1]), {}), _placements("grad.w")
    yield (spec, _outputs(own, "grad.w", placements=WHOLE), {}), SAID
    for shape, stride in (((4, 2), (2,)), ((4, 2), None), (None, (2, 1))):
        changed = _outputs(own, "grad.w", global_shape=shape, global_stride=stride)
        yield (spec, changed, {}), "`grad.w` has no stride for each dimension"
    yield (spec, _outputs(own, "grad.w", global_shape=(4, 2), global_stride=(2, 1)), {}), SAID
    yield (spec, dataclasses.replace(own, groups={"g": (2,)}), {}), _axis("a group")
    yield (spec, dataclasses.replace(own, coordinates={RANK: 2}), {}), _axis("rank")
    for kind in ({"positive": True}, {"nonzero": True}, {"negative": True}):
        symbol = sympy.Symbol("rank", integer=True, **kind)
        yield (
            (spec, dataclasses.replace(own, coordinates={symbol: 0}), {}),
            ("the coordinate `rank` is said never to be zero"),
        )
    yield (spec, dataclasses.replace(own, coordinates={sympy.Symbol("rank"): 0}), {}), SAID


def _placements(name: str) -> str:
    return f"`{name}` has no placement for each axis of the mesh"


def _axis(name: str) -> str:
    return f"`{name}` speaks of an axis that the mesh does not have"


def _rows_of_inputs() -> Iterator[tuple[Parts, Statement | str]]:
    spec, own, placed = _right()
    for field in ("piecewise", "by_definition"):
        yield (dataclasses.replace(spec, **{field: True}), own, placed), "its spec is said to be written in another way"
        yield (spec, dataclasses.replace(own, **{field: True}), placed), SAID
    for changes in ({"placements": ROWS}, {"assumed": True}):
        yield (_inputs(spec, "w", **changes), own, placed), "its spec speaks of a mesh"
    yield (_inputs(spec, "output.0", open_axes=frozenset({0})), own, placed), "its spec speaks of a mesh"
    yield (spec, _inputs(own, "w", assumed=True), placed), SAID
    yield (spec, _inputs(own, "output.0", open_axes=frozenset({0})), placed), SAID
    yield (
        (spec, _inputs(own, "w", open_axes=frozenset({0})), placed),
        ("`w` of the implementation lies open, and is no cotangent"),
    )
    placeholders = "the inputs of the {} are not its placeholders"
    yield from _both(lambda p: dataclasses.replace(p, inputs=p.inputs[:-1]), placeholders)
    yield from _both(lambda p: dataclasses.replace(p, inputs=(*p.inputs, p.inputs[0])), placeholders)
    yield from _both(lambda p: _inputs(p, "w", node=p.outputs[0].node), placeholders)
    yield from _both(lambda p: _inputs(p, "w", name="b"), "an input of the {} occurs twice")
    named = dataclasses.replace(SAID, inputs={**{k: v for k, v in SAID.inputs.items() if k != "n"}})
    of_both = [_inputs(p, "n", name="output.0") for p in (spec, own)]
    told = {**SAID.inputs, "output.0": "output.0"}
    del told["n"]
    yield (*of_both, placed), dataclasses.replace(named, inputs=told)  # a cotangent and an input of one name
    yield from _both(
        lambda p: _inputs(p, "b", node=_without_value(p, "b")), "nothing is recorded of the input `b` of the {}"
    )
    yield _right(K), dataclasses.replace(SAID, sizes=(*SAID.sizes, "n is x.size(0)"))
    yield _right(sympy.Symbol("m", integer=True)), SAID
    numbers = _right(sympy.Symbol("m", integer=True))
    wrong = "`n` of the {} is no tensor, and lies on a mesh or is a cotangent"
    for placements in (ROWS, (Replicate(), Partial())):
        yield (numbers[0], _inputs(numbers[1], "n", placements=placements), placed), wrong.format("implementation")
    yield (numbers[0], _inputs(numbers[1], "n", placements=WHOLE), placed), SAID
    yield (numbers[0], _inputs(numbers[1], "n", role=Role.TANGENT), placed), wrong.format("implementation")
    yield (_inputs(numbers[0], "n", role=Role.TANGENT), numbers[1], placed), wrong.format("spec")
    yield (spec, _inputs(own, "mesh", placements=ROWS), placed), wrong.format("implementation").replace("`n`", "`mesh`")
    frozen = [_outputs(p, "output.0", requires_grad=False) for p in (spec, own)]
    yield (*frozen, placed), "`output.0` of the spec has a gradient and asks for none"
    unknown = [_outputs(p, "output.0", requires_grad=None) for p in (spec, own)]
    yield (*unknown, placed), SAID
    inputs = [_inputs(p, "output.0", name="grad.w") for p in (spec, own)]
    others = {name: lies for name, lies in SAID.inputs.items() if "cotangent" not in name}
    yield (*inputs, placed), dataclasses.replace(SAID, inputs={**others, **_cotangent("grad.w")})
    as_input = [_inputs(_outputs(p, "output.0", requires_grad=False), "output.0", name="output.1") for p in (spec, own)]
    yield (*as_input, placed), dataclasses.replace(SAID, inputs={**others, **_cotangent("output.1")})
    not_tangent = [
        _inputs(_outputs(p, "output.0", requires_grad=False), "output.0", role=Role.INPUT) for p in (spec, own)
    ]
    lies = {**others, "output.0": "output.0"}
    yield (
        (not_tangent[0], _inputs(not_tangent[1], "output.0", placements=None, global_shape=None), {}),
        dataclasses.replace(SAID, inputs=lies, sizes=(*SAID.sizes, "output.0.size(0) is x.size(0)")),
    )


def _without_value(program: Program, name: str) -> Any:
    """The node of an input in a copy of the program's graph would be another one: its value is hidden instead."""
    (item,) = (i for i in program.inputs if i.name == name)
    return _Bare(item.node)


class _Bare:
    """A node of which nothing is recorded."""

    def __init__(self, node: Any) -> None:
        self.node, self.meta = node, dict[str, Any]()

    def __eq__(self, other: object) -> bool:
        return other is self.node or other is self

    def __hash__(self) -> int:
        return hash(self.node)


def _rows_of_shapes() -> Iterator[tuple[Parts, Statement | str]]:
    spec, own, placed = _right()
    for name, shape in (("x", (S, 5)), ("x", (K, 4)), ("x", (S,)), ("n", (4,)), ("w", (2, 4))):
        yield (
            (spec, _inputs(own, name, global_shape=shape), placed),
            f"the whole of `{name}` is another one in the spec",
        )
        yield (
            (_inputs(spec, name, global_shape=shape), own, placed),
            f"the whole of `{name}` is another one in the spec",
        )
    yield (spec, _inputs(own, "x", global_shape=(2 * K, 4)), placed), SAID
    yield (spec, _inputs(own, "x", global_shape=None), placed), SAID
    known = {"mesh": MESH, "groups": {"g": (0, 1)}, "coordinates": {RANK: 1}, "provenance": Provenance.OBSERVED}
    layouts = {"x": ROWS, "w": WHOLE, "b": (Replicate(), Partial()), "t": ROWS}
    more = _inputs(_program(K, layouts, True, **known), "w", name="u", global_shape=(9, 9))
    told = {**{k: v for k, v in SAID.inputs.items() if k != "w"}, "u": "u"}
    yield (spec, more, placed), dataclasses.replace(SAID, inputs=told)  # an input that the spec does not have
    unplaced = _inputs(own, "n", node=own.inputs[3].node, global_shape=(2,))
    swapped = _inputs(unplaced, "b", node=own.inputs[1].node, placements=WHOLE)
    told = {**SAID.inputs, "b": "b"}
    yield (spec, swapped, placed), dataclasses.replace(SAID, inputs=told)  # of what lies nowhere its own shape is told
