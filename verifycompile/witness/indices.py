"""Valid values of integer inputs, read off from the operators that use them as indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.fx

from verifycompile.torch_interface.operators.calls import by_name
from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.walks import reached

DEFAULT_BOUND = 4
"""Integers without a known use are drawn from ``range(DEFAULT_BOUND)``."""

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})

_COUNTING_FROM_THE_END = frozenset({"index", "index_put"})
"""Operators of which the index -1 names the last element; the others refuse negative indices."""

_SEARCHED = {"aten.bucketize.Tensor": "boundaries", "aten.searchsorted.Tensor": "sorted_sequence"}
"""The arguments whose elements have to ascend."""

_KEEPS_VALUES = frozenset(
    {
        "_to_copy",
        "_unsafe_view",
        "alias",
        "broadcast_to",
        "cat",
        "chunk",
        "clone",
        "contiguous",
        "detach",
        "expand",
        "flatten",
        "index_put",
        "lift_fresh_copy",
        "masked_fill",
        "permute",
        "repeat",
        "reshape",
        "select",
        "slice",
        "split",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "unsqueeze",
        "view",
        "where",
    }
)


def index_bound(placeholder: torch.fx.Node, size_of: Callable[[object], int | None]) -> int:
    """The smallest size that an integer placeholder's elements index; where none does, above all positions and numbers
    with which they are compared.
    """
    numbers = (number + 2 for number in compared_numbers(placeholder))
    positions = (count for value in _compared_with(placeholder) for count in _counts_of_positions(value, size_of))
    compared = max((DEFAULT_BOUND, *numbers, *positions))
    return min((bound for _, bound in _uses_as_indices(placeholder, size_of)), default=compared)


def compared_numbers(placeholder: torch.fx.Node) -> tuple[int, ...]:
    """The whole numbers with which an integer placeholder's elements are compared, as they are."""
    return tuple(number for number in _compared_with(placeholder) if isinstance(number, int))


def _compared_with(placeholder: torch.fx.Node) -> Iterator[object]:
    """What an integer placeholder's elements are compared with, as they are."""
    for user, node in _uses(placeholder, lambda user, _: keeps_values(user)):
        if (operator_name(user.target) or "").partition(".")[2].partition(".")[0] in _COMPARISONS:
            yield from (operand for operand in user.args if operand is not node)


def _counts_of_positions(value: object, size_of: Callable[[object], int | None]) -> Iterator[int]:
    """How many positions there are of those that a value is computed of."""
    for node in reached([value], lambda node: node.all_input_nodes) if isinstance(value, torch.fx.Node) else ():
        if (operator_name(node.target) or "").startswith("aten.arange."):
            count = size_of(by_name(node.target, node.args, node.kwargs).get("end"))
            yield from () if count is None else (count,)


def counts_from_the_end(placeholder: torch.fx.Node) -> bool:
    """Whether an integer placeholder's elements index dimensions, all by operators that take negative indices."""
    traced = placeholder.meta.get("val")
    if not isinstance(traced, torch.Tensor) or traced.dtype == torch.bool or traced.dtype.is_floating_point:
        return False
    users = (user for user, _ in _uses_as_indices(placeholder, lambda _: DEFAULT_BOUND))
    names = {str(operator_name(user.target)).split(".")[1] for user in users}
    return bool(names) and names <= _COUNTING_FROM_THE_END


def is_searched(placeholder: torch.fx.Node) -> bool:
    """Whether an operator searches among a placeholder's elements, as they are, which have to ascend for it."""
    return any(_searches_in(user, node) for user, node in _uses(placeholder, lambda user, _: keeps_values(user)))


def _searches_in(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    boundaries = _SEARCHED.get(operator_name(user.target) or "")
    return boundaries is not None and by_name(user.target, user.args, user.kwargs).get(boundaries) is node


def _uses_as_indices(
    placeholder: torch.fx.Node, size_of: Callable[[object], int | None]
) -> Iterator[tuple[torch.fx.Node, int]]:
    """Each node that indexes with a placeholder's elements, as they are, and the size that it indexes."""

    def hands_on(user: torch.fx.Node, node: torch.fx.Node) -> bool:
        return _bound_of_use(user, node, size_of) is None and keeps_values(user)

    for user, node in _uses(placeholder, hands_on):
        bound = _bound_of_use(user, node, size_of)
        if bound is not None:
            yield user, bound


def _uses(
    placeholder: torch.fx.Node, hands_on: Callable[[torch.fx.Node, torch.fx.Node], bool]
) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """Each node that takes a placeholder's elements, as they are, and the node from which it takes them."""
    seen = {placeholder}
    stack = [placeholder]
    while stack:
        node = stack.pop()
        for user in node.users:
            yield user, node
            if user not in seen and hands_on(user, node):
                seen.add(user)
                stack.append(user)


def keeps_values(node: torch.fx.Node) -> bool:
    """Whether an operator hands on elements of its operands as they are."""
    name = operator_name(node.target)
    if name is None:
        return getattr(node.target, "__name__", "") == "getitem"
    return name.startswith("aten.") and name.split(".")[1] in _KEEPS_VALUES


def _bound_of_use(user: torch.fx.Node, index: torch.fx.Node, size_of: Callable[[object], int | None]) -> int | None:
    name = operator_name(user.target)
    if name is None or not name.startswith("aten."):
        return None
    rule = _RULES.get(name.split(".")[1])
    return rule(by_name(user.target, user.args, user.kwargs), index, size_of) if rule is not None else None


_Rule = Callable[[Mapping[str, object], torch.fx.Node, Callable[[object], int | None]], int | None]


def _dimension(value: object, dim: object, size_of: Callable[[object], int | None]) -> int | None:
    traced = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    if not isinstance(traced, torch.Tensor) or not isinstance(dim, int) or traced.dim() == 0:
        return None
    return size_of(traced.shape[dim])


def _along(operand: str, index_name: str, dim: int | str) -> _Rule:
    def rule(
        arguments: Mapping[str, object], index: torch.fx.Node, size_of: Callable[[object], int | None]
    ) -> int | None:
        if arguments.get(index_name) is not index:
            return None
        where = arguments.get(dim) if isinstance(dim, str) else dim
        return _dimension(arguments.get(operand), where, size_of)

    return rule


def _advanced_indexing(
    arguments: Mapping[str, object], index: torch.fx.Node, size_of: Callable[[object], int | None]
) -> int | None:
    indices = arguments.get("indices")
    if not isinstance(indices, (list, tuple)):
        return None
    sizes = [_dimension(arguments.get("self"), dim, size_of) for dim, used in enumerate(indices) if used is index]
    return min((size for size in sizes if size is not None), default=None)


_RULES: Mapping[str, _Rule] = {
    "embedding": _along("weight", "indices", 0),
    "gather": _along("self", "index", "dim"),
    "index_select": _along("self", "index", "dim"),
    "scatter": _along("self", "index", "dim"),
    "scatter_add": _along("self", "index", "dim"),
    "index_add": _along("self", "index", "dim"),
    "nll_loss_forward": _along("self", "target", -1),
    "nll_loss2d_forward": _along("self", "target", 1),
    "index": _advanced_indexing,
    "index_put": _advanced_indexing,
}
