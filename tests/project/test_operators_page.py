"""docs/operators.md is what docs/operators.json says, and what it says is what a run gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.operator_samples import Accepted, Pair, base_name, database, eager, is_even, pairs
from benchmarks.operators import DEGREE, DOCS, OUTCOMES, Outcome, Tally, check, confirmed, kind, page, read, tally
from tests.support import fake_mesh_world

RECORDED = read(DOCS)
AGAIN = ("abs", "sgn", "cummin", "argmax", "cartesian_prod", "addbmm", "nn.functional.soft_margin_loss")
"""Small operators whose samples give every kind of outcome: wholly verified, without a rule, wrong in DTensor."""


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((DEGREE,), ("x",)) as mesh:
        yield mesh


def test_page_is_made_from_the_data() -> None:
    assert page([RECORDED[name] for name in sorted(RECORDED)]) == (DOCS / "operators.md").read_text()


def test_data_is_of_operators_of_the_database() -> None:
    assert RECORDED.keys() <= database().keys()
    assert all(is_even(base_name(name)) or item.first for name, item in RECORDED.items())
    assert {outcome for item in RECORDED.values() for outcome in item.counts} <= set(OUTCOMES)


def test_nothing_verified_has_other_numbers_and_nothing_right_is_refuted() -> None:
    current = [item for item in RECORDED.values() if not item.older]
    assert [item.operator for item in current if item.wrong] == []
    assert [item.operator for item in current if item.counts.get("refuted")] == []


@pytest.mark.parametrize("name", AGAIN)
def test_outcomes_are_those_recorded(name: str, mesh: DeviceMesh) -> None:
    found = list(check(name, database()[name], mesh, 2, 3))
    # Whether DTensor or the verifier is to blame is asked of real ranks, which this test does not start.
    outcomes = {"confirmed" if item.outcome == "refuted" else item.outcome for item in found}
    assert found
    assert outcomes <= set(RECORDED[name].counts)
    assert [item.wrong for item in found if item.wrong] == []


def test_eager_mode_tells_wrong_numbers(mesh: DeviceMesh) -> None:
    """DTensor's gradient of ``amin`` where the smallest element is not on the first rank, see docs/found.md."""
    x = torch.tensor([2.0, 1.0]).requires_grad_()
    pair = next(p for p in pairs(_Vector(x), DEGREE, 1, 2) if p.text().startswith("([2]S(0)"))
    assert eager(torch.amin, pair, mesh).differs == "output or gradient 1"
    right = Pair((x.detach().flip(0).requires_grad_(),), {}, pair.placements)
    found = eager(torch.amin, right, mesh)
    assert (found.accepted, found.differs) == (Accepted.ALL, "")


@dataclasses.dataclass
class _Vector:
    """What ``pairs`` asks of an operator of the database, and of a sample of it: both with one input."""

    input: torch.Tensor
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = dataclasses.field(default_factory=dict[str, object])
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    supports_autograd: bool = True

    def sample_inputs(self, *_: object, **__: object) -> list[_Vector]:
        return [self]


def test_a_tally_counts_outcomes_and_reasons() -> None:
    outcomes = [
        Outcome("f", "verified"),
        Outcome("f", "unproved", "VC201 no"),
        Outcome("f", "verified", wrong="output 0"),
    ]
    counted = tally("f", outcomes)
    assert counted == Tally("f", {"verified": 2, "unproved": 1}, {"unproved: VC201 no": 1}, {"output 0": 1})
    assert kind(counted) == "with pairs unproved"


def test_only_what_accuses_is_run_on_real_ranks() -> None:
    outcomes = [Outcome("f", "verified", index=0), Outcome("g", "refuted", index=0)]
    assert confirmed("f", outcomes, 1, 1) == outcomes[:1]
