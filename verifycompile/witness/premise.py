"""What sets an input apart from ordinary ones, in words."""

from __future__ import annotations

from collections.abc import Iterator

from verifycompile.program import Program
from verifycompile.witness.ignored import ignored_classes
from verifycompile.witness.indices import counts_from_the_end
from verifycompile.witness.inputs import Inputs, tensor_inputs


def premise_of(spec: Program, inputs: Inputs) -> str:
    """What the inputs hold that most data do not; "" where they are ordinary."""
    return "; ".join(_unusual(spec, inputs))


def _unusual(spec: Program, inputs: Inputs) -> Iterator[str]:
    classes = ignored_classes(spec)
    for name, entry in tensor_inputs(spec).items():
        value = inputs.spec[name]
        ignored = classes.get(entry.node)
        if ignored is not None and bool((value == ignored).any()):
            yield (
                f"`{name}` holds {ignored}, the class that the spec's loss ignores; "
                "no difference was found with labels of other classes alone"
            )
        elif counts_from_the_end(entry.node) and bool((value < 0).any()):
            yield (
                f"`{name}` holds negative indices, which count from the end; "
                "no difference was found without negative indices"
            )
