"""How one implementation value stands to one spec value: whole, partial, scaled, misplaced or different."""

from __future__ import annotations

import dataclasses
import enum
import itertools

from verifycompile import bounds
from verifycompile.ir import algebra, relabel
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.scalar import ONE, Scalar, divide
from verifycompile.ir.term import CONSTANT, TermPool, View
from verifycompile.program import Mesh
from verifycompile.refinement.candidates import infer
from verifycompile.refinement.placement import Placements, same_value

ARRANGED = "in another arrangement"
"""How a relation ends that tells of no layout."""


class Kind(enum.Enum):
    """The relation of an implementation value to a spec value, best first."""

    PLACED = "placed"
    """Equal in some placements."""
    CLEAN = "clean"
    """Every element is there, in another order of blocks."""
    PARTIAL = "partial"
    """Its sum over ``axes`` is ``factor`` times the spec value."""
    SCALED = "scaled"
    """``factor`` times the spec value."""
    PARTIAL_PIECE = "partial piece"
    """Its sum over ``axes`` has elements of the spec value, but not the ones that belong there."""
    MISPLACED = "misplaced"
    """Elements of the spec value, but not the ones that belong there."""
    DIFFERENT = "different"


@dataclasses.dataclass(frozen=True)
class Found:
    """Result of ``classify``. ``axes``: mesh axes to sum over; ``factor``: implementation over spec."""

    kind: Kind
    axes: tuple[int, ...] = ()
    factor: Scalar = ONE
    placements: Placements | None = None

    @property
    def whole(self) -> bool:
        return self.kind in (Kind.PLACED, Kind.CLEAN)

    @property
    def related(self) -> bool:
        return self.whole or (self.kind is Kind.PARTIAL and self.factor == 1)

    def describe(self, name: str, mesh: Mesh | None) -> str:
        """The relation as text for people."""
        from verifycompile.ir.printer import show_number  # here: for messages alone

        axes = ", ".join(mesh.axes[a].name for a in self.axes) if mesh is not None else ""
        scale = "" if self.factor == 1 else f"{show_number(self.factor)} * "
        if self.kind is Kind.PARTIAL:
            return f"the sum of the implementation's value over {axes} is {scale}{name}"
        if self.kind is Kind.PARTIAL_PIECE:
            return f"the sum of the implementation's value over {axes} is a piece of {name}"
        if self.kind is Kind.SCALED:
            return f"the implementation's value is {scale}{name}"
        if self.kind is Kind.MISPLACED:
            return f"the implementation holds other elements of {name} than its rank's"
        if self.kind is Kind.DIFFERENT:
            return f"no relation between the implementation's value and {name}"
        if self.kind is Kind.CLEAN:
            return f"the implementation holds the elements of {name}, {ARRANGED}"
        return f"the implementation's value is {name}"


def classify(pool: TermPool, spec: View, implementation: View, mesh: Mesh | None) -> Found:
    """Compare by normal form. Shapes of the values may differ (flattened or not)."""
    bounds.check()
    whole = _compare(pool, spec, implementation, mesh)
    if whole is not None:
        return whole
    if mesh is None:
        return Found(Kind.DIFFERENT)
    piece: Found | None = None
    used = [a for a in range(len(mesh.axes)) if implementation.uses(a)]
    for count in range(1, len(used) + 1):
        for axes in itertools.combinations(used, count):
            try:
                reduced = algebra.sum_over(pool, implementation, axes)
            except (relabel.UnalignedError, ValueError, RecursionError):  # finders may undo each other
                continue
            for axis in axes:
                reduced = relabel.insert_dim(reduced, axis, mesh.axes[axis].size)
            found = _compare(pool, spec, reduced, mesh)
            if found is not None and found.kind is not Kind.MISPLACED:
                return Found(Kind.PARTIAL, axes, found.factor)
            if reduced.term is spec.term and spec.term is not implementation.term and piece is None:
                piece = Found(Kind.PARTIAL_PIECE, axes)
    if piece is not None:
        return piece
    return Found(Kind.MISPLACED) if _holds_pieces(spec, implementation) else Found(Kind.DIFFERENT)


def _holds_pieces(spec: View, implementation: View) -> bool:
    """Whether the implementation's value is made of elements of the spec's."""
    term = implementation.term
    if term.operation in (CONCATENATE, STACK):
        return any(operand.term is spec.term for operand in term.operands)
    return term is spec.term


def _compare(pool: TermPool, spec: View, implementation: View, mesh: Mesh | None) -> Found | None:
    if spec.term is not implementation.term:
        return None
    factor = ONE if spec.is_zero else divide(implementation.coefficient, spec.coefficient)
    left, right = spec.unscaled(), implementation.unscaled()
    placed = same_value(left, right) if mesh is None else infer(pool, left, right, mesh, allow_partial=False)
    if placed not in (None, False):
        if factor != 1:
            return Found(Kind.SCALED, factor=factor)
        return Found(Kind.PLACED, placements=placed if isinstance(placed, tuple) else ())
    if covers(right) and covers(left):
        return Found(Kind.CLEAN) if factor == 1 else Found(Kind.SCALED, factor=factor)
    return None


def covers(view: View) -> bool:
    """Whether every element of the term appears in the view: no constants, no digit used twice."""
    digits = [d for axis in view.axes for d in axis]
    if any(d[0] == CONSTANT for d in digits):
        return False
    return len({(d[0], d[1]) for d in digits}) == len(digits)
