"""Linear algebra on matrices that is taken as it is: the last dimensions are read wholly, all others are a batch.

Only operators whose result is one function of the matrix. Eigenvectors are unique up to a factor alone, and some
kernels factorize the transposed matrix where the memory lies so: those are not declared.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import require_real
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, Handler, UnsupportedError, operator
from verifycompile.torch_interface.schema import arguments_of

aten = torch.ops.aten


def _on_matrices(target: Any, inputs: Sequence[str], outputs: Sequence[str], sizes: Mapping[str, str]) -> Handler:
    """``inputs``: labels of what each tensor argument reads wholly; ``outputs``: labels of what each result has.

    ``sizes``: the label of an input that has the size of a label of an output.
    """
    arguments = [argument.name for argument in arguments_of(target) or ()]
    operations = [Operation(f"{target}:{k}" if len(outputs) > 1 else str(target)) for k in range(len(outputs))]

    def handler(b: Builder, **given: Any) -> Any:
        operands = {name: value for name, value in given.items() if isinstance(value, View)}
        if len(operands) != len(inputs):
            raise UnsupportedError(UNSUPPORTED, f"`{target}` with {len(operands)} tensors")
        require_real(b, *(name for name in operands if name != "pivots"))
        known: dict[str, Any] = {}
        for view, labels in zip(operands.values(), inputs, strict=True):
            names = labels.split()
            if b.rank(view) < len(names) or 0 in b.shape(view):
                raise UnsupportedError(UNREPRESENTABLE, f"`{target}` of a tensor of shape {list(b.shape(view))}")
            known.update(zip(names, b.shape(view)[b.rank(view) - len(names) :], strict=True))
        batches = {
            b.shape(view)[: b.rank(view) - len(labels.split())]
            for view, labels in zip(operands.values(), inputs, strict=True)
        }
        if len(batches) > 1:
            raise UnsupportedError(UNSUPPORTED, f"`{target}` of batches of several shapes")
        attributes = tuple((name, value) for name, value in given.items() if name not in operands)
        read = ", ".join(f"*n {labels}".strip() for labels in inputs)
        results = [
            b.core(
                operation,
                attributes,
                f"{read} -> *n {labels}".strip(),
                *operands.values(),
                cores=" ".join(dict.fromkeys(" ".join(inputs).split())),
                fresh={name: known[sizes[name]] for name in labels.split()},
            )
            for operation, labels in zip(operations, outputs, strict=True)
        ]
        return tuple(results) if len(results) > 1 else results[0]

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("b", *arguments)]
    handler.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return handler


_SAME = {"p": "a", "q": "a'"}
_SOLUTION = {"p": "a", "q": "c"}
for _target, _inputs, _outputs, _sizes in (
    (aten.cholesky.default, ("a a'",), ("p q",), _SAME),
    (aten.cholesky_inverse.default, ("a a'",), ("p q",), _SAME),
    (aten.linalg_cholesky_ex.default, ("a a'",), ("p q", ""), _SAME),
    (aten.linalg_inv_ex.default, ("a a'",), ("p q", ""), _SAME),
    (aten.linalg_matrix_exp.default, ("a a'",), ("p q",), _SAME),
    (aten.cholesky_solve.default, ("a c", "b b'"), ("p q",), _SOLUTION),
    (aten.linalg_solve_triangular.default, ("b b'", "a c"), ("p q",), _SOLUTION),
    (aten.triangular_solve.default, ("a c", "b b'"), ("p q", "r s"), {**_SOLUTION, "r": "b", "s": "b'"}),
    (aten.linalg_lu_factor_ex.default, ("a a'",), ("p q", "r", ""), {**_SAME, "r": "a"}),
    (aten.linalg_lu_solve.default, ("b b'", "d", "a c"), ("p q",), _SOLUTION),
):
    operator(_target)(_on_matrices(_target, _inputs, _outputs, _sizes))
