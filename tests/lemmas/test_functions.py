"""What the lemmas that are functions say, proved by z3 for all sizes; without any one of its guards a claim is false.

A claim on a sum is proved by induction over the size of its index: that both sides are equal for no element, and the
step from n to n + 1. Values at an index are functions of it; ``total`` stands for a sum over another index, of which
only additivity is used. Each claim is kept under the code of its lemma: a lemma without a claim fails.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import z3

from verifycompile.rewrites.codes import MATCHING_LEMMAS
from verifycompile.rewrites.lemmas.normal_form import NORMAL_FORM
from verifycompile.rewrites.lemmas.table import TABLE
from verifycompile.rewrites.steps import PROOFS, STEPS

INTEGERS, REALS = z3.IntSort(), z3.RealSort()
a, b, c, x, y, p, q, m, f = z3.Reals("a b c x y p q m f")
n, i, j, k, s, t, lower, middle, upper, size, length = z3.Ints("n i j k s t lower middle upper size length")
at = z3.Function("at", INTEGERS, REALS)
also = z3.Function("also", INTEGERS, REALS)
table = z3.Function("table", INTEGERS, INTEGERS, REALS)
function = z3.Function("function", REALS, REALS)
linear = z3.Function("linear", REALS, REALS)
exp = z3.Function("exp", REALS, REALS)
power = z3.Function("power", REALS, REALS, REALS)


def one_where(condition: Any) -> Any:
    return z3.If(condition, z3.RealVal(1), z3.RealVal(0))


def is_mask(value: Any) -> Any:
    return z3.Or(value == 0, value == 1)


@dataclasses.dataclass(frozen=True)
class Claim:
    """``claim`` follows from ``given`` and the guards. ``given``: induction hypotheses and laws, which are no guards."""

    name: str
    claim: Any
    guards: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    given: tuple[Any, ...] = ()

    def proved(self, without: str | None = None) -> bool:
        # A context of its own: what z3 was asked before decides how long a question with quantifiers takes.
        context = z3.Context()
        solver = z3.Solver(ctx=context)
        solver.set("timeout", 60_000)
        guards = [guard for name, guard in self.guards.items() if name != without]
        solver.add(*(fact.translate(context) for fact in (*self.given, *guards, z3.Not(self.claim))))
        return solver.check() == z3.unsat


left, right, other, before = z3.Reals("left right other before")
"""Sums over the elements before the new one."""


def induction(name: str, now: tuple[Any, Any], then: tuple[Any, Any], *given: Any, guards: Any = None) -> list[Claim]:
    """Both sides for no element, and for one more; ``given`` holds the hypothesis."""
    guards = guards or {}
    return [Claim(f"{name}, no element", now[0] == now[1]), Claim(name, then[0] == then[1], guards, given)]


def sum_at(place: Any, of: Any, count: Any) -> Any:
    """The sum over v < count of ``(place == v) of(v)``, which the first claim of VL25 shows to be this."""
    return z3.If(z3.And(place >= 0, place < count), of(place), z3.RealVal(0))


def larger(one: Any, other: Any) -> Any:
    return z3.If(one > other, one, other)


def smaller(one: Any, other: Any) -> Any:
    return z3.If(one < other, one, other)


LINEAR = (z3.ForAll([x, y], linear(x + y) == linear(x) + linear(y)), linear(0) == 0)
EXPONENTIAL = (
    exp(x + y) == exp(x) * exp(y), exp(p * x + q * x) == exp(p * x) * exp(q * x), exp(0) == 1, exp(x) > 0,
)  # fmt: skip

zero = z3.RealVal(0)
one_more = n >= 0

CLAIMS: dict[str, list[Claim]] = {
    "VL26": [
        Claim(
            "one piece more", left + at(j) == right + at(n), {"the digit spells the piece": j == n}, (left == right,)
        ),
    ],
    "VL48": [
        Claim(
            "two pieces",
            z3.If(z3.And(i >= 0, i < n), at(i), zero) + z3.If(z3.And(i >= s, i < s + length), also(i - s), zero)
            == z3.If(i < n, at(i), also(i - n)),
            {"next to each other": s == n, "they fill the dimension": z3.And(i >= 0, i < n + length)},
        ),
    ],
    "VL53": [
        Claim("no element", linear(0) == 0, given=LINEAR),
        Claim("through", before + linear(at(n)) == linear(left + at(n)), {"linear": LINEAR[0]}, (before == linear(left),)),
    ],
    "VL54": [
        Claim(
            "spelled in order", z3.And(i == (k / n), j == (k % n)),
            {"k is n i + j": k == n * i + j, "j counts to n": z3.And(j >= 0, j < n)}, (n > 0, i >= 0),
        )
    ],
    "VL55": [Claim("constant digit", (i * size + s) * length + j == i * (size * length) + j + s * length)],
    "VL56": [
        # one position more in the window: what the range gains is the value at s + n (the lookup of VL25)
        Claim(
            "one position more", left + at(s + n) == right + sum_at(s + n, at, size),
            {"within": z3.And(s >= 0, s + n < size)}, (left == right, one_more),
        ),
        Claim(
            "the range with one position more",
            one_where(z3.And(s <= i, i < s + n + 1)) == one_where(z3.And(s <= i, i < s + n)) + one_where(i == s + n),
            given=(one_more,),
        ),
    ],
    "VL57": [
        Claim(
            "same window", function(at(s + k) + also(t + k)) == function(at(s + k) + also(s + k)),
            {"same first position": s == t},
        )
    ],
    "VL95": [
        Claim(
            "range within reach", one_where(z3.And(i <= k, k <= j)) * m * a == m * a,
            {
                "zero outside of the reach": z3.Or(m == 0, z3.And(lower <= k, k <= upper)),
                "first": i <= lower, "last": upper <= j,
            },
        ),
    ],
    "VL96": [
        Claim("part of the line", (i * n - j + t == k + s) == (i * n - (j + s) + t == k)),
        Claim("part of the windows", ((i + s) * n - j + t == k) == (i * n - (j - s * n) + t == k)),
    ],
    "VL91": [
        Claim(
            "windows of a common stretch", function(at(s + k) + also(t + k)) == function(at(i + (j + k)) + also(n + (j + k))),
            {"first place of one": i == s - j, "first place of the other": n == t - j},
        ),
        Claim(
            "within both", z3.And(i + (j + k) < size, n + (j + k) < length),
            {
                "within the stretch": j + k < upper, "known of one": i + upper <= size, "of the other": n + upper <= length,
            },
        ),
    ],
    "VL92": [
        Claim(
            "pieces outside",
            function(z3.If(k < n, at(k), also(k - n)) + table(0, k))
            == z3.If(k < n, function(at(k) + table(0, k)), function(also(k - n) + table(0, n + j))),
            {"position in the second piece": j == k - n},
        )
    ],
    "VL68": [
        Claim(
            "slice of operands", function(at(k) + also(k)) == function(at(s + j) + also(t + j)),
            {"position of the slice": k == s + j, "same first position": s == t},
        )
    ],
    "VL147": [
        Claim(
            "the first largest element of all",
            z3.And(
                table(i, j) <= table(k, s),
                z3.Implies(table(i, j) == table(k, s), n * k + s <= n * i + j),
            ),
            {
                "largest of the part": at(i) >= table(i, j),
                "largest of the parts": at(i) <= at(k),
                "first of the parts": z3.Implies(at(i) == at(k), k <= i),
                "a place of that part": at(k) == table(k, s),
                "first of the part": z3.Implies(table(k, j) == table(k, s), s <= j),
                "places in a part": z3.And(j >= 0, j < n, s >= 0, s < n),
            },
        ),
    ],
    "VL193": [
        # Of the parts with the best element k is the first; i is any part, of n r + p the numbers n i + j and n k + s.
        Claim(
            "no number is less", n * k + s <= z3.If(at(i) == at(k), n * i + j, t),
            {
                "first of the parts": z3.Implies(at(i) == at(k), z3.Or(k < i, z3.And(k == i, s == j))),
                "places in a part": z3.And(j >= 0, s < n),
                "as large as the last": t >= n * size - 1, "a part": k < size,
            },
            (n > 0,),
        ),
    ],
    "VL148": [
        # x is left out of its part, where n elements that are selected are not less. Of all that are selected j exceed
        # y, the k-th best of them.
        Claim(
            "what is left out is no better", x <= y, {"as many of each part": k <= n},
            (j < k, z3.Implies(x > y, j >= n)),
        ),
    ],
    "VL171": [
        Claim("a part of it", at(i + n) == at((j + s) + n), {"the place in the longer one": i == j + s}),
        Claim(
            "two parts", z3.If(i < k, at(i + n), at((i - k) + s)) == at(i + n), {"the second goes on": s == n + k},
        ),
    ],
    "VL149": [Claim("on the other side", (i - n * k == j) == (i == n * k + j))],
    "VL170": [
        Claim("place in the part, no element", one_where(j < 0) * at(j) == zero, {"a position": j >= 0}),
        Claim(
            "place in the part",
            left + at(n) * one_where(s + n * t == k) == one_where(j < n + 1) * at(j),
            {"the part's position there": k == s + j * t, "apart": t > 0},
            (left == one_where(j < n) * at(j),),
        ),
        Claim(
            "digit of the whole",
            z3.If(z3.And(n * s <= k, k < n * s + n), at(k - n * s), z3.RealVal(0)) == at(i) * one_where(j == s),
            {"digits": k == n * j + i, "position in the part": z3.And(i >= 0, i < n)},
        ),
    ],
    "VL98": [
        Claim("at most", one_where(j <= k) == z3.If(j < n, z3.RealVal(1), z3.RealVal(0)), {"number of ones": n == k + 1}),
        Claim("at least", one_where(k <= j) == z3.If(j < n, z3.RealVal(0), z3.RealVal(1)), {"number of zeros": n == k}),
    ],
    "VL187": [
        Claim(
            "rounded up", (n * k >= i) == (k >= j), {"the part, rounded up": z3.And(n * (j - 1) < i, i <= n * j)}, (n > 0,)
        ),
    ],
    "VL188": [
        Claim(
            "not filled up", (n * k + s + j >= 0) == (n * k + s >= 0),
            {"remainder": z3.And(s >= 0, s < n), "with the digit": z3.And(s + j >= 0, s + j < n)}, (n > 0,),
        ),
    ],
    "VL189": [
        Claim(
            "between all bounds", z3.And(lower <= k, middle <= k, k <= upper, k <= size),
            {
                "the largest lower bound": z3.And(k >= lower, k >= middle, z3.Or(k == lower, k == middle)),
                "first lower bound": z3.And(lower <= upper, lower <= size),
                "second lower bound": z3.And(middle <= upper, middle <= size),
            },
        ),
        Claim("one element more", before + m * f > 0, {"within the bounds": m == 1, "positive": f > 0}, (before >= 0,)),
    ],
    "VL190": [
        Claim("kept", larger(k, s) == k, {"by all": z3.And(s <= 0, k >= 0)}),
        Claim("kept by none", smaller(k, s) == s, {"at least the limit": s <= k}),
    ],
    "VL191": [
        Claim("one factor more", (c * a) * left == (c * other) * (a * right), {"a power of each": left == other * right}),
        Claim("inverse", 1 / (c * a) == (1 / c) * (1 / a), {"number": c != 0, "value": a != 0}),
    ],
    "VL192": [
        Claim(
            "product", z3.And(x * y - a * b <= 5 * f, a * b - x * y <= 5 * f),
            {
                "first root": z3.And(-f <= x - a, x - a <= f), "second root": z3.And(-f <= y - b, y - b <= f),
                "first size": z3.And(a >= -2, a <= 2), "second size": z3.And(b >= -2, b <= 2),
            },
            (f >= 0, f <= 1),
        ),
        Claim(
            "one number", z3.Or((i - j) * 10**8 >= n, (j - i) * 10**8 >= n),
            {"two numbers over their common denominator": i != j, "which is small": n <= 10**8}, (n > 0,),
        ),
    ],
    "VL58": [
        Claim("window of a window", at(s + (t + k)) == at((s + t) + k)),
    ],
    "VL59": [
        Claim(
            "neighbours", z3.If(k < n, at(s + k), at(t + (k - n))) == at(s + k), {"next to each other": t == s + n},
        )
    ],
    "VL60": [
        Claim(
            "joined", z3.And(k / n == i, k % n == j),
            {"position": k == i * n + j, "within a piece": z3.And(j >= 0, j < n)}, (n > 0,),
        ),
        Claim(
            "spelled number", ((upper * size + i % size) * length + lower) / length % size == i % size,
            {"low digit": z3.And(lower >= 0, lower < length)}, (size == 4, length == 3, i >= 0, upper >= 0),
        ),
    ],
    "VL61": [
        Claim(
            "in the second piece", z3.If(k < n, at(k), also(k - n)) == also(j), {"position": k == n + j, "within": j >= 0}
        ),
        Claim("in the first piece", z3.If(k < n, at(k), also(k - n)) == at(k), {"within": k < n}),
    ],
    "VL62": [
        *induction("over both pieces", (zero, zero), (left + at(n), right + at(n)), left == right),
        Claim(
            "maxima", z3.If(z3.If(a > b, a, b) > c, z3.If(a > b, a, b), c)
            == z3.If(a > z3.If(b > c, b, c), a, z3.If(b > c, b, c)),
        ),
    ],
    "VL64": [
        Claim("square", a * a >= 0),
        Claim("product", a * b >= 0, {"first": a >= 0, "second": b >= 0}),
        Claim("sum", a + b >= 0, {"first": a >= 0, "second": b >= 0}),
        Claim("scaled", p * a >= 0, {"number": p >= 0, "value": a >= 0}),
        Claim("larger", z3.If(a > b, a, b) >= 0, {"both": z3.And(a >= 0, b >= 0)}),
    ],
    "VL67": [
        Claim("part of the sum", left + table(i, n) == right + table(j, n), {"same part": i == j}, (left == right,)),
    ],
    "VL89": [
        *induction("blocks", (zero, zero), (left + at(n), right + at(n)), left == right),
        Claim("block left out", left + m * f == left, {"zero": m == 0}),
        Claim("block taken whole", left + m * f == left + f, {"one": m == 1}),
    ],
    "VL69": [
        Claim(
            "equal in a part", at(n) == also(n),
            {"in the part": z3.And(lower <= n, n < upper),
             "equal there": z3.ForAll([k], z3.Implies(z3.And(lower <= k, k < upper), at(k) == also(k)))},
        ),
    ],
}  # fmt: skip

ALL = [(code, claim) for code, claims in CLAIMS.items() for claim in claims]


@pytest.mark.parametrize(("code", "claim"), ALL, ids=lambda v: v if isinstance(v, str) else v.name)
def test_claim_is_proved(code: str, claim: Claim) -> None:
    assert claim.proved(), code


GUARDED = [(code, claim, guard) for code, claim in ALL for guard in claim.guards]


@pytest.mark.parametrize(("code", "claim", "guard"), GUARDED, ids=lambda v: v if isinstance(v, str) else v.name)
def test_claim_needs_each_guard(code: str, claim: Claim, guard: str) -> None:
    assert not claim.proved(without=guard), code


# ------------------------------------------------------------------------------------------------ completeness

ROOT = Path(__file__).parents[2]


def functions() -> list[Any]:
    return [*MATCHING_LEMMAS, *STEPS]


def test_no_lemma_is_registered_without_a_check() -> None:
    codes = {lemma.code for lemma in functions()}
    assert codes - CLAIMS.keys() == set(), "a lemma without a claim in this file"
    assert codes - PROOFS.keys() == set(), "a lemma of which the catalogue does not say how it is proved"
    assert (CLAIMS.keys() | PROOFS.keys()) - codes == set(), "a claim of no lemma"


def test_every_step_that_a_proof_names_is_in_the_catalogue() -> None:
    known = {lemma.name for lemma in (*functions(), *TABLE, *NORMAL_FORM)}
    sources = [*(ROOT / "rewrites").rglob("*.py"), *(ROOT / "verifycompile").rglob("*.py")]
    named = {name for file in sources for name in re.findall(r'lemma_trace\.append\(\("([^"]+)"', file.read_text())}
    assert len(named) > 20
    assert named - known == set()


def test_steps_are_where_the_catalogue_says() -> None:
    for step in STEPS:
        file, _, names = step.location.partition(": ")
        path = ROOT / ("verifycompile" if file.startswith(("ir/", "refinement/")) else ".") / file
        for name in filter(None, names.split(", ")):
            assert f"def {name}(" in path.read_text(), step
