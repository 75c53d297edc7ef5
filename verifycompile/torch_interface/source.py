"""Where in the user's files a captured node comes from."""

from __future__ import annotations

import functools
import linecache
import re
from pathlib import Path

import torch
import torch.fx

from verifycompile.program import SourceLocation

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.*)$')
_CARETS = re.compile(r"^    (?P<blank> *)(?P<carets>[~^]+) *$")
_MODULE_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")
_MODULE_STEP = re.compile(r"\.?_modules\['([^']*)'\]|\['([^']*)'\]")
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
_TORCH = Path(torch.__file__).resolve().parent
_TRACED_FOR_TORCH = Path(__file__).resolve().parent
"""Functions here are traced in the place of torch's."""
_TORCH_USER_CODE = _TORCH / "testing"
"""torch.testing holds models and tests: code that uses torch as a user's does."""


def location_of(node: torch.fx.Node) -> SourceLocation | None:
    """The innermost line outside of torch that made ``node``; for a backward node, that of its forward node.

    None where torch recorded no stack, or one without a frame outside of torch.
    """
    trace = node.meta.get("stack_trace")
    if not trace:
        return None
    found = _innermost_user_frame(trace)
    if found is None:
        return None
    file, line, column, end_column, function = found
    return SourceLocation(file, line, column, end_column, function, module_of(node))


def module_of(node: torch.fx.Node) -> str:
    """Dotted path of the module whose ``forward`` made ``node`` (``layers.0.attention.wo``); "" where there is none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = _MODULE_STEP.sub(lambda step: "." + (step[1] or step[2]), _MODULE_ROOT.sub("", path))
    return ".".join(
        part for part in path.split(".") if part and part not in ("_orig_mod", "_checkpoint_wrapped_module")
    )


def is_user_file(file: str) -> bool:
    """True for a file outside of torch's own directory and of what stands for it, and for torch.testing."""
    if file.startswith("<"):
        return not file.startswith("<eval_with_key>") and not file.startswith("<frozen")
    path = Path(file).resolve()
    if path.parent == _TRACED_FOR_TORCH:
        return False
    return not path.is_relative_to(_TORCH) or path.is_relative_to(_TORCH_USER_CODE)


@functools.lru_cache(maxsize=4096)
def _innermost_user_frame(trace: str) -> tuple[str, int, int, int | None, str] | None:
    lines = trace.splitlines()
    for position in range(len(lines) - 1, -1, -1):
        frame = _FRAME.match(lines[position])
        if frame is None or not is_user_file(frame["file"]):
            continue
        column, end_column = _columns(frame["file"], int(frame["line"]), lines[position + 1 : position + 3])
        return frame["file"], int(frame["line"]), column, end_column, frame["function"].strip()
    return None


def _columns(file: str, line: int, after: list[str]) -> tuple[int, int | None]:
    """First column and the one past the last, counted from 1, of what the carets under the source text mark."""
    text = linecache.getline(file, line).rstrip("\n")
    shown = after[0][4:] if after and after[0].startswith("    ") else ""
    indentation = len(text) - len(text.lstrip()) if text.strip() else 0
    carets = _CARETS.match(after[1]) if len(after) > 1 else None
    if carets is None:
        length = len(text.strip()) or len(shown.strip())
        return indentation + 1, indentation + 1 + length if length else None
    start = indentation + len(carets["blank"]) + 1
    return start, start + len(carets["carets"])
