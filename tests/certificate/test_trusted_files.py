"""What a checked certificate rests on: what its checker loads, and what the page on trust says of that."""

from __future__ import annotations

import functools
import pathlib

from benchmarks.trusted import BEGIN, END, PAGE, files_of_checker, lines_of, listed_files, section, with_section
from tests.certificate.test_certificate import text_of

SEARCHES_AND_SHOWS = (
    "verifycompile/capture/", "verifycompile/cause/", "verifycompile/comparison/", "verifycompile/diagnostics/",
    "verifycompile/reduction/", "verifycompile/reproduction/", "verifycompile/symbolic/", "verifycompile/witness/",
    "verifycompile/agreement/", "verifycompile/command/", "backends/", "rewrites/finders/", "rewrites/catalogue.py",
    "verifycompile/certificate/making.py", "verifycompile/certificate/memory.py", "verifycompile/certificate/recording.py",
    "verifycompile/refinement/candidates.py", "verifycompile/refinement/unknowns.py",
    "verifycompile/refinement/check.py", "verifycompile/refinement/classify.py", "verifycompile/refinement/diagnose.py",
    "verifycompile/refinement/egraph.py", "verifycompile/refinement/layers.py", "verifycompile/refinement/lemma_stage.py",
    "verifycompile/refinement/likely_pairs.py",
    "verifycompile/refinement/memo.py", "verifycompile/refinement/missing_gradient.py",
    "verifycompile/refinement/own_part.py", "verifycompile/refinement/parts.py", "verifycompile/refinement/proof.py",
    "verifycompile/refinement/reading.py", "verifycompile/refinement/relations.py",
    "verifycompile/refinement/repetition.py", "verifycompile/verification.py", "verifycompile/rank_verification.py",
    "verifycompile/torch_interface/ranks/observation.py", "verifycompile/torch_interface/source_lines/source.py",
)  # fmt: skip

_TOLERANCE = 0.05
_MOST = 12_000
"""Lines that a checked certificate rests on, declarations included."""


@functools.cache
def _loaded() -> tuple[str, ...]:
    return files_of_checker(text_of("repeated layers"))


def test_the_checker_loads_nothing_that_searches_or_shows() -> None:
    assert [path for path in _loaded() if path.startswith(SEARCHES_AND_SHOWS)] == []
    assert "verifycompile/certificate/check.py" in _loaded()
    assert "rewrites/operators/contraction.py" in _loaded()


def test_the_checker_loads_the_families_alone_that_were_used() -> None:
    families = {"convolution", "pooling", "resampling", "embedding_bags", "row_parts", "factorizations", "fourier"}
    assert not families & {pathlib.PurePosixPath(path).stem for path in _loaded()}


def test_the_page_lists_what_is_trusted() -> None:
    """Every file, and the lines of them all as they are within some percent (``python -m benchmarks trusted``)."""
    listed = listed_files(PAGE.read_text(encoding="utf-8"))
    assert set(_loaded()) - listed.keys() == set()
    lines = sum(map(lines_of, _loaded()))
    assert abs(sum(listed.values()) - lines) <= _TOLERANCE * lines
    assert sum(map(lines_of, listed)) < _MOST


def test_the_section_is_the_command_s() -> None:
    of_proof = ("verifycompile/program.py", "rewrites/values.py")
    files = {"a VERIFIED": of_proof, "a checked certificate": ("rewrites/values.py",)}
    page = with_section(f"before\n{BEGIN}\nold\n{END}\nafter\n", files)
    assert page == f"before\n{BEGIN}\n{section(files)}\n{END}\nafter\n"
    assert listed_files(page) == {"rewrites/values.py": lines_of("rewrites/values.py")}
