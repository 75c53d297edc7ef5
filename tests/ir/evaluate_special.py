"""Operators of torch that the IR knows by their names alone: called by these names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten


def call(name: str, attributes: Sequence[Any], operands: Sequence[Tensor]) -> Any:
    """``aten.NAME.OVERLOAD`` with its tensor arguments in order and the others by name."""
    overload: Any = torch.ops
    for part in name.split("."):
        overload = getattr(overload, part)
    given, supply = dict(attributes), iter(operands)
    values: dict[str, Any] = {}
    for a in overload._schema.arguments:
        default = a.default_value if a.has_default_value() else None
        is_tensor = str(a.real_type) == "Tensor"
        values[a.name] = given[a.name] if a.name in given else next(supply) if is_tensor else default
    arguments = [values[a.name] for a in overload._schema.arguments if not a.kwarg_only]
    return overload(*arguments, **{a.name: values[a.name] for a in overload._schema.arguments if a.kwarg_only})


class ElementByElement(dict[str, Callable[..., Tensor]]):
    """Operators by name, beside the operations that are given."""

    def __missing__(self, name: str) -> Callable[..., Tensor]:
        if not name.startswith("aten."):
            raise KeyError(name)
        return lambda attributes, *operands: call(
            name, attributes, [t.contiguous() for t in torch.broadcast_tensors(*operands)]
        )


class OnMatrices(dict[str, Callable[[Any], Tensor]]):
    """Operators by name and, after a colon, the number of the result."""

    def __missing__(self, name: str) -> Callable[[Any], Tensor]:
        if not name.startswith("aten."):
            raise KeyError(name)
        target, _, position = name.partition(":")

        def evaluate(cores: Any) -> Tensor:
            operands: list[Tensor] = []
            first = 0
            groups = cores.operands[0].dim() - len(cores.batch)
            for position_of_operand, rank in enumerate(_RANKS.get(target, (groups,))):
                value = cores.alone(position_of_operand, *range(first, first + rank))
                value = value.expand([*cores.batch, *value.shape[len(cores.batch) :]]).contiguous()
                dtype = torch.int32 if rank == 1 and target in _PLACES else dict(cores.attributes).get("dtype")
                operands.append(value.to(dtype) if dtype is not None else value)
                first += rank
            result = call(target, cores.attributes, operands)
            return (result[int(position)] if position else result).double()

        return evaluate


_RANKS = {
    f"aten.{name}.default": ranks
    for name, ranks in {
        "cholesky": (2,), "cholesky_inverse": (2,), "linalg_cholesky_ex": (2,), "linalg_inv_ex": (2,),
        "linalg_matrix_exp": (2,), "cholesky_solve": (2, 2), "linalg_solve_triangular": (2, 2),
        "triangular_solve": (2, 2), "linalg_lu_factor_ex": (2,), "linalg_lu_solve": (2, 1, 2),
        "linalg_ldl_solve": (2, 1, 2), "linalg_householder_product": (2, 1), "ormqr": (2, 1, 2),
        "_linalg_det": (2,), "_linalg_slogdet": (2,), "_linalg_solve_ex": (2, 2),
    }.items()
}  # fmt: skip
"""How many core dimensions each operand has, where not all are core dimensions of a single one."""

_PLACES = ("aten.linalg_lu_solve.default", "aten.linalg_ldl_solve.default")
"""Operators whose operand of a single core dimension holds whole numbers."""


def _permutation(cores: Any) -> Tensor:
    pivots = cores.alone(0, 0).to(torch.int32)
    rows = cores.fresh[-1]
    data = torch.zeros([*cores.batch, rows, pivots.shape[-1]], dtype=torch.float64)
    return torch.lu_unpack(data, pivots, unpack_data=False)[0]


def _pseudoinverse(cores: Any) -> Tensor:
    hermitian, has_atol, has_rtol = cores.attributes
    tolerances = iter(cores.alone(k) for k in range(1, len(cores.operands)))
    matrix = cores.alone(0, 0, 1)
    matrix = matrix.expand([*cores.batch, *matrix.shape[-2:]])
    atol = next(tolerances) if has_atol else None
    rtol = next(tolerances) if has_rtol else None
    return torch.linalg.pinv(matrix, atol=atol, rtol=rtol, hermitian=hermitian)


CORES: dict[str, Callable[[Any], Tensor]] = {
    f"cumulative_{kind}{suffix}": (
        lambda cores, name=f"cum{kind}", position=position: getattr(torch, name)(cores.alone(0, 0), -1)[
            position
        ].double()
    )
    for kind in ("max", "min")
    for position, suffix in enumerate(("", "_index"))
} | {"permutation_of_pivots": _permutation, "pseudoinverse": _pseudoinverse}
