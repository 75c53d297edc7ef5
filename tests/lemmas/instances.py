"""Instances of lemmas in the IR: expressions that are the left side of one, built of leaves that meet its guards.

The same expression with one guard not met must be refused; what is not refused must have the same numbers.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.algebra import INFINITY, combine, contract, elementwise, iota, multiply_views
from verifycompile.ir.exponential import EXPONENTIAL
from verifycompile.ir.indicator import less, negate
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import Scalar
from verifycompile.ir.term import CONSTANT, IndexFact, Term, TermPool, View
from verifycompile.rewrites.lemmas.build import build, build_product
from verifycompile.rewrites.lemmas.dispose import dispose
from verifycompile.rewrites.lemmas.lemma import INDEX, NUMBER, VALUE, Guard, Lemma, Pattern
from verifycompile.rewrites.lemmas.read import flattened, without_sums
from verifycompile.rewrites.lemmas.spelling import names
from verifycompile.rewrites.lemmas.substitution import InProduct, InSum, Position, Substitution
from verifycompile.rewrites.operations import SLIDING_WINDOW

SIZE, FREE, SUMMANDS = 3, 3, 2
EXCEPTION = -100


@dataclasses.dataclass(frozen=True)
class Instance:
    """``given``: the substitution. ``position``: where it is in a pool that applies no lemma by itself."""

    pool: TermPool
    lemma: Lemma
    given: Substitution
    position: Position

    def disposed(self, lemma: Lemma | None = None) -> list[View] | None:
        return dispose(self.pool, lemma or self.lemma, self.given, self.position)

    def value(self, views: list[View] | None = None) -> torch.Tensor:
        """The numbers of the position, or of what stands there instead."""
        leaves = {
            str(term.attributes[0]): _numbers(term.operation.name, str(term.attributes[0]), term.shape)
            for term in self.pool.sources
            if term.operation.name.endswith("leaf")
        }
        evaluator = Evaluator(leaves)
        if isinstance(self.position, InProduct):
            factors = list(self.position.factors) if views is None else views
            labels = tuple(range(len(factors[0].shape)))
            bound = frozenset(labels[self.position.free :])
            inputs = tuple(labels for _ in factors)
            found = contract(self.pool, factors, inputs, labels[: self.position.free], bound)
            return evaluator.view(found)
        return torch.stack([evaluator.view(v) for v in views or self.position.summands]).sum(0)


def _numbers(kind: str, name: str, shape: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    if kind == "leaf":
        return torch.randn(shape, dtype=torch.float64, generator=generator)
    return torch.randint(0, 2 if kind == "indicator_leaf" else SIZE, shape, generator=generator)


def instance(lemma: Lemma) -> Instance:
    return Maker(lemma).make()


def violation(lemma: Lemma, guard: Guard) -> Instance | None:
    """An instance that meets all guards but one; None where scopes and spelling leave none."""
    try:
        found = Maker(lemma, guard).make()
    except (KeyError, UnalignedError):
        return None
    same = _described(found.given) == _described(instance(lemma).given) and guard[0] != "within_or"
    return None if same else found


def _described(given: Substitution) -> object:
    everything = [*given.values.items(), *((n, f) for n, each in given.each.items() for f in each)]
    views = [(name, [(v.term.operation, v.term.attributes, v.axes) for v in factors]) for name, factors in everything]
    return views, given.numbers


class Maker:
    """Makes an instance of a lemma, in which ``broken``, one of its guards, is not met."""

    def __init__(self, lemma: Lemma, broken: Guard | None = None) -> None:
        self.lemma, self.broken = lemma, broken
        self.pool = TermPool()
        self.guards = [guard for guard in lemma.guards if guard != broken]
        self.summed = _indices(lemma.left, "sum") | _indices(lemma.left, "max")
        outer, self.left = without_sums(lemma.left)
        self.root = [index for index in outer if not _is_factor(lemma)]
        if not self.root:
            self.left = lemma.left
        order = [*self.root, *(i for i in names(lemma, INDEX) if i in self.summed and i not in self.root)]
        self.dims = {index: (FREE + k,) for k, index in enumerate(order)}
        self.shape = tuple(SIZE for _ in range(FREE + len(order)))
        self.outer = self.shape[: FREE + len(self.root)]
        self.each = _indices(lemma.left, "each")

    def make(self) -> Instance:
        numbers = self._numbers()
        values: dict[str, tuple[View, ...]] = {}
        each: dict[str, tuple[tuple[View, ...], ...]] = {}
        for place, name in enumerate(names(self.lemma, VALUE)):
            if self._varies(name):
                each[name] = tuple(self._value(f"{name}{k}", name, place, numbers) for k in range(SUMMANDS))
            else:
                values[name] = self._value(name, name, place, numbers)
        self._relate(values)
        given = Substitution(values, numbers, self.dims, each)
        if not isinstance(self.left, str) and self.left[0] == "add":
            self.outer = self.shape[:FREE]
            parts = [self._narrowed(build(self.pool, p, self.shape, given)) for p in flattened(self.left)]
            return Instance(self.pool, self.lemma, given, InSum(parts, self.outer, parts))
        factors = [self._narrowed(v) for v in build_product(self.pool, self.left, self.shape, given)]
        return Instance(self.pool, self.lemma, given, InProduct(factors, FREE, factors))

    def _narrowed(self, view: View) -> View:
        return View(view.coefficient, view.term, self.outer, view.axes)

    def _varies(self, name: str) -> bool:
        inside = any(name in _names_in(body) for body in _bodies(self.lemma.left, "each"))
        return inside and not any(g[0] == "independent" and g[1] == name and g[2] in self.each for g in self.guards)

    def _numbers(self) -> dict[str, Scalar]:
        numbers: dict[str, Scalar] = {n: Fraction(k + 2) for k, n in enumerate(names(self.lemma, NUMBER))}
        if self.lemma.code == "VL71":
            numbers = {"p": Fraction(0), "q": Fraction(1), "s": Fraction(2)}
            swapped = {"p": {"p": Fraction(2)}, "q": {"s": Fraction(0)}}
            numbers.update(swapped[str(self.broken[1])] if self.broken else {})
        if self.lemma.code == "VL97":
            # Three windows of two positions on a line of four: the first reads 0 and 1, the second 1 and 2.
            numbers = {n: Fraction(v) for n, v in zip("pqsbcdefg", (0, 1, 2, 0, 2, 1, 3, 0, 3), strict=True)}
            if self.broken:
                swapped = {"p": {"p": 2}, "q": {"s": 0}, "m": {"c": 1} if "c" in self.broken else {"d": 2}}
                numbers.update({n: Fraction(v) for n, v in swapped[str(self.broken[1])].items()})
        for kind, *arguments in self.lemma.guards:
            if kind == "digit":
                numbers[str(arguments[1])] = Fraction(SIZE)
            if kind == "within_or":
                numbers[str(arguments[2])] = Fraction(EXCEPTION)
        return numbers

    def _dims_of(self, name: str) -> list[int]:
        """The dimensions that a value reads: of all indices in whose sums it stands, but for those that guards exclude."""
        scopes = [scope for side in (self.lemma.left,) for scope in _scopes(side, name, ())]
        inside = set.intersection(*map(set, scopes)) if scopes else set(self.root)
        excluded = {str(g[2]) for g in self.guards if g[0] == "independent" and g[1] == name}
        return [self.dims[index][0] for index in self.dims if index in inside and index not in excluded]

    def _value(self, leaf: str, name: str, place: int, numbers: dict[str, Scalar]) -> tuple[View, ...]:
        if self.lemma.code == "VL97" and name == "m":
            return (self._matrix(),)
        said = {str(guard[0]): guard for guard in self.guards if guard[1] == name}
        meant = {str(guard[0]) for guard in self.lemma.guards if guard[1] == name}
        dims = self._dims_of(name)
        if meant & {"within", "whole", "digit"}:
            unmet = self.broken is not None and self.broken[1] == name and self.broken[0] != "independent"
            reads = dims[-1] if dims and self.broken and self.broken[0] == "independent" else place % FREE
            counter = iota(self.pool, SIZE)
            view = View(counter.coefficient, counter.term, self.shape, (((reads, 1, SIZE),),))
            return (
                view.scaled(Fraction(1, 2))
                if unmet and self.broken and self.broken[0] == "whole"
                else self._longer(place)
                if unmet
                else view,
            )
        if "within_or" in meant:
            source = self.pool.leaf(leaf, (SIZE,), whole=True)
            if "within_or" in said:
                self.pool.facts = {source.term: (IndexFact(EXCEPTION, SIZE, "a test"),)}
            return (self._placed(source, [place % FREE]),)
        if meant & {"implies", "equivalent", "known"} or self._is_related(name):
            return self._mask(name)
        shape = tuple(SIZE for _ in (0, *dims))
        view = self._placed(self.pool.leaf(leaf, shape, indicator="indicator" in said), [0, *dims])
        if "positive" in said:
            view = elementwise(self.pool, EXPONENTIAL, (), (view,))
        if "positive" in said and self.lemma.code == "VL42":
            view = multiply_views(self.pool, view, view)
        if self.broken == ("number", name):
            infinite = View(Fraction(-1), self._infinity(), self.shape, ())
            mask = self._placed(self.pool.leaf("mask", (SIZE,), indicator=True), [0])
            return (combine(self.pool, [view, multiply_views(self.pool, mask, infinite)]),)
        if self.broken and self.broken[0] == "finite" and self.broken[1] == name:
            return (view, View(Fraction(1), self._infinity(), self.shape, ()))
        return (view,)

    def _matrix(self) -> View:
        """Windows of two positions, one step apart, on a line as long as all others."""
        term = self.pool.intern(SLIDING_WINDOW, (1, 0, 1), (), (SIZE, 2, SIZE), 3, 0, (), (0, 1, 2))
        windows, line = (self.dims[index][0] for index in ("w", "x"))
        return View(Fraction(1), term, self.shape, (((windows, 1, SIZE),), ((CONSTANT, 1, 2),), ((line, 1, SIZE),)))

    def _infinity(self) -> Term:
        return self.pool.intern(INFINITY, (), (), (), 0, 0, (), ())

    def _longer(self, place: int) -> View:
        """A counter of more positions than there are, two digits long."""
        counter = iota(self.pool, SIZE * SIZE)
        first, second = place % FREE, (place + 1) % FREE
        return View(counter.coefficient, counter.term, self.shape, (((first, 1, SIZE), (second, 1, SIZE)),))

    def _placed(self, view: View, dims: list[int]) -> View:
        axes = tuple(((dims[digit[0]], digit[1], digit[2]),) for (digit,) in view.axes)
        return View(view.coefficient, view.term, self.shape, axes)

    def _is_related(self, name: str) -> bool:
        related = [g for g in self.lemma.guards if g[0] in ("implies", "equivalent", "known")]
        return any(name in _names_in(argument) for guard in related for argument in guard[1:])

    def _mask(self, name: str) -> tuple[View, ...]:
        """``x < 2`` for one name and ``x < 1`` for the next: the second implies the first."""
        index = self._placed(self.pool.leaf("x", (SIZE,), whole=True), [0])
        unmet = self.broken is not None and self.broken[0] in ("implies", "equivalent", "known")
        if self.broken == ("indicator", name):
            return (self._placed(self.pool.leaf("y", (SIZE,)), [0]),)
        bound = {"known": SIZE, "implies": 2 if name == "n" else 1, "equivalent": 1}
        kind = next(str(g[0]) for g in self.lemma.guards if g[0] in bound)
        if kind == "known":
            self.pool.facts = {index.term: (IndexFact(None, SIZE, "a test"),)}
        limit = bound[kind] - 1 if unmet and (name in ("n", "c") or kind == "known") else bound[kind]
        limit = 1 if kind == "implies" and unmet and name == "n" else limit
        limit = 2 if kind == "implies" and unmet and name == "m" else limit
        return (less(self.pool, index, self.pool.constant(Fraction(limit), self.shape)),)

    def _relate(self, values: dict[str, tuple[View, ...]]) -> None:
        """What masks inside and outside of a sum are together is both of them, and what masks are of each other."""
        if any(guard[0] == "beside" for guard in self.lemma.guards):
            self._relate_beside(values)
        if self.lemma.code not in ("VL40", "VL138", "VL139"):
            return
        counter = iota(self.pool, SIZE)
        place = View(counter.coefficient, counter.term, self.shape, (((self.dims["l"][0], 1, SIZE),),))
        if self.lemma.code != "VL40":
            self._relate_masks(values, place)
            return
        if self.broken != ("indicator", "n"):
            values["n"] = (less(self.pool, place, self.pool.constant(Fraction(2), self.shape)),)
        if self.broken == ("indicator", "c"):
            return
        values["c"] = values["m"] if self.broken and self.broken[0] == "equivalent" else (*values["m"], *values["n"])

    def _relate_beside(self, values: dict[str, tuple[View, ...]]) -> None:
        """A function of a value under a mask or a look-up, and of the value itself: ``inner`` is looked through."""
        looks_up = "m" not in values
        plain, inner, outer = (values["a"][0], "b", "a") if looks_up else (values["b"][0], "a", "b")
        if looks_up:
            seen = build(self.pool, self.lemma.left, self.shape, Substitution(values, indices=self.dims))
        else:
            seen = multiply_views(self.pool, values["m"][0], plain)
        seen = plain if self.broken and self.broken[:2] == ("independent", "b") else seen
        values[inner] = (elementwise(self.pool, EXPONENTIAL, (), (seen,)),)
        if self.broken is None or self.broken[0] != "beside":
            values[outer] = (elementwise(self.pool, EXPONENTIAL, (), (plain,)),)

    def _relate_masks(self, values: dict[str, tuple[View, ...]], place: View) -> None:
        """Positions before the first bound and from the second one on, or one of two bounds within the other."""
        one, two = (self.pool.constant(Fraction(k), self.shape) for k in (1, 2))
        before = [less(self.pool, place, bound) for bound in (one, two)]
        unmet = () if self.broken is None else (self.broken[0], self.broken[-1])
        apart = self.lemma.code == "VL138"
        masks = {"m": before[0] if apart else before[1], "n": negate(self.pool, before[1]) if apart else before[0]}
        if unmet in (("equivalent", "m"), ("implies", "m")):
            masks["n"] = before[1] if apart else negate(self.pool, before[1])
        for name, mask in masks.items():
            values[name] = values[name] if unmet == ("indicator", name) else (mask,)
        if unmet == ("indicator", "c"):
            return
        if unmet == ("equivalent", "c"):
            values["c"] = (two.scaled(Fraction(1, 2)),)
            return
        neither = multiply_views(self.pool, *(negate(self.pool, mask) for mask in masks.values()))
        values["c"] = (negate(self.pool, neither),) if apart else (masks["m"], negate(self.pool, masks["n"]))


def _is_factor(lemma: Lemma) -> bool:
    """Whether the sum that a left side begins with is proposed as a factor of a product."""
    return lemma.code == "VL23"


def _bodies(pattern: Pattern, operator: str) -> list[Pattern]:
    if isinstance(pattern, str):
        return []
    own = [pattern[2]] if pattern[0] == operator else []
    return [*own, *(body for argument in pattern[1:] for body in _bodies(argument, operator))]


def _names_in(pattern: Pattern) -> set[str]:
    return {pattern} if isinstance(pattern, str) else set[str]().union(*map(_names_in, pattern[1:]))


def _indices(pattern: Pattern, operator: str) -> set[str]:
    if isinstance(pattern, str):
        return set()
    own = {str(pattern[1])} if pattern[0] == operator else set[str]()
    return own.union(*(_indices(argument, operator) for argument in pattern[1:]))


def _scopes(pattern: Pattern, name: str, inside: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The indices in whose sums each occurrence of a name stands."""
    if isinstance(pattern, str):
        return [inside] if pattern == name else []
    if pattern[0] in ("sum", "max"):
        return _scopes(pattern[2], name, (*inside, str(pattern[1])))
    return [scope for argument in pattern[1:] for scope in _scopes(argument, name, inside)]
