"""In-place collectives of ``torch.distributed`` in a captured graph, written as functional ones.

``c10d.allreduce_([x], group, op)`` becomes ``x.copy_(wait(all_reduce(x, op, group)))``. What the copy means for
everything that shares the memory of ``x`` is left to functionalization, which runs afterwards.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.program import Blocker
from verifycompile.torch_interface.graph_modules import GroupObject, group_object, members_by_name, reduction_of
from verifycompile.torch_interface.ranks import functional_collectives, namespace
from verifycompile.torch_interface.schema import by_name, names_of
from verifycompile.torch_interface.source import SOURCE_KEYS
from verifycompile.torch_interface.value_names import value_name

aten = torch.ops.aten
functional = functional_collectives()

Ranks = tuple[int, ...]

_KEY = "ranks:"


class UnknownGroupError(Exception):
    """The members of a process group are not known in this process."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class UnsupportedCollectiveError(Exception):
    """A collective without a functional form. The message names it."""


_DEFAULT_GROUP = "0"
"""torch numbers the process groups of a job; the first one is that of ``init_process_group``."""


@dataclasses.dataclass(frozen=True)
class GroupTable:
    """Members of process groups by name: those given by the user, then those that this process knows.

    ``world``: the number of ranks; a group of that size is all of them. ``assumptions``: filled with what was assumed.
    """

    given: Mapping[str, Ranks]
    world: int
    assumptions: dict[str, None] = dataclasses.field(default_factory=dict[str, None])

    def of_name(self, name: str, size: int | None) -> Ranks:
        ranks = self.given.get(name)
        if ranks is None:
            ranks = members_by_name(name)
        if ranks is None and size in (1, self.world):
            ranks = tuple(range(size))
        if ranks is None and name == _DEFAULT_GROUP:
            text = f"the process group `{name}`, which torch calls its default group, is all ranks"
            self.assumptions[Assumption(text, AssumptionKind.CORRESPONDENCE)] = None
            ranks = tuple(range(self.world))
        if ranks is None:
            raise UnknownGroupError(name)
        return ranks

    def of_object(self, group: GroupObject) -> Ranks:
        if group.name in self.given:
            return self.given[group.name]
        if group.ranks is not None and len(group.ranks) == group.size:
            return group.ranks
        if group.size == 1:
            return (0,)
        if group.size == self.world:
            return tuple(range(self.world))
        raise UnknownGroupError(group.name)


def key_of(ranks: Ranks) -> str:
    """The name under which prepared graphs mention a group: its members."""
    return _KEY + ",".join(map(str, ranks))


def is_key(name: str) -> bool:
    """Whether a name is one of ``key_of``."""
    return name.startswith(_KEY)


def ranks_of(key: str) -> Ranks:
    """The members behind ``key_of``."""
    return tuple(int(rank) for rank in key.removeprefix(_KEY).split(","))


def make_functional(graph: torch.fx.GraphModule, groups: GroupTable) -> tuple[Blocker, ...]:
    """Rewrite, in place, every collective of ``graph`` to a functional one whose group is a ``key_of``.

    Returns a blocker for each call that has no such form.
    """
    blockers: list[Blocker] = []
    for node in list(graph.graph.nodes):
        library = namespace(node)
        try:
            if library == "c10d":
                _Rewriter(graph, node, groups).rewrite()
            elif library in ("_c10d_functional", "_c10d_functional_autograd", "_dtensor"):
                _name_group(graph, node, groups)
        except UnknownGroupError as error:
            text = f"the members of the process group `{error.name}` are not known here; pass them as `groups`."
            blockers.append(Blocker(None, "VC206", text))
        except UnsupportedCollectiveError as error:
            blockers.append(Blocker(None, "VC201", str(error)))
    graph.graph.lint()
    graph.recompile()
    return tuple(blockers)


def _name_group(graph: torch.fx.GraphModule, node: torch.fx.Node, groups: GroupTable) -> None:
    for position, argument in enumerate(node.args):
        if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
            held = group_object(operator.attrgetter(str(argument.target))(graph))
            if held is not None:
                node.update_arg(position, key_of(groups.of_object(held)))
    for position, name in enumerate(names_of(node.target)):
        if name not in ("group_name", "group") or position >= len(node.args):
            continue
        held_name = node.args[position]
        if isinstance(held_name, str) and not is_key(held_name):
            node.update_arg(position, key_of(groups.of_name(held_name, _group_size(node))))
        of_one_rank = len(ranks_of(str(node.args[position]))) == 1
        if of_one_rank and str(node.target).split(".")[1] in _IDENTITIES and isinstance(node.args[0], torch.fx.Node):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
            return


_IDENTITIES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
"""Collectives that return their operand in a group of one rank."""


def _group_size(node: torch.fx.Node) -> int | None:
    names = names_of(node.target)
    size = node.args[names.index("group_size")] if "group_size" in names else None
    return size if isinstance(size, int) else None


class _Rewriter:
    """Rewrites one ``c10d`` call."""

    def __init__(self, graph: torch.fx.GraphModule, node: torch.fx.Node, groups: GroupTable) -> None:
        self.graph, self.node, self.groups = graph, node, groups
        given = by_name(node.target, node.args, node.kwargs)
        self.arguments: dict[str, Any] = {name: given.get(name) for name in names_of(node.target)}

    def rewrite(self) -> None:
        name = str(self.node.target).split(".")[1]
        rewrite = _FORMS.get(name)
        if rewrite is None:
            raise UnsupportedCollectiveError(f"the collective `{self.node.target}` has no functional form")
        with self.graph.graph.inserting_before(self.node):
            self._replace(self.node, rewrite(self))

    # -- what the call passes

    @property
    def ranks(self) -> Ranks:
        held = group_object(operator.attrgetter(str(self.arguments["process_group"].target))(self.graph))
        if held is None:
            raise UnsupportedCollectiveError(f"`{self.node.target}` without a process group")
        return self.groups.of_object(held)

    @property
    def group(self) -> str:
        return key_of(self.ranks)

    @property
    def reduction(self) -> str:
        name = reduction_of(operator.attrgetter(str(self.arguments["reduce_op"].target))(self.graph))
        if name is None:
            raise UnsupportedCollectiveError(f"the reduction of `{self.node.target}` cannot be read")
        return name

    # -- nodes

    def call(self, target: Any, *args: Any) -> torch.fx.Node:
        made = self.graph.graph.call_function(target, args)
        made.meta.update({key: self.node.meta[key] for key in SOURCE_KEYS if key in self.node.meta})
        return made

    def collective(self, target: Any, *args: Any) -> torch.fx.Node:
        if len(self.ranks) == 1 and isinstance(args[0], torch.fx.Node):
            return args[0]  # every collective of one rank is the identity
        return self.call(functional.wait_tensor.default, self.call(target, *args, self.group))

    def write(self, target: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
        self.call(aten.copy_.default, target, value)
        return target

    def _replace(self, node: torch.fx.Node, structure: Any) -> None:
        """Let the elements of the call's result be the tensors themselves: they were written in place."""
        if isinstance(structure, torch.fx.Node):
            node.replace_all_uses_with(structure)
        for user in list(node.users):
            position = user.args[1] if len(user.args) == 2 else None
            is_element = user.op == "call_function" and getattr(user.target, "__name__", "") == "getitem"
            if not is_element or not isinstance(structure, (list, tuple)) or not isinstance(position, int):
                raise UnsupportedCollectiveError(f"`{self.node.target}` is used as a value")
            self._replace(user, structure[position])
        self.graph.graph.erase_node(node)


def _shape(node: torch.fx.Node) -> tuple[Any, ...]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise UnsupportedCollectiveError(f"the shape of `{value_name(node)}` is not recorded")
    return tuple(value.shape)


def _all_reduce(call: _Rewriter) -> Any:
    tensors = call.arguments["tensors"]
    if call.arguments.get("sparse_indices") is not None:
        raise UnsupportedCollectiveError("an all-reduce of sparse tensors has no functional form")
    for tensor in tensors:
        call.write(tensor, call.collective(functional.all_reduce.default, tensor, call.reduction))
    return list(tensors), None


def _broadcast(call: _Rewriter) -> Any:
    tensors = call.arguments["tensors"]
    for tensor in tensors:
        call.write(tensor, call.collective(functional.broadcast.default, tensor, call.arguments["root_rank"]))
    return list(tensors), None


def _on_one_or_several(into: Callable[[_Rewriter, torch.fx.Node, torch.fx.Node], None]) -> Callable[[_Rewriter], Any]:
    def rewrite(call: _Rewriter) -> Any:
        for output, source in zip(call.arguments.get("outputs", ()), call.arguments.get("inputs", ()), strict=True):
            into(call, output, source)
        if "outputs" in call.arguments:
            return None
        output = call.arguments["output_tensor"]
        into(call, output, call.arguments["input_tensor"])
        return output, None

    return rewrite


def _gather_into(call: _Rewriter, output: torch.fx.Node, source: torch.fx.Node) -> None:
    gathered = call.collective(functional.all_gather_into_tensor.default, source, len(call.ranks))
    call.write(output, call.call(aten.reshape.default, gathered, list(_shape(output))))


def _gather_list(call: _Rewriter) -> Any:
    for outputs, source in zip(call.arguments["output_tensors"], call.arguments["input_tensors"], strict=True):
        if any(_shape(output) != _shape(source) for output in outputs):
            raise UnsupportedCollectiveError("an all-gather of tensors of several sizes has no functional form")
        row = call.call(aten.unsqueeze.default, source, 0)
        rows = call.collective(functional.all_gather_into_tensor.default, row, len(call.ranks))
        for position, output in enumerate(outputs):
            call.write(output, call.call(aten.select.int, rows, 0, position))
    return [list(outputs) for outputs in call.arguments["output_tensors"]], None


def _reduce_scatter_into(call: _Rewriter, output: torch.fx.Node, source: torch.fx.Node) -> None:
    count = len(call.ranks)
    rows = call.call(aten.reshape.default, source, [count, *_shape(output)])
    scattered = call.collective(functional.reduce_scatter_tensor.default, rows, call.reduction, count)
    call.write(output, call.call(aten.reshape.default, scattered, list(_shape(output))))


def _reduce_scatter_list(call: _Rewriter) -> Any:
    outputs = call.arguments["output_tensors"]
    for output, sources in zip(outputs, call.arguments["input_tensors"], strict=True):
        _reduce_scatter_into(call, output, call.call(aten.stack.default, list(sources)))
    return list(outputs), None


def _all_to_all_base(call: _Rewriter) -> Any:
    output, source = call.arguments["output"], call.arguments["input"]
    count = len(call.ranks)
    split = ((call.arguments["output_split_sizes"], output), (call.arguments["input_split_sizes"], source))
    sizes = [list(given) if given else [_shape(tensor)[0] // count] * count for given, tensor in split]
    received = call.collective(functional.all_to_all_single.default, source, *sizes)
    call.write(output, call.call(aten.reshape.default, received, list(_shape(output))))
    return None


def _all_to_all_list(call: _Rewriter) -> Any:
    outputs, sources = call.arguments["output_tensors"], call.arguments["input_tensors"]
    shapes = {_shape(tensor) for tensor in (*outputs, *sources)}
    if len(shapes) != 1:
        raise UnsupportedCollectiveError("an all-to-all of tensors of several sizes has no functional form")
    sizes = [1] * len(sources)
    rows = call.call(aten.stack.default, list(sources))
    received = call.collective(functional.all_to_all_single.default, rows, sizes, sizes)
    for position, output in enumerate(outputs):
        call.write(output, call.call(aten.select.int, received, 0, position))
    return list(outputs), None


def _send(call: _Rewriter) -> Any:
    for tensor in call.arguments["tensors"]:
        destination = call.ranks[call.arguments["dst"]]
        call.call(functional.isend.default, tensor, destination, call.arguments["tag"], call.group)
    return None


def _receive(call: _Rewriter) -> Any:
    for tensor in call.arguments["tensors"]:
        source = call.ranks[call.arguments["src"]]
        call.write(tensor, call.collective(functional.irecv.default, tensor, source, call.arguments["tag"]))
    return None


def _barrier(call: _Rewriter) -> Any:
    """A barrier computes nothing, but all ranks must come to it: kept as a reduction of a number nobody reads."""
    call.collective(functional.all_reduce.default, call.call(aten.zeros.default, [1]), "sum")
    return None


_FORMS: dict[str, Callable[[_Rewriter], Any]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce,
    "broadcast_": _broadcast,
    "_allgather_base_": _on_one_or_several(_gather_into),
    "allgather_into_tensor_coalesced_": _on_one_or_several(_gather_into),
    "allgather_": _gather_list,
    "_reduce_scatter_base_": _on_one_or_several(_reduce_scatter_into),
    "reduce_scatter_tensor_coalesced_": _on_one_or_several(_reduce_scatter_into),
    "reduce_scatter_": _reduce_scatter_list,
    "alltoall_base_": _all_to_all_base,
    "alltoall_": _all_to_all_list,
    "send": _send,
    "recv_": _receive,
    "barrier": _barrier,
}
