"""From a witness to the counterexample that a report shows, with the script that replays it."""

from __future__ import annotations

import dataclasses

from verifycompile.diagnostics.describe import describe_difference
from verifycompile.diagnostics.finding import Counterexample
from verifycompile.program import Program
from verifycompile.reproduction import NoScriptError, reproduction_script
from verifycompile.torch_interface.evaluation import real_tensors
from verifycompile.witness import Witness


def counterexample_of(witness: Witness, spec: Program, implementation: Program) -> Counterexample:
    """The counterexample that ``witness`` of these two programs is."""
    found = Counterexample(
        inputs=witness.inputs,
        spec_value=witness.spec_value,
        implementation_value=witness.impl_value,
        rank=witness.rank,
        output=witness.output,
        index=witness.index,
        seed=witness.seed,
        detail=witness.detail,
        premise=witness.premise,
    )
    if witness.shown is None:
        return found
    try:
        with real_tensors():
            script = reproduction_script(spec, implementation, witness.shown, describe_difference(found))
    except NoScriptError as error:
        return dataclasses.replace(found, no_script=str(error))
    return dataclasses.replace(found, script=script)
