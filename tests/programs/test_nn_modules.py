"""Breadth: every module of ``torch.nn`` verifies on a rank's own samples, or its blocker is named here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest
from torch import nn
from torch._dynamo import config as dynamo_config

from tests.programs.modules import CONTAINERS, ENTRIES, Entry, check
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:`NLLLoss2d` has been deprecated:FutureWarning")

BLOCKED = {
    "RReLU": "VC216 `aten.rrelu_with_noise_functional.default` draws random numbers: ",
    "FractionalMaxPool2d": "VC216 `aten.rand.default` draws random numbers: ",
    "FractionalMaxPool3d": "VC216 `aten.rand.default` draws random numbers: ",
}
"""Modules that stay unproved, with what their findings begin with."""

UNTRACED = {
    "CrossMapLRN2d": "Tensor.resize_as_()",
    "GaussianNLLLoss": "depends on the content of a tensor",
    "AdaptiveLogSoftmaxWithLoss": "depends on the content of a tensor",
    "CTCLoss": "Dynamic shape operator",
}
"""Modules that torch.compile does not trace to one graph (VC305), with what it says of them."""

_REPEATED = re.compile(r"(1d|3d)$|^Lazy|^(GRU|LSTM|Transformer|TransformerDecoderLayer|LSTMCell|GRUCell|NLLLoss2d)$")
"""Modules whose operators another one has too; they are left to the sweep."""


_SLOW_TWINS = re.compile(r"Loss$|^Upsample$|^TransformerEncoderLayer$|^LPPool")


def _marked(entries: list[Entry], *slow: re.Pattern[str]) -> list[object]:
    return [
        pytest.param(
            entry,
            id=entry.name,
            marks=[pytest.mark.sweep] if any(pattern.search(entry.name) for pattern in (_REPEATED, *slow)) else [],
        )
        for entry in entries
    ]


@pytest.fixture(autouse=True)
def recurrent_modules_are_traced() -> Iterator[None]:
    with dynamo_config.patch(allow_rnn=True):
        yield


def test_every_module_is_here() -> None:
    modules = {c.__name__ for c in vars(nn).values() if inspect.isclass(c) and issubclass(c, nn.Module)}
    assert modules - {entry.name for entry in ENTRIES} - CONTAINERS == set()


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("entry", _marked([e for e in ENTRIES if e.name not in {*BLOCKED, *UNTRACED}]))
def test_module_verifies(entry: Entry) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = check(entry, mesh)
    assert report.verdict is Verdict.VERIFIED, str(report)
    parameters = {f"grad.{name}" for name, _ in entry.module().named_parameters()}
    assert parameters <= report.relations.keys()
    assert "output.0" in report.relations


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("entry", _marked([e for e in ENTRIES if e.twin], _SLOW_TWINS))
def test_another_attribute_does_not_verify(entry: Entry) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = check(entry, mesh, **entry.twin)
    assert report.verdict is not Verdict.VERIFIED, str(report)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.name in BLOCKED], ids=str)
def test_blocked(entry: Entry) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = check(entry, mesh)
    assert report.verdict is Verdict.UNPROVED
    finding = report.findings[0]
    assert f"{finding.code} {finding.message}".startswith(BLOCKED[entry.name])


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.name in UNTRACED], ids=str)
def test_untraced(entry: Entry) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh, pytest.raises(UsageError) as raised:
        check(entry, mesh)
    assert "error[VC305]" in str(raised.value)
    assert UNTRACED[entry.name] in str(raised.value)
