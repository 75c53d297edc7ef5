"""A frame with other tensors in it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

from verifycompile.torch_interface.dynamo.closures import closed_over, globals_in
from verifycompile.torch_interface.dynamo.frames import Frame


def copied_frame(frame: Frame, globalizer: Callable[[Any], Any]) -> Frame:
    """The frame with what ``globalizer`` makes of its locals, of its closure and of the globals that its code names."""
    used = set(globals_in(frame.code))
    changed = {name: new for name, old in frame.globals.items() if name in used and (new := globalizer(old)) is not old}
    contents = {name: globalizer(value) for name, value in closed_over(frame.code, frame.closure)}
    cells = zip(frame.code.co_freevars, frame.closure, strict=True)
    return dataclasses.replace(
        frame,
        globals={**frame.globals, **changed} if changed else frame.globals,
        locals={name: globalizer(value) for name, value in frame.locals.items()},
        closure=tuple(types.CellType(contents[name]) if name in contents else cell for name, cell in cells),
    )
