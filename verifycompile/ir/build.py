"""``apply``: build the term of one operator application in normal form (DESIGN section 3).

Every dimension of every operand carries a label. Labels that several dimensions share are one index of the
operator. Indices are refined to the common digits of all operands, digits that are neighbours in every operand
are merged again, and the resulting indices are numbered by their first appearance. The result does not depend
on how the operands were laid out, so equal computations become one term.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Hashable, Mapping, Sequence

from verifycompile.ir.relabel import UnalignedError, merge_digits, substitute
from verifycompile.ir.scalar import ONE, Scalar, divide, multiply
from verifycompile.ir.similarity import term_key
from verifycompile.ir.size import Size, divisibility_chain, product, quotient
from verifycompile.ir.term import CONSTANT, RESHAPE, Axis, Digit, Operation, TermPool, View
from verifycompile.ir.window import WINDOW, has_windows

Label = Hashable
_Atom = tuple[Label, Size]

# Tied operands are tried in every order up to this many: what two along each of three equal dimensions have.
_MAX_TIED_ORDERS = 36


class ShapeError(ValueError):
    """Operands of one operator disagree about the size of an index."""


@dataclasses.dataclass(frozen=True)
class Signature:
    """Labels of one application.

    ``inputs``: per operand, one label per dimension. ``output``: one label per result dimension.
    ``summed``: labels bound by a sum (or another symmetric reduction). ``cores``: ordered groups of bound labels, each
    the digits of one dimension, so that no operation may depend on where one label ends and the next one begins.
    ``fresh``: output labels that no operand feeds, with their sizes.
    """

    inputs: tuple[tuple[Label, ...], ...]
    output: tuple[Label, ...]
    summed: frozenset[Label] = frozenset()
    cores: tuple[tuple[Label, ...], ...] = ()
    fresh: Mapping[Label, Size] = dataclasses.field(default_factory=dict[Label, Size])


@dataclasses.dataclass(frozen=True)
class Shape:
    """A candidate term before interning."""

    operands: tuple[View, ...]
    index_sizes: tuple[Size, ...]
    free: int
    summed: int
    cores: tuple[tuple[int, ...], ...]
    fresh: tuple[int, ...]
    output_axes: tuple[Axis, ...]

    @property
    def wide(self) -> list[View]:
        """The operands with all indices as dimensions."""
        return [dataclasses.replace(view, shape=self.index_sizes) for view in self.operands]

    @property
    def order_key(self) -> str:
        return repr([(v.term.id, str(v.coefficient), v.axes) for v in self.operands])


def apply(
    pool: TermPool,
    operation: Operation,
    attributes: tuple[Hashable, ...],
    operands: Sequence[View],
    signature: Signature,
) -> View:
    """Return the view of ``operation`` applied to ``operands``.

    Coefficients of linear operands become the coefficient of the result. Summed labels that no operand uses
    must not occur: the caller turns them into a factor. Raises ShapeError, UnalignedError and BudgetExceededError.
    """
    pool.budget.spend()
    if pool.piecewise is None and operation is not WINDOW and has_windows(operands):
        from verifycompile.ir.window_moves import moved_application  # here, because few programs have windows

        moved = moved_application(pool, operation, attributes, operands, signature)
        if moved is not None:
            return moved
    coefficient: Scalar = ONE
    plain: list[View] = []
    if operation.jointly_linear and not operation.commutative:
        # One factor is common to all operands: the first's, so that scaling before and after are one term.
        coefficient = next((v.coefficient for v in operands if not v.is_zero), ONE)
        operands = [dataclasses.replace(v, coefficient=divide(v.coefficient, coefficient)) for v in operands]
    for position, operand in enumerate(operands):
        if position in operation.linear:
            coefficient = multiply(coefficient, operand.coefficient)
            plain.append(operand.unscaled())
        else:
            plain.append(operand)
    if coefficient == 0:
        sizes = label_sizes(operands, signature)
        return pool.zero(tuple(sizes[label] for label in signature.output))
    sizes = label_sizes(plain, signature)
    shape = _normalize(plain, signature, sizes, _operand_orders(pool, operation, plain))
    output_shape = tuple(sizes[label] for label in signature.output)
    moved = None
    if operation is not RESHAPE and any(view.term.operation is RESHAPE for view in shape.operands):
        from verifycompile.ir.reshaped import moved_out  # here, because few values are read in other digits

        moved = moved_out(pool, operation, attributes, shape)
    if moved is None and pool.piecewise is not None:
        bound = (shape.free, shape.summed, shape.cores, shape.fresh)
        moved = pool.piecewise.application(pool, operation, attributes, shape.wide, *bound)
    if moved is not None:
        return reindexed(pool, moved, dict(enumerate(shape.output_axes)), output_shape).scaled(coefficient)
    term = pool.intern(
        operation,
        attributes,
        shape.operands,
        shape.index_sizes,
        shape.free,
        shape.summed,
        shape.cores,
        shape.fresh,
    )
    alias = pool.aliases.get(term)
    if alias is not None:
        return substitute(alias, dict(enumerate(shape.output_axes)), output_shape).scaled(coefficient)
    return View(coefficient, term, output_shape, shape.output_axes)


def reindexed(
    pool: TermPool, view: View, replacement: Mapping[int, Sequence[Digit]], shape: tuple[Size, ...]
) -> View:
    """The view with ``replacement`` of some dimensions over a new index space; a reshape where digits do not fit."""
    every = {dim: [(dim, 1, size)] for dim, size in enumerate(view.shape)} | dict(replacement)
    with contextlib.suppress(UnalignedError):
        found = substitute(view, every, shape)
        if found.term.operation is not RESHAPE:
            return found
    from verifycompile.ir import reshaped  # here, because few values are read in other digits

    return reshaped.substitute(pool, view, every, shape)


def label_sizes(operands: Sequence[View], signature: Signature) -> dict[Label, Size]:
    """Size of every label; size 1 broadcasts, but for labels that are words of a declaration. Raises ShapeError."""
    sizes: dict[Label, Size] = {}
    for operand, labels in zip(operands, signature.inputs, strict=True):
        for label, size in zip(labels, operand.shape, strict=True):
            known = sizes.setdefault(label, size)
            if known != size and (isinstance(label, str) or 1 not in (known, size)):
                raise ShapeError(f"index {label!r} has sizes {known} and {size}")
            sizes[label] = size if known == 1 else known
    sizes.update(signature.fresh)
    return sizes


def refine(operands: Sequence[View], signature: Signature, sizes: Mapping[Label, Size]) -> dict[Label, list[Size]]:
    """Per label, the ascending divisors at which its common digits begin (1 first). Raises UnalignedError."""
    cuts: dict[Label, set[Size]] = {label: {1, size} for label, size in sizes.items()}
    for operand, labels in zip(operands, signature.inputs, strict=True):
        for axis in operand.axes:
            for dim, divisor, size in axis:
                if dim != CONSTANT and (divisor != 1 or size != sizes[labels[dim]]):
                    cuts[labels[dim]].update((divisor, product((divisor, size))))
    result: dict[Label, list[Size]] = {}
    for label, positions in cuts.items():
        chain = divisibility_chain(positions)
        if chain is None:
            raise UnalignedError(f"digits of index {label!r} do not nest: {sorted(map(str, positions))}")
        result[label] = chain
    return result


def _operand_orders(pool: TermPool, operation: Operation, operands: list[View]) -> list[tuple[int, ...]]:
    """Orders of the operands: by their forms first, so that similar terms have their indices in one order."""
    plain = tuple(range(len(operands)))
    if not operation.commutative or len(operands) == 1:
        return [plain]

    def rank(i: int) -> tuple[int, int, str]:
        term = operands[i].term
        return term_key(pool, term), term.id, str(operands[i].coefficient)

    ranked = sorted(plain, key=rank)
    groups = [list(g) for _, g in itertools.groupby(ranked, key=lambda i: operands[i].term.id)]
    if all(len(group) == 1 for group in groups):
        return [tuple(ranked)]
    # A product of iterators holds all that they give; no more of each is needed than of the whole.
    orders = itertools.product(*(itertools.islice(itertools.permutations(g), _MAX_TIED_ORDERS) for g in groups))
    return [tuple(itertools.chain.from_iterable(o)) for o in itertools.islice(orders, _MAX_TIED_ORDERS)]


def _normalize(
    operands: list[View], signature: Signature, sizes: Mapping[Label, Size], orders: list[tuple[int, ...]]
) -> Shape:
    chains = refine(operands, signature, sizes)
    if len(orders) == 1:
        return _build(operands, signature, sizes, chains, orders[0])
    return min((_build(operands, signature, sizes, chains, order) for order in orders), key=lambda s: s.order_key)


def _build(
    operands: list[View],
    signature: Signature,
    sizes: Mapping[Label, Size],
    chains: Mapping[Label, list[Size]],
    order: tuple[int, ...],
) -> Shape:
    extent = {
        (label, low): quotient(high, low)
        for label, chain in chains.items()
        for low, high in itertools.pairwise(chain)
    }
    rewritten = [_rewrite_axes(operands[i], signature.inputs[i], chains) for i in order]
    groups, appearance = _merge(rewritten, signature, chains)

    core_labels = {label for group in signature.cores for label in group}
    free = [g for g in appearance if g[0][0] not in signature.summed and g[0][0] not in core_labels]
    summed = [g for g in appearance if g[0][0] in signature.summed]
    fresh_labels = [label for label in signature.output if label in signature.fresh]
    index_sizes: list[Size] = [product(extent[a] for a in g) for g in free]
    first_fresh = len(index_sizes)
    index_sizes += [sizes[label] for label in fresh_labels]
    number_free = len(index_sizes)
    index_sizes += [product(extent[a] for a in g) for g in summed]
    number: dict[_Atom, int] = {g[0]: i for i, g in enumerate(free)}
    number.update({g[0]: number_free + i for i, g in enumerate(summed)})
    cores: list[tuple[int, ...]] = []
    for core in signature.cores:
        members: list[int] = []
        for atoms in _core_groups(core, chains, groups):
            number[atoms[0]] = len(index_sizes)
            members.append(len(index_sizes))
            index_sizes.append(product(extent[a] for a in atoms))
        cores.append(tuple(members))

    views = tuple(
        View(
            operands[i].coefficient,
            operands[i].term,
            (),
            tuple(_indexed(axis, number, groups, index_sizes) for axis in axes),
        )
        for i, axes in zip(order, rewritten, strict=True)
    )
    position = {label: d for d, label in enumerate(signature.output)}
    output_axes = [merge_digits((position[label], low, extent[label, low]) for label, low in g) for g in free]
    output_axes += [() if sizes[label] == 1 else ((position[label], 1, sizes[label]),) for label in fresh_labels]
    return Shape(
        views,
        tuple(index_sizes),
        number_free,
        len(summed),
        tuple(cores),
        tuple(range(first_fresh, number_free)),
        tuple(output_axes),
    )


_Item = _Atom | Digit


def _rewrite_axes(
    view: View, labels: Sequence[Label], chains: Mapping[Label, list[Size]]
) -> list[list[tuple[bool, _Item]]]:
    """Axes of an operand as runs of atoms ``(True, atom)`` and constants ``(False, digit)``."""
    axes: list[list[tuple[bool, _Item]]] = []
    for axis in view.axes:
        items: list[tuple[bool, _Item]] = []
        for digit in axis:
            if digit[0] == CONSTANT:
                items.append((False, digit))
                continue
            label, chain = labels[digit[0]], chains[labels[digit[0]]]
            low = chain.index(digit[1])
            high = chain.index(product((digit[1], digit[2])))
            items.extend((True, (label, chain[k])) for k in range(high - 1, low - 1, -1))
        axes.append(items)
    return axes


def _merge(
    rewritten: list[list[list[tuple[bool, _Item]]]],
    signature: Signature,
    chains: Mapping[Label, list[Size]],
) -> tuple[dict[_Atom, list[_Atom]], list[list[_Atom]]]:
    """Group atoms that are neighbours in every operand. Returns (head -> members, groups by first appearance)."""
    after: dict[_Atom, set[_Atom | None]] = {}
    before: dict[_Atom, set[_Atom | None]] = {}
    for axes in rewritten:
        for items in axes:
            previous: _Atom | None = None
            for is_atom, item in items:
                atom: _Atom | None = item if is_atom else None  # pyright: ignore[reportAssignmentType]  # an atom, see `is_atom`
                if previous is not None:
                    after[previous].add(atom)
                if atom is not None:
                    after.setdefault(atom, set())
                    before.setdefault(atom, set()).add(previous)
                previous = atom
            if previous is not None:
                after[previous].add(None)
    core_of = {label: (i,) for i, group in enumerate(signature.cores) for label in group}
    # The next one in the order in which the operation reads a core; a label ends where the next one begins.
    reading = (_reading_order(group, chains) for group in signature.cores)
    following = {atom: follower for atoms in reading for atom, follower in itertools.pairwise(atoms)}

    def kind(atom: _Atom) -> Hashable:
        label = atom[0]
        return core_of.get(label, label in signature.summed)

    def joins(atom: _Atom, follower: _Atom | None) -> bool:
        if follower is None or follower == atom or before[follower] != {atom} or kind(atom) != kind(follower):
            return False
        # Inside a core the order of reading matters: only digits that are neighbours there may merge.
        return atom[0] not in core_of or following.get(atom) == follower

    joined = {
        atom: follower
        for atom, followers in after.items()
        if len(followers) == 1
        for follower in followers
        if follower is not None and joins(atom, follower)
    }
    tails = set(joined.values())
    groups: dict[_Atom, list[_Atom]] = {}
    appearance: list[list[_Atom]] = []
    for atom in after:
        if atom in tails:
            continue
        members = [atom]
        while members[-1] in joined:
            members.append(joined[members[-1]])
        groups[atom] = members
        appearance.append(members)
    return groups, appearance


def _core_groups(
    core: Sequence[Label], chains: Mapping[Label, list[Size]], groups: Mapping[_Atom, list[_Atom]]
) -> list[list[_Atom]]:
    """Groups of one core in reading order; digits that no operand uses are kept, one group each."""
    tails = {a for members in groups.values() for a in members[1:]}
    return [groups.get(atom, [atom]) for atom in _reading_order(core, chains) if atom not in tails]


def _reading_order(core: Sequence[Label], chains: Mapping[Label, list[Size]]) -> list[_Atom]:
    """The digits of a core, which are those of one dimension, most significant first."""
    return [(label, low) for label in core for low in reversed(chains[label][:-1])]


def _indexed(
    items: list[tuple[bool, _Item]],
    number: Mapping[_Atom, int],
    groups: Mapping[_Atom, list[_Atom]],
    index_sizes: Sequence[Size],
) -> Axis:
    digits: list[Digit] = []
    for is_atom, item in items:
        if not is_atom:
            digits.append(item)  # pyright: ignore[reportArgumentType]  # a digit, see `is_atom`
        elif item in groups:  # heads stand for their whole group; the other members follow them everywhere
            index = number[item]  # pyright: ignore[reportArgumentType]  # an atom, see `is_atom`
            digits.append((index, 1, index_sizes[index]))
    return tuple(digits)
