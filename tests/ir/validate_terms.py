"""Validity of terms and pools: what every pass of the engine must leave true."""

from __future__ import annotations

from verifycompile.ir.algebra import CONTRACT
from verifycompile.ir.term import CONSTANT, Term, TermPool, View
from verifycompile.ir.validate import InvalidTermError, Where, check_axes, check_sizes, equal_sizes, printer, spelled


def validate_term(term: Term) -> None:
    """Check a term: its indices, and its operands over them. Raises InvalidTermError."""

    def where() -> str:
        return printer().describe_term(term)

    check_sizes(term.index_sizes, where)
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
            raise InvalidTermError(f"{printer().describe_term(term)} exists twice, as #{twin.id} and #{term.id}")
        for operand in term.operands:
            if operand.term.id >= term.id:
                raise InvalidTermError(f"{printer().describe_term(term)} is older than its operand #{operand.term.id}")


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
    check_axes(operand.axes, operand.term.shape, term.index_sizes, lambda: f"{where()}, operand {position}")
    for axis in operand.axes:
        for dim, divisor, size in axis:
            if (
                dim != CONSTANT
                and dim < term.free + term.summed
                and not (divisor == 1 and equal_sizes(size, term.index_sizes[dim]))
            ):
                raise InvalidTermError(f"{where()}: operand {position} reads index {dim} in part: {spelled(axis)}")


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
