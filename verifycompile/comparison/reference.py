"""The spec's own runs: the reference, and the perturbed ones that tell how far rounding may move each tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch

from verifycompile.comparison.names import Call
from verifycompile.comparison.operations import Operation
from verifycompile.comparison.programs import seed_of
from verifycompile.comparison.store import Store
from verifycompile.comparison.threshold import distance, norm_of
from verifycompile.comparison.trace import Entry, Kind
from verifycompile.comparison.worker import Training, Worker
from verifycompile.torch_interface.rank_threads.perturbation import epsilon_of, perturbed, unperturbed
from verifycompile.torch_interface.rank_threads.random_streams import RandomStreams, seed_all
from verifycompile.torch_interface.ranks.acting_rank import acting_alone, nothing_communicated
from verifycompile.torch_interface.ranks.mesh import has_world

_NUMBERS = 16
"""On so many a tolerance rests before a difference is told: a scalar may move by next to nothing in two runs."""

Cotangents = dict[int, torch.Tensor]


def pass_name(step: int, name: str) -> str:
    """The name of a tensor in a pass of training; of the first one it is the tensor's own."""
    return f"pass{step}.{name}" if step else name


def pass_of(name: str) -> int:
    """The pass of training that a name speaks of."""
    head, found, _ = name.partition(".")
    number = head.removeprefix("pass")
    return int(number) if found and number != head and number.isdigit() else 0


class Reference:
    """The spec, run alone in this process. ``values``: name -> tensor of the reference run; ``entries``: kinds.

    ``within``: a module of which the operations of its forward are traced instead, and what their backward gives, in
    the last pass that has ``cotangents``.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        calls: Sequence[Call],
        training: Training,
        seed: int,
        *,
        within: str | None = None,
        cotangents: Sequence[Cotangents] = (),
    ) -> None:
        self.values = Store()
        self.entries: dict[str, Entry] = {}
        self.aliases: dict[str, str] = {}
        self.names: dict[str, int] = {}
        self.drew = False
        self.operations: tuple[Operation, ...] = ()
        self.cotangents: list[Cotangents] = list(cotangents)
        self._norms: dict[str, float] = {}
        self._decided: Mapping[str, float] | None = None
        self._is_saved = False
        self._seed = seed
        self._training = training
        self._step = 0
        self._within = within
        self._take: Callable[[str, Entry, torch.Tensor], None] = self._store
        self.calls = tuple(calls)
        self.worker = Worker(model, {}, None, self.calls, training=training, keep=self._keep)
        self.worker.cotangents = dict(enumerate(cotangents))

    def _keep(self, entry: Entry, part: torch.Tensor) -> None:
        self._take(pass_name(self._step, entry.name), entry, part)

    def _store(self, name: str, entry: Entry, part: torch.Tensor) -> None:
        self.entries[name] = entry
        self.values.keep(name, part)

    def run(self) -> None:
        """The reference run: the steps of training, or one forward and backward without an optimizer."""
        self._take = self._store
        with self._alone():
            self._run()

    def responses(self, epsilon: float, seeds: int) -> Mapping[str, float]:
        """How far each tensor moved at most in runs whose operators err by ``epsilon``."""
        largest: dict[str, float] = {}
        for number in range(seeds):
            with self._alone(), perturbed(epsilon, 1000 * self._seed + number) as mode:

                def measure(name: str, entry: Entry, part: torch.Tensor, mode: Any = mode) -> None:
                    if name in self.values and (entry.kind is not Kind.INPUT or entry.dtype.is_floating_point):
                        with unperturbed(mode):
                            largest[name] = max(largest.get(name, 0.0), distance(part, self.values[name]))

                self._take = measure
                with unperturbed(mode):
                    self._perturb_inputs(mode)
                self._run()
        self._take = self._store
        self._take_inputs(lambda tensor: tensor)
        return largest

    def thresholds(self, epsilons: tuple[float, float], seeds: int) -> dict[str, float]:
        """The sum of the responses at both machine epsilons: each program is off by its own rounding."""
        total: dict[str, float] = {}
        found = {epsilon: self.responses(epsilon, seeds) for epsilon in set(epsilons) if epsilon}
        for epsilon in epsilons:
            for name, response in found.get(epsilon, {}).items():
                total[name] = total.get(name, 0.0) + response
        for name, value in self.values.items():
            if value.is_floating_point():
                # The response to an error of the tensor itself, which the few numbers drawn for a scalar may miss.
                own = epsilon_of([value.dtype]) if value.dtype.itemsize > 1 else 0.0
                errors = sum(max(epsilon, own) for epsilon in epsilons)
                total[name] = max(total.get(name, 0.0), errors * self.norm(name, value))
        return total

    def decided(self, name: str, epsilons: tuple[float, float], seeds: int) -> Mapping[str, float]:
        """Thresholds of more runs, of all tensors of few numbers in ``seeds`` runs; none where ``name`` has more."""
        if self.values[name].numel() * seeds >= _NUMBERS:
            return {}
        if self._decided is None:
            few = {name for name, value in self.values.items() if value.numel() * seeds < _NUMBERS}
            found = self.thresholds(epsilons, _NUMBERS)
            self._decided = {name: threshold for name, threshold in found.items() if name in few}
        return self._decided

    def norm(self, name: str, value: torch.Tensor) -> float:
        """Of the tensor of that name, which is ``value``."""
        if name not in self._norms:
            self._norms[name] = norm_of(value)
        return self._norms[name]

    def within(self, path: str, step: int) -> Reference:
        """That of the operations in one module, in the pass of this number, which has run."""
        held = self.cotangents[: step + 1]
        made = Reference(self.worker.model, self.calls, self._training, self._seed, within=path, cotangents=held)
        made.run()
        return made

    def _perturb_inputs(self, mode: Any) -> None:
        """Errors of one epsilon in the inputs, as the paper has them."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point() or not tensor.numel():
                return tensor
            return tensor.detach() * mode.factors(tensor)

        self._take_inputs(moved)

    def _take_inputs(self, made: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Let every pass have what is ``made`` of its inputs."""
        for number, call in enumerate(self.calls):
            self.worker.turn(number)
            self.worker.take_inputs({name: made(tensor) for name, tensor in call.names.items()})
        self.worker.turn(0)

    def _run(self) -> None:
        if self._within is not None:
            self.worker.replay(len(self.cotangents) - 1)
            self.operations = self.worker.operations(self._within).operations
            self.worker.gradients_of_operations()
            return
        first = not self.cotangents
        for step in range(self._training.all_passes):
            self._step = step
            self.worker.turn(step)
            ran = self.worker.forward()
            if first:
                self.cotangents.append(self._cotangents())
                self.drew = self.drew or ran.drew
            back = self.worker.backward(self.cotangents[step])
            if first:
                self.aliases |= {pass_name(step, n): pass_name(step, to) for n, to in back.aliases.items()}
                for name in back.names:
                    self.names.setdefault(pass_name(step, name), len(self.names))
                self.drew = self.drew or back.drew
            if self._training.steps_after(step):
                self.worker.step()
        self._step = 0

    def _cotangents(self) -> Cotangents:
        """1 for a loss; else numbers that the output's name decides, for each output that has a gradient."""
        starts = self.worker.starts()
        shapes = {name: self.values[pass_name(self._step, name)].shape for name, _, _ in starts if self._known(name)}
        trained = [(i, name, dtype) for i, (name, has, dtype) in enumerate(starts) if has and name in shapes]
        if len(trained) == 1 and shapes[trained[0][1]].numel() == 1:
            index, name, dtype = trained[0]
            return {index: torch.ones(shapes[name], dtype=dtype)}
        found: Cotangents = {}
        for index, name, dtype in trained:
            generator = torch.Generator().manual_seed(seed_of(f"cotangent.{name}", self._seed))
            found[index] = torch.randn(shapes[name], generator=generator).to(dtype)
        return found

    def _known(self, name: str) -> bool:
        return pass_name(self._step, name) in self.values

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """As the only process, from the same random numbers, with the state put back at the end."""
        streams = RandomStreams.now()
        if not self._is_saved:
            self.worker.save()
            self._is_saved = True
        try:
            with acting_alone() if has_world() else contextlib.nullcontext():
                seed_all(self._seed)
                with nothing_communicated() if has_world() else contextlib.nullcontext():
                    yield
        finally:
            self.worker.restore()
            streams.install()
