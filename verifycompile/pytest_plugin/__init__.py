"""The pytest plugin ``verifycompile``: fixtures, ``--verify-report`` and a summary of what tests proved.

It is a package of its own, ``verifycompile_pytest``: every pytest run of an environment loads it, and importing
``verifycompile`` before torch would start to observe torch in all of them.
"""

from __future__ import annotations

import collections
import pathlib
import re
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest

_PROPERTY = "verifycompile"
_FOLDER = pytest.StashKey[pathlib.Path | None]()
_running: list[pytest.Item] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--verify-report=DIR``."""
    group = parser.getgroup("verifycompile")
    group.addoption("--verify-report", metavar="DIR", help="keep the report of each assert_refines in DIR")


def pytest_configure(config: pytest.Config) -> None:
    """Find the report folder once. Raises ``pytest.UsageError`` where it cannot be one."""
    named = config.getoption("--verify-report")
    folder = config.stash[_FOLDER] = None if named is None else pathlib.Path(named)
    if folder is not None and not folder.is_dir() and folder.exists():
        raise pytest.UsageError(f"--verify-report={named}: there is a file of that name; name a folder.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Know which test asks."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


def note(report: Any) -> None:
    """What ``assert_refines`` found out, for the summary and the report folder. Raises ``OSError`` of that folder."""
    if not _running:
        return
    item = _running[-1]
    stats = report.stats
    seconds = stats.capture_seconds + stats.verification_seconds
    item.user_properties.append((_PROPERTY, [report.verdict.value, seconds, item.nodeid]))
    folder = item.config.stash[_FOLDER]
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    count = sum(1 for name, _ in item.user_properties if name == _PROPERTY)
    stem = re.sub(r"[^\w.\-\[\]]+", "-", item.nodeid) + ("" if count == 1 else f"-{count}")
    (folder / f"{stem}.json").write_text(report.to_json(), encoding="utf-8")
    report.save_html(folder / f"{stem}.html")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One section: how many programs of each verdict, the slowest, and where the reports are."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    called = [report for report in reports if getattr(report, "when", "") == "call"]
    noted = [value for report in called for name, value in report.user_properties if name == _PROPERTY]
    if not noted:
        return
    counts = collections.Counter(verdict for verdict, _, _ in noted)
    terminalreporter.section("verifycompile")
    total = "1 program" if len(noted) == 1 else f"{len(noted)} programs"
    terminalreporter.write_line(f"{total}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    _, seconds, slowest = max(noted, key=lambda value: value[1])
    terminalreporter.write_line(f"slowest: {slowest}, {seconds:.2f} s")
    folder = config.stash[_FOLDER]
    if folder is not None:
        terminalreporter.write_line(f"reports: {folder}")


@pytest.fixture
def verify_group() -> Generator[Callable[..., None]]:
    """Call it with a world size, and a rank, to have torch's fake process group until the test ends."""
    import contextlib

    from verifycompile.testing import fake_group

    with contextlib.ExitStack() as stack:
        yield lambda world_size, rank=0: stack.enter_context(fake_group(world_size, rank))


@pytest.fixture
def verify_mesh(request: pytest.FixtureRequest) -> Generator[Any]:
    """A CPU mesh over a fake process group, with the axes that ``over_meshes`` names, ``{"tp": 2}`` without it."""
    from verifycompile.testing import fake_mesh

    axes: Mapping[str, int] = getattr(request, "param", {"tp": 2})
    with fake_mesh(axes) as mesh:
        yield mesh


@pytest.fixture
def verify_ranks() -> Callable[..., list[Any]]:
    """``verifycompile.testing.run_on_ranks``: a function on a few real gloo processes."""
    from verifycompile.testing import run_on_ranks

    return run_on_ranks
