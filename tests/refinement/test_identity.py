"""A program refines itself, and what changes no value changes no relation."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.fx

from tests.ir.validate_terms import validate_pool
from tests.mutants.edits import copy_program
from tests.programs import gpt2, llama, mlp
from tests.programs.captured import capture
from tests.programs.case import Case
from tests.support import fake_mesh_world
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Program
from verifycompile.refinement.check import check_refinement
from verifycompile.refinement.inputs import relate, tensor_inputs
from verifycompile.refinement.placement import same_value

aten = torch.ops.aten
CASES = (mlp.residual_case(2), mlp.case(2, data_parallel=2), llama.block_case(2), gpt2.case(2))
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@functools.cache
def captured(case: Case) -> tuple[Program, Program]:
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        return capture(case, mesh)


@each_case
def test_spec_refines_itself(case):
    spec, _ = captured(case)
    result = check_refinement(spec, spec)
    assert result.mismatch is None
    assert dict(result.relations) == {output.name: output.name for output in spec.outputs}


@each_case
def test_implementation_lowered_twice_has_equal_values(case):
    spec, implementation = captured(case)
    pool = TermPool()
    first = lowered(pool, spec, implementation)
    second = lowered(pool, spec, copy_program(implementation)[0])
    for left, right in zip(first, second, strict=True):
        assert same_value(left, right)
    validate_pool(pool)


def lowered(pool: TermPool, spec: Program, implementation: Program) -> list[View]:
    """The implementation's outputs that depend on no cotangent, over the spec's inputs."""
    left, right = Lowering(spec, pool, "spec"), Lowering(implementation, pool, "impl")
    spec_inputs, inputs = tensor_inputs(left), tensor_inputs(right)
    for key, entry in inputs.items():
        if key in spec_inputs:
            placements = entry.placements or ()
            if key[0] != "tangent":
                relate(left, right, spec_inputs[key], entry, placements)
    nodes = [output.node for output in implementation.outputs if output.name == "output.0"]
    right.lower(nodes)
    return [view for view in (right.view(node) for node in nodes) if view is not None]


Change = Callable[[torch.fx.Graph, torch.fx.Node], torch.fx.Node | None]


def call(node: torch.fx.Node, target: torch._ops.OpOverload, *args: object) -> torch.fx.Node:
    new = node.graph.call_function(target, args)
    new.meta = {**node.meta, "val": target(*torch.fx.map_arg(args, lambda argument: argument.meta["val"]))}
    return new


def changed(program: Program, name: str) -> Program:
    """The program with what changes no value after every second one of its values."""
    copy, _ = copy_program(program)
    graph = copy.graph.graph
    for position, node in enumerate(list(graph.nodes)):
        value = node.meta.get("val")
        if position % 2 or node.op != "call_function" or not isinstance(value, torch.Tensor):
            continue
        users = [user for user in node.users if user.op != "output"]
        with graph.inserting_before(node.next):
            new = EFFECTLESS[name](node, value)
        for user in users:
            user.replace_input_with(node, new)
    graph.lint()
    return copy


def turned(node: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
    if value.dim() < 2:
        return node
    return call(node, aten.transpose.int, call(node, aten.transpose.int, node, 0, -1), 0, -1)


def reshaped(node: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
    flat = call(node, aten.reshape.default, node, [value.numel()])
    return call(node, aten.reshape.default, flat, list(value.shape))


def squeezed(node: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
    return call(node, aten.squeeze.dim, call(node, aten.unsqueeze.default, node, 0), 0)


def taken_apart(node: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
    if value.dim() == 0 or value.shape[0] % 2:
        return node
    half = value.shape[0] // 2
    first = call(node, aten.slice.Tensor, node, 0, 0, half)
    second = call(node, aten.slice.Tensor, node, 0, half, 2 * half)
    new = node.graph.call_function(aten.cat.default, ([first, second], 0))
    new.meta = dict(node.meta)
    return new


EFFECTLESS: dict[str, Callable[[torch.fx.Node, torch.Tensor], torch.fx.Node]] = {
    "clone": lambda node, _: call(node, aten.clone.default, node),
    "detach": lambda node, _: call(node, aten.detach.default, node),
    "alias": lambda node, _: call(node, aten.alias.default, node),
    "turned": turned,
    "reshaped": reshaped,
    "squeezed": squeezed,
    "taken apart": taken_apart,
}


@pytest.mark.sampled(every=4, of=("name",))
@each_case
@pytest.mark.parametrize("name", EFFECTLESS)
def test_calls_without_effect_change_no_relation(case, name):
    spec, implementation = captured(case)
    plain = check_refinement(spec, implementation)
    assert plain.mismatch is None
    for pair in ((spec, changed(implementation, name)), (changed(spec, name), implementation)):
        result = check_refinement(*pair)
        assert result.mismatch is None
        assert dict(result.relations) == dict(plain.relations)


@each_case
def test_a_scaled_value_is_no_identity(case):
    """The same harness with an edit that has an effect: the tests above can fail."""
    spec, implementation = captured(case)
    copy, _ = copy_program(implementation)
    graph = copy.graph.graph
    node = next(n for n in graph.nodes if n.target is aten.mm.default)
    users = list(node.users)
    with graph.inserting_before(node.next):
        new = call(node, aten.mul.Tensor, node, 3.0)
    for user in users:
        user.replace_input_with(node, new)
    assert check_refinement(spec, copy).mismatch is not None
