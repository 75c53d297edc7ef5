"""The ranks of a running job: every process is one, the first one leads, the others follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from verifycompile.comparison.phases import Ended, Phases
from verifycompile.comparison.ranks import READS, Failure, RankFailedError
from verifycompile.comparison.worker import Worker
from verifycompile.torch_interface.dynamo.eager_frames import uncompiled

_OWN = frozenset({*READS, "save", "restore", "begin", "parameters", "inputs", "take_inputs", "compile"})
"""Methods that call nothing of the program."""


class InTheJob:
    """What is asked and answered goes over a process group of its own, so that the program's collectives stay in order.

    ``phases``: how a rank runs the program so that it ends. Raises ``RankFailedError`` on all ranks where the model
    cannot be made on one.
    """

    def __init__(self, phases: Phases, model: Callable[[], Any], make: Callable[[Any], Worker]) -> None:
        self.ranks = tuple(range(dist.get_world_size()))
        self.how = "on the ranks of the running job"
        self.left_uncompiled = False
        self._own = dist.get_rank()
        self._phases = phases
        made = phases.run(lambda: make(model()))
        failed = phases.failed_anywhere(made)
        if failed is not None:
            raise RankFailedError(*failed)
        self._worker: Worker = made.value
        self._group: Any = dist.new_group(backend="gloo")

    @property
    def leads(self) -> bool:
        return self._own == 0

    @property
    def model(self) -> Any:
        """This rank's."""
        return self._worker.model

    def call(self, method: str, *common: Any, each: Mapping[int, tuple[Any, ...]] | None = None) -> dict[int, Any]:
        self._tell((method, common))
        own: list[Any] = [None]
        arguments = [() if each is None else each[rank] for rank in self.ranks]
        dist.scatter_object_list(own, arguments, src=0, group=self._group)
        return self._gathered(self._do(method, common, own[0]))

    def follow(self) -> Any:
        """Do what the first rank asks for, until it gives what all shall return."""
        while True:
            method, common = self._told()
            if method is None:
                return common
            own: list[Any] = [None]
            dist.scatter_object_list(own, None, src=0, group=self._group)
            self._gathered(self._do(method, common, own[0]))

    def dismiss(self, result: Any) -> None:
        """What the followers shall return."""
        self._tell((None, result))

    def close(self) -> None:
        dist.destroy_process_group(self._group)

    def _do(self, method: str, common: tuple[Any, ...], own: tuple[Any, ...]) -> Any:
        def phase() -> Any:
            return getattr(self._worker, method)(*common, *own)

        if method in _OWN:
            done = Ended.of(phase)
        elif self._worker.compiles:
            done = self._phases.run(phase)
        else:
            with uncompiled() as left:
                done = self._phases.run(phase)
            self.left_uncompiled |= left.any
        if done.failure is not None and done.failure.waited:
            self._worker.abandon()
        return done.value if done.failure is None else done.failure

    def _tell(self, message: Any) -> None:
        dist.broadcast_object_list([message], src=0, group=self._group)

    def _told(self) -> Any:
        received: list[Any] = [None]
        dist.broadcast_object_list(received, src=0, group=self._group)
        return received[0]

    def _gathered(self, value: Any) -> dict[int, Any]:
        received: list[Any] | None = [None] * len(self.ranks) if self.leads else None
        dist.gather_object(value, received, dst=0, group=self._group)
        failed = {rank: item for rank, item in enumerate(received or ()) if isinstance(item, Failure)}
        if failed:
            # What waits for another rank waits because of that one.
            rank = min(failed, key=lambda rank: (failed[rank].waited, rank))
            raise RankFailedError(rank, failed[rank])
        return dict(enumerate(received or ()))
