"""Sizes and numbers of a captured graph as JSON, which ``expressions.py`` reads."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy import functions as torch_functions

from verifycompile.torch_interface.operators.expressions import KINDS_OF_SYMBOLS


def expression_to_data(expression: sympy.Basic) -> Any:
    """Nested lists. Raises ValueError for a symbol of no known kind."""
    if isinstance(expression, sympy.Symbol):
        name = expression.name
        kinds = [kind for kind, known in KINDS_OF_SYMBOLS.items() if sympy.Symbol(name, **known) == expression]
        if not kinds:
            raise ValueError(f"the symbol `{name}` is of no known kind")
        return ["symbol", name, *kinds]
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Rational):
        return ["rational", int(expression.p), int(expression.q)]
    if isinstance(expression, sympy.Float):
        return ["float", str(expression)]
    if not expression.args:
        return ["constant", str(expression)]
    kind = type(expression)
    name = f"torch.{kind.__name__}" if kind.__module__ == torch_functions.__name__ else kind.__name__
    return [name, *(expression_to_data(argument) for argument in expression.args)]
