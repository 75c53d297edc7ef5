"""Whether a pattern under a substitution is a given expression.

Terms are hash-consed, so that a variable is compared by identity: the factors of a product are a multiset of terms with
the digits that index them. A pattern of an operation is compared with the operation of the term, opened.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Mapping, Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, Opened, open_view
from verifycompile.ir.exponential import EXPONENTIAL, LOGARITHM, POWER
from verifycompile.ir.indicator import EQUAL, LESS, LESS_EQUAL, NOT
from verifycompile.ir.relabel import compose, merge_digits
from verifycompile.ir.scalar import ONE, Scalar, add, divide, multiply
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import UNIT, Digit, Operation, View
from verifycompile.rewrites.lemmas.lemma import Pattern
from verifycompile.rewrites.lemmas.substitution import Factors, Substitution

Shape = tuple[Size, ...]

OPERATIONS: dict[str, Operation] = {
    "exp": EXPONENTIAL,
    "log": LOGARITHM,
    "not": NOT,
    "equal": EQUAL,
    "less": LESS,
    "less_equal": LESS_EQUAL,
}


def factors_of(views: Sequence[View]) -> tuple[Scalar, list[View]]:
    """A product as a number, and factors that are no products and have no number of their own."""
    coefficient: Scalar = ONE
    plain: list[View] = []
    for view in views:
        coefficient = multiply(coefficient, view.coefficient)
        term = view.term
        if term.operation is CONTRACT and not term.summed:
            inner, parts = factors_of([compose(operand, view.axes, view.shape) for operand in term.operands])
            coefficient = multiply(coefficient, inner)
            plain.extend(parts)
        elif term.operation is not UNIT:
            plain.append(view.unscaled())
    return coefficient, plain


def number(pattern: Pattern, substitution: Substitution) -> Scalar:
    """The value of a pattern of numbers."""
    if isinstance(pattern, str):
        return substitution.numbers[pattern]
    operator, *arguments = pattern
    if operator == "minus_one":
        return -ONE
    left, right = (number(argument, substitution) for argument in arguments)
    return add(left, right) if operator == "plus" else multiply(left, right)


def flattened(pattern: Pattern) -> list[Pattern]:
    """The summands of nested additions."""
    if pattern[0] != "add":
        return [pattern]
    return [part for argument in pattern[1:] for part in flattened(argument)]


def without_sums(pattern: Pattern) -> tuple[list[str], Pattern]:
    """The indices of the sums that a pattern begins with, and what is summed."""
    indices: list[str] = []
    while pattern[0] == "sum":
        indices.append(str(pattern[1]))
        pattern = pattern[2]
    return indices, pattern


def span(pattern: Pattern, substitution: Substitution) -> tuple[Scalar, Scalar]:
    """The first position of a range, and the one behind the last."""
    first, after = (number(argument, substitution) for argument in pattern[2:])
    return first, after


def counts(view: View) -> bool:
    """Whether a value is a number that digits spell."""
    return view.term.operation is IOTA and view.coefficient == 1


def digits_of(pattern: Pattern, given: Substitution, sizes: Mapping[int, Size]) -> list[Digit] | None:
    """What spells a number; None where no digits do, or where the lower ones are more or less than they should."""
    if isinstance(pattern, str):
        (view,) = given.values[pattern]
        return list(view.axes[0]) if counts(view) else [] if view.is_zero else None
    if pattern[0] == "place":
        return [(dim, 1, sizes[dim]) for dim in given.indices[str(pattern[1])]]
    upper, lower = (digits_of(part, given, sizes) for part in pattern[2:])
    if upper is None or lower is None or product(d[2] for d in lower) != number(pattern[1], given):
        return None
    return [*upper, *lower]


class Reader:
    """Reads expressions over one index space. ``sizes``: of its dimensions, and of those that operands bind."""

    def __init__(self, shape: Shape) -> None:
        self.sizes: dict[int, Size] = dict(enumerate(shape))

    @property
    def shape(self) -> Shape:
        return tuple(self.sizes[dim] for dim in range(len(self.sizes)))

    def product(self, patterns: Sequence[Pattern], views: Sequence[View], given: Substitution) -> Scalar | None:
        """The number by which the views' product is that of the patterns; None where it is another product."""
        coefficient, rest = factors_of(views)
        operations: list[Pattern] = []
        pending = list(patterns)
        while pending:
            pattern = pending.pop()
            if isinstance(pattern, str):
                known, wanted = factors_of(given.values[pattern])
                if known == 0 or not _remove(rest, wanted):
                    return None
                coefficient = divide(coefficient, known)
            elif pattern[0] == "mul":
                pending.extend(pattern[1:])
            elif pattern[0] in ("scale", "number"):
                known = number(pattern[1], given)
                if known == 0:
                    return None
                coefficient = divide(coefficient, known)
                pending.extend(pattern[2:])
            elif pattern[0] == "power" and number(pattern[1], given) == 1:
                pending.append(pattern[2])
            elif pattern[0] != "one":
                operations.append(pattern)
        return coefficient if _is_matching(operations, rest, lambda p, v: self._operation(p, v, given)) else None

    def reads(self, pattern: Pattern, view: View, given: Substitution) -> bool:
        """Whether a view is a pattern under a substitution."""
        return self.product([pattern], [view], given) == 1

    def sum(self, patterns: Sequence[Pattern], views: Sequence[View], given: Substitution) -> bool:
        """Whether the views are the summands that the patterns say, in any order; those of ``each`` in theirs."""
        first = patterns[0]
        if len(patterns) == 1 and first[0] == "each":
            if isinstance(first[2], str):
                return _is_sum_of([_summands(values) for values in given.each[first[2]]], views)
            if any(len(values) != len(views) for values in given.each.values()):
                return False
            return all(self.reads(first[2], view, given.at(k)) for k, view in enumerate(views))
        return _is_matching(patterns, views, lambda p, v: self.reads(p, v, given))

    def _operation(self, pattern: Pattern, view: View, given: Substitution) -> bool:
        """Whether a factor is an operator applied to operands."""
        operator, *arguments = pattern
        reader = _READERS.get(str(operator))
        if reader is not None:
            return reader(self, pattern, view, given)
        if view.term.operation is not OPERATIONS.get(str(operator)):
            return False
        operands = open_view(view).operands
        orders = (operands, operands[::-1]) if view.term.operation.commutative else (operands,)
        return any(all(self.reads(p, v, given) for p, v in zip(arguments, o, strict=True)) for o in orders)

    def _opened(self, view: View) -> Opened | None:
        """A view's operation, where the dimensions that it binds have no other size somewhere else."""
        opened = open_view(view)
        inner = {view.rank + k: size for k, size in enumerate(opened.shape[view.rank :])}
        if any(self.sizes.setdefault(dim, size) != size for dim, size in inner.items()):
            return None
        return opened

    def is_sum(self, pattern: Pattern, view: View, given: Substitution) -> bool:
        if view.term.operation is not CONTRACT:
            return False
        indices, body = without_sums(pattern)
        opened = self._opened(view)
        dims = [dim for index in indices for dim in given.indices[index]]
        if opened is None or sorted(dims) != sorted(opened.summed):
            return False
        return self.product([body], opened.operands, given) == 1

    def is_addition(self, pattern: Pattern, view: View, given: Substitution) -> bool:
        return view.term.operation is COMBINE and self.sum(flattened(pattern), open_view(view).operands, given)

    def is_power(self, pattern: Pattern, view: View, given: Substitution) -> bool:
        if view.term.operation is not POWER or view.term.attributes[0] != number(pattern[1], given):
            return False
        return self.reads(pattern[2], open_view(view).operands[0], given)

    def is_place(self, pattern: Pattern, view: View, given: Substitution) -> bool:
        dims = given.indices[str(pattern[1])]
        return view.term.operation is IOTA and view.axes[0] == merge_digits((d, 1, self.sizes[d]) for d in dims)

    def is_spelled(self, pattern: Pattern, view: View, given: Substitution) -> bool:
        """Whether a counter's digits are those of the upper value, then those of the lower one."""
        digits = digits_of(pattern, given, self.sizes)
        return digits is not None and view.term.operation is IOTA and view.axes[0] == merge_digits(digits)


def _summands(factors: Factors) -> Sequence[View]:
    """A value as summands: a written sum has several."""
    if len(factors) != 1 or factors[0].term.operation is not COMBINE:
        coefficient, plain = factors_of(factors)
        return [plain[0].scaled(coefficient)] if len(plain) == 1 else factors if len(factors) == 1 else []
    return [part.scaled(factors[0].coefficient) for part in open_view(factors[0]).operands]


def _is_sum_of(groups: Sequence[Sequence[View]], views: Sequence[View]) -> bool:
    """Whether the views are all of the summands, in any order."""
    if not all(groups):
        return False
    said, there = (
        collections.Counter((view.term, view.axes, view.coefficient) for view in part)
        for part in (itertools.chain.from_iterable(groups), views)
    )
    return said == there


def _remove(rest: list[View], wanted: Sequence[View]) -> bool:
    """Take factors out of others; False where one is not there."""
    for view in wanted:
        place = next((k for k, v in enumerate(rest) if v.term is view.term and v.axes == view.axes), None)
        if place is None:
            return False
        del rest[place]
    return True


def _is_matching(patterns: Sequence[Pattern], views: Sequence[View], reads: Callable[[Pattern, View], bool]) -> bool:
    """Whether each pattern is one of the views, in some order."""
    if not patterns:
        return not views
    first, *others = patterns
    return any(
        reads(first, view) and _is_matching(others, [*views[:k], *views[k + 1 :]], reads)
        for k, view in enumerate(views)
    )


_READERS: dict[str, Callable[[Reader, Pattern, View, Substitution], bool]] = {
    "sum": Reader.is_sum,
    "add": Reader.is_addition,
    "each": Reader.is_addition,
    "power": Reader.is_power,
    "place": Reader.is_place,
    "spell": Reader.is_spelled,
}
