"""The single-device spec: given by the user, or recovered from the parallel program's own Python frame."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from verifycompile.capture.boundary import (
    Export,
    boundary_blockers,
    export,
    output_names,
    passed_through_outputs,
    role_of,
    tangent_name,
)
from verifycompile.capture.gradient_hooks import apply_hooks, hooks_of, local_hooks
from verifycompile.capture.implementation import EXPORT
from verifycompile.capture.names import (
    clean_module_name,
    tensors_of_modules,
)
from verifycompile.capture.numbers.held_numbers import OF_SPEC, held_numbers
from verifycompile.capture.option_names import listed
from verifycompile.capture.single_device.buffers import differing_buffers, differing_memory
from verifycompile.capture.single_device.compare import check_against, differing_flags, unify_symbols
from verifycompile.capture.single_device.correspondence import correspond
from verifycompile.capture.single_device.given_call import frame_of_given
from verifycompile.capture.single_device.recovered import STILL_PARALLEL, Captured, recovered
from verifycompile.capture.single_device.unread import doubting_unread
from verifycompile.capture.single_device.whole_tensors import WholeTensors
from verifycompile.capture.sizes import remaining_guards
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.torch_interface.dtensor.globalize import Globalizer
from verifycompile.torch_interface.dynamo.aot import Origin
from verifycompile.torch_interface.dynamo.changing_numbers import (
    inputs_read_as_numbers,
    last_name,
    tracing_numbers_as_inputs,
)
from verifycompile.torch_interface.dynamo.frames import (
    GraphBreakError,
    TracedFrame,
    trace_frame,
)
from verifycompile.torch_interface.dynamo.handed_over import handed_over
from verifycompile.torch_interface.guards.argument_guards import arguments_read
from verifycompile.torch_interface.operators.shapes import shape_of, symbol_of, trace_guards
from verifycompile.torch_interface.ranks.parallelism import has_parallelism
from verifycompile.torch_interface.ranks.rank_values import has_rank_operators

READ = "verifycompile.read"
"""Key of ``graph.meta`` of a spec that was given: what it reads of the arguments of a call."""


def with_unwritten(spec: Program, implementation: Program) -> Program:
    """The implementation, which leaves as they are those of its inputs that the spec alone writes to."""
    outputs = {output.name for output in implementation.outputs}
    inputs = {f"mutation.{item.name}": item for item in implementation.inputs if item.placements is not None}
    unwritten = [
        ProgramOutput(item.node, OutputKind.MUTATION, name, -1, item.placements, "the input's placements")
        for name, item in inputs.items()
        if name not in outputs
        and any(output.name == name and output.kind is OutputKind.MUTATION for output in spec.outputs)
    ]
    return dataclasses.replace(implementation, outputs=(*implementation.outputs, *unwritten))


def recover_spec(options: Options, implementation: Program) -> Program:
    """The spec of ``implementation``, traced at global shapes. Call it right after ``capture_implementation``.

    Its inputs are named as the implementation's, its sizes are expressions of the implementation's symbols.
    Raises ``UsageError``: VC303 where shapes differ, VC304 where the sets of parameters differ, VC305 for a graph
    break, VC307 where the spec cannot be recovered, VC308 for a plain parameter of local shape without placement.
    """
    start = time.perf_counter()
    exported: Export = implementation.graph.meta.pop(EXPORT)
    with tracing_numbers_as_inputs(_numbers_read(implementation)):
        captured = (
            _given(exported, implementation, options)
            if options.spec is not None
            else recovered(exported, implementation, options)
        )
    if has_rank_operators(captured.exported.joint.graph):
        raise UsageError("VC307", STILL_PARALLEL)
    mesh = implementation.mesh
    matched = correspond(captured.exported, exported, () if mesh is None else mesh.shape)
    captured = dataclasses.replace(captured, exported=matched.spec)
    hooks = hooks_of(captured.exported) if options.spec is not None else local_hooks(hooks_of(exported))
    hooked = apply_hooks(captured.exported, hooks)
    program = _program(dataclasses.replace(captured, exported=hooked.exported))
    program = dataclasses.replace(
        program,
        # Ranks that run different programs, as stages do, need not return the same.
        blockers=(*program.blockers, *hooked.blockers, *(() if implementation.ranks else matched.blockers)),
        assumptions=(*program.assumptions, *hooked.assumptions, *matched.assumptions),
    )
    held = tensors_of_modules(exported.traced.frame.locals.values())
    unread = [options.param_names.get(name, name) for name in held]
    check_against(program, implementation, captured.exported.passed_through, exported.passed_through, unread)
    program = unify_symbols(program, implementation)
    if options.spec is None:
        program = doubting_unread(program, implementation)
    else:
        buffers, unknown = differing_buffers(program, captured.exported, implementation, exported, captured.empty)
        flags, memory = differing_flags(program, implementation), differing_memory(captured.exported, exported)
        program = dataclasses.replace(
            program,
            blockers=(*program.blockers, *flags, *memory, *buffers),
            assumptions=(*program.assumptions, *unknown),
        )
    of_spec = held_numbers(captured.exported, captured.exported)
    program.graph.meta[READ] = captured.read
    program.graph.meta[OF_SPEC] = {name: numbers for name, (_, numbers) in of_spec.items()}
    return dataclasses.replace(program, seconds=time.perf_counter() - start)


def _numbers_read(implementation: Program) -> set[str]:
    """What the attributes and variables are called that hold a number which changes between calls."""
    nodes = inputs_read_as_numbers(implementation.graph)
    return {
        last_name(item.name)
        for item in implementation.inputs
        if item.node in nodes or symbol_of(item.node.meta.get("val")) is not None
    }


BROKEN = (
    "a graph break ends this graph{}, and the option `spec` says what the whole program computes: what follows the "
    "break could not be compared. Take what stands there out of what is compiled (`fullgraph=True` says more), or "
    "leave the option out."
)


def _given(exported: Export, implementation: Program, options: Options) -> Captured:
    assert options.spec is not None
    if exported.traced.is_broken:
        raise UsageError("VC305", BROKEN.format(f" at {place}" if (place := handed_over().place) else ""))
    _check_single_device(options.spec)
    _check_names(options.spec, options.param_names)
    tensors = WholeTensors(exported, implementation, options)
    globalizer = Globalizer(tensors)
    # A method, a partial or an object of the parallelized model holds its parameters as well.
    globalizer(options.spec)
    own = {id(whole) for tensor, whole in globalizer.tensors() if isinstance(tensor, DTensor)}
    frame, enter = frame_of_given(exported, options.spec, globalizer)

    def capture(traced: TracedFrame) -> Captured:
        if has_parallelism(traced.graph, traced.example_inputs) or not own.isdisjoint(map(id, traced.example_inputs)):
            raise UsageError(
                "VC307", "the option `spec` is no single-device program: it holds DTensors or collectives."
            )
        return Captured(
            export(traced, tensors.names),
            trace_guards(traced.context),
            tuple(dict.fromkeys(globalizer.assumptions)),
            empty=tuple(tensors.empty),
            read=arguments_read(traced, enter),
        )

    try:
        return trace_frame(frame, capture)
    except GraphBreakError as broken:
        if broken.is_graph_break:
            raise UsageError("VC305", f"the spec does not trace to one graph.\n{broken}") from broken
        raise UsageError("VC303", f"the spec does not run on the model's whole inputs.\n{broken}") from broken


def _check_single_device(spec: Callable[..., Any]) -> None:
    """A parallelized model would be traced with its own numbers, which are what is to be checked."""
    if not isinstance(spec, nn.Module):
        return
    for name, tensor in itertools.chain(spec.named_parameters(), spec.named_buffers()):
        if isinstance(tensor, DTensor):
            text = f"the option `spec` is no single-device program: its tensor `{name}` is a DTensor."
            raise UsageError("VC307", text)
    if any(isinstance(module, DistributedDataParallel) for module in spec.modules()):
        text = "it is wrapped in `DistributedDataParallel`: pass the module that was wrapped, `spec.module`."
        raise UsageError("VC307", f"the option `spec` is no single-device program: {text}")


def _check_names(spec: Callable[..., Any], names: Mapping[str, str]) -> None:
    """Raises ``UsageError`` VC304 for names of the model that mean no tensor of the spec, or both the same."""
    module = spec if isinstance(spec, nn.Module) else nn.Module()
    held = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    known = {clean_module_name(name.split(".")) for name, _ in itertools.chain(*held)}
    means: dict[str, str] = {}
    for own, named in names.items():
        if known and named not in known:
            have = f"which the spec does not have; its tensors are {listed(sorted(known))}"
            raise UsageError("VC304", f"option `param_names` maps `{own}` to `{named}`, {have}.")
        other = means.setdefault(named, own)
        if other != own:
            raise UsageError("VC304", f"option `param_names` maps `{other}` and `{own}` both to `{named}`.")


def _program(captured: Captured) -> Program:
    exported = captured.exported
    inputs: list[ProgramInput] = []
    for flat in exported.joint.inputs:
        assert flat.node is not None
        role = role_of(exported, flat)
        value = flat.node.meta.get("val")
        if role is Role.TANGENT:
            name = tangent_name(exported, flat)
        else:
            name = exported.names[flat.index].name if flat.origin is Origin.ARGUMENT else flat.text
        if not isinstance(value, torch.Tensor):
            role = Role.SIZE if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else Role.OPAQUE
            inputs.append(ProgramInput(flat.node, role, name))
            continue
        example = exported.traced.example_inputs[flat.index] if flat.origin is Origin.ARGUMENT else None
        requires_grad = isinstance(example, torch.Tensor) and example.requires_grad and role is not Role.TANGENT
        inputs.append(ProgramInput(flat.node, role, name, None, shape_of(value), requires_grad))
    outputs = [
        ProgramOutput(flat.node, kind, name, position, requires_grad=flat.requires_grad)
        for position, flat in enumerate(exported.joint.outputs)
        for kind, name in output_names(exported, flat)
        if flat.node is not None
    ]
    return Program(
        graph=exported.joint.graph,
        inputs=tuple(inputs),
        outputs=(*outputs, *passed_through_outputs(exported)),
        guards=remaining_guards(captured.guards, {}),
        blockers=(*captured.blockers, *boundary_blockers(exported)),
        assumptions=captured.assumptions,
        provenance=captured.provenance,
        doubt=captured.doubt,
    )
