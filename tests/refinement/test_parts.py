"""What parts of programs are compared by: forms, repetitions, names for what is handed on."""

from __future__ import annotations

import pytest
import torch
import torch.fx

from verifycompile.ir import algebra
from verifycompile.ir.algebra import INFINITY
from verifycompile.ir.indicator import LESS
from verifycompile.ir.term import Operation, TermPool, View, identity_view
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Program
from verifycompile.refinement import egraph
from verifycompile.refinement.definitions import Definitions, renamed
from verifycompile.refinement.reading import Forms, Reading
from verifycompile.refinement.repetition import Run, best_cuts, find_runs
from verifycompile.refinement.stages import StageCost
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.side_conditions import formula, solver

aten = torch.ops.aten
OPAQUE = Operation("opaque")


def forms_of(*calls: tuple[object, ...], dtype: torch.dtype = torch.float32) -> list[int]:
    """Forms of calls ``(target, *arguments)`` on one input, which ``"x"`` stands for."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 4, dtype=dtype)
    nodes = []
    for target, *arguments in calls:
        node = graph.call_function(target, tuple(x if a == "x" else a for a in arguments))  # pyright: ignore[reportArgumentType]
        node.meta["val"] = torch.empty(4, 4, dtype=dtype)
        nodes.append(node)
    graph.output(nodes)
    lowering = Lowering(Program(torch.fx.GraphModule(torch.nn.Module(), graph), (), ()), TermPool(), "spec")
    return Reading(lowering, nodes, Forms()).forms


def test_equal_calls_have_one_form():
    first, second = forms_of((aten.add.Tensor, "x", "x"), (aten.add.Tensor, "x", "x"))
    assert first == second


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((aten.add.Tensor, "x", "x"), (aten.sub.Tensor, "x", "x")),
        ((aten.mul.Scalar, "x", 1), (aten.mul.Scalar, "x", 1.0)),
        ((aten.mul.Scalar, "x", 1), (aten.mul.Scalar, "x", True)),
        ((aten.mul.Scalar, "x", 0.0), (aten.mul.Scalar, "x", -0.0)),
        ((aten.sum.dim_IntList, "x", [0]), (aten.sum.dim_IntList, "x", [1])),
        ((aten.sum.dim_IntList, "x", [0]), (aten.sum.dim_IntList, "x", None)),
        ((aten.cat.default, ["x"], 0), (aten.cat.default, ["x", "x"], 0)),
    ],
)
def test_calls_that_differ_anywhere_have_different_forms(left, right):
    first, second = forms_of(left, right)
    assert first != second


def order(*calls: tuple[object, ...], returned: tuple[int, ...]) -> list[int]:
    """In which order calls are read; a whole number among the arguments is the call of that place, ``"x"`` the input."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 4)
    nodes: list[torch.fx.Node] = []
    for target, *arguments in calls:
        operands = tuple(x if a == "x" else nodes[a] for a in arguments)  # pyright: ignore[reportArgumentType, reportCallIssue]
        nodes.append(graph.call_function(target, operands))  # pyright: ignore[reportArgumentType]
        nodes[-1].meta["val"] = torch.empty(4, 4)
    graph.output([nodes[k] for k in returned])
    lowering = Lowering(Program(torch.fx.GraphModule(torch.nn.Module(), graph), (), ()), TermPool(), "spec")
    reading = Reading(lowering, [nodes[k] for k in returned], Forms())
    assert [reading.position[node] for node in reading.nodes] == list(range(len(nodes)))
    for node, operands in zip(reading.nodes, reading.operands, strict=True):
        assert all(reading.position.get(o, -1) < reading.position[node] <= reading.last_use[o] for o in operands)
    return [nodes.index(node) for node in reading.nodes]


def test_what_only_leads_to_an_output_stands_behind_what_it_takes():
    calls = [(aten.sin.default, "x"), (aten.cos.default, 0), (aten.exp.default, 1)]
    late = [(aten.neg.default, 0), (aten.abs.default, 3), (aten.add.Tensor, 3, 4)]
    assert order(*calls, *late, returned=(2, 5)) == [0, 3, 4, 5, 1, 2]


def test_what_takes_two_values_stays_where_it_is():
    calls = [(aten.sin.default, "x"), (aten.cos.default, 0), (aten.exp.default, 1), (aten.add.Tensor, 0, 1)]
    assert order(*calls, returned=(2, 3)) == [0, 1, 2, 3]


def test_what_draws_random_numbers_stays_where_it_is():
    calls = [(aten.sin.default, "x"), (aten.cos.default, 0), (aten.exp.default, 1), (aten.bernoulli.default, 0)]
    assert order(*calls, returned=(2, 3)) == [0, 1, 2, 3]


def test_runs_are_found_between_other_nodes():
    layer = list(range(10, 20))
    sequence = [1, 2, *layer, *layer, *layer, 3, 4, *reversed(layer), *reversed(layer), 5]
    assert find_runs(sequence) == [Run(2, 32, 10), Run(34, 54, 10)]


def test_a_run_ends_where_one_layer_differs():
    layer = list(range(10, 20))
    other = [*layer[:5], 99, *layer[6:]]
    found = find_runs([*layer, *layer, *layer, *other, *layer, *layer])
    assert Run(0, 35, 10) in found
    assert all(99 not in range(run.start, run.stop) for run in found)


def test_cuts_are_where_least_is_handed_on():
    # Each part: a value from the part before, two steps beside each other, their sum.
    takes = [operands for k in range(4) for operands in ([4 * k - 1], [4 * k - 1], [4 * k], [4 * k + 1, 4 * k + 2])]
    assert best_cuts(Run(0, 16, 4), takes) == [0]


# ----------------------------------------------------------------------------------------------------------- names


def unary(pool: TermPool, view: View) -> View:
    return algebra.elementwise(pool, OPAQUE, (), (view,))


def test_a_name_has_the_dimensions_of_the_value():
    pool = TermPool()
    x = pool.leaf("x", (4, 6))
    value = unary(pool, x)
    turned = View(value.coefficient, value.term, (6, 4), (((1, 1, 4),), ((0, 1, 6),)))
    named = Definitions(pool).name(turned)
    assert named.term.shape == (6, 4)
    assert renamed(turned, named) == identity_view(named.term)
    assert renamed(value, named).axes == (((1, 1, 6),), ((0, 1, 4),))


def test_a_name_takes_the_coefficient():
    pool = TermPool()
    value = unary(pool, pool.leaf("x", (4,)))
    named = Definitions(pool).name(value.scaled(algebra.as_scalar(3)))
    assert renamed(value.scaled(algebra.as_scalar(3)), named).coefficient == 1
    assert renamed(value.scaled(algebra.as_scalar(6)), named).coefficient == 2


def test_what_a_declaration_may_refuse_keeps_its_structure():
    pool = TermPool()
    definitions = Definitions(pool)
    infinity = View(algebra.ONE, pool.intern(INFINITY, (), (), (), 0, 0, (), ()), (4,), ())
    index = algebra.combine(pool, [pool.leaf("i", (4,)), pool.constant(algebra.as_scalar(-8), (4,))])
    masked = unary(pool, algebra.combine(pool, [pool.leaf("x", (4,)), infinity]))
    assert definitions.keeps(masked.term, exact=False)
    assert definitions.keeps(index.term, exact=True)
    assert not definitions.keeps(index.term, exact=False)
    assert definitions.keeps(algebra.iota(pool, 4).term, exact=False)
    comparison = algebra.elementwise(pool, LESS, (), (index, pool.leaf("j", (4,))))
    assert not definitions.keeps(comparison.term, exact=True)
    assert definitions.name(comparison).term.operation.indicator


# ---------------------------------------------------------------------------------------------------------- stages


def test_the_cost_of_a_stage():
    assert StageCost.of([]) == StageCost()
    cost = StageCost.of([0.001 * k for k in range(1, 101)])
    assert (cost.count, round(cost.median, 6), round(cost.percentile_95, 6)) == (100, 50.0, 95.0)


def functions(pool):
    return (Builder(pool).pointwise(FUNCTIONS["tanh"], pool.leaf(name, (4,))) for name in "xy")


def test_a_panic_of_the_e_graph_proves_nothing(monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(*_, **_options):
        raise PanicException

    pool = TermPool()
    monkeypatch.setattr(egraph, "_prove_equal", panic)
    assert egraph.prove_equal(pool, *functions(pool)) is None


def test_an_interrupt_in_the_e_graph_is_one(monkeypatch):
    def interrupt(*_, **_options):
        raise KeyboardInterrupt

    pool = TermPool()
    monkeypatch.setattr(egraph, "_prove_equal", interrupt)
    with pytest.raises(KeyboardInterrupt):
        egraph.prove_equal(pool, *functions(pool))


def test_z3_is_asked_once(monkeypatch):
    i = formula.index(0) + 0
    solver.take_durations()
    assert solver.holds(i < 5, {0: i}, (5,))
    monkeypatch.setattr(solver, "follows", lambda *_: pytest.fail("asked again"))
    assert solver.holds(i < 5, {0: i}, (5,))
    assert len(solver.take_durations()) == 2


def test_what_z3_leaves_open_is_not_proved(monkeypatch):
    import z3

    monkeypatch.setattr(z3.Solver, "check", lambda self: z3.unknown)
    i = formula.index(0) + 7
    solver.take_unanswered()
    assert not solver.holds(i < 14, {0: i}, (7,))
    assert len(solver.take_unanswered()) == 1
    monkeypatch.undo()
    assert solver.holds(i < 14, {0: i}, (7,))
