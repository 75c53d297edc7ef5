"""The page on trust names every assumption that the engine can list, in the engine's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.attacks import BEGIN, END, table, with_table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text()
SHORTEST = 22
"""Shorter texts are words that others are made of."""

# Functions and variables that make assumptions, where they are not given to a list of them directly.
MAKERS = re.compile(r"assum|_rearranged|_rounded|_sentences?$|_of_one_rank|differing_precisions")
LISTS = re.compile(r"assumptions(\.append|\.extend)?$")
INSIDE_OTHERS = (", and gathers the parameters", "; a loss outside", ", and a loss outside", "the wrapper of the graph before")


def text_of(node: ast.AST) -> str | None:
    """A text with ``…`` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def texts_in(node: ast.AST) -> Iterator[str]:
    text = text_of(node)
    if text is not None:
        yield re.sub("…+", "…", text)
        return
    for child in ast.iter_child_nodes(node):
        yield from texts_in(child)


def made(tree: ast.AST) -> Iterator[ast.AST]:
    """The texts of assumptions that a module makes, also where a variable holds the text."""
    for scope in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        for call in (n for n in ast.walk(scope) if isinstance(n, ast.Call) and ast.unparse(n.func) == "Assumption"):
            if not isinstance(call.args[0], ast.Name):
                yield call.args[0]
                continue
            named = [
                node
                for node in ast.walk(scope)
                if isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == call.args[0].id
                and node.lineno < call.lineno
            ]
            yield from (node.value for node in sorted(named, key=lambda node: node.lineno)[-1:])


def sources(tree: ast.AST) -> Iterator[ast.AST]:
    """What becomes an assumption in a module."""
    yield from made(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and LISTS.search(ast.unparse(node.func)):
            yield from node.args
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("assume_index"):
            yield node.args[-1]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            if re.search(r"(assumptions|notes)$", ast.unparse(node.targets[0].value)):
                yield node.targets[0].slice
        elif isinstance(node, ast.Assign) and MAKERS.search(ast.unparse(node.targets[0])):
            yield node.value
        elif isinstance(node, ast.FunctionDef) and MAKERS.search(node.name):
            yield from (s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)))


def assumptions() -> set[str]:
    found: set[str] = set()
    for folder in ("verifycompile", "rewrites"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent.name == "diagnostics":  # they show assumptions, and make none
                continue
            for source in sources(ast.parse(path.read_text())):
                found.update(text for text in texts_in(source) if len(text) > SHORTEST and " " in text)
    return {text for text in found if not text.startswith(INSIDE_OTHERS)}


def test_every_assumption_is_explained() -> None:
    named = {row.split("``")[1].strip() for row in PAGE.splitlines() if row.startswith("| ``")}
    missing = {text for text in assumptions() if not any(text.startswith(start) for start in named)}
    assert missing == set()


def test_the_table_is_the_command_s() -> None:
    chunks = {"0": {"counts": {"layers": {"tried": 3, "wrong": 2, "right": 1}}, "verified wrongly": []}}
    page = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", chunks)
    assert page == f"before\n{BEGIN}\n{table(chunks)}\n{END}\nafter\n"
    assert table(chunks).splitlines()[3].split() == ["|", "all", "|", "3", "|", "2", "|", "0", "|", "1", "|", "0", "|"]
    rows = [line for line in PAGE.split(BEGIN)[1].split(END)[0].splitlines() if line.startswith("| all ")]
    assert [row.split("|")[4].strip() for row in rows] in ([], ["0"])
