"""Collectives of ``torch.distributed`` whose results arrive where the program waits for them, and not before.

For ranks that are threads, which communicate at once: a wait that is forgotten would be seen by no run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup, Work
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from verifycompile.torch_interface.rank_threads.unwaited import COLLECTIVES

_MESSAGES = frozenset({"recv", "recv_anysource", "send"})
"""What arrives of itself where it is waited for, and what brings nothing."""


class _Late(Work):
    """Until it is waited for, floating-point results are NaN, and others what they were."""

    def __init__(self, work: Work, results: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        super().__init__()
        self._work = work
        with _untraced():
            self._values = [(result, result.clone()) for result in results]
            kept = [(source, source.clone()) for source in sources]
            for result in results:
                if result.is_floating_point() or result.is_complex():
                    _write([(result, torch.full_like(result, float("nan")))])
            _write(kept)  # a part of what is gathered may be in its place already

    def wait(self, *arguments: Any, **named: Any) -> bool:
        self._arrive()
        return self._work.wait(*arguments, **named)

    def get_future(self) -> Any:
        self._arrive()
        return self._work.get_future()

    def is_completed(self) -> bool:
        self._arrive()
        return self._work.is_completed()

    def _arrive(self) -> None:
        with _untraced():
            _write(self._values)
        self._values = []


def _launching(original: Callable[..., Any]) -> Callable[..., Any]:
    def launch(group: Any, *arguments: Any, **named: Any) -> Any:
        work = original(group, *arguments, **named)
        first, *rest = (*arguments, *named.values())
        return None if work is None else _Late(work, _tensors(first), _tensors(rest))

    return launch


def late(methods: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """For ``replaced``: the methods of process groups, or those of ``methods`` in their place, with late results."""
    for name in COLLECTIVES:
        if name in vars(ProcessGroup) and name not in _MESSAGES:
            yield ProcessGroup, name, _launching(methods.get(name) or vars(ProcessGroup)[name])


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _write(values: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """The writes are none of the program's: autograd does not count them."""
    for tensor, value in values:
        with torch.autograd._unsafe_preserve_version_counter(tensor):
            tensor.copy_(value)


@contextlib.contextmanager
def _untraced() -> Generator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield
