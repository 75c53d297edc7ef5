"""A repair move: a change of one node that a user could make, and what is known where moves are sought."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.frontier import wholes
from verifycompile.cause.trial import Outcome, Trial
from verifycompile.program import Mesh, Program, ProgramOutput, Role
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.model_lines import lines_of_model, model_location_of
from verifycompile.torch_interface.source_lines.source import at_line
from verifycompile.torch_interface.source_lines.value_names import (
    GRADIENT_OF,
    is_backward,
    names_of_inputs,
    operator_of,
    value_name,
)
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.interpreter import ancestors, descendants

aten = torch.ops.aten

_UNSAFE_VIEWS = (aten._unsafe_view.default,)  # noqa: SLF001 - the name of an operator
"""Views of memory that nothing else reads, which torch lists as results of their own."""

CUTS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int)
ARITHMETIC = (aten.mul.Tensor, aten.div.Tensor, aten.add.Tensor, aten.sub.Tensor)

Texts = Callable[[Draft], tuple[str, str]]
"""What is wrong, and what to do: of the program at its own sizes, where the move was found at reduced ones."""


@dataclasses.dataclass(frozen=True)
class Move:
    """A change, and what it says about the program if it mends outputs.

    ``kind``: what is changed and into what, equal for the same change at another node. ``node``: the name of the node
    that a user has to change, or behind which something is missing. ``code``: what is wrong there. ``texts``: the
    message that says so, and the hint what to do. ``apply`` changes a draft that has a node of this name.
    ``is_late``: it mends an output where it leaves the program, which says where the fault shows, not where it is.
    ``pointed``: what is shown to the user, where that is a node of the graph of other ranks, or one that nothing reads.
    ``runs_beside``: the name of the node before or behind which that line is meant to run.
    ``lacks_derivative``: in the source it changes gradients as well, which ``apply`` leaves as they are.
    ``texts_of_line``: what is said where several nodes of one line are changed alike, if that is something else.
    ``is_of_others``: it is tried together with the same change of other nodes alone.
    """

    kind: tuple[object, ...]
    node: str
    code: str
    texts: Texts
    apply: Callable[[Draft], None]
    is_late: bool = False
    pointed: torch.fx.Node | None = None
    runs_beside: str = ""
    lacks_derivative: bool = False
    texts_of_line: Texts | None = None
    is_of_others: bool = False

    @property
    def inserts(self) -> bool:
        """Whether it adds a call where the program has none."""
        return self.kind[0] in ("reduce", "scale")

    @property
    def takes_means(self) -> bool:
        """Whether it takes the mean over ranks, of which the derivative is a share."""
        return self.kind[:2] == ("reduce", "avg")


@dataclasses.dataclass(frozen=True)
class Scene:
    """A program with outputs that are not the spec's, ``wanted``, on one input.

    ``axes``: the mesh axes along which all ranks run the draft. ``values``: whether ``outcome`` has values of the
    draft's own nodes; where each rank has its graph, it has not. ``held``: names of the draft's nodes -> the nodes of
    ``outcome`` that hold their values. ``everywhere``: the scenes of all graphs, this one among them.
    """

    spec: Program
    draft: Draft
    mesh: Mesh
    trial: Trial
    outcome: Outcome
    wanted: frozenset[str]
    axes: tuple[int, ...]
    values: bool
    held: Mapping[str, Sequence[torch.fx.Node]]
    everywhere: Sequence[Scene]

    @functools.cached_property
    def outputs(self) -> list[ProgramOutput]:
        return [output for output in self.draft.program.outputs if output.name in self.wanted]

    @functools.cached_property
    def order(self) -> list[torch.fx.Node]:
        """The nodes that the wanted outputs depend on, in graph order."""
        nodes = list(self.draft.program.graph.graph.nodes)
        if not self.values:
            return [node for node in nodes if node.op != "output"]  # what another rank is sent is needed as well
        needed = ancestors(output.node for output in self.outputs)
        return [node for node in nodes if node in needed]

    @functools.cached_property
    def calls(self) -> list[torch.fx.Node]:
        return [node for node in self.order if node.op == "call_function" and is_tensor(node)]

    @functools.cached_property
    def axis_sets(self) -> list[tuple[int, ...]]:
        """Sets of mesh axes with more than one rank, single axes first."""
        counts = range(1, len(self.axes) + 1)
        return [some for count in counts for some in itertools.combinations(self.axes, count)]

    def value(self, node: torch.fx.Node) -> str:
        """What a value is called in the source, for messages."""
        inputs = names_of_inputs(self.draft.program)
        while True:
            name = value_name(node, inputs)
            if name.startswith(GRADIENT_OF):
                return f"the gradient of `{name.removeprefix(GRADIENT_OF)}`"
            prefix = "backward of "
            if name.startswith(prefix):
                return f"the gradient in the backward of `{name.removeprefix(prefix)}`"
            called, _, rest = name.partition(" in ")
            if not rest or called != operator_of(node):
                return f"`{name}`"
            is_seen = is_view(node.target) or node.target in _UNSAFE_VIEWS
            if not is_seen or not is_tensor(node.all_input_nodes[0]):
                return f"`{called}` in `{rest}`"
            node = node.all_input_nodes[0]  # nobody wrote the view: what it looks at has a name

    def line(self, node: torch.fx.Node) -> str:
        """The line of a node, for hints, which may be shown at another one."""
        place = model_location_of(node)
        return "this call" if place is None else f"line {place.line}"

    def names(self, axes: Sequence[int]) -> str:
        """The names of mesh axes, for messages."""
        return " and ".join(f"`{self.mesh.axes[axis].name}`" for axis in axes)

    def ranks(self, axes: Sequence[int]) -> int:
        """How many ranks there are along some mesh axes."""
        count = 1
        for axis in axes:
            count *= self.mesh.axes[axis].size
        return count

    def parts(self, node: torch.fx.Node) -> list[torch.Tensor] | None:
        """The value of a node on each rank, None where it is not known."""
        if not self.values:
            return None
        try:
            found = self.outcome.values.value(node)
        except EvaluationError:
            return None
        parts = [part for part in found if isinstance(part, torch.Tensor)]
        return parts if len(parts) == len(found) else None

    def wholes(self, node: torch.fx.Node) -> list[torch.Tensor]:
        """The tensors that the values of a node, on the ranks that run the draft, may make together."""
        try:
            parts = [part for held in self.held.get(node.name, ()) for part in self.outcome.values.value(held)]
        except EvaluationError:
            return []
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        shape = tuple(self.mesh.axes[axis].size for axis in self.axes)
        return list(wholes(tensors, shape)) if len(tensors) == len(parts) == math.prod(shape) else []

    def differing(self, node: torch.fx.Node) -> tuple[int, ...]:
        """The mesh axes along which the ranks hold different values of a node; all of them where that is not known."""
        parts = self.parts(node)
        if parts is None:
            return self.axes
        return tuple(axis for axis in self.axes if not _equal_along(parts, self.mesh.shape, axis))

    def reaches(self, node: torch.fx.Node, kinds: Callable[[torch.fx.Node], bool]) -> bool:
        """Whether something that depends on a node is of a kind."""
        return any(later in self.needed and kinds(later) for later in descendants([node]) if later is not node)

    @functools.cached_property
    def needed(self) -> frozenset[torch.fx.Node]:
        return frozenset(self.order)

    @functools.cached_property
    def roots(self) -> Mapping[torch.fx.Node, Sequence[torch.fx.Node]]:
        """The values at which backward passes begin that the program makes itself -> the gradients that these begin
        with: numbers of the value's shape.
        """
        found: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        given = any(item.role is Role.TANGENT for item in self.draft.program.inputs)
        for node in () if given else self.draft.program.graph.graph.nodes:
            if node.target is aten.ones_like.default:
                found.setdefault(node.all_input_nodes[0], []).append(node)
        return found

    @functools.cached_property
    def backward_of_lines(self) -> Mapping[tuple[str, int], Sequence[torch.fx.Node]]:
        """The lines of which the backward pass computes derivatives -> the nodes that do."""
        found: dict[tuple[str, int], list[torch.fx.Node]] = {}
        for node in filter(is_backward, self.draft.program.graph.graph.nodes):
            if (place := model_location_of(node)) is not None:
                found.setdefault(at_line(place), []).append(node)
        return found

    @functools.cached_property
    def lines_of_spec(self) -> Container[tuple[str, int]]:
        return lines_of_model(self.spec.graph.graph)

    @functools.cached_property
    def differentiated(self) -> frozenset[torch.fx.Node]:
        """The values of which such a backward pass may take derivatives."""
        return frozenset(ancestors(self.roots))


def fixed(message: str, hint: str) -> Texts:
    """Texts that say nothing about sizes."""
    return lambda _: (message, hint)


def _equal_along(parts: Sequence[torch.Tensor], shape: Sequence[int], axis: int) -> bool:
    """Whether ranks that differ in their coordinate on one axis alone hold the same."""
    inner = 1
    for size in shape[axis + 1 :]:
        inner *= size
    for position, part in enumerate(parts):
        first = parts[position - (position // inner % shape[axis]) * inner]
        if part is not first and (part.shape != first.shape or not torch.equal(part, first)):
            return False
    return True


def is_derivative(node: torch.fx.Node, computed: torch.fx.Node) -> bool:
    """Whether a node is one of the backward pass of the line that computes another one."""
    own, line = model_location_of(node), model_location_of(computed)
    return is_backward(node) and own is not None and line is not None and (own.file, own.line) == (line.file, line.line)


def derives(node: torch.fx.Node, of: torch.fx.Node) -> bool:
    """Whether a node is in the backward pass of the very call that computes another one, or keeps for it what that
    returned: it reads what was computed.
    """
    number = of.meta.get("seq_nr")
    same = is_derivative(node, of) if number is None else node.meta.get("seq_nr") == number
    is_copy = node.target is aten.detach.default
    is_kept = is_copy and node.meta.get("stack_trace") == of.meta.get("stack_trace")
    return is_kept or (same and is_backward(node) and not is_backward(of))


def is_tensor(node: torch.fx.Node) -> bool:
    """Whether a node's value is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_floating(node: torch.fx.Node) -> bool:
    """Whether a node's value is one tensor of floating numbers."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def is_integer(node: torch.fx.Node) -> bool:
    """Whether a node's value is one tensor of whole numbers."""
    return is_tensor(node) and node.meta["val"].dtype in (torch.int64, torch.int32)


def shape_of(node: torch.fx.Node) -> tuple[object, ...]:
    """The sizes of a tensor as torch recorded them."""
    return tuple(node.meta["val"].shape)


def are_alike(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether the second node's value is one tensor of the shape and type of the first one's."""
    return is_tensor(other) and shape_of(node) == shape_of(other) and node.meta["val"].dtype == other.meta["val"].dtype


def computed(node: torch.fx.Node) -> bool:
    """Whether a node is a call that computes something new, no view and no piece of a result."""
    return node.op == "call_function" and not is_view(node.target) and is_tensor(node)


def views(node: torch.fx.Node) -> list[torch.fx.Node]:
    """A value, what it is a view of, and so on."""
    found = [node]
    while is_view(found[-1].target) and found[-1].all_input_nodes and is_tensor(found[-1].all_input_nodes[0]):
        found.append(found[-1].all_input_nodes[0])
    return found
