"""One rank's evaluation of one operator, in float64 on the CPU whatever was captured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from verifycompile.rewrites.operators.custom_operators import recognise
from verifycompile.torch_interface.operators.calls import by_name
from verifycompile.torch_interface.operators.evaluation import decomposition, operator_name
from verifycompile.torch_interface.operators.schema import is_random
from verifycompile.witness import attention
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.unchecked_kernels import require_operands_that_fit
from verifycompile.witness.written_kernels import WRITTEN

_NAMESPACES = ("aten.", "prims.")
_PYTHON_MODULES = ("_operator", "math")
_EXACT_FAILURES = (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError, OverflowError)


def precise(value: object) -> object:
    """``value`` with every floating dtype widened to 64 bits and every device replaced by the CPU."""
    if isinstance(value, torch.Tensor):
        return _precise_tensor(value)
    if isinstance(value, torch.dtype):
        return _precise_dtype(value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (list, tuple)):
        return (
            type(value)(precise(item) for item in value) if type(value) in (list, tuple) else tuple(map(precise, value))
        )
    return value


def _precise_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return torch.float64
    return torch.complex128 if dtype.is_complex else dtype


def _precise_tensor(tensor: torch.Tensor) -> torch.Tensor:
    wanted = _precise_dtype(tensor.dtype)
    return tensor if tensor.dtype == wanted and tensor.device.type == "cpu" else tensor.to("cpu", wanted)


def evaluate(target: object, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """The result of calling ``target``. Raises :class:`EvaluationError` where it has none that can be trusted."""
    name = operator_name(target)
    if name is None:
        return _python_call(target, args, kwargs)
    if not name.startswith(_NAMESPACES) and recognise(target) is None:
        # What another library's operator does besides its result is not known, unless it is a known function.
        raise EvaluationError(f"no interpretation of the operator {name}")
    arguments = by_name(target, args, kwargs)
    if attention.is_attention(name):
        return _checked(functools.partial(attention.attention_of, name))(arguments)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(arguments)
    if is_random(target):
        raise EvaluationError(f"{name} draws random numbers")
    if isinstance(arguments.get("dtype"), torch.dtype) and name.startswith("aten.view."):
        raise EvaluationError(f"{name} reinterprets the bits of a value")
    require_operands_that_fit(name, arguments)
    return precise(_call(target, name, [precise(value) for value in args], _cpu_keywords(kwargs)))


def _call(target: object, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    if not callable(target):
        raise EvaluationError(f"{name} cannot be called")
    try:
        return target(*args, **kwargs)
    except NotImplementedError as error:
        definition = decomposition(target)
        if not callable(definition):
            raise EvaluationError(f"{name} has no CPU kernel") from error
        _without_kernel.add(name)
    except _EXACT_FAILURES as error:
        raise EvaluationError(f"{name}: {error}") from error
    try:
        return definition(*args, **kwargs)
    except _EXACT_FAILURES as error:
        raise EvaluationError(f"{name}: {error}") from error


def is_decomposed(name: str) -> bool:
    """Whether an evaluation of the operator took torch's reference decomposition, because there is no CPU kernel."""
    return name in _without_kernel


_without_kernel: set[str] = set()


def _cpu_keywords(kwargs: Mapping[str, object]) -> dict[str, object]:
    return {name: precise(value) for name, value in kwargs.items() if name not in ("pin_memory", "non_blocking")}


def _python_call(target: object, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    module = getattr(target, "__module__", None)
    known = module in _PYTHON_MODULES or str(getattr(target, "__name__", "")).startswith("sym_")
    if not callable(target) or not known:
        raise EvaluationError(f"no interpretation of the function {target}")
    try:
        return target(*args, **kwargs)
    except _EXACT_FAILURES as error:
        raise EvaluationError(f"{target}: {error}") from error


def _view(arguments: Mapping[str, object]) -> object:
    tensor, size = arguments["self"], arguments["size"]
    if not isinstance(tensor, torch.Tensor) or not isinstance(size, (list, tuple)):
        raise EvaluationError("view without a tensor and a size")
    try:
        return tensor.reshape(tuple(size))
    except RuntimeError as error:
        raise EvaluationError(f"aten.view: {error}") from error


def _softmax(log: bool) -> Callable[[Mapping[str, object]], object]:
    def softmax(arguments: Mapping[str, object]) -> object:
        tensor, dim = arguments["self"], arguments["dim"]
        if not isinstance(tensor, torch.Tensor) or not isinstance(dim, int):
            raise EvaluationError("softmax without a tensor and a dimension")
        return tensor.log_softmax(dim) if log else tensor.softmax(dim)

    return softmax


def _dropout(arguments: Mapping[str, object]) -> object:
    tensor = arguments["input"]
    if not isinstance(tensor, torch.Tensor):
        raise EvaluationError("native_dropout without a tensor")
    if arguments["p"] != 0.0 and arguments["train"] is not False:
        raise EvaluationError("native_dropout draws random numbers")
    return tensor.clone(), torch.ones(tensor.shape, dtype=torch.bool)


def _checked(function: Callable[[Mapping[str, object]], object]) -> Callable[[Mapping[str, object]], object]:
    def evaluated(arguments: Mapping[str, object]) -> object:
        try:
            return function(arguments)
        except (TypeError, ValueError) as error:
            raise EvaluationError(str(error)) from error

    return evaluated


_SPECIAL: Mapping[str, Callable[[Mapping[str, object]], object]] = {
    # The traced strides may be those of another device's kernels: the value of a view is that of a reshape.
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    # half_to_float is refused for float64 operands.
    "aten._softmax.default": _softmax(log=False),
    "aten._log_softmax.default": _softmax(log=True),
    "aten.native_dropout.default": _dropout,
    **{name: _checked(function) for name, function in WRITTEN.items()},
}


def unset(value: object, filling: int | None) -> object:
    """An uninitialised tensor, filled so that what reads it is found out.

    With None every floating element is NaN, and whole numbers are 0. With a number all elements are that number: what
    comes out the same under both has read none of them.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if filling is not None:
        return torch.full_like(value, filling)
    return torch.full_like(value, float("nan")) if value.is_floating_point() else torch.zeros_like(value)


def is_uninitialised(name: str) -> bool:
    """Whether the operator returns memory that nothing has written yet."""
    return name.split(".")[1] in _UNINITIALISED


_UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"},
)
