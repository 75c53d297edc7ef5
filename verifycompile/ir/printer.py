"""Terms and views as text for people, for error messages and reports.

``contract[i j ; k](x[i k], w[k j])``: the operation, its free indices, after the semicolon its bound ones, and its
operands, each with one position per axis. A position spells digits most significant first: ``i/4%2`` is the digit
``(i // 4) % 2``, ``2:3`` the constant 2 of 3, ``.`` an axis of size 1; digits of one axis are joined by ``+``.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from fractions import Fraction

from verifycompile.ir.scalar import Scalar
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, INDICATOR_LEAF, INTEGER_LEAF, LEAF, UNIT, Axis, Digit, Term, View

_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"
_ELLIPSIS = "..."


def show(view: View, names: Mapping[Term, str] | None = None, depth: int = 3) -> str:
    """A view: its coefficient, and its term read at the view's dimensions ``d0``, ``d1``...

    ``names``: terms to be called by a name. ``depth``: levels of operands written out before an ellipsis.
    """
    dims = [f"d{k}" for k in range(view.rank)]
    return _scaled(view, _reference(view, dims, view.shape, names or {}, depth))


def show_term(term: Term, depth: int = 3, names: Mapping[Term, str] | None = None) -> str:
    """A term: its operation over its indices, with its operands."""
    return _term(term, dict(names or {}), depth)


def describe_term(term: Term) -> str:
    """One level of a term, with its number: for messages about its structure."""
    return f"#{term.id} {show_term(term, depth=1)}"


def describe_axis(axis: Axis) -> str:
    """Digits of one axis without the names or sizes of the dimensions that they read."""
    return "+".join(_digit(d, f"d{d[0]}", None) for d in axis) or "."


def _term(term: Term, names: Mapping[Term, str], depth: int) -> str:
    if term in names:
        return names[term]
    if term.operation in (LEAF, INDICATOR_LEAF, INTEGER_LEAF):
        return str(term.attributes[0])
    if term.operation is UNIT:
        return "1"
    letters = _index_names(len(term.index_sizes))
    free = " ".join(letters[: term.free])
    groups = [letters[term.free : term.free + term.summed], *([letters[i] for i in core] for core in term.cores)]
    bound = [" ".join(group) for group in groups if group]
    indices = " ; ".join([free, *bound]) if bound else free
    return f"{term.operation.name}[{indices}]{_attributes(term)}{_operands(term, letters, names, depth)}"


def _attributes(term: Term) -> str:
    return f"<{', '.join(map(str, term.attributes))}>" if term.attributes else ""


def _operands(term: Term, letters: Sequence[str], names: Mapping[Term, str], depth: int) -> str:
    if not term.operands:
        return ""
    if depth <= 0:
        return f"({_ELLIPSIS})"
    inner = [_scaled(v, _reference(v, letters, term.index_sizes, names, depth - 1)) for v in term.operands]
    return f"({', '.join(inner)})"


def _reference(view: View, dims: Sequence[str], sizes: Sequence[Size], names: Mapping[Term, str], depth: int) -> str:
    """A term read at digits of ``dims``."""
    text = _term(view.term, names, depth)
    positions = " ".join(_axis(axis, dims, sizes) for axis in view.axes)
    return f"{text}[{positions}]" if positions else text


def _axis(axis: Axis, dims: Sequence[str], sizes: Sequence[Size]) -> str:
    return "+".join(_digit(d, _name(d, dims), _size(d, sizes)) for d in axis) or "."


def _name(digit: Digit, dims: Sequence[str]) -> str:
    return dims[digit[0]] if 0 <= digit[0] < len(dims) else f"d{digit[0]}"


def _size(digit: Digit, sizes: Sequence[Size]) -> Size | None:
    return sizes[digit[0]] if 0 <= digit[0] < len(sizes) else None


def _digit(digit: Digit, name: str, size: Size | None) -> str:
    dim, divisor, extent = digit
    if dim == CONSTANT:
        return f"{divisor}:{extent}"
    below = "" if divisor == 1 else f"/{divisor}"
    # The topmost digit of a dimension needs no remainder.
    whole = size is not None and size == divisor * extent
    return f"{name}{below}" if whole else f"{name}{below}%{extent}"


def _scaled(view: View, text: str) -> str:
    if view.coefficient == 1:
        return text
    shown = show_number(view.coefficient)
    return shown if view.term.operation is UNIT else f"{shown}*{text}"


def _index_names(count: int) -> list[str]:
    if count <= len(_LETTERS):
        return list(_LETTERS[:count])
    return [f"{string.ascii_lowercase[8]}{k}" for k in range(count)]


def show_number(value: Scalar) -> str:
    """Text for people: exact where short, rounded where the exact rational is long."""
    text = str(value)
    if isinstance(value, Fraction) and len(text) > 12:
        return f"{float(value):.6g}"
    return text
