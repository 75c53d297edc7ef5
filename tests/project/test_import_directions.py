"""The drawing of the rooms in docs/design.md is true: a room imports from rooms below it alone, and each is drawn."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = {"verifycompile": "verifycompile", "backends": "verifycompile.backends", "rewrites": "verifycompile.rewrites"}
HEADING = "Rooms, a room imports from those below it:\n\n"


def drawn() -> list[list[str]]:
    """The rooms of each floor, the lowest floor first."""
    block = (ROOT / "docs" / "design.md").read_text().partition(HEADING)[2].partition("\n\n")[0]
    floors = [re.split(r"\s{2,}", line.strip())[0].split(", ") for line in block.splitlines()]
    return floors[::-1]


FLOORS = {room: number for number, rooms in enumerate(drawn()) for room in rooms}


def modules() -> dict[str, pathlib.Path]:
    found: dict[str, pathlib.Path] = {}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    """The package, or the module that lies directly in ``verifycompile``."""
    return [*module.split("."), "__init__"][1]


class _Imports(ast.NodeVisitor):
    """What a module imports where it runs: what stands under ``TYPE_CHECKING`` is for readers alone."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [alias.name for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = str(node.module)
        inner = (f"{module}.{alias.name}" for alias in node.names)
        self.found += [name if name in MODULES else module for name in inner]


def imported(text: str) -> Iterator[str]:
    visitor = _Imports()
    visitor.visit(ast.parse(text))
    return (name for name in visitor.found if name.split(".")[0] == "verifycompile")


def against(module: str, text: str) -> list[str]:
    """The imports that lead to another room which is not below."""
    room = room_of(module)
    return [name for name in imported(text) if room_of(name) != room and FLOORS[room_of(name)] >= FLOORS[room]]


def test_every_room_is_drawn_once() -> None:
    rooms = [room for floor in drawn() for room in floor]
    assert sorted(rooms) == sorted({room_of(name) for name in MODULES})


@pytest.mark.parametrize("room", sorted(FLOORS))
def test_imports_lead_down(room: str) -> None:
    found = {name: against(name, path.read_text()) for name, path in MODULES.items() if room_of(name) == room}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import verifycompile.backends.verify",
        "from verifycompile import cli",
        "def f():\n    from verifycompile.refinement.check import proves",
    ],
)
def test_an_import_that_leads_up_is_found(line: str) -> None:
    assert against("verifycompile.ir.term", line)
    assert not against("verifycompile.ir.term", f"if TYPE_CHECKING:\n    {line.splitlines()[-1].strip()}")
