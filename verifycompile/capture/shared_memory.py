"""Parameters that lie in one memory: what updates one updates the other, after the graphs that are compared."""

from __future__ import annotations

import torch

from verifycompile.capture.boundary import Export, role_of
from verifycompile.program import Blocker, Role
from verifycompile.torch_interface.aot import Origin, Part
from verifycompile.torch_interface.memory import sharing


def differing_memory(spec: Export, implementation: Export) -> tuple[Blocker, ...]:
    """A blocker for each pair of parameters that share memory in the model alone, or in a given spec alone."""
    expected, held = _parameters(spec), _parameters(implementation)
    common = expected.keys() & held.keys()
    whole = sharing({name: value for name, value in expected.items() if name in common})
    own = sharing({name: value for name, value in held.items() if name in common})
    return tuple(
        Blocker(
            None,
            "VC304",
            f"`{first}` and `{second}` share memory in the {has}, and not in the {lacks}: what updates one updates "
            "the other.",
        )
        for has, lacks, pairs in (("model", "spec", own - whole), ("spec", "model", whole - own))
        for first, second in sorted(pairs)
    )


def _parameters(exported: Export) -> dict[str, torch.Tensor]:
    return {
        exported.names[flat.index].name: exported.traced.example_inputs[flat.index]
        for flat in exported.joint.inputs
        if flat.origin is Origin.ARGUMENT
        and flat.part in (Part.WHOLE, Part.LOCAL)
        and role_of(exported, flat) is Role.PARAMETER
    }
