"""A training step as one graph: called on tensors without memory, with everything that it reads and writes as inputs.

The step is the user's own function. Its parameters and buffers keep their identity, since the optimizer, closures and
hooks hold them too, and have other contents while it is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
import torch.fx
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.torch_interface.data_parallel.data_parallel_step import without_wrappers, wrappers_in_step
from verifycompile.torch_interface.dtensor.tensors import of_acting_rank, without_pending_collective
from verifycompile.torch_interface.operators.contents import own_part
from verifycompile.torch_interface.rank_threads.unwaited import UnwaitedError, waits_required
from verifycompile.torch_interface.training_step.gradient_hooks import register_hooks, registered_hooks

_PROFILER = "profiler"
aten = torch.ops.aten


class StepError(Exception):
    """Why a training step has no graph, in one sentence."""


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """``graph`` takes ``inputs`` in their order and returns ``results``, then what ``kept`` holds when the step ends.

    ``inputs``: names of ``arguments``, then those of ``kept``. ``kept``: name of what the step reads and leaves behind:
    parameters, buffers, gradients and optimizer state. ``results``: the tensors that the step returns. All tensors are
    those of the trace, good for their shapes and placements.
    """

    graph: torch.fx.GraphModule
    inputs: tuple[str, ...]
    arguments: Mapping[str, torch.Tensor]
    kept: Mapping[str, Kept]
    results: tuple[torch.Tensor, ...]
    assumptions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Kept:
    """A tensor that the step reads and leaves behind. ``owner``: the parameter or buffer that it belongs to."""

    value: torch.Tensor
    owner: str


def trace_step(
    step: Callable[..., Any],
    arguments: Mapping[str, Any],
    call: Callable[[Callable[..., Any], Mapping[str, Any]], Any],
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
) -> TracedStep:
    """The graph of the second of three calls: the first one makes the optimizer's state.

    The third one shows a step that counts its calls, as one that updates every other time.

    ``arguments``: tensors by name. ``call``: calls the step with other tensors in their place.
    Raises ``StepError`` where the step finds other state than it leaves, and what the step raises.
    """
    numbers = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=numbers, static_shapes=True)
    tensors = _held(model)
    scalars = _Scalars()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_state_restored(model, optimizers))
        for tensor in tensors.values():
            stack.enter_context(_without_memory(tensor, mode))
        given = {name: _argument(value, mode) for name, value in arguments.items()}
        wrappers = stack.enter_context(wrappers_in_step(model))
        stack.enter_context(_compiling_in_optimizers())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch._dynamo.config.patch(error_on_nested_fx_trace=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(mode)
        stack.enter_context(scalars)
        stack.enter_context(_waits_required())

        def call_once() -> Any:
            returned = call(step, given)
            wrappers.finish()
            return returned

        with numbers.ignore_fresh_unbacked_symbols(), _attributes_restored(model):
            call_once()
        kept = _kept(model, optimizers)
        results: list[torch.Tensor] = []
        others: list[str] = []

        def run(*_: Any) -> list[torch.Tensor]:
            leaves = [scalars.tensor_of(leaf) for leaf in tree_flatten(call_once())[0]]
            results[:] = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            others[:] = [repr(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor) and leaf is not None]
            after = _kept(model, optimizers)
            _require_same(kept, after)
            return [_local(value) for value in (*results, *(after[name].value for name in kept))]

        inputs = {**given, **{name: item.value for name, item in kept.items()}}
        held = {name: Kept(_described(item.value), item.owner) for name, item in kept.items()}
        described = {name: _described(value) for name, value in given.items()}
        locals_ = [_local(value) for value in inputs.values()]
        with _attributes_restored(model):
            graph = make_fx(run, record_stack_traces=True, _allow_non_fake_inputs=True)(*locals_)
        returned = tuple(_described(value) for value in results)
        again = make_fx(run, _allow_non_fake_inputs=True)(*locals_)
    if _operators(graph) != _operators(again):
        raise StepError("its second and its third call do not call the same operators: a step must do one thing")
    _tidy(graph)
    _require_no_foreign_state(graph)
    assumptions = [*wrappers.assumptions, *map(_uncompared, others)]
    if _at_once(optimizers):
        text = "optimizers that are `fused` or `foreach` compute what they compute for one parameter after the other"
        assumptions.append(Assumption(text, AssumptionKind.OPERATOR))
    return TracedStep(graph, tuple(inputs), described, held, returned, tuple(assumptions))


def _uncompared(text: str) -> Assumption:
    assumption = f"what is returned is not compared: {text}"
    return Assumption(assumption, AssumptionKind.UNCOMPARED)


@contextlib.contextmanager
def _waits_required() -> Generator[None]:
    try:
        with waits_required():
            yield
    except UnwaitedError as error:
        raise StepError(str(error)) from error


def _held(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by the names that they have without wrappers."""
    names = without_wrappers(model)
    return {names(name): value for name, value in (*model.named_parameters(), *model.named_buffers())}


def _described(value: torch.Tensor) -> torch.Tensor:
    """What the tensor says of itself, kept after its contents are gone."""
    if isinstance(value, DTensor):
        return DTensor(value._local_tensor, value._spec, requires_grad=False)
    return value.detach()


def _local(value: torch.Tensor) -> torch.Tensor:
    return without_pending_collective(own_part(value))


# ------------------------------------------------------------------------------------------------ contents


def _fake_like(value: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device=value.device)


def _argument(value: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(value, DTensor):
        acted: Any = of_acting_rank(value)
        return DTensor(_fake_like(acted._local_tensor, mode), value._spec, requires_grad=value.requires_grad)
    return _fake_like(value, mode).requires_grad_(value.requires_grad)


@contextlib.contextmanager
def _without_memory(tensor: torch.Tensor, mode: FakeTensorMode) -> Generator[None]:
    """While entered the tensor has no memory and no gradient; a DTensor has the shard of the rank that is acted."""
    if isinstance(tensor, DTensor):
        acted: Any = of_acting_rank(tensor)
        own, gradient = tensor._local_tensor, tensor.grad
        tensor._local_tensor, tensor.grad = _fake_like(acted._local_tensor, mode), None
        try:
            yield
        finally:
            tensor._local_tensor, tensor.grad = own, None
            tensor.grad = gradient
        return
    other: Any = _fake_like(tensor, mode)
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(other, requires_grad=tensor.requires_grad)
    for name, value in tensor.__dict__.items():  # what a program notes at its parameters: how they are sharded
        if not isinstance(value, torch.Tensor):  # whose contents no input of the step would be
            other.__dict__.setdefault(name, value)
    node = register_hooks(registered_hooks(tensor), other)
    _swap(tensor, other)
    try:
        yield
    finally:
        _swap(tensor, other)
        del node


def _swap(one: Any, other: Any) -> None:
    """Exchange what two tensors are, each under the identity of the other.

    ``torch.utils.swap_tensors`` refuses tensors that a finished trace still knows.
    """
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


@contextlib.contextmanager
def _state_restored(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Generator[None]:
    """Optimizers begin without state; what they and the modules hold is in the end what it was."""
    states = [(optimizer, dict(optimizer.state)) for optimizer in optimizers]
    groups = [(group, dict(group)) for optimizer in optimizers for group in optimizer.param_groups]
    for optimizer, _ in states:
        optimizer.state.clear()
    for group in _at_once(optimizers):
        group.update(dict.fromkeys(_AT_ONCE, False))
    try:
        with _attributes_restored(model):
            yield
    finally:
        for optimizer, state in states:
            optimizer.state.clear()
            optimizer.state.update(state)
        _restore(groups)


def _at_once(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Groups that one of torch's own optimizers was told to update in few kernels, which have no meaning here."""
    own = (optimizer for optimizer in optimizers if type(optimizer).__module__.startswith("torch.optim."))
    groups = (group for optimizer in own for group in optimizer.param_groups)
    return [group for group in groups if any(group.get(name) for name in _AT_ONCE)]


_AT_ONCE = ("fused", "foreach")


@contextlib.contextmanager
def _attributes_restored(model: nn.Module) -> Generator[None]:
    """What a call leaves in the attributes of modules, counters and tensors kept for the next call, is taken back."""
    tables: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
    for module in model.modules():
        held: dict[str, Any] = module.__dict__
        tables += [(held, dict(held)), (held["_buffers"], dict(held["_buffers"]))]
    try:
        yield
    finally:
        _restore(tables)


def _restore(tables: Iterable[tuple[dict[Any, Any], dict[Any, Any]]]) -> None:
    for table, held in tables:
        table.clear()
        table.update(held)


# ------------------------------------------------------------------------------------------------ what is kept


def _kept(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, Kept]:
    held = _held(model)
    kept = {name: Kept(value, name) for name, value in held.items()}
    names = {id(value): name for name, value in held.items()}
    for name, value in held.items():
        if value.grad is not None:
            kept[f"grad.{name}"] = Kept(value.grad, name)
    for optimizer in optimizers:
        for owner, state in optimizer.state.items():
            if id(owner) not in names:
                raise StepError("the optimizer holds state of a tensor that is no parameter of the model")
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    kept[f"state.{key}.{names[id(owner)]}"] = Kept(value, names[id(owner)])
                elif any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(value)[0]):
                    raise StepError(f"the optimizer keeps several tensors in its state `{key}`")
    return kept


def _require_same(before: Mapping[str, Kept], after: Mapping[str, Kept]) -> None:
    differing = sorted(set(before) ^ set(after))
    if differing:
        when = "before the step, and not after it" if differing[0] in before else "after the step, and not before it"
        raise StepError(f"`{differing[0]}` is there {when}: the step must leave what it finds")


# ------------------------------------------------------------------------------------------------ optimizers, scalars


@contextlib.contextmanager
def _compiling_in_optimizers() -> Generator[None]:
    """Optimizers take the way that they take when they are compiled: their step counts stay tensors."""

    def enter(*_: Any) -> None:
        torch.compiler._is_compiling_flag = True

    def leave(*_: Any) -> None:
        torch.compiler._is_compiling_flag = before

    before = torch.compiler._is_compiling_flag
    hooks = register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave)
    try:
        yield
    finally:
        leave()
        for hook in hooks:
            hook.remove()


class _Scalars(TorchFunctionMode):
    """Keeps tensors that become Python numbers: results that are returned, and factors of in-place updates."""

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[Any, torch.Tensor] = {}

    def tensor_of(self, leaf: Any) -> Any:
        """The tensor that a returned number was read from; other leaves as they are."""
        return self._read.get(leaf.node.expr, leaf) if isinstance(leaf, torch.SymFloat | torch.SymInt) else leaf

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.item, torch.Tensor.__float__):
            value = args[0].item() if func is torch.Tensor.__float__ else func(*args)
            if isinstance(value, torch.SymFloat | torch.SymInt):
                self._read[value.node.expr] = args[0]
            return value
        combine = _WITH_FACTOR.get(func)
        factor = kwargs.get("value")
        if combine is not None and isinstance(factor, torch.Tensor):
            return args[0].add_(combine(args[1], args[2]) * factor)
        return func(*args, **kwargs)


_WITH_FACTOR: dict[Any, Callable[[Any, Any], Any]] = {
    torch.Tensor.addcdiv_: torch.div,
    torch.Tensor.addcmul_: torch.mul,
}
"""In-place updates whose factor is a number: torch reads it off a tensor, and Dynamo writes them as here."""


# ------------------------------------------------------------------------------------------------ the graph


def _operators(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def _tidy(graph: torch.fx.GraphModule) -> None:
    """Without the marks of the profiler and numbers that nothing uses."""
    for node in reversed(list(graph.graph.nodes)):
        is_mark = getattr(node.target, "namespace", "") == _PROFILER
        if is_mark or (node.target is aten._local_scalar_dense.default and not node.users):
            graph.graph.erase_node(node)
    graph.recompile()


def _require_no_foreign_state(graph: torch.fx.GraphModule) -> None:
    """Raises ``StepError`` where the graph writes or differentiates a tensor that is none of its inputs."""
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, str(node.target), None)
        if not isinstance(value, torch.Tensor):
            continue
        if isinstance(value, FakeTensor):
            raise StepError(f"a tensor of shape {list(value.shape)} is kept from one call for the next")
        if value.requires_grad or _is_written(node):
            what = f"a tensor of shape {list(value.shape)} that is part of neither the model nor the arguments"
            raise StepError(f"{what} is trained or written")


def _is_written(node: torch.fx.Node) -> bool:
    """Whether an operator writes to the memory of the node's tensor."""
    aliases, seen = [node], {node}
    while aliases:
        alias = aliases.pop()
        for user in alias.users:
            schema = getattr(user.target, "_schema", None)
            if schema is None:
                is_alias = True
            else:
                given = [*zip(schema.arguments, user.args, strict=False)]
                own = [argument for argument, value in given if value is alias or _holds(value, alias)]
                if any(argument.alias_info is not None and argument.alias_info.is_write for argument in own):
                    return True
                is_alias = any(argument.alias_info is not None for argument in own)
            if is_alias and user not in seen:
                seen.add(user)
                aliases.append(user)
    return False


def _holds(value: Any, node: torch.fx.Node) -> bool:
    return isinstance(value, list | tuple) and any(item is node for item in value)
