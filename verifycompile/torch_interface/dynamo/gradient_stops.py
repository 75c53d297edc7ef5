"""What stops gradients in a Dynamo graph, `detach`, `.data` and regions without gradients, and traces without it.

A function of `torch.autograd` whose operands need no gradient is traced without its backward: so `detach` has to be
nothing already where Dynamo traces it. What is computed in a region is the same either way.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Generator
from typing import Any

import torch
import torch.fx
from torch._dynamo.variables.tensor import TensorVariable

from verifycompile.program import SourceLocation
from verifycompile.torch_interface.replaced import replaced
from verifycompile.torch_interface.source_lines.model_lines import model_location_of

_DATA = torch._C._autograd._get_data_attr  # pyright: ignore[reportAttributeAccessIssue]  # no stub names it
_MODE = torch._C._set_grad_enabled
_passed: contextvars.ContextVar[Stop | None] = contextvars.ContextVar("gradients pass", default=None)


@dataclasses.dataclass(frozen=True)
class Stop:
    """A line of the source that stops gradients. ``is_region``: it is the first that is computed without them."""

    place: SourceLocation
    is_region: bool

    @property
    def _key(self) -> tuple[str, int, bool]:
        return self.place.file, self.place.line, self.is_region


def stops_of(graph: torch.fx.Graph) -> tuple[Stop, ...]:
    """The lines that stop gradients, each once."""
    return tuple({stop._key: stop for stop in _stops(graph).values()}.values())


@contextlib.contextmanager
def gradients_pass(stop: Stop) -> Generator[None]:
    """Inside, frames are traced, and graphs exported, as if their source did not have ``stop``."""
    call_method, data = TensorVariable.call_method, TensorVariable.method_attr_data

    def is_here(tx: Any) -> bool:
        return not stop.is_region and (tx.f_code.co_filename, tx.lineno) == (stop.place.file, stop.place.line)

    def call(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        return self if name == "detach" and is_here(tx) else call_method(self, tx, name, *args, **kwargs)

    def data_of(self: Any, tx: Any) -> Any:
        return self if is_here(tx) else data(self, tx)

    token = _passed.set(stop)
    try:
        with replaced(((TensorVariable, "call_method", call), (TensorVariable, "method_attr_data", data_of))):
            yield
    finally:
        _passed.reset(token)


def without_regions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of the graph without the region that ``gradients_pass`` names; itself where it names none of the graph."""
    stop = _passed.get()
    if stop is None or not stop.is_region:
        return module
    found = {node.name for node, other in _stops(module.graph).items() if other._key == stop._key}
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in [node for node in graph.nodes if node.name in found]:
        graph.erase_node(node)
    copied = torch.fx.GraphModule(module, graph)  # with the attributes that the nodes read
    copied.meta.update(module.meta)
    return copied


def _stops(graph: torch.fx.Graph) -> dict[torch.fx.Node, Stop]:
    """The calls that stop gradients; of a region, those that begin and end it."""
    found: dict[torch.fx.Node, Stop] = {}
    begun: torch.fx.Node | None = None
    inside: SourceLocation | None = None
    for node in graph.nodes:
        if node.target is _MODE and node.op == "call_function":
            if node.args[0] is False:
                begun = begun or node
                continue
            if begun is not None and inside is not None:
                found.update(dict.fromkeys((begun, node), Stop(inside, is_region=True)))
            begun, inside = None, None
            continue
        place = model_location_of(node) if node.op in ("call_function", "call_method", "call_module") else None
        if place is None:
            continue
        inside = place if begun is not None and inside is None else inside
        if (node.op == "call_method" and node.target == "detach") or node.target is _DATA:
            found[node] = Stop(place, is_region=False)
    return found
