"""The one place where an instance of a lemma becomes a step of a proof.

A finder proposes a lemma, a substitution and a position. The instance of the left side must *be* what is at the
position, every guard must hold, and only then the right side is built. Nothing of how the finder came to its proposal
is trusted: a wrong proposal is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.lemmas.build import build, build_product
from verifycompile.rewrites.lemmas.guards import is_met
from verifycompile.rewrites.lemmas.lemma import Lemma
from verifycompile.rewrites.lemmas.read import Reader, Shape, flattened, without_sums
from verifycompile.rewrites.lemmas.substitution import InProduct, InSum, Position, Substitution


def dispose(pool: TermPool, lemma: Lemma, given: Substitution, position: Position) -> list[View] | None:
    """What stands at the position by the lemma: factors or summands. None where it is no instance.

    The factors of a product may be over another space than before: an index that the right side does not sum has
    size one, and one that it sums in front follows the dimensions that there were.
    """
    dims = [dim for spelled in given.indices.values() for dim in spelled]
    if len(set(dims)) != len(dims):
        return None  # one dimension would be two indices
    try:
        if isinstance(position, InProduct):
            found = _in_product(pool, lemma, given, position)
        else:
            found = _in_sum(pool, lemma, given, position)
    except (LookupError, ValueError):
        return None  # no layout, or a proposal that lacks a variable or has several values for one
    if found is not None:
        pool.lemma_trace.append((lemma.name, ""))
    return found


def _in_product(pool: TermPool, lemma: Lemma, given: Substitution, position: InProduct) -> list[View] | None:
    outer = position.factors[0].shape
    rest = _others(position.factors, position.matched)
    indices, left = without_sums(lemma.left)
    bound = {dim for index in indices for dim in given.indices[index]}
    if not bound & set(range(len(outer))):
        bound, left = set[int](), lemma.left  # a sum that is a factor
    if rest is None or not bound <= set(range(position.free, len(outer))) or _use(rest, bound):
        return None
    reader = Reader(outer)
    coefficient = reader.product([left], position.matched, given)
    if coefficient is None or not _guards_hold(pool, lemma, reader.shape, given):
        return None
    # A sum that stands in no sum on the left is a factor on the right.
    indices, right = without_sums(lemma.right) if bound else ([], lemma.right)
    summed = {dim for index in indices for dim in given.indices[index]}
    inner = set(range(len(outer), len(reader.shape)))
    if not summed <= bound | inner:
        return None
    built = [*rest, *build_product(pool, right, reader.shape, given)]
    gone = (bound | inner) - summed
    built.append(pool.constant(coefficient, outer))
    if _use(built, gone):
        return None
    shape = tuple(1 if dim in gone else size for dim, size in enumerate(reader.shape))
    shape = shape[: max(len(outer), 1 + max(summed, default=-1))]
    return [View(view.coefficient, view.term, shape, view.axes) for view in built]


def _in_sum(pool: TermPool, lemma: Lemma, given: Substitution, position: InSum) -> list[View] | None:
    """The summands are compared as they are built: terms that are equal are one."""
    rest = _others(position.summands, position.matched)
    spaces = [view.shape for factors in given.values.values() for view in factors]
    shape = max((position.shape, *spaces), key=len)
    if rest is None or shape[: len(position.shape)] != position.shape:
        return None
    left = _without_inner([build(pool, part, shape, given) for part in flattened(lemma.left)], position.shape)
    if left is None or [_key(view) for view in left] != [_key(view) for view in position.matched]:
        return None
    if not _guards_hold(pool, lemma, shape, given):
        return None
    right = [build(pool, part, shape, given) for part in flattened(lemma.right)]
    return None if (kept := _without_inner(right, position.shape)) is None else [*rest, *kept]


def _key(view: View) -> tuple[object, ...]:
    return view.term, view.axes, view.coefficient


def _guards_hold(pool: TermPool, lemma: Lemma, shape: Shape, given: Substitution) -> bool:
    return all(is_met(pool, guard, shape, given) for guard in lemma.guards)


def _others(views: Sequence[View], matched: Sequence[View]) -> list[View] | None:
    """The views that are not matched; None where one that is matched is not there, or is taken twice."""
    wanted = {id(view) for view in matched}
    rest = [view for view in views if id(view) not in wanted]
    return rest if len(rest) + len(matched) == len(views) else None


def _use(views: Sequence[View], dims: Collection[int]) -> bool:
    return any(view.uses(dim) for view in views for dim in dims)


def _without_inner(views: Sequence[View], shape: Shape) -> list[View] | None:
    """Views over the outer space alone; None where one depends on what an operand binds."""
    if any(digit[0] >= len(shape) for view in views for axis in view.axes for digit in axis):
        return None
    return [View(view.coefficient, view.term, shape, view.axes) for view in views]
