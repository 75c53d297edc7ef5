"""Single edits of certificates, by what is edited: a leaf, an operand, an operator, a node, an input or output."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.certificate.test_certificate import get_at, leaves, set_at
from tests.certificate.test_forged import _other

Data = dict[str, Any]
Edit = Callable[[Data, random.Random], None]
_SIDES = ("spec", "implementation", "implementation")
"""That of all ranks is edited twice as often."""


def edits(original: Data, edit: Edit, seed: int) -> Iterator[Data]:
    """Changed copies without end; those in which nothing is changed are left out."""
    draw = random.Random(seed)
    while True:
        data = copy.deepcopy(original)
        edit(data, draw)
        if data != original:
            yield data


def of_claims(data: Data, draw: random.Random) -> None:
    """A leaf of all that is said beside the programs."""
    paths = [path for path in leaves(data) if path[0] not in ("seal", "version", "spec", "implementation")]
    _change(data, draw.choice(paths), draw)


def of_programs(data: Data, draw: random.Random) -> None:
    """Something of one of the programs."""
    side = data[draw.choice(_SIDES)]
    draw.choice((_leaf, _number, _operand, _operator, _node_left_out, _arguments_exchanged, _ends_exchanged))(side, draw)


def _change(held: Any, path: tuple[Any, ...], draw: random.Random) -> None:
    set_at(held, path, _other(get_at(held, path), draw))


def _leaf(side: Data, draw: random.Random) -> None:
    _change(side, draw.choice(list(leaves(side))), draw)


def _number(side: Data, draw: random.Random) -> None:
    """Of the arguments of a call."""
    arguments = draw.choice([node["args"] for node in side["nodes"] if node.get("args")])
    numbers = [path for path in leaves(arguments) if isinstance(get_at(arguments, path), int | float)]
    if numbers:
        _change(arguments, draw.choice(numbers), draw)


def _operand(side: Data, draw: random.Random) -> None:
    node = draw.choice([node for node in side["nodes"] if node.get("args") or node.get("operands")])
    other = draw.choice([node["name"] for node in side["nodes"] if "name" in node])
    if "operands" in node:
        node["operands"][draw.randrange(len(node["operands"]))] = other
    elif taken := [path for path in leaves(node["args"]) if path[-1] == "node"]:
        set_at(node["args"], draw.choice(taken), other)


def _operator(side: Data, draw: random.Random) -> None:
    calls = [node for node in side["nodes"] if "target" in node]
    draw.choice(calls)["target"] = draw.choice(calls)["target"]


def _node_left_out(side: Data, draw: random.Random) -> None:
    del side["nodes"][draw.randrange(len(side["nodes"]))]


def _arguments_exchanged(side: Data, draw: random.Random) -> None:
    one, other = (draw.choice([node for node in side["nodes"] if "args" in node]) for _ in range(2))
    one["args"], other["args"] = other["args"], one["args"]


def _ends_exchanged(side: Data, draw: random.Random) -> None:
    """What is said of two inputs, or of two outputs."""
    items = side[draw.choice(("inputs", "outputs"))]
    one, other = draw.choice(items), draw.choice(items)
    field = draw.choice([field for field in one if field in other])
    one[field], other[field] = other[field], one[field]
