"""A proof made again from claims: what is refused of them, and the values by which a certificate knows programs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from tests.certificate.parts_checks import stored
from tests.lemmas.conditions import Check
from tests.refinement.test_cases import Functions
from verifycompile.certificate import equalities
from verifycompile.certificate.digests import Digests
from verifycompile.certificate.equalities import Equality, take_all
from verifycompile.certificate.lemma_steps import LemmaSteps
from verifycompile.certificate.parts import NO_CUTS, Cut, Cuts, Parts, Side
from verifycompile.certificate.replay import Claims, Replay, replay
from verifycompile.certificate.storage import StorageError
from verifycompile.ir.relabel import permute, select
from verifycompile.ir.term import TermPool, View
from verifycompile.program import Mesh, MeshAxis, OutputKind, Program
from verifycompile.refinement.attempt import Attempt, ClaimError, plain_pool
from verifycompile.refinement.closure import Instance
from verifycompile.rewrites.registry import Group
from verifycompile.rewrites.values import Piece, Pieces

X = torch.zeros(4, 4)
MESH = Mesh((MeshAxis("x", 2),), (0, 1))


def raised(run: Callable[[], object]) -> str:
    """What an error says; ``""`` where there is none."""
    try:
        run()
    except (ClaimError, StorageError) as error:
        return str(error)
    return ""


def checks() -> Iterator[tuple[str, Check]]:
    """Of the replay, by name."""
    for check in (_of_facts, _of_outputs, _of_cuts, _of_counts, _of_order):
        yield check.__name__.strip("_"), check


def _replayed(spec: Program, implementation: Program, *cuts: Cut, **claims: Any) -> Replay:
    found = Claims({}, claims.get("equalities", ()), Cuts(cuts) if cuts else NO_CUTS)
    return replay(spec, implementation, found, LemmaSteps(()))


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x.exp() * 2


def _of_outputs() -> None:
    """They are related, in the whole programs and in parts, and what does not fit is told."""
    right, whole = stored(_twice, X), stored(lambda x: x.exp() * 2.0 + 0 * x, X)
    for found in (_replayed(right, stored(_twice, X)), _replayed(right, whole)):
        assert found.relations == {"output.0": "output.0"}
    assert raised(lambda: _replayed(right, stored(lambda x: x.exp() * 3, X))) == "no relation of `output.0`"
    other = stored(lambda x: (x.exp() * 2).to(torch.int64), X)
    said = "`output.0` is of torch.int64 in the implementation, of torch.float32 in the spec"
    assert raised(lambda: _replayed(right, other)) == said
    values = _replayed(right, stored(_twice, X)).values
    assert values["spec"] == values["implementation"]
    assert len({_replayed(right, whole).values[side] for side in ("spec", "implementation")}) == 2


def _of_cuts() -> None:
    """An output within a part is related there; values of parts are values of the programs."""
    right, two = stored(lambda x: (x.exp(), x.exp() * 2), X), stored(lambda x: (x.exp(), x.exp() * 3), X)
    calls = len([n for n in right.graph.graph.nodes if n.op == "call_function"])
    for cut in (Cut(1, 1, True), Cut(calls, calls, True), Cut(calls, calls, False)):
        found = _replayed(right, right, cut)
        assert found.relations == {"output.0": "output.0", "output.1": "output.1"}
        assert raised(lambda cut=cut: _replayed(right, two, cut)) == "no relation of `output.1`"
    one = stored(lambda x: x.exp(), X)
    assert (
        raised(lambda: _replayed(one, right, Cut(1, 1, True)))
        == "the implementation returns `output.1`, the spec does not"
    )
    wanted = [{"spec_node": "mul", "impl_node": "mul", "placements": None, "lemmas": [], "instances": []}]
    with mock.patch.object(equalities, "take_all"):
        said = "values are replaced by equal ones in programs that are cut into parts"
        assert raised(lambda: _replayed(right, right, Cut(1, 1, True), equalities=wanted)) == said
        assert raised(lambda: _replayed(right, right, equalities=wanted)) == ""


def _of_facts() -> None:
    """What is found out about an index is known when the proof is made anew, as often as there is more."""
    right, wrong = stored(_twice, X), stored(lambda x: x.exp() * 3, X)
    with mock.patch.object(TermPool, "learn", side_effect=(True, True, False)) as learn:
        assert raised(lambda: _replayed(right, wrong)) == "no relation of `output.0`"
    assert learn.call_count == 3


def _of_counts() -> None:
    """Where either program reads a number from a tensor there are no parts."""
    spec, implementation = stored(_twice, X), stored(_twice, X)
    said = "numbers that are read from tensors hold in the whole program"
    for reading in ((), (spec,), (implementation,), (spec, implementation)):
        with mock.patch("verifycompile.lowering.sizes.reads_counts", lambda program, of=reading: program in of):
            assert raised(lambda: _replayed(spec, implementation, Cut(1, 1, True))) == (said if reading else "")
            assert raised(lambda: _replayed(spec, implementation)) == ""


def _events(spec: Program, implementation: Program, cuts: Cuts) -> list[Any]:
    """What is entered, related and left, and which values are asked for afterwards."""
    found: list[Any] = []

    def noted(kind: type, name: str, told: Callable[..., Any]) -> Any:
        before = getattr(kind, name)

        def run(*given: Any) -> Any:
            found.append(told(*given[1:]))
            return before(*given)

        return mock.patch.object(kind, name, run)

    names: Callable[[Any], list[list[str]]] = lambda sides: [sorted(n.name for n in s) for s in sides]  # noqa: E731
    with (
        noted(Parts, "enter", lambda cut: cut.spec),
        noted(Parts, "leave", lambda _, outputs: names(outputs)),
        noted(Side, "separate", lambda node: f"asked for {node.name}"),
        noted(Attempt, "_relate_output", lambda output, _: output.name),
        contextlib.suppress(ClaimError),
    ):
        replay(spec, implementation, Claims({}, (), cuts), LemmaSteps(()))
    return found


def _of_order() -> None:
    """An output is related once, in the part that holds it in both programs, else when all is lowered."""
    right = stored(lambda x: (x.exp(), x.exp() * 2, x.exp() * 2 + 1), X)
    names = ["exp", "exp_1", "mul", "exp_2", "mul_1", "add"]
    assert [n.name for n in right.graph.graph.nodes if n.op == "call_function"] == names
    first = [1, "output.0", [[], []]]
    last = ["asked for add", "asked for add", "output.2"]
    middle = ["asked for mul", "asked for mul"]
    one, both = (Cut(1, 1, True),), (Cut(1, 1, True), Cut(3, 3, True))
    assert _events(right, right, Cuts(one)) == [*first, *middle, *last[:2], "output.1", "output.2"]
    assert _events(right, right, Cuts(both)) == [*first, 3, "output.1", [[], []], *last]
    apart = Cuts((*one, Cut(3, 1, True), Cut(3, 3, True)))
    outside = [*first, 3, [["mul"], []], 3, [[], ["mul"]], *middle, *last[:2], "output.1", "output.2"]
    assert _events(right, right, apart) == outside
    forward = [output for output in right.outputs if output.index != 1]
    gradient = [dataclasses.replace(output, kind=OutputKind.GRADIENT) for output in right.outputs if output.index == 1]
    trained = dataclasses.replace(right, outputs=(*forward, *gradient))
    late = [*first, 3, [["mul"], ["mul"]], *last, *middle, "output.1"]
    assert _events(trained, trained, Cuts(both)) == late
    assert _events(trained, trained, Cuts(both[:1], both[1:])) == [*first, *last, 3, "output.1", [[], []]]


# ------------------------------------------------------------------------------------------------ texts of values


def digest_checks() -> Iterator[tuple[str, Check]]:
    """Of the texts by which values are known, by name."""
    yield "values", _of_values
    yield "terms", _of_terms


def _of_values() -> None:
    """Values that are told apart have other texts, the same ones every time."""
    pool, digests = TermPool(), Digests()
    x = pool.leaf("x", (4, 3))
    pieces = Pieces(x, 0, (2, 2))
    values: list[Any] = [
        x, x.scaled(Fraction(2)), select(x, 0, 1), pieces, Piece(pieces, 0), Group((0,)), Group((0, 1)), [x], [x, x],
        [[x], x], None, 1, 1.0, True, (),
    ]  # fmt: skip
    texts = [digests.value(value) for value in values]
    assert len(set(texts)) == len(texts)
    assert texts == [Digests().value(value) for value in values]
    assert digests.value((x, x)) == digests.value([x, x])
    with mock.patch.object(
        View, "__repr__", side_effect=ZeroDivisionError
    ):  # which would write all out that the value is made of
        assert texts == [digests.value(value) for value in values]


def _of_terms() -> None:
    """A term is found by its text, and what was found is not looked for again."""
    pool, digests = TermPool(), Digests()
    x = pool.leaf("x", (4, 3)).term
    text = digests.of(x)
    assert digests.term(pool, text) is x
    assert digests.term(pool, "0" * 16) is None
    y = pool.leaf("y", (4, 3)).term
    assert digests.term(pool, digests.of(y)) is y
    with mock.patch.object(TermPool, "terms", property(lambda _: 1 / 0)):
        assert digests.term(pool, text) is x


# ------------------------------------------------------------------------------------------------ equalities


def equality_checks() -> Iterator[tuple[str, Check]]:
    """Of the equalities that a search has found, by name."""
    for check in (
        _of_expressions,
        _of_what_is_shown,
        _of_laws,
        _of_what_is_replaced,
        _of_placements,
        _of_orders,
        _of_nodes,
    ):
        yield check.__name__.strip("_"), check


def _equality(*instances: Instance, placements: Any = None) -> Equality:
    return Equality("left", "right", placements, (), instances)


def _taken(pool: TermPool, left: View, right: View, *instances: Instance, real: bool = True) -> str:
    """Why it is refused; ``""`` where the right value is the left one from then on."""
    before = dict(pool.aliases)
    said = raised(lambda: _equality(*instances).take(pool, left, right, None, real=real))
    assert (pool.aliases == before) == bool(said)
    assert said in ("", "`right` is not shown to be `left`")
    return said


def _of_expressions() -> None:
    data = {"law": "VL1", "values": {"a": ["add", 0, {"number": "1/2"}], "b": "x"}}
    found = equalities._instance_from_data(data)
    assert found == Instance("VL1", {"a": ("add", 0, Fraction(1, 2)), "b": "x"})
    for wrong in (True, False, 1.5, None, ["add", [True]]):
        assert raised(lambda wrong=wrong: equalities._from_data(wrong)).startswith("no expression: ")
    written = {
        "spec_node": "a",
        "impl_node": "b",
        "placements": [["replicate"]],
        "lemmas": ["VL1"],
        "instances": [data],
        "order": None,
    }
    known = Equality("a", "b", (Replicate(),), ("VL1",), (found,))
    assert Equality.from_data(written) == known
    assert Equality.from_data({**written, "order": [1, 0]}) == dataclasses.replace(known, order=(1, 0))


def _of_what_is_shown() -> None:
    """By the ring, or in every case where no value is complex; and no other value."""
    f = Functions()
    b = f.b
    expanded, product = b.add(b.mul(f.x, f.x), b.mul(f.x, f.y)), b.mul(f.x, b.add(f.x, f.y))
    for real in (True, False):
        assert _taken(b.pool, expanded, product.scaled(Fraction(2)), real=real)
    assert _taken(b.pool, expanded, product, real=False) == ""
    for real in (False, True):
        g = Functions()
        masked = g.b.mul(g.relu, g.at_most(0, g.x))
        assert _taken(g.b.pool, masked, g.relu, real=real) == ("" if real else "`right` is not shown to be `left`")
    h = Functions()
    assert _taken(h.b.pool, h.b.mul(h.relu, h.at_most(0, h.y)), h.relu)


def _of_laws() -> None:
    """With instances it is by them alone, and only where no value is complex."""
    for real in (True, False):
        f = Functions()
        root = f.b.power(f.b.mul(f.x, f.x), Fraction(1, 2))
        law = Instance("VL121", {"a": 0})
        assert bool(_taken(f.b.pool, f.size, root, law, real=real)) is not real
    f = Functions()
    root = f.b.power(f.b.mul(f.x, f.x), Fraction(1, 2))
    assert _taken(f.b.pool, f.size, root)
    assert _taken(f.b.pool, f.size, root, Instance("VL110", {"a": 0}))
    expanded, product = f.b.add(f.b.mul(f.x, f.x), f.b.mul(f.x, f.y)), f.b.mul(f.x, f.b.add(f.x, f.y))
    assert _taken(f.b.pool, expanded, product, law, real=False)
    assert _taken(f.b.pool, expanded, product, law) == ""


def _of_what_is_replaced() -> None:
    """A term that a search has replaced before is not replaced again, nor is one of which a part is at hand."""
    f = Functions()
    b = f.b
    expanded, product = b.add(b.mul(f.x, f.x), b.mul(f.x, f.y)), b.mul(f.x, b.add(f.x, f.y))
    assert _taken(b.pool, f.x, f.x)  # an input is replaced by nothing
    assert _taken(b.pool, select(expanded, 0, 1), select(product, 0, 1))
    assert _taken(b.pool, expanded, product) == ""
    assert _taken(b.pool, expanded, product)


def _of_placements() -> None:
    """They say how the right value lies; what they do not fit is told."""
    f = Functions()
    pool = f.b.pool
    summands = pool.leaf("s", (2, 4, 6))
    partial = f.b.exp(summands)
    whole = f.b.sum(partial, [0])
    taken: Callable[..., str] = lambda *p: raised(  # noqa: E731 - a name for one call
        lambda: _equality(placements=p).take(pool, whole, partial, MESH, real=True)
    )
    assert taken(Replicate()) == "`right` is not shown to be `left`"
    assert taken(Shard(5)).startswith("the equality of `right`: ")
    assert taken(Shard(0)) == "`right` is not shown to be `left`"
    assert taken(Partial("avg")) == "`right` is not shown to be `left`"


def _of_orders() -> None:
    """The left value's dimensions are taken in the order that is said, which is one of all of them."""
    f = Functions()
    b = f.b
    expanded, product = b.add(b.mul(f.x, f.x), b.mul(f.x, f.y)), b.mul(f.x, b.add(f.x, f.y))
    turned = permute(product, (1, 0))
    for order in ((0, 0), (1,), (0, 1, 2), (1, 2), ()):
        claimed = dataclasses.replace(_equality(), order=order)
        said = raised(lambda claimed=claimed: claimed.take(b.pool, expanded, turned, None, real=True))
        assert said == f"{order} is no order of the dimensions of `left`"
    assert _taken(b.pool, expanded, turned)
    as_it_is = dataclasses.replace(_equality(), order=(0, 1))
    assert (
        raised(lambda: as_it_is.take(b.pool, expanded, turned, None, real=True)) == "`right` is not shown to be `left`"
    )
    dataclasses.replace(_equality(), order=(1, 0)).take(b.pool, expanded, turned, None, real=True)
    assert product.term in b.pool.aliases


def _of_nodes() -> None:
    """Each is one of its program that has a value; what was found out about indices is known before."""
    spec, implementation = stored(lambda x: x.exp() * (x + 1), X), stored(lambda x: x * x.exp() + x.exp(), X)
    of_complex = stored(lambda x: x.exp() * (x + 1), X.to(torch.complex64))

    def taken(left: str, right: str, *programs: Program) -> TermPool:
        data = {"spec_node": left, "impl_node": right, "placements": None, "lemmas": [], "instances": [], "order": None}
        pool = plain_pool()
        take_all([data], *(programs or (spec, implementation)), pool, {})
        return pool

    assert len(taken("mul", "add").aliases) == 1
    assert raised(lambda: taken("exp", "add")) == "`add` is not shown to be `exp`"
    assert raised(lambda: taken("none", "add")) == "no node is called `none`"
    assert raised(lambda: taken("mul", "none")) == "no node is called `none`"
    x = plain_pool().leaf("x", (4, 4))
    for values in ((None, x), (x, None), (None, None)):
        with mock.patch.object(equalities.Attempt, "value_of", lambda *_, found=values: found):
            assert raised(lambda: taken("mul", "add")) == "`mul` or `add` has no value"
    told: list[bool] = []
    with mock.patch.object(Equality, "take", lambda *_, real: told.append(real)):
        for programs in ((spec, spec), (spec, of_complex), (of_complex, spec), (of_complex, of_complex)):
            with mock.patch.object(equalities.Attempt, "value_of", return_value=(x, x)):
                taken("mul", "mul", *programs)
    assert told == [True, False, False, False]
    with (
        mock.patch.object(TermPool, "learn", side_effect=(True, True, False)),
        mock.patch.object(equalities.Attempt, "run") as attempts,
    ):
        taken("mul", "add")
    assert attempts.call_count == 3
