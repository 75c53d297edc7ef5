"""The line of a forward that is wrong: its operations one by one, in the order in which both programs call them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from verifycompile.comparison.judge import Judged, Subject, judge
from verifycompile.comparison.names import flattened
from verifycompile.comparison.trace import Entry, Keep, Kind, Layout, calling_place, entry_of, local_part
from verifycompile.diagnostics.finding import Finding
from verifycompile.program import Mesh, SourceLocation
from verifycompile.torch_interface.source import is_user_file

_COMMUNICATION = str(Path(dist.__file__).parent)
_COPIES = frozenset({"alias", "clone", "contiguous", "detach", "detach_", "requires_grad_", "view_as"})
"""Functions that give the value that they take; those that communicate need them, and a spec does not."""


class _Operations(TorchFunctionMode):
    """Records what torch's functions give while the first call of one module is the innermost that runs."""

    def __init__(self, path: str, keep: Keep, layout: Layout | None) -> None:
        super().__init__()
        self._path, self._keep, self._layout = path, keep, layout
        self._running: list[str] = []
        self._calls = 0
        self._count = 0

    def before(self, path: str) -> None:
        self._running.append(path)
        self._calls += path == self._path

    def after(self) -> None:
        self._running.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        innermost = self._running[-1] if self._running else ""
        if innermost != self._path or self._calls > 1 or _is_of_communication():
            return result
        function = getattr(func, "__name__", str(func))
        for value in flattened(result) if function not in _COPIES else ():
            if value.is_floating_point():
                self._record(function, value)
        return result

    def _record(self, function: str, value: torch.Tensor) -> None:
        name, place = f"{self._count}.{function}", calling_place(self._path)
        self._count += 1
        entry = entry_of(name, Kind.ACTIVATION, value, self._layout, module=self._path, place=place)
        self._keep(entry, local_part(value))


def _is_of_communication() -> bool:
    """Whether ``torch.distributed`` calls this function: a hook of its own on a module, or a collective."""
    frame: Any = sys._getframe(2)  # noqa: SLF001 - the frame of the caller is found in no other way
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_COMMUNICATION):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def operations_of(
    path: str, modules: Mapping[str, nn.Module], root: nn.Module | None, keep: Keep, layout: Layout | None
) -> Generator[None]:
    """While entered, ``keep`` is given what each operation in the forward of one module computes.

    ``path``: of that module, "" for ``root``, the program itself.
    """
    mode = _Operations(path, keep, layout)
    handles: list[Any] = []
    try:
        for own, module in modules.items():
            if module is root or isinstance(module, torch.jit.ScriptModule):
                continue
            handles.append(module.register_forward_pre_hook(lambda *_, own=own: mode.before(own)))
            handles.append(module.register_forward_hook(lambda *_: mode.after()))
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


def first_line_off(
    spec: Mapping[str, Entry],
    ran: Mapping[int, Sequence[Entry]],
    subject: Callable[[str], Subject],
    value: Callable[[str], Mapping[int, torch.Tensor | None]],
    mesh: Mesh,
) -> tuple[SourceLocation, Judged] | None:
    """Where the ranks compute the first value that is under no layout the spec's, and how far it is off.

    ``spec``: its operations by name in their order. ``ran``: those of each rank. ``value``: the ranks' parts of one.
    None where the programs call other functions before that.
    """
    entries = [{entry.name: entry for entry in own} for own in ran.values()]
    for name in spec:
        held = [own.get(name) for own in entries]
        first = held[0]
        if first is None or None in held:
            return None
        parts = {rank: part for rank, part in value(name).items() if part is not None}
        judged = judge(subject(name), parts, first.layout, mesh, sums=True)
        if judged.exceeds:
            return None if first.place is None else (first.place, judged)
    return None


def at_line(finding: Finding, place: SourceLocation, judged: Judged) -> Finding:
    """The finding at the line of its module's forward that is off."""
    function = judged.name.partition(".")[2]
    said = f"`{function}` gives the first value of this forward that is not the spec's, whole or in parts"
    return dataclasses.replace(finding, impl_location=place, label=said)
