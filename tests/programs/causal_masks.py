"""Masks of causal attention under context parallelism, as programs write them.

Every rank has its own rows of the query and all keys. ``MASKS``: the mask of rows ``first`` to ``first + rows``, written
in one way or another; ``SPECS``: the whole mask, and attention with it, on one device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Mask = Callable[[int, int, int], Tensor]
"""``(first, rows, columns)``: a boolean mask, true where attention is allowed, or one that is added to the scores."""
LOWEST = float("-inf")


def _positions(first: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return first + torch.arange(rows)[:, None], torch.arange(columns)[None]


def compared(first: int, rows: int, columns: int) -> Tensor:
    query, key = _positions(first, rows, columns)
    return query >= key


def difference(first: int, rows: int, columns: int) -> Tensor:
    query, key = _positions(first, rows, columns)
    return query - key >= 0


def negated_difference(first: int, rows: int, columns: int) -> Tensor:
    query, key = _positions(first, rows, columns)
    return ~(key - query > 0)


def one_more(first: int, rows: int, columns: int) -> Tensor:
    return torch.arange(columns) < torch.arange(first, first + rows)[:, None] + 1


def halves(first: int, rows: int, columns: int) -> Tensor:
    query, key = _positions(first, rows, columns)
    return key.float() < query.float() + 0.5


def doubled(first: int, rows: int, columns: int) -> Tensor:
    query, key = _positions(first, rows, columns)
    return 2 * key - 2 * query <= 1


def rows_of_triangle(first: int, rows: int, columns: int) -> Tensor:
    return torch.ones(columns, columns, dtype=torch.bool).tril()[first : first + rows]


def shifted_triangle(first: int, rows: int, columns: int) -> Tensor:
    return torch.ones(rows, columns).tril(diagonal=first) != 0


def added(first: int, rows: int, columns: int) -> Tensor:
    return torch.full((rows, columns), LOWEST).triu(1 + first)


def added_rows(first: int, rows: int, columns: int) -> Tensor:
    return torch.full((columns, columns), LOWEST).triu(1)[first : first + rows]


def filled(first: int, rows: int, columns: int) -> Tensor:
    query, key = _positions(first, rows, columns)
    return torch.zeros(rows, columns).masked_fill(key > query, LOWEST)


def selected(first: int, rows: int, columns: int) -> Tensor:
    query, key = _positions(first, rows, columns)
    return torch.where(query < key, LOWEST, 0.0)


MASKS: tuple[Mask, ...] = (
    compared, difference, negated_difference, one_more, halves, doubled, rows_of_triangle, shifted_triangle, added,
    added_rows, filled, selected,
)  # fmt: skip


def scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def written_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is torch.bool:
        return scores(query, key).masked_fill(~mask, LOWEST).softmax(-1) @ value
    return (scores(query, key) + mask).softmax(-1) @ value


def chosen(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask if mask.dtype is torch.bool else mask == 0, scores(query, key), LOWEST).softmax(-1) @ value


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def window(size: int, by_triangles: bool = False) -> Mask:
    """The ``size`` keys up to the query's own."""

    def mask(first: int, rows: int, columns: int) -> Tensor:
        if by_triangles:
            ones = torch.ones(columns, columns, dtype=torch.bool)
            return (ones.tril() & ones.triu(1 - size))[first : first + rows]
        query, key = _positions(first, rows, columns)
        return (key <= query) & (query - key < size)

    return mask


def whole(mask: Mask) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention on one device under a mask."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return written_out(query, key, value, mask(0, query.shape[2], key.shape[2]))

    return attend


def by_rank(
    mask: Mask,
    attention: Callable[..., Tensor],
    gather: Callable[[Tensor], Tensor],
    rank: Callable[[], int],
    mistake: str,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """``mistake``: one of ``MISTAKES``, or empty. Own rows of the query, all keys and values."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = query.shape[2]
        keys, values = gather(key), gather(value)
        first = 0 if mistake == "positions of the first rank" else rank() * rows
        if mistake == "positions of another rank":
            first = keys.shape[2] - rows - rank() * rows
        first += {"one position more": 1, "one position less": -1}.get(mistake, 0)
        return attention(query, keys, values, mask(first, rows, keys.shape[2]))

    return attend


MISTAKES = ("positions of the first rank", "positions of another rank", "one position more")
