"""Whatever is proposed, no step changes a value: the table disposes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from tests.lemmas.instances import Instance, instance
from tests.lemmas.test_table import DISPOSED
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal
from verifycompile.rewrites.lemmas.lemma import INDEX, NUMBER, VALUE, Lemma
from verifycompile.rewrites.lemmas.spelling import names
from verifycompile.rewrites.lemmas.substitution import InProduct, Substitution

PROPOSALS = 60


def _nonsense(draw: random.Random, lemma: Lemma, factors: Sequence[View], views: Sequence[View]) -> Proposal:
    """A lemma with what happens to be there for its variables."""

    def some(most: int) -> tuple[View, ...]:
        return tuple(draw.choice(views) for _ in range(draw.randint(0, most)))

    values = {name: some(1) or (draw.choice(views),) for name in names(lemma, VALUE)}
    numbers = {name: ONE * draw.choice((-1, 0, 1, 2, 3)) for name in names(lemma, NUMBER)}
    dims = draw.sample(range(8), len(names(lemma, INDEX)))
    indices = {name: (dim,) for name, dim in zip(names(lemma, INDEX), dims, strict=True)}
    each = {name: (some(2), some(2)) for name in values if draw.random() < 0.3}
    matched = tuple(draw.sample(list(factors), draw.randint(1, len(factors))))
    return Proposal(lemma, Substitution(values, numbers, indices, each), matched)


def _near_misses(draw: random.Random, made: Instance) -> Iterator[Proposal]:
    """The right substitution with one thing wrong."""
    given = made.given
    assert isinstance(made.position, InProduct)
    views = [view for factors in given.values.values() for view in factors]
    for name in given.values:
        for view in views:
            changed = Substitution({**given.values, name: (view,)}, given.numbers, given.indices, given.each)
            yield Proposal(made.lemma, changed, made.position.matched)
    for name, dims in given.indices.items():
        other = {**given.indices, name: (dims[0] + draw.choice((-1, 1)),)}
        yield Proposal(made.lemma, Substitution(given.values, given.numbers, other, given.each), made.position.matched)
    for name, number in given.numbers.items():
        others = {**given.numbers, name: number + 1}
        yield Proposal(made.lemma, Substitution(given.values, others, given.indices, given.each), made.position.matched)
    yield Proposal(made.lemma, given, made.position.matched[:-1] or made.position.matched)


@pytest.mark.parametrize("lemma", DISPOSED, ids=lambda lemma: lemma.code)
def test_nonsense_changes_no_value(lemma: Lemma) -> None:
    made = instance(lemma)
    if not isinstance(made.position, InProduct):
        return
    draw = random.Random(lemma.code)
    factors = made.position.factors
    views = [*factors, *(view for values in made.given.values.values() for view in values)]
    proposals = [_nonsense(draw, draw.choice(DISPOSED), factors, views) for _ in range(PROPOSALS)]
    for proposal in (*proposals, *_near_misses(draw, made)):

        def find(pool: TermPool, factors: Sequence[View], free: int, it: Proposal = proposal) -> Iterator[Proposal]:
            yield it

        found = ProductFinder(find)(made.pool, factors, made.position.free)
        if found is not None:
            torch.testing.assert_close(made.value(list(found)), made.value())
