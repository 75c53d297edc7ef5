"""Torch's own decompositions of its operators, each traced once on tensors without content.

A decomposition is a graph of other operators that computes what the call computes. It is traced on operands of the
call's shapes and dtypes, one after the other in memory: what an operator computes does not depend on how its operands
lie there, and an operator that reads their memory is refused. Nothing is taken from a trace that looked at the content
of an operand, that wrote to one, or in which torch compared sizes that are no numbers.

Torch's decompositions are written for its compilers, and some are wrong where those never call them. So each is
compared with the operator's kernel, on random numbers at the call's own shapes and arguments, where these are small.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sympy
import torch
import torch.fx
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from verifycompile.torch_interface.logs import without_logged_failures
from verifycompile.torch_interface.operators.elements import real_tensors

MOST_CALLS = 2_000
"""Operators that a decomposition may call, one step of it."""
_NAMESPACES = ("aten", "prims")
_HINT = 55_440
"""Sizes that are no numbers are traced as multiples of it: divisible by all that a size is divided by in practice."""
_CAPACITY = 4_096
"""Traces that are kept."""
_MOST_ELEMENTS = 1 << 20
"""Calls with more elements, in operands or in a tensor that they make, are compared at smaller sizes."""
_SMALL_SIZE = 12
"""Sizes that are no numbers are multiples of it where a decomposition is compared on numbers."""
_MOST_SMALL_SIZES = 4
"""Of a call of more elements, so many different sizes are made smaller."""
_AS_ATEN: dict[object, Any] = {
    torch.ops.prims.remainder.default: torch.ops.aten.remainder.Tensor,
    torch.ops.prims.fmod.default: torch.ops.aten.fmod.Tensor,
    torch.ops.prims.pow.default: torch.ops.aten.pow.Tensor_Tensor,
    torch.ops.prims.atan2.default: torch.ops.aten.atan2.default,
}
"""The same functions of operands of one dtype."""
Outcome = TypeVar("Outcome")
_REAL = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
_WHOLE = frozenset({torch.int64, torch.int32})


class NotDecomposedError(Exception):
    """A call without a decomposition that can be used. The message says why; it is empty where torch has none."""


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor argument: its sizes, which are expressions where they are no numbers, and its dtype."""

    shape: tuple[int | sympy.Expr, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True, eq=False)
class Decomposition:
    """A graph that computes a call.

    ``placeholders``: one for each operand, and each expression among the other arguments, in the order of the call.
    ``results``: what the call gives, in order; None for a result that it leaves out. ``symbols``: what the symbols
    in the sizes of the graph stand for.
    """

    graph: torch.fx.GraphModule
    placeholders: tuple[torch.fx.Node, ...]
    calls: tuple[torch.fx.Node, ...]
    results: tuple[Any, ...]
    symbols: Mapping[sympy.Basic, sympy.Basic]
    compare: Callable[[int], bool | str]
    """Whether it was compared with the operator's kernel, on numbers; as text, why it must not be used.

    The argument is the number of elements of the largest tensor that it makes.
    """

    @functools.cached_property
    def _outcome(self) -> bool | str:
        made = (tensor for call in self.calls if isinstance(tensor := call.meta.get("val"), torch.Tensor))
        elements = [tensor.numel() for tensor in made]
        return self.compare(max((n for n in elements if type(n) is int), default=0))

    def is_compared(self) -> bool:
        """Whether it was compared with the operator's kernel. Raises NotDecomposedError where they differ."""
        if isinstance(self._outcome, str):
            raise NotDecomposedError(self._outcome)
        return self._outcome


def has_decomposition(target: object) -> bool:
    """Whether torch has a decomposition of an operator, or computes it by calling others."""
    return _function(target) is not None


def decompose(target: object, args: Sequence[Any], kwargs: Mapping[str, Any], device: str = "cpu") -> Decomposition:
    """The decomposition of a call whose tensors are given as ``Operand``. Raises NotDecomposedError.

    ``device``: where the tensors are. Some results are of another dtype on a GPU.
    """
    key = (device, target, _key(list(args)), tuple((name, _key(value)) for name, value in kwargs.items()))
    known = _known.get(key)
    if known is None:
        if len(_known) >= _CAPACITY:
            _known.clear()
        known = _known[key] = _outcome(target, args, kwargs, device)
    if isinstance(known, str):
        raise NotDecomposedError(known)
    return known


_known: dict[Hashable, Decomposition | str] = {}


def _key(argument: Any) -> Hashable:
    """An argument with its type: ``1``, ``1.0`` and ``True`` are equal in Python, and so are ``0.0`` and ``-0.0``."""
    if isinstance(argument, (list, tuple)):
        return tuple(_key(item) for item in argument)
    return type(argument), repr(argument) if isinstance(argument, float) else argument


def _function(target: object) -> Callable[..., Any] | None:
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
        return None
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    found = decomposition_table.get(target)
    if found is not None:
        return found
    key = DispatchKey.CompositeImplicitAutograd
    with contextlib.suppress(RuntimeError):  # raised for operators on numbers alone
        if target.has_kernel_for_dispatch_key(key):
            return lambda *args, **kwargs: target._op_dk(key, *args, **kwargs)
    return None


def _outcome(target: object, args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> Decomposition | str:
    function = _function(target)
    if function is None:
        return ""

    def traced() -> Decomposition:
        with _outside_of_traces():
            return _traced(function, list(args), dict(kwargs), device, compare)

    def compare(largest: int) -> bool | str:
        with without_logged_failures(), real_tensors():
            return _or_reason(
                "its kernel does not take the call",
                lambda: _compared(target, function, list(args), dict(kwargs), largest),
            )

    return _or_reason("torch cannot follow it without the contents of tensors", traced)


def _or_reason(failed: str, attempt: Callable[[], Outcome]) -> Outcome | str:
    try:
        return attempt()
    except NotDecomposedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a decomposition of torch raises, it gives no graph
        text = str(error).strip().partition("\n")[0]
        return f"{failed} ({type(error).__name__}: {text})"


def _traced(
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    device: str,
    compare: Callable[[int], bool | str],
) -> Decomposition:
    sizes = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)
    symbols: dict[sympy.Basic, sympy.Basic] = {}

    def made(value: Operand | sympy.Expr) -> Any:
        if isinstance(value, Operand):
            shape = [s if isinstance(s, int) else _symbolic(s, sizes, symbols) for s in value.shape]
            return torch.empty(shape, dtype=value.dtype, device=device)
        return _symbolic(value, sizes, symbols)

    variable = (Operand, sympy.Expr)
    with mode:
        inputs = [made(value) for value in tree_leaves((args, kwargs)) if isinstance(value, variable)]

    def call(*given: Any) -> list[Any]:
        supply = iter(given)
        filled, named = tree_map_only(variable, lambda _: next(supply), (args, kwargs))
        named = {name: torch.device(device) if isinstance(v, torch.device) else v for name, v in named.items()}
        with _Counted():
            result = function(*filled, **named)
        return list(result) if isinstance(result, (list, tuple)) else [result]

    with mode, torch.no_grad(), enable_python_dispatcher():
        graph = make_fx(call)(*inputs)
        if _writes(graph):
            graph = make_fx(functionalize(call))(*inputs)
    if _writes(graph):
        raise NotDecomposedError("it writes to its operands")
    if sizes.guards or sizes.replacements or sizes.deferred_runtime_asserts:
        raise NotDecomposedError("it depends on sizes that are no numbers")
    found = _read(graph, {own: given for given, own in symbols.items()}, compare)
    _require_exact(found, tree_leaves((args, kwargs)))
    return found


def _read(
    graph: torch.fx.GraphModule, symbols: Mapping[sympy.Basic, sympy.Basic], compare: Callable[[int], bool | str]
) -> Decomposition:
    for node in graph.graph.nodes:
        if node.target in _AS_ATEN:
            _write_as_aten(graph.graph, node)
        if node.op == "get_attr":
            node.meta.setdefault("val", getattr(graph, str(node.target)))
    nodes = list(graph.graph.nodes)
    (results,) = nodes[-1].args
    needed = {result for result in results if isinstance(result, torch.fx.Node)}
    for node in reversed(nodes[:-1]):
        if node in needed:
            needed.update(node.all_input_nodes)
    placeholders = tuple(node for node in nodes if node.op == "placeholder")
    calls = tuple(node for node in nodes if node in needed and node.op != "placeholder")
    return Decomposition(graph, placeholders, calls, tuple(results), symbols, compare)


def _write_as_aten(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    node.target = _AS_ATEN[node.target]
    for position, argument in enumerate(node.args):
        if isinstance(argument, (int, float)):
            dtype = node.meta["val"].dtype
            with graph.inserting_before(node):
                number = graph.call_function(torch.ops.aten.full.default, ([], argument), {"dtype": dtype})
            number.meta["val"] = torch.empty((), dtype=dtype)
            node.update_arg(position, number)


def _symbolic(expression: sympy.Expr, sizes: ShapeEnv, symbols: dict[sympy.Basic, sympy.Basic]) -> torch.SymInt:
    for symbol in sorted(expression.free_symbols - symbols.keys(), key=str):
        source = ConstantSource(f"size_{len(symbols)}")
        symbols[symbol] = sizes.create_symbol(_HINT * (len(symbols) + 1), source, DimDynamic.DYNAMIC, None)
    own = expression.xreplace(symbols)
    hint = expression.xreplace({s: sympy.Integer(_HINT * (k + 1)) for k, s in enumerate(symbols)})
    if not hint.is_Integer:
        raise NotDecomposedError(f"of the size `{expression}`")
    return sizes.create_symintnode(own, hint=int(hint))  # pyright: ignore[reportArgumentType, reportReturnType]  # torch annotates a node of its own


def _require_exact(found: Decomposition, leaves: list[Any]) -> None:
    """Arithmetic of whole numbers, booleans and complex numbers follows rules of each kernel's own."""
    given = {leaf.dtype for leaf in leaves if isinstance(leaf, Operand)}
    ends = (result.meta.get("val") for result in found.results if isinstance(result, torch.fx.Node))
    results = {value.dtype for value in ends if isinstance(value, torch.Tensor)}
    unknown = (given | results) - _REAL - _WHOLE - {torch.bool}
    if unknown:
        raise NotDecomposedError(f"of {min(map(str, unknown))}")
    if given and not given & _REAL and results - _REAL:
        raise NotDecomposedError("in arithmetic of whole numbers or booleans")


# ------------------------------------------------------------------------------------------------ on numbers


def _compared(
    target: Any, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], largest: int = 0
) -> bool:
    """Whether a decomposition was compared with the kernel. Raises NotDecomposedError where they differ."""
    leaves = tree_leaves((args, kwargs))
    symbols = sorted({s for leaf in leaves for size in _sizes_of(leaf) for s in size.free_symbols}, key=str)
    numbers = {symbol: sympy.Integer(_SMALL_SIZE * (k + 1)) for k, symbol in enumerate(symbols)}
    shapes = {leaf: _at(leaf.shape, numbers) for leaf in leaves if isinstance(leaf, Operand)}
    sizes = [math.prod(shape) for shape in shapes.values()]
    if max(sum(sizes), largest) > _MOST_ELEMENTS:
        return _compared_smaller(target, function, args, kwargs)
    if 0 in sizes:
        return False
    highest = 1 if min((s for shape in shapes.values() for s in shape), default=1) < 2 else 2
    generator = torch.Generator().manual_seed(0)

    def drawn(value: Operand | sympy.Expr, positive: bool) -> Any:
        if not isinstance(value, Operand):
            return _at([value], numbers)[0]
        shape = shapes[value]
        if value.dtype in _REAL:
            draw = torch.rand if positive else torch.randn
            return draw(shape, generator=generator, dtype=torch.float64)
        high = 2 if value.dtype is torch.bool else highest
        return torch.randint(0, high, shape, generator=generator).to(value.dtype)

    variable = (Operand, sympy.Expr, torch.device, torch.dtype)
    refused: RuntimeError | None = None
    compared = False
    for positive in (True, False):
        given = tree_map_only(variable, lambda v, p=positive: _widened(v) or drawn(v, p), (args, kwargs))
        try:
            expected = target(*given[0], **given[1])
        except NotImplementedError as error:
            if "not implemented for" in str(error):
                raise
            return False  # there is no kernel for the CPU
        except RuntimeError as error:  # some kernels take numbers between zero and one alone
            refused = error
            continue
        compared = True
        if not _same(expected, function(*given[0], **given[1])):
            raise NotDecomposedError("on random numbers it gives other ones than the operator's kernel")
    if refused is not None and not compared:
        raise refused
    return True


def _compared_smaller(target: Any, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Compared with every large number replaced by a small one, wherever it stands; not, if no kernel takes that."""
    numbers = {n for leaf in tree_leaves((args, kwargs)) for n in _numbers_of(leaf) if n > _SMALL_SIZE}
    small = {number: _SMALL_SIZE + 2 * k for k, number in enumerate(sorted(numbers))}

    def smaller(value: Operand | int | sympy.Expr) -> Any:
        if isinstance(value, Operand):
            return Operand(tuple(smaller(size) for size in value.shape), value.dtype)
        return small.get(value, value) if type(value) is int else value

    reduced = tree_map_only((Operand, int), smaller, (args, kwargs))
    if len(small) > _MOST_SMALL_SIZES:
        return False
    with contextlib.suppress(RuntimeError, ValueError, IndexError, AssertionError):
        return _compared(target, function, *reduced)
    return False


def _numbers_of(leaf: Any) -> Iterator[int]:
    yield from (n for n in (leaf.shape if isinstance(leaf, Operand) else (leaf,)) if type(n) is int)


def _at(sizes: Sequence[int | sympy.Expr], numbers: Mapping[sympy.Basic, sympy.Basic]) -> list[int]:
    found: list[Any] = [size if isinstance(size, int) else size.xreplace(numbers) for size in sizes]
    return [int(size) for size in found]


def _sizes_of(leaf: Any) -> Iterator[sympy.Basic]:
    sizes = leaf.shape if isinstance(leaf, Operand) else (leaf,)
    yield from (size for size in sizes if isinstance(size, sympy.Basic))


def _widened(value: Any) -> Any:
    """Where and in which precision numbers are compared; None for what is drawn."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _REAL else value
    return None


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        return len(expected) == len(found) and all(map(_same, expected, found))
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        return expected is None and found is None
    return expected.shape == found.shape and torch.allclose(
        expected.to(torch.float64), found.to(torch.float64), 1e-9, 1e-9, equal_nan=True
    )


# ------------------------------------------------------------------------------------------------ helpers


def _writes(graph: torch.fx.GraphModule) -> bool:
    targets = [node.target for node in graph.graph.nodes]
    return any(isinstance(t, torch._ops.OpOverload) and t._schema.is_mutable for t in targets)


class _Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise NotDecomposedError(f"it calls more than {MOST_CALLS} operators")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _outside_of_traces() -> Generator[None]:
    with without_logged_failures(), tracing(None), _disable_current_modes(), torch._C.DisableTorchFunction():
        yield
