"""Layers that are proved once: what is proved so is what is proved without, and one wrong layer among many is found."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tests.mutants.edits import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    changed,
    drop,
    nodes_of,
    other_reduction,
    reduce_twice,
    rotate_pieces,
    scale,
    swap_inputs,
)
from tests.programs import llama
from tests.programs.captured import capture
from tests.programs.case import Case, tensor_parallel, tensor_parallel_mesh
from tests.programs.mlp import ResidualMLP, inputs
from tests.soundness.random_edits import edited
from tests.support import fake_mesh_world
from verifycompile.ir.term import TermPool
from verifycompile.program import Program
from verifycompile.refinement import check
from verifycompile.refinement.check import check_refinement
from verifycompile.refinement.memo import Repetition
from verifycompile.refinement.result import RefinementResult
from verifycompile.witness import Agreement, EvaluationError, compare_outputs

aten = torch.ops.aten
LAYERS = 4
LLAMA_LAYERS = 3


def perceptrons(tied: bool = False) -> Case:
    """Residual perceptrons one after the other; ``tied``: the same layer again and again."""

    def build() -> nn.Module:
        layer = ResidualMLP()
        return nn.Sequential(*(layer if tied else ResidualMLP() for _ in range(LAYERS)))

    styles = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    plan = {f"{'0' if tied else '*'}.{name}": style for name, style in styles.items()}
    return Case(f"perceptrons-{tied}", tensor_parallel_mesh(2), build, tensor_parallel(plan), inputs)


def of_different_widths() -> Case:
    def build() -> nn.Module:
        return nn.Sequential(*(ResidualMLP(hidden=8 * (k + 1)) for k in range(LAYERS)))

    plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    return Case("of-different-widths", tensor_parallel_mesh(2), build, tensor_parallel(plan), inputs)


CASES: dict[str, Callable[[], Case]] = {
    "perceptrons": perceptrons,
    "tied": lambda: perceptrons(tied=True),
    "llama": lambda: llama.case(2, layers=LLAMA_LAYERS),
}


@functools.cache
def captured(name: str) -> tuple[Program, Program]:
    case = of_different_widths() if name == "of-different-widths" else CASES[name]()
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        return capture(case, mesh)


def without_parts(spec: Program, implementation: Program) -> RefinementResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "_check_by_parts", lambda *_: TermPool())
        return check_refinement(spec, implementation)


def described(result: RefinementResult) -> tuple[object, ...] | None:
    found = result.mismatch
    if found is None:
        return None
    nodes = [None if node is None else node.name for node in (found.spec_node, found.impl_node, found.origin_node)]
    return found.code, found.message, found.output, nodes, found.followers


@pytest.mark.parametrize("name", CASES)
def test_the_proof_is_the_one_without_repetitions(name):
    spec, implementation = captured(name)
    result, whole = check_refinement(spec, implementation), without_parts(spec, implementation)
    assert result.mismatch is None
    assert whole.mismatch is None
    assert result.relations == whole.relations
    assert result.assumptions == whole.assumptions
    assert result.counts.memo >= result.counts.normal_form / 3
    assert whole.counts.memo == 0
    proved = [
        sum(getattr(counts, kind) for kind in ("memo", "normal_form", "ring", "egraph", "solver", "unrelated"))
        for counts in (result.counts, whole.counts)
    ]
    assert proved[0] == proved[1]


def test_what_was_not_lowered_is_in_the_proof_as_a_repetition():
    spec, implementation = captured("llama")
    steps = check_refinement(spec, implementation).steps
    repeated = {name for step in steps if isinstance(step, Repetition) for name in step.nodes}
    written = {getattr(step, "spec_node", None) for step in steps}
    needed = {name for step in without_parts(spec, implementation).steps for name in [getattr(step, "spec_node", "")]}
    assert needed <= repeated | written
    assert all(len(step.nodes) == len(step.of) for step in steps if isinstance(step, Repetition))


# ----------------------------------------------------------------------------------------------- one wrong layer


def other_number(target: object, position: int, argument: int, value: object):
    def change(program: Program) -> None:
        nodes_of(program, target)[position].update_arg(argument, value)

    return changed(change)


def wrong_weight(user: str, used: str):
    """One layer uses the weight of another, which uses its own as well."""

    def change(program: Program) -> None:
        nodes = {entry.name: entry.node for entry in program.inputs if isinstance(entry.node.meta["val"], torch.Tensor)}
        nodes[user].replace_all_uses_with(nodes[used])

    return changed(change)


PLACES = (0, 1, LAYERS - 1)
LLAMA_PLACES = (0, 1, LLAMA_LAYERS - 1)

WRONG = {
    **{
        f"perceptrons:drop-{b}-{k}": ("perceptrons", drop(ALL_REDUCE, k, b))
        for k in (0, 1, LAYERS - 2)
        for b in (False, True)
    },
    **{f"perceptrons:twice-{k}": ("perceptrons", reduce_twice(k, False)) for k in PLACES},
    **{f"perceptrons:scale-{k}": ("perceptrons", scale(ALL_REDUCE, k, k == 1, 0.5)) for k in PLACES},
    **{f"perceptrons:avg-{k}": ("perceptrons", other_reduction(ALL_REDUCE, k, k == 1, "avg")) for k in PLACES},
    **{
        f"perceptrons:eps-{k}": ("perceptrons", other_number(aten.native_layer_norm.default, k, 4, 1e-3))
        for k in PLACES
    },
    **{
        f"perceptrons:weight-{k}": ("perceptrons", wrong_weight(f"{k}.up.weight", f"{(k + 1) % LAYERS}.up.weight"))
        for k in PLACES
    },
    "perceptrons:swap": ("perceptrons", swap_inputs("1.down.weight", "2.down.weight")),
    "perceptrons:swap-bias": ("perceptrons", swap_inputs("0.up.bias", "3.up.bias")),
    **{f"tied:drop-{k}": ("tied", drop(ALL_REDUCE, k, k == 1)) for k in PLACES},
    **{f"tied:avg-{k}": ("tied", other_reduction(ALL_REDUCE, k, k == 1, "avg")) for k in PLACES},
    **{f"llama:drop-{k}": ("llama", drop(REDUCE_SCATTER, 2 * k + 1, False)) for k in LLAMA_PLACES},
    **{f"llama:drop-gather-{k}": ("llama", drop(ALL_GATHER, 2 * k, True)) for k in LLAMA_PLACES},
    **{f"llama:rotate-{k}": ("llama", rotate_pieces(ALL_GATHER, 2 * k, False)) for k in LLAMA_PLACES},
    **{f"llama:eps-{k}": ("llama", other_number(aten.add.Scalar, 2 * k, 1, 1e-3)) for k in LLAMA_PLACES},
    "llama:swap": ("llama", swap_inputs("layers.1.attention.wq.weight", "layers.2.attention.wq.weight")),
    "llama:weight": ("llama", wrong_weight("layers.2.feed_forward.w1.weight", "layers.1.feed_forward.w1.weight")),
    "llama:norm": ("llama", wrong_weight("layers.2.ffn_norm.weight", "layers.2.attention_norm.weight")),
}


SLOW = ("llama:drop", "llama:rotate", "tied:avg", "tied:drop-1")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sweep) if name.startswith(SLOW) else name for name in WRONG]
)
def test_one_wrong_layer_is_found_as_without_repetitions(name):
    program, edit = WRONG[name]
    spec, implementation = captured(program)
    wrong = edit(implementation)
    result = check_refinement(spec, wrong)
    assert result.mismatch is not None
    assert described(result) == described(without_parts(spec, wrong))


@pytest.mark.parametrize("name", ["perceptrons", "llama"])
def test_a_wrong_layer_of_the_spec_is_found(name):
    spec, implementation = captured(name)
    target, argument = (aten.native_layer_norm.default, 4) if name == "perceptrons" else (aten.add.Scalar, 1)
    other = other_number(target, 2, argument, 1e-3)
    result = check_refinement(other(spec), implementation)
    assert result.mismatch is not None
    assert described(result) == described(without_parts(other(spec), implementation))


def test_a_layer_that_differs_in_both_programs_is_proved_on_its_own():
    spec, implementation = captured("perceptrons")
    other = other_number(aten.native_layer_norm.default, 2, 4, 1e-3)
    pair = other(spec), other(implementation)
    result = check_refinement(*pair)
    assert result.mismatch is None
    assert described(without_parts(*pair)) is None


OF_WIDTHS = {
    "dropped": drop(ALL_REDUCE, 1, False),
    "dropped-in-backward": drop(ALL_REDUCE, 1, True),
    "another-eps": other_number(aten.native_layer_norm.default, 2, 4, 1e-3),
}


def test_layers_of_different_widths_are_each_proved_from_values_with_names():
    spec, implementation = captured("of-different-widths")
    result, whole = check_refinement(spec, implementation), without_parts(spec, implementation)
    assert result.mismatch is None
    assert result.relations == whole.relations
    assert result.parts is not None
    assert len(result.parts.forward) >= LAYERS - 1
    assert result.counts.memo == 0


@pytest.mark.parametrize("name", OF_WIDTHS)
def test_one_wrong_layer_among_different_widths_is_found(name):
    spec, implementation = captured("of-different-widths")
    wrong = OF_WIDTHS[name](implementation)
    result = check_refinement(spec, wrong)
    assert result.mismatch is not None
    assert described(result) == described(without_parts(spec, wrong))


BLOCK = 3


@pytest.mark.parametrize("name", ["perceptrons", pytest.param("llama", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(1, 40))])
def test_random_mistakes_are_found_as_without_repetitions(name, block):
    spec, implementation = captured(name)
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        side = random.Random(seed).random() < 0.7
        wrong = edited(implementation if side else spec, seed)
        if wrong is None:
            continue
        pair = (spec, wrong) if side else (wrong, implementation)
        result = check_refinement(*pair)
        assert described(result) == described(without_parts(*pair)), seed
        if result.mismatch is None:
            try:
                agreements = {r.agreement for r in compare_outputs(*pair).values()}
            except EvaluationError:
                continue
            assert Agreement.DIFFERENT not in agreements, seed
