"""Keys by which terms of one form are recognised: equal for terms that differ only in the piece that they read.

``rewrites/parts/similar.py`` stacks such terms. The keys are numbers of the pool, so that they order operands alike in
all of them, and so that the operand whose coefficient a combination pulls out is the same one in every piece.
"""

from __future__ import annotations

from collections.abc import Hashable

from verifycompile.ir.term import CONSTANT, Term, TermPool, View, terms_of
from verifycompile.walks import parts_first


def frame(term: Term) -> tuple[object, ...]:
    """What similar terms have in common, operands aside."""
    return (
        term.operation,
        () if term.operation.attributes_by_piece else term.attributes,
        term.index_sizes,
        term.free,
        term.summed,
        term.cores,
        term.fresh,
        len(term.operands),
    )


def similarity_key(pool: TermPool, view: View) -> int:
    """Equal for similar views. Numbers are those of the pool, so they order operands alike in all terms."""
    axes = tuple(tuple((d, 0 if d == CONSTANT else divisor, size) for d, divisor, size in axis) for axis in view.axes)
    return _number(pool, (str(view.coefficient), axes, term_key(pool, view.term)))


def term_key(pool: TermPool, wanted: Term) -> int:
    def key(term: Term) -> int:
        inner = [similarity_key(pool, view) for view in term.operands]
        return _number(pool, (frame(term), tuple(sorted(inner) if term.operation.commutative else inner)))

    return parts_first(pool.similarity, wanted, terms_of, key)


def _number(pool: TermPool, content: Hashable) -> int:
    return pool.similarity.setdefault(content, len(pool.similarity))
