"""An interpreter of IR views on torch float64 tensors, by the names of the IR's operations.

It shares no code with the declarations: what they build is compared with torch through it. A term is evaluated
for all of its free indices at once; every operand is first read over the term's whole index space.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import sympy
import torch

from tests.ir import evaluate_families, evaluate_images, evaluate_kernels, evaluate_special
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, Term, View

Tensor = torch.Tensor

_ROUNDING = 1e-12
"""Of one operation in double precision, on numbers of the size that tests use."""


class Evaluator:
    """Values of views where the leaves are ``leaves`` and size symbols have the values of ``symbols``."""

    def __init__(self, leaves: Mapping[str, Tensor], symbols: Mapping[sympy.Symbol, int] | None = None) -> None:
        self.leaves = {name: _as_real(value) for name, value in leaves.items()}
        self.symbols = dict(symbols or {})
        self.terms: dict[Term, Tensor] = {}

    def size(self, size: Size) -> int:
        return size if isinstance(size, int) else int(size.subs(self.symbols))

    def view(self, view: View) -> Tensor:
        """The tensor of ``view.shape`` (mesh dimensions first)."""
        return self._read(view).expand([self.size(s) for s in view.shape])

    def _scalar(self, value: object) -> float:
        if isinstance(value, Fraction):
            return value.numerator / value.denominator
        return float(sympy.sympify(value).subs(self.symbols))

    def _read(self, view: View) -> Tensor:
        """A view's tensor with size 1 along every dimension that it does not use."""
        shape = [self.size(s) for s in view.shape]
        positions: list[Tensor] = []
        for axis in view.axes:
            position = torch.zeros([1] * len(shape), dtype=torch.int64)
            for dim, divisor, extent in axis:
                size = self.size(extent)
                if dim == CONSTANT:
                    digit = torch.tensor(self.size(divisor))
                else:
                    counter = torch.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
                    digit = counter // self.size(divisor) % max(size, 1)
                position = position * size + digit
            positions.append(position)
        value = self.term(view.term)
        taken = value[tuple(positions)] if positions else value.reshape([1] * len(shape))
        if view.coefficient == 1:
            return taken
        if view.coefficient == 0:
            return torch.zeros_like(taken)
        scaled = taken * self._scalar(view.coefficient)
        if scaled.is_complex():
            return scaled
        # Whole numbers that went through thirds stay whole: what is compared with an index must be one.
        return torch.where((scaled - scaled.round()).abs() < _ROUNDING, scaled.round(), scaled)

    def term(self, term: Term) -> Tensor:
        """The tensor of ``term.shape``."""
        pending = [term]
        while pending:
            current = pending[-1]
            missing = [v.term for v in current.operands if v.term not in self.terms]
            if current not in self.terms and missing:
                pending.extend(missing)
                continue
            pending.pop()
            if current not in self.terms:
                shape = [self.size(s) for s in current.shape]
                self.terms[current] = self._evaluate(current).expand(shape)
        return self.terms[term]

    def _evaluate(self, term: Term) -> Tensor:
        name = term.operation.name
        if name in _LEAVES:
            return _LEAVES[name](self, term)
        if term.cores or name in _CORES:
            return _CORES[name](_Cores(self, term))
        operands = [self._read(v) for v in term.operands]
        bound = list(term.summed_indices)
        if name == "contract":
            sizes = [self.size(s) for s in term.index_sizes]
            return _drop(_product(operands).expand(sizes), bound, torch.sum)
        if name in _REDUCTIONS:
            return _drop(operands[0], bound, _REDUCTIONS[name])
        assert not bound, name
        return _POINTWISE[name](term.attributes, *operands)


def _as_real(value: Tensor) -> Tensor:
    return value if value.is_complex() else value.to(torch.float64)


def _product(factors: Sequence[Tensor]) -> Tensor:
    """A factor of zero is a mask: it wins over an infinity."""
    result = factors[0]
    for factor in factors[1:]:
        result = torch.where((result == 0) | (factor == 0), torch.zeros((), dtype=result.dtype), result * factor)
    return result


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "reduce_max": torch.amax,
    "reduce_min": torch.amin,
    "reduce_any": torch.amax,
    "reduce_all": torch.amin,
    "reduce_product": lambda value, dim: functools.reduce(lambda x, d: x.prod(d), sorted(dim, reverse=True), value),
}


def _drop(value: Tensor, dims: list[int], reduce: Callable[..., Tensor]) -> Tensor:
    return reduce(value, dim=dims) if dims else value


# ------------------------------------------------------------------------------------------------ leaves


def _constant(evaluator: Evaluator, term: Term) -> Tensor:
    dtype, shape, content = term.attributes
    return _as_real(torch.tensor(content, dtype=dtype).reshape(shape))  # type: ignore[arg-type]


def _range(size: int, start: int, stop: int) -> Tensor:
    positions = torch.arange(size)
    return ((positions >= start) & (positions < stop)).to(torch.float64)


_LEAVES: dict[str, Callable[[Evaluator, Term], Tensor]] = {
    "leaf": lambda evaluator, term: evaluator.leaves[str(term.attributes[0])],
    "integer_leaf": lambda evaluator, term: evaluator.leaves[str(term.attributes[0])],
    "indicator_leaf": lambda evaluator, term: evaluator.leaves[str(term.attributes[0])],
    "one": lambda evaluator, term: torch.ones((), dtype=torch.float64),
    "infinity": lambda evaluator, term: torch.tensor(math.inf, dtype=torch.float64),
    "iota": lambda evaluator, term: torch.arange(evaluator.size(term.shape[0]), dtype=torch.float64),
    "within_range": lambda evaluator, term: _range(evaluator.size(term.shape[0]), *term.attributes),  # type: ignore[arg-type]
    "constant": _constant,
    "constant_with_infinities": _constant,
    "boolean_constant": _constant,
}


# ------------------------------------------------------------------------------------------------ point by point


def _derivative(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def derivative(x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(function(point).sum(), point)
        return gradient

    return derivative


def _gelu(attributes: Sequence[object]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.nn.functional.gelu(x, approximate=str(attributes[0]))


def _softplus(attributes: Sequence[object]) -> Callable[[Tensor], Tensor]:
    beta, threshold = attributes
    return lambda x: torch.nn.functional.softplus(x, beta, threshold)  # type: ignore[arg-type]


def _power(attributes: Sequence[object], x: Tensor) -> Tensor:
    return x ** float(attributes[0])  # type: ignore[arg-type]


def _function_of_one(function: Callable[[Tensor], Tensor], attributes: Sequence[object], x: Tensor) -> Tensor:
    assert not attributes
    return function(x)


_POINTWISE: dict[str, Callable[..., Tensor]] = evaluate_special.ElementByElement(
    {
        "combine": lambda _, *operands: sum(operands[1:], operands[0]),
        "power": _power,
        "inverse_or_zero": lambda _, x: torch.where(x == 0, x, 1 / x),
        "log_or_zero": lambda _, x: torch.where(x == 0, x, x.log()),
        "equal": lambda _, a, b: (a == b).double(),
        "less": lambda _, a, b: (a < b).double(),
        "less_equal": lambda _, a, b: (a <= b).double(),
        "at_most": lambda attributes, a, b: (a.round() <= b.round() + attributes[0]).double(),  # of whole numbers
        "not": lambda _, a: 1 - a,
        "minimum": lambda _, a, b: torch.minimum(a, b),
        "maximum": lambda _, a, b: torch.maximum(a, b),
        "where": lambda _, condition, a, b: torch.where(condition != 0, a, b),
        "exp of complex numbers": lambda _, a: torch.exp(a),
        "log of complex numbers": lambda _, a: torch.log(a),
        "truncate": lambda _, a: torch.trunc(a),
        "gelu": lambda attributes, x: _gelu(attributes)(x),
        "gelu_derivative": lambda attributes, x: _derivative(_gelu(attributes))(x),
        "silu": lambda _, x: torch.nn.functional.silu(x),
        "silu_derivative": lambda _, x: _derivative(torch.nn.functional.silu)(x),
        "softplus": lambda attributes, x: _softplus(attributes)(x),
        "softplus_derivative": lambda attributes, x: _derivative(_softplus(attributes))(x),
        "conjugate": lambda _, a: torch.conj(a).resolve_conj(),
        "polar": lambda _, length, angle: torch.polar(*torch.broadcast_tensors(length, angle)),
        "complex": lambda _, a, b: torch.complex(*torch.broadcast_tensors(a, b)),
        "lgamma": lambda _, x: torch.lgamma(x),
        "frexp_mantissa": lambda _, x: torch.frexp(x).mantissa,
        "frexp_exponent": lambda _, x: torch.frexp(x).exponent.double(),
    }
)
for _name in (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor",
    "log", "log10", "log1p", "log2", "round", "sigmoid", "sign", "sin", "sinh", "tan", "tanh", "trunc",
):  # fmt: skip
    _POINTWISE[_name] = functools.partial(_function_of_one, getattr(torch, _name))


# ------------------------------------------------------------------------------------------------ with core indices


class _Cores:
    """Operands of a term with core indices: ``(free indices..., one dimension per core group)``."""

    def __init__(self, evaluator: Evaluator, term: Term) -> None:
        assert not term.summed
        self.attributes = term.attributes
        fresh = set(term.fresh)
        sizes = [evaluator.size(s) for s in term.index_sizes]
        free = [i for i in range(term.free) if i not in fresh]
        assert free == list(range(len(free))), "fresh indices come last"
        self.batch = [sizes[i] for i in free]
        self.fresh = [sizes[i] for i in term.fresh]
        order = [*free, *(i for group in term.cores for i in group)]
        lengths = [math.prod(sizes[i] for i in group) for group in term.cores]
        self.operands: list[Tensor] = []
        for view in term.operands:
            value = evaluator._read(view)
            missing = [i for i in range(len(sizes)) if i not in order]
            value = value.expand([1 if i in missing else s for i, s in enumerate(sizes)])
            value = value.permute([*order, *missing])
            self.operands.append(value.reshape([*self.batch, *lengths]))

    def alone(self, operand: int, *groups: int) -> Tensor:
        """An operand over the free indices and those core groups, the only ones that it may depend on."""
        value = self.operands[operand]
        for group in range(value.dim() - len(self.batch)):
            if group not in groups:
                value = value.narrow(len(self.batch) + group, 0, 1)
        return value.reshape([*self.batch, *(value.shape[len(self.batch) + group] for group in groups)])


def _reshape(cores: _Cores) -> Tensor:
    return cores.alone(0, 0).reshape([*cores.batch, *cores.fresh])


def _slice(cores: _Cores) -> Tensor:
    start, step = (int(a) for a in cores.attributes)  # type: ignore[call-overload]
    indices = start + step * torch.arange(cores.fresh[0])
    return cores.alone(0, 0)[..., indices]


def _contiguous_part(cores: _Cores) -> Tensor:
    (start,) = (int(a) for a in cores.attributes)  # type: ignore[call-overload]
    return cores.alone(0, 0).narrow(-1, start, cores.fresh[0])


def _pad(cores: _Cores) -> Tensor:
    start, step = (int(a) for a in cores.attributes)  # type: ignore[call-overload]
    value = cores.alone(0, 0)
    result = torch.zeros([*cores.batch, *cores.fresh], dtype=value.dtype)
    result[..., start + step * torch.arange(value.shape[-1])] = value
    return result


def _concatenate(cores: _Cores) -> Tensor:
    return torch.cat([cores.alone(k, k) for k in range(len(cores.operands))], dim=-1)


def _stack(cores: _Cores) -> Tensor:
    return torch.stack([operand.expand(cores.batch) for operand in cores.operands], dim=-1)


def _safe_softmax(cores: _Cores) -> Tensor:
    value = cores.alone(0, 0)
    masked = (value == -math.inf).all(-1, keepdim=True)
    return torch.where(masked, torch.zeros((), dtype=value.dtype), torch.softmax(value, -1))


def _as_complex(cores: _Cores) -> Tensor:
    return torch.view_as_complex(cores.alone(0, 0).contiguous())


def _as_real_pairs(cores: _Cores) -> Tensor:
    return torch.view_as_real(cores.alone(0, 0)[..., 0].resolve_conj())


_CORES: dict[str, Callable[[_Cores], Tensor]] = evaluate_special.OnMatrices(
    {
        "reshape": _reshape,
        "slice": _slice,
        "contiguous_part": _contiguous_part,
        "pad": _pad,
        "concatenate": _concatenate,
        "stack": _stack,
        "safe_softmax": _safe_softmax,
        "as_complex": _as_complex,
        "as_real": _as_real_pairs,
    }
)

_POINTWISE.update(evaluate_families.POINTWISE)
_POINTWISE.update(evaluate_kernels.POINTWISE)
_CORES.update(evaluate_kernels.CORES)
_CORES.update(evaluate_families.CORES)
_CORES.update(evaluate_images.CORES)
_CORES.update(evaluate_special.CORES)
_LEAVES.update(evaluate_images.LEAVES)
