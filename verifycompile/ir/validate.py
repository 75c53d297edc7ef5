"""Validity of views and terms: what every pass of the engine must leave true, checked after it in tests.

A term that breaks one of these rules has no meaning, or one that depends on how it was built. The checks are
exact for sizes that are integers, and hold for every value of the symbols for those that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from verifycompile.ir.algebra import CONTRACT
from verifycompile.ir.printer import describe_axis, describe_term, show
from verifycompile.ir.relabel import merge_digits
from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import CONSTANT, Axis, Term, TermPool, View

Where = Callable[[], str]
"""Says which view or term is checked; texts are made for errors only."""


class InvalidTermError(ValueError):
    """A view or a term that breaks a rule of the IR. The message names the rule and shows the culprit."""


def validate(view: View) -> None:
    """Check a view against its term. Raises InvalidTermError."""

    def where() -> str:
        return show(view)

    _check_sizes(view.shape, where)
    if view.is_zero and not view.term.index_sizes and not view.axes:
        return
    _check_axes(view.axes, view.term.shape, view.shape, where)


def validate_term(term: Term) -> None:
    """Check a term: its indices, and its operands over them. Raises InvalidTermError."""

    def where() -> str:
        return describe_term(term)

    _check_sizes(term.index_sizes, where)
    _check_indices(term, where)
    for position, operand in enumerate(term.operands):
        _check_operand(term, position, operand, where)
    _check_every_index_is_used(term, where)


def validate_pool(pool: TermPool) -> None:
    """Check every term of a pool, and that no term occurs twice. Raises InvalidTermError."""
    seen: dict[tuple[object, ...], Term] = {}
    for term in pool.terms:
        validate_term(term)
        key = (
            term.operation,
            term.attributes,
            tuple((v.coefficient, v.term.id, v.axes) for v in term.operands),
            term.index_sizes,
            term.free,
            term.summed,
            term.cores,
            term.fresh,
        )
        twin = seen.setdefault(key, term)
        if twin is not term:
            raise InvalidTermError(f"{describe_term(term)} exists twice, as #{twin.id} and #{term.id}")
        for operand in term.operands:
            if operand.term.id >= term.id:
                raise InvalidTermError(f"{describe_term(term)} is older than its operand #{operand.term.id}")


# ------------------------------------------------------------------------------------------------ the rules


def _check_sizes(sizes: Sequence[Size], where: Where) -> None:
    for size in sizes:
        if isinstance(size, sympy.Expr):
            if size.is_Integer:
                raise InvalidTermError(f"{where()}: the size {size} is an integer written as an expression")
        elif size < 0:
            raise InvalidTermError(f"{where()}: the size {size} is negative")


def _check_axes(axes: Sequence[Axis], sizes: Sequence[Size], shape: Sequence[Size], where: Where) -> None:
    """Digits over dimensions of ``shape`` spell an index of every axis, once."""
    if len(axes) != len(sizes):
        raise InvalidTermError(f"{where()}: {len(axes)} axes are indexed where the term has {len(sizes)}")
    for number, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        spelled = describe_axis(axis)
        if axis != merge_digits(axis):
            raise InvalidTermError(f"{where()}: axis {number} is not in canonical form: {spelled}")
        if not _equal(product(digit[2] for digit in axis), size):
            raise InvalidTermError(f"{where()}: the digits {spelled} do not cover axis {number} of size {size}")
        for dim, divisor, extent in axis:
            if dim == CONSTANT:
                if isinstance(divisor, int) and isinstance(extent, int) and not 0 <= divisor < extent:
                    raise InvalidTermError(f"{where()}: the constant {divisor} is outside of axis {number}, {spelled}")
            elif not 0 <= dim < len(shape):
                raise InvalidTermError(f"{where()}: axis {number} reads dimension {dim} of {len(shape)}")
            elif shape[dim] != 0 and exact_quotient(shape[dim], product((divisor, extent))) is None:
                raise InvalidTermError(
                    f"{where()}: the digit {spelled} does not divide dimension {dim} of size {shape[dim]}"
                )


def _equal(left: Size, right: Size) -> bool:
    return left == right or (
        (not isinstance(left, int) or not isinstance(right, int)) and exact_quotient(left, right) == 1
    )


def _check_indices(term: Term, where: Where) -> None:
    """Free, summed and core indices are all indices, each once; fresh ones are the last of the free ones."""
    core = [index for group in term.cores for index in group]
    if sorted(core) != list(range(term.free + term.summed, len(term.index_sizes))):
        raise InvalidTermError(
            f"{where()}: free, summed and core indices are not all of the {len(term.index_sizes)} indices"
        )
    if not set(term.fresh) <= set(range(term.free)):
        raise InvalidTermError(f"{where()}: a fresh index that is not free")
    read = {digit[0] for operand in term.operands for axis in operand.axes for digit in axis}
    fed = sorted(read & set(term.fresh))
    if fed:
        raise InvalidTermError(f"{where()}: an operand reads the fresh index {fed[0]}")


def _check_operand(term: Term, position: int, operand: View, where: Where) -> None:
    if operand.shape != term.index_sizes:
        raise InvalidTermError(f"{where()}: operand {position} is no view over the indices of its term")
    if position in term.operation.linear and operand.coefficient != 1:
        raise InvalidTermError(f"{where()}: operand {position} is linear and has the coefficient {operand.coefficient}")
    _check_axes(operand.axes, operand.term.shape, term.index_sizes, lambda: f"{where()}, operand {position}")
    for axis in operand.axes:
        for dim, divisor, size in axis:
            if (
                dim != CONSTANT
                and dim < term.free + term.summed
                and not (divisor == 1 and _equal(size, term.index_sizes[dim]))
            ):
                raise InvalidTermError(
                    f"{where()}: operand {position} reads index {dim} in part: {describe_axis(axis)}"
                )


def _check_every_index_is_used(term: Term, where: Where) -> None:
    """A free index that nothing reads is no index of the term; a sum over one is a factor.

    A product in which one factor alone reads a summed index has the sum inside of that factor.
    """
    if not term.operands:
        return
    for index in range(term.free + term.summed):
        if index in term.fresh:
            continue
        readers = sum(operand.uses(index) for operand in term.operands)
        if not readers:
            raise InvalidTermError(f"{where()}: no operand reads index {index}")
        alone = term.operation is CONTRACT and index in term.summed_indices and len(term.operands) > 1
        if alone and readers < 2:
            raise InvalidTermError(
                f"{where()}: a sum over index {index}, which one factor alone reads, is left outside of it"
            )
