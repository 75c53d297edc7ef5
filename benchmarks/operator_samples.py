"""torch's samples of its operators as DTensors of two ranks, and what DTensor in eager mode makes of them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.utils._pytree import tree_leaves, tree_map

# The sizes of torch's samples, all of them even here as in torch's own tests of DTensor.
SIZES = {"L": 24, "M": 12, "S": 4, "XS": 2}
TOLERANCE = 1e-3
_LIKELIEST = 8
"""Of how many times the placements that are run those that shard most are chosen."""


class Call(torch.nn.Module):
    """A program of one operator."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.operator(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A sample and a placement for each of its tensors, in order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    placements: tuple[Placement, ...]

    def placed(self, mesh: DeviceMesh, *, gradients: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as DTensors."""
        left = iter(self.placements)

        def place(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            placed = distribute_tensor(value.detach().clone(), mesh, [next(left)])
            return placed.requires_grad_(gradients and value.requires_grad)

        return tree_map(place, (self.args, self.kwargs))

    def text(self) -> str:
        """The sample's arguments in short, with the placement of every tensor."""
        left = iter(self.placements)

        def show(value: Any) -> Any:
            return f"{list(value.shape)}{next(left)}" if _is_tensor(value) else repr(value)

        args, kwargs = tree_map(show, (self.args, self.kwargs))
        return f"{args} {kwargs}".replace("'", "").replace('"', "")[:300]

    def backwards(self) -> Pair:
        """The same with real numbers in reverse order: an error may show only where, say, the largest comes last."""

        def reverse(value: Any) -> Any:
            if not _is_tensor(value) or not value.is_floating_point():
                return value
            return value.detach().flip(tuple(range(value.dim()))).requires_grad_(value.requires_grad)

        args, kwargs = tree_map(reverse, (self.args, self.kwargs))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def whole(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as they are."""

        def copy(value: Any) -> Any:
            return value.detach().clone().requires_grad_(value.requires_grad) if _is_tensor(value) else value

        return tree_map(copy, (self.args, self.kwargs))


# ------------------------------------------------------------------------------------------------ samples


@functools.cache
def database() -> dict[str, Any]:
    """Operators by name, variants apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as invocations

    for name, size in SIZES.items():
        setattr(invocations, name, size)
    # What it is by default saves and restores the random state, which is not to be in the program.
    setattr(invocations, "wrapper_set_seed", _call)  # noqa: B010 - the module is not typed
    named = ((f"{o.name}.{o.variant_test_name}".rstrip("."), o) for o in invocations.op_db)
    return dict(named)


def _call(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def base_name(name: str) -> str:
    """The operator of which a key of ``database`` is a variant, or which it is."""
    return database()[name].name


def is_even(name: str) -> bool:
    """Which half an operator belongs to; variants of an operator belong to the same."""
    return zlib.crc32(name.encode()) % 2 == 0


def pairs(operator: Any, degree: int, samples: int, placements: int) -> Iterator[Pair]:
    """Of every sample several placements, those that shard most first."""
    torch.manual_seed(0)
    dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if d in operator.dtypes), torch.complex64)
    differentiable = operator.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    given = operator.sample_inputs("cpu", dtype, requires_grad=differentiable)
    for sample in itertools.islice(given, samples):
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        choices = [_choices(value, degree) for value in tree_leaves((args, kwargs)) if _is_tensor(value)]
        found = list(itertools.islice(itertools.product(*choices), _LIKELIEST * placements))
        found.sort(key=lambda chosen: sum(isinstance(item, Shard) for item in chosen), reverse=True)
        for chosen in found[:placements]:
            yield Pair(args, kwargs, tuple(chosen))


def _choices(value: torch.Tensor, degree: int) -> list[Placement]:
    if value.layout is not torch.strided:
        return []
    sharded = [Shard(dim) for dim, size in enumerate(value.shape) if size > 1 and size % degree == 0]
    return [Replicate(), *sharded]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


# ------------------------------------------------------------------------------------------------ eager mode


class Accepted(enum.Enum):
    """How much of an operator's work DTensor does in eager mode."""

    NOTHING = "nothing"
    FORWARD = "forward"
    ALL = "all"


@dataclasses.dataclass(frozen=True)
class Eager:
    """What DTensor in eager mode does with a pair.

    ``differs``: what has other numbers than on whole tensors, "" for nothing; None where that cannot be told.
    ``reason``: why it does not do all of it.
    """

    accepted: Accepted
    differs: str | None
    reason: str = ""


def eager(operator: Callable[..., Any], pair: Pair, mesh: DeviceMesh) -> Eager:
    """Runs a pair on all ranks at once. Raises what ``operator`` raises on whole tensors."""
    expected = run(operator, *pair.whole(), whole_cotangents)
    again = run(operator, *pair.whole(), whole_cotangents, seed=1)
    is_random = any(_is_different(first, second) for first, second in zip(expected, again, strict=True))
    # Outside of the mode, in which every rank would draw numbers of its own.
    cotangents = placed_cotangents(expected, mesh)
    try:
        with LocalTensorMode(mesh.size()):
            found = whole_values(run(operator, *pair.placed(mesh, gradients=True), cotangents))
    except Exception as error:  # noqa: BLE001 - whatever DTensor raises for what it does not do
        return _forward_alone(operator, pair, mesh, first_line(error))
    return Eager(Accepted.ALL, None if is_random else different(found, expected))


def _forward_alone(operator: Callable[..., Any], pair: Pair, mesh: DeviceMesh, reason: str) -> Eager:
    """Whether DTensor does the forward part alone."""
    expected = run(operator, *pair.whole(), None)
    try:
        with LocalTensorMode(mesh.size()):
            found = whole_values(run(operator, *pair.placed(mesh, gradients=False), None))
    except Exception:  # noqa: BLE001 - as above
        return Eager(Accepted.NOTHING, None, reason)
    return Eager(Accepted.FORWARD, different(found, expected), reason)


Cotangents = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def run(
    operator: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    cotangents: Cotangents | None,
    *,
    seed: int = 0,
    written: bool = False,
) -> list[torch.Tensor]:
    """The outputs, the gradients of all arguments where cotangents are given, and what was written to arguments.

    The last for ``written`` alone: in eager mode DTensor loses writes to an argument that it redistributes, which is
    right in what torch compiles and we verify.
    """
    torch.manual_seed(seed)
    tensors = [value for value in tree_leaves((args, kwargs)) if _is_tensor(value)]
    leaves = [value for value in tensors if value.requires_grad]
    kept = [value for value in tensors if written and not value.requires_grad]
    outputs = [value for value in tree_leaves(operator(*args, **kwargs)) if _is_tensor(value)]
    if cotangents is None:
        return [value.detach() for value in (*outputs, *kept)]
    begun = [(o, c) for o, c in zip(outputs, cotangents(outputs), strict=True) if o.requires_grad]
    if begun:
        torch.autograd.backward([output for output, _ in begun], [cotangent for _, cotangent in begun])
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return [value.detach() for value in (*outputs, *gradients, *kept)]


def whole_cotangents(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Numbers that are the same in every process."""
    generator = torch.Generator().manual_seed(0)
    found: list[torch.Tensor] = []
    for value in outputs:
        dtype = value.dtype if value.dtype.is_floating_point or value.dtype.is_complex else torch.float32
        found.append(torch.randn(value.shape, generator=generator, dtype=dtype))
    return found


def placed_cotangents(expected: Sequence[torch.Tensor], mesh: DeviceMesh) -> Cotangents:
    """The same numbers, each sharded as its output is, and whole where that is a partial value."""
    whole = whole_cotangents(expected)

    def cotangents(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            distribute_tensor(w, mesh, _without_partial(o.placements)) if isinstance(o, DTensor) else w
            for w, o in zip(whole, outputs, strict=False)
        ]

    return cotangents


def whole_values(found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What each value stands for, on every rank."""
    return [value.full_tensor() if isinstance(value, DTensor) else value for value in found]


def different(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    """The first of the outputs and gradients that has other numbers, "" for none."""
    if len(found) != len(expected):
        return f"{len(found)} results for {len(expected)}"
    for position, (value, whole) in enumerate(zip(found, expected, strict=True)):
        if any(_is_different(part, whole) for part in _parts(value)):
            return f"output or gradient {position}"
    return ""


def _without_partial(placements: Sequence[Placement]) -> list[Placement]:
    return [Replicate() if isinstance(item, Partial) else item for item in placements]


def _parts(value: torch.Tensor) -> list[torch.Tensor]:
    if not isinstance(value, LocalTensor):
        return [value]
    return list(value._local_tensors.values())  # noqa: SLF001 - there is no other way to ranks that differ


def _is_different(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.shape != expected.shape:
        return True
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return not torch.equal(found, expected)
    return not torch.allclose(found, expected.to(found.dtype), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def first_line(error: Exception, longest: int = 110) -> str:
    """An exception in short: its type and the line that says most."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines[1] if len(lines) > 1 else ''.join(lines))}"[:longest]
