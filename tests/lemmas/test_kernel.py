"""What the one place that disposes checks, left out one at a time: a step that is wrong must then be made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.lemmas.instances import instance, violation
from tests.lemmas.test_table import DISPOSED
from verifycompile.rewrites.lemmas import dispose, guards, read
from verifycompile.rewrites.lemmas.lemma import Lemma
from verifycompile.rewrites.lemmas.substitution import InProduct, InSum

KINDS = sorted({str(guard[0]) for lemma in DISPOSED for guard in lemma.guards})
NOT_READ = {"whole", "digit", "independent"}
"""Kinds of guards without which nothing else is read: only digits are read as numbers, and what depends on an index that
is summed away has no place outside of the sum.
"""


def accepted(kind: str) -> list[str]:
    """The lemmas of which an instance that does not meet a guard of this kind is accepted."""
    return [
        lemma.code
        for lemma in DISPOSED
        for guard in lemma.guards
        if guard[0] == kind and (made := violation(lemma, guard)) is not None and made.disposed() is not None
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_check_of_a_guard_is_needed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert accepted(kind) == []
    monkeypatch.setitem(guards._GUARDS, kind, lambda *_: True)
    assert bool(accepted(kind)) == (kind not in NOT_READ)


def lemma_of(code: str) -> Lemma:
    (lemma,) = (lemma for lemma in DISPOSED if lemma.code == code)
    return lemma


def test_what_is_matched_must_be_there_and_once() -> None:
    position = instance(lemma_of("VL41")).position
    assert isinstance(position, InProduct)
    made = instance(lemma_of("VL41"))
    assert isinstance(made.position, InProduct)
    one, other = made.position.factors
    for matched in ((one, one), (one, dataclasses.replace(other)), (one,)):
        changed = dataclasses.replace(made.position, matched=matched)
        assert dataclasses.replace(made, position=changed).disposed() is None, matched


def test_an_index_that_is_summed_is_bound_there() -> None:
    """A look-up is no look-up where the dimension is not summed, or where another factor reads it."""
    made = instance(lemma_of("VL25"))
    assert isinstance(made.position, InProduct)
    free = dataclasses.replace(made.position, free=len(made.position.factors[0].shape))
    assert dataclasses.replace(made, position=free).disposed() is None
    (reader,) = made.given.values["a"]
    more = dataclasses.replace(made.position, factors=[*made.position.factors, dataclasses.replace(reader)])
    assert dataclasses.replace(made, position=more).disposed() is None


def test_summands_must_be_those_of_the_left_side() -> None:
    made = instance(lemma_of("VL71"))
    assert isinstance(made.position, InSum)
    first, second = made.position.summands
    for matched in ((second, first), (first,), (first, second.scaled(first.coefficient * 2))):
        changed = dataclasses.replace(made.position, summands=matched, matched=matched)
        assert dataclasses.replace(made, position=changed).disposed() is None


def never(*_: object) -> bool:
    return False


@pytest.mark.parametrize(
    ("module", "name", "replacement", "check"),
    [
        (dispose, "_use", never, test_an_index_that_is_summed_is_bound_there),
        (dispose, "_key", lambda view: (), test_summands_must_be_those_of_the_left_side),
        (read, "_remove", lambda rest, wanted: not rest.clear(), test_what_is_matched_must_be_there_and_once),
    ],
    ids=["used dimensions", "summands", "factors"],
)
def test_each_check_of_a_position_is_needed(
    module: Any, name: str, replacement: Any, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check()
    monkeypatch.setattr(module, name, replacement)
    with pytest.raises(AssertionError):
        check()
