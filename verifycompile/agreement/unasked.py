"""Whether all ranks captured the same of a frame of which nothing is asked: behind a graph break, or an optimizer's.

It takes whole values of a graph that was verified, or writes to parameters that ranks hold alike, and is no part of a
parallel program: where every rank computes the same with what it holds, that is what one device computes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.fx

from verifycompile.agreement.channel import Answer
from verifycompile.agreement.held_again import Held, HeldAlike, held_numbers, trained_alike
from verifycompile.agreement.together import content_digest, job_channel, waiting_time
from verifycompile.agreement.written import digest_of
from verifycompile.capture import identity_of
from verifycompile.capture.names import InputName, name_inputs
from verifycompile.capture.ranks.one_rank import (
    constants_returned,
    held_tensors,
    open_places,
    passed_numbers,
    places_of_results,
    python_numbers,
)
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.data_parallel.outer import Outer
from verifycompile.torch_interface.data_parallel.outer_ddp import ranks_of_ddp
from verifycompile.torch_interface.dynamo.effects import Effects, effects_of
from verifycompile.torch_interface.dynamo.frames import Frame, TracedFrame, traced_frame_under_compilation
from verifycompile.torch_interface.dynamo.graph_text import graph_text
from verifycompile.torch_interface.dynamo.returned import graph_that_returned, ranks_before
from verifycompile.torch_interface.dynamo.sources import source_of
from verifycompile.torch_interface.operators.contents import own_part
from verifycompile.torch_interface.operators.recorded_values import hints_of
from verifycompile.torch_interface.training_step.gradient_hooks import registered_hooks
from verifycompile.torch_interface.training_step.optimizers import steps_parts_of_parameters


@dataclasses.dataclass(frozen=True)
class Unasked:
    """The Dynamo graph under compilation, of which nothing is asked. Each of its properties is found out once."""

    traced: TracedFrame

    @classmethod
    def of(cls, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Unasked:
        return cls(traced_frame_under_compilation(graph, example_inputs))

    @functools.cached_property
    def names(self) -> tuple[InputName, ...]:
        sources = [source_of(node) for node in self.traced.graph.graph.find_nodes(op="placeholder")]
        return name_inputs(sources, self.traced.example_inputs, self.traced.frame)

    @functools.cached_property
    def effects(self) -> Effects:
        return effects_of(self.traced.graph)

    @functools.cached_property
    def held_alike(self) -> dict[int, tuple[int, ...]]:
        """The ranks that hold a parameter alike, by the identities of the parameter and of its gradient."""
        return {**trained_alike(), **ranks_of_ddp()}


@dataclasses.dataclass(frozen=True)
class Written:
    """What ``ranks`` hold alike, this one among them, and the graph under compilation writes to: a parameter, or its
    gradient, which is alike once it is reduced.
    """

    name: str
    ranks: tuple[int, ...]
    is_gradient: bool


def written_alike(unasked: Unasked) -> Written | None:
    """The first parameter of those that most ranks hold alike, or else the first gradient.

    Other tensors are compared when a verified graph takes them. None where each rank updates other parameters by right,
    which are sent to all ranks afterwards. A rank that reads parameters alone writes to none.
    """
    if steps_parts_of_parameters():
        return None
    values = unasked.traced.example_inputs
    leaves = [value for value in values if isinstance(value, torch.Tensor) and value.is_leaf]
    alike = unasked.held_alike if leaves else {}
    if not any(id(value) in alike for value in leaves):
        return None
    found = [
        Written(unasked.names[place].name, alike[id(values[place])], not values[place].requires_grad)
        for place in unasked.effects.written
        if isinstance(values[place], torch.Tensor) and id(values[place]) in alike
    ]
    return max(found, key=lambda item: (not item.is_gradient, len(item.ranks)), default=None)


def compared(
    unasked: Unasked,
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    ranks: Sequence[int],
    written: Written | None = None,
) -> HeldAlike | Answer:
    """Of the Dynamo graph under compilation, for the ``ranks`` of a job that run its frame together: what it holds.

    What they answered, where one does not, and where what a rank runs is something else or cannot be compared.
    ``written``: what it writes to is held alike, so that all tensors that it reads must be. Gradients, and what a
    compiled graph returned, are others at each call: only those of the first call are compared, and only where a
    parameter is written to, since gradients alone may wait for their reduction.
    """
    channel = job_channel()
    assert channel is not None
    traced, names = unasked.traced, unasked.names
    frame = f"{identity_of(traced.frame)}, of which nothing is asked"
    made_anew = set[int]() if written is None else _made_anew(unasked)
    held = held_tensors(traced, names, Outer()) if written is None else _tensors(traced, names)
    if written is not None and written.is_gradient:
        held = {name: value for name, value in held.items() if id(value) not in made_anew}
    digest = _digest(unasked, held) or digest_of(["of rank", channel.rank])
    channel.begin(frame)
    answer = channel.answers(channel.publish(frame, ranks, digest), digest, waiting_time())
    if not answer.agrees:
        return answer
    tensors = [
        Held(name.name, place, tuple(ranks))
        for place, (name, value) in enumerate(zip(names, example_inputs, strict=False))
        if name.name in held and id(value) not in made_anew
    ]
    numbers = held_numbers(open_places(graph, example_inputs, traced.frame), ranks)
    return HeldAlike(frame, traced.frame.function, channel, ranks, held=[*tensors, *numbers], values=example_inputs)


def _tensors(traced: TracedFrame, names: Sequence[InputName]) -> dict[str, torch.Tensor]:
    values = zip(names, traced.example_inputs, strict=True)
    return {name.name: own_part(value) for name, value in values if isinstance(value, torch.Tensor)}


def _made_anew(unasked: Unasked) -> set[int]:
    """The identities of gradients of what ranks hold alike, and of what compiled graphs returned."""
    tensors = [value for value in unasked.traced.example_inputs if isinstance(value, torch.Tensor)]
    gradients = {id(value) for value in tensors if id(value) in unasked.held_alike and not value.requires_grad}
    return gradients | {id(value) for value in tensors if graph_that_returned(value) or ranks_before([value])}


def said_before(unasked: Unasked) -> str:
    """A digest of the Dynamo graph under compilation, for the one that takes its results; "" where it has none."""
    return _digest(unasked, held_tensors(unasked.traced, unasked.names, Outer()))


def differing(
    frame: Frame, ranks: Sequence[int], answer: Answer, written: Written | None, *, only_warns: bool
) -> Report:
    """Of a frame whose ranks gave an ``answer`` that does not agree, and of which nothing else is asked.

    ``written``: what it writes to; None for a frame behind a graph break.
    """
    listed = ", ".join(map(str, ranks))
    absent = "; ".join(f"rank {rank}: {reason}" for rank, reason in answer.absent.items())
    differing, alone = (_DIFFERING, _ABSENT) if written is None else (_WRITING, _WRITING_ALONE)
    name = "" if written is None else written.name
    text = (alone if absent else differing).format(frame.function, listed, absent, name)
    finding = Finding(
        code="VC208",
        severity=Severity.WARNING if only_warns else Severity.ERROR,
        message=text,
        impl_location=SourceLocation(frame.code.co_filename, frame.code.co_firstlineno, function=frame.function),
    )
    return Report(verdict=Verdict.UNPROVED, findings=(finding,))


_DIFFERING = (
    "`{0}` takes what a graph before it returns, and the ranks {1} do not all run the same of it: give all ranks the "
    "same numbers, tensors, hooks and branches, or remove the graph break before it (`fullgraph=True` shows where)"
)


_ABSENT = (
    "`{0}` takes what a graph before it returns, and not all of the ranks {1} compile it ({2}): call it on all of "
    "them, or keep what one rank alone does, as logging, from being compiled (`torch.compiler.disable`)"
)


_WRITING = (
    "`{0}` writes to `{3}`, which the ranks {1} hold alike, and they do not all run the same of it: give all ranks the "
    "same numbers (as learning rates), tensors (as gradients, which are the same once they are reduced), hooks and "
    "branches"
)


_WRITING_ALONE = (
    "`{0}` writes to `{3}`, which the ranks {1} hold alike, and not all of them compile it ({2}): call it on all of "
    "them, with the same numbers"
)


def _digest(unasked: Unasked, held: Mapping[str, torch.Tensor]) -> str:
    """Of all that is said of the graph; "" where that does not say what it computes."""
    return digest_of(list(_said(unasked, held))) if _is_comparable(unasked.traced) else ""


def _said(unasked: Unasked, held: Mapping[str, torch.Tensor]) -> Iterator[Any]:
    """All of which the results, and the gradients, of a Dynamo graph are a function."""
    traced, names = unasked.traced, unasked.names
    yield torch.is_grad_enabled()
    compared = {**held, **passed_numbers(traced, names)}
    for name, value in zip(names, traced.example_inputs, strict=True):
        if isinstance(value, torch.Tensor):
            tensor = compared.get(name.name)
            content = None if tensor is None else content_digest(tensor)
            yield [name.name, str(value.dtype), value.requires_grad, content, graph_that_returned(value)]
    yield graph_text(traced.graph)
    yield content_digest(torch.get_rng_state()) if unasked.effects.draws else None
    yield list(constants_returned(traced).items())
    yield places_of_results(traced)
    yield list(hints_of(traced.example_inputs).values())
    yield list(python_numbers(traced.graph, traced.example_inputs, traced.frame).items())


def _is_comparable(traced: TracedFrame) -> bool:
    """Whether the text of the graph says what it computes: a hook, and a function of the user, may hold anything."""
    hooks = traced.hooks or any(map(_has_hooks, traced.example_inputs))
    return not hooks and all(map(_is_said_by_its_name, traced.graph.modules()))


def _has_hooks(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_leaf and bool(registered_hooks(value))


def _is_said_by_its_name(graph: torch.nn.Module) -> bool:
    if not isinstance(graph, torch.fx.GraphModule):
        return False
    for node in graph.graph.nodes:
        module: str = getattr(node.target, "__module__", "") or ""
        if node.op == "call_function" and module.partition(".")[0] not in _OF_PYTHON_AND_TORCH:
            return False
        if node.op == "get_attr" and not isinstance(attrgetter(str(node.target))(graph), torch.fx.GraphModule):
            return False
    return True


_OF_PYTHON_AND_TORCH = ("_operator", "builtins", "math", "torch")
