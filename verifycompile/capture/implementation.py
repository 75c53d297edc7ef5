"""The parallel program: the graph that one rank compiles, with the layout of everything that enters and leaves it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Partial

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.asynchronous import resolve_marks, split_coalesced, unwaited, wait_before_each_read
from verifycompile.capture.boundary import Export, boundary_blockers, export
from verifycompile.capture.data_parallel.outer import (
    cast_assumptions,
    mean_axes,
    outer_assumptions,
    outer_gradients,
    sample_axes,
    sent_by,
)
from verifycompile.capture.data_parallel.samples import SAMPLE_INPUTS, Samples
from verifycompile.capture.gradient_hooks import Hooked, Outside, apply_hooks, hooks_of
from verifycompile.capture.held_tensors import Contents, contents_of, differing_contents
from verifycompile.capture.meshes import Root, check_named_mesh, resolve_coordinates, resolve_groups, root_mesh
from verifycompile.capture.numbers.held_numbers import assumption, held_numbers, write_numbers_out
from verifycompile.capture.placed import PlacedBoundary, by_pattern
from verifycompile.capture.ranks.all_ranks import ForAllRanks, as_each_rank, for_all_ranks
from verifycompile.capture.ranks.as_ranks import Built, WithSameObjects, frame_with_model
from verifycompile.capture.ranks.one_rank import (
    axes_spoken_of,
    constants_returned,
    graphs_before,
    held_tensors,
    identity_of,
    names_of_dtensors,
    passed_numbers,
    python_numbers,
)
from verifycompile.capture.single_device.correspondence import named_by_place
from verifycompile.capture.sizes import remaining_guards, solve_divisibility, uneven_blockers
from verifycompile.captured_notes import OwnCapture
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Blocker, Mesh, OutputKind, Program, ProgramOutput
from verifycompile.question import Provenance
from verifycompile.torch_interface.data_parallel.outer import Outer, outer_of
from verifycompile.torch_interface.dtensor.tensors import layouts_forgotten
from verifycompile.torch_interface.dynamo.frames import Frame, TracedFrame, trace_frame, traced_frame_under_compilation
from verifycompile.torch_interface.dynamo.gradient_stops import Stop, gradients_pass, stops_of
from verifycompile.torch_interface.dynamo.handed_over import handed_over
from verifycompile.torch_interface.operators.shapes import trace_guards
from verifycompile.torch_interface.ranks.acting_rank import is_pretended
from verifycompile.torch_interface.ranks.mesh import (
    RootMesh,
    describe_mesh,
    line_through,
    own_rank,
    root_of,
)
from verifycompile.torch_interface.ranks.observation import (
    Read,
    ReadKind,
    listed_reads,
    observes_whole_job,
    reads,
    reads_of_trace,
)
from verifycompile.torch_interface.source_lines.number_lines import ran_beside
from verifycompile.torch_interface.source_lines.whose_code import is_of_torch
from verifycompile.torch_interface.training_step.returned_values import shown_place

EXPORT = "verifycompile.export"
"""Key of ``GraphModule.meta`` under which a captured implementation keeps its ``Export`` for ``recover_spec``."""
MESH = "verifycompile.mesh"
SAMPLES = "verifycompile.samples"
STOPS = "verifycompile.stops"
"""Key for the lines that stop gradients, each with what captures the implementation as if it did not."""


def capture_implementation(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options, whole: frozenset[str] = frozenset()
) -> Program:
    """The parallel program behind a Dynamo graph. Call it inside a Dynamo backend; ``graph`` stays usable.

    ``whole``: inputs of a data-parallel program that are the same on all ranks, though nobody said so.
    Raises ``UsageError``: VC301 without a device mesh, VC302 with several, VC303 for placements that do not fit,
    VC306 for names that do not exist.
    """
    return capture_traced(traced_frame_under_compilation(graph, example_inputs), options, whole=whole)


@dataclasses.dataclass(frozen=True)
class Results:
    """``names``: of the outputs that are the results of a Dynamo graph, in order. ``mesh``: that of the program.

    ``samples``: axes whose ranks hold samples of their own under data-parallel wrappers.
    """

    names: tuple[str, ...]
    mesh: DeviceMesh | None
    samples: frozenset[int]


def results_of(implementation: Program) -> Results:
    """The results of a program that was captured here, before its spec is recovered."""
    exported: Export = implementation.graph.meta[EXPORT]
    meta = implementation.graph.meta
    return Results(tuple(names[0] for names in exported.results), meta[MESH], meta[SAMPLES])


def capture_traced(
    traced: TracedFrame,
    options: Options,
    whole: frozenset[str] = frozenset(),
    *,
    remake: Callable[[Callable[..., Any]], Frame] | None = None,
) -> Program:
    """``capture_implementation`` for a frame that was traced here.

    ``whole``: inputs that are the same on all ranks, under a data-parallel wrapper.
    ``remake``: the same call of a model that option ``build`` made.
    """
    start = time.perf_counter()
    outer = _outer(traced, whole)
    around = tuple({id(contract.mesh): contract.mesh for contract in outer.contracts}.values())
    with listed_reads() as asked:
        hooked, is_general = _hooked_somehow(traced, options)
    traced_reads = _of_the_rank((*reads_of_trace(traced.context, ReadKind.RANK), *asked))
    graph = hooked.exported.joint.graph
    check_named_mesh(traced, options, outer.meshes)
    root = root_mesh(traced, graph, options, around)
    others = _as_ranks(traced, options, remake)
    if is_general:
        everywhere = for_all_ranks(
            hooked.exported,
            root,
            traced_reads,
            others,
            lambda other: _hooked(other, options).exported,
            is_placed=lambda name: by_pattern(options.param_placements, name) is not None,
        )
    else:
        everywhere = ForAllRanks(root, (Blocker(None, "VC204", _OWN_SIZES),))
    found = everywhere.root
    program = _program(traced, hooked, found, options, outer)
    graph.meta[EXPORT] = hooked.exported
    graph.meta[MESH] = found.mesh.mesh

    def of_rank(other: TracedFrame) -> Program:
        own = _hooked(other, options, for_all_ranks=False)
        return _program(other, own, found, options, _outer(other, whole), even=False)

    def each_rank() -> tuple[Program, ...]:
        contents: list[Contents] = []

        def with_contents(other: TracedFrame) -> Program:
            own = _hooked(other, options, for_all_ranks=False)
            numbers = held_numbers(own.exported, own.exported)
            write_numbers_out(own.exported.joint.graph, numbers, everywhere.written_out)
            if isinstance(others, Built):
                contents.append(contents_of(own.exported, hooked.exported))
            own = dataclasses.replace(own, exported=named_by_place(own.exported, hooked.exported))
            return _program(other, own, found, options, _outer(other, whole), even=False)

        programs = as_each_rank(found, traced_reads, others, with_contents)
        return _with_contents_compared(programs, contents, found.mesh.description, everywhere.written_out)

    def alone() -> Program:
        with layouts_forgotten():
            return trace_frame(traced.frame, of_rank)

    def passed(stop: Stop) -> Program:
        with layouts_forgotten(), gradients_pass(stop):
            return trace_frame(traced.frame, lambda other: capture_traced(other, options, whole, remake=remake))

    if stops := stops_of(traced.graph.graph):
        graph.meta[STOPS] = {stop: functools.partial(passed, stop) for stop in stops}
    before = others.given_before if isinstance(others, Built) else ()
    general = _assumed_of_answers(before, others) if isinstance(others, Built) else _of_one_object(found.mesh)

    told = tuple(assumption(name) for name in everywhere.written_out)
    differ = bool(everywhere.blockers) or any(blocker.code == "VC204" for blocker in program.blockers)
    ranks = each_rank() if differ else ()
    open_inputs = [item for item in program.inputs if item.name not in everywhere.written_out]
    differing = () if ranks else differing_contents(everywhere.contents, open_inputs, found.mesh.description)
    return dataclasses.replace(
        program,
        blockers=(*program.blockers, *everywhere.blockers, *differing),
        assumptions=(*general, *told, *_rearranged(hooked.exported), *everywhere.assumptions, *program.assumptions),
        own=OwnCapture(
            frame=identity_of(traced.frame),
            axes=axes_spoken_of(traced, program, found, options, around),
            held=held_tensors(traced, hooked.exported.names, outer),
            passed=passed_numbers(traced, hooked.exported.names),
            numbers=python_numbers(traced.graph, traced.example_inputs, traced.frame, options.in_placements or ()),
            returned=graphs_before(traced, hooked.exported.names),
            dtensors=names_of_dtensors(traced, hooked.exported.names),
            unless_compared=(*general, *everywhere.assumptions, *resolve_groups(graph, found.mesh).assumptions),
            places={shown_place(place): name for place, name in hooked.exported.places.items()},
            constants=constants_returned(hooked.exported.traced),
            wrappers=sent_by(hooked.exported, found.mesh, outer),
            alone=alone,
            broken_at=handed_over().place if traced.is_broken else "",
            contents=everywhere.contents,
        ),
        seconds=time.perf_counter() - start,
        ranks=ranks,
        each_rank=each_rank if program.coordinates and not differ else None,
        provenance=Provenance.OBSERVED if isinstance(others, Built) else Provenance.ASSUMED,
        asked=tuple(read for read in before if read.holder)
        if isinstance(others, Built)
        else tuple(read for read in traced_reads if not is_of_torch(read.file) and _leaves_open(read)),
    )


def _leaves_open(read: Read) -> bool:
    """Whether a question of traced code leaves open what the other ranks compute.

    A rank is a coordinate in the graph. What code outside of the trace may have made of it is known where nothing was
    missed since the job began; what a variable of the environment holds elsewhere is not.
    """
    return read.is_of_this_process or not observes_whole_job()


def _outer(traced: TracedFrame, whole: frozenset[str]) -> Outer:
    """The data-parallel wrappers of a program, those that are there and those that were taken off."""
    outer = outer_of(traced.example_inputs).joined(traced.frame.wrappers)
    return dataclasses.replace(outer, whole=whole)


def _of_the_rank(reads: Iterable[Read]) -> tuple[Read, ...]:
    """The questions about the rank that the traced code asked, each place once."""
    asked = (read for read in reads if read.kind is ReadKind.RANK and read.traced)
    return tuple({(read.reader, read.file, read.line): read for read in asked}.values())


def _as_ranks(
    traced: TracedFrame, options: Options, remake: Callable[[Callable[..., Any]], Frame] | None
) -> WithSameObjects | Built:
    if options.build is None or not is_pretended():
        return WithSameObjects(traced.frame)
    return Built(options.build, remake or (lambda model: frame_with_model(traced.frame, model)))


def _with_contents_compared(
    programs: tuple[Program, ...], contents: Sequence[Contents], mesh: Mesh, written_out: Sequence[str]
) -> tuple[Program, ...]:
    """What each rank runs, with a blocker where the ranks hold other values of what is replicated."""
    if not programs or len(contents) != len(programs):
        return programs
    order = sorted(mesh.ranks, key=lambda rank: rank == own_rank())
    inputs = {item.name: item for program in programs for item in program.inputs if item.name not in written_out}
    differing = differing_contents(dict(zip(order, contents, strict=True)), tuple(inputs.values()), mesh)
    first = dataclasses.replace(programs[0], blockers=(*programs[0].blockers, *differing))
    return (first, *programs[1:])


_OWN_SIZES = "torch traces the program for one rank alone: the sizes of its tensors differ by rank."


def _hooked_somehow(traced: TracedFrame, options: Options) -> tuple[Hooked, bool]:
    """The exported frame as that of all ranks, else as that of this one; and whether it is that of all."""
    try:
        return _hooked(traced, options), True
    except UsageError:
        # Where shards differ in size torch cannot trace for all ranks at once.
        with contextlib.suppress(UsageError), layouts_forgotten():
            return _hooked(traced, options, for_all_ranks=False), False
        raise


def _program(
    traced: TracedFrame,
    hooked: Hooked,
    root: Root,
    options: Options,
    outer: Outer,
    *,
    even: bool = True,
) -> Program:
    exported = hooked.exported
    graph, mesh = exported.joint.graph, root.mesh.description
    guards = trace_guards(traced.context)
    size_values = solve_divisibility(guards)
    gradients = outer_gradients(exported, root.mesh, outer)
    samples = Samples(exported, sample_axes(root.mesh, outer), mean_axes(root.mesh, outer), mesh, outer.whole)
    boundary = PlacedBoundary(exported, root, options, size_values, gradients, samples=samples, even=even)
    inputs = boundary.inputs()
    outputs = boundary.outputs(inputs)
    graph.meta[SAMPLES] = samples.axes
    graph.meta[SAMPLE_INPUTS] = samples.by_length()
    coordinates = resolve_coordinates(graph, mesh)
    groups = resolve_groups(graph, root.mesh)
    blockers: list[Blocker] = [
        *boundary_blockers(exported),
        *hooked.blockers,
        *boundary.blockers,
        *coordinates.blockers,
        *groups.blockers,
        *uneven_blockers(graph, {*coordinates.axes, *coordinates.size_values}),
    ]
    return Program(
        graph=graph,
        inputs=inputs,
        outputs=outputs,
        mesh=mesh,
        coordinates=coordinates.axes,
        groups=groups.axes,
        size_values={**size_values, **coordinates.size_values},
        guards=remaining_guards(guards, size_values),
        beside=ran_beside(traced.frame.locals.get("self"), traced.context),
        blockers=tuple(blockers),
        assumptions=(
            *root.assumptions,
            *outer_assumptions(gradients, root.mesh, _with_gradient(outputs)),
            *cast_assumptions(outer),
            *boundary.assumptions(),
            *groups.assumptions,
            *hooked.assumptions,
        ),
    )


def _with_gradient(outputs: Sequence[ProgramOutput]) -> frozenset[str]:
    """Names of the inputs whose gradients leave the program."""
    return frozenset(item.name.split(".", 1)[1] for item in outputs if item.kind is OutputKind.GRADIENT)


def _hooked(traced: TracedFrame, options: Options, *, for_all_ranks: bool = True) -> Hooked:
    """The exported frame, with the hooks that its parameters' gradients go through."""
    exported = _with_spec_names(export(traced, for_all_ranks=for_all_ranks), options)
    hooks = hooks_of(exported)
    hooked = apply_hooks(exported, hooks, _reduced_outside(hooks, options))
    graph = hooked.exported.joint.graph
    split_coalesced(graph)
    wait_before_each_read(graph)
    return dataclasses.replace(hooked, blockers=(*hooked.blockers, *resolve_marks(graph), *unwaited(graph)))


def _reduced_outside(names: Iterable[str], options: Options) -> Outside:
    """Where ``grad_placements`` says that a gradient leaves the program before its reduction, and over which ranks."""
    own_names = {spec_name: name for name, spec_name in options.param_names.items()}
    found: dict[str, frozenset[frozenset[int]] | None] = {}
    for name in names:
        placements = by_pattern(options.grad_placements, own_names.get(name, name)) or ()
        axes = [axis for axis, item in enumerate(placements) if isinstance(item, Partial)]
        if axes:
            found[name] = None if options.mesh is None else _groups_over(axes, describe_mesh(options.mesh))
    return found


def _groups_over(axes: Sequence[int], mesh: Mesh) -> frozenset[frozenset[int]]:
    """The ranks along every combination of some mesh axes, with this one."""
    some = (chosen for count in range(1, len(axes) + 1) for chosen in itertools.combinations(axes, count))
    return frozenset(frozenset(line_through(own_rank(), chosen, mesh)) for chosen in some)


def _assumed_of_answers(given: Sequence[Read], others: Built) -> tuple[str, ...]:
    """``given``: answers about the rank that were given before ``build`` was called."""
    texts: list[str] = []
    if unseen := ", ".join(str(read) for read in given if not read.holder):
        texts.append(f"what `build` makes holds no answer about the rank that was given before it was called: {unseen}")
    if any(asked for _, _, asked in others.calls):
        texts.append("a call of `build` makes its model of nothing that an earlier call left")
    return tuple(Assumption(text, AssumptionKind.RANKS) for text in texts)


def _of_one_object(root: RootMesh) -> tuple[str, ...]:
    ranks = len(root.description.ranks)
    if ranks == 1:
        return ()
    text = f"the model object is the one that rank {own_rank()} built, and stands for all {ranks} ranks"
    if root.mesh is not None and root_of(root.mesh) is not root.mesh:
        text = f"{text} of the part of the mesh that was named"
    installed = dict.fromkeys(str(read) for read in reads(ReadKind.RANK) if read.installed and not read.traced)
    asked = f"; installed packages asked for the rank: {', '.join(installed)}" if installed else ""
    return (Assumption(f"{text}{asked}", AssumptionKind.RANKS),)


def _rearranged(exported: Export) -> tuple[str, ...]:
    texts: list[str] = []
    if exported.joint.rearranged:
        texts.append(
            "torch's rearrangements around collectives equal the views and the exchange that it documents them as"
        )
    texts.extend(exported.joint.said)
    return tuple(Assumption(text, AssumptionKind.OPERATOR) for text in texts)


def _with_spec_names(exported: Export, options: Options) -> Export:
    if not options.param_names:
        return exported
    names = tuple(
        dataclasses.replace(name, name=options.param_names.get(name.name, name.name)) for name in exported.names
    )
    return dataclasses.replace(exported, names=names)
