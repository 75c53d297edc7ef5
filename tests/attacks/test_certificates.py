"""Forged certificates, each sealed again: what was changed must be noticed whatever the seal says."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from tests.attacks.edited_certificates import Edit, edits, of_claims, of_programs
from tests.capture.test_rank_programs import check_pipeline, pipeline_step
from tests.certificate.test_forged import _proved_again
from tests.programs.rank_graphs import CASES, trace, trace_ranks
from verifycompile import check_certificate
from verifycompile.certificate.certificate import seal_of
from verifycompile.certificate.storage import program_from_data
from verifycompile.witness import Agreement, compare_outputs

Data = dict[str, Any]


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = F.gelu(x @ w)
    return F.layer_norm(hidden + x, (4,)), hidden.sum(0) / 2


def certified() -> Data:
    inputs = [torch.randn(4, 4), torch.randn(4, 4)]
    local = [torch.randn(2, 4), torch.randn(4, 4)]
    report = verifycompile.verify_graphs(
        make_fx(program)(*inputs),
        make_fx(program)(*local),
        {"x_1": (Shard(0),), "w_1": (Replicate(),)},
        mesh=(2,),
    )
    assert report, str(report)
    return json.loads(report.certificate.to_json())


@pytest.fixture(scope="module")
def original() -> Data:
    return certified()


def holds(data: Data, **options: Any) -> bool:
    sealed = {**data, "seal": seal_of(data)}
    return bool(check_certificate(json.dumps(sealed), **options))


def test_the_certificate_itself_holds(original: Data) -> None:
    assert holds(original)
    assert holds(original, solver=True)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every leaf of the stored programs."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from places(value, (*path, key))
    elif isinstance(data, list):
        for key, value in enumerate(data):
            yield from places(value, (*path, key))
    else:
        yield path


def changed(data: Data, path: tuple[Any, ...], value: Any) -> Data:
    copied = copy.deepcopy(data)
    place: Any = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copied


def at(data: Data, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


OTHER_TEXTS = {
    "torch.float32": "torch.int64", "torch.float64": "torch.int64", "value": "gradient", "aten.add.Tensor": "aten.sub.Tensor",
    "aten.gelu.default": "aten.relu.default", "aten.mm.default": "aten.add.Tensor", "float32": "int64",
}  # fmt: skip


def forgeries(data: Data) -> Iterator[tuple[str, Data]]:
    """One leaf of one program changed: a number by one, a text to another of its kind, a truth value."""
    for side in ("spec", "implementation"):
        for path in places(data[side], (side,)):
            held = at(data, path)
            if isinstance(held, bool):
                yield f"{path}: {held}", changed(data, path, not held)
            elif isinstance(held, int):
                yield f"{path}: {held}", changed(data, path, held + 1)
            elif isinstance(held, str) and held in OTHER_TEXTS:
                yield f"{path}: {held}", changed(data, path, OTHER_TEXTS[held])


OF_ANOTHER_PROGRAM = ("'stride'", "'offset'", "'implementation', 'piecewise'", "'implementation', 'by_definition'")
"""With inputs elsewhere in memory, which nothing reads, or by another strategy the proof is as good."""
NOT_READ = ("line", "seconds", "column", "location", "stack")


def test_no_changed_program_holds(original: Data) -> None:
    harmless = (*OF_ANOTHER_PROGRAM, *NOT_READ)
    accepted = [
        name for name, data in forgeries(original) if not any(word in name for word in harmless) and holds(data)
    ]
    assert accepted == []


FORGERIES: dict[str, Callable[[Data], None]] = {
    "no relations": lambda d: d.update(relations={}),
    "no outputs": lambda d: (d["spec"].update(outputs=[]), d["implementation"].update(outputs=[]), d.update(relations={}, placements={})),
    "no outputs of the spec": lambda d: (d["spec"].update(outputs=[]), d.update(relations={}, placements={})),
    "one output left out": lambda d: (
        d["spec"].update(outputs=d["spec"]["outputs"][:1]), d["relations"].pop("output.1"), d["placements"].pop("output.1", None),
    ),
    "a relation left out": lambda d: d["relations"].pop("output.0"),
    "another relation": lambda d: d["relations"].update({"output.0": d["relations"]["output.1"]}),
    "other values": lambda d: d["values"].update(spec=d["values"]["implementation"]),
    "a step that nothing needs": lambda d: d["steps"].append({"node": "spec.x", "lemma": "VL42", "position": "0", "matched": []}),
    "no assumptions": lambda d: d.update(assumptions=[]),
    "version": lambda d: d.update(version=-1),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("solver", [False, True])
def test_no_changed_claim_holds(name: str, solver: bool, original: Data) -> None:
    data = copy.deepcopy(original)
    FORGERIES[name](data)
    assert not holds(data, solver=solver)


def division(kind: torch.dtype) -> Data:
    """A division, whose result's dtype is what was recorded."""
    x = torch.arange(4).to(kind)
    report = verifycompile.verify_graphs(make_fx(lambda x: (x / 2) * 2)(x), make_fx(lambda x: (x / 2) * 2)(x), mesh=(2,))
    return json.loads(report.certificate.to_json())


def test_recorded_dtypes_of_inner_nodes_are_not_believed() -> None:
    text = json.dumps(division(torch.int64))
    for wrong in ("torch.int64", "torch.int32", "torch.float64"):
        data = json.loads(text.replace("torch.float32", wrong))
        if data != json.loads(text):
            assert not holds(data)
            assert not holds(data, solver=True)


def test_the_check_says_what_it_covers(original: Data) -> None:
    found = check_certificate(json.dumps(original))
    assert "output.0" in str(found)
    assert "output.1" in str(found)


# ------------------------------------------------------------------------------------------------ graphs of ranks


def _of_ranks(name: str) -> verifycompile.Report:
    (case,) = (case for case in CASES if case.name == name)
    graphs = trace_ranks(case.ranks, 2, lambda rank: case.part(rank, 2))
    return verifycompile.verify_graphs(trace(case.spec, case.whole()), graphs, case.layouts, case.outputs)


OF_RANKS: dict[str, Callable[[], verifycompile.Report]] = {
    "offsets by rank": functools.partial(_of_ranks, "vocabulary parallel embedding"),
    "columns and rows": functools.partial(_of_ranks, "mlp"),
    "stages": lambda: check_pipeline(pipeline_step(2, 0.5)),
}


@functools.cache
def text_of_ranks(name: str) -> str:
    certificate = OF_RANKS[name]().certificate
    assert certificate is not None
    return certificate.to_json()


def differing(data: Data) -> set[str]:
    """Outputs that differ in numbers on one input of all ranks."""
    results = compare_outputs(program_from_data(data["spec"]), program_from_data(data["implementation"]), 0)
    return {name for name, found in results.items() if found.agreement is not Agreement.EQUAL}


def proved_again(data: Data) -> Data | None:
    """With what a forger finds who proves the changed programs; None where they are not proved."""
    with contextlib.suppress(Exception):  # whatever fails of what was written for nothing
        return _proved_again(data)
    return None


def _edited(name: str, edit: Edit, number: int, *, again: bool) -> None:
    """What is accepted of edited certificates is so by its numbers; most is not accepted, and much is wrong."""
    original, accepted, wrong = json.loads(text_of_ranks(name)), 0, 0
    assert differing(original) == set()
    for data in itertools.islice(edits(original, edit, 0), number):
        forged = proved_again(data) if again else data
        if forged is not None and holds(forged):
            accepted += 1
            assert differing(forged) == set()
        elif again:
            with contextlib.suppress(Exception):
                wrong += bool(differing(data))
    assert accepted < number / 2
    assert wrong or not again


@pytest.mark.parametrize("name", OF_RANKS)
def test_edited_certificates_of_graphs_of_ranks(name: str) -> None:
    _edited(name, of_claims, 20, again=False)
    _edited(name, of_programs, 20, again=False)
    _edited(name, of_programs, 8, again=True)


@pytest.mark.sweep
@pytest.mark.parametrize("name", OF_RANKS)
def test_edited_certificates_of_graphs_of_ranks_sweep(name: str) -> None:
    _edited(name, of_claims, 500, again=False)
    _edited(name, of_programs, 1500, again=False)
    _edited(name, of_programs, 300, again=True)
