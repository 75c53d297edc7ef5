"""What a certificate stores comes back."""

from __future__ import annotations

import dataclasses
import enum
import json

import pytest
import sympy
import torch
import torch.fx

from verifycompile.certificate import Certificate
from verifycompile.refinement.result import Mismatch, RefinementResult


class Means(enum.Enum):
    SEARCH = "search"


@dataclasses.dataclass(frozen=True)
class Lemma:
    name: str
    size: sympy.Expr


@dataclasses.dataclass(frozen=True)
class Step:
    node: torch.fx.Node
    means: Means
    lemmas: tuple[Lemma, ...]
    dtype: torch.dtype
    positions: dict[int, float]
    names: dict[str, int]


def step() -> Step:
    node = next(iter(torch.fx.symbolic_trace(torch.nn.ReLU()).graph.nodes))
    size = 4 * sympy.Symbol("s0", integer=True)
    return Step(node, Means.SEARCH, (Lemma("linear", size),), torch.float32, {0: 0.5}, {"a": 1})


def certificate(*steps: object) -> Certificate:
    result = RefinementResult({"output.0": "output.0"}, None, spec_nodes=3, impl_nodes=5, steps=steps)
    return Certificate.of(result, ("an assumption",))


def test_round_trip() -> None:
    text = certificate(step()).to_json()
    assert Certificate.from_json(text).to_json() == text
    assert json.loads(text) == {
        "version": 1,
        "spec_nodes": 3,
        "impl_nodes": 5,
        "relations": {"output.0": "output.0"},
        "assumptions": ["an assumption"],
        "steps": [
            {
                "$step": "Step",
                "node": "input_1",
                "means": "search",
                "lemmas": [{"$step": "Lemma", "name": "linear", "size": "4*s0"}],
                "dtype": "torch.float32",
                "positions": [[0, 0.5]],
                "names": {"a": 1},
            }
        ],
    }


def test_what_was_read_is_a_value() -> None:
    text = certificate(step()).to_json()
    assert Certificate.from_json(text) == Certificate.from_json(text)
    assert isinstance(Certificate.from_json(text).steps, tuple)


def test_a_result_with_a_mismatch_has_none() -> None:
    result = RefinementResult({}, Mismatch("VC107", "no relation found", "output.0"))
    with pytest.raises(ValueError, match="a result with a mismatch has no certificate"):
        Certificate.of(result, ())


def test_a_value_without_a_json_form_is_named() -> None:
    with pytest.raises(TypeError, match="a certificate cannot hold a value of type object"):
        certificate(object()).to_json()


@pytest.mark.parametrize("text", ["[]", "{}", '{"version": 1}'])
def test_other_json_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a verifycompile certificate"):
        Certificate.from_json(text)


def test_another_format_is_rejected() -> None:
    data = json.loads(certificate().to_json())
    with pytest.raises(ValueError, match="certificate format 2 is not the supported format 1"):
        Certificate.from_json(json.dumps({**data, "version": 2}))
