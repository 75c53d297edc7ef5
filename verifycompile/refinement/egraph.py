"""The e-graph stage: it proposes the instances of laws of functions that make two values equal.

Only what normal form and the ring prover left open comes here. Both values are opened into functions, sums, products
and scalings over named indices; everything else is an opaque leaf. Rules are generated as text from the table
``rewrites/lemmas/functions.py``; a rule that fires writes its instance into a relation. The instances are the answer,
and it is not believed: ``closure.py`` decides whether they hold and whether the values are equal by them. Saturation
stops after a number of rounds or e-nodes, which are counted after every step of a round. A scaling of zero matches no
more, and what equals its own multiple is zero: else scalings alone grow from a hundred to a hundred thousand in a step.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from verifycompile import bounds
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.refinement.closure import LAWS, Instance, instances_prove, is_defined, without_needless
from verifycompile.refinement.encoding import MAX_DEPTH, encode, is_open
from verifycompile.refinement.numbers import differ
from verifycompile.refinement.result import Means
from verifycompile.rewrites.interpretation import NUMBERS, OPERATORS, Expression, Space
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern
from verifycompile.rewrites.lemmas.ring import LINEAR_ALGEBRA

_ROUNDS = 4
_FIRST_STEPS, _STEPS = 8, 4
"""Of what is made simpler, before the first round and in each."""
_MAX_NODES = 1_500
_MAX_INSTANCES = 64
_FEW = 8
"""Instances that are tried before all of them are: most proofs need two, and each has to be built."""
_MAX_GRAPHS = 16
_MAX_INTEGER = 2**63 - 1  # of egglog's literals

_ARITY = {
    "zero": "", "one": "", "add": "V V", "mul": "V V", "scale": "BigRat V", "sum": "i64 V", "power": "BigRat V",
    "exp": "V", "log": "V", "not": "V", "maximum": "V V", "minimum": "V V", "where": "V V V",
}  # fmt: skip
_RING = frozenset({"add-commutes", "multiply-commutes", "scale-scale", "collect"})
"""Laws of the ring that let the others match. What they do needs no instance: the ring prover knows it."""

_GUARDS = """
(ruleset absorb)
(ruleset simplify)
(relation defined (V))
(relation indicator (V))
(rule ((= e (One))) ((defined e)) :ruleset simplify)
(rule ((= e (Zero))) ((defined e)) :ruleset simplify)
(rule ((= e (Add a b)) (defined a) (defined b)) ((defined e)) :ruleset simplify)
(rule ((= e (Mul a b)) (defined a) (defined b)) ((defined e)) :ruleset simplify)
(rule ((= e (Maximum a b)) (defined a) (defined b)) ((defined e)) :ruleset simplify)
(rule ((= e (Minimum a b)) (defined a) (defined b)) ((defined e)) :ruleset simplify)
(rule ((= e (Scale p a)) (defined a)) ((defined e)) :ruleset simplify)
(rule ((= e (Sum i a)) (defined a)) ((defined e)) :ruleset simplify)
(rule ((= e (Where c a b)) (defined a) (defined b)) ((defined e)) :ruleset simplify)
(rule ((= e (Not a)) (indicator a)) ((indicator e)) :ruleset simplify)
(rule ((= e (Not a)) (defined a)) ((defined e)) :ruleset simplify)
(rule ((= e (Maximum a b))) ((union e (Maximum b a))) :ruleset simplify)
"""

_SIMPLIFY = """
(rule ((= e (Add a (Scale p a)))) ((union e (Scale (+ p (bigrat (bigint 1) (bigint 1))) a))) :ruleset simplify)
(rule ((= e (Add a a))) ((union e (Scale (bigrat (bigint 2) (bigint 1)) a))) :ruleset simplify)
(rule ((= e (Scale (bigrat (bigint 1) (bigint 1)) a))) ((union e a)) :ruleset simplify)
(rule ((= e (Add a (Zero)))) ((union e a)) :ruleset simplify)
(rule ((= e (Scale (bigrat (bigint 0) (bigint 1)) a))) ((union e (Zero))) :ruleset absorb)
(rule ((= e (Scale p e)) (!= p (bigrat (bigint 1) (bigint 1)))) ((union e (Zero))) :ruleset absorb)
(rule ((= e (Scale p (Zero)))) ((union e (Zero)) (subsume (Scale p (Zero)))) :ruleset absorb)
"""


@dataclasses.dataclass(frozen=True)
class EqualityProof:
    """What proved it: the lemmas with the number of their instances, and the instances themselves."""

    lemmas: tuple[tuple[str, int], ...]
    means: Means = "egraph"
    instances: tuple[Instance, ...] = ()


_COMPARISONS = {"positive_number": ">", "negative_number": "<"}

_durations: list[float] = []
_exhausted: dict[str, None] = {}


def take_exhausted() -> tuple[str, ...]:
    """The budgets that ended a question without an answer since the last call."""
    taken = tuple(_exhausted)
    _exhausted.clear()
    return taken


def take_durations() -> list[float]:
    """Processor seconds of every question since the last call."""
    taken = list(_durations)
    _durations.clear()
    return taken


def prove_equal(pool: TermPool, left: View, right: View) -> EqualityProof | None:
    """Prove two views of equal shape equal, or return None. Never claims equality by running out of budget."""
    if left.shape != right.shape or not may_help(left, right):
        return None
    key = ("equal by laws", left, right)
    if key in pool.answers:
        return pool.answers[key]
    started = time.thread_time()
    try:
        proof = _prove_equal(pool, left, right)
    except BaseException as error:
        # A panic of the engine, which is no Exception, and its own errors end the search, not the compilation.
        if type(error).__name__ not in ("PanicException", "EggSmolError"):
            raise
        proof = None
    finally:
        _durations.append(time.thread_time() - started)
    pool.answers[key] = proof
    return proof


def _prove_equal(pool: TermPool, left: View, right: View) -> EqualityProof | None:
    encoded = encode(left, right)
    if encoded is None or differ(*encoded):
        return None
    proposed = propose(*encoded)
    found = instances_prove(pool, *encoded, proposed[:_FEW])
    if found is None and len(proposed) > _FEW:
        found = instances_prove(pool, *encoded, proposed)
    if found is None:
        return None
    found = without_needless(pool, *encoded, found)
    counts: dict[str, int] = {}
    for instance in found:
        name = LAWS[instance.code].name
        counts[name] = counts.get(name, 0) + 1
    return EqualityProof(tuple(counts.items()), "egraph", found)


# ------------------------------------------------------------------------------------------------ whether to ask


def may_help(left: View, right: View) -> bool:
    """Whether a law applies at all: one of the two values has a function that one begins with."""
    return bool((_heads(left) | _heads(right)) & _KNOWN)


def _heads(view: View) -> set[str]:
    """The functions that stand in a value, down to leaves."""
    found: set[str] = set()
    frontier = {view.term}
    for _ in range(MAX_DEPTH):
        inner: set[Term] = set()
        for term in frontier:
            name = OPERATORS.get(term.operation)
            if name is not None:
                found.add(name)
            if is_open(term):
                inner.update(operand.term for operand in term.operands)
        frontier = inner
    return found


_KNOWN = frozenset(
    str(side[0]) for law in FUNCTION_LAWS for side in ((law.left, law.right) if law.both_ways else (law.left,))
) - {"mul"}


# ------------------------------------------------------------------------------------------------ saturation


def propose(space: Space, left: Expression, right: Expression) -> list[Instance]:
    """Instances of laws that fired on two expressions, the shortest first."""
    operators = frozenset(_operators_of(left) | _operators_of(right))
    laws = _laws_for(operators)
    graph = _graph_for(laws)
    facts = [f"(let $left {_written(left)})", f"(let $right {_written(right)})", *_facts(space)]
    found: dict[str, Instance] = {}
    graph.run_program(*graph.parse_program("(push)\n" + "\n".join(facts)))
    try:
        _saturate(graph)
        sizes = _sizes(graph)
        for law in laws:
            if not sizes[f"fired-{law.code}"]:
                continue
            (fired,) = graph.run_program(*_parsed(f"(print-function fired-{law.code} {_MAX_INSTANCES})"))
            for text, arguments in _rows(fired):
                found[text] = Instance(law.code, dict(zip(_variables(law), arguments, strict=True)))
    except BaseException:
        _graphs().pop(laws)
        raise
    graph.run_program(*_parsed("(pop)"))
    return [found[text] for text in sorted(found, key=len)][:_MAX_INSTANCES]


def _saturate(graph: Any) -> None:
    if _are_many(graph, _FIRST_STEPS):
        return
    for _ in range(_ROUNDS):
        bounds.check()
        updated = _ran(graph, "(run 1)")
        if _are_many(graph, _STEPS) or not updated or _are_equal(graph):
            return


def _ran(graph: Any, command: str) -> bool:
    """Whether a run changed anything."""
    (output,) = graph.run_program(*_parsed(command))
    return output.report.updated


def _are_many(graph: Any, steps: int) -> bool:
    """Make simpler what is there, step by step; whether there are too many e-nodes then."""
    for _ in range(steps):
        updated = _ran(graph, "(run-schedule (saturate (run absorb)) (run simplify))")
        if sum(count for name, count in _sizes(graph).items() if name[0].isupper()) > _MAX_NODES:
            _exhausted[f"{_MAX_NODES} e-nodes"] = None
            return True
        if not updated:
            return False
    return False


def _sizes(graph: Any) -> dict[str, int]:
    """How many e-nodes each function has, and how many rows each relation."""
    (sizes,) = graph.run_program(*_parsed("(print-size)"))
    return dict(sizes.sizes)


def _are_equal(graph: Any) -> bool:
    """Whether the e-graph has both values in one class: what would fire later is not needed."""
    from egglog import bindings

    try:
        graph.run_program(*_parsed("(check (= $left $right))"))
    except bindings.EggSmolError:
        return False
    return True


@functools.cache
def _parsed(command: str) -> Any:
    from egglog import bindings

    return bindings.EGraph().parse_program(command)


def _operators_of(expression: Expression) -> set[str]:
    if not isinstance(expression, tuple):
        return set()
    operator, *arguments = expression
    return {operator}.union(*map(_operators_of, arguments))


@functools.cache
def _laws_for(operators: frozenset[str]) -> tuple[Lemma, ...]:
    """The laws that may apply to values with these operators, and to what they make of them."""
    known, laws = set(operators), list[Lemma]()
    while True:
        more = [law for law in FUNCTION_LAWS if law not in laws and _begins(law) & known]
        if not more:
            return tuple(law for law in FUNCTION_LAWS if law in laws)
        laws += more
        known.update(*(_operators_in(side) for law in more for side in (law.left, law.right)))


def _begins(law: Lemma) -> set[str]:
    return {str(side[0]) for side in ((law.left, law.right) if law.both_ways else (law.left,))}


def _operators_in(pattern: Pattern) -> set[str]:
    if isinstance(pattern, str):
        return set()
    return {str(pattern[0])}.union(*map(_operators_in, pattern[1:]))


_local = threading.local()


def _graphs() -> dict[tuple[Lemma, ...], Any]:
    """E-graphs of this thread that hold the rules of some laws and nothing else."""
    if not hasattr(_local, "graphs"):
        _local.graphs = {}
    return _local.graphs


def _graph_for(laws: tuple[Lemma, ...]) -> Any:
    from egglog import bindings  # imported here: it costs a fifth of a second and most programs never need it

    graphs = _graphs()
    graph = graphs.get(laws)
    if graph is None:
        while len(graphs) >= _MAX_GRAPHS:
            del graphs[next(iter(graphs))]
        graph = graphs[laws] = bindings.EGraph()
        graph.run_program(*graph.parse_program(rules_text(laws)))
    return graph


def _rows(printed: Any) -> Iterator[tuple[str, tuple[Expression, ...]]]:
    """The rows of a relation, as text and as expressions."""
    for term, _ in printed.terms:
        text = printed.termdag.to_string(term)
        yield text, _expression(iter(text.replace("(", " ( ").replace(")", " ) ").split()))[1:]


def _expression(tokens: Iterator[str]) -> Expression:
    """Reads one expression as egglog writes it."""
    word = next(tokens)
    if word != "(":
        return int(word.strip('"')) if word.strip('"').lstrip("-").isdigit() else word
    parts: list[Expression] = []
    while (part := _expression(tokens)) != ")":
        parts.append(part)
    operator = parts[0].lower()
    if operator in ("leaf", "from-string", "bigint"):
        return parts[1]
    return Fraction(parts[1], parts[2]) if operator == "bigrat" else (operator, *parts[1:])


def rules_text(laws: Sequence[Lemma]) -> str:
    """Every operator, the guards, and laws, as egglog text."""
    operators = sorted({*_ARITY, *OPERATORS.values()})
    constructors = [f"({name.capitalize()} {_ARITY.get(name, 'V')})" for name in operators]
    ring = [_rule(lemma.left, lemma.right, end=" :ruleset simplify") for lemma in LINEAR_ALGEBRA if lemma.name in _RING]
    values = f"(datatype V (Leaf i64) {' '.join(constructors)})"
    return "\n".join([values, _GUARDS, _SIMPLIFY, *ring, *map(rule_text, laws)])


def rule_text(lemma: Lemma) -> str:
    """A lemma as egglog text: one or two rules, and the relation of its instances."""
    names = _variables(lemma)
    relation = f"fired-{lemma.code}"
    sorts = " ".join("BigRat" if name in ("p", "q") else "V" for name in names)
    guards = " ".join(
        f"({_COMPARISONS[kind]} {name} {_number(Fraction(0))})" if kind in _COMPARISONS else f"({kind} {name})"
        for kind, name, *_ in lemma.guards
    )
    sides = [(lemma.left, lemma.right), *([(lemma.right, lemma.left)] if lemma.both_ways else [])]
    fired = f"({relation} {' '.join(names)})"
    rules = [_rule(source, target, guards, fired) for source, target in sides]
    return "\n".join([f"(relation {relation} ({sorts}))", *rules])


def _rule(source: Pattern, target: Pattern, guards: str = "", fired: str = "", end: str = "") -> str:
    return f"(rule ((= e {_pattern(source)}) {guards}) ((union e {_pattern(target)}) {fired}){end})"


def _variables(lemma: Lemma) -> tuple[str, ...]:
    found: dict[str, None] = {}

    def collect(pattern: Pattern) -> None:
        if isinstance(pattern, str):
            found[pattern] = None
        else:
            for part in pattern[1:]:
                collect(part)

    collect(lemma.left)
    return tuple(found)


def _pattern(pattern: Pattern) -> str:
    if isinstance(pattern, str):
        return pattern
    if pattern[0] in ("plus", "times"):
        return f"({'+' if pattern[0] == 'plus' else '*'} {' '.join(map(_pattern, pattern[1:]))})"
    if pattern[0] in NUMBERS:
        return _number(NUMBERS[str(pattern[0])])
    return "(" + " ".join([str(pattern[0]).capitalize(), *(_pattern(part) for part in pattern[1:])]) + ")"


def _written(expression: Expression) -> str:
    if isinstance(expression, int):
        return f"(Leaf {expression})"
    if isinstance(expression, Fraction):
        return _number(expression)
    operator, *arguments = expression
    if operator == "sum":
        return f"(Sum {arguments[0]} {_written(arguments[1])})"
    return "(" + " ".join([operator.capitalize(), *map(_written, arguments)]) + ")"


def _number(value: Fraction) -> str:
    return f"(bigrat {_integer(value.numerator)} {_integer(value.denominator)})"


def _integer(value: int) -> str:
    """A whole number; egglog's literals end at 64 bits."""
    return f"(bigint {value})" if abs(value) <= _MAX_INTEGER else f'(from-string "{value}")'


def _facts(space: Space) -> list[str]:
    """What holds of the leaves, found in Python."""
    kinds = {"defined": is_defined, "indicator": is_indicator}
    return [f"({kind} (Leaf {k}))" for kind, holds in kinds.items() for k, v in enumerate(space.leaves) if holds(v)]
