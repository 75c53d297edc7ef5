"""What the algebra assumes of the IR's operations: distinct names, linearity where it is declared."""

from __future__ import annotations

import collections
import functools
import sys

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.operators.call import evaluate_call, leaf_name
from tests.operators.samples import SAMPLES
from verifycompile.ir.term import Operation, Term, TermPool, View


def declared_operations() -> list[Operation]:
    """The operations that modules of the package hold, and those that samples use."""
    held = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith("verifycompile.")
        for item in vars(module).values()
        for value in (item.values() if isinstance(item, dict) else [item])
        if type(value) is Operation
    ]
    return list({id(o): o for o in [*held, *(t.operation for t in sample_terms())]}.values())


@functools.cache
def sample_terms() -> tuple[Term, ...]:
    return tuple(term for pool, _ in sample_pools() for term in pool.terms)


@functools.cache
def sample_pools() -> tuple[tuple[TermPool, Evaluator], ...]:
    found: list[tuple[TermPool, Evaluator]] = []
    for sample in SAMPLES:
        pool = TermPool()
        evaluate_call(sample, pool)
        found.append((pool, Evaluator({leaf_name(k): t for k, t in enumerate(sample.tensors)})))
    return tuple(found)


def test_every_operation_has_a_name_of_its_own() -> None:
    """Certificates name the operations of what they replay."""
    names = collections.Counter(operation.name for operation in declared_operations())
    assert [name for name, count in names.items() if count > 1] == []


def linear_terms() -> list[tuple[str, Term, Evaluator]]:
    """One term of every linear operation and number of operands, as samples make them."""
    found: dict[tuple[object, ...], tuple[str, Term, Evaluator]] = {}
    for pool, evaluator in sample_pools():
        for term in pool.terms:
            operation = term.operation
            if term.operands and (operation.linear or operation.jointly_linear):
                key = (operation.name, len(term.operands), len(term.cores), term.attributes)
                found.setdefault(key, (operation.name, term, evaluator))
    return list(found.values())


class _Replaced(Evaluator):
    """Evaluates one term with other values for some of its operands."""

    def __init__(self, base: Evaluator, values: dict[int, torch.Tensor]) -> None:
        super().__init__(base.leaves, base.symbols)
        self.values = values

    def _read(self, view: View) -> torch.Tensor:
        return self.values.get(id(view), super()._read(view))


def test_linearity(subtests: pytest.Subtests) -> None:
    """One test of all terms: to find them all samples are lowered, which a run that collects this need not wait for."""
    for name, term, evaluator in linear_terms():
        operation = term.operation
        groups = (
            [tuple(range(len(term.operands)))]
            if operation.jointly_linear
            else [(k,) for k in operation.linear if k < len(term.operands)]
        )
        for group in groups:
            with subtests.test(name, operands=len(term.operands), group=group):
                assert_linear(term, group, evaluator)


def assert_linear(term: Term, group: tuple[int, ...], evaluator: Evaluator) -> None:
    first, second, mixed = {}, {}, {}
    for position in group:
        operand = term.operands[position]
        value = evaluator._read(operand)
        if value.is_complex():
            a, b = (torch.complex(torch.randn_like(value.real), torch.randn_like(value.real)) for _ in range(2))
        else:
            a, b = torch.randn_like(value), torch.randn_like(value)
        first[id(operand)], second[id(operand)], mixed[id(operand)] = a, b, a + 3 * b
    left = _Replaced(evaluator, mixed)._evaluate(term)
    right = _Replaced(evaluator, first)._evaluate(term) + 3 * _Replaced(evaluator, second)._evaluate(term)
    torch.testing.assert_close(left, right)


def test_all_linear_operations_are_seen() -> None:
    operations = {o.name for o in declared_operations() if o.linear or o.jointly_linear}
    assert operations - {name for name, _, _ in linear_terms()} == set()
