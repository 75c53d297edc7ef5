"""Names for terms: a value that one part of a program hands to another is replaced by an opaque term.

What is proved of the opaque term holds for every value, so for the one that it stands for. Only facts are lost, and
a proof that needs them is not found this way. Some declarations *refuse* what they can see in a term (an index that
is computed from a rank's number, an infinity); such terms keep their structure, since a name would hide it.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.fx

from verifycompile.ir.algebra import INFINITY, IOTA
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.relabel import inverse_digits, merge_digits, substitute
from verifycompile.ir.scalar import ONE, divide
from verifycompile.ir.size import Size
from verifycompile.ir.term import INDICATOR_LEAF, LEAF, UNIT, Operation, Term, TermPool, View, identity_view, terms_of
from verifycompile.rewrites.operators.stored_tensors import BOOLEAN_CONSTANT, CONSTANT, CONSTANT_WITH_INFINITIES
from verifycompile.walks import parts_first

DEFINED = Operation("defined", finite=True)
DEFINED_INDICATOR = Operation("defined_indicator", indicator=True)

OPAQUE = frozenset({LEAF, INDICATOR_LEAF, DEFINED, DEFINED_INDICATOR})
"""Operations of terms that stand for any value: a proof about them holds for every other term in their place."""

CONSTANTS = frozenset({UNIT, IOTA, INFINITY, CONSTANT, CONSTANT_WITH_INFINITIES, BOOLEAN_CONSTANT})
"""Operations without operands whose value is said by their attributes and sizes."""


@dataclasses.dataclass(frozen=True)
class Definition:
    """The opaque term ``name`` stands for ``term``; both are ids of the pool."""

    name: int
    term: int
    text: str


class Definitions:
    """Makes opaque terms, and knows which terms may be replaced by one."""

    def __init__(self, pool: TermPool) -> None:
        self.pool = pool
        self.made: list[Definition] = []
        self._count = 0
        self._contents: dict[Term, tuple[bool, bool]] = {}

    def fresh(self, shape: tuple[Size, ...], indicator: bool) -> Term:
        """An opaque term that stands for any value of this shape."""
        self._count += 1
        operation = DEFINED_INDICATOR if indicator else DEFINED
        return self.pool.intern(operation, (self._count,), (), shape, len(shape), 0, (), ())

    def keeps(self, term: Term, exact: bool) -> bool:
        """Whether a term stays as it is: opaque or constant, infinite somewhere, or a whole number (``exact``)."""
        if not term.operands:
            return True
        opaque, infinite = self._content(term)
        return not opaque or infinite or (exact and not is_indicator(identity_view(term)))

    def name(self, view: View) -> View:
        """An opaque term for the value of ``view``, as a view over the axes of the term of ``view``.

        The opaque term has the dimensions that ``view`` uses, in their order, so that it does not depend on how the
        term came about.
        """
        term = view.term
        indicator = is_indicator(view)
        digits = inverse_digits(view)
        if digits is None:
            fresh = self.fresh(term.shape, is_indicator(identity_view(term)))
            named = identity_view(fresh)
        else:
            used = sorted(digits)
            fresh = self.fresh(tuple(view.shape[d] for d in used), indicator)
            axes = tuple(merge_digits(digits[d]) for d in used)
            named = View(divide(ONE, view.coefficient), fresh, term.shape, axes)
        self.made.append(Definition(fresh.id, term.id, repr(term)))
        return named

    def is_closed(self, term: Term) -> bool:
        """Whether a term is a constant: nothing opaque is in it."""
        return not self._content(term)[0]

    def _content(self, term: Term) -> tuple[bool, bool]:
        """Whether something opaque, and whether an infinity, is anywhere in a term."""

        def content(term: Term) -> tuple[bool, bool]:
            inner = [self._contents[operand] for operand in terms_of(term)]
            opaque = any(o for o, _ in inner) or (not term.operands and term.operation not in CONSTANTS)
            infinite = term.operation in (INFINITY, CONSTANT_WITH_INFINITIES) or any(i for _, i in inner)
            return opaque, infinite

        return parts_first(self._contents, term, terms_of, content)


def renamed(view: View, named: View) -> View:
    """The view with ``named``, a view over the axes of its term, in place of the term. Raises UnalignedError."""
    return substitute(named, dict(enumerate(view.axes)), view.shape).scaled(view.coefficient)


def moved(view: View, term: Term) -> View:
    """The view with another term of the same shape in place of its own."""
    return View(view.coefficient, term, view.shape, view.axes)


def is_real(node: torch.fx.Node) -> bool:
    """Whether the value of a node is a tensor of real or complex numbers."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)
