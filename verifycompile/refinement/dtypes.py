"""Dtypes at the boundary: a proof is about real and whole numbers, so that those of both programs are compared here."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.lowering.recorded import dtype_of
from verifycompile.program import OutputKind, Program, Role
from verifycompile.refinement.mismatch import Mismatch

_COMPARED = (Role.INPUT, Role.PARAMETER, Role.BUFFER)


def mismatched_dtype(spec: Program, implementation: Program) -> Mismatch | None:
    """The first output or input of which one program has another kind of number: no rounding explains it."""
    for name, (expected, whole), (found, own) in _differing(spec, implementation):
        if _kind(whole) != _kind(own):
            message = f"`{name}` is of {own} in the implementation, of {whole} in the spec"
            return Mismatch("VC111", message, name, expected, found)
    return None


def differing_precisions(spec: Program, implementation: Program) -> list[str]:
    """What the programs have in different precisions, as assumptions: the proof takes rounding for no difference.

    A gradient has the dtype of what it is the gradient of.
    """
    names: dict[tuple[str, str], dict[str, None]] = {}
    for name, (_, whole), (_, own) in _differing(spec, implementation):
        names.setdefault((str(own), str(whole)), {})[name] = None
    listed: list[str] = []
    for (own, whole), found in names.items():
        text = (
            f"rounding is no difference: {', '.join(f'`{name}`' for name in found)} "
            f"{'is' if len(found) == 1 else 'are'} of {own} in the implementation, of {whole} in the spec"
        )
        listed.append(Assumption(text, AssumptionKind.PRECISION, found))
    return listed


_Typed = tuple[torch.fx.Node, torch.dtype]


def _differing(spec: Program, implementation: Program) -> Iterator[tuple[str, _Typed, _Typed]]:
    expected = {item.name: item.node for item in spec.inputs}
    expected |= {output.name: output.node for output in spec.outputs}
    inputs = [(item.name, item.node) for item in implementation.inputs if item.role in _COMPARED]
    outputs = [(o.name, o.node) for o in implementation.outputs if o.kind is not OutputKind.GRADIENT]
    for name, node in (*inputs, *outputs):
        whole, own = dtype_of(expected.get(name)), dtype_of(node)
        if whole is not None and own is not None and own is not whole:
            yield name, (expected[name], whole), (node, own)


def _kind(dtype: torch.dtype) -> str:
    """Real and complex numbers differ by rounding alone; whole numbers by where they wrap around."""
    if dtype.is_floating_point:
        return "real"
    return "complex" if dtype.is_complex else str(dtype)
