"""The process groups of captured graphs, by their members."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping

import torch.fx

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.program import Blocker
from verifycompile.torch_interface.communication.in_place_collectives import Ranks, is_key, key_of, ranks_of
from verifycompile.torch_interface.dynamo.graph_modules import GroupObject, group_object, members_by_name
from verifycompile.torch_interface.operators.schema import names_of
from verifycompile.torch_interface.ranks.rank_values import namespace


class UnknownGroupError(Exception):
    """The members of a process group are not known in this process."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


_FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd")
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


def name_groups(graph: torch.fx.GraphModule, groups: GroupTable) -> tuple[Blocker, ...]:
    """Let every collective of ``graph``, in place, name its group by ``key_of``; one blocker for each that cannot."""
    blockers: list[Blocker] = []
    for node in graph.graph.nodes:
        if namespace(node) in ("c10d", "_dtensor", *_FUNCTIONAL):
            try:
                _name_group(graph, node, groups)
            except UnknownGroupError as error:
                text = f"the members of the process group `{error.name}` are not known here; pass them as `groups`."
                blockers.append(Blocker(None, "VC206", text))
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


def _group_size(node: torch.fx.Node) -> int | None:
    names = names_of(node.target)
    size = node.args[names.index("group_size")] if "group_size" in names else None
    return size if isinstance(size, int) else None


_IDENTITIES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
"""Collectives that return their operand in a group of one rank."""


def without_groups_of_one(graph: torch.fx.GraphModule) -> None:
    """Take the collectives among one rank out of a functional graph, in place."""
    for node in list(graph.graph.nodes):
        if namespace(node) in _FUNCTIONAL and str(node.target).split(".")[1] in _IDENTITIES:
            key = node.args[-1]
            if isinstance(key, str) and is_key(key) and len(ranks_of(key)) == 1:
                node.replace_all_uses_with(node.args[0])
                graph.graph.erase_node(node)
