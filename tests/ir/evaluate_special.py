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
    values = {a.name: given[a.name] if a.name in given else next(supply) for a in overload._schema.arguments}
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
            for position_of_operand, rank in enumerate(_RANKS[target]):
                value = cores.alone(position_of_operand, *range(first, first + rank))
                value = value.expand([*cores.batch, *value.shape[len(cores.batch) :]]).contiguous()
                operands.append(value.to(torch.int32) if rank == 1 else value)
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
    }.items()
}  # fmt: skip
"""How many core dimensions each operand has; one with a single core dimension holds whole numbers."""

CORES: dict[str, Callable[[Any], Tensor]] = {
    f"cumulative_{kind}{suffix}": (
        lambda cores, name=f"cum{kind}", position=position: getattr(torch, name)(cores.alone(0, 0), -1)[
            position
        ].double()
    )
    for kind in ("max", "min")
    for position, suffix in enumerate(("", "_index"))
}
