"""Numbers that Dynamo saw change between calls: real ones it reads from tensors that it passes in.

A spec is traced once, so that Dynamo sees nothing change; the same numbers must be inputs there too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Generator
from typing import Any

import torch.fx
from torch._dynamo.pgo import auto_dynamic
from torch._dynamo.variables import builder
from torch.fx.experimental.symbolic_shapes import DimDynamic, SymIntSymbolicContext

from verifycompile.torch_interface.operators.prims import reads_real_number
from verifycompile.torch_interface.replaced import replaced


def inputs_read_as_numbers(graph: torch.fx.GraphModule) -> tuple[torch.fx.Node, ...]:
    """Inputs of an ATen graph of which it reads a real number."""
    read = (node.all_input_nodes[0] for node in graph.graph.nodes if reads_real_number(node))
    return tuple(dict.fromkeys(node for node in read if node.op == "placeholder"))


@contextlib.contextmanager
def tracing_numbers_as_inputs(attributes: Collection[str]) -> Generator[None]:
    """While entered, Dynamo takes numbers that attributes or variables of these names hold for inputs."""
    if not attributes:
        yield
        return
    seen = builder.process_automatic_dynamic

    def process(translator: Any, source: str, entry: Any, **options: Any) -> Any:
        found = seen(translator, source, entry, **options)
        if not isinstance(entry.scalar, float) or last_name(source) not in attributes:
            return found
        return dataclasses.replace(found, scalar=auto_dynamic)

    wrap = builder.VariableBuilder.wrap_symint

    def wrap_whole(
        self: Any, value: int, dynamism: DimDynamic | None = None, context: SymIntSymbolicContext | None = None
    ) -> Any:
        if dynamism is None and last_name(self.source.name) in attributes:
            dynamism = DimDynamic.DYNAMIC
        return wrap(self, value, dynamism, context)

    wrapping = (builder.VariableBuilder, "wrap_symint", wrap_whole)
    with replaced([(builder, "process_automatic_dynamic", process), wrapping]):
        yield


def last_name(source: str) -> str:
    """``scale`` of ``L['self'].scale``, of ``L['scale']`` and of ``layers.0.scale``."""
    return source.rstrip("']").replace("['", ".").rpartition(".")[2]
