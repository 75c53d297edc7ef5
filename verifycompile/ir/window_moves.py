"""Windows move out of every operation that treats the positions of their dimension alike.

``relu(x[0:3])`` is ``relu(x)[0:3]``. A sum over a window is a sum over the whole dimension under a range indicator, and
sums over ranges that lie next to each other are one. So what the ranks compute on uneven shards is assembled as even
shards are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

from verifycompile.ir.algebra import combine, contract_aligned
from verifycompile.ir.build import Label, Signature, apply, label_sizes
from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, TermPool, View
from verifycompile.ir.window import WINDOW, is_single, range_view, resized, window_at


def window(pool: TermPool, view: View, dim: int, start: int, length: Size) -> View:
    """``length`` positions of ``dim`` from ``start`` on, as a term that other operations move into."""
    if start == 0 and view.shape[dim] == length:
        return view
    if not view.uses(dim):
        return dataclasses.replace(view, shape=(*view.shape[:dim], length, *view.shape[dim + 1 :]))
    inner = window_at(view, dim)
    if inner is not None:
        return window(pool, inner.source, dim, inner.start + start, length)
    labels: tuple[Label, ...] = tuple(range(view.rank))
    output = tuple("fresh" if d == dim else d for d in labels)
    return apply(
        pool, WINDOW, (start,), (view,), Signature((labels,), output, frozenset(), ((dim,),), {"fresh": length})
    )


def moved_application(
    pool: TermPool,
    operation: Operation,
    attributes: tuple[Hashable, ...],
    operands: Sequence[View],
    signature: Signature,
) -> View | None:
    """The window of the operation on whole operands, for an index of the result that all of them read as one window."""
    bound = {*signature.summed, *signature.fresh, *(label for core in signature.cores for label in core)}
    sizes = label_sizes(operands, signature)
    for position, label in enumerate(signature.output):
        if label in bound or any(labels.count(label) > 1 for labels in signature.inputs):
            continue
        readers: dict[int, int] = {}
        for number, (operand, labels) in enumerate(zip(operands, signature.inputs, strict=True)):
            if label in labels and _reads_window(operand, labels.index(label), sizes[label]):
                readers[number] = labels.index(label)
        found = {number: window_at(operands[number], dim) for number, dim in readers.items()}
        parts = [part for part in found.values() if part is not None]
        if not parts or len(parts) != len(found):
            continue
        starts = {part.start for part in parts}
        wholes = {part.source.shape[readers[number]] for number, part in found.items() if part is not None}
        if len(starts) != 1 or len(wholes) != 1:
            continue
        (start,), (whole,) = starts, wholes
        replaced: list[View] = []
        for number, (operand, labels) in enumerate(zip(operands, signature.inputs, strict=True)):
            part = found.get(number)
            if part is not None:
                replaced.append(part.source)
            else:
                replaced.append(resized(operand, labels.index(label), whole) if label in labels else operand)
        result = apply(pool, operation, attributes, replaced, signature)
        return window(pool, result, position, start, sizes[label])
    return None


def moved_product(pool: TermPool, factors: list[View], shape: tuple[Size, ...], free: int) -> View | None:
    """The window of the product of whole factors; a sum over a window is one over the whole under a range."""
    for dim in range(len(shape)):
        shared = _shared_window(factors, dim)
        if shared is None:
            continue
        start, whole = shared
        full = next((v.shape[dim] for v in whole if v.uses(dim)), None)
        if full is None:
            continue
        length, wider = shape[dim], (*shape[:dim], full, *shape[dim + 1 :])
        if dim < free:
            return window(pool, contract_aligned(pool, whole, wider, free), dim, start, length)
        if isinstance(length, int):
            pool.lemma_trace.append(("sum-over-window", ""))
            return contract_aligned(pool, [*whole, range_view(pool, dim, wider, (start, start + length))], wider, free)
    return None


def moved_combination(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> View | None:
    """The window of the sum of whole summands, where all of them are one window of a dimension."""
    for dim in range(len(shape)):
        shared = _shared_window(operands, dim)
        if shared is not None:
            return window(pool, combine(pool, shared[1]), dim, shared[0], shape[dim])
    return None


def _shared_window(views: Sequence[View], dim: int) -> tuple[int, list[View]] | None:
    """The first position and the sources, where all views that use ``dim`` are one window of dimensions of one size."""
    single = all(view.shape[dim] == 1 for view in views)
    users = [view for view in views if (is_single(view, dim) if single else view.uses(dim))]
    found = [window_at(view, dim) for view in users]
    first = found[0] if found else None
    if first is None:
        return None
    full = first.source.shape[dim]
    if any(w is None or w.start != first.start or w.source.shape[dim] != full for w in found):
        return None
    sources = {id(view): w.source for view, w in zip(users, found, strict=True) if w is not None}
    return first.start, [sources[id(v)] if id(v) in sources else resized(v, dim, full) for v in views]


def _reads_window(view: View, dim: int, label_size: Size) -> bool:
    """Whether the view depends on ``dim``, a window of one position included."""
    return is_single(view, dim) if label_size == 1 else view.uses(dim)
