"""Steps of the normal form that read parts of values elsewhere, under stable codes, and how each is proved.

Windows, pieces and digits are relabelled by these steps (``verifycompile.ir``), and a proof's trace names them. They
are listed here for the catalogue. ``tests/lemmas/test_functions.py`` proves their statements by z3, by code; a step
without one fails the tests.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    """One step. ``location``: file and function that take it. ``name``: as the trace of a proof has it."""

    code: str
    name: str
    statement: str
    location: str


STEPS = (
    Step(
        "VL53", "sum-through-linear", "the sum of a linear operation is the operation of the sum of its operand",
        "ir/algebra.py: _push_linear",
    ),
    Step(
        "VL54", "iota-merge", "n i + j, where j counts to n, counts the pairs (i, j) in order",
        "ir/algebra.py: _merge_counting",
    ),
    Step(
        "VL55", "fixed-digits", "a counter with a constant digit is a counter of its other digits, and a number",
        "ir/algebra.py: _without_fixed_digits",
    ),
    Step(
        "VL56", "sum-over-window",
        "a sum over positions s to s + n is the sum over all positions, times one from s to s + n and zero elsewhere",
        "ir/window_moves.py: moved_product",
    ),
    Step(
        "VL57", "window-outside",
        "what is done to each position of operands that are the same window is the window of what is done to all",
        "ir/window_moves.py: moved_application",
    ),
    Step(
        "VL58", "window-of-window", "positions t to t + m of positions s to s + n are positions s + t to s + t + m",
        "ir/window_moves.py: window",
    ),
    Step(
        "VL59", "neighbouring-windows", "adjacent windows, concatenated, are one window",
        "rewrites/parts/ranges.py: join_windows",
    ),
    Step(
        "VL60", "concatenation-of-pieces",
        "the concatenation of terms that differ only in the piece that they read is the term of all pieces",
        "rewrites/parts/similar.py: join_similar",
    ),
    Step(
        "VL61", "piece-of-concatenation",
        "what is read within one piece of a concatenation or a stack is read in the piece",
        "ir/pieces.py: opened_stack, pieces_of",
    ),
    Step(
        "VL62", "over-all-pieces", "a sum or a maximum over a concatenation is that of the pieces' sums or maxima",
        "ir/pieces.py: pieces_of",
    ),
    Step(
        "VL64", "no-negative", "squares, absolute values, exponentials, and their sums and products, are not negative",
        "ir/sign.py: is_nonnegative",
    ),
    Step(
        "VL68", "slice-of-operands", "positions s to s + n of what is computed position by position are computed from "
        "positions s to s + n of each operand",
        "rewrites/parts/slices.py: narrow_operands",
    ),
    Step(
        "VL67", "sum-of-part", "the sum of a part is that part of the sum over another index",
        "ir/algebra.py: _whole_sum",
    ),
    Step(
        "VL89", "sum-by-blocks",
        "a sum under a mask is the sum of its blocks: those that the mask leaves out are zero, those that it takes "
        "whole have no mask",
        "refinement/part_by_part.py: _sum",
    ),
    Step(
        "VL69", "part-by-part", "values assembled from parts are equal where all of their parts are",
        "refinement/part_by_part.py: same_part_by_part",
    ),
    Step(
        "VL98", "bounded-positions",
        "a bound of the positions of a dimension is one on the positions up to it and zero behind",
        "ir/inequality.py: _in_parts",
    ),
    Step(
        "VL187", "rounded-bound",
        "n times a whole number is at least a number where it is at least the n-th part of that, rounded up",
        "ir/inequality.py: _reduce",
    ),
    Step(
        "VL188", "negligible-digit",
        "a digit changes no comparison of a multiple of n with a number whose remainder by n it does not fill up",
        "ir/inequality.py: _negligible",
    ),
    Step(
        "VL189", "some-position",
        "a sum of positive values under bounds is positive where every lower bound is at most every upper one",
        "ir/inequality.py: are_attained",
    ),
    Step(
        "VL190", "limit-of-a-counter",
        "a limit that all numbers of a counter keep changes none of them, and one that none keeps is what all become",
        "rewrites/operators/limits.py: limited",
    ),
    Step(
        "VL91", "windows-of-different-places",
        "what is done to each position of windows of different places is the window of what is done to the longest "
        "stretch on which all of their operands are known",
        "rewrites/parts/piecewise.py: _joint",
    ),
    Step(
        "VL92", "pieces-outside",
        "what is done to each position of a concatenation is the concatenation of what is done to the pieces",
        "rewrites/parts/piecewise.py: _split",
    ),
    Step(
        "VL95", "range-within-reach",
        "a mask on a range changes no product with a matrix of sliding windows that is zero outside of the range, nor "
        "what is read of one where the matrix is zero outside of it",
        "rewrites/parts/sliding.py: without_implied_range, read_only, read_together",
    ),
    Step(
        "VL96", "sliding-windows-of-a-part",
        "a stretch of the windows, or of the line, of a matrix of sliding windows is one with another padding",
        "rewrites/parts/sliding.py: stretched",
    ),
    Step(
        "VL171", "counters-go-on",
        "a value that reads a dimension through counters alone is part of the one with counters that go on in both "
        "directions",
        "rewrites/parts/stretched_counters.py: stretched_counters",
    ),
    Step(
        "VL149", "place-in-whole",
        "a value less the first place of a part is a place in the part where the value is that place in the whole",
        "ir/indicator.py: _of_counters_on_one_side",
    ),
    Step(
        "VL148", "best-of-best",
        "the k best of all elements are the k best of those that are among the k best, or more, of their part",
        "rewrites/operators/ordering.py: _of_parts",
    ),
    Step(
        "VL193", "first-of-best",
        "the least of the numbers n r + p of the parts r that hold the best element, where p is a place among n "
        "elements and the other parts have a number as large as the last, is that of the first such part",
        "rewrites/operators/extreme_places.py: first_of_best",
    ),
    Step(
        "VL170", "placed-part",
        "a padded part is the sum over its positions of its value times one where the place is; a part that is a digit "
        "of the whole is its value times one where the other digits are its number",
        "refinement/placed.py: placed",
    ),
    Step(
        "VL191", "number-leaves-power", "a number that is not zero leaves a whole power as its own whole power",
        "rewrites/builder.py: power",
    ),
    Step(
        "VL192", "rounded-root",
        "a product or quotient of roots, which are held in 200 bits, is the one root or number with a numerator and a "
        "denominator up to 10,000 that lies within 2**-190 of it",
        "ir/scalar.py: _rounded",
    ),
)  # fmt: skip

SOLVER = "by z3 at every match, for its own sizes, for all values of the indices and of what is looked up"
INDUCTION = "for all sizes, by z3: by induction over the size of the index"
POINT = "for all sizes, by z3: element by element"
LAWS = "for all sizes, by z3, from the laws of the real numbers and those of exp"
DIGITS = "for all sizes, by z3; the digits that a match finds are compared with every number that they spell"

PROOFS = {
    "VL26": INDUCTION, "VL48": POINT, "VL53": INDUCTION,
    "VL54": POINT, "VL55": POINT, "VL56": INDUCTION, "VL57": POINT, "VL58": POINT, "VL59": POINT, "VL60": DIGITS,
    "VL61": POINT, "VL62": INDUCTION, "VL64": POINT, "VL67": INDUCTION,
    "VL68": POINT, "VL69": POINT, "VL89": INDUCTION, "VL91": POINT,
    "VL92": POINT, "VL95": POINT, "VL96": POINT, "VL98": POINT,
    "VL187": POINT, "VL188": POINT, "VL189": POINT, "VL190": POINT, "VL191": LAWS, "VL192": LAWS,
    "VL147": POINT, "VL148": POINT, "VL149": POINT, "VL170": INDUCTION, "VL171": POINT,
    "VL193": POINT,
}  # fmt: skip
"""How the lemmas that are functions, and the steps, are proved; their statements are in ``tests/lemmas``."""
