"""The operations in the forward of one module, as they are called: what each gives, and what its backward gives."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from verifycompile.comparison.names import flattened, mapped
from verifycompile.comparison.trace import Hooked, Keep, Kind, Layout, calling_place, traced
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.source_lines.source import is_code_of_user
from verifycompile.torch_interface.training_step.autograd_nodes import (
    custom_functions_around,
    edges_out_of,
    next_number,
    nodes_since,
    value_of,
)

_COMMUNICATION = str(Path(dist.__file__).parent)
_COPIES = frozenset({"alias", "clone", "contiguous", "detach", "detach_", "requires_grad_", "view_as"})
"""Functions that give the value that they take; those that communicate need them, and a spec does not."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """A call in the forward of a module, by the name that its value is kept under.

    ``function``: of torch, of ``torch.autograd.Function``, or the path of a module that is called; "input" is what the
    module takes. ``takes``: names of the operations whose values it differentiates.
    ``hooks``: of a hook on a gradient, the operation whose value has it.
    """

    name: str
    function: str
    place: SourceLocation | None
    takes: tuple[str, ...] = ()
    is_module: bool = False
    hooks: str = ""


class Operations(Hooked):
    """Records the first call of the module at ``path``; "" is the program itself.

    The gradient that arrives at the value of ``name`` is kept as ``grad.name``, and what the call's own backward gives
    to what it took as ``grad.name.0``, ``grad.name.1`` and so on, in the order of the graph.
    """

    def __init__(
        self,
        path: str,
        modules: Mapping[str, nn.Module],
        root: nn.Module | None,
        keep: Keep,
        layout: Layout | None,
    ) -> None:
        super().__init__(modules, root)
        self._path, self._keep, self._layout = path, keep, layout
        self._running: list[str] = []
        self._calls = 0
        self._owners: dict[tuple[Node, int], str] = {}
        self._nodes: set[Node] = set()
        self._values: dict[int, tuple[torch.Tensor, str]] = {}
        self._given: list[tuple[str, ...]] = []
        self._order = 0
        self._closed = False
        self.called: list[Operation] = []

    @contextlib.contextmanager
    def recorded(self) -> Generator[None]:
        """While entered, the program's forward runs."""
        try:
            self._attach(self._before, self._after)
            with _Functions(self), custom_functions_around(self.custom):
                yield
        finally:
            self.detach()
            self._values.clear()

    def forget(self) -> None:
        """Let go of the graph, once backward has run."""
        self._owners.clear()
        self._nodes.clear()

    @property
    def is_inside(self) -> bool:
        """Whether the code that runs is the module's own."""
        running = self._running[-1] if self._running else ""
        return running == self._path and self._calls <= 1 and not self._closed

    def _before(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:  # noqa: ARG002 - torch's hook
        given = self._names_of((args, kwargs)) if self.is_inside else ()
        self._running.append(path)
        self._given.append(given)
        self._calls += path == self._path
        if path != self._path or not self.is_inside:
            return None
        # The same tensors for this module alone, so that their gradients are what comes through this module.
        with self._unseen():
            args, kwargs = mapped((args, kwargs), lambda t: torch.ops.aten.alias.default(t) if t.requires_grad else t)
        self.arguments(flattened((args, kwargs)))
        return args, kwargs

    def arguments(self, tensors: Sequence[torch.Tensor]) -> None:
        """What the module takes."""
        for tensor in tensors:
            if tensor.is_floating_point():
                self._trace(Operation(f"{len(self.called)}.input", "input", None), tensor)

    def _after(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ARG002 - torch's hook
        self._running.pop()
        takes = self._given.pop()
        if self.is_inside:
            for value in flattened(output):
                if value.is_floating_point():
                    self._trace(self._operation(path, takes, is_module=True), value)

    def _names_of(self, held: Any) -> tuple[str, ...]:
        names = (self._values[id(value)][1] for value in flattened(held) if id(value) in self._values)
        return tuple(dict.fromkeys(names))

    def custom(self, name: str, call: Callable[[], Any]) -> Any:
        """A call of an ``autograd.Function``, whose forward is code of the module too."""
        if not self.is_inside or _is_of_communication():
            return call()
        number = next_number()
        result = call()
        self._add(name, result, number)
        return result

    def function(self, name: str, call: Callable[[], Any]) -> Any:
        """A call of a function of torch; what it calls itself is none of the module's code."""
        number = next_number()
        with self._unseen():
            result = call()
        self._add(name, result, number)
        return result

    @contextlib.contextmanager
    def _unseen(self) -> Generator[None]:
        """While entered, what is called is none of the module's code."""
        before, self._closed = self._closed, True
        try:
            yield
        finally:
            self._closed = before

    def hooked(self, tensor: torch.Tensor) -> None:
        """The module's code has put a hook on the gradient of ``tensor``; what it returns is kept."""
        held = self._values.get(id(tensor))
        if held is None or not tensor.requires_grad:
            return
        name = f"{len(self.called)}.register_hook"
        self.called.append(Operation(name, "register_hook", calling_place(self._path), hooks=held[1]))
        tensor.register_hook(functools.partial(self._gradient, f"grad.{name}"))

    def _add(self, function: str, result: Any, number: int) -> None:
        for value in flattened(result):
            if not value.is_floating_point():
                continue
            nodes = [node for node in nodes_since([value], number) if node not in self._nodes]
            self._nodes.update(nodes)
            if function in _COPIES:
                self._pass_on(value, nodes)
                continue
            takes = self._followed(f"{len(self.called)}.{function}", nodes)
            self._trace(self._operation(function, tuple(dict.fromkeys(takes))), value)

    def _operation(self, function: str, takes: tuple[str, ...], *, is_module: bool = False) -> Operation:
        return Operation(f"{len(self.called)}.{function}", function, calling_place(self._path), takes, is_module)

    def _trace(self, operation: Operation, value: torch.Tensor) -> None:
        """Keep the value, and the gradient that arrives at it."""
        name = operation.name
        self.called.append(operation)
        self._own(value, name)
        with self._unseen():
            self._keep(*traced(name, Kind.ACTIVATION, value, self._layout, module=self._path))
            if value.requires_grad and torch.is_grad_enabled():
                value.register_hook(functools.partial(self._gradient, f"grad.{name}"))

    def _own(self, value: torch.Tensor, name: str) -> None:
        self._values[id(value)] = value, name
        held = value_of(value)
        if held is not None:
            self._owners[held] = name

    def _pass_on(self, copy: torch.Tensor, nodes: list[Node]) -> None:
        """The copy is the value that it is made of."""
        for edge in edges_out_of(nodes):
            if (owner := self._owners.get(edge.value)) is not None:
                self._own(copy, owner)

    def _followed(self, name: str, nodes: list[Node]) -> list[str]:
        """Keep what the nodes of a call give in backward; the operations that it goes to."""
        takes: list[str] = []
        each: dict[Node, list[tuple[int, str]]] = {}
        for index, edge in enumerate(edges_out_of(nodes)):
            each.setdefault(edge.node, []).append((edge.position, f"grad.{name}.{index}"))
            if (owner := self._owners.get(edge.value)) is not None:
                takes.append(owner)
        for node, kept in each.items():
            node.register_hook(functools.partial(self._edges, kept))
        return takes

    def _edges(self, kept: list[tuple[int, str]], gradients: Any, _: Any) -> None:
        for position, name in kept:
            if isinstance(gradients[position], torch.Tensor):
                self._gradient(name, gradients[position])

    def _gradient(self, name: str, gradient: torch.Tensor) -> None:
        self._order += 1
        where: Any = {"module": self._path, "order": self._order}
        self._keep(*traced(name, Kind.ACTIVATION_GRADIENT, gradient, self._layout, **where))


class _Functions(TorchFunctionMode):
    """Functions of torch that the module's own code calls."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self._operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def call() -> Any:
            return func(*args, **(kwargs or {}))

        if not self._operations.is_inside or _is_of_communication():
            return call()
        if func is torch.Tensor.register_hook:
            handle = call()
            self._operations.hooked(args[0])
            return handle
        return self._operations.function(getattr(func, "__name__", str(func)), call)


def _is_of_communication() -> bool:
    """Whether ``torch.distributed`` calls this function: a hook of its own on a module, or a collective."""
    frame: Any = sys._getframe(2)  # noqa: SLF001 - the frame of the caller is found in no other way
    while frame is not None and not is_code_of_user(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_COMMUNICATION):
            return True
        frame = frame.f_back
    return False
