"""What a Dynamo backend needs of Dynamo: other backends, the one that the user chose, ids and trace artifacts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
import torch.fx
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._dynamo.exc import InvalidBackend
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import CompileContext, TracingContext
from torch._logging import trace_structured

from verifycompile.errors import UsageError

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""A backend as Dynamo calls it: graph and example inputs in, compiled function out."""


def backend_of(choice: str | Backend, mode: str | None) -> Backend:
    """The backend that ``torch.compile(backend=choice, mode=mode)`` would call.

    Raises ``UsageError`` VC306 for a name that is not registered, and for a mode that there is not.
    """
    try:
        if choice == "inductor":
            inductor: Any = torch._TorchCompileInductorWrapper(mode, None, None)
            return inductor
        return torch._TorchCompileWrapper(choice, mode, None, None)
    except InvalidBackend as error:
        listed = "`torch.compiler.list_backends(())` lists them"
        text = f"option `inner` names no backend of torch.compile: `{choice}`; {listed}."
        raise UsageError("VC306", text) from error
    except RuntimeError as error:
        raise UsageError("VC306", f"argument `mode` of torch.compile: {error}.") from error


def chosen_backend() -> Backend:
    """The backend that was given to ``torch.compile`` for the frame under compilation, whatever overrides it."""
    chosen: Any = InstructionTranslator.current_tx().output.compiler_fn
    return chosen


def unwrapped(backend: object) -> object:
    """The function behind the object in which ``torch.compile`` keeps a backend with its ``mode`` and ``options``.

    For what cuts the graphs of ``DistributedDataParallel`` into buckets, the backend that it calls for each.
    """
    cutting = getattr(backend, "__self__", None)
    if isinstance(cutting, DDPOptimizer):
        return unwrapped(cutting.backend_compile_fn)
    return getattr(backend, "compiler_fn", backend)


def options_of(backend: object) -> Mapping[str, Any]:
    """The ``options`` that were given to ``torch.compile`` along with ``backend``."""
    given: Any = getattr(backend, "kwargs", {})
    return given.get("options", {})


def without_override() -> contextlib.AbstractContextManager[None]:
    """Inside, ``TORCH_COMPILE_OVERRIDE_BACKENDS`` does not apply: what we trace ourselves is not checked again."""
    return torch._dynamo.config.patch(debug_backend_override="")


_LEFT_BY_AUTOGRAD = ("fw_metadata", "aot_graph_name", "output_strides", "params_flat", "fakify_first_call")


@contextlib.contextmanager
def compilation_left_as_it_is() -> Generator[None]:
    """Inside, graphs of the compilation in progress may be exported: the inner backend finds nothing of it afterwards.

    Guards on sizes stay: what was verified rests on them. A symbol that no graph binds, left pending by an export that
    was given up, would fail the inner backend.
    """
    context = TracingContext.get()
    before = {name: getattr(context, name) for name in _LEFT_BY_AUTOGRAD}
    environment = None if context.fake_mode is None else context.fake_mode.shape_env
    symbols = [] if environment is None else list(environment.pending_fresh_unbacked_symbols)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        if environment is not None:
            environment.pending_fresh_unbacked_symbols[:] = symbols


def compile_id() -> str:
    """Dynamo's id of the compilation in progress, as in its logs: ``0/0`` for the first frame."""
    identifier = CompileContext.current_compile_id()
    return "" if identifier is None else str(identifier)


def is_compiled_again() -> bool:
    """Whether Dynamo holds another graph of the frame under compilation, among which each call chooses."""
    identifier = CompileContext.current_compile_id()
    return identifier is not None and bool(identifier.frame_compile_id)


def record_artifact(name: str, json_text: Callable[[], str]) -> None:
    """Add a JSON artifact to the structured trace; ``json_text`` is called only where ``TORCH_TRACE`` is set."""
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": "json"}, payload_fn=json_text)
