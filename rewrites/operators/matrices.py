"""Linear algebra on matrices that is taken as it is: the last dimensions are read wholly, all others are a batch.

Operators that have more to say than their arguments are in ``factorizations.py``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator, with_arguments
from verifycompile.torch_interface.operators.schema import names_of

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class OnMatrices:
    """An operator on matrices as it is: what it reads of each tensor argument, and what each result has.

    ``inputs``: labels of what each tensor argument reads wholly; ``outputs``: labels of what each result has.
    ``sizes``: the labels of an input of which the smallest has the size of a label of an output.
    ``whole``: results that are one of several answers, such as eigenvectors, which are unique up to a factor. Kernels
    choose by the size of the batch which algorithm they run, so that these are the same for the same whole batch alone.
    ``several``: whether the operator has several results though one alone is described.
    ``attributes``: by result, which of the other arguments matter; by default all of them.
    """

    target: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, str]
    whole: tuple[int, ...] = ()
    several: bool = False
    attributes: Mapping[int, tuple[str, ...]] = dataclasses.field(default_factory=dict[int, tuple[str, ...]])

    def results(self, b: Builder, /, **given: Any) -> tuple[View, ...]:
        """All results."""
        operands = {name: value for name, value in given.items() if isinstance(value, View)}
        if len(operands) != len(self.inputs):
            raise UnsupportedError(UNSUPPORTED, f"`{self.target}` with {len(operands)} tensors")
        require_real(b, *(name for name in operands if "pivots" not in name.lower()))
        known: dict[str, Size] = {}
        for view, labels in zip(operands.values(), self.inputs, strict=True):
            names = labels.split()
            if b.rank(view) < len(names) or 0 in b.shape(view):
                raise UnsupportedError(UNREPRESENTABLE, f"`{self.target}` of a tensor of shape {list(b.shape(view))}")
            known.update(zip(names, b.shape(view)[b.rank(view) - len(names) :], strict=True))
        inner = [len(labels.split()) for labels in self.inputs]
        batch = _common([b.shape(view)[: b.rank(view) - n] for view, n in zip(operands.values(), inner, strict=True)])
        wide = tuple(
            b.expand(view, (*batch, *b.shape(view)[b.rank(view) - n :]))
            for view, n in zip(operands.values(), inner, strict=True)
        )
        found: list[View] = []
        for position, labels in enumerate(self.outputs):
            sizes = {name: _smallest([known[label] for label in self.sizes[name].split()]) for name in labels.split()}
            names = self.attributes.get(position, tuple(name for name in given if name not in operands))
            attributes = tuple((name, given[name]) for name in names)
            found.append(self._result(b, position, attributes, batch, sizes, wide))
        return tuple(found)

    def _result(
        self,
        b: Builder,
        position: int,
        attributes: tuple[tuple[str, Any], ...],
        batch: tuple[Size, ...],
        sizes: Mapping[str, Size],
        operands: tuple[View, ...],
    ) -> View:
        suffix = f":{position}" if len(self.outputs) > 1 or self.several else ""
        whole = position in self.whole
        outer = [f"n{k}" for k in range(len(batch))] if whole else ["*n"]
        fresh = [f"m{k}" for k in range(len(batch))] if whole else ["*n"]
        read = ", ".join(" ".join((*outer, labels)).strip() for labels in self.inputs)
        return b.core(
            _operation(f"{self.target}{suffix}"),
            attributes,
            f"{read} -> {' '.join((*fresh, *sizes))}",
            *operands,
            cores=" ".join((*(outer if whole else ()), *dict.fromkeys(" ".join(self.inputs).split()))),
            fresh={**(dict(zip(fresh, batch, strict=True)) if whole else {}), **sizes},
        )

    def _of_nothing(self, b: Builder, given: Mapping[str, Any]) -> tuple[View, ...] | None:
        """Of matrices without elements: what has no elements either, and that there was no error."""
        operands = [value for value in given.values() if isinstance(value, View)]
        if not any(0 in b.shape(view) for view in operands) or len(operands) != len(self.inputs):
            return None
        known: dict[str, Size] = {}
        for view, labels in zip(operands, self.inputs, strict=True):
            known.update(zip(labels.split(), b.shape(view)[-len(labels.split()) :], strict=False))
        batch = b.shape(operands[0])[: b.rank(operands[0]) - len(self.inputs[0].split())]
        shapes = [
            (*batch, *(min(known[label] for label in self.sizes[name].split()) for name in labels.split()))
            for labels in self.outputs
        ]
        if not all(0 in shape or not labels for shape, labels in zip(shapes, self.outputs, strict=True)):
            return None
        return tuple(b.full(0, shape) for shape in shapes)

    def declare(self) -> None:
        """Register the operator with all of its arguments."""

        def handler(b: Builder, **given: Any) -> Any:
            results = self._of_nothing(b, given) or self.results(b, **given)
            return results if len(self.outputs) > 1 else results[0]

        operator(self.target)(with_arguments(handler, names_of(self.target)))


@functools.cache
def _operation(name: str) -> Operation:
    return Operation(name)


def _common(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """What batches of several shapes are broadcast to."""
    rank = max(len(shape) for shape in shapes)
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    found = [{size for size in column if size != 1} or {1} for column in columns]
    if any(len(sizes) > 1 for sizes in found):
        raise UnsupportedError(UNREPRESENTABLE, f"batches of shapes {', '.join(map(str, shapes))}")
    return tuple(size for sizes in found for size in sizes)


def _smallest(sizes: Sequence[Size]) -> Size:
    known = {size for size in sizes if isinstance(size, int)}
    if len(known) == len(set(sizes)):
        return min(known)
    if len(set(sizes)) == 1:
        return sizes[0]
    raise UnsupportedError(UNREPRESENTABLE, f"the smallest of the sizes {', '.join(map(str, sizes))}")


_SAME = {"p": "a", "q": "a'"}
_SOLUTION = {"p": "a", "q": "c"}
_FACTORS = {"p": "a", "q": "a'", "r": "a a'"}
LU_FACTOR = OnMatrices(aten.linalg_lu_factor_ex.default, ("a a'",), ("p q", "r", ""), _FACTORS)
for _declared in (
    OnMatrices(aten.cholesky.default, ("a a'",), ("p q",), _SAME),
    OnMatrices(aten.cholesky_inverse.default, ("a a'",), ("p q",), _SAME),
    OnMatrices(aten.linalg_cholesky_ex.default, ("a a'",), ("p q", ""), _SAME),
    OnMatrices(aten.linalg_inv_ex.default, ("a a'",), ("p q", ""), _SAME),
    OnMatrices(aten.linalg_matrix_exp.default, ("a a'",), ("p q",), _SAME),
    OnMatrices(aten.cholesky_solve.default, ("a c", "b b'"), ("p q",), _SOLUTION),
    OnMatrices(aten.linalg_solve_triangular.default, ("b b'", "a c"), ("p q",), _SOLUTION),
    OnMatrices(aten.triangular_solve.default, ("a c", "b b'"), ("p q", "r s"), {**_SOLUTION, "r": "b", "s": "b'"}),
    LU_FACTOR,
    OnMatrices(aten.linalg_lu_solve.default, ("b b'", "d", "a c"), ("p q",), _SOLUTION),
    OnMatrices(aten.linalg_ldl_solve.default, ("b b'", "d", "a c"), ("p q",), _SOLUTION),
    OnMatrices(aten.linalg_householder_product.default, ("a c", "d"), ("p q",), _SOLUTION),
    OnMatrices(aten.ormqr.default, ("b b'", "d", "a c"), ("p q",), _SOLUTION),
    OnMatrices(aten.geqrf.default, ("a a'",), ("p q", "r"), _FACTORS, whole=(0, 1)),
    OnMatrices(aten.linalg_ldl_factor_ex.default, ("a a'",), ("p q", "r", ""), {**_SAME, "r": "a"}),
):
    _declared.declare()
