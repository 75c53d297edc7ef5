"""After every lowering in any test, the terms and values that it made are checked for validity.

What one test asked of its rank, or of the environment of a job, says nothing about the programs of the next; nor does
the default dtype that a script, which a test runs in this process, leaves behind.
"""

from __future__ import annotations

import gc
import logging
import pathlib
import weakref
from collections.abc import Generator, Iterable

import pytest
import torch
import torch.fx
from torch.nn.parallel import DistributedDataParallel

from tests.ir.validate_terms import validate_term
from tests.sampled import leave_the_rest_to_the_sweep
from verifycompile import refutation
from verifycompile.cause import failures
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.validate import validate
from verifycompile.lowering.lower import Lowering
from verifycompile.rewrites import families
from verifycompile.torch_interface.ranks.observation import forget_reads

families.load()

# pytest hands every logger that does not propagate its handlers, and torch writes out each graph and stack for them.
logging.getLogger("torch.__trace").propagate = True

WITHOUT_CAUSES = {
    "agreement", "attacks", "backends", "capture", "jobs", "mutants", "operators", "programs", "reduction", "refinement",
    "soundness", "symbolic", "test_training_steps_sharded.py", "torch_interface", "witness",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_the_rest_to_the_sweep(items)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no collection of garbage walks through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """What a file leaves behind, such as programs that it keeps and caches of torch, stays as well."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def no_earlier_reads() -> None:
    forget_reads()


@pytest.fixture(autouse=True)
def search_for_causes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = request.path.relative_to(pathlib.Path(__file__).parent).parts[0]
    if folder in WITHOUT_CAUSES and request.node.get_closest_marker("causes") is None:
        monkeypatch.setattr(refutation, "_SECONDS_FOR_CAUSES", 0.0)
        monkeypatch.setattr(refutation, "_PROOFS_FOR_CAUSES", 0)


@pytest.fixture(autouse=True)
def no_internal_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a report would say of a mistake in the search for causes is raised."""

    def failure(doing: str, error: Exception) -> str:
        raise AssertionError(doing) from error

    monkeypatch.setattr(failures, "failure", failure)


@pytest.fixture(autouse=True)
def no_wrapper_left_behind() -> None:
    """An error in the forward of ``replicate`` leaves its wrapper behind, in which Dynamo compiles otherwise."""
    DistributedDataParallel._active_ddp_module = None


@pytest.fixture(autouse=True)
def same_default_dtype() -> Generator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def valid_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms never change, so each is checked once."""
    lower = Lowering.lower
    checked: weakref.WeakKeyDictionary[TermPool, int] = weakref.WeakKeyDictionary()

    def checked_lower(self: Lowering, targets: Iterable[torch.fx.Node]) -> None:
        before = set(self.values)
        lower(self, targets)
        for term in self.pool.terms[checked.get(self.pool, 0) :]:
            validate_term(term)
        checked[self.pool] = len(self.pool)
        for node, value in self.values.items():
            if node not in before and isinstance(value, View):
                validate(value)

    monkeypatch.setattr(Lowering, "lower", checked_lower)
