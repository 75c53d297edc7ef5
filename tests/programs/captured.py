"""Captured programs of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from tests.programs.case import Case
from verifycompile.capture import capture_model
from verifycompile.options import Options
from verifycompile.program import Program


def capture(
    case: Case, mesh: DeviceMesh, *, given_spec: Case | None = None, options: Mapping[str, Any] | None = None
) -> tuple[Program, Program]:
    """Spec and implementation. ``given_spec``: the case whose single-device model is the spec, else it is recovered."""
    chosen = {"in_placements": case.input_placements()} if case.batch else {}
    chosen.update(options or {})
    if given_spec is not None:
        chosen["spec"] = given_spec.spec()
    return capture_model(case.build(mesh), case.rank_inputs(0), {}, Options.from_mapping(chosen))
