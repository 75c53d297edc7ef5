"""The catalogue page is generated, complete and current; codes are stable and unique."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verifycompile.cli import main
from verifycompile.rewrites import documentation
from verifycompile.rewrites.codes import MATCHING_LEMMAS
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.lemmas.normal_form import NORMAL_FORM
from verifycompile.rewrites.lemmas.table import TABLE
from verifycompile.rewrites.matching import MatchingLemma
from verifycompile.rewrites.steps import STEPS

PAGE = Path(__file__).parents[2] / "docs" / "lemmas.md"


def test_codes_and_names_are_unique() -> None:
    lemmas = [*TABLE, *FUNCTION_LAWS, *MATCHING_LEMMAS, *NORMAL_FORM, *STEPS]
    for values in ([lemma.code for lemma in lemmas], [lemma.name for lemma in lemmas]):
        assert len(set(values)) == len(values)
    assert all(re.fullmatch(r"VL\d{2,3}", lemma.code) for lemma in lemmas)


def test_every_matching_lemma_says_what_it_is() -> None:
    for lemma in MATCHING_LEMMAS:
        assert isinstance(lemma, MatchingLemma)
        assert lemma.statement
        assert re.fullmatch(r"rewrites/\w+/\w+\.py: \w+", lemma.location)


def test_page_is_current() -> None:
    assert documentation.main([str(PAGE), "--check"]) == 0


def test_outdated_page_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "lemmas.md"
    assert documentation.main([str(page), "--check"]) == 1
    expected = f"{page} is out of date: run `python -m verifycompile.rewrites.documentation`\n"
    assert capsys.readouterr().err == expected
    assert documentation.main([str(page)]) == 0
    assert documentation.main([str(page), "--check"]) == 0


def test_command_shows_one_lemma_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lemmas", "VL08"]) == 0
    assert capsys.readouterr().out == (
        "VL08: sum-factor\n\na factor that does not depend on i leaves the sum over i.\n\n"
        "    sum(i, mul(a, b)) = mul(a, sum(i, b))\n\nwhere `a` does not depend on the index `i`.\n"
    )
    assert main(["lemmas"]) == 0
    assert capsys.readouterr().out == documentation.render_page()
    assert main(["lemmas", "VL00"]) == 2
    assert capsys.readouterr().err == "verifycompile lemmas: there is no lemma `VL00`; `verifycompile lemmas` shows all\n"
