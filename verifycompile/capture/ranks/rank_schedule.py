"""What the ranks do, in one order that all of them can keep: matches every collective and every message.

A rank walks through its graph. At a collective it waits for the other members of the group; where a received value is
first read, or where the program waits for it, for its sender; where the program waits for a message to be sent
(``dist.send``, or ``wait()`` of what ``dist.isend`` returned), until its receiver has asked for it: nothing is taken as
buffered. What is sent in a batch together with receives waits for nobody. Where ranks deadlock, or members of
a group meet at different collectives, the program hangs or exchanges the wrong values: VC109.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.torch_interface.operators.calls import by_name
from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.torch_interface.ranks.rank_values import COLLECTIVE_NAMESPACES
from verifycompile.torch_interface.source_lines.value_names import value_name

RankNode = tuple[int, torch.fx.Node]
"""A node of the graph of one rank: the position of the rank in the mesh, and the node."""


class OrderError(Exception):
    """VC109. ``first`` and ``second``: where two ranks wait; ``second`` is None where nobody comes."""

    def __init__(self, message: str, first: RankNode, second: RankNode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.first = first
        self.second = second


@dataclasses.dataclass(frozen=True)
class RankGraph:
    """The graph of the rank with the global number ``rank``.

    ``members``: group argument of a collective -> global ranks of the group, in order.
    ``waits``: the graph waits for receives where the program does. Else where a value is first read.
    """

    rank: int
    graph: torch.fx.GraphModule
    members: Callable[[Any], tuple[int, ...]]
    waits: bool = False


@dataclasses.dataclass(frozen=True)
class Local:
    """A node that a rank evaluates by itself."""

    node: RankNode


@dataclasses.dataclass(frozen=True)
class Meeting:
    """A collective: one node of every member, in the order of the group. ``arguments``: by name, a mapping a member."""

    name: str
    nodes: tuple[RankNode, ...]
    arguments: tuple[Mapping[str, Any], ...]


Step = Local | Meeting


@dataclasses.dataclass(frozen=True)
class Schedule:
    """``deliveries``: receiving node, with the position among its results (None for the only one) -> the value sent."""

    steps: tuple[Step, ...]
    deliveries: Mapping[tuple[RankNode, int | None], RankNode]


_TRANSPARENT = ("_c10d_functional.wait_tensor.default",)
_COPY = "aten.copy.default"


def is_meeting(name: str) -> bool:
    """Whether an operator is a collective that all members of a group must call."""
    library = name.partition(".")[0]
    if name in _TRANSPARENT or name.startswith(("_c10d_functional.isend", "_c10d_functional.irecv")):
        return False
    return library in COLLECTIVE_NAMESPACES or name.startswith("_dtensor.shard_dim_alltoall")


def schedule(graphs: Sequence[RankGraph]) -> Schedule:
    """All steps of all ranks in an order in which they can happen. Raises ``OrderError``."""
    return _Scheduler(graphs).run()


Channel = tuple[int, int, int, tuple[int, ...]]
"""Sender, receiver, tag, and members of the group: messages of one channel arrive in the order in which they leave."""


@dataclasses.dataclass(frozen=True)
class _Post:
    """One call that sends or receives."""

    node: RankNode
    peer: int
    tag: int
    group: Any


@dataclasses.dataclass(frozen=True)
class _Received:
    """A receive that was posted: the ``number``-th from ``channel``; ``position``: among the node's results."""

    node: RankNode
    channel: Channel
    number: int
    position: int | None


class _Scheduler:
    def __init__(self, graphs: Sequence[RankGraph]) -> None:
        self.graphs = graphs
        self.place = {graph.rank: position for position, graph in enumerate(graphs)}
        self.nodes = [list(graph.graph.graph.nodes) for graph in graphs]
        self.next = [0] * len(graphs)
        self.steps: list[Step] = []
        self.sent: dict[Channel, list[tuple[RankNode, torch.fx.Node]]] = {}
        self.received: dict[Channel, list[_Received]] = {}
        self.pending: list[dict[torch.fx.Node, list[_Received]]] = [{} for _ in graphs]
        self.sending: list[dict[torch.fx.Node, tuple[Channel, int]]] = [{} for _ in graphs]
        """Send that the program may wait for -> channel, and how many messages went through it before."""

    def run(self) -> Schedule:
        moved = True
        while moved:
            moved = False
            for position in range(len(self.graphs)):
                while self._advance(position):
                    moved = True
            moved = self._meet() or moved
        return Schedule(tuple(self.steps), self._check_finished())

    def _node(self, position: int) -> torch.fx.Node | None:
        index = self.next[position]
        return self.nodes[position][index] if index < len(self.nodes[position]) else None

    def _advance(self, position: int) -> bool:
        """Do the next node of a rank, unless it waits."""
        node = self._node(position)
        if node is None:
            return False
        name = operator_name(node.target) or "" if node.op == "call_function" else ""
        if name in _TRANSPARENT and self._is_kept(position, node.args[0]):
            return False
        if self._passes_on(position, node, name):
            self.next[position] += 1
            return True
        if not self._ready(position, node) or is_meeting(name):
            if _is_batch(node) and self._ready(position, node):
                self._batch(position, node)
                self.next[position] += 1
                return True
            return False
        if name.startswith("_c10d_functional.isend"):
            arguments = _arguments(node)
            post = _Post((position, node), arguments["dst"], arguments["tag"], arguments["group_name"])
            self.sending[position][node] = self._send(post, node.args[0])
        elif name.startswith("_c10d_functional.irecv"):
            arguments = _arguments(node)
            post = _Post((position, node), arguments["src"], arguments["tag"], arguments["group_name"])
            self._receive(post, None)
        self.steps.append(Local((position, node)))
        self.next[position] += 1
        return True

    def _is_kept(self, position: int, source: Any) -> bool:
        """Whether a rank that waits for the message ``source`` has to."""
        if not isinstance(source, torch.fx.Node):
            return False
        if self.graphs[position].waits and not all(map(self._arrived, self.pending[position].get(source, ()))):
            return True
        return source in self.sending[position] and not self._is_taken(*self.sending[position][source])

    def _is_taken(self, channel: Channel, number: int) -> bool:
        return len(self.received.get(channel, ())) > number

    def _passes_on(self, position: int, node: torch.fx.Node, name: str) -> bool:
        """Waiting, copying whole and taking from a batch do not read a received value: it is still to come."""
        if node.target is operator.getitem and _is_batch(node.args[0]):
            received = self.pending[position].get(node.args[0], ())  # type: ignore[call-overload]  # the argument is a node
            self.pending[position][node] = [item for item in received if item.position == node.args[1]]
            self.steps.append(Local((position, node)))
            return True
        if name not in (*_TRANSPARENT, _COPY):
            return False
        source = node.args[1] if name == _COPY else node.args[0]
        waiting = self.pending[position].get(source) if isinstance(source, torch.fx.Node) else None
        if waiting is None or all(self._arrived(item) for item in waiting):
            return False
        self.pending[position][node] = waiting
        self.steps.append(Local((position, node)))
        return True

    def _ready(self, position: int, node: torch.fx.Node) -> bool:
        return all(
            self._arrived(item) for operand in node.all_input_nodes for item in self.pending[position].get(operand, ())
        )

    def _arrived(self, item: _Received) -> bool:
        return len(self.sent.get(item.channel, ())) > item.number

    # -- messages

    def _batch(self, position: int, node: torch.fx.Node) -> None:
        arguments = _arguments(node)
        self.steps.append(Local((position, node)))
        rows = zip(arguments["op_list"], arguments["peer_list"], arguments["tag_list"], strict=True)
        for index, (kind, peer, tag) in enumerate(rows):
            post = _Post((position, node), peer, tag, arguments["group_name"])
            if kind == "isend":
                self._send(post, arguments["tensors"][index])
            else:
                self._receive(post, index)

    def _send(self, post: _Post, value: Any) -> tuple[Channel, int]:
        channel = self._channel(post, self.graphs[post.node[0]].rank, post.peer)
        earlier = self.sent.setdefault(channel, [])
        earlier.append(((post.node[0], value), post.node[1]))
        return channel, len(earlier) - 1

    def _receive(self, post: _Post, index: int | None) -> None:
        position, node = post.node
        channel = self._channel(post, post.peer, self.graphs[position].rank)
        earlier = self.received.setdefault(channel, [])
        item = _Received(post.node, channel, len(earlier), index)
        earlier.append(item)
        self.pending[position].setdefault(node, []).append(item)

    def _channel(self, post: _Post, source: int, target: int) -> Channel:
        members = self.graphs[post.node[0]].members(post.group)
        for rank in (source, target):
            if rank not in self.place or rank not in members:
                raise OrderError(f"rank {rank} is no member of the group of `{value_name(post.node[1])}`", post.node)
        return source, target, post.tag, members

    # -- collectives

    def _meet(self) -> bool:
        """Let every group meet whose members all wait for one another."""
        met = False
        for position in range(len(self.graphs)):
            node = self._node(position)
            name = self._meeting_name(position)
            if node is None or not name or not self._ready(position, node):
                continue
            arguments = _arguments(node)
            members = self._members(position, node, arguments)
            others = [self.place[rank] for rank in members]
            waiting = [self._waits_for(other, members) for other in others]
            if not all(waiting):
                continue
            nodes = tuple((other, self.nodes[other][self.next[other]]) for other in others)
            rows = tuple(_arguments(other_node) for _, other_node in nodes)
            self._check_meeting(name, nodes, rows)
            self.steps.append(Meeting(name, nodes, rows))
            for other in others:
                self.next[other] += 1
            met = True
        return met

    def _meeting_name(self, position: int) -> str:
        node = self._node(position)
        name = operator_name(node.target) or "" if node is not None and node.op == "call_function" else ""
        return name if is_meeting(name) and "batch_p2p_ops" not in name else ""

    def _waits_for(self, position: int, members: tuple[int, ...]) -> bool:
        node = self._node(position)
        if node is None or not self._meeting_name(position) or not self._ready(position, node):
            return False
        return self._members(position, node, _arguments(node)) == members

    def _members(self, position: int, node: torch.fx.Node, arguments: Mapping[str, Any]) -> tuple[int, ...]:
        group = next((arguments[key] for key in ("group_name", "group") if key in arguments), None)
        members = self.graphs[position].members(group)
        if self.graphs[position].rank not in members:
            rank = self.graphs[position].rank
            raise OrderError(f"rank {rank} calls a collective of the ranks {list(members)}", (position, node))
        missing = [rank for rank in members if rank not in self.place]
        if missing:
            text = f"the group of `{value_name(node)}` has rank {missing[0]}, which has no graph"
            raise OrderError(text, (position, node))
        return members

    def _check_meeting(self, name: str, nodes: tuple[RankNode, ...], rows: tuple[Mapping[str, Any], ...]) -> None:
        first = nodes[0]
        for other, row in zip(nodes, rows, strict=True):
            if operator_name(other[1].target) != name:
                texts = (self._text(first), self._text(other))
                raise OrderError(f"ranks meet at different collectives: {texts[0]}, {texts[1]}", first, other)
            for key, value in row.items():
                if key in _VALUES or key in _SIZES or value == rows[0].get(key):
                    continue
                if key in ("group_name", "group"):
                    continue
                text = f"`{key}` of `{_short(name)}` is {rows[0].get(key)} on rank {self._rank(first)}"
                raise OrderError(f"{text} and {value} on rank {self._rank(other)}", first, other)
        self._check_sizes(name, nodes, rows)

    def _check_sizes(self, name: str, nodes: tuple[RankNode, ...], rows: tuple[Mapping[str, Any], ...]) -> None:
        described = [[_described(row[key]) for key in _VALUES if key in row] for row in rows]
        first = nodes[0]
        for other, found in zip(nodes, described, strict=True):
            if "all_to_all" in name:
                same = [[item[1] for item in value] for value in (found, described[0])]
            else:
                same = [found, described[0]]
            if same[0] != same[1]:
                text = f"`{_short(name)}` gets {_shown(described[0])} on rank {self._rank(first)}"
                raise OrderError(f"{text} and {_shown(found)} on rank {self._rank(other)}", first, other)
        if "all_to_all_single" not in name:
            return
        for i, sender in enumerate(rows):
            for j, receiver in enumerate(rows):
                sent, expected = sender["input_split_sizes"][j], receiver["output_split_sizes"][i]
                if sent != expected:
                    text = f"rank {self._rank(nodes[i])} sends {sent} rows to rank {self._rank(nodes[j])}"
                    raise OrderError(f"{text}, which expects {expected}", nodes[i], nodes[j])

    def _rank(self, node: RankNode) -> int:
        return self.graphs[node[0]].rank

    def _text(self, node: RankNode) -> str:
        return f"`{_short(operator_name(node[1].target) or '')}` on rank {self._rank(node)}"

    # -- the end

    def _check_finished(self) -> dict[tuple[RankNode, int | None], RankNode]:
        deliveries: dict[tuple[RankNode, int | None], RankNode] = {}
        stuck = [position for position in range(len(self.graphs)) if self._node(position) is not None]
        if stuck:
            raise self._hang(stuck)
        for channel, items in self.received.items():
            sent = self.sent.get(channel, [])
            for item in items[len(sent) :]:
                raise OrderError(f"rank {channel[1]} receives a message that rank {channel[0]} never sends", item.node)
            for item, (value, sender) in zip(items, sent, strict=False):
                self._check_message(channel, item, value, sender)
                deliveries[item.node, item.position] = value
        for channel, sent in self.sent.items():
            for value, node in sent[len(self.received.get(channel, [])) :]:
                text = f"rank {channel[0]} sends a message that rank {channel[1]} never receives"
                raise OrderError(text, (value[0], node))
        return deliveries

    def _check_message(self, channel: Channel, item: _Received, value: RankNode, sender: torch.fx.Node) -> None:
        node = item.node[1]
        buffer = node.args[0] if item.position is None else _arguments(item.node[1])["tensors"][item.position]
        if _described(value[1]) != _described(buffer):
            text = f"rank {channel[0]} sends {_shown([_described(value[1])])}"
            text += f" and rank {channel[1]} receives {_shown([_described(buffer)])}"
            raise OrderError(text, (value[0], sender), item.node)

    def _hang(self, stuck: list[int]) -> OrderError:
        """Name two ranks that wait for each other, a collective if there is one."""
        waiting = {position: self.nodes[position][self.next[position]] for position in stuck}
        at_collectives = [position for position in stuck if self._meeting_name(position)]
        for position in at_collectives:
            node = waiting[position]
            members = self._members(position, node, _arguments(node))
            for rank in members:
                other = self.place[rank]
                if self._waits_for(other, members):
                    continue
                text = f"rank {self.graphs[position].rank} waits in `{_short(operator_name(node.target) or '')}`"
                if other not in waiting:
                    return OrderError(f"{text} for rank {rank}, which ends without it", (position, node), None)
                elsewhere = (other, waiting[other])
                return OrderError(f"{text} for rank {rank}, which waits elsewhere", (position, node), elsewhere)
        for position in stuck:
            for operand in waiting[position].all_input_nodes:
                channel, number = self.sending[position].get(operand, (None, 0))
                if channel is None or self._is_taken(channel, number):
                    continue
                receiver = self.place[channel[1]]
                text = f"rank {channel[0]} waits in a send until rank {channel[1]} receives"
                if receiver not in waiting:
                    return OrderError(f"{text}, which ends without it", (position, operand))
                return OrderError(f"{text}, which waits itself", (position, operand), (receiver, waiting[receiver]))
        position = stuck[0]
        for operand in waiting[position].all_input_nodes:
            for item in self.pending[position].get(operand, ()):
                if not self._arrived(item):
                    source = self.place[item.channel[0]]
                    text = f"rank {item.channel[1]} waits for a message of rank {item.channel[0]}"
                    if source not in waiting:
                        return OrderError(f"{text}, which ends without sending it", item.node)
                    return OrderError(f"{text}, which waits itself", item.node, (source, waiting[source]))
        raise AssertionError("a rank stops without waiting")


def _is_batch(node: Any) -> bool:
    name = operator_name(node.target) if isinstance(node, torch.fx.Node) and node.op == "call_function" else None
    return name is not None and name.startswith("_c10d_functional.batch_p2p_ops")


_VALUES = ("input", "inputs", "tensor", "tensors")
_SIZES = ("output_split_sizes", "input_split_sizes")


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    return by_name(node.target, node.args, node.kwargs)


def _described(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(_described(item) for item in value)
    found = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    if not isinstance(found, torch.Tensor):
        return ((), None)
    return tuple(found.shape), found.dtype


def _shown(values: Sequence[tuple[Any, ...]]) -> str:
    return ", ".join(
        f"{str(value[1]).removeprefix('torch.')}{list(value[0])}" if len(value) == 2 else str(value) for value in values
    )


def _short(name: str) -> str:
    return name.split(".")[1] if "." in name else name
