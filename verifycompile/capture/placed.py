"""Layouts of an implementation's inputs and outputs: from DTensor metadata, from options, else by default."""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
from collections.abc import Mapping, Sequence

import sympy
import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Replicate

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export, output_names, passed_through_outputs, role_of, tangent_name
from verifycompile.capture.data_parallel.outer import OuterGradient
from verifycompile.capture.data_parallel.samples import Samples
from verifycompile.capture.from_local import layout_taken_from, layouts_of_from_local
from verifycompile.capture.layouts import (
    LayoutError,
    Placements,
    check_dimensions,
    check_even,
    check_kinds,
    global_shape,
    lift_placements,
    normalize,
)
from verifycompile.capture.meshes import Root
from verifycompile.capture.option_names import TENSOR_ROLES, OptionNames, check_axes, check_outputs
from verifycompile.capture.sizes import substitute
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Blocker, OutputKind, ProgramInput, ProgramOutput, Role, Size
from verifycompile.torch_interface.dtensor.changed_placements import of_booleans
from verifycompile.torch_interface.dynamo.aot import Flat, Layout, Origin, Part
from verifycompile.torch_interface.dynamo.returned import ReturnedLayout, is_argument_of_resumed, returned_layout
from verifycompile.torch_interface.operators.shapes import shape_of, size_of

_TENSOR_PARTS = (Part.WHOLE, Part.LOCAL)
_PLACED = AssumptionKind.PLACEMENT
_MADE_UP = "___stack"
"""With it begin Dynamo's names for values in the expression that a graph break cuts."""


_NOT_TRACED = (
    "that torch does not trace, as `distribute_tensor` is: what it computes could not be compared. Distribute the "
    "tensor outside of the compiled program, or write `DTensor.from_local(x, mesh, [Replicate()]).redistribute(...)`."
)


@dataclasses.dataclass(frozen=True)
class _Placed:
    placements: Placements | None
    shape: tuple[Size, ...]
    assumed: bool = False
    open_axes: frozenset[int] = frozenset()


class PlacedBoundary:
    """Builds ``ProgramInput`` and ``ProgramOutput`` values; what cannot be represented goes to ``blockers``.

    ``even``: shards of different sizes cannot be represented.
    """

    def __init__(
        self,
        exported: Export,
        root: Root,
        options: Options,
        size_values: Mapping[sympy.Symbol, sympy.Expr],
        outer: Mapping[str, OuterGradient],
        *,
        samples: Samples,
        even: bool = True,
    ) -> None:
        self.blockers: list[Blocker] = []
        self._exported = exported
        self._root = root.mesh
        self._refined = root.refined
        self._mesh = root.refined.mesh
        self._options = options
        self._size_values = size_values
        self._outer = outer
        self._samples = samples
        self._even = even
        self._own_names = {spec_name: name for name, spec_name in options.param_names.items()}
        self._fed_layouts = layouts_of_from_local(exported, root.mesh)
        self._between: dict[str, ReturnedLayout] = {}
        self._returned: list[str] = []
        self._made_between: list[str] = []
        self._unknown_here: tuple[str, ...] = ()
        self._dtensors = {
            exported.names[flat.index].name
            for flat in exported.joint.inputs
            if flat.origin is Origin.ARGUMENT and flat.layout is not None
        }

    def inputs(self) -> tuple[ProgramInput, ...]:
        """Every placeholder of the joint graph, in order. Raises ``UsageError`` VC303, VC305 and VC306."""
        inputs = tuple(self._input(flat) for flat in self._exported.joint.inputs)
        names = OptionNames(self._exported, inputs, self._own_names, self._options)
        names.check(self._refined)
        self._unknown_here = tuple(names.unknown_here)
        return inputs

    def outputs(self, inputs: Sequence[ProgramInput]) -> tuple[ProgramOutput, ...]:
        """Every tensor that the joint graph returns, in order, then outputs that are an input itself."""
        by_name = {item.name: item for item in inputs if item.role in TENSOR_ROLES}
        outputs: list[ProgramOutput] = []
        dtensors: dict[str, Layout] = {}
        for position, flat in enumerate(self._exported.joint.outputs):
            if flat.node is None and flat.text:
                raise UsageError("VC305", f"the compiled program hands `{flat.text}` to a call {_NOT_TRACED}")
            for kind, name in output_names(self._exported, flat):
                whole = self._called_whole(flat, name) if kind is OutputKind.VALUE else None
                placements, declared = self._requirement(flat, kind, name, by_name, whole)
                if placements is not None and _is_of_booleans(flat):
                    placements = of_booleans(placements)
                # A forward value is free where its mesh says nothing; a gradient must be there what its parameter is.
                free = self._open_axes(flat.layout) if whole is None else whole.open_axes
                open_axes = free if kind is OutputKind.VALUE else frozenset[int]()
                assert flat.node is not None
                mean = self._outer_mean(kind, name, placements)
                output = ProgramOutput(
                    flat.node, kind, name, position, placements, declared, open_axes, mean, flat.requires_grad
                )
                outputs.append(output if flat.layout is None else _as_dtensor(output, flat.layout))
                if flat.layout is not None and kind is OutputKind.VALUE:
                    dtensors[name] = flat.layout
        outputs.extend(passed_through_outputs(self._exported))
        check_outputs(outputs, dtensors, self._options)
        return tuple(outputs)

    def _input(self, flat: Flat) -> ProgramInput:
        assert flat.node is not None
        role = role_of(self._exported, flat)
        if role is Role.TANGENT:
            return self._tangent(flat)
        name = self._exported.names[flat.index].name if flat.origin is Origin.ARGUMENT else flat.text
        value = flat.node.meta.get("val")
        if flat.part not in _TENSOR_PARTS or not isinstance(value, torch.Tensor):
            opaque = not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
            part = {Part.MESH: ".device_mesh", Part.SIZE: f" ({flat.text})"}.get(flat.part, "")
            return ProgramInput(flat.node, Role.OPAQUE if opaque else Role.SIZE, name + part)
        example = self._exported.traced.example_inputs[flat.index] if flat.origin is Origin.ARGUMENT else None
        requires_grad = isinstance(example, torch.Tensor) and example.requires_grad
        try:
            placed = self._place_input(flat, role, name, shape_of(value))
        except LayoutError as blocked:
            self._block(flat.node, blocked)
            placed = _Placed(None, shape_of(value))
        return ProgramInput(flat.node, role, name, placed.placements, placed.shape, requires_grad, placed.assumed)

    def _place_input(self, flat: Flat, role: Role, name: str, shape: tuple[Size, ...]) -> _Placed:
        if flat.layout is not None:
            return self._place_dtensor(flat.layout, name)
        if role is Role.INPUT:
            returned = self._returned_placements(flat, name)
            if returned is not None:
                return _Placed(returned, global_shape(name, shape, returned, self._mesh))
            declared = self._options.in_placements.get(name)
            fed = self._fed_layouts.get(flat.index)
            between = self._is_between(name)
            if between and not (declared or fed):
                self._require_whole(name)
        else:
            between = False
            declared = by_pattern(self._options.param_placements, self._own_names.get(name, name))
            fed = None
        default = self._samples.default(flat, name, shape, fed) if role is Role.INPUT and not declared else None
        chosen = declared or default or (Replicate(),) * len(self._mesh.axes)
        placements = self._checked(name, chosen, len(shape))
        if between and not declared and name.startswith(_MADE_UP):
            self._made_between.append(name)
        if between and (declared or default):
            self._between[name] = ReturnedLayout(self._mesh.axes, placements, None, self._samples.means)
        return _Placed(placements, global_shape(name, shape, placements, self._mesh), assumed=declared is None)

    def _returned_placements(self, flat: Flat, name: str) -> Placements | None:
        """What is known of a tensor that a graph before has returned, after a graph break or to another function."""
        traced = self._exported.traced
        if flat.origin is not Origin.ARGUMENT:
            return None
        if not traced.frame.is_resumption and name in self._options.in_placements:
            return None
        layout = returned_layout(traced.example_inputs[flat.index])
        if layout is None or layout.axes != self._mesh.axes:
            return None
        self._between[name] = layout
        self._returned.append(name)
        return layout.placements

    def _is_between(self, name: str) -> bool:
        """Whether an input of the graph after a graph break is none of the program's."""
        frame = self._exported.traced.frame
        return frame.is_resumption and not is_argument_of_resumed(frame, name.split(".", maxsplit=1)[0])

    def _require_whole(self, name: str) -> None:
        """Raises ``UsageError`` VC305 where what is computed between graphs may be sharded, since the inputs are."""
        declared = self._options.in_placements.values()
        if any(not isinstance(item, Replicate) for placements in declared for item in placements):
            raise UsageError(
                "VC305",
                f"{self._described(name)} is computed between graphs, after a graph break: how it is sharded is not "
                "known. Say it with `in_placements`, or remove the break.",
            )

    def _described(self, name: str) -> str:
        """With the line, where Dynamo has made up the name for a value in the expression that a graph break cuts."""
        frame = self._exported.traced.frame
        if not frame.is_resumption or not name.startswith(_MADE_UP):
            return f"`{name}`"
        return f"`{name}`, a value in line {frame.resumed_line} of {pathlib.Path(frame.code.co_filename).name},"

    def assumptions(self) -> tuple[str, ...]:
        """What was taken from the graphs before. Call it after ``inputs``."""
        layouts = {name: ", ".join(map(str, self._between[name].placements)) for name in self._returned}
        returned = (
            Assumption(
                f"`{name}` is placed ({layout}), as the graph that returned it holds it",
                _PLACED,
                [name],
            )
            for name, layout in layouts.items()
        )
        made = (
            Assumption(f"{self._described(name)} is computed between graphs, which nothing checks", _PLACED, [name])
            for name in self._made_between
        )
        return (*self._samples.assumptions(), *self._unknown_here, *made, *returned)

    def _place_dtensor(self, layout: Layout, name: str) -> _Placed:
        whole = tuple(size_of(size) for size in layout.global_shape)
        placements = lift_placements(name, layout.placements, layout.mesh, self._root, len(whole))
        if self._even:
            check_even(name, whole, placements, self._mesh, lambda size: substitute(size, self._size_values))
        else:
            check_dimensions(name, placements, len(whole))
        return _Placed(placements, whole, open_axes=self._open_axes(layout))

    def _outer_mean(self, kind: OutputKind, name: str, placements: Placements | None) -> frozenset[int]:
        """Mesh axes over which a wrapper takes the mean of a gradient that leaves the graph as each rank's own."""
        owner_name = name.split(".", 1)[1] if kind is OutputKind.GRADIENT else ""
        if owner_name in self._between:
            return _means_of(self._between[owner_name])
        outer = self._outer.get(owner_name)
        if outer is None or placements is None or outer.unknown or outer.reduction != "avg":
            return frozenset()
        return frozenset(axis for axis in outer.axes if isinstance(placements[axis], Partial))

    def _called_whole(self, flat: Flat, name: str) -> _Placed | None:
        """Of a plain result that a DTensor calls whole: on these axes it must be. None where nothing is said of it."""
        if flat.layout is not None or flat.origin is not Origin.RESULT or name in self._options.out_placements:
            return None
        taken = layout_taken_from(self._exported, flat.index)
        if taken is None or not any(isinstance(item, Replicate) for item in taken.placements):
            return None
        try:
            placed = self._place_dtensor(taken, name)
        except LayoutError:
            return None
        kept = {axis for axis, item in enumerate(placed.placements or ()) if not isinstance(item, Replicate)}
        return dataclasses.replace(placed, open_axes=placed.open_axes | kept)

    def _open_axes(self, layout: Layout | None) -> frozenset[int]:
        """Mesh axes that the DTensor's own mesh lacks."""
        spans = None if layout is None else self._root.spans(layout.mesh)
        if spans is None:
            return frozenset()
        covered = {axis for axes in spans for axis in axes}
        return frozenset(axis for axis, item in enumerate(self._mesh.axes) if item.size > 1 and axis not in covered)

    def _tangent(self, flat: Flat) -> ProgramInput:
        assert flat.node is not None
        name = tangent_name(self._exported, flat)
        shape = shape_of(flat.node.meta["val"]) if isinstance(flat.node.meta.get("val"), torch.Tensor) else ()
        try:
            if flat.layout is not None:
                placed = self._place_dtensor(flat.layout, f"the tangent of {name}")
                return ProgramInput(
                    flat.node, Role.TANGENT, name, placed.placements, placed.shape, open_axes=placed.open_axes
                )
            if flat.origin is Origin.MUTATION:
                # What the program leaves in a buffer or in an argument lies as that does, and its cotangent as well.
                owner = self._exported.names[flat.index]
                placed = self._place_input(flat, owner.role, owner.name, shape)
                return ProgramInput(flat.node, Role.TANGENT, name, placed.placements, placed.shape)
            if name not in self._options.out_placements:
                return ProgramInput(flat.node, Role.TANGENT, name, None, shape)
            declared = self._checked(name, self._options.out_placements[name], len(shape))
            placements = tuple(Replicate() if isinstance(item, Partial) else item for item in declared)
            return ProgramInput(
                flat.node, Role.TANGENT, name, placements, global_shape(name, shape, placements, self._mesh)
            )
        except LayoutError as blocked:
            self._block(flat.node, blocked)
            return ProgramInput(flat.node, Role.TANGENT, name, None, shape)

    def _requirement(
        self, flat: Flat, kind: OutputKind, name: str, inputs: Mapping[str, ProgramInput], whole: _Placed | None
    ) -> tuple[Placements | None, str]:
        assert flat.node is not None
        try:
            return self._required(flat, kind, name, inputs, whole)
        except LayoutError as blocked:
            self._block(flat.node, blocked)
            return None, ""

    def _required(
        self, flat: Flat, kind: OutputKind, name: str, inputs: Mapping[str, ProgramInput], whole: _Placed | None
    ) -> tuple[Placements | None, str]:
        assert flat.node is not None
        if flat.layout is not None and kind is OutputKind.GRADIENT:
            return self._gradient_of_dtensor(flat.layout, name)
        if flat.layout is not None:
            return self._place_dtensor(flat.layout, name).placements, "DTensor metadata"
        ndim = flat.node.meta["val"].ndim if isinstance(flat.node.meta.get("val"), torch.Tensor) else 0
        if kind is OutputKind.VALUE:
            declared = self._options.out_placements.get(name)
            if declared is not None:
                return self._checked(name, declared, ndim), "out_placements"
            return (None, "") if whole is None else (whole.placements, "the DTensor that it is taken from")
        owner_name = name.split(".", 1)[1]
        owner = inputs.get(owner_name)
        own_name = self._own_names.get(owner_name, owner_name)
        declared = by_pattern(self._options.grad_placements, own_name) if kind is OutputKind.GRADIENT else None
        if declared:
            return self._checked(name, declared, ndim), "grad_placements"
        if kind is OutputKind.GRADIENT and owner_name in self._dtensors:
            # AOTAutograd's zeros for an input that no output depends on are a plain tensor of the whole shape.
            return self._checked(name, (Replicate(),) * len(self._mesh.axes), ndim), "its plain gradient's shape"
        if owner is None or owner.placements is None:
            return None, ""
        if kind is OutputKind.GRADIENT and owner_name in self._between:
            # What the graph before takes for the gradient of its result.
            placements = self._between[owner_name].placements
            gathered = tuple(Replicate() if isinstance(item, Partial) else item for item in placements)
            return gathered, "the placements of the result that it is the gradient of"
        if kind is OutputKind.GRADIENT and owner.role is Role.INPUT:
            partial = any(isinstance(item, Partial) for item in owner.placements)
            return (None, "") if owner.assumed or partial else (owner.placements, "the input's placements")
        outer = self._outer.get(owner_name) if kind is OutputKind.GRADIENT else None
        if outer is not None:
            return outer.around(owner.placements), f"the contract of {outer.wrapper}"
        what = "parameter" if owner.role is Role.PARAMETER else "buffer" if owner.role is Role.BUFFER else "input"
        return owner.placements, f"the {what}'s placements"

    def _gradient_of_dtensor(self, layout: Layout, name: str) -> tuple[Placements | None, str]:
        """The DTensor's own placements; on mesh axes that its mesh lacks, ``grad_placements`` may say otherwise."""
        placements = self._place_dtensor(layout, name).placements
        owner_name = name.split(".", 1)[1]
        declared = by_pattern(self._options.grad_placements, self._own_names.get(owner_name, owner_name))
        outer = self._outer.get(owner_name)
        spans = self._root.spans(layout.mesh)
        if placements is None or spans is None or not (declared or outer):
            return placements, "DTensor metadata"
        own_axes = {axis for axes in spans for axis in axes}
        others = placements
        if outer is not None:
            # On axes of the DTensor's own mesh too, a wrapper reduces the local tensors and asks for no placement.
            own_axes -= set(outer.axes)
            others = outer.around(placements)
        if declared:
            others = self._checked(name, declared, len(layout.global_shape))
            differing = [axis for axis in own_axes if others[axis] != placements[axis]]
            if differing:
                axis = self._mesh.axes[differing[0]].name
                raise UsageError(
                    "VC310",
                    f"option `grad_placements` does not apply to `{owner_name}` on mesh axis `{axis}`: its gradient is "
                    f"a DTensor, placed {placements[differing[0]]} there.",
                )
        merged = tuple(
            own if axis in own_axes else other for axis, (own, other) in enumerate(zip(placements, others, strict=True))
        )
        other = "grad_placements" if declared or outer is None else f"the contract of {outer.wrapper}"
        return merged, f"DTensor metadata and {other}"

    def _checked(self, name: str, placements: Placements, ndim: int) -> Placements:
        check_axes("", name, placements, self._refined)
        if len(placements) == len(self._refined.named.axes):
            placements = tuple(item for item, parts in zip(placements, self._refined.parts, strict=True) for _ in parts)
        check_kinds(name, placements)
        return normalize(placements, ndim)

    def _block(self, node: torch.fx.Node, blocked: LayoutError) -> None:
        if blocked.code == "VC303":
            raise UsageError(blocked.code, blocked.message)
        self.blockers.append(dataclasses.replace(blocked.blocker(), node=node))


def _means_of(layout: ReturnedLayout) -> frozenset[int]:
    """Where a rank's gradient of its part is that of its own loss. What is a mean already has the gradient of all."""
    return frozenset(axis for axis in layout.means if layout.placements[axis] != Partial("avg"))


def _as_dtensor(output: ProgramOutput, layout: Layout) -> ProgramOutput:
    shape, stride = (tuple(size_of(size) for size in sizes) for sizes in (layout.global_shape, layout.global_stride))
    return dataclasses.replace(output, global_shape=shape, global_stride=stride)


def _is_of_booleans(flat: Flat) -> bool:
    value = None if flat.node is None else flat.node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def by_pattern(values: Mapping[str, Placements], name: str) -> Placements | None:
    """The value under ``name`` itself, else under the first pattern that matches it."""
    if name in values:
        return values[name]
    return next((value for pattern, value in values.items() if fnmatch.fnmatchcase(name, pattern)), None)
