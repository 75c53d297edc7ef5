"""Whose code runs: the user's, an installed package's, torch's or this package's."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch


class Owner(enum.Enum):
    """Whose code a file is."""

    USER = enum.auto()
    INSTALLED = enum.auto()
    TORCH = enum.auto()
    DYNAMO = enum.auto()
    """Where Dynamo computes what traced code computes."""


TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_FOLDING = f"{TORCH}_dynamo{os.sep}variables{os.sep}"
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
OWN = __name__.partition(".")[0]
_IMPORTER = "<frozen importlib."

_OWNERS: dict[str, Owner] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class Asker:
    """Code that asked, or that called what asked, at ``offset`` of its instructions. ``names``: its globals.

    ``is_direct``: the user's code called it, not that of torch or a package.
    """

    code: types.CodeType
    offset: int
    names: dict[str, Any]
    is_direct: bool

    def is_at(self, other: Asker) -> bool:
        """Whether both are of the same code at the same instruction."""
        return self.code is other.code and self.offset == other.offset and self.names is other.names


def is_of_torch(file: str) -> bool:
    """Whether ``file`` is torch's own, or code that torch generated."""
    return file.startswith((TORCH, "<eval_with_key>"))


@functools.cache
def is_installed(file: str) -> bool:
    """Whether ``file`` is part of an installed package or of the standard library."""
    return any(part in file for part in _PACKAGES) or file.startswith((_STANDARD_LIBRARY, "<frozen "))


def owner_of(frame: types.FrameType) -> Owner:
    file = frame.f_code.co_filename
    if (known := _OWNERS.get(file)) is not None:
        return known
    module = str(frame.f_globals.get("__name__", ""))
    if file.startswith(_FOLDING):
        found = Owner.DYNAMO
    elif is_of_torch(file) or module.partition(".")[0] == OWN:
        found = Owner.TORCH
    else:
        found = Owner.INSTALLED if is_installed(file) else Owner.USER
    _OWNERS[file] = found
    return found


def callers(frame: types.FrameType | None) -> tuple[Asker, ...]:
    """The user's code that runs in ``frame`` and around it, the nearest first, up to what this package called."""
    found: list[Asker] = []
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] != OWN:
        around = frame.f_back
        if owner_of(frame) is Owner.USER:
            is_direct = around is not None and owner_of(around) is Owner.USER
            found.append(Asker(frame.f_code, frame.f_lasti, frame.f_globals, is_direct))
        frame = around
    return tuple(found)


def asking_file(caller: types.FrameType | None) -> str:
    """The file of the code that asks: what Dynamo traces, where Dynamo asks for it."""
    if caller is None:
        return ""
    translator = sys.modules.get("torch._dynamo.symbolic_convert")
    if translator is None or f"{os.sep}_dynamo{os.sep}" not in caller.f_code.co_filename:
        return caller.f_code.co_filename
    return str(translator.InstructionTranslator.current_tx().f_code.co_filename)


def innermost_file(caller: types.FrameType | None) -> str:
    """The file of ``caller``; where Dynamo asks, that of the function that it inlines."""
    file = "" if caller is None else caller.f_code.co_filename
    if not file.startswith(_FOLDING):
        return file
    while caller is not None and caller.f_code.co_name != "step":
        caller = caller.f_back
    return file if caller is None else str(caller.f_locals["self"].f_code.co_filename)


def is_imported_by_torch(caller: types.FrameType) -> bool:
    """Whether ``caller`` runs because torch imports a package for itself: some of them read the whole environment."""
    frame: types.FrameType | None = caller
    is_imported = False
    while frame is not None and owner_of(frame) is Owner.INSTALLED:  # what imports is of the standard library
        is_imported |= frame.f_code.co_filename.startswith(_IMPORTER)
        frame = frame.f_back
    return is_imported and frame is not None and owner_of(frame) is Owner.TORCH
