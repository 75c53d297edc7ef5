"""Operations that read dimensions wholly, by labels, and other orders and shapes of the same elements."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import sympy

from verifycompile.ir import algebra, relabel
from verifycompile.ir.build import Label, Signature, apply
from verifycompile.ir.size import Size
from verifycompile.ir.term import RESHAPE, Operation, View
from verifycompile.rewrites.building.numbers import Numbers
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError


class Layout(Numbers):
    """Labels speak of tensor dimensions; those of the mesh are added."""

    def contraction(self, text: str, *views: View) -> View:
        """Einsum over tensor dimensions, e.g. ``"m k, k n -> m n"``: labels that the output lacks are summed."""
        inputs, output = self._labels(text, views)
        used = {label for labels in inputs for label in labels}
        return algebra.contract(self.pool, views, inputs, output, frozenset(used - set(output)))

    def core(
        self,
        operation: Operation,
        attributes: tuple[object, ...],
        text: str,
        *views: View,
        cores: str = "",
        fresh: Mapping[str, Size] | None = None,
    ) -> View:
        """Apply an operation that reads the dimensions in ``cores`` wholly and in order.

        ``text``: labels as in ``contraction``; ``fresh``: output labels that no operand has, with sizes.
        """
        self._require_same_on_ranks((*attributes, *(fresh or {}).values()))
        inputs, output = self._labels(text, views)
        signature = Signature(
            inputs,
            output,
            frozenset(),
            tuple((label,) for label in cores.split()),
            {label: size for label, size in (fresh or {}).items()},  # noqa: C416 - the key type widens to Label
        )
        return apply(self.pool, operation, attributes, views, signature)

    def along(
        self, operation: Operation, attributes: tuple[object, ...], view: View, dim: int, length: Size | None = None
    ) -> View:
        """Apply an operation that reads one dimension wholly; its result has ``length`` there (default: as before)."""
        self._require_same_on_ranks((*attributes, length))
        position = self.dim(view, dim)
        labels: tuple[Label, ...] = tuple(range(view.rank))
        output = tuple("fresh" if d == position else d for d in labels)
        size = view.shape[position] if length is None else length
        signature = Signature((labels,), output, frozenset(), ((position,),), {"fresh": size})
        return apply(self.pool, operation, attributes, (view,), signature)

    def _labels(self, text: str, views: Sequence[View]) -> tuple[tuple[tuple[Label, ...], ...], tuple[Label, ...]]:
        left, right = text.split("->")
        mesh: tuple[Label, ...] = tuple(("mesh", axis) for axis in range(self.lead))
        stars: dict[str, int] = {}
        inputs: list[tuple[Label, ...]] = []
        for words, view in zip(left.split(","), views, strict=True):
            names = words.split()
            inputs.append(mesh + _expand_star(names, self.rank(view), stars))
        names = right.split()
        count = sum(stars.get(n, 1) if n.startswith("*") else 1 for n in names)
        return tuple(inputs), mesh + _expand_star(names, count, stars)

    def _require_same_on_ranks(self, attributes: Sequence[object]) -> None:
        """A term has one set of attributes for all ranks."""
        for attribute in attributes:
            if isinstance(attribute, sympy.Expr) and attribute.free_symbols & set(self.coordinates):
                raise UnsupportedError(UNREPRESENTABLE, f"the attribute {attribute} depends on the rank")

    def reshape(self, view: View, shape: Sequence[Size]) -> View:
        """Row-major reshape of the tensor dimensions."""
        target = tuple(shape)
        with contextlib.suppress(relabel.UnalignedError):
            found = relabel.reshape(view, target, self.lead)
            if found.term.operation is not RESHAPE:
                return found
        from verifycompile.ir import reshaped  # here, because few values are read in other digits

        return reshaped.reshape(self.pool, view, target, self.lead)

    def permute(self, view: View, dims: Sequence[int]) -> View:
        return relabel.permute(view, [*range(self.lead), *(self.dim(view, d) for d in dims)])

    def transpose(self, view: View, first: int, second: int) -> View:
        order = list(range(view.rank))
        a, b = self.dim(view, first), self.dim(view, second)
        order[a : a + 1], order[b : b + 1] = order[b : b + 1], order[a : a + 1]  # a scalar has none to exchange
        return relabel.permute(view, order)

    def expand(self, view: View, shape: Sequence[Size]) -> View:
        """Broadcast to ``shape`` (-1 keeps a size)."""
        missing = len(shape) - self.rank(view)
        kept = [s if s != -1 else view.shape[self.lead + d - missing] for d, s in enumerate(shape)]
        return relabel.broadcast_to(view, tuple(kept), self.lead)

    def unsqueeze(self, view: View, dim: int) -> View:
        return relabel.insert_dim(view, self.dim(view, dim, extra=1))

    def squeeze(self, view: View, dims: Sequence[int] | int | None) -> View:
        result = view
        for position in sorted(self.dims(view, dims), reverse=True):
            if result.shape[position] == 1:
                result = relabel.remove_dim(result, position)
        return result


def _expand_star(names: Sequence[str], rank: int, stars: dict[str, int]) -> tuple[Label, ...]:
    labels: list[Label] = []
    explicit = sum(1 for n in names if not n.startswith("*"))
    for name in names:
        if not name.startswith("*"):
            labels.append(name)
            continue
        count = rank - explicit
        stars[name] = max(stars.get(name, 0), count)
        labels.extend((name, k) for k in range(-count, 0))
    if len(labels) != rank:
        raise UnsupportedError(UNREPRESENTABLE, f"a tensor of {rank} dimensions where {len(labels)} are expected")
    return tuple(labels)
