"""Code blocks of documents: files are written, commands are run in their folder, what they print is compared.

A block ```` ```python title="NAME" ```` is a file of the reader's folder; where NAME begins with ``examples/`` it is an
excerpt of that file. A block ```` ```console ```` is a session: after ``$ `` a command, then what it prints; a line
``…`` stands for lines that are left out. Other blocks are not run. Each document has a folder of its own.

    python -m tests.project.documents docs/tutorial.md    # writes into the document what its commands print now
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import traceback

from tests.warm import python

ROOT = pathlib.Path(__file__).parents[2]
LEFT_OUT = "…"
BLOCK = re.compile(r'^```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Command:
    line: str
    shown: str


@dataclasses.dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str

    @property
    def commands(self) -> list[Command]:
        """Of a session: what is typed, and what is shown of its output."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        assert parts[0] == "", f"a session begins with a command: {self.text}"
        return [Command(line, shown) for line, shown in zip(parts[1::2], parts[2::2], strict=True)]


def blocks(document: pathlib.Path) -> list[Block]:
    found = BLOCK.finditer(document.read_text())
    return [Block(match["language"], match["title"], match["text"]) for match in found]


def documents() -> list[pathlib.Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def all_commands() -> list[str]:
    """What all documents type."""
    return [command.line for command in _all()]


def shown_of(line: str) -> list[str]:
    """What the documents show of this command's output."""
    return [command.shown for command in _all() if command.line == line]


def _all() -> list[Command]:
    found = [block for document in documents() for block in blocks(document) if block.language == "console"]
    return [command for block in found for command in block.commands]


def is_excerpt(text: str, whole: str) -> bool:
    """Whether each run of lines between two ``…`` stands in ``whole``, in this order."""
    parts = [re.escape(part) for part in re.split(rf"^ *{LEFT_OUT}\n", text, flags=re.MULTILINE)]
    return re.search(".*".join(parts), whole, re.DOTALL) is not None


def without_times(text: str) -> str:
    """The same text where times, and what depends on them, are one word."""
    text = re.sub(r"\b\d+(\.\d+)? ?(s|ms)\b", "SECONDS", text)
    text = re.sub(r"^( = (?:seconds|second look): ).*$", r"\1SECONDS", text, flags=re.MULTILINE)
    text = re.sub(r"^slowest: .*$", "slowest: SECONDS", text, flags=re.MULTILINE)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def agrees(shown: str, printed: str) -> bool:
    parts = [re.escape(without_times(part)) for part in re.split(rf"^{LEFT_OUT}\n", shown, flags=re.MULTILINE)]
    return re.fullmatch("(?:.*\n)*".join(parts), without_times(printed)) is not None


def write_files(document: pathlib.Path, folder: pathlib.Path) -> None:
    for block in blocks(document):
        if block.title is not None and not block.title.startswith("examples/"):
            (folder / block.title).write_text(block.text)
    (folder / "examples").symlink_to(ROOT / "examples")


def run(line: str, folder: pathlib.Path) -> str:
    """What a command prints on both streams. A script that is called plainly is run in this process, which has torch."""
    words = shlex.split(line)
    if words[0] == "python" and words[1].endswith(".py"):
        return _run_here(words[1:], folder)
    environment = {
        "PATH": f"{pathlib.Path(python()).parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**os.environ, **environment, "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=400,
    )
    return done.stdout


def _run_here(words: list[str], folder: pathlib.Path) -> str:
    printed, arguments, path, modules = io.StringIO(), sys.argv, list(sys.path), set(sys.modules)
    sys.argv, sys.path[0:0] = words, [str(folder)]
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit:
            pass
        except BaseException:  # noqa: BLE001 - shown as Python shows it
            traceback.print_exc()
    sys.argv, sys.path[:] = arguments, path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    return printed.getvalue()


def main(names: list[str]) -> None:
    """Put what the commands print into the documents, where it is not what they show."""
    for name in names:
        document = pathlib.Path(name)
        with tempfile.TemporaryDirectory() as folder:
            write_files(document, pathlib.Path(folder))
            text = document.read_text()
            for block in blocks(document):
                for command in block.commands if block.language == "console" else []:
                    printed = run(command.line, pathlib.Path(folder))
                    if not agrees(command.shown, printed):
                        before = f"$ {command.line}\n{command.shown}"
                        text = text.replace(before, f"$ {command.line}\n{printed}", 1)
            document.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
