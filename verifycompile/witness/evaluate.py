"""Values of chosen nodes of two programs on one random input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from verifycompile.program import Program
from verifycompile.torch_interface.elements import real_tensors
from verifycompile.torch_interface.value_names import value_name
from verifycompile.witness.cost import elements, most_elements
from verifycompile.witness.draw import Distribution, draw
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.inputs import Inputs, tangent_inputs, tensor_inputs, with_traced_strides
from verifycompile.witness.interpreter import Interpreter


def values_on_one_input(
    spec: Program, implementation: Program, spec_nodes: Sequence[torch.fx.Node], nodes: Sequence[torch.fx.Node]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Both programs are those of a single device. Raises ``EvaluationError``, as for programs of too many elements."""
    if max(elements(spec), elements(implementation)) > most_elements():
        raise EvaluationError("the programs have more elements than are evaluated")
    with real_tensors():
        inputs = draw(spec, implementation, 0, Distribution.NORMAL, None)
        return _values(spec, inputs, spec_nodes), _values(implementation, inputs, nodes)


def _values(program: Program, inputs: Inputs, nodes: Sequence[torch.fx.Node]) -> list[torch.Tensor]:
    given = {
        entry.node: [with_traced_strides(inputs.spec[name], entry.node)]
        for name, entry in tensor_inputs(program).items()
    }
    given |= {
        entry.node: [with_traced_strides(inputs.tangents[name], entry.node)]
        for name, entry in tangent_inputs(program).items()
    }
    interpreter = Interpreter(program, given)
    values: list[torch.Tensor] = []
    for node in nodes:
        value = interpreter.value(node)[0]
        if not isinstance(value, torch.Tensor):
            raise EvaluationError(f"`{value_name(node)}` is no tensor")
        values.append(value)
    return values
