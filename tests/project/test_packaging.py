"""What an installation gives: the mapped packages, the entry points, and an ``import torch`` that costs nothing more."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def modules_after(statement: str, **environment: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sorted(sys.modules))"],
        env={**{name: value for name, value in os.environ.items() if name != "VERIFYCOMPILE"}, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_packages_listed_are_the_folders() -> None:
    found: set[str] = set()
    for package, folder in SETUPTOOLS["package-dir"].items():
        others = {ROOT / other for other in SETUPTOOLS["package-dir"].values()} - {ROOT / folder}
        for init in (ROOT / folder).rglob("__init__.py"):
            if init.parent in others:
                continue
            found.add(".".join((package, *init.parent.relative_to(ROOT / folder).parts)))
    assert set(SETUPTOOLS["packages"]) == found


@pytest.mark.parametrize("package", SETUPTOOLS["packages"])
def test_package_is_importable_from_its_folder(package: str) -> None:
    mapped = next(
        (name for name in SETUPTOOLS["package-dir"] if package == name), "verifycompile"
    )
    folder = ROOT / SETUPTOOLS["package-dir"][mapped] / pathlib.Path(*package.removeprefix(mapped).split("."))
    module = importlib.import_module(package)
    assert module.__file__ is not None
    assert pathlib.Path(module.__file__).parent == folder


@pytest.mark.parametrize("group", ["torch_dynamo_backends", "torch.backends", "pytest11"])
def test_entry_points_load(group: str) -> None:
    declared = PROJECT["project"]["entry-points"][group]
    installed = {point.name: point for point in importlib.metadata.entry_points(group=group)}
    assert declared == {name: installed[name].value for name in declared}
    assert all(installed[name].load() is not None for name in declared)


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "verifycompile"}


def test_import_torch_leaves_nothing_behind() -> None:
    assert ours(modules_after("import torch")) == set()


OBSERVED = {
    "verifycompile",
    "verifycompile.backends",
    "verifycompile.backends.autoload",
    "verifycompile.torch_interface",
    "verifycompile.torch_interface.ranks",
    "verifycompile.torch_interface.ranks.constructed",
    "verifycompile.torch_interface.ranks.launcher_variables",
    "verifycompile.torch_interface.ranks.observation",
    "verifycompile.torch_interface.ranks.observed_readers",
    "verifycompile.torch_interface.source_lines",
    "verifycompile.torch_interface.source_lines.plan_lines",
    "verifycompile.torch_interface.source_lines.traced_lines",
    "verifycompile.torch_interface.source_lines.whose_code",
}


@pytest.mark.parametrize("flag", ["1", "warn"])
def test_flag_imports_what_observes_and_records_alone(flag: str) -> None:
    with_flag = modules_after("import torch", VERIFYCOMPILE=flag)
    assert ours(with_flag) == OBSERVED
    assert with_flag - OBSERVED == modules_after("import torch")


def test_import_of_the_package_imports_what_observes_and_records_alone() -> None:
    assert ours(modules_after("import torch; import verifycompile")) == OBSERVED - {
        "verifycompile.backends",
        "verifycompile.backends.autoload",
    }
    assert ours(modules_after("import verifycompile; import torch")) == OBSERVED


def test_another_release_of_torch_is_named_when_the_package_is_imported() -> None:
    statement = "import torch; torch.__version__ = '2.14.1+cpu'; import verifycompile"
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: verifycompile works with torch 2.13, and torch 2.14.1+cpu is installed: pip install torch==2.13.*"
    )


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("verifycompile ex", ["explain "]), ("verifycompile run --format ", ["full", "concise", "json", "github", "sarif"])],
)
def test_a_shell_is_told_what_may_be_typed_next(typed: str, offered: list[str], tmp_path: pathlib.Path) -> None:
    pytest.importorskip("argcomplete", reason="pip install '.[completion]'")
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": typed, "COMP_POINT": str(len(typed))}
    answer = tmp_path / "answer"
    subprocess.run(
        [sys.executable, "-m", "verifycompile"],
        env={**os.environ, **asked, "COMP_TYPE": "9", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)},
        check=True,
    )
    assert answer.read_text().split("\n") == offered


def test_the_changelog_has_an_entry_for_this_release_or_the_next() -> None:
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]" or headings[0].startswith(f"## [{PROJECT['project']['version']}] - ")


def test_the_license_is_named_and_shipped() -> None:
    project = PROJECT["project"]
    assert (project["license"], project["license-files"]) == ("BSD-3-Clause", ["LICENSE"])
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause License\n")


def test_wheel_of_top_level_names() -> None:
    assert {package.partition(".")[0] for package in SETUPTOOLS["packages"]} == {"verifycompile", "verifycompile_pytest"}


def test_the_pytest_plugin_alone_imports_nothing_else() -> None:
    modules = modules_after("import verifycompile_pytest")
    assert ours(modules) == set()
    assert "torch" not in modules
