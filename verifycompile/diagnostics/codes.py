"""The registry of diagnostic codes: what each means, why it is wrong, an example, and how to fix it.

``docs/errors.md`` and ``verifycompile explain`` are generated from it. This module imports nothing heavy, so
that explaining a code is instant.
"""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from collections.abc import Iterable, Mapping

from verifycompile.diagnostics import (
    codes_boundary,
    codes_comparison,
    codes_own_part,
    codes_programs,
    codes_proofs,
    codes_usage,
)
from verifycompile.diagnostics.code import Code


def _registry(codes: Iterable[Code]) -> Mapping[str, Code]:
    registry: dict[str, Code] = {}
    for code in codes:
        if code.code in registry:
            raise ValueError(f"diagnostic code {code.code} is registered twice")
        registry[code.code] = code
    return dict(sorted(registry.items()))


CODES: Mapping[str, Code] = _registry(
    (
        *codes_programs.CODES,
        *codes_boundary.CODES,
        *codes_comparison.CODES,
        *codes_own_part.CODES,
        *codes_proofs.CODES,
        *codes_usage.CODES,
    )
)
"""Every diagnostic code, in ascending order."""

OWN_PART_CODES = frozenset(code.code for code in codes_own_part.CODES) - {"VC119"}
"""Codes that say what a rank takes for the whole, which no change of the program says as well."""

UNPROVED_CODES = frozenset(code.code for code in codes_proofs.CODES)
"""Codes that say what stopped a proof: none of them is ever an error of the program."""


@dataclasses.dataclass(frozen=True)
class Section:
    """One headed part of a code's explanation; ``is_code`` where the body is Python source."""

    heading: str
    body: str
    is_code: bool = False


def sections(code: Code) -> tuple[Section, ...]:
    """The parts of a code's explanation under their fixed headings, in order."""
    return (
        Section("What it means", code.meaning),
        Section("Why it is wrong", code.reason),
        Section("Example", code.example, is_code=True),
        Section("How to fix", code.fix),
        Section("Use instead", code.fixed_example, is_code=True),
    )


def explain(code: str) -> str:
    """The long explanation of a diagnostic code such as ``"VC101"`` (case does not matter).

    Raises ``ValueError`` for a code that does not exist, naming the nearest ones.
    """
    key = str(code).strip().upper()
    if (entry := CODES.get(key)) is None:
        raise ValueError(f"unknown diagnostic code {code!r}; {_suggestion(key)}")
    parts = [f"{entry.code}: {entry.title}"]
    for section in sections(entry):
        if not section.body:
            continue
        parts.append(f"{section.heading}\n\n{_paragraph(section)}")
    return "\n\n".join(parts) + "\n"


def _paragraph(section: Section) -> str:
    if section.is_code:
        return textwrap.indent(section.body, "    ")
    return textwrap.fill(section.body, width=100, break_long_words=False, break_on_hyphens=False)


def _suggestion(key: str) -> str:
    if close := difflib.get_close_matches(key, CODES, n=3):
        return f"did you mean {', '.join(close)}?"
    codes = list(CODES)
    return f"codes run from {codes[0]} to {codes[-1]}, see docs/errors.md"
