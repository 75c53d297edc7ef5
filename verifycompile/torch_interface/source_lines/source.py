"""Where in the user's files a captured node comes from."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import linecache
import os
import re
import sys
import traceback
import types
from collections.abc import Iterable
from pathlib import Path, PurePath

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import uninteresting_files

from verifycompile.program import SourceLocation
from verifycompile.torch_interface.source_lines.syntax import syntax_of
from verifycompile.torch_interface.source_lines.whose_code import is_installed

_FRAME = re.compile(r'^ {0,2}File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.*)$')
_CARETS = re.compile(r"^    (?P<blank> *)(?P<carets>[~^]+) *$")
_MODULE_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")
_MODULE_STEP = re.compile(r"\.?_modules\['([^']*)'\]|\['([^']*)'\]")
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "__dict__", "_modules")
_TORCH = Path(torch.__file__).resolve().parent
SOURCE_KEYS = (
    "stack_trace", "nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "fwd_source_fn_stack",
    "autograd_backward",
)  # fmt: skip
"""What torch records of a node's place in the source."""
MADE_BY = "made_by"
"""Of a node that stands for what another operator does, that operator."""
_TRACED_FOR_TORCH = Path(__file__).resolve().parents[1]
"""Functions here are traced in the place of torch's."""
_PACKAGE = f"{_TRACED_FOR_TORCH.parent}{os.sep}"
_TORCH_USER_CODE = _TORCH / "testing"
"""torch.testing holds models and tests: code that uses torch as a user's does."""


def keep_lines_of_strings() -> None:
    """From now on torch records lines of code that was made of a string, ``exec(text)``, as those of any file.

    Its name is that of methods of dataclasses too, which call no operator.
    """
    uninteresting_files().discard("<string>")


def location_of(node: torch.fx.Node) -> SourceLocation | None:
    """The innermost line outside of torch that made ``node``; for a backward node, that of its forward node.

    None where torch recorded no stack, or one without a frame outside of torch.
    """
    frames = frames_of(node)
    return located(node, frames, len(frames) - 1) if frames else None


def lines_of(graph: torch.fx.Graph) -> set[tuple[str, int]]:
    """The lines that ran while a graph was recorded: file and number."""
    return {at_line(frame) for node in graph.nodes for frame in frames_of(node)}


def at_line(place: SourceLocation) -> tuple[str, int]:
    """File and number of a line."""
    return place.file, place.line


def located(node: torch.fx.Node, frames: tuple[SourceLocation, ...], position: int) -> SourceLocation:
    """The line of one of the node's frames, with the module and with the end of the expression that was running."""
    frame = dataclasses.replace(frames[position], module=module_of(node))
    found, syntax = expression_at(node, frames, position), syntax_of(frame.file)
    if found is None or syntax is None or found.end_lineno != frame.line:
        return frame
    return dataclasses.replace(frame, end_column=syntax.end_column(found))


def expression_at(node: torch.fx.Node, frames: tuple[SourceLocation, ...], position: int) -> ast.expr | None:
    """The expression that one of the node's frames was running: recorded is where it begins, not where it ends."""
    frame = frames[position]
    syntax = syntax_of(frame.file)
    if syntax is None:
        return None
    called = frames[position + 1].function if position + 1 < len(frames) else _called(node)
    return syntax.expression_at(frame.line, frame.column, called)


def frames_of(node: torch.fx.Node) -> tuple[SourceLocation, ...]:
    """The lines outside of torch that were running when ``node`` was made, outermost first."""
    trace = node.meta.get("stack_trace")
    return _user_frames(trace) if trace else ()


def module_of(node: torch.fx.Node) -> str:
    """Dotted path of the module whose ``forward`` made ``node`` (``layers.0.attention.wo``); "" where there is none."""
    return next(iter(modules_of(node)), "")


def modules_of(node: torch.fx.Node) -> list[str]:
    """The paths of the modules whose ``forward`` was running, the innermost first."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return [_path(str(entry[0])) for entry in reversed(stack.values())]


def _path(text: str) -> str:
    path = _MODULE_STEP.sub(lambda step: "." + (step[1] or step[2]), _MODULE_ROOT.sub("", text))
    return ".".join(part for part in path.split(".") if part and part not in _WRAPPERS)


def is_of_backward(node: torch.fx.Node) -> bool:
    """Whether torch recorded ``node`` as a part of the gradient of what a forward computed."""
    return "nn_module_stack" not in node.meta and "fwd_nn_module_stack" in node.meta


def _called(node: torch.fx.Node) -> str:
    """The name of the function, method or operator whose call the node is a part of; "" where none is recorded."""
    stack = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack")
    if not stack:
        return node.target._schema.name.partition("::")[2] if isinstance(node.target, OpOverload) else ""
    function = stack[-1][1]
    return function if isinstance(function, str) else str(getattr(function, "__name__", ""))


def is_user_file(file: str) -> bool:
    """True for a file outside of torch's own directory and of what stands for it, and for torch.testing."""
    if file.startswith("<"):
        return not file.startswith("<eval_with_key>") and not file.startswith("<frozen")
    return _is_user_path(file)


def is_user_class(kind: type) -> bool:
    """True for a class of a file that is the user's."""
    return is_user_file(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen>")


def is_code_of_user(file: str) -> bool:
    """True for a file of the user's that is none of this package either."""
    return is_user_file(file) and not file.startswith(_PACKAGE)


def line_of_user(stack: Iterable[traceback.FrameSummary]) -> str:
    """The innermost line of a stack outside of torch, as it is written, and where; the user's own, if there is one."""
    outside = [frame for frame in stack if is_user_file(frame.filename)]
    if not outside:
        return ""
    last = next((frame for frame in reversed(outside) if not is_installed(frame.filename)), outside[-1])
    return f"`{(last.line or '').strip()}` ({PurePath(last.filename).name}:{last.lineno})"


def calling_line() -> SourceLocation | None:
    """The innermost line of the user's that is running."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if is_code_of_user(code.co_filename):
            _, last, start, end = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
            column = 1 if start is None else start + 1
            end_column = None if end is None or last != frame.f_lineno else end + 1
            return SourceLocation(code.co_filename, frame.f_lineno, column, end_column, code.co_name)
        frame = frame.f_back
    return None


def raising_line(error: BaseException | None) -> SourceLocation | None:
    """The innermost line of the user's that an error passed; of an installed package's where it passed no other."""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    outside = [frame for frame in frames if is_code_of_user(frame.filename) and frame.lineno is not None]
    user = [frame for frame in outside if not is_installed(frame.filename)] or outside
    return None if not user else SourceLocation(user[-1].filename, user[-1].lineno or 1, function=user[-1].name)


@functools.lru_cache(maxsize=4096)
def _is_user_path(file: str) -> bool:
    path = Path(file).resolve()
    if _TRACED_FOR_TORCH in path.parents:
        return False
    return not path.is_relative_to(_TORCH) or path.is_relative_to(_TORCH_USER_CODE)


@functools.lru_cache(maxsize=16384)
def _user_frames(trace: str) -> tuple[SourceLocation, ...]:
    lines = trace.splitlines()
    found: list[SourceLocation] = []
    for position, text in enumerate(lines):
        frame = _FRAME.match(text)
        if frame is None or not is_user_file(frame["file"]):
            continue
        file, line = frame["file"], int(frame["line"])
        column, end_column = _columns(file, line, lines[position + 1 : position + 3])
        found.append(SourceLocation(file, line, column, end_column, frame["function"].strip()))
    return tuple(found)


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
