"""A whole training step as programs: what it is called with, reads and leaves behind, with placements."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.capture_error import CaptureError
from verifycompile.capture.graphs import (
    PlacedInput,
    Prepared,
    Relation,
    check_shapes,
    implementation_program,
    prepare,
    spec_program,
)
from verifycompile.capture.layouts import LayoutError, Placements, lift_placements, shard_degrees
from verifycompile.capture.placed import by_pattern
from verifycompile.capture.ranks.all_ranks import ALL_UP_TO
from verifycompile.capture.ranks.captured_graphs import CapturedGraphs
from verifycompile.capture.ranks.process_groups import GroupTable
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Program
from verifycompile.question import Provenance
from verifycompile.torch_interface.data_parallel.data_parallel_step import WrapperError, data_parallel_contract
from verifycompile.torch_interface.dtensor.tensors import forget_layouts
from verifycompile.torch_interface.ranks.acting_rank import acting_alone, acting_as
from verifycompile.torch_interface.ranks.mesh import RootMesh, describe_mesh, has_world, root_of
from verifycompile.torch_interface.ranks.observation import rank_reads_ignored
from verifycompile.torch_interface.ranks.rank_values import COLLECTIVE_NAMESPACES, namespace
from verifycompile.torch_interface.source_lines.source import raising_line
from verifycompile.torch_interface.training_step.step_trace import Kept, StepError, TracedStep, trace_step


@dataclasses.dataclass(frozen=True)
class Step:
    """A step with the model and the optimizers that it uses. ``label``: what messages call it."""

    function: Callable[..., Any]
    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    label: str


class Arguments:
    """What one rank passes to the step. ``tensors``: those among them by name, dotted into containers.

    Raises ``UsageError`` VC306 where the step cannot be called so.
    """

    def __init__(self, step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            bound = inspect.signature(step).bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError("VC306", f"the step cannot be called with these arguments: {error}.") from error
        named = dict(bound.arguments)
        leaves, self._structure = tree_flatten_with_path((tuple(args), dict(kwargs)))
        self._leaves = [leaf for _, leaf in leaves]
        texts = {id(leaf): _dotted(keystr(path)) for path, leaf in tree_flatten_with_path(named)[0]}
        self._names = [texts[id(leaf)] if isinstance(leaf, torch.Tensor) else "" for leaf in self._leaves]
        self.tensors = {name: leaf for name, leaf in zip(self._names, self._leaves, strict=True) if name}

    def call(self, step: Callable[..., Any], tensors: Mapping[str, Any]) -> Any:
        """Calls ``step`` with other tensors."""
        others = [tensors.get(name, leaf) for name, leaf in zip(self._names, self._leaves, strict=True)]
        args, kwargs = tree_unflatten(others, self._structure)
        return step(*args, **kwargs)


def _dotted(path: str) -> str:
    return path.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "").lstrip(".")


def capture_step(step: Step, spec: Step, arguments: Arguments, options: Options) -> CapturedGraphs:
    """Raises ``UsageError`` where the question is incomplete and ``CaptureError`` where a step cannot be captured."""
    started = time.perf_counter()
    root = _root(step.model, arguments, options)
    ranks = root.description.ranks
    if len(ranks) > ALL_UP_TO:
        text = f"the step is captured as each rank, and the mesh has {len(ranks)} of them: at most {ALL_UP_TO}"
        raise CaptureError(text, None)
    layouts = _Layouts(step, arguments, options, root)
    whole = {name: layouts.whole(name, value) for name, value in arguments.tensors.items()}
    with acting_alone():
        traced_spec = _traced(spec, whole, arguments)
    table = GroupTable({}, len(ranks))
    prepared_spec = _prepared(traced_spec, table, spec.label)
    _refuse_collectives(traced_spec, spec.label)
    seconds = time.perf_counter() - started
    spec_of = dataclasses.replace(spec_program(prepared_spec), seconds=seconds, provenance=Provenance.GIVEN)

    programs: list[Program] = []
    even = True
    for rank in ranks:
        with acting_as(rank, root):
            forget_layouts()
            traced = _traced(step, arguments.tensors, arguments)
            prepared = _prepared(traced, table, f"{step.label} on rank {rank}")  # its groups are those of this rank
        placed = layouts.inputs(traced, traced_spec)
        even = check_shapes(prepared_spec, prepared, placed, root.description) and even
        outputs = layouts.outputs(traced)
        program = implementation_program(prepared, prepared_spec, placed, outputs, root.description)
        notes = (*layouts.assumptions, *traced.assumptions, *table.assumptions)
        programs.append(dataclasses.replace(program, mesh=root.description, assumptions=notes))
    forget_layouts()
    share = (time.perf_counter() - started - seconds) / len(ranks)
    programs = [dataclasses.replace(program, seconds=share) for program in programs]
    return CapturedGraphs(spec_of, tuple(programs), root.description, even)


def _traced(step: Step, tensors: Mapping[str, torch.Tensor], arguments: Arguments) -> TracedStep:
    try:
        with rank_reads_ignored():
            return trace_step(step.function, tensors, arguments.call, step.model, step.optimizers)
    except UsageError:
        raise
    except (StepError, WrapperError) as error:
        raise CaptureError(f"{step.label} cannot be captured: {error}", raising_line(error.__cause__)) from error
    except Exception as error:
        first = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {first[0] if first else ''}".rstrip(": ")
        raise CaptureError(f"{step.label} cannot be captured: {reason}", raising_line(error)) from error


def _prepared(traced: TracedStep, groups: GroupTable, label: str) -> Prepared:
    """The functional graph. What the step leaves behind are written inputs of it, not results."""
    prepared = prepare(traced.graph, None, groups, label)
    names = dict(zip(prepared.inputs, traced.inputs, strict=True))
    count = len(traced.results)
    after = {name: prepared.results.get(count + position) for position, name in enumerate(traced.kept)}
    written = {
        names[name]: node for name, node in prepared.functional.written.items() if names[name] in traced.arguments
    }
    written |= {name: node for name, node in after.items() if node is not None}
    functional = dataclasses.replace(
        prepared.functional, names=traced.inputs, written=written, places=prepared.functional.places[:count]
    )
    return dataclasses.replace(
        prepared,
        functional=functional,
        inputs={names[name]: node for name, node in prepared.inputs.items()},
        results={position: node for position, node in prepared.results.items() if position < count},
    )


def _refuse_collectives(traced: TracedStep, label: str) -> None:
    calls = [node for node in traced.graph.graph.nodes if namespace(node) in COLLECTIVE_NAMESPACES]
    if calls:
        raise UsageError("VC309", f"{label} communicates with `{calls[0].target}`: it must be the step of one device.")


def _root(model: nn.Module, arguments: Arguments, options: Options) -> RootMesh:
    held = (*model.parameters(), *model.buffers(), *arguments.tensors.values())
    parts = {id(value.device_mesh): value.device_mesh for value in held if isinstance(value, DTensor)}
    # `fully_shard` that is given no mesh makes one of all ranks at each call.
    meshes = {describe_mesh(root_of(mesh)): root_of(mesh) for mesh in parts.values()}
    if options.mesh is not None:
        return RootMesh(options.mesh, list(parts.values()))
    if len(meshes) > 1:
        raise UsageError("VC302", "the model's DTensors lie on several root meshes; name one with the option `mesh`.")
    if meshes:
        return RootMesh(next(iter(meshes.values())))
    if not has_world():
        raise UsageError("VC301", "no device mesh and no process group: initialise one, torch's fake one on a laptop.")
    return RootMesh(None)


class _Layouts:
    """Where everything that enters and leaves the step lies. ``assumptions``: the defaults that were taken."""

    def __init__(self, step: Step, arguments: Arguments, options: Options, root: RootMesh) -> None:
        self._root, self._options = root, options
        self._own_names = {spec: own for own, spec in options.param_names.items()}
        self._replicated: Placements = (Replicate(),) * root.ndim
        notes = [
            Assumption(
                "every rank begins the step with its part of the same parameters, buffers, gradients and optimizer "
                "state",
                AssumptionKind.VALUES,
            ),
            Assumption(
                "numbers that the step reads from Python objects (learning rates, counters) are those of this call",
                AssumptionKind.LATER,
            ),
        ]
        if step.optimizers:
            text = "optimizers compute with their step count as a tensor, as they do when they are compiled"
            notes.append(Assumption(text, AssumptionKind.OPERATOR))
        known = set(arguments.tensors)
        unknown = sorted(set(options.in_placements) - known)
        if unknown:
            raise UsageError("VC306", f"option `in_placements` names `{unknown[0]}`, which is no tensor of the step.")
        contract = data_parallel_contract(step.model)
        spans = None if contract is None else root.spans(contract.mesh)
        axes = [axis for dim in contract.dimensions for axis in spans[dim]] if contract and spans else []
        self._samples: Placements = tuple(Shard(0) if axis in axes else Replicate() for axis in range(root.ndim))
        defaults = [
            name
            for name, value in arguments.tensors.items()
            if not isinstance(value, DTensor) and name not in options.in_placements and value.ndim and axes
        ]
        if defaults:
            names = ", ".join(f"`{name}`" for name in defaults)
            over_axes = ", ".join(root.description.axes[axis].name for axis in axes)
            wrapper = "" if contract is None else f"`{contract.wrapper}`"
            text = f"under {wrapper} inputs are the ranks' own samples, Shard(0) over {over_axes}, by default: {names}"
            notes.append(Assumption(text, AssumptionKind.PLACEMENT, defaults))
        self._defaults = set(defaults)
        self.assumptions = tuple(notes)

    def whole(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The argument at the size that one device has."""
        if isinstance(value, DTensor):
            return value.to_local().new_empty(tuple(value.shape))
        placements, _ = self._argument(name)
        degrees = shard_degrees(placements, self._root.description, value.ndim)
        if all(degree == 1 for degree in degrees):
            return value
        shape = [size * degree for size, degree in zip(value.shape, degrees, strict=True)]
        return value.new_empty(shape)

    def inputs(self, traced: TracedStep, spec: TracedStep) -> dict[str, PlacedInput]:
        """Raises ``UsageError`` where the two steps do not keep the same things, or a placement is not known."""
        placed = {name: self._placed_argument(name, value) for name, value in traced.arguments.items()}
        renamed = {self._spec_name(name, item): name for name, item in traced.kept.items()}
        differing = sorted(set(renamed) ^ set(spec.kept))
        if differing:
            where = "the spec's step" if differing[0] in spec.kept else "the parallel step"
            text = f"only {where} keeps `{renamed.get(differing[0], differing[0])}`."
            raise UsageError("VC304", text)
        for spec_name, name in renamed.items():
            whole = spec.kept[spec_name].value
            placed[name] = PlacedInput(spec_name, self._placements(name, traced, whole))
        return placed

    def outputs(self, traced: TracedStep) -> dict[str, Relation]:
        """The layouts that are required of the results: those of DTensors, and those that the user gave."""
        found: dict[str, Relation] = {}
        for position, value in enumerate(traced.results):
            name = f"output.{position}"
            given = self._options.out_placements.get(name)
            if given is not None:
                found[name] = Relation(None, given)
            elif isinstance(value, DTensor):
                found[name] = Relation(None, self._of_dtensor(name, value))
        unknown = sorted(set(self._options.out_placements) - set(found))
        if unknown:
            raise UsageError("VC306", f"option `out_placements` names `{unknown[0]}`, which the step does not return.")
        return found

    def _spec_name(self, name: str, item: Kept) -> str:
        owner = self._options.param_names.get(item.owner, item.owner)
        return name.removesuffix(item.owner) + owner

    def _argument(self, name: str) -> tuple[Placements, bool]:
        given = self._options.in_placements.get(name)
        if given is not None:
            return given, False
        return (self._samples, False) if name in self._defaults else (self._replicated, True)

    def _placed_argument(self, name: str, value: torch.Tensor) -> PlacedInput:
        if isinstance(value, DTensor):
            return PlacedInput(name, self._of_dtensor(name, value))
        placements, is_assumed = self._argument(name)
        return PlacedInput(name, placements, is_assumed)

    def _placements(self, name: str, traced: TracedStep, whole: torch.Tensor) -> Placements:
        item = traced.kept[name]
        if isinstance(item.value, DTensor):
            return self._of_dtensor(name, item.value)
        owner = traced.kept[item.owner].value
        if isinstance(owner, DTensor):
            own, of_owner = tuple(owner.to_local().shape), self._of_dtensor(name, owner)
        else:
            own = tuple(owner.shape)
            given = by_pattern(self._options.param_placements, item.owner)
            of_owner = self._replicated if given is None else given
        if tuple(item.value.shape) == own and (own != () or item.owner == name):
            if of_owner == self._replicated and own != tuple(whole.shape):
                raise UsageError(
                    "VC308",
                    f"`{name}` has shape {list(own)}, the spec's has shape {list(whole.shape)}. Say how it is laid out "
                    "with `param_placements`.",
                )
            return of_owner
        if tuple(item.value.shape) == tuple(whole.shape):
            return self._replicated
        raise UsageError("VC308", f"`{name}` is neither of the shape of `{item.owner}` nor of the spec's `{name}`.")

    def _of_dtensor(self, name: str, value: DTensor) -> Placements:
        try:
            return lift_placements(name, value.placements, value.device_mesh, self._root, value.ndim)
        except LayoutError as error:
            raise UsageError(error.code, error.message) from error
