"""Whatever proposes is replaced by one that proposes nonsense: right programs become unproved, wrong ones stay so.

The finders are those that the catalogue holds, and no other rule is asked while terms are built: a new one is among
them without being named here, wherever it stands.
"""

from __future__ import annotations

import functools
import gc
import importlib
import pkgutil
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.lemmas.test_table import DISPOSED
from tests.programs.forms import vocabulary
from tests.refinement.egraph_programs import PAIRS
from tests.refinement.test_egraph_programs import Model, everything_equal, nonsense
from tests.support import fake_mesh_world
from verifycompile import Verdict, rewrites, verify
from verifycompile.capture import capture_model
from verifycompile.ir.indicator import NOT
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import TermPool, View
from verifycompile.options import Options
from verifycompile.pipeline import verify_captured
from verifycompile.program import Program
from verifycompile.refinement import egraph
from verifycompile.refinement.check import check_refinement, new_pool
from verifycompile.rewrites.catalogue import (
    COMBINATION_LEMMAS,
    CONTRACTION_LEMMAS,
    lemmas_of_product,
    product_lemma,
)
from verifycompile.rewrites.codes import MATCHING_LEMMAS
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal, SumFinder
from verifycompile.rewrites.lemmas.lemma import INDEX, NUMBER, VALUE
from verifycompile.rewrites.lemmas.spelling import names
from verifycompile.rewrites.lemmas.substitution import Substitution
from verifycompile.rewrites.side_conditions import solver

Finder = ProductFinder | SumFinder
PROPOSALS = 12


RULES = (*CONTRACTION_LEMMAS, *COMBINATION_LEMMAS)
FINDERS = {rule.find.__name__.strip("_"): rule for rule in RULES if isinstance(rule, ProductFinder | SumFinder)}
EMBEDDING, MISTAKE = "embedding-masked_index-2", "start of the next rank"


@functools.cache
def captured(name: str, mistake: str = "") -> tuple[Program, Program, Options]:
    (form,) = (form for form in vocabulary.FORMS if form.name == name)
    with fake_mesh_world(tuple(form.mesh.values()), tuple(form.mesh), rank=form.world_size - 1) as mesh:
        build = lambda: form.program(mesh, mistake)  # noqa: E731 - as users write it
        options = Options.from_mapping({**form.options, "mesh": mesh, "spec": form.spec(), "build": build})
        return *capture_model(form.program(mesh, mistake), form.args(), {}, options), options


def verdict(name: str, mistake: str = "") -> Verdict:
    return verify_captured(*captured(name, mistake)).verdict


def of_nonsense(pool: TermPool, views: Sequence[View], rest: object) -> Iterator[Proposal]:
    """Lemmas at random, with what happens to be there for their variables."""
    draw, dims = random.Random(f"{len(pool)} {len(views)}"), len(views[0].shape)
    for _ in range(PROPOSALS):
        lemma = draw.choice(DISPOSED)
        values = {name: (draw.choice(views),) for name in names(lemma, VALUE)}
        numbers = {name: ONE * draw.choice((0, 1, 2)) for name in names(lemma, NUMBER)}
        indices = {name: (draw.randrange(dims + 2),) for name in names(lemma, INDEX)}
        matched = draw.sample(list(views), draw.randint(1, len(views)))
        yield Proposal(lemma, Substitution(values, numbers, indices), matched)


def replace(request: pytest.FixtureRequest, finder: Finder) -> None:
    find = finder.find
    object.__setattr__(finder, "find", of_nonsense)
    request.addfinalizer(lambda: object.__setattr__(finder, "find", find))


def test_what_proposes_is_a_finder_of_the_catalogue() -> None:
    """A pool asks the rules of the catalogue; those that are no finders are trusted, and no finder is elsewhere."""
    pool = new_pool()
    assert pool.contraction_rules == [product_lemma]
    assert pool.combination_rules == list(COMBINATION_LEMMAS)
    masked = View(ONE, pool.intern(NOT, (), (), (2,), 1, 0, (), ()), (2,), (((0, 1, 2),),))
    assert lemmas_of_product([masked]) == CONTRACTION_LEMMAS
    assert [rule for rule in RULES if rule not in FINDERS.values()] == list(MATCHING_LEMMAS)
    for item in pkgutil.walk_packages(rewrites.__path__, "verifycompile.rewrites."):
        importlib.import_module(item.name)
    gc.unfreeze()  # tests/conftest.py hides what was imported from the collector
    made = [value for value in gc.get_objects() if type(value) in (ProductFinder, SumFinder)]
    own = {id(finder) for finder in made if finder.find.__module__.startswith("verifycompile.")}
    assert own == {id(finder) for finder in FINDERS.values()}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", FINDERS)
def test_a_finder_of_nonsense_proves_nothing(name: str, request: pytest.FixtureRequest) -> None:
    replace(request, FINDERS[name])
    assert verdict(EMBEDDING) in {Verdict.VERIFIED, Verdict.UNPROVED}  # not every finder is needed here
    spec, implementation, _ = captured(EMBEDDING, MISTAKE)
    assert check_refinement(spec, implementation).mismatch is not None


def test_finders_of_nonsense_prove_nothing(request: pytest.FixtureRequest) -> None:
    for finder in FINDERS.values():
        replace(request, finder)
    assert verdict(EMBEDDING) is Verdict.UNPROVED
    assert verdict(EMBEDDING, MISTAKE) is Verdict.REFUTED


def test_a_solver_of_nonsense_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says yes to everything, or no."""
    for answer in (True, False):
        monkeypatch.setattr(solver, "_answers", {})
        monkeypatch.setattr(solver, "follows", lambda _, said=answer: said)
        assert verdict(EMBEDDING) is (Verdict.VERIFIED if answer else Verdict.UNPROVED)
        assert verdict(EMBEDDING, MISTAKE) is Verdict.REFUTED
        spec, implementation, _ = captured(EMBEDDING, MISTAKE)
        assert check_refinement(spec, implementation).mismatch is not None


@pytest.mark.parametrize("proposer", [nonsense, everything_equal])
def test_an_e_graph_of_nonsense_proves_nothing(proposer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egraph, "propose", proposer)
    monkeypatch.setattr(egraph, "differ", lambda *_: False)
    (pair,) = (pair for pair in PAIRS if pair.name == "root of a square")
    inputs = torch.zeros(8, 4), torch.zeros(8, 4)
    for function, expected in ((pair.implementation, Verdict.UNPROVED), (pair.wrong, Verdict.REFUTED)):
        with fake_mesh_world((2,), ("tp",)) as mesh:
            spec, model = (Model(f, trained=pair.backward) for f in (pair.spec, function))
            assert verify(model, inputs, spec=spec, mesh=mesh).verdict is expected
