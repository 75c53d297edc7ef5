"""What is computed once of parts that are alike, row by row: which calls are, what leaves a part, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest import mock

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tests.lemmas.conditions import Check
from verifycompile.certificate import parts
from verifycompile.certificate.digests import Digests
from verifycompile.certificate.parts import Cut, Cuts, PartError, Parts, Side
from verifycompile.certificate.storage import Block, StoredModule
from verifycompile.ir.algebra import IOTA, elementwise
from verifycompile.ir.exponential import EXPONENTIAL
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import IndexFact, Term, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.refinement.attempt import plain_pool
from verifycompile.refinement.check import new_pool
from verifycompile.refinement.definitions import OPAQUE, Definitions
from verifycompile.rewrites.registry import Group
from verifycompile.rewrites.values import Pieces

aten = torch.ops.aten
X, Y, N = torch.zeros(4, 4), torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)


def stored(run: Callable[..., Any], *tensors: torch.Tensor) -> Program:
    """A traced function as it is read from a certificate: what is recorded of calls that are alike is one object."""
    traced: GraphModule = make_fx(run, tracing_mode="fake")(*tensors)
    first: dict[str, Node] = {}
    alike: dict[Node, Node] = {}
    for node in traced.graph.find_nodes(op="placeholder"):
        node.meta["val"] = first.setdefault(str(node.meta["val"].dtype), node).meta["val"]
    for node in (n for n in traced.graph.nodes if n.op == "call_function"):
        args = torch.fx.map_arg(node.args, lambda _: "")
        alike[node] = first.setdefault(f"{node.target} {args} {len(node.all_input_nodes)} {_kind(node)}", node)
        node.meta["val"] = alike[node].meta["val"]
    inputs = tuple(
        ProgramInput(node, Role.INPUT, node.name, None, tuple(node.meta["val"].shape))
        for node in traced.graph.find_nodes(op="placeholder")
    )
    (output,) = traced.graph.find_nodes(op="output")
    outputs = tuple(
        ProgramOutput(node, OutputKind.VALUE, f"output.{k}", k) for k, node in enumerate(output.all_input_nodes)
    )
    blocks = [Block(pattern, node.all_input_nodes, {0: node}) for node, pattern in alike.items()]
    return Program(cast("GraphModule", StoredModule(traced.graph, {}, blocks)), inputs, outputs)


def _kind(node: Node) -> str:
    value = node.meta.get("val")
    return str(value.dtype) if isinstance(value, torch.Tensor) else str(type(value))


class Pair:
    """A function as both programs, over the same leaves."""

    def __init__(self, run: Callable[..., Any], *tensors: torch.Tensor, lemmas: bool = False) -> None:
        self.pool = new_pool() if lemmas else plain_pool()
        self.programs = stored(run, *tensors), stored(run, *tensors)
        lowerings = [Lowering(p, self.pool, side) for p, side in zip(self.programs, ("spec", "impl"), strict=True)]
        self.sides = Side(lowerings[0]), Side(lowerings[1])
        for side in self.sides:
            for given in side.lowering.program.inputs:
                value = given.node.meta["val"]
                leaf = self.pool.leaf(given.name, tuple(value.shape), whole=not value.dtype.is_floating_point)
                side.lowering.provide(given.node, leaf)
        self.definitions = Definitions(self.pool)
        self.parts = Parts(*self.sides, Digests(), self.definitions)

    def value(self, name: str, side: int = 0) -> Any:
        return self.sides[side].lowering.values[self.node(name, side)]

    def node(self, name: str, side: int = 0) -> Node:
        (found,) = (n for n in self.programs[side].graph.graph.nodes if n.name == name)
        return found

    def cross(self, *cuts: Cut, outputs: Sequence[str] = ()) -> list[Mapping[Term, Term]]:
        """Parts one after the other; what stands for what in each."""
        found: list[Mapping[Term, Term]] = []
        for cut in cuts:
            part = self.parts.enter(cut)
            found.append(part.stands_for)
            self.parts.leave(part, ({self.node(o) for o in outputs}, {self.node(o, 1) for o in outputs}))
        return found


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for check in (
        _of_cuts, _of_numbers, _of_facts, _of_positions_taken, _of_calls, _of_values_there, _of_random_calls, _of_other_records, _of_numbers_recorded,
        _of_splits, _of_blocks, _of_places_in_blocks, _of_calls_that_are_needed, _of_places, _of_parts_alike, _of_parts_as_they_are, _of_what_leaves,
        _of_outputs_that_leave, _of_whole_numbers, _of_constants, _of_no_tensors, _of_no_tensors_at_a_boundary, _of_faults_within, _of_indices,
    ):  # fmt: skip
        yield check.__name__.strip("_"), check


# ------------------------------------------------------------------------------------------------ written cuts


def _raises(run: Callable[[], object], said: str) -> None:
    found = ""
    try:
        run()
    except PartError as error:
        found = str(error)
    assert found == said, found


def _of_cuts() -> None:
    data: dict[str, Any] = {"forward": [[1, 2, True], [3, 4, False]], "backward": [[5, 6, True]]}
    assert parts.cuts_from_data(data) == Cuts((Cut(1, 2, True), Cut(3, 4, False)), (Cut(5, 6, True),))
    _raises(lambda: parts.cuts_from_data({"forward": []}), "its parts are of other phases")
    _raises(lambda: parts.cuts_from_data({**data, "third": []}), "its parts are of other phases")
    for cut in ([1.0, 2, True], [1, 2.0, True], [True, 2, True], [1, "2", True], [1.5, 2.5, True]):
        for phase in data:
            _raises(lambda phase=phase, cut=cut: parts.cuts_from_data({**data, phase: [cut]}), "a part ends nowhere")


def _of_numbers() -> None:
    told = parts._told_apart
    assert len({told(value) for value in (0, 0.0, -0.0, False, 1, 1.0, True, "1")}) == 8
    assert told(0.5) == told(0.5)
    assert told(Group((1,))) == told(Group((1,)))
    assert hash(told(0.25)) == hash((float, "0.25"))
    view = plain_pool().leaf("x", (4, 4))
    assert told(Pieces(view, 0, (2, 2))) != told(Pieces(view, 0, (2, 2)))  # each split has pieces of its own


def _of_facts() -> None:
    pool = plain_pool()
    x = pool.leaf("x", (4, 3)).term
    own = parts._term_of_part(pool, x, 0)
    assert (own.operation, own.index_sizes, own.free) == (x.operation, x.index_sizes, x.free)
    assert len({own, x, parts._term_of_part(pool, x, 1)}) == 3
    pool.facts = {x: (IndexFact(None, 4, "x"),)}
    assert parts._term_of_part(pool, x, 0) is own  # of which nothing is known


def _of_positions_taken() -> None:
    """What the spec takes for positions in one part is not what the same names stand for in another."""
    pair = Pair(chain, X, Y)
    part = pair.parts.enter(Cut(2, 2, True))
    pair.pool.taken.add((ONE, pair.value("sin").term, 4, "from the start"))
    pair.parts.leave(part, ((), ()))
    pair.parts.enter(Cut(4, 4, True))
    assert not pair.pool.taken


# ------------------------------------------------------------------------------------------------ calls


def lowered(pair: Pair) -> set[str]:
    """The calls of the first program that have the value of an earlier one, once all are lowered."""
    for block in pair.sides[0].blocks:
        pair.sides[0].lower(block)
    return {node.name for node in pair.sides[0].repeated}


def _of_calls() -> None:
    pair = Pair(lambda x, y: (torch.sin(x), torch.sin(x), torch.sin(y), torch.cos(x)), X, Y)
    assert [block.call.name for block in pair.sides[0].blocks] == ["sin", "sin_1", "sin_2", "cos"]
    made: list[str] = []
    lower = Lowering._lower_node

    def counted(self: Lowering, node: Node) -> None:
        made.append(node.name)
        lower(self, node)

    with mock.patch.object(Lowering, "_lower_node", counted):
        assert lowered(pair) == {"sin_1"}
    assert made == ["sin", "sin_2", "cos"]
    assert pair.value("sin_1") is pair.value("sin")
    assert len({pair.value(name).term for name in ("sin", "sin_2", "cos")}) == 3


def _of_values_there() -> None:
    """A call that has its value is not lowered again."""
    pair = Pair(lambda x: (torch.sin(x), torch.cos(x)), X)
    side, held = pair.sides[0], pair.pool.leaf("held", (4, 4))
    side.lowering.provide(pair.node("sin"), held)
    assert lowered(pair) == set()
    assert pair.value("sin") is held
    again = Pair(lambda x: (torch.sin(x), torch.sin(x)), X)
    again.sides[0].lowering.provide(again.node("sin_1"), held)
    assert lowered(again) == set()
    assert again.value("sin_1") is held


def _of_random_calls() -> None:
    """Two draws are two values, of equal operands as well; what draws nothing is one."""
    pair = Pair(lambda x: (torch.rand_like(x), torch.rand_like(x), torch.sin(x), torch.sin(x)), X)
    assert lowered(pair) == {"sin_1"}
    assert pair.value("rand_like") != pair.value("rand_like_1")


def _of_other_records() -> None:
    """What is recorded of an operand is a part of what a call depends on."""
    pair = Pair(lambda x: (torch.sin(x), torch.sin(x)), X)
    taken = pair.node("sin_1").all_input_nodes[0]
    other = pair.programs[0].graph.graph.create_node("placeholder", "z", name="z")
    other.meta["val"] = taken.meta["val"].double()
    pair.sides[0].lowering.provide(other, pair.value(taken.name))
    pair.node("sin_1").replace_input_with(taken, other)
    pair.sides[0].blocks[1].operands = [other]
    assert lowered(pair) == set()


def _of_numbers_recorded() -> None:
    """A number is what was recorded."""
    pair = Pair(lambda x: (torch.sin(x), torch.sin(x)), X)
    pair.node("sin").meta["val"] = pair.node("sin_1").meta["val"] = 3
    assert lowered(pair) == set()


def _of_splits() -> None:
    """The pieces of a whole split joined again are the split's own value; else they are pieces."""
    whole = Pair(lambda x: (torch.cat(torch.split(x, 2), 1), torch.cat(torch.split(x, 2), 1)), X)
    assert "cat_1" in lowered(whole)
    side = whole.sides[0]
    assert side.last_use[whole.node("split")] == [b.call.name for b in side.blocks].index("cat")
    block = several(whole, 0, "layer", ("cat_1",), ("getitem_2", "getitem_3"))
    assert parts._taken(block) == [whole.node("getitem_2"), whole.node("getitem_3"), whole.node("split_1")]
    block.sources = (block, block)  # of several, only what they are given
    assert parts._taken(block) == [whole.node("getitem_2"), whole.node("getitem_3")]
    mixed = Pair(lambda x, y: (torch.cat(torch.split(x, 2), 1), torch.cat([x[:2], y[:2]], 1)), X, Y)
    assert "cat_1" not in lowered(mixed)
    of_both = Pair(lambda x: ((p := torch.split(x, 2)), torch.cat([p[0], p[1]], 1), torch.cat([p[1], p[0]], 1))[1:], X)
    first, second = of_both.node("cat"), of_both.node("cat_1")
    assert "cat_1" not in lowered(of_both)
    assert of_both.value(first.name) != of_both.value(second.name)


def several(pair: Pair, side: int, pattern: str, names: Sequence[str], operands: Sequence[str]) -> Block:
    """Say of calls in a row that they are like others in a row."""
    blocks = cast("list[Block]", pair.sides[side].blocks)
    (start,) = (k for k, block in enumerate(blocks) if block.call.name == names[0])
    singles = blocks[start : start + len(names)]
    made, taken = {k: single.call for k, single in enumerate(singles)}, [pair.node(name, side) for name in operands]
    block = Block(pattern, taken, made, singles, lambda *_: made[0])
    block.singles = singles
    blocks[start : start + len(names)] = [block]
    return block


def _of_blocks() -> None:
    """Calls in a row have the values of earlier ones, if those took the same values with the same records."""

    def layers(x: Any, y: Any) -> Any:
        return [torch.exp(torch.sin(z)) for z in (x, x, y, x)]

    def pair_of(*changes: Callable[[Pair], object]) -> Pair:
        pair = Pair(layers, X, Y)
        for number, given in enumerate(("x_1", "y_1", "x_1"), start=1):
            several(pair, 0, "layer", (f"sin_{number}", f"exp_{number}"), (given,))
        for change in changes:
            change(pair)
        return pair

    made: list[str] = []
    lower = Side.lower

    def counted(self: Side, block: Block) -> None:
        made.append(block.call.name)
        lower(self, block)

    asked: list[str] = []

    def is_size(node: Node) -> bool:
        asked.append(node.name)
        return False

    with mock.patch.object(Side, "lower", counted), mock.patch.object(parts, "is_size", is_size):
        pair = pair_of()
        assert lowered(pair) == {"sin_1", "exp_1", "sin_3", "exp_3"}
        # The last layer is none of single calls.
        assert made == ["sin", "exp", "sin_1", "sin_1", "exp_1", "sin_2", "sin_2", "exp_2", "sin_3"]
    assert asked == ["sin", "exp", "sin_1", "exp_1"]  # of each kind of calls once
    assert pair.value("exp_3") is pair.value("exp_1") is pair.value("exp") != pair.value("exp_2")
    held = pair.pool.leaf("held", (4, 4))
    there = pair_of(lambda pair: pair.sides[0].lowering.provide(pair.node("exp_3"), held))
    lowered(there)
    assert there.value("exp_3") is held
    drawn = Pair(lambda x: [torch.sin(torch.rand_like(z)) for z in (x, x, x)], X)
    for number in (1, 2):
        several(drawn, 0, "layer", (f"rand_like_{number}", f"sin_{number}"), ("x_1",))
    assert lowered(drawn) == set()
    assert len({drawn.value(name).term for name in ("sin", "sin_1", "sin_2")}) == 3


def _of_places_in_blocks() -> None:
    """No part ends within calls in a row that are like others."""
    pair = Pair(chain, X, Y)
    for side in (0, 1):
        several(pair, side, "layer", ("sin_1", "exp_1"), ("y_1",))
        pair.sides[side].places.update(Side(pair.sides[side].lowering).places)
        del pair.sides[side].places[3]
    assert Side(pair.sides[0].lowering).places == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4, 6: 5}
    _raises(lambda: pair.parts.blocks_up_to(Cut(3, 2, True)), "its parts are not in order")


def _of_calls_that_are_needed() -> None:
    """Calls in a row are read one by one where one of them is needed that has no value."""
    asked: list[str] = []

    class Asked(Block):
        @property
        def singles(self) -> Sequence[Block]:  # pyright: ignore[reportIncompatibleVariableOverride]  # told apart
            asked.append(self.call.name)
            return self.sources

    pair = Pair(chain, X, Y)
    blocks = [*pair.sides[0].blocks]
    blocks[2:4] = [Asked("layer", [pair.node("y_1")], {1: pair.node("exp_1")}, blocks[2:4])]
    cast("Any", pair.programs[0].graph).blocks = blocks
    side = Side(pair.sides[0].lowering)
    for name, read in (("cos", []), ("exp", []), ("exp_1", ["exp_1"]), ("add", ["exp_1"])):
        asked.clear()
        side.separate(pair.node(name))
        assert asked == read
    side.lowering.provide(pair.node("exp_1"), None)
    asked.clear()
    side.separate(pair.node("add"))
    assert not asked


# ------------------------------------------------------------------------------------------------ parts


def chain(x: Any, y: Any) -> Any:
    return torch.exp(torch.sin(x)) + torch.exp(torch.sin(y)), torch.cos(x)


def _of_places() -> None:
    """Calls: sin, exp, sin_1, exp_1, add, cos."""
    pair = Pair(chain, X, Y)
    found = pair.parts.blocks_up_to(Cut(6, 0, True))
    assert [len(nodes) for nodes in found] == [6, 0]
    for cut in (Cut(7, 0, True), Cut(0, 7, True), Cut(-1, 0, True)):
        _raises(lambda cut=cut: pair.parts.blocks_up_to(cut), "its parts are not in order")
    pair.cross(Cut(2, 2, False))
    assert [len(nodes) for nodes in pair.parts.blocks_up_to(Cut(2, 3, True))] == [0, 1]
    _raises(lambda: pair.parts.blocks_up_to(Cut(1, 3, True)), "its parts are not in order")


def _of_parts_alike() -> None:
    """The second part has the calls of the first one; what leaves both is named, one name for both programs."""
    pair = Pair(chain, X, Y)
    first, second = pair.cross(Cut(2, 2, True), Cut(4, 4, True))
    assert list(first) == list(second)
    assert [*first.values()] == [pair.value("x_1").term]
    assert [*second.values()] == [pair.value("y_1").term]
    assert {n.name for n in pair.sides[0].repeated} == {"sin_1", "exp_1"}
    assert all(term.operation in OPAQUE for term in first)
    assert pair.value("exp").term.operation in OPAQUE
    assert pair.value("exp") == pair.value("exp", 1) != pair.value("exp_1")
    assert len(pair.definitions.made) == 2
    assert set(first).isdisjoint(first.values())


def _of_parts_as_they_are() -> None:
    pair = Pair(chain, X, Y)
    assert pair.cross(Cut(2, 2, False), Cut(4, 4, False)) == [{}, {}]
    assert pair.sides[0].repeated == set()


def _of_what_leaves() -> None:
    """What later calls take is kept, the rest is forgotten; what is described was lowered within the part."""
    pair = Pair(chain, X, Y)
    pair.cross(Cut(2, 2, True), Cut(4, 4, True))
    names = {node.name for node in pair.sides[0].lowering.values}
    assert names == {"x_1", "y_1", "exp", "exp_1"}
    assert [cast("Any", described)[0] for described in pair.parts.values[0]] == ["sin", "exp"]
    pair.cross(Cut(6, 6, True))
    assert {node.name for node in pair.sides[1].lowering.values} == {"x_1", "y_1", "exp", "exp_1"}


def _of_outputs_that_leave() -> None:
    pair = Pair(chain, X, Y)
    pair.cross(Cut(2, 2, True), Cut(6, 6, True), outputs=("cos",))
    assert {node.name for node in pair.sides[1].lowering.values} == {"x_1", "y_1", "exp", "cos"}
    assert pair.value("cos") == pair.value("cos", 1)
    within = Pair(lambda x, y: (torch.sin(x), torch.cos(x)), X, Y)
    within.cross(Cut(1, 1, True), outputs=("sin",))
    assert within.value("sin").term.operation in OPAQUE


def _of_whole_numbers() -> None:
    """A value that is a view of what a part takes stays one; whole numbers keep what they are made of."""
    views = Pair(lambda x, y: torch.sin(x.t() + y), X, Y)
    views.cross(Cut(1, 1, True))
    assert views.value("t").term is views.value("x_1").term
    assert not views.definitions.made
    whole = Pair(lambda n, y: ((n + n) * n, y.sum()), N, X)
    whole.cross(Cut(1, 1, False))
    assert not whole.definitions.made
    alike = Pair(lambda n, y: ((n + n) * n, y.sum()), N, X)
    part = alike.parts.enter(Cut(1, 1, True))
    assert part.stands_for == {}
    _raises(lambda: alike.parts.leave(part, (set(), set())), "`add` cannot be named, and is taken by another part")


def _of_constants() -> None:
    """What is made of nothing is the same value in every part."""
    pair = Pair(lambda x: torch.sin(torch.full((4, 4), 2.5) + x), X)
    pair.cross(Cut(1, 1, True))
    assert pair.value("full").term is pair.pool.unit
    assert not pair.definitions.made


def _of_no_tensors() -> None:
    """Numbers and groups are handed on, other values are not; a piece of a split is a tensor."""
    pair = Pair(chain, X, Y)
    part = pair.parts.enter(Cut(1, 1, True))
    for value in (None, 3, 0.5, Group((0,))):
        pair.sides[0].lowering.provide(pair.node("sin"), value)
        assert pair.parts._exported(part, pair.sides[0], pair.node("sin"), {}) is value
    pair.sides[0].lowering.provide(pair.node("sin"), ["list"])
    said = "`sin` is no tensor, and is taken by another part"
    _raises(lambda: pair.parts._exported(part, pair.sides[0], pair.node("sin"), {}), said)
    pair.node("sin").meta["val"] = 4
    assert pair.parts._exported(part, pair.sides[0], pair.node("sin"), {}) == ["list"]
    pieces = Pair(lambda x: torch.sin(torch.split(x, 2)[0]), X)
    pieces.cross(Cut(3, 3, True))
    assert isinstance(pieces.value("getitem"), View)


def _of_no_tensors_at_a_boundary() -> None:
    pair = Pair(chain, X, Y)
    for side in (0, 1):
        pair.sides[side].lowering.provide(pair.node("sin", side), 3)
    calls = pair.sides[0].blocks[1:2], pair.sides[1].blocks[1:2]
    assert parts.Part(pair.parts, Cut(2, 2, True), calls).stands_for == {}


def _of_faults_within() -> None:
    pair = Pair(lambda x: torch.sin(torch.cos(x)), X)
    pair.sides[0].lowering.blockers[pair.node("cos")] = cast("Any", "blocker")
    _raises(lambda: pair.parts.enter(Cut(1, 1, False)), "a part holds a call that cannot be lowered")
    sized = Pair(lambda x: torch.sin(torch.cos(x)), X)
    sized.node("cos").meta["val"] = 3
    sized.sides[0].lowering.blockers[sized.node("cos")] = cast("Any", "blocker")
    sized.parts.enter(Cut(1, 0, False))
    new = Pair(lambda x: torch.sin(torch.cos(x)), X)
    constant = mock.patch.object(Side, "lower", lambda self, block: lowers(self, block, "constant"))
    nowhere = mock.patch.object(Side, "lower", lambda self, block: lowers(self, block, "nowhere"))
    lower = Side.lower

    def lowers(self: Side, block: Block, what: str) -> None:
        lower(self, block)
        if what == "nowhere":
            self.lowering.pool.leaf("nowhere", (4,))
        self.lowering.pool.intern(IOTA, (), (), (7,), 1, 0, (), ())

    with constant:
        new.parts.enter(Cut(1, 1, False))
    again = Pair(lambda x: torch.sin(torch.cos(x)), X)
    with nowhere:
        _raises(lambda: again.parts.enter(Cut(1, 1, False)), "a part holds a value that comes from nowhere")

    def takes_more(self: Side, block: Block) -> None:
        lower(self, block)
        self.lowering.provide(self.blocks[-1].call, None)

    with mock.patch.object(Side, "lower", takes_more):
        _raises(lambda: beyond().parts.enter(Cut(1, 1, True)), "a part takes what is not at its boundary")
        beyond().parts.enter(Cut(1, 1, False))


def beyond() -> Pair:
    return Pair(lambda x: torch.sin(torch.cos(x)), X)


def _of_indices() -> None:
    """What is found out about an index in a part holds for what the part takes, and for no other value."""
    said = "a part finds out about an index"
    facts = (IndexFact(None, 4, "x"),)

    def entered(
        alike: bool, of: Callable[[Pair, Mapping[Term, Term]], Term], known: bool = False
    ) -> Callable[[], object]:
        pair = Pair(lambda x: torch.sin(torch.cos(x)), X)
        outside = pair.value("x_1").term
        if known:
            pair.pool.noted[outside] = facts
        lower = Side.lower

        def noting(self: Side, block: Block) -> None:
            lower(self, block)
            own = {t: t for t in pair.pool.sources if t is not outside and t.operation in OPAQUE}
            pair.pool.noted[of(pair, own)] = facts

        def run() -> object:
            with mock.patch.object(Side, "lower", noting):
                return pair.parts.enter(Cut(1, 1, alike))

        return run

    def of_outside(pair: Pair, own: Mapping[Term, Term]) -> Term:
        return pair.value("x_1").term if not own else pair.pool.leaf("other", (4,)).term

    def of_own(pair: Pair, own: Mapping[Term, Term]) -> Term:
        return next(iter(own), pair.value("x_1").term)

    def of_made(pair: Pair, own: Mapping[Term, Term]) -> Term:
        return elementwise(pair.pool, EXPONENTIAL, (), [pair.value("x_1")]).term

    entered(False, of_own)()
    entered(False, of_made)()
    _raises(entered(True, of_own), said)
    _raises(entered(True, of_made), said)
    entered(False, of_outside, known=True)()
    known = Pair(lambda x: torch.sin(torch.cos(x)), X)
    known.pool.noted[of_made(known, {})] = facts
    known.parts.enter(Cut(1, 1, True))
