"""The e-graph stage: equality of two values by saturation of the linear-algebra lemmas (DESIGN section 5).

Only what normal form left open comes here. Both values are laid open into sums, products and scalings over named
indices; everything else, and every term that both sides share, is an opaque leaf. Rules are generated as text from
the lemmas. Saturation stops after a number of rounds, e-nodes or milliseconds; what is not proved then stays open.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from verifycompile import bounds
from verifycompile.ir.algebra import COMBINE, CONTRACT, open_view
from verifycompile.ir.term import CONSTANT, UNIT, Term, View
from verifycompile.refinement.result import Means
from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern
from verifycompile.rewrites.lemmas.ring import LINEAR_ALGEBRA

_MAX_ROUNDS = 8
_MAX_SECONDS = 0.25
_MAX_NODES = 4_000
_MAX_DEPTH = 4
_MAX_INTEGER = 2**63 - 1  # of egglog's literals

_OPERATORS = {"add": "Add", "mul": "Mul", "scale": "Scale", "sum": "Sum", "one": "One", "plus": "+", "times": "*"}

_SIGNATURE = """
(datatype Value (One) (Leaf i64) (Add Value Value) (Mul Value Value) (Sum i64 Value) (Scale BigRat Value))
(relation independent (Value i64))
(rule ((independent a i) (independent b i) (= e (Add a b))) ((independent e i)))
(rule ((independent a i) (independent b i) (= e (Mul a b))) ((independent e i)))
(rule ((independent a i) (= e (Scale p a))) ((independent e i)))
(rule ((independent a i) (= e (Sum j a))) ((independent e i)))
(rule ((= e (Sum i a))) ((independent e i)))
"""


@dataclasses.dataclass(frozen=True)
class EqualityProof:
    """What proved it: lemmas that fired, with the number of their matches, and the rounds that were needed."""

    lemmas: tuple[tuple[str, int], ...]
    rounds: int
    means: Means = "egraph"


_CONSTRUCTORS = frozenset({"One", "Leaf", "Add", "Mul", "Sum", "Scale"})

_durations: list[float] = []
_exhausted: dict[str, None] = {}


def take_exhausted() -> tuple[str, ...]:
    """The budgets that ended a question without an answer since the last call."""
    taken = tuple(_exhausted)
    _exhausted.clear()
    return taken


def take_durations() -> list[float]:
    """Seconds of every question since the last call."""
    taken = list(_durations)
    _durations.clear()
    return taken


def prove_equal(left: View, right: View) -> EqualityProof | None:
    """Prove two views of equal shape equal, or return None. Never claims equality by running out of budget."""
    started = time.perf_counter()
    try:
        return _prove_equal(left, right, shared_first=True) or _prove_equal(left, right, shared_first=False)
    except BaseException as error:
        # A panic of the engine, which is no Exception, and its own errors end the search, not the compilation.
        if type(error).__name__ in ("PanicException", "EggSmolError"):
            return None
        raise
    finally:
        _durations.append(time.perf_counter() - started)


def _prove_equal(left: View, right: View, *, shared_first: bool) -> EqualityProof | None:
    """``shared_first``: how products are written. Either way finds, within its budget, what the other does not."""
    if left.shape != right.shape:
        return None
    encoder = _Encoder(_shared_terms(left, right), coefficients_inside=shared_first)
    names = tuple(("dim", d) for d in range(left.rank))
    if shared_first:
        for view in (left, right):
            encoder.encode(view, names)
        encoder.sort_factors()
    texts = encoder.encode(left, names), encoder.encode(right, names)
    if texts[0] is None or texts[1] is None:
        return None
    from egglog import bindings  # imported here: it costs a fifth of a second and most programs never need it

    graph = bindings.EGraph()
    graph.run_program(*_rules())
    facts = [f"(let $left {texts[0]})", f"(let $right {texts[1]})", *encoder.facts()]
    graph.run_program(*graph.parse_program("\n".join(facts)))
    return _saturate(graph, bindings)


def _saturate(graph: Any, bindings: Any) -> EqualityProof | None:
    deadline = time.thread_time() + _MAX_SECONDS
    step = graph.parse_program("(run 1)")
    goal = graph.parse_program("(check (= $left $right))")
    count_nodes = graph.parse_program("(print-size)")
    matches: dict[str, int] = {}
    for rounds in range(1, _MAX_ROUNDS + 1):
        bounds.check()
        (output,) = graph.run_program(*step)
        report = output.report
        for rule, count in report.num_matches_per_rule.items():
            matches[rule] = matches.get(rule, 0) + count
        try:
            graph.run_program(*goal)
        except bindings.EggSmolError:
            if not report.updated:
                return None
            (sizes,) = graph.run_program(*count_nodes)
            if sum(count for name, count in sizes.sizes if name in _CONSTRUCTORS) > _MAX_NODES:
                _exhausted[f"{_MAX_NODES} e-nodes"] = None
                return None
            if time.thread_time() > deadline:
                _exhausted[f"{1000 * _MAX_SECONDS:g} milliseconds"] = None
                return None
            continue
        codes = {f'"{lemma.code}"': lemma for lemma in LINEAR_ALGEBRA}
        used = tuple((lemma.name, matches[key]) for key, lemma in codes.items() if matches.get(key))
        return EqualityProof(used or tuple((lemma.name, 1) for lemma in _named(matches)), rounds)
    _exhausted[f"{_MAX_ROUNDS} rounds"] = None
    return None


def _named(matches: dict[str, int]) -> list[Lemma]:
    return [lemma for lemma in LINEAR_ALGEBRA if any(lemma.code in rule and count for rule, count in matches.items())]


@functools.cache
def _rules() -> tuple[Any, ...]:
    """The lemmas as parsed rules; parsing once saves most of the cost of a small problem."""
    from egglog import bindings

    return tuple(bindings.EGraph().parse_program(_SIGNATURE + "\n".join(rule_text(lemma) for lemma in LINEAR_ALGEBRA)))


def rule_text(lemma: Lemma) -> str:
    """A lemma as egglog text, one or two rules named by its code."""
    guards = " ".join(f"({name} {value} {index})" for name, value, index in lemma.guards)
    sides = [(lemma.left, lemma.right), *([(lemma.right, lemma.left)] if lemma.both_ways else [])]
    return "\n".join(
        f'(rule ((= e {_text(source)}) {guards}) ((union e {_text(target)})) :name "{lemma.code}{suffix}")'
        for suffix, (source, target) in zip(("", "R"), sides, strict=False)
    )


def _text(pattern: Pattern) -> str:
    if isinstance(pattern, str):
        return pattern
    return "(" + " ".join([_OPERATORS[str(pattern[0])], *(_text(p) for p in pattern[1:])]) + ")"


def _shared_terms(left: View, right: View) -> set[Term]:
    return _subterms(left) & _subterms(right)


def _subterms(view: View) -> set[Term]:
    found: set[Term] = set()
    frontier = [view.term]
    for _ in range(_MAX_DEPTH):
        inner = [operand.term for term in frontier if _is_linear(term) for operand in term.operands]
        found.update(inner)
        frontier = inner
    return found


def _is_linear(term: Term) -> bool:
    return term.operation in (CONTRACT, COMBINE)


def _integer(value: int) -> str:
    """A whole number; egglog's literals end at 64 bits."""
    return f"(bigint {value})" if abs(value) <= _MAX_INTEGER else f'(from-string "{value}")'


class _Encoder:
    """Views as egglog text over named indices. Bound indices are named by the number of
    enclosing sums, so that equal sums have equal names.
    """

    def __init__(self, opaque: set[Term], *, coefficients_inside: bool) -> None:
        self._opaque = opaque
        self._coefficients_inside = coefficients_inside
        self._leaves: dict[tuple[object, ...], int] = {}
        self._depends: dict[int, set[int]] = {}
        self._indices: dict[object, int] = {}
        self._uses: collections.Counter[str] = collections.Counter()
        self._rank: dict[str, int] | None = None

    def sort_factors(self) -> None:
        """From now on write the factors that occur most in both values first, and sums last.

        Multiplication is commutative; what all summands share is then one factor, next to the sum that it multiplies,
        and neither has to be searched for.
        """
        self._rank = {text: -count for text, count in self._uses.items()}

    def encode(self, view: View, names: Sequence[object], depth: int = 0, level: int = 0) -> str | None:
        """Text of ``view`` whose dimensions are called ``names``; None for a coefficient that egglog cannot read."""
        coefficient = view.coefficient
        if not isinstance(coefficient, Fraction):
            return None
        if self._coefficients_inside and view.term.operation is COMBINE and not self._is_leaf(view.term, depth):
            return self._term(view, names, depth, level)  # a sum has no factor of its own: its summands take it
        body = self._term(view.unscaled(), names, depth, level)
        if body is None or coefficient == 1:
            return body
        return f"(Scale (bigrat {_integer(coefficient.numerator)} {_integer(coefficient.denominator)}) {body})"

    def _term(self, view: View, names: Sequence[object], depth: int, level: int) -> str | None:
        term = view.term
        if self._is_leaf(term, depth):
            return self._leaf(view, names)
        opened = open_view(view)
        operands = opened.operands
        if self._coefficients_inside and term.operation is COMBINE:
            operands = tuple(operand.scaled(view.coefficient) for operand in operands)
        bound = [("bound", level, opened.shape[d], k) for k, d in enumerate(opened.summed)]
        inner = [*names, *bound]
        parts = [self.encode(operand, inner, depth + 1, level + bool(bound)) for operand in operands]
        if not parts or any(part is None for part in parts):
            return None
        operator = "Add" if term.operation is COMBINE else "Mul"
        if operator == "Mul" and self._rank is not None:
            ranks = self._rank
            parts.sort(key=lambda part: (ranks.get(str(part), 1), str(part)))
        text = str(parts[0])
        for part in parts[1:]:
            text = f"({operator} {text} {part})"
        for name in bound:
            text = f"(Sum {self._index(name)} {text})"
        return text

    def _is_leaf(self, term: Term, depth: int) -> bool:
        return depth >= _MAX_DEPTH or not _is_linear(term) or (term in self._opaque and depth > 0)

    def _leaf(self, view: View, names: Sequence[object]) -> str:
        axes = tuple(
            tuple(("constant", d[1], d[2]) if d[0] == CONSTANT else (names[d[0]], d[1], d[2]) for d in axis)
            for axis in view.axes
        )
        if view.term.operation is UNIT:
            return "(One)"
        number = self._leaves.setdefault((view.term.id, axes), len(self._leaves))
        used = {names[d[0]] for axis in view.axes for d in axis if d[0] != CONSTANT}
        self._depends[number] = {self._index(name) for name in used}
        self._uses[f"(Leaf {number})"] += 1
        return f"(Leaf {number})"

    def _index(self, name: object) -> int:
        return self._indices.setdefault(name, len(self._indices))

    def facts(self) -> list[str]:
        """Which leaves do not depend on which indices."""
        return [
            *(f"(independent (One) {index})" for index in self._indices.values()),
            *(
                f"(independent (Leaf {leaf}) {index})"
                for leaf, used in self._depends.items()
                for index in self._indices.values()
                if index not in used
            ),
        ]
