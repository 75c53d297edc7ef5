"""Operations on views that only move digits: no arithmetic, no new term.

Dimensions of a view are numbered with the mesh dimensions first; functions here do not distinguish them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import CONSTANT, Axis, Digit, View


class UnalignedError(ValueError):
    """A digit boundary falls inside another digit: the layout is no mixed-radix relabelling."""


def merge_digits(digits: Iterable[Digit]) -> Axis:
    """Canonical form of an axis: no digit of size 1, neighbours of one dimension merged."""
    merged: list[Digit] = []
    for dim, divisor, size in digits:
        if size == 1:
            continue
        if merged:
            last_dim, last_divisor, last_size = merged[-1]
            if dim == last_dim:
                if dim == CONSTANT:
                    merged[-1] = (CONSTANT, last_divisor * size + divisor, product((last_size, size)))
                    continue
                if last_divisor == product((divisor, size)):
                    merged[-1] = (dim, divisor, product((last_size, size)))
                    continue
        merged.append((dim, divisor, size))
    return tuple(merged)


def extract(digits: Sequence[Digit], divisor: Size, size: Size) -> list[Digit]:
    """Digits of ``(value // divisor) % size`` where ``value`` is the number that ``digits`` spell.

    Raises UnalignedError where a boundary does not fall between digits or divide one.
    """
    taken: list[Digit] = []
    skip, need = divisor, size
    for digit in reversed(digits):
        dim, inner, extent = digit
        if need == 1:
            break
        rest = exact_quotient(skip, extent)
        if rest is not None:
            skip = rest
            continue
        upper = exact_quotient(extent, skip)
        if upper is None:
            raise UnalignedError(f"boundary {skip} inside a digit of size {extent}")
        inner, extent, skip = inner // skip if dim == CONSTANT else product((inner, skip)), upper, 1
        rest = exact_quotient(need, extent)
        if rest is not None:
            taken.append((dim, inner, extent))
            need = rest
            continue
        if exact_quotient(extent, need) is None:
            raise UnalignedError(f"boundary {need} inside a digit of size {extent}")
        taken.append((CONSTANT, inner % need, need) if dim == CONSTANT else (dim, inner, need))
        need = 1
    if need != 1:
        raise UnalignedError(f"digits end before {size}")
    taken.reverse()
    return taken


def substitute(view: View, replacement: Mapping[int, Sequence[Digit]], shape: tuple[Size, ...]) -> View:
    """Replace whole dimensions by digits over a new index space of shape ``shape``.

    ``replacement[dim]`` spells the old index of ``dim``, most significant digit first. Every used dimension
    must have one. Raises UnalignedError.
    """
    axes: list[Axis] = []
    for axis in view.axes:
        digits: list[Digit] = []
        for digit in axis:
            if digit[0] == CONSTANT:
                digits.append(digit)
                continue
            source = replacement[digit[0]]
            if len(source) == 1 and source[0][2] == digit[2] and digit[1] == 1:
                digits.append(source[0])
            else:
                digits.extend(extract(source, digit[1], digit[2]))
        axes.append(merge_digits(digits))
    return View(view.coefficient, view.term, shape, tuple(axes))


def permute(view: View, order: Sequence[int]) -> View:
    """``torch.permute``: dimension ``i`` of the result is ``order[i]`` of the view, which depends on no other ones."""
    position = {old: new for new, old in enumerate(order)}
    shape = tuple(view.shape[old] for old in order)
    axes = tuple(tuple(d if d[0] == CONSTANT else (position[d[0]], d[1], d[2]) for d in axis) for axis in view.axes)
    return View(view.coefficient, view.term, shape, axes)


def reshape(view: View, shape: tuple[Size, ...], keep: int = 0) -> View:
    """Row-major reshape of all but the first ``keep`` dimensions to ``shape``. Raises UnalignedError."""
    old_shape = view.shape[keep:]
    if old_shape == shape:
        return view
    weights = [product(old_shape[dim + 1 :]) for dim in range(len(old_shape))]
    target = [(keep + i, 1, size) for i, size in enumerate(shape)]
    axes: list[Axis] = []
    for axis in view.axes:
        digits: list[Digit] = []
        for digit in axis:
            if digit[0] < keep:
                digits.append(digit)
            else:
                digits.extend(extract(target, product((weights[digit[0] - keep], digit[1])), digit[2]))
        axes.append(merge_digits(digits))
    return View(view.coefficient, view.term, view.shape[:keep] + shape, tuple(axes))


def insert_dim(view: View, dim: int, size: Size = 1) -> View:
    """Add a dimension on which the value does not depend."""
    axes = tuple(
        tuple(d if d[0] < dim else (d[0] + 1, d[1], d[2]) for d in axis)  # CONSTANT is below every dimension
        for axis in view.axes
    )
    return View(view.coefficient, view.term, (*view.shape[:dim], size, *view.shape[dim:]), axes)


def remove_dim(view: View, dim: int) -> View:
    """Drop a dimension on which the value does not depend (any size)."""
    if view.uses(dim):
        raise ValueError(f"the value depends on dimension {dim}")
    return permute(view, [*range(dim), *range(dim + 1, view.rank)])


def broadcast_to(view: View, shape: tuple[Size, ...], keep: int) -> View:
    """Expand trailing dimensions to ``shape`` (mesh dimensions, the first ``keep``, excluded), as torch does."""
    missing = len(shape) - (view.rank - keep)
    result = view
    for _ in range(missing):
        result = insert_dim(result, keep)
    return View(result.coefficient, result.term, view.shape[:keep] + shape, result.axes)


def split_dim(view: View, dim: int, outer: Size, inner: Size) -> View:
    """Replace ``dim`` by two dimensions of sizes ``outer`` and ``inner``. Raises UnalignedError."""
    return replace_dim(insert_dim(view, dim, outer), dim + 1, [(dim, 1, outer), (dim + 1, 1, inner)], inner)


def replace_dim(view: View, dim: int, digits: Sequence[Digit], size: Size) -> View:
    """Re-index ``dim``: its old index is spelled by ``digits``, its new size is ``size``. Raises UnalignedError."""
    replacement: dict[int, Sequence[Digit]] = {d: [(d, 1, s)] for d, s in enumerate(view.shape)}
    replacement[dim] = digits
    return substitute(view, replacement, (*view.shape[:dim], size, *view.shape[dim + 1 :]))


def select(view: View, dim: int, index: Size) -> View:
    """``torch.select``: fix ``dim`` at ``index`` and drop it."""
    fixed = replace_dim(view, dim, [(CONSTANT, index, view.shape[dim])], 1)
    return remove_dim(fixed, dim)


def narrow(view: View, dim: int, start: Size, length: Size) -> View:
    """``torch.narrow`` where the piece is one aligned block, or whole periods. Raises UnalignedError otherwise."""
    size = view.shape[dim]
    count, block = exact_quotient(size, length), exact_quotient(start, length)
    if count is None or block is None:
        if _repeats(view, dim, start) and _repeats(view, dim, length):
            return View(view.coefficient, view.term, (*view.shape[:dim], length, *view.shape[dim + 1 :]), view.axes)
        raise UnalignedError(f"slice [{start}:{start}+{length}] of {size} is no aligned block")
    return replace_dim(view, dim, [(CONSTANT, block, count), (dim, 1, length)], length)


def _repeats(view: View, dim: int, distance: Size) -> bool:
    """Whether an element along ``dim`` and the one so far behind it are the same: all digits are below the distance."""
    spans = [product((d[1], d[2])) for axis in view.axes for d in axis if d[0] == dim]
    return all(exact_quotient(distance, span) is not None for span in spans)


def compose(operand: View, index_axes: Sequence[Axis], shape: tuple[Size, ...]) -> View:
    """Re-index ``operand``, a view over a term's indices, by ``index_axes`` (digits over a space of ``shape``)."""
    axes: list[Axis] = []
    for axis in operand.axes:
        digits: list[Digit] = []
        for digit in axis:
            if digit[0] == CONSTANT:
                digits.append(digit)
            else:
                digits.extend(index_axes[digit[0]])
        axes.append(merge_digits(digits))
    return View(operand.coefficient, operand.term, shape, tuple(axes))


def inverse_digits(view: View) -> dict[int, list[Digit]] | None:
    """Every used dimension of ``view`` as digits of the term's axes, or None where the term does not determine it.

    With it a view of equal shape can be re-indexed by the term's own axes.
    """
    found: dict[int, list[tuple[Size, Digit]]] = {}
    for k, axis in enumerate(view.axes):
        weight: Size = 1
        for dim, divisor, size in reversed(axis):
            if dim == CONSTANT:
                return None
            found.setdefault(dim, []).append((divisor, (k, weight, size)))
            weight = product((weight, size))
    result: dict[int, list[Digit]] = {}
    for dim, pieces in found.items():
        expected: Size = 1
        digits: list[Digit] = []
        for divisor, digit in sorted(pieces, key=lambda p: str(p[0]).zfill(20)):
            if divisor != expected:
                return None
            digits.insert(0, digit)
            expected = product((expected, digit[2]))
        if expected != view.shape[dim]:
            return None
        result[dim] = digits
    return result
