"""The site builds without a warning: links, anchors and the list of pages are right."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.project.documents import ROOT


def test_site_builds_without_a_warning(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("material", reason="pip install '.[docs]' builds the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in ROOT.glob("docs/**/*.md")}
    built = {str(path.parent.relative_to(tmp_path / "site")) for path in tmp_path.glob("site/**/index.html")}
    assert pages - {"index"} <= built
    fetched = [path for path in tmp_path.glob("site/**/*.html") if "https://fonts." in path.read_text()]
    assert fetched == []
