"""What one run of a program on one rank leaves: activations, gradients, and where each came from."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from verifycompile.comparison.layout import Known
from verifycompile.comparison.names import mapped, tensors_of
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.dtensor.tensors import arrived, like_dtensor
from verifycompile.torch_interface.source_lines.source import calling_line, is_user_file

Layout = Callable[[DTensor], Known]
"""The placements of a DTensor over the axes of the program's mesh."""


class Kind(enum.Enum):
    """What a tensor is in the program."""

    INPUT = "input"
    ACTIVATION = "activation"
    OUTPUT = "output"
    RECOMPUTED = "recomputed activation"
    ACTIVATION_GRADIENT = "gradient of an activation"
    GRADIENT = "gradient"
    CLIPPED = "clipped gradient"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    STATE = "optimizer state"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of one rank. ``shape``: of the rank's part. ``layout``: as far as it is known, None for plain tensors.

    ``whole``: the shape that a DTensor records. ``module``: path of the module whose tensor it is; ``is_input``: of
    that module. ``order``: of its making in the run. ``place``: the line that called the module.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Known | None = None
    whole: tuple[int, ...] | None = None
    module: str = ""
    is_input: bool = False
    order: int = 0
    place: SourceLocation | None = None


Keep = Callable[[Entry, torch.Tensor], None]
"""Takes a tensor's local part, which the program may change afterwards."""


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds, without its history."""
    with torch.no_grad():
        part = arrived(tensor)
        return arrived(part.to_local() if isinstance(part, DTensor) else part).detach()


def traced(
    name: str, kind: Kind, tensor: torch.Tensor, layout: Layout | None, **more: Any
) -> tuple[Entry, torch.Tensor]:
    """The entry of ``tensor`` as it is now, and this rank's part of it."""
    part = local_part(tensor)
    known, whole = None, None
    if isinstance(tensor, DTensor) and layout is not None:
        known, whole = layout(tensor), tuple(tensor.shape)
    return Entry(name, kind, tuple(part.shape), part.dtype, known, whole, **more), part


class Hooked:
    """Has hooks on the modules of a program, but for ``root``, which is the program itself."""

    def __init__(self, modules: Mapping[str, nn.Module], root: nn.Module | None) -> None:
        self._modules = {path: module for path, module in modules.items() if module is not root}
        self._handles: list[Any] = []

    def _attach(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        """Call these with the path of a module, and with what torch calls such hooks with."""
        for path, module in self._modules.items():
            if not isinstance(module, torch.jit.ScriptModule):
                own = functools.partial(before, path), functools.partial(after, path)
                self._handles.append(module.register_forward_pre_hook(own[0], with_kwargs=True))
                self._handles.append(module.register_forward_hook(own[1], with_kwargs=True))

    def detach(self) -> None:
        """Take the hooks off, also while a run that does not end is recorded."""
        while self._handles:
            self._handles.pop().remove()


class Recorder(Hooked):
    """Hooks on every module of a program while a run of it is traced; none is left afterwards, also after an error.

    ``modules``: canonical path -> module. A tensor that several modules see is kept once, under its first name; the
    others are its ``aliases``; ``names`` has both in order. Modules that run again in backward are recomputed, and kept
    under names of their own. ``rewritten``: parts by name, which tensors hold from where they are recorded on, so that
    what is wrong before makes nothing wrong that comes later (the rewriting of TTrace).
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        root: nn.Module | None,
        keep: Keep,
        layout: Layout | None,
        rewritten: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__(modules, root)
        self._keep = keep
        self._layout = layout
        self._rewritten = rewritten
        lasting = [t for module in modules.values() for t in (*module.parameters(), *module.buffers())]
        self._lasting = {StorageWeakRef(local_part(t).untyped_storage()) for t in lasting if rewritten}
        self._calls: dict[tuple[str, bool], int] = {}
        self._stack: list[tuple[str, SourceLocation | None]] = []
        self._seen: dict[tuple[int, int], tuple[torch.Tensor, str]] = {}
        self._order = 0
        self.aliases: dict[str, str] = {}
        self.names: list[str] = []
        self.places: dict[str, SourceLocation] = {}
        self.in_backward = False

    @contextlib.contextmanager
    def attached(self) -> Generator[None]:
        """While entered, calls of the modules are recorded."""
        try:
            self._attach(self._before, self._after)
            yield
        finally:
            self.detach()
            self._seen.clear()
            self._stack.clear()

    def arguments(self, names: Mapping[str, torch.Tensor]) -> None:
        """Record the inputs of the program."""
        for name, tensor in names.items():
            self._record(f"input.{name}", Kind.INPUT, tensor, "", is_input=True)

    def results(self, outputs: list[torch.Tensor]) -> None:
        """Record the outputs of the program."""
        for index, tensor in enumerate(outputs):
            self._record(f"output.{index}", Kind.OUTPUT, tensor, "", is_input=False)

    def _before(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:  # noqa: ARG002 - torch's hook
        call = self._calls.get((path, self.in_backward), 0)
        self._calls[path, self.in_backward] = call + 1
        name = f"{path}.call{call}" if call else path
        place = calling_place(path)
        self._stack.append((name, place))
        if place is not None:
            self.places.setdefault(path, place)
        inputs = tensors_of((*args, *kwargs.values()), "input")
        for position, tensor in inputs.items():
            self._record(f"{name}.{position}", Kind.ACTIVATION, tensor, path, is_input=True, place=place)
        if self.in_backward or not torch.is_grad_enabled():
            return None
        names = {id(tensor): f"{name}.{position}" for position, tensor in inputs.items()}

        def own(tensor: torch.Tensor) -> torch.Tensor:
            """The same tensor for this module alone, so that its gradient is what comes through this module."""
            if not tensor.requires_grad or not tensor.is_floating_point() or id(tensor) not in names:
                return tensor
            alias = torch.ops.aten.alias.default(tensor)
            of = Entry(names[id(tensor)], Kind.ACTIVATION, (), tensor.dtype, module=path, is_input=True, place=place)
            alias.register_hook(functools.partial(self._gradient, of))
            return alias

        return mapped(args, own), mapped(kwargs, own)

    def _after(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ARG002 - as torch calls a hook
        name, place = self._stack.pop()
        outputs = tensors_of(output if isinstance(output, (tuple, list, dict)) else (output,), "output")
        for index, tensor in enumerate(outputs.values()):
            self._record(f"{name}.output.{index}", Kind.ACTIVATION, tensor, path, is_input=False, place=place)

    def _record(
        self,
        name: str,
        kind: Kind,
        tensor: torch.Tensor,
        module: str,
        *,
        is_input: bool,
        place: SourceLocation | None = None,
    ) -> None:
        if self.in_backward and kind is Kind.ACTIVATION:
            kind, name = Kind.RECOMPUTED, f"recomputed.{name}"
        self.names.append(name)
        key = (id(tensor), 0 if tensor.is_inference() else tensor._version)  # noqa: SLF001 - no public name
        # What the program takes and returns has a name of its own, also where a module sees it.
        if key in self._seen and kind is not Kind.OUTPUT:
            self.aliases[name] = first = self._seen[key][1]
            if tensor.requires_grad and not self.in_backward and not is_input:
                self.aliases[f"grad.{name}"] = f"grad.{first}"
            return
        self._seen.setdefault(key, (tensor, name))
        self._order += 1
        entry, part = traced(
            name, kind, tensor, self._layout, module=module, is_input=is_input, order=self._order, place=place
        )
        self._keep(entry, part)
        self._rewrite(name, tensor)
        if not tensor.requires_grad or not tensor.is_floating_point() or kind in (Kind.RECOMPUTED, Kind.OUTPUT):
            return
        if not is_input or kind is Kind.INPUT:
            tensor.register_hook(functools.partial(self._gradient, entry))

    def _rewrite(self, name: str, tensor: torch.Tensor) -> None:
        part = self._rewritten.get(name.removeprefix("recomputed."))
        if part is None:
            return
        held = local_part(tensor)
        repeats = any(stride == 0 and size > 1 for stride, size in zip(held.stride(), held.shape, strict=True))
        if part.shape == held.shape and not repeats and StorageWeakRef(held.untyped_storage()) not in self._lasting:
            # Autograd is not told: the program did not do it, and what it saved shall have the new value too.
            held.data.copy_(part)

    def _gradient(self, of: Entry, gradient: torch.Tensor) -> torch.Tensor | None:
        self._order += 1
        kind = Kind.GRADIENT if of.kind is Kind.INPUT else Kind.ACTIVATION_GRADIENT
        where: Any = {"module": of.module, "is_input": of.is_input, "order": self._order, "place": of.place}
        entry, held = traced(f"grad.{of.name}", kind, gradient, self._layout, **where)
        self.names.append(entry.name)
        self._keep(entry, held)
        part = self._rewritten.get(entry.name)
        if part is None or part.shape != held.shape:
            return None
        part = part.to(gradient.device, gradient.dtype)
        return like_dtensor(gradient, part) if isinstance(gradient, DTensor) else part


def definition(function: Callable[..., Any] | None, module: str) -> SourceLocation | None:
    """Where the user wrote a function, which is of ``module``."""
    while isinstance(function, functools.partial):
        function = function.func
    code = None if function is None else getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return None
    return SourceLocation(code.co_filename, code.co_firstlineno, 1, None, code.co_name, module)


def calling_place(path: str) -> SourceLocation | None:
    """The line outside of torch and of this package that called a module."""
    line = calling_line()
    return None if line is None else dataclasses.replace(line, module=path)
