"""The lemma that CONTRIBUTING.md adds as an example: the diff applies, and all checks of a lemma pass for it."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

from tests.lemmas.instances import instance, violation
from tests.lemmas.mutants import mutants_of
from tests.lemmas.proofs import proved_for_all_sizes
from tests.lemmas.test_table import is_right_on_numbers, survives
from verifycompile.rewrites.lemmas.lemma import Lemma

ROOT = Path(__file__).parents[2]
FILE = Path("rewrites/lemmas/exponentials.py")


def added_lemma(folder: Path) -> Lemma:
    """What the file has more once the diff is applied to a copy of it."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (diff,) = re.findall(r"```diff\n(--- a/rewrites/lemmas.*?)```", text, flags=re.DOTALL)
    copy = folder / FILE
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / FILE).read_text())
    subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=folder, check=True)
    before, after = (runpy.run_path(str(path))["EXPONENTIALS"] for path in (ROOT / FILE, copy))
    (added,) = (lemma for lemma in after if lemma not in before)
    return added


def test_the_example_of_a_lemma_applies_and_is_proved(tmp_path: Path) -> None:
    lemma = added_lemma(tmp_path)
    assert is_right_on_numbers(lemma)
    assert proved_for_all_sizes(lemma)
    assert instance(lemma).disposed() is not None
    unmet = [violation(lemma, guard) for guard in lemma.guards]
    assert [made.disposed() for made in unmet if made is not None] == [None]
    assert [change for change, mutant in mutants_of(lemma) if survives(lemma, mutant)] == []
