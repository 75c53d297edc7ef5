"""From a witness to the counterexample that a report shows, with the script that replays it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from verifycompile.cause import Cause, Subject
from verifycompile.cause.draft import DraftError
from verifycompile.diagnostics.describe import MAX_INLINE_ELEMENTS
from verifycompile.diagnostics.finding import Counterexample, Sparse
from verifycompile.program import Mesh, Program
from verifycompile.reduction.recorded import dimensions_of
from verifycompile.reproduction import NoScriptError, reproduction_script
from verifycompile.torch_interface.logs import without_logged_failures
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.witness import Witness

_WRITTEN_OUT = 16
"""Elements of an input up to which all are told, zeros included."""


def counterexample_of(witness: Witness, implementation: Program) -> Counterexample:
    """The counterexample that ``witness`` of this program is, without a script."""
    return Counterexample(
        inputs={name: _shown(value) for name, value in witness.inputs.items()},
        spec_value=witness.spec_value,
        implementation_value=witness.impl_value,
        rank=witness.rank,
        output=witness.output,
        index=witness.index,
        seed=witness.seed,
        detail=witness.detail,
        premise=witness.premise,
        mesh={} if implementation.mesh is None else ranks_of(implementation.mesh),
        shapes=_shapes(implementation) if implementation.mesh is None else {},
    )


def _shapes(program: Program) -> dict[str, tuple[int, ...]]:
    """Of the values whose sizes are numbers, by node."""
    shapes = {node.name: dimensions_of(node) for node in program.graph.graph.nodes}
    return {
        name: tuple(size for size in found[0] if size is not None)
        for name, found in shapes.items()
        if len(found) == 1 and None not in found[0]
    }


def with_script(
    found: Counterexample, witness: Witness, spec: Program, implementation: Program, mended: Program | None = None
) -> Counterexample:
    """``found`` with the script that replays it, which has the mended program as well where that is known.

    ``spec``, ``implementation``: the programs that the witness is of.
    """
    if witness.shown is None:
        return found
    try:
        with real_tensors():
            script = reproduction_script(spec, implementation, witness.shown, mended)
    except NoScriptError as error:
        return dataclasses.replace(found, no_script=str(error))
    return dataclasses.replace(found, script=script)


def mended_program(subject: Subject, causes: Sequence[Cause]) -> Program | None:
    """The implementation with the changes of all causes; None where they are no changes of these graphs."""
    try:
        drafts = subject.drafts()
        with without_logged_failures():
            if not all(subject.apply(drafts[cause.draft], cause.moves) for cause in causes):
                return None
        programs = subject.programs()
    except DraftError:
        return None
    return None if programs is None else programs[1]


def _shown(value: torch.Tensor) -> object:
    if value.numel() <= _WRITTEN_OUT:
        return value.tolist()
    places = [tuple(place) for place in value.nonzero().tolist()]
    if len(places) <= MAX_INLINE_ELEMENTS:
        return Sparse(tuple(value.shape), tuple((place, value[place].item()) for place in places))
    kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.dtype == torch.bool or value.is_complex():
        return kind
    return f"{kind}, {value.min().item():.4g} to {value.max().item():.4g}"


def ranks_of(mesh: Mesh) -> dict[str, int]:
    """The user's axes: one that was cut into parts has as many ranks as they have together."""
    sizes: dict[str, int] = {}
    for axis in mesh.axes:
        name = axis.part_of or axis.name
        sizes[name] = sizes.get(name, 1) * axis.size
    return sizes
