"""The table of declarations: nothing in it goes unchecked, and nothing outside of it is accepted."""

from __future__ import annotations

import inspect

import pytest
import torch

from tests.operators.call import RefusedError, Sample, evaluate_call
from tests.operators.samples import SAMPLES
from tests.operators.test_collectives import COLLECTIVES
from tests.operators.test_embedding_bags import BAGS
from verifycompile.rewrites import families
from verifycompile.rewrites.registry import (
    NEUTRAL_ARGUMENTS,
    Group,
    UnsupportedError,
    bind,
    declaration_of,
    declarations,
)

aten = torch.ops.aten


def test_every_declaration_has_a_sample() -> None:
    counted = {torch.ops.aten.bincount.default}  # of what was chosen alone: tests/operators/test_sorted_rows.py
    checked = {s.target for s in SAMPLES} | set(COLLECTIVES) | set(BAGS) | counted
    assert {str(target) for target in declarations()} - {str(target) for target in checked} == set()


def test_every_family_is_loaded() -> None:
    names = {f"verifycompile.rewrites.{room}.{name}" for name, room in families.FAMILIES.items()}
    handlers = {declaration.handler.__module__ for declaration in declarations().values()}
    assert handlers <= names


@pytest.mark.parametrize("declaration", declarations().values(), ids=lambda d: str(d.target))
def test_a_declaration_names_arguments_of_its_schema(declaration: object) -> None:
    """An argument that every schema of the handler lacks would never be given."""
    overloads = [d for d in declarations().values() if d.handler is declaration.handler]  # type: ignore[attr-defined]
    known = {a.name for d in overloads for a in d.target._schema.arguments}  # type: ignore[attr-defined]
    assert declaration.arguments - known == set()  # type: ignore[attr-defined]
    own = {a.name for a in declaration.target._schema.arguments}  # type: ignore[attr-defined]
    optional = {
        name
        for name, parameter in inspect.signature(declaration.handler).parameters.items()  # type: ignore[attr-defined]
        if parameter.default is not inspect.Parameter.empty
    }
    assert declaration.arguments - own <= optional  # type: ignore[attr-defined]


def test_no_declared_operator_writes_to_its_operands() -> None:
    assert [str(t) for t in declarations() if t._schema.is_mutable] == []  # type: ignore[attr-defined]


def test_no_declared_operator_draws_random_numbers_unnoticed() -> None:
    drawing = {str(t) for t in declarations() if torch.Tag.nondeterministic_seeded in t.tags}  # type: ignore[attr-defined]
    # All refuse a dropout that drops anything.
    fused = ("flash", "flash", "cudnn", "cudnn", "efficient", "efficient")
    ends = ("_for_cpu", "", "", "_backward", "", "_backward")
    attention = {f"aten._scaled_dot_product_{k}_attention{end}.default" for k, end in zip(fused, ends, strict=True)}
    assert drawing == {"aten.native_dropout.default", *attention}


def test_an_argument_without_declaration_must_have_its_default() -> None:
    with pytest.raises(RefusedError) as refused:
        evaluate_call(Sample(aten.expand.default, (torch.ones(3, 1), [3, 4]), {"implicit": True}))
    assert str(refused.value) == "VC202 `aten.expand.default` has no declaration for `implicit=True`"
    evaluate_call(Sample(aten.expand.default, (torch.ones(3, 1), [3, 4]), {"implicit": False}))


def test_neutral_arguments_change_no_value() -> None:
    declaration = declaration_of(aten.zeros_like.default)
    assert declaration is not None
    bound = bind(declaration, ["x"], {"device": "cpu", "pin_memory": True, "memory_format": torch.preserve_format})
    assert bound == {"self": "x", "dtype": None}
    assert {"device", "layout", "pin_memory", "memory_format", "non_blocking"} == NEUTRAL_ARGUMENTS


def test_a_missing_argument_is_named() -> None:
    declaration = declaration_of(aten.mm.default)
    assert declaration is not None
    with pytest.raises(UnsupportedError) as refused:
        bind(declaration, ["x"], {})
    assert refused.value.message == "`aten.mm.default` is called without its argument `mat2`"


def test_a_group_is_an_argument_of_collectives_alone() -> None:
    """A text that happens to name a group is no other text."""
    declaration = declaration_of(aten.gelu.default)
    assert declaration is not None
    with pytest.raises(UnsupportedError) as refused:
        bind(declaration, ["x"], {"approximate": Group((0,))})
    assert refused.value.message == "`aten.gelu.default` with a process group as its argument `approximate`"


def test_every_declaration_calls_its_group_by_one_name() -> None:
    takes_group = [d for d in declarations().values() if "Group" in str(inspect.signature(d.handler))]
    assert len(takes_group) >= 6
    for declaration in takes_group:
        groups = [p.name for p in inspect.signature(declaration.handler).parameters.values() if "Group" in str(p.annotation)]
        assert groups == ["group_name"], declaration.target
