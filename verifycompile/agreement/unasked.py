"""Whether all ranks captured the same of a frame of which nothing is asked: the rest of one, behind a graph break.

It takes whole values of a graph that was verified, and is no part of a parallel program: where every rank computes the
same with what it holds, that is what one device computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.fx

from verifycompile.agreement.channel import Answer
from verifycompile.agreement.held_again import Held, HeldAlike, held_numbers
from verifycompile.agreement.together import content_digest, job_channel, waiting_time
from verifycompile.agreement.written import digest_of
from verifycompile.capture import identity_of
from verifycompile.capture.names import InputName, name_inputs
from verifycompile.capture.ranks.one_rank import (
    constants_returned,
    held_tensors,
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
from verifycompile.torch_interface.dynamo.frames import Frame, TracedFrame, traced_frame_under_compilation
from verifycompile.torch_interface.dynamo.graph_text import graph_text
from verifycompile.torch_interface.dynamo.returned import graph_that_returned
from verifycompile.torch_interface.dynamo.sources import source_of
from verifycompile.torch_interface.operators.recorded_values import hints_of
from verifycompile.torch_interface.training_step.gradient_hooks import registered_hooks


def compared(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], ranks: Sequence[int]) -> HeldAlike | Answer:
    """Of the Dynamo graph under compilation, for the ``ranks`` of a job that run its frame together: what it holds.

    What they answered, where one does not, and where what a rank runs is something else or cannot be compared.
    """
    channel = job_channel()
    assert channel is not None
    traced = traced_frame_under_compilation(graph, example_inputs)
    frame = f"{identity_of(traced.frame)}, of which nothing is asked"
    names = _names(traced)
    held = held_tensors(traced, names, Outer())
    digest = _digest(traced, names, held) or digest_of(["of rank", channel.rank])
    channel.begin(frame)
    answer = channel.answers(channel.publish(frame, ranks, digest), digest, waiting_time())
    if not answer.agrees:
        return answer
    tensors = [
        Held(name.name, place, tuple(ranks), is_trained=value.requires_grad)
        for place, (name, value) in enumerate(zip(names, example_inputs, strict=True))
        if name.name in held
    ]
    numbers = held_numbers(python_numbers(graph, example_inputs, traced.frame), ranks)
    return HeldAlike(frame, traced.frame.function, channel, [*tensors, *numbers], example_inputs)


def said_before(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """A digest of the Dynamo graph under compilation, for the one that takes its results; "" where it has none."""
    if job_channel() is None:
        return ""
    traced = traced_frame_under_compilation(graph, example_inputs)
    names = _names(traced)
    return _digest(traced, names, held_tensors(traced, names, Outer()))


def differing(frame: Frame, ranks: Sequence[int], answer: Answer, *, only_warns: bool) -> Report:
    """Of a frame whose ranks gave an ``answer`` that does not agree, and of which nothing else is asked."""
    listed = ", ".join(map(str, ranks))
    absent = "; ".join(f"rank {rank}: {reason}" for rank, reason in answer.absent.items())
    text = _ABSENT.format(frame.function, listed, absent) if absent else _DIFFERING.format(frame.function, listed)
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


def _digest(traced: TracedFrame, names: Sequence[InputName], held: Mapping[str, torch.Tensor]) -> str:
    """Of all that is said of the graph; "" where that does not say what it computes."""
    return digest_of(list(_said(traced, names, held))) if _is_comparable(traced) else ""


def _said(traced: TracedFrame, names: Sequence[InputName], held: Mapping[str, torch.Tensor]) -> Iterator[Any]:
    """All of which the results, and the gradients, of a Dynamo graph are a function."""
    yield torch.is_grad_enabled()
    compared = {**held, **passed_numbers(traced, names)}
    for name, value in zip(names, traced.example_inputs, strict=True):
        if isinstance(value, torch.Tensor):
            tensor = compared.get(name.name)
            content = None if tensor is None else content_digest(tensor)
            yield [name.name, str(value.dtype), value.requires_grad, content, graph_that_returned(value)]
    yield graph_text(traced.graph)
    yield list(constants_returned(traced).items())
    yield places_of_results(traced)
    yield list(hints_of(traced.example_inputs).values())
    yield list(python_numbers(traced.graph, traced.example_inputs, traced.frame).items())


def _names(traced: TracedFrame) -> tuple[InputName, ...]:
    sources = [source_of(node) for node in traced.graph.graph.find_nodes(op="placeholder")]
    return name_inputs(sources, traced.example_inputs, traced.frame)


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
