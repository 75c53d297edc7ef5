"""Waivers as users write them: a list of tables, or a TOML file that holds one."""

from __future__ import annotations

import datetime as dt
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from verifycompile.diagnostics.codes import CODES
from verifycompile.diagnostics.waiver import Waiver
from verifycompile.errors import UsageError

_FIELDS = ("code", "module", "node", "reason", "expires")
_SELECTORS = ("code", "module", "node")


def waivers_of(value: object) -> tuple[Waiver, ...]:
    """The waivers of option ``waivers``: the path of a TOML file, or a list of mappings.

    Raises ``UsageError`` VC311 for a waiver without a reason, a date or anything that it speaks of, for one that is
    over, and for a file that cannot be read.
    """
    if value is None:
        return ()
    if isinstance(value, str | pathlib.Path):
        return waivers_in(pathlib.Path(value))
    return _parsed(value, "option `waivers`")


def waivers_in(file: pathlib.Path) -> tuple[Waiver, ...]:
    """Those of a TOML file: ``[[waivers]]``, in ``pyproject.toml`` ``[[tool.verifycompile.waivers]]``."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError("VC311", f"the waivers of `{file}` cannot be read: {error}.") from error
    if file.name == "pyproject.toml":
        data = data.get("tool", {}).get("verifycompile", {})
    unknown = sorted(set(data) - {"waivers"})
    if unknown:
        raise UsageError("VC311", f"`{file}` sets `{unknown[0]}`, and verifycompile knows `waivers` alone.")
    return _parsed(data.get("waivers", []), f"`{file}`")


def _parsed(value: object, origin: str) -> tuple[Waiver, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError("VC311", f"{origin}: waivers must be a list of tables, or the path of a TOML file.")
    items = cast("list[object]", value)
    return tuple(_waiver(item, f"waiver {number} of {origin}") for number, item in enumerate(items, start=1))


def _waiver(item: object, origin: str) -> Waiver:
    if isinstance(item, Waiver):
        return item
    if not isinstance(item, Mapping):
        raise UsageError("VC311", f"{origin} must be a table with `reason`, `expires`, and `code`, `module` or `node`.")
    given = cast("Mapping[str, Any]", item)
    unknown = sorted(set(given) - set(_FIELDS))
    if unknown:
        known = ", ".join(f"`{name}`" for name in _FIELDS)
        raise UsageError("VC311", f"{origin} sets `{unknown[0]}`; a waiver has {known}.")
    texts = {name: given.get(name, "") for name in (*_SELECTORS, "reason")}
    wrong = next((name for name, text in texts.items() if not isinstance(text, str)), None)
    if wrong is not None:
        raise UsageError("VC311", f"{origin}: `{wrong}` must be a text.")
    if not any(texts[name] for name in _SELECTORS):
        raise UsageError("VC311", f"{origin} does not say what it waives: give `code`, `module` or `node`.")
    if texts["code"] and texts["code"] not in CODES:
        raise UsageError("VC311", f"{origin} waives `{texts['code']}`, and there is no such code.")
    if texts["node"] and not texts["node"].rpartition(":")[2].isdigit():
        raise UsageError("VC311", f'{origin}: `node` must be a line of a file, as "model.py:41".')
    if not texts["reason"].strip():
        raise UsageError("VC311", f"{origin} has no reason: say why with `reason`.")
    expires = _date(given.get("expires"), origin)
    today = dt.datetime.now(tz=dt.UTC).date()
    if expires < today:
        raise UsageError("VC311", f"{origin} expired on {expires}: mend what it waives, or decide again.")
    return Waiver(expires=expires, origin=origin, **texts)


def _date(value: object, origin: str) -> dt.date:
    if isinstance(value, dt.datetime):
        return value.date()
    if isinstance(value, dt.date):
        return value
    try:
        return dt.date.fromisoformat(str(value))
    except ValueError as error:
        text = f"{origin} has no date at which it ends: give `expires`, as 2027-01-31."
        raise UsageError("VC311", text) from error
