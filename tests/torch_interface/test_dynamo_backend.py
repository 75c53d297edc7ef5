from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._guards import TracingContext

from verifycompile.errors import UsageError
from verifycompile.torch_interface.dynamo.backend import (
    backend_of,
    chosen_backend,
    compilation_left_as_it_is,
    compile_id,
    record_artifact,
    unwrapped,
    without_override,
)

Compiled = Callable[..., Any]


@pytest.fixture(autouse=True)
def clean_dynamo() -> None:
    torch._dynamo.reset()


def increment(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_backend_of_a_name_compiles(name: str) -> None:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        return backend_of(name, None)(gm, example_inputs)

    assert torch.compile(increment, backend=backend)(torch.zeros(1)).item() == 1


def test_backend_of_inductor_takes_its_mode() -> None:
    assert backend_of("inductor", "max-autotune").config["max_autotune"] is True  # type: ignore[attr-defined]
    assert "max_autotune" not in backend_of("inductor", None).config  # type: ignore[attr-defined]


def test_backend_of_an_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(UsageError) as raised:
        backend_of("nope", None)
    assert str(raised.value) == "error[VC306]: option `inner` names no backend of torch.compile: `nope`; `torch.compiler.list_backends(())` lists them."


def test_chosen_backend_is_the_users_under_an_override() -> None:
    seen: list[object] = []

    def chosen(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        seen.append("called")
        return gm.forward

    def override(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        seen.append(unwrapped(chosen_backend()))
        return chosen_backend()(gm, example_inputs)

    torch._dynamo.register_backend(override, name="test_override")
    with torch._dynamo.config.patch(debug_backend_override=">=0:test_override"):
        torch.compile(increment, backend=chosen)(torch.zeros(1))
    assert seen == [chosen, "called"]


def test_without_override_lifts_it_for_what_is_traced_inside() -> None:
    with torch._dynamo.config.patch(debug_backend_override=">=0:eager"):
        with without_override():
            assert torch._dynamo.config.debug_backend_override == ""
        assert torch._dynamo.config.debug_backend_override == ">=0:eager"


def test_compile_id_counts_frames_as_dynamos_logs_do() -> None:
    seen: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        seen.append(compile_id())
        return gm.forward

    compiled = torch.compile(increment, backend=backend, dynamic=False)
    compiled(torch.zeros(1))
    compiled(torch.zeros(2))
    assert seen == ["0/0", "0/1"]
    assert compile_id() == ""


def test_artifact_reaches_the_structured_trace(caplog: pytest.LogCaptureFixture) -> None:
    trace = logging.getLogger("torch.__trace")
    handler = logging.NullHandler()
    trace.addHandler(handler)
    try:
        record_artifact("verify_report", lambda: '{"verdict": "verified"}')
    finally:
        trace.removeHandler(handler)
    (record,) = [entry for entry in caplog.records if "artifact" in getattr(entry, "metadata", {})]
    assert record.metadata["artifact"] == {"name": "verify_report", "encoding": "json"}  # type: ignore[attr-defined]
    assert record.payload == '{"verdict": "verified"}'  # type: ignore[attr-defined]


def test_what_an_export_leaves_pending_does_not_reach_the_inner_backend() -> None:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        context = TracingContext.get()
        assert context.fake_mode is not None
        environment = context.fake_mode.shape_env
        assert environment is not None
        with compilation_left_as_it_is():
            environment.create_unbacked_symint()
            context.params_flat = []
            assert environment.pending_fresh_unbacked_symbols
        assert not environment.pending_fresh_unbacked_symbols
        assert context.params_flat is None
        return backend_of("aot_eager", None)(gm, example_inputs)

    assert torch.compile(increment, backend=backend)(torch.zeros(1)).item() == 1
