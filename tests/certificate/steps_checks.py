"""Steps by lemmas as a certificate holds them: written, read again and disposed of, and what is refused of each."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import sympy

from tests.lemmas.conditions import Check
from tests.lemmas.instances import Instance, instance
from tests.lemmas.test_table import DISPOSED
from verifycompile.certificate import lemma_steps
from verifycompile.certificate.lemma_steps import LemmaSteps, steps_from_data
from verifycompile.certificate.recording import Recording, WrittenSteps
from verifycompile.certificate.storage import StorageError
from verifycompile.ir.algebra import elementwise, multiply_views
from verifycompile.ir.exponential import EXPONENTIAL
from verifycompile.ir.relabel import select
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.finders.finder import Proposal
from verifycompile.rewrites.lemmas.substitution import InProduct, Position

NODE = "spec.node"
Data = dict[str, Any]


def _place(position: Position) -> tuple[Sequence[View], Any]:
    """What stands there, and beside it up to which dimension a product is free, or the shape of a sum."""
    if isinstance(position, InProduct):
        return position.factors, position.free
    return position.summands, position.shape


class Written:
    """An instance of a lemma as the only step of a certificate. ``data``, ``views``: as they are written."""

    def __init__(self, made: Instance) -> None:
        made.pool.place = NODE
        self.made = made
        product = isinstance(made.position, InProduct)
        self.there, self.rest = _place(made.position)
        places = {id(view): number for number, view in enumerate(self.there)}
        matched = tuple(places[id(view)] for view in made.position.matched)
        recording = Recording()
        position = recording.digests.position(made.pool, self.there, self.rest)
        proposal = Proposal(made.lemma, made.given, made.position.matched)
        recording.found[position] = proposal, tuple(sorted(matched)) if product else matched
        written = WrittenSteps(recording)
        self.result = self.applied(written)
        self.data, self.views = written.data, written.views

    def applied(self, rules: LemmaSteps) -> Sequence[View] | None:
        rule: Any = rules.product if isinstance(self.rest, int) else rules.combination
        return rule(self.made.pool, self.there, self.rest)

    def rules(self, change: Callable[[Data], object] = lambda _: None) -> LemmaSteps:
        """The rules of a certificate whose step is changed."""
        data: list[Data] = copy.deepcopy([*map(dict, self.data)])
        change(data[0])
        return LemmaSteps(steps_from_data(data, self.views))


@functools.cache
def written(code: str) -> Written:
    (lemma,) = (lemma for lemma in DISPOSED if lemma.code == code)
    return Written(instance(lemma))


PRODUCT, SUM = "VL27", "VL88"


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for lemma in DISPOSED:
        yield f"written {lemma.code}", functools.partial(_holds, lemma.code)
    for check in (_of_faults, _of_changed_steps, _of_functions, _of_views, _of_results, _of_data):
        yield check.__name__.strip("_"), check


def _same(left: Sequence[View] | None, right: Sequence[View] | None) -> bool:
    return left is not None and right is not None and list(left) == list(right)


def _holds(code: str) -> None:
    """It is applied as often as it is needed, and is needed once."""
    step = written(code)
    rules = step.rules()
    assert [unused.node for unused in rules.unused] == [NODE]
    for _ in range(2):
        assert _same(step.applied(rules), step.made.disposed())
        assert (rules.fault, rules.unused) == ("", ())


def _fault(step: Written, rules: LemmaSteps) -> str:
    assert step.applied(rules) is None
    return rules.fault


def _of_faults() -> None:
    step = written(PRODUCT)
    rules = step.rules(lambda data: data.update(node="spec.other"))
    assert _fault(step, rules) == f"its step by {PRODUCT} at `spec.other` is needed at `{NODE}`"
    rules = step.rules()
    rules.fault = "so"
    assert _fault(step, rules) == "so"
    assert len(rules.unused) == 1
    rules = step.rules(lambda data: data.update(position="0" * 16))
    assert _fault(step, rules) == ""
    assert len(rules.unused) == 1


def _of_changed_steps() -> None:
    for code in (PRODUCT, SUM):
        step = written(code)
        for change, said in (
            (lambda d: d.update(lemma="VL42"), f"its step by VL42 at `{NODE}` is none: `{NODE}`"),
            (lambda d: d.update(matched=[0]), f"its step by {code} at `{NODE}` is none: `{NODE}`"),
            (lambda d: d.update(lemma="VL00"), f"its step by VL00 at `{NODE}` is none: `{NODE} (KeyError: 'VL00')`"),
        ):  # fmt: skip
            rules = step.rules(change)
            assert _fault(step, rules) == said, rules.fault
            assert len(rules.unused) == 1
    step = written(PRODUCT)
    rules = step.rules(lambda d: d.update(matched=d["matched"][::-1]))
    assert _fault(step, rules).endswith("(StorageError: the factors of a product are not in their order)`")


def _of_functions() -> None:
    """A lemma that is a function is of all summands, and of nothing else."""
    pool = TermPool()
    pool.place = NODE
    x = pool.leaf("x", (2, 3))
    there = [select(x, 0, 0), select(x, 0, 1)]
    data: Data = {"node": NODE, "lemma": "VL26", "position": "", "matched": ()}
    for views, rest, applied in ((there, (3,), True), (there[:1], (3,), False), (there, 1, False)):
        for more in (
            {},
            {"matched": [0]},
            {"values": {"a": []}},
            {"numbers": {"p": 1}},
            {"indices": {"i": [0]}},
            {"each": {"a": []}},
        ):
            rules = LemmaSteps(())
            position = rules.digests.position(pool, views, rest)
            rules = LemmaSteps(steps_from_data([{**data, "position": position, **more}], ()))
            rule: Any = rules.product if isinstance(rest, int) else rules.combination
            found = rule(pool, views, rest)
            assert (found is not None) == (applied and not more), (rest, more)
            assert (rules.fault == "") == (found is not None)
            refused = "(StorageError: a lemma that is a function is applied to all summands)"
            why = f"{NODE} {refused}" if more or isinstance(rest, int) else NODE
            assert rules.fault in ("", f"its step by VL26 at `{NODE}` is none: `{why}`")
            assert found is None or (type(found), len(found)) == (list, 1)


def _of_views() -> None:
    """A view is of a term that is there, of one, of positions, or is made of others."""
    rules, pool = LemmaSteps(()), TermPool()
    x = pool.leaf("x", (4, 3))
    text, axes = rules.digests.of(x.term), [[[0, 1, 4]], [[1, 1, 3]]]
    view = functools.partial(rules._view, pool)
    assert view([1, "term", text, axes, None], (4, 3)) == x
    assert view(["1/2", "term", text, axes, [4, 3]], (7,)) == x.scaled(sympy.Rational(1, 2))
    assert view([1, "one", None, [], None], (4,)) == pool.constant(ONE, (4,))
    assert view([1, "iota", 4, [[[0, 1, 4]]], None], (4,)) == lemma_steps.iota(pool, 4)
    size = ["symbol", "s", "size"]
    symbol = sympy.Symbol("s", integer=True, positive=True)
    assert view([size, "one", None, [], [size]], ()) == pool.constant(symbol, (symbol,))
    operand = [1, "term", text, axes, None]
    assert view([2, "made", ["combine", operand, operand], [], None], (4, 3)) == x.scaled(ONE * 4)
    masked = elementwise(pool, EXPONENTIAL, (), [multiply_views(pool, mask := pool.leaf("m", (4, 3), indicator=True), x)])
    operands = [[1, "term", rules.digests.of(value.term), axes, None] for value in (mask, masked)]
    assert view([1, "made", ["beside", *operands], [], None], (4, 3)) == elementwise(pool, EXPONENTIAL, (), [x])
    assert view([1, "made", ["like", operands[1], operand], [], None], (4, 3)) == elementwise(pool, EXPONENTIAL, (), [x])
    missing = [1, "term", "0" * 16, axes, None]
    for wrong in (missing, [1, "term", text, axes[:1], None], [1, "made", ["tan", operand], [], None]):
        found = ""
        try:
            view(wrong, (4, 3))
        except (StorageError, ValueError, KeyError, AssertionError) as error:
            found = type(error).__name__
        assert found
        assert (found == "StorageError") == (wrong is missing)


def _of_results() -> None:
    """What stands there by a step is looked at once more."""
    step = written(PRODUCT)
    seen: list[View] = []
    with mock.patch.object(lemma_steps, "validate", seen.append):
        result = step.applied(step.rules())
    assert result is not None
    assert all(any(view is found for found in seen) for view in result)


def _of_data() -> None:
    step = written(PRODUCT)
    data = dict(step.data[0])
    for steps, views, said in (
        ([data, data], step.views, "two steps are at one position"),
        ([{**data, "believe": 1}], step.views, "a step has no `believe`"),
        ([data], [*step.views, 0], "it holds a view that no step needs"),
    ):
        found = ""
        try:
            steps_from_data(steps, views)
        except StorageError as error:
            found = str(error)
        assert found == said
    (read,) = steps_from_data([data], step.views)
    assert dataclasses.asdict(read)["matched"] == tuple(data["matched"])
