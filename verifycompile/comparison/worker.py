"""One rank's part of a comparison: it holds the model, runs it while it is traced, and gives its tensors by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from verifycompile.comparison.attributes import Attributes
from verifycompile.comparison.layout import Known
from verifycompile.comparison.names import Call, flattened, named_modules, named_tensors
from verifycompile.comparison.operations import Operation, Operations
from verifycompile.comparison.store import Store
from verifycompile.comparison.trace import Entry, Keep, Kind, Layout, Recorder, definition, local_part, traced
from verifycompile.errors import UsageError
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.dtensor.tensors import from_local_recorded, like_dtensor
from verifycompile.torch_interface.rank_threads.random_streams import RandomStreams, seed_all

MAIN = "main_"
"""Before the name of a gradient that the program adds up by itself."""
Optimizer = Callable[[Any], torch.optim.Optimizer]
Clip = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Training:
    """How a program is trained. ``optimizer``: makes an optimizer of parameters; without it one pass is run.

    ``clip``: what is done to the gradients of parameters before each of ``steps`` steps; ``passes`` of forward and
    backward go before it, whose gradients add up. ``traces_clipped``: whether they are traced again after ``clip``.
    """

    optimizer: Optimizer | None = None
    clip: Clip | None = None
    steps: int = 0
    passes: int = 1
    traces_clipped: bool = False

    @property
    def all_passes(self) -> int:
        """Of forward and backward, until the last step."""
        return max(1, self.steps * self.passes)

    def steps_after(self, number: int) -> bool:
        """Whether the optimizer steps after the pass of this number."""
        return self.steps > 0 and (number + 1) % self.passes == 0


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a run left: entries, further names of them, all names in order, and whether random numbers were drawn.

    ``operations``: of the forward of one module, where those were asked for.
    """

    entries: tuple[Entry, ...]
    aliases: Mapping[str, str]
    names: tuple[str, ...] = ()
    drew: bool = False
    operations: tuple[Operation, ...] = ()


class Worker:
    """A program on one rank. ``layout`` says how its DTensors lie. ``keep``: takes what is traced; None stores it.

    ``calls``: one for each pass of training in turn. ``hooks``: what those on gradients live by.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        renamed: Mapping[str, str],
        layout: Layout | None,
        calls: Sequence[Call],
        *,
        training: Training | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.model = model
        self.hooks: object = None
        self._calls = list(calls)
        self._turn = 0
        self._layout = layout
        self._modules = named_modules(model)
        self._root = self._modules.get("")
        self.tensors = named_tensors(model, renamed)
        self._values = Store()
        self._entries: list[Entry] = []
        self._take = keep or self._store
        self.compiles = False
        self._outputs: list[torch.Tensor] = []
        self._recorder: Recorder | None = None
        self._operations: Operations | None = None
        self._passes = 0
        self.cotangents: dict[int, Mapping[int, torch.Tensor]] = {}
        self._before = Store()
        self._original: Store | None = None
        self._attributes = Attributes((), ())
        self._gradients: dict[str, torch.Tensor | None] = {}
        self._main_gradients = Store()
        self._streams = RandomStreams.now()
        self._training = training or Training()
        self._optimizer: torch.optim.Optimizer | None = None

    def _store(self, entry: Entry, part: torch.Tensor) -> None:
        self._entries.append(entry)
        self._values.keep(entry.name, part)

    @property
    def _call(self) -> Call:
        return self._calls[self._turn]

    def compile(self) -> None:
        """From now on what is compiled runs so: modules are not traced, since hooks would be compiled with them."""
        self.compiles = True

    def turn(self, number: int) -> None:
        """Let the call of the pass of this number be the one that is run."""
        self._turn = number % len(self._calls)

    def starts(self) -> tuple[tuple[str, bool, torch.dtype], ...]:
        """Of every output of the last run: its name, whether backward starts there, and its dtype."""
        return tuple(
            (f"output.{index}", output.requires_grad, output.dtype) for index, output in enumerate(self._outputs)
        )

    def parameters(self) -> tuple[Entry, ...]:
        """The parameters and buffers as they are."""
        return tuple(
            self._traced(name, Kind.PARAMETER if isinstance(tensor, nn.Parameter) else Kind.BUFFER, tensor, name)[0]
            for name, tensor in self.tensors.items()
        )

    def _traced(
        self, name: str, kind: Kind, tensor: torch.Tensor, owner: str, **more: Any
    ) -> tuple[Entry, torch.Tensor]:
        """What belongs to the parameter or buffer called ``owner``."""
        return traced(name, kind, tensor, self._layout, module=owner.rpartition(".")[0], **more)

    def parameter(self, name: str) -> torch.Tensor | None:
        """This rank's part of a parameter or buffer, on the CPU."""
        return local_part(self.tensors[name]).cpu() if name in self.tensors else None

    def assign(self, part: Callable[[str], torch.Tensor | None]) -> None:
        """Let parameters and buffers, which are of a copy, hold the ``part`` of their name, where there is one."""
        self._set((name, value) for name in self.tensors if (value := part(name)) is not None)

    def save(self) -> None:
        """Remember the program's state, with which it begins; ``restore`` puts back what was remembered first."""
        self._before = Store()
        for name, tensor in self.tensors.items():
            self._before.keep(name, local_part(tensor))
        if self._original is not None:
            return
        self._original = self._before
        self._attributes = Attributes(self._modules.values(), {id(tensor) for tensor in self.tensors.values()})
        self._gradients = {name: tensor.grad for name, tensor in self.tensors.items()}
        for name, gradient in self._kept_main_gradients():
            self._main_gradients.keep(name, local_part(gradient))
        self._streams = RandomStreams.now()
        self.clear_gradients()

    def restore(self) -> None:
        """Put back what ``save`` remembered first: values, buffers, attributes and gradients."""
        assert self._original is not None
        self._attributes.put_back()
        self._set(self._original.items())
        for name, gradient in self._gradients.items():
            self.tensors[name].grad = gradient
        with torch.no_grad():
            for name, gradient in self._kept_main_gradients():
                if name in self._main_gradients:
                    local_part(gradient).copy_(self._main_gradients[name])
        self._optimizer = None
        self._passes = 0
        self._streams.install()

    def _set(self, values: Iterable[tuple[str, torch.Tensor]]) -> None:
        with torch.no_grad():
            for name, value in values:
                local_part(self.tensors[name]).copy_(value)

    def begin(self, seed: int) -> None:
        """Values, buffers and attributes as remembered, no gradients, and random streams that begin with ``seed``."""
        self._attributes.put_back()
        seed_all(seed)
        self._set(self._before.items())
        self.clear_gradients()
        self._optimizer = None
        self._turn = self._passes = 0

    def replay(self, passes: int) -> None:
        """Train until the pass of this number, untraced, with the cotangents that the passes have had."""
        self._passes = 0
        for number in range(passes):
            self.turn(number)
            self._outputs = flattened(self.model(*self._call.args, **self._call.kwargs))
            self._run_backward(self.cotangents[number])
            if self._training.steps_after(number):
                self._clip()
                self._made_optimizer().step()
                self.clear_gradients()
        self.turn(passes)

    def clear_gradients(self) -> None:
        """Forget the gradients, as before a step."""
        for tensor in self.tensors.values():
            tensor.grad = None
        with torch.no_grad():
            for _, gradient in self._kept_main_gradients():
                local_part(gradient).zero_()

    def _kept_main_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The gradients that the program adds up by itself, as Megatron does."""
        for name, tensor in self.tensors.items():
            gradient = getattr(tensor, "main_grad", None)
            if isinstance(gradient, torch.Tensor):
                yield name, gradient

    def inputs(self) -> tuple[Entry, ...]:
        """The tensors among the arguments of this rank's call."""
        return tuple(traced(name, Kind.INPUT, tensor, self._layout)[0] for name, tensor in self._call.names.items())

    def input_part(self, name: str) -> torch.Tensor:
        """This rank's part of an argument, on the CPU."""
        return local_part(self._call.names[name]).cpu()

    def take_inputs(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Let the arguments be copies that hold these parts."""

        def replaced(name: str, tensor: torch.Tensor) -> torch.Tensor:
            part = parts[name].detach().to(tensor.device, copy=True)
            made = like_dtensor(tensor, part) if isinstance(tensor, DTensor) else part
            return made.requires_grad_(tensor.requires_grad)

        self._calls[self._turn] = self._call.with_tensors(replaced)

    def probe(self) -> dict[str, Known]:
        """Under which placements ``DTensor.from_local`` takes the plain inputs, by a run without gradients."""
        call = self._call
        if self._layout is None:
            return {}
        with from_local_recorded() as taken, torch.no_grad():
            self.model(*call.args, **call.kwargs)
        found: dict[str, Known] = {}
        for made, source in taken:
            for name, tensor in call.names.items():
                if source is tensor:
                    found.setdefault(name, self._layout(made))
        return found

    def forward(self, rewritten: Mapping[str, torch.Tensor] | None = None) -> Ran:
        """Run the program on its inputs. ``rewritten``: parts that tensors of modules hold once they are traced."""
        self.forget()
        call = self._call
        modules = {} if self.compiles else self._modules
        recorder = self._recorder = Recorder(modules, self._root, self._take, self._layout, rewritten or {})
        before = RandomStreams.now()
        recorder.arguments(call.names)
        with recorder.attached():
            self._outputs = flattened(self.model(*call.args, **call.kwargs))
            recorder.results(self._outputs)
        drew = RandomStreams.now().drew_since(before)
        return Ran(tuple(self._entries), dict(recorder.aliases), tuple(recorder.names), drew)

    def operations(self, path: str) -> Ran:
        """Run the program forward, and trace what each operation in the forward of one module computes."""
        self.forget()
        call = self._call
        traced = self._operations = Operations(path, self._modules, self._root, self._take, self._layout)
        with traced.recorded():
            if not path:
                traced.arguments(list(call.names.values()))
            self._outputs = flattened(self.model(*call.args, **call.kwargs))
        return Ran(tuple(self._entries), {}, operations=tuple(traced.called))

    def gradients_of_operations(self) -> Ran:
        """Run backward as this pass has had it, and trace what the backward of each of them gives as well."""
        assert self._operations is not None
        self._run_backward(self.cotangents[self._passes])
        self._operations.forget()
        return Ran(tuple(self._entries), {}, operations=tuple(self._operations.called))

    def _run_backward(self, cotangents: Mapping[int, torch.Tensor]) -> None:
        pairs = [(self._outputs[index], value) for index, value in cotangents.items()]
        if pairs:
            # In this thread on every device: ranks that are threads would wait for one another in that of their device.
            with torch.autograd.set_multithreading_enabled(False):
                outputs = [output for output, _ in pairs]
                torch.autograd.backward(outputs, [_like(output, value) for output, value in pairs])
        self._outputs = []
        self._passes += 1

    def backward(self, cotangents: Mapping[int, torch.Tensor]) -> Ran:
        """Run backward from the outputs, with this rank's parts of their cotangents."""
        recorder = self._recorder
        assert recorder is not None
        first = len(self._entries)
        self.cotangents[self._passes] = dict(cotangents)
        recorder.in_backward = True
        before = RandomStreams.now()
        with recorder.attached():
            self._run_backward(cotangents)
        drew = RandomStreams.now().drew_since(before)
        gradients = [(f"grad.{name}", t.grad, name) for name, t in self.tensors.items() if t.grad is not None]
        gradients += [(f"{MAIN}grad.{name}", gradient, name) for name, gradient in self._kept_main_gradients()]
        for name, gradient, owner in gradients:
            self._take(*self._traced(name, Kind.GRADIENT, gradient, owner, order=10**9))
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, nn.Parameter):
                self._take(*self._traced(f"mutation.{name}", Kind.BUFFER, tensor, name))
        return Ran(tuple(self._entries[first:]), dict(recorder.aliases), tuple(recorder.names), drew)

    def step(self) -> Ran:
        """Clip, then one step of the optimizer; afterwards parameters and the optimizer's state are traced."""
        optimizer = self._made_optimizer()
        self._clip()
        first = len(self._entries)
        for name, tensor in self.tensors.items() if self._training.traces_clipped else ():
            if tensor.grad is not None:
                self._take(*self._traced(f"clipped.{name}", Kind.CLIPPED, tensor.grad, name))
        optimizer.step()
        state = getattr(optimizer, "state", {})
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, nn.Parameter):
                continue
            self._take(*self._traced(f"parameter.{name}", Kind.PARAMETER, tensor, name))
            held = state.get(tensor, {}) if isinstance(state, dict) or hasattr(state, "get") else {}
            for key, value in held.items():
                if isinstance(value, torch.Tensor):
                    self._take(*self._traced(f"state.{name}.{key}", Kind.STATE, value, name))
        self.clear_gradients()
        return Ran(tuple(self._entries[first:]), {})

    def _trained(self) -> list[torch.Tensor]:
        return [t for t in self.tensors.values() if isinstance(t, nn.Parameter) and t.requires_grad]

    def _made_optimizer(self) -> torch.optim.Optimizer:
        assert self._training.optimizer is not None
        if self._optimizer is None:
            self._optimizer = self._training.optimizer(self._trained())
        if not callable(getattr(self._optimizer, "step", None)):
            what = f"it returned a value of type `{type(self._optimizer).__name__}`"
            raise UsageError("VC306", f"option `optimizer` must be a function that makes an optimizer: {what}.")
        return self._optimizer

    def _clip(self) -> None:
        if self._training.clip is not None:
            self._training.clip(self._trained())

    def value(self, name: str) -> torch.Tensor | None:
        """This rank's part of a traced tensor, by any of its names."""
        aliases = {} if self._recorder is None else self._recorder.aliases
        return self._values.get(name if name in self._values else aliases.get(name, ""))

    def drop(self) -> None:
        """Free the tensors that were traced; a run goes on."""
        self._values.clear()

    def forget(self) -> None:
        """Drop what was traced."""
        self._values.clear()
        self._entries = []
        self._outputs = []

    def abandon(self) -> None:
        """Leave nothing on the program, which waits for another rank and does not end."""
        for held in (self._recorder, self._operations):
            if held is not None:
                held.detach()

    def places(self) -> tuple[dict[str, SourceLocation], dict[Kind, SourceLocation]]:
        """Module -> the line that calls it; and the user's own code that clips, and that steps."""
        step = definition(type(self._optimizer).step, "") if self._optimizer is not None else None
        own = {Kind.CLIPPED: definition(self._training.clip, ""), Kind.PARAMETER: step, Kind.STATE: step}
        calls = {} if self._recorder is None else dict(self._recorder.places)
        return calls, {kind: place for kind, place in own.items() if place is not None}


def _like(output: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The cotangent in the output's own dtype and, of a DTensor, under its placements."""
    value = value.to(output.device, output.dtype)
    return like_dtensor(output, value) if isinstance(output, DTensor) else value.reshape(output.shape)
