"""A program refines itself, and what does not change a program's meaning changes no verdict."""

from __future__ import annotations

import dataclasses
import heapq
import random

import pytest
import torch
import torch.fx
from torch.distributed.tensor import Replicate

from tests.mutants.edits import copy_program
from tests.mutants.mutant import captured
from tests.programs import gpt2, llama, mlp, torch_transformer
from verifycompile import Verdict
from verifycompile.options import Options
from verifycompile.program import Mesh, MeshAxis, Program
from verifycompile.two_programs import verify_programs
from verifycompile.witness import find_witness

CASES = [mlp.case(2), torch_transformer.case(2), llama.case(2), gpt2.case(2)]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_verified(spec: Program, implementation: Program) -> None:
    report = verify_programs(spec, implementation, Options())
    assert report.verdict is Verdict.VERIFIED, str(report)


def on_every_rank(program: Program) -> Program:
    """The single-device program run by two ranks with equal inputs."""
    layout = (Replicate(),)
    return dataclasses.replace(
        program,
        mesh=Mesh((MeshAxis("copies", 2),), (0, 1)),
        inputs=tuple(
            dataclasses.replace(entry, placements=layout, global_shape=tuple(entry.node.meta["val"].shape))
            for entry in program.inputs
        ),
        outputs=tuple(dataclasses.replace(output, placements=layout) for output in program.outputs),
    )


@each_case
def test_every_program_refines_itself(case):
    spec, _ = captured(case, case)
    assert_verified(spec, on_every_rank(spec))
    assert find_witness(spec, on_every_rank(spec)) is None


@each_case
def test_renaming_changes_nothing(case):
    spec, implementation = captured(case, case)
    renamed, _ = copy_program(implementation)
    groups = {}
    for position, node in enumerate(renamed.graph.graph.nodes):
        if node.op != "output":
            new = f"value_{position}"
            if node.name in renamed.groups:
                groups[new] = renamed.groups[node.name]
            node.name = new
    assert_verified(spec, dataclasses.replace(renamed, groups={**renamed.groups, **groups}))


@pytest.mark.sampled(every=4)
@each_case
@pytest.mark.parametrize("seed", [0, 1])
def test_order_of_independent_nodes_changes_nothing(case, seed):
    spec, implementation = captured(case, case)
    assert_verified(spec, shuffled(implementation, seed))
    assert_verified(shuffled(spec, seed), implementation)


def shuffled(program: Program, seed: int) -> Program:
    """The program with its calls in another topological order."""
    copy, _ = copy_program(program)
    graph = copy.graph.graph
    choose = random.Random(seed)
    waiting = {node: len(node.all_input_nodes) for node in graph.nodes if node.op not in ("placeholder", "output")}
    for node in graph.find_nodes(op="placeholder"):
        for user in node.users:
            if user in waiting:
                waiting[user] -= 1
    ready = [(choose.random(), node.name, node) for node, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    output = graph.output_node()
    while ready:
        _, _, node = heapq.heappop(ready)
        output.prepend(node)
        for user in node.users:
            if user in waiting:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, (choose.random(), user.name, user))
    graph.lint()
    return copy


@each_case
def test_views_without_effect_change_nothing(case):
    spec, implementation = captured(case, case)
    assert_verified(spec, with_views(implementation))
    assert_verified(with_views(spec), implementation)


def with_views(program: Program) -> Program:
    """The program with a view of its own shape, or a double transpose, after every third value."""
    copy, _ = copy_program(program)
    graph = copy.graph.graph
    for position, node in enumerate(list(graph.nodes)):
        value = node.meta.get("val")
        if position % 3 or node.op != "call_function" or not isinstance(value, torch.Tensor) or value.dim() < 2:
            continue
        users = [user for user in node.users if user.op != "output"]
        with graph.inserting_after(node):
            if position % 2:
                view = _call(graph, node, torch.ops.aten.view.default, node, list(value.shape))
            else:
                turned = _call(graph, node, torch.ops.aten.transpose.int, node, 0, 1)
                with graph.inserting_after(turned):
                    view = _call(graph, node, torch.ops.aten.transpose.int, turned, 0, 1)
        for user in users:
            user.replace_input_with(node, view)
    graph.lint()
    return copy


def _call(graph: torch.fx.Graph, origin: torch.fx.Node, target: torch._ops.OpOverload, *args: object) -> torch.fx.Node:
    node = graph.call_function(target, args)
    values = torch.fx.map_arg(args, lambda argument: argument.meta["val"])
    node.meta = {**origin.meta, "val": target(*values)}
    return node
