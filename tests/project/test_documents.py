"""The documents: what their commands print is what they show, excerpts are excerpts, links lead somewhere."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.project.documents import ROOT, agrees, blocks, documents, is_excerpt, run, write_files

DOCUMENTS = documents()
WITH_SESSIONS = [path for path in DOCUMENTS if any(block.language == "console" for block in blocks(path))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OTHER_PLACE = re.compile(r"[a-z]+:")


def name(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", WITH_SESSIONS, ids=name)
def test_commands_print_what_is_shown(document: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Those of the examples are compared by ``tests/project/test_examples.py``, which runs them anyway."""
    write_files(document, tmp_path)
    for block in blocks(document):
        for command in block.commands if block.language == "console" else []:
            if not command.line.startswith("python examples/"):
                printed = run(command.line, tmp_path)
                assert agrees(command.shown, printed), f"$ {command.line}\n{printed}"


def test_excerpts_of_examples() -> None:
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.title is not None and block.title.startswith("examples/"):
                assert is_excerpt(block.text, (ROOT / block.title).read_text()), f"{document}: {block.title}"


def test_what_is_left_out_of_an_output_may_be_anything_and_the_rest_may_not() -> None:
    assert agrees("a\n…\nd 2 s\n", "a\nb\nc\nd 1.5 s\n")
    assert agrees("a\n…\n", "a\n")
    assert not agrees("a\n…\nd\n", "a\nb\nc\ne\n")
    assert not agrees("a\n", "a\nb\n")


def anchors(document: pathlib.Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: pathlib.Path) -> None:
    for link in LINK.findall(without_code(document.read_text())):
        if OTHER_PLACE.match(link):
            continue
        place, _, anchor = link.partition("#")
        target = document.parent / place if place else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_files_that_are_named_are_there(document: pathlib.Path) -> None:
    """``docs/NAME.md`` and ``examples/NAME.py`` in code spans and commands."""
    for mentioned in re.findall(r"\b((?:docs|examples)/[\w/-]+\.(?:md|py))", document.read_text()):
        assert (ROOT / mentioned).is_file(), mentioned


def test_every_page_of_the_documents_is_linked_from_another() -> None:
    linked = {
        (document.parent / link.partition("#")[0]).resolve()
        for document in DOCUMENTS
        for link in LINK.findall(document.read_text())
    }
    pages = {path for path in DOCUMENTS if path.parent != ROOT}
    assert {name(path) for path in pages - linked} == set()
