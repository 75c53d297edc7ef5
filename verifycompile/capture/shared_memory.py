"""Parameters that lie in one memory: what updates one updates the other, after the graphs that are compared."""

from __future__ import annotations

from verifycompile.capture.boundary import Export, values_of
from verifycompile.program import Blocker, Role
from verifycompile.torch_interface.memory import sharing


def differing_memory(spec: Export, implementation: Export) -> tuple[Blocker, ...]:
    """A blocker for each pair of parameters that share memory in the model alone, or in a given spec alone."""
    expected, held = values_of(spec, Role.PARAMETER), values_of(implementation, Role.PARAMETER)
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
