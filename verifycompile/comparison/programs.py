"""The two programs of a comparison: a copy of the spec that may be run, and the parallel model of each rank."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.capture.numbers.plain_values import changed_since_construction, put
from verifycompile.capture.ranks.as_ranks import uncompiled
from verifycompile.comparison.layout import Known
from verifycompile.comparison.names import inner_model, named_modules, named_tensors
from verifycompile.comparison.trace import Layout
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.torch_interface.data_parallel.unwrapped import without_outer_wrappers
from verifycompile.torch_interface.dtensor.globalize import Globalizer, Relocator
from verifycompile.torch_interface.dtensor.tensors import of_acting_rank, trained_as
from verifycompile.torch_interface.dynamo.closures import globals_in, values_closed_over
from verifycompile.torch_interface.ranks.constructed import recorded
from verifycompile.torch_interface.ranks.mesh import RootMesh, has_world, root_of
from verifycompile.torch_interface.training_step.gradient_hooks import register_hooks, registered_hooks


def root_of_program(models: tuple[Any, ...], options: Options) -> RootMesh | None:
    """The mesh that placements speak of; all ranks of the job where none is found; None without a job."""
    if not has_world():
        return None
    if options.mesh is not None:
        return RootMesh(options.mesh)
    found: dict[int, DeviceMesh] = {}
    for model in models:
        for mesh in _meshes(model):
            found.setdefault(id(root_of(mesh)), root_of(mesh))
    if not found:
        return RootMesh(None)
    roots = [RootMesh(mesh) for mesh in found.values()]
    for root in roots:
        if all(root.spans(mesh) is not None for mesh in found.values()):
            return root
    raise UsageError(
        "VC302",
        "the program's DTensors and functions hold several device meshes that are not parts of one. "
        "Name the one that placements speak of with the option `mesh`.",
    )


def _meshes(value: Any) -> Iterator[DeviceMesh]:
    """The meshes of a model's parameters and wrappers, and those that a function closes over."""
    for module in named_modules(value).values():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if isinstance(tensor, DTensor):
                yield tensor.device_mesh
        yield from (held for held in vars(module).values() if isinstance(held, DeviceMesh))
    inner = inner_model(value)
    if isinstance(inner, nn.Module):
        _, outer = without_outer_wrappers(uncompiled(value))
        yield from outer.meshes
    while isinstance(inner, functools.partial):
        yield from (held for held in inner.args if isinstance(held, DeviceMesh))
        inner = inner.func
    code = getattr(inner, "__code__", None)
    if code is not None:
        names = getattr(inner, "__globals__", {})
        read = (names.get(name) for name in dict.fromkeys(globals_in(code)))
        held = (*values_closed_over(code, getattr(inner, "__closure__", None)), *read)
        yield from (value for value in held if isinstance(value, DeviceMesh))


def layout_over(root: RootMesh | None) -> Layout:
    """How a DTensor lies over the axes of ``root``; None on axes that its own mesh does not span."""

    def layout(tensor: DTensor) -> Known:
        if root is None:
            return (Replicate(),)
        spans = root.spans(tensor.device_mesh)
        known: list[Placement | None] = [None] * root.ndim
        if spans is None:
            return tuple(known)
        for placement, axes in zip(tensor.placements, spans, strict=True):
            for axis in axes:
                known[axis] = placement
        return tuple(known)

    return layout


def wrapped_axes(model: Any, root: RootMesh | None) -> tuple[int, ...]:
    """The axes of the mesh over which data-parallel wrappers reduce gradients: each rank has samples of its own."""
    if root is None or not isinstance(inner_model(model), nn.Module):
        return ()
    _, outer = without_outer_wrappers(uncompiled(model))
    found: set[int] = set()
    for contract in outer.contracts:
        spans = root.spans(contract.mesh)
        if spans is not None:
            found.update(axis for dimension in contract.dimensions for axis in spans[dimension])
    return tuple(sorted(found))


def casts_of_wrappers(model: Any) -> dict[str, torch.dtype]:
    """What data-parallel wrappers do in dtypes of their own, and in which."""
    if not isinstance(inner_model(model), nn.Module):
        return {}
    _, outer = without_outer_wrappers(uncompiled(model))
    return {
        f"`{contract.wrapper}` {what} {dtype}": dtype for contract in outer.contracts for what, dtype in contract.casts
    }


def needs_a_model_for_each_rank(model: Any) -> bool:
    """Whether the state of a data-parallel wrapper cannot be copied for the other ranks."""
    inner = uncompiled(model)
    return isinstance(inner, nn.Module) and without_outer_wrappers(inner)[0] is not inner


Hooks = tuple[object, ...]
"""What hooks on gradients live by."""


def copy_for_rank(model: Any) -> tuple[Any, Hooks]:
    """The model with parameters and buffers of the rank that this process acts as, whose values are not set yet."""
    return _with_hooks(Relocator(_fresh, compiles=True), model)


def _with_hooks(copier: Relocator, model: Any) -> tuple[Any, Hooks]:
    """A copy whose tensors have copies of what the model's own have: attributes, and hooks on their gradients."""
    copy = copier(model)
    copies, kept = named_tensors(copy, {}), list[object]()
    for name, tensor in named_tensors(model, {}).items():
        made = copies.get(name)
        if made is None or made is tensor:
            continue
        for attribute, value in vars(tensor).items():
            vars(made).setdefault(attribute, copier(value))
        hooks = registered_hooks(tensor)
        own = [dataclasses.replace(hook, function=copier(hook.function)) for hook in hooks]
        kept.append(register_hooks(own, made) if own else None)
    return copy, tuple(kept)


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, (nn.Parameter, DTensor)):
        return tensor.detach().clone()
    return _own(of_acting_rank(tensor))


@dataclasses.dataclass(frozen=True)
class Spec:
    """A spec that may be run and changed: its tensors are its own. ``assumptions``: of a recovered one.

    ``doubt``: why a recovered one may be another program than the one that was meant where a rank has a part of it;
    ``without``: what it does not have of the program; both empty where that is not so.
    """

    model: Any
    assumptions: tuple[str, ...] = ()
    doubt: str = ""
    without: str = ""
    hooks: Hooks = ()


def copied_spec(spec: Callable[..., Any]) -> Spec:
    """The spec that the user gave, with tensors of its own."""
    copy, hooks = _with_hooks(Globalizer(_own), uncompiled(spec))
    return Spec(copy, hooks=hooks)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return trained_as(tensor, tensor.detach().clone())


def recovered_spec(model: Any, names: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> Spec:
    """The model on one device: with whole tensors, without what ``torch.distributed`` put around and into modules.

    ``names``: name -> the model's own tensor; ``values``: name -> its whole value.
    """
    by_identity = {id(tensor): name for name, tensor in names.items()}

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        name = by_identity.get(id(tensor))
        if name is None:
            return tensor.detach().clone() if not isinstance(tensor, DTensor) else tensor
        return trained_as(tensor, values[name].detach().to(tensor.device, copy=True))

    globalizer = Globalizer(whole)
    copy = globalizer(inner_model(model))
    unknown = [module for module in globalizer.modules if _holds_numbers(module) and not recorded(module)]
    doubt = f"what numbers `{type(unknown[0]).__name__}` was constructed with is not known" if unknown else ""
    hooked = next((name for name, tensor in names.items() if tensor.is_leaf and registered_hooks(tensor)), "")
    without = f"the recovered spec is without the hooks on the gradient of `{hooked}`" if hooked else ""
    for place in tuple(changed_since_construction(tuple(globalizer.modules))):
        put(globalizer(place.owner), place.steps, place.constructed)
    return Spec(copy, (*globalizer.assumptions, "the spec was recovered from the parallel model"), doubt, without)


def _holds_numbers(module: nn.Module) -> bool:
    """Whether a module of the user's has whole numbers of its own, which a rank may have divided."""
    if type(module).__module__.startswith("torch."):
        return False
    return any(type(value) is int for value in vars(module).values())


_UNEVEN = 3.0
"""At an end of a dimension the place of a value in the sorted ones is uniform to this power, or to its inverse."""


def drawn(name: str, part: torch.Tensor, shape: tuple[int, ...], seed: int, *, uneven: bool = False) -> torch.Tensor:
    """A whole tensor of which one rank's part is known: the values of the part in another order, by the name's hash.

    So it has the part's distribution, and integers, masks and flags stay what they are. Where most values occur once
    they are data, of which other ranks have other values: those are scaled at random. Every program draws the same.
    ``uneven``: small values are more frequent at one end of each dimension and large ones at the other, so that parts
    have different counts and means: among equal ones a mean of means is the mean.
    """
    generator = torch.Generator().manual_seed(seed_of(name, seed))
    count = math.prod(shape)
    flat = part.detach().flatten().cpu()
    if flat.numel() == 0 or count == 0:
        return torch.zeros(shape, dtype=part.dtype)
    if uneven and flat.dtype.itemsize > 1:
        slope = torch.zeros(shape)
        for dim, size in enumerate(shape):
            sign = 2.0 * int(torch.randint(0, 2, (), generator=generator)) - 1.0
            slope += torch.linspace(-sign, sign, size).reshape(-1, *[1] * (len(shape) - dim - 1))
        place = torch.rand(count, generator=generator) ** (_UNEVEN ** slope.clamp(-1.0, 1.0).flatten())
        whole = flat.sort().values[(place * flat.numel()).long().clamp(max=flat.numel() - 1)]
    else:
        rounds = -(-count // flat.numel())
        order = torch.cat([torch.randperm(flat.numel(), generator=generator) for _ in range(rounds)])[:count]
        whole = flat[order]
    if whole.is_floating_point() and 2 * flat.unique().numel() > flat.numel():
        whole = (whole * (0.5 + torch.rand(count, generator=generator))).to(part.dtype)
    return whole.reshape(shape)


def seed_of(name: str, seed: int) -> int:
    """The seed of a tensor's own random values: the hash of its name, and the run's seed."""
    return (zlib.crc32(name.encode()) + 7919 * seed) % (2**31)
