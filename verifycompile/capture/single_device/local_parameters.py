"""Whether a model holds its parameters whole: a single-device program of a rank's parts would have local sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.fx

from verifycompile.capture.boundary import Export
from verifycompile.capture.placed import by_pattern
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Program, ProgramInput, Role
from verifycompile.torch_interface.dtensor.placements import sharded_dimension
from verifycompile.torch_interface.dynamo.aot import Origin, Part
from verifycompile.torch_interface.ranks.rank_values import COLLECTIVE_NAMESPACES, namespace
from verifycompile.torch_interface.source_lines.source import location_of

_GIVE = "Pass the single-device program as the option `spec`"


def check_whole_parameters(exported: Export, implementation: Program, options: Options) -> None:
    """Raise ``UsageError`` VC309 where plain parameters are a rank's parts, or nothing says that they are whole.

    What says so: DTensors among the parameters, of which the others are then replicated by default; a data-parallel
    wrapper; the option ``param_placements``; a forward that does not communicate.
    """
    parameters = [item for item in implementation.inputs if item.role is Role.PARAMETER]
    plain = [item for item in parameters if item.name in _plain_names(exported)]
    if not plain or len(plain) < len(parameters):
        return
    own_names = {spec_name: name for name, spec_name in options.param_names.items()}
    placements = {
        item.name: by_pattern(options.param_placements, own_names.get(item.name, item.name)) for item in plain
    }
    parts = [item for item in plain if any(sharded_dimension(one) is not None for one in placements[item.name] or ())]
    if parts:
        raise UsageError(
            "VC309",
            f"{_listed(parts)} is a rank's part of a parameter, so the model was built with the sizes of one rank, and "
            f"no single-device program can be recovered from it. {_GIVE}.",
        )
    unsaid = [item for item in plain if placements[item.name] is None]
    wrapped = any(output.outer_mean for output in implementation.outputs)
    collective = _collective_in_forward(implementation.graph)
    if not unsaid or wrapped or collective is None:
        return
    raise UsageError(
        "VC309",
        f"nothing says whether every rank holds the plain parameter {_listed(unsaid)} whole or a part of it, and the "
        f"forward communicates ({collective}), so no single-device program can be recovered. {_GIVE}; or say with "
        "`param_placements` that every rank holds it whole: `param_placements={'*': (Replicate(),)}`.",
    )


def _plain_names(exported: Export) -> set[str]:
    return {
        exported.names[flat.index].name
        for flat in exported.joint.inputs
        if flat.origin is Origin.ARGUMENT and flat.part is Part.WHOLE
    }


def _listed(items: Sequence[ProgramInput]) -> str:
    more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
    return f"`{items[0].name}`{more}"


def _collective_in_forward(graph: torch.fx.GraphModule) -> str | None:
    """The first collective of the forward pass, and where it is."""
    for node in graph.graph.nodes:
        is_collective = namespace(node) in COLLECTIVE_NAMESPACES and "wait_tensor" not in str(node.target)
        if is_collective and not node.meta.get("autograd_backward"):
            place = location_of(node)
            where = "" if place is None else f" at {Path(place.file).name}:{place.line}"
            return f"`{str(node.target).split('.')[1]}`{where}"
    return None
