"""Statements as SMT-LIB 2 text, which any solver can be asked: it answers ``unsat`` where the statement holds.

Whole and real numbers are kept apart as the standard demands. It divides whole numbers as ``//`` and ``%`` do where the
divisor is positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from verifycompile.rewrites.side_conditions.formula import Formula, variables

_BOTH = {"+": "+", "-": "-", "*": "*", "<": "<", "<=": "<=", "==": "=", "!=": "distinct"}
_TRUTHS = ("<", "<=", "==", "!=")
_WHOLE = {"//": "div", "%": "mod"}

_Written = tuple[str, str]
"""A text and its sort: ``Int``, ``Real`` or ``Bool``."""


def script(claim: Formula, sizes: Mapping[int, int | None]) -> str:
    """Whether a claim fails somewhere, for indices within these sizes; None for a size that is no known number."""
    sorts = {f"i{dim}": "Int" for dim in sizes}
    for kind, name in variables(claim):
        sorts[f"i{name}" if kind == "index" else str(name)] = "Real" if kind == "real" else "Int"
    declared = [f"(declare-const {name} {sort})" for name, sort in sorts.items()]
    within = [f"(assert (<= 0 i{dim}))" for dim in sizes]
    within += [f"(assert (< i{dim} {size}))" for dim, size in sizes.items() if size is not None]
    return " ".join(("(set-logic ALL)", *declared, *within, f"(assert (not {written(claim)}))", "(check-sat)"))


def written(formula: Formula) -> str:
    """A formula as a term."""
    return _written(formula)[0]


def constant(value: Fraction, sort: str) -> str:
    """A number of a sort."""
    if sort == "Int":
        whole = value.numerator
        return str(whole) if whole >= 0 else f"(- {-whole})"
    size = f"(/ {abs(value.numerator)}.0 {value.denominator}.0)"
    return size if value >= 0 else f"(- {size})"


def _written(formula: Formula) -> _Written:
    kind, parts = formula.kind, formula.parts
    if kind == "number":
        value = Fraction(parts[0], parts[1])
        sort = "Int" if value.denominator == 1 else "Real"
        return constant(value, sort), sort
    if kind == "truth":
        return str(parts[0]).lower(), "Bool"
    if kind in ("index", "integer", "real"):
        return f"i{parts[0]}" if kind == "index" else str(parts[0]), "Real" if kind == "real" else "Int"
    inner = [_written(part) for part in parts]
    if kind in _BOTH:
        alike = _alike(*inner)
        return _applied(_BOTH[kind], *alike), "Bool" if kind in _TRUTHS else alike[0][1]
    if kind in _WHOLE:
        return _divided(kind, *inner)
    if kind == "if":
        alike = _alike(*inner[1:])
        return _applied("ite", inner[0], *alike), alike[0][1]
    if kind == "floor":
        return _applied("to_int", _real(inner[0])) if inner[0][1] == "Real" else inner[0][0], "Int"
    if kind in ("and", "or") and len(inner) < 2:
        return inner[0] if inner else ("true" if kind == "and" else "false", "Bool")
    return _applied(kind, *inner), "Bool"


def _applied(operator: str, *parts: _Written) -> str:
    return f"({operator} {' '.join(text for text, _ in parts)})"


def _real(part: _Written) -> _Written:
    return part if part[1] == "Real" else (f"(to_real {part[0]})", "Real")


def _alike(*parts: _Written) -> list[_Written]:
    """Numbers of one sort."""
    return list(map(_real, parts)) if any(sort == "Real" for _, sort in parts) else list(parts)


def _divided(kind: str, left: _Written, right: _Written) -> _Written:
    if left[1] == right[1] == "Int":
        return _applied(_WHOLE[kind], left, right), "Int"
    left, right = _real(left), _real(right)
    quotient = f"(to_int (/ {left[0]} {right[0]}))"
    return (quotient, "Int") if kind == "//" else (f"(- {left[0]} (* {right[0]} (to_real {quotient})))", "Real")
