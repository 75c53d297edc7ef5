"""A captured program: what the rest of the package knows about an FX graph and its boundary.

``capture`` produces these from torch's own data structures; ``lowering``, ``refinement`` and ``witness``
read nothing else about a graph's inputs, outputs, mesh and process groups.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import sympy
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.question import Provenance

if TYPE_CHECKING:
    from verifycompile.captured_notes import OwnCapture, RanBeside
    from verifycompile.torch_interface.ranks.observation import Read

Size = int | sympy.Expr
"""A tensor dimension: a Python int, or a sympy expression of the program's free size symbols."""


class Role(enum.Enum):
    """What a placeholder of a captured graph holds."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    TANGENT = "tangent"
    """Cotangent of a forward output; its name is that output's (``output.0``)."""
    SIZE = "size"
    """A symbolic integer (``torch.SymInt``)."""
    OPAQUE = "opaque"
    """An object without a value in the proof: a ``DeviceMesh`` or a process group."""


class OutputKind(enum.Enum):
    """What a position of a captured graph's output holds."""

    VALUE = "value"
    GRADIENT = "gradient"
    MUTATION = "mutation"


@dataclasses.dataclass(frozen=True)
class MeshAxis:
    """One dimension of the device mesh: its name and its number of ranks.

    ``part_of``: the user's axis, where this one is a digit of it.
    """

    name: str
    size: int
    part_of: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The root device mesh. ``ranks`` is its rank map, flattened row-major (outermost axis first)."""

    axes: tuple[MeshAxis, ...]
    ranks: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)


@dataclasses.dataclass(frozen=True)
class ProgramInput:
    """One placeholder.

    ``name``: dotted argument name (``tokens``), fully qualified parameter or buffer name as in the spec
    (``layers.0.wq.weight``), or for a tangent the name of its output (``output.0``).
    ``placements``: one per axis of ``Program.mesh``, outermost first; None for a placeholder that is a
    plain tensor without a declared or recorded layout (always None in a spec).
    ``global_shape``: shape of the whole tensor where ``placements`` is known, else the local shape.
    ``assumed``: True where the placements are a default taken by us, to be listed as an assumption.
    ``open_axes``: for a tangent, mesh axes of which ``placements`` says nothing: it lies there as its output does.
    """

    node: torch.fx.Node
    role: Role
    name: str
    placements: tuple[Placement, ...] | None = None
    global_shape: tuple[Size, ...] | None = None
    requires_grad: bool = False
    assumed: bool = False
    open_axes: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class ProgramOutput:
    """One tensor returned by the graph.

    ``name``: ``output.0``, ``grad.<parameter or input name>``, ``mutation.<buffer or input name>``.
    ``index``: position in the flat list that the graph returns. ``node``: the returned node.
    ``placements``: required layout over ``Program.mesh``, or None where any clean relation will do.
    ``declared``: where the requirement comes from, for messages ("DTensor metadata", "the parameter's placements").
    ``open_axes``: mesh axes of which ``placements`` says nothing, because the DTensor lies on a part of the mesh.
    ``outer_mean``: for a gradient, mesh axes over which a wrapper outside of the graph takes the mean. Where the
    forward outputs are sharded over such an axis, the loss is outside too, a mean of the ranks', and it is a sum here.
    A gradient that is no sum over such an axis is that of what another graph returned: see ``scale``.
    ``requires_grad``: of a forward output, whether a gradient flows back from it; None where that is not known.
    ``global_shape``, ``global_stride``: of a DTensor, what it says of the whole tensor.
    """

    node: torch.fx.Node
    kind: OutputKind
    name: str
    index: int
    placements: tuple[Placement, ...] | None = None
    declared: str = ""
    open_axes: frozenset[int] = frozenset()
    outer_mean: frozenset[int] = frozenset()
    requires_grad: bool | None = None
    global_shape: tuple[Size, ...] | None = None
    global_stride: tuple[Size, ...] | None = None

    def required(self, forward: Sequence[tuple[Placement, ...]]) -> tuple[Placement, ...] | None:
        """``placements``, given those of the forward outputs through which gradients flow. Raises ValueError."""
        if self.placements is None or not self.outer_mean:
            return self.placements
        outside = self._loss_outside(forward)
        return tuple(
            Partial("sum") if axis in outside and isinstance(item, Partial) else item
            for axis, item in enumerate(self.placements)
        )

    def scale(self, forward: Sequence[tuple[Placement, ...]], mesh: Mesh) -> int:
        """How often the spec's gradient it is: where the loss is in this graph, a rank's is of its own loss."""
        if self.placements is None or not self.outer_mean:
            return 1
        axes = self.outer_mean - self._loss_outside(forward)
        return math.prod(mesh.axes[axis].size for axis in axes if not isinstance(self.placements[axis], Partial))

    def _loss_outside(self, forward: Sequence[tuple[Placement, ...]]) -> set[int]:
        whole = {axis: {isinstance(found[axis], Replicate | Partial) for found in forward} for axis in self.outer_mean}
        if any(len(kinds) > 1 for kinds in whole.values()):
            raise ValueError("a loss and samples leave one graph: their cotangents are of two scales")
        return {axis for axis, kinds in whole.items() if kinds == {False}}


@dataclasses.dataclass(frozen=True)
class Blocker:
    """Something about a program that the proof cannot represent; every result of ``node`` is UNPROVED.

    ``code`` is a diagnostic code of ``verifycompile.diagnostics.codes``.
    """

    node: torch.fx.Node | None
    code: str
    message: str


@dataclasses.dataclass(frozen=True)
class Program:
    """A joint forward-backward (or forward-only) ATen graph with its boundary.

    ``mesh``: None for a spec. ``coordinates``: unbacked symbol of the graph -> index of the mesh axis whose
    coordinate it is. ``groups``: name of an FX node or group-name string used as a collective's group
    argument -> indices of the mesh axes that the group spans, in rank order of the group.
    ``size_values``: substitution applied to every size expression (solved divisibility guards, unified
    symbols); ``guards``: what the capture assumed about the remaining symbols, as sympy Booleans.
    ``seconds``: wall-clock time of the capture.
    ``ranks``: where the ranks run different graphs, what each of ``mesh.ranks`` runs; ``graph`` is that of the
    capturing rank and ``blockers`` say so.
    ``each_rank``: captures what each rank runs, for a program that reads its rank and has one graph for all ranks.
    ``asked``: where code asked for its rank, if that leaves open what the other ranks compute.
    ``provenance``: how a spec is known; of an implementation, how it is known that every rank runs it.
    ``own``: of a program that this process captured, what it knows of its rank.
    ``doubt``: of a recovered spec, asks whether another reading of the model's numbers gives another one; called where
    the programs are not proved equal.
    ``piecewise``: values are assembled from parts that end within shards, see ``rewrites/parts/piecewise.py``.
    ``by_definition``: functions are written by exponentials and logarithms, as laws of the table define them.
    ``beside``: what ran that the graph does not show, and the plan of its model, for lines in reports.
    ``captured_elsewhere``: a rank has no other objects than its graph uses, and waits for no message that is not used.
    """

    graph: torch.fx.GraphModule
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[ProgramOutput, ...]
    mesh: Mesh | None = None
    coordinates: Mapping[sympy.Symbol, int] = dataclasses.field(default_factory=dict[sympy.Symbol, int])
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict[str, tuple[int, ...]])
    size_values: Mapping[sympy.Symbol, sympy.Expr] = dataclasses.field(default_factory=dict[sympy.Symbol, sympy.Expr])
    guards: tuple[sympy.Basic, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    assumptions: tuple[str, ...] = ()
    seconds: float = 0.0
    ranks: tuple[Program, ...] = ()
    asked: tuple[Read, ...] = ()
    piecewise: bool = False
    by_definition: bool = False
    captured_elsewhere: bool = False
    beside: RanBeside | None = dataclasses.field(default=None, compare=False)
    doubt: Callable[[], Blocker | None] | None = dataclasses.field(default=None, compare=False)
    provenance: Provenance = Provenance.ASSUMED
    each_rank: Callable[[], tuple[Program, ...]] | None = dataclasses.field(default=None, compare=False)
    own: OwnCapture | None = dataclasses.field(default=None, compare=False)

    @property
    def is_real(self) -> bool:
        """Whether no value is complex: laws of functions are those of real numbers."""
        values = (node.meta.get("val") for node in self.graph.graph.nodes)
        return not any(isinstance(value, torch.Tensor) and value.dtype.is_complex for value in values)


@dataclasses.dataclass(frozen=True)
class SourceLocation:
    """A place in the user's file. ``line`` and ``column`` count from 1; ``module`` is the dotted module path."""

    file: str
    line: int
    column: int = 1
    end_column: int | None = None
    function: str = ""
    module: str = ""
