"""What the gate has accepted runs verified or raises; what it never saw and runs in Python is said once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Placement

import verifycompile
from tests.support import fake_mesh_world
from tests.warm import python
from verifycompile.backends import unverified
from verifycompile.backends.reports import VerificationWarning

Call = Callable[[int], torch.Tensor]
"""``(rows)``: a call of a compiled model with that many rows."""


class Block(nn.Module):
    """``hides``: an exception handler, in which Dynamo cannot break the graph, stands around a graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.hides = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.hides:
            with contextlib.suppress(ValueError):
                torch._dynamo.graph_break()
        return x + self.down(torch.relu(self.up(x)))


@pytest.fixture
def block() -> Iterator[nn.Module]:
    with fake_mesh_world((4,), ("tp",), rank=1) as mesh:
        yield parallel(mesh)


def parallel(mesh: DeviceMesh) -> Block:
    return parallelize_module(Block(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})  # type: ignore[return-value]


def compiled(model: Callable[..., Any], *, dynamic: bool | None = False, **options: Any) -> Call:
    settings = {"inner": "eager", **options}
    function = torch.compile(model, backend="verify", dynamic=dynamic, options=settings)
    return lambda rows: function(torch.ones(rows, 8))


def refusal(call: Call, rows: int) -> str:
    """What a call is refused with, at the function that would run, without what every report ends with."""
    with pytest.raises(verifycompile.RefinementError) as raised:
        call(rows)
    report = raised.value.report
    assert report.verdict is verifycompile.Verdict.UNPROVED
    (finding,) = report.findings
    assert finding.code == "VC210"
    assert finding.impl_location is None or finding.impl_location.file == __file__
    return finding.message


BEFORE = "`forward` was verified for other inputs and would run as it is now: "
ALL = "nothing that runs now would be what was verified: "


def test_past_the_recompile_limit(block: nn.Module) -> None:
    call = compiled(block)
    with torch._dynamo.config.patch(recompile_limit=2):
        assert [call(rows).shape[0] for rows in (2, 3)] == [2, 3]
        message = (
            f"{BEFORE}Dynamo recompile limit exceeded: Dynamo attempted to recompile the code object too many times, "
            "exceeding the recompile_limit cache size limit (currently set to 2)"
        )
        assert [refusal(call, rows) for rows in (4, 5)] == [message, message]
        with pytest.raises(verifycompile.RefinementError) as raised:
            call(6)
        (note,) = raised.value.report.findings[0].notes
        assert note == (
            "`torch._dynamo.config.recompile_limit = 1024` before the first call lets torch compile the function again "
            "for these inputs, and each graph is checked"
        )
        assert call(3).shape[0] == 3
    assert call(4).shape[0] == 4


def test_past_the_limit_of_all_recompilations(block: nn.Module) -> None:
    call = compiled(block)
    with torch._dynamo.config.patch(accumulated_recompile_limit=1):
        call(2)
        assert refusal(call, 3) == (
            f"{BEFORE}Dynamo recompile limit exceeded: Dynamo attempted to recompile the code object too many times, "
            "exceeding the accumulated_recompile_limit cache size limit (currently set to 1)"
        )


def test_a_compilation_without_the_gate_leaves_no_mark_on_what_was_accepted(block: nn.Module) -> None:
    call = compiled(block)
    call(2)
    plain = torch.compile(block, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=1, accumulated_recompile_limit=1):
        for rows in (3, 4):
            plain(torch.ones(rows, 8))
        assert refusal(call, 5).startswith(f"{BEFORE}Dynamo recompile limit exceeded")
    assert call(5).shape[0] == 5


@pytest.mark.parametrize(
    ("stance", "reason"),
    [
        ({"stance": "force_eager"}, "the stance of torch.compile is `force_eager`"),
        ({"stance": "eager_then_compile"}, "the stance of torch.compile is `eager_then_compile`"),
        ({"stance": "aot_eager_then_compile"}, "the stance of torch.compile is `aot_eager_then_compile`"),
        ({"force_backend": "eager"}, "the stance of torch.compile forces another backend"),
        (
            {"skip_guard_eval_unsafe": True},
            "the stance of torch.compile leaves guards out (`skip_guard_eval_unsafe`)",
        ),
    ],
)
def test_stances_that_leave_the_gate(block: nn.Module, stance: dict[str, Any], reason: str) -> None:
    call = compiled(block)
    call(2)
    with torch.compiler.set_stance(**stance):
        assert [refusal(call, rows) for rows in (2, 3)] == [ALL + reason, ALL + reason]
    assert call(3).shape[0] == 3


def test_eager_on_recompile_runs_what_is_compiled(block: nn.Module) -> None:
    call = compiled(block)
    call(2)
    with torch.compiler.set_stance("eager_on_recompile"):
        assert call(2).shape[0] == 2
        assert refusal(call, 3) == (
            f"{BEFORE}the stance of torch.compile is `eager_on_recompile`, and nothing is compiled for these inputs"
        )
    assert call(3).shape[0] == 3


def test_run_only_runs_what_is_compiled(block: nn.Module) -> None:
    torch._dynamo.reset()  # what earlier tests compiled of this code is run as well
    function = torch.compile(block, backend="verify", dynamic=False, options={"inner": "eager"})
    function(torch.ones(2, 8))
    for of in (function, block):
        run = torch._dynamo.run(of)
        assert run(torch.ones(2, 8)).shape[0] == 2
        assert refusal(lambda rows, run=run: run(torch.ones(rows, 8)), 3) == (
            f"{BEFORE}`torch._dynamo.run` compiles nothing, and nothing is compiled for these inputs"
        )
    assert function(torch.ones(3, 8)).shape[0] == 3


def test_run_only_leaves_others_alone(block: nn.Module) -> None:
    torch.compile(block, backend="verify", dynamic=False, options={"inner": "eager"})(torch.ones(2, 8))
    other = torch.compile(nn.Linear(8, 4), backend="eager", dynamic=False)
    other(torch.ones(2, 8))
    assert torch._dynamo.run(other)(torch.ones(3, 8)).shape == (3, 4)


def test_compiled_autograd_is_refused_by_name() -> None:
    with fake_mesh_world((4,), ("tp",), rank=1) as mesh:

        def program(x: torch.Tensor) -> torch.Tensor:
            return collectives.all_reduce(x.sin(), "sum", mesh.get_group())

        options = {"inner": "eager", "mesh": mesh, "spec": lambda x: 4 * x.sin()}
        compiled_program = torch.compile(program, backend="verify", options=options)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="verify")):
            result = compiled_program(torch.ones(4, requires_grad=True))
            with pytest.raises(verifycompile.UsageError) as refused:
                result.sum().backward()
    assert str(refused.value) == (
        "error[VC305]: compiled autograd makes one graph of a whole backward, of all graphs and of what runs between "
        "them, which has no counterpart in the spec's Python code. Switch it off "
        "(`torch._dynamo.config.compiled_autograd`), or let it compile with another backend: the backward of each "
        "compiled graph is verified with the graph."
    )


def test_fail_on_recompile_fails(block: nn.Module) -> None:
    call = compiled(block)
    call(2)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert call(2).shape[0] == 2
        with pytest.raises(RuntimeError, match=r"Detected recompile when torch.compile stance is 'fail_on_recompile'"):
            call(3)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("disable", f"{BEFORE}Dynamo tracing is disabled"),
        ("caching_precompile", f"{ALL}`torch._dynamo.config.caching_precompile` takes compiled code from files"),
    ],
)
def test_settings_of_dynamo(block: nn.Module, setting: str, reason: str) -> None:
    call = compiled(block)
    call(2)
    with torch._dynamo.config.patch({setting: True}):
        assert refusal(call, 3) == reason
    assert call(3).shape[0] == 3


def test_guards_that_are_left_out(block: nn.Module) -> None:
    call = compiled(block, guard_filter_fn=lambda guards: [False for _ in guards])
    assert refusal(call, 2) == f"{ALL}the option `guard_filter_fn` leaves guards out"


def test_a_frame_that_dynamo_gives_up_later(block: Block) -> None:
    call = compiled(block)
    call(2)
    block.hides = True
    assert refusal(call, 2) == f"{BEFORE}Call to `torch._dynamo.graph_break()`: User-inserted graph break"
    block.hides = False
    assert call(2).shape[0] == 2


def test_an_error_behind_the_gate_is_not_hidden(block: nn.Module) -> None:
    def inner(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        raise ValueError("no kernel")

    with torch._dynamo.config.patch(suppress_errors=True):
        assert refusal(compiled(block, inner=inner), 2) == f"{BEFORE}backend='verify' raised: ValueError: no kernel"


def around(block: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(ValueError):
            torch._dynamo.graph_break()
        return block(x)

    return step


def one_by_one(block: nn.Module) -> Callable[[torch.Tensor], Iterator[torch.Tensor]]:
    def steps(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield block(x)

    return steps


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            around,
            "`step` runs without having been checked: Call to `torch._dynamo.graph_break()`: User-inserted graph break",
        ),
        (
            one_by_one,
            "`steps` runs without having been checked: Attempt to trace generator: Generators cannot be compiled directly with `torch.compile`",
        ),
    ],
)
def test_a_frame_that_dynamo_never_compiles_is_named_once(
    block: nn.Module, function: Callable[..., Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unverified, "_told", set())
    call = compiled(function(block))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (2, 3):
            found = call(rows)
            found = found if isinstance(found, torch.Tensor) else next(found)
            assert found.shape[0] == rows
    found = [warning for warning in caught if issubclass(warning.category, VerificationWarning)]
    assert [str(warning.message) for warning in found] == [text]
    assert found[0].filename == __file__


class Scaled(nn.Module):
    """What it returns is scaled by a number that Python reads between two graphs."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8, bias=False)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        if self.how == "list":
            return x * y.sum(0).tolist()[0]
        if self.how == "after another":
            return x * (2 + y.sum().item())
        return x * float(y.sum())


READS = [("float", True), ("after another", True), ("list", True), ("float", False), ("after another", False)]
"""How a number is read, and whether from a plain tensor."""


def scaled(how: str, is_plain: bool, layout: Placement) -> Call:
    with fake_mesh_world((4,), ("tp",), rank=1) as mesh:
        last = RowwiseParallel(output_layouts=layout, use_local_output=is_plain)
        model = parallelize_module(Scaled(how), mesh, {"up": ColwiseParallel(), "down": last}).requires_grad_(False)
        for parameter in model.parameters():  # the fake process group leaves them as memory was
            parameter.to_local().copy_(
                torch.linspace(-0.7, 0.9, parameter.to_local().numel()).view_as(parameter.to_local())
            )
        call = compiled(model)
        call(2)
    return call


@pytest.mark.parametrize("number", range(len(READS)))
def test_a_number_is_not_read_from_a_partial_sum(number: int) -> None:
    with pytest.raises(verifycompile.RefinementError) as raised:
        scaled(*READS[number], Partial())
    (finding,) = raised.value.report.findings
    assert finding.code == "VC101"
    assert finding.impl_location is not None
    assert finding.impl_location.file == __file__
    assert finding.message == (
        "`sum_1` is a partial sum, and goes to Python code that nothing checks"
        if READS[number][1]
        else "a number is read from a DTensor that is a partial sum: each rank reads its own part"
    )


@pytest.mark.parametrize("number", range(len(READS)))
def test_a_number_is_read_from_the_whole(number: int) -> None:
    scaled(*READS[number], Replicate())


def test_on_unproved_warns(block: nn.Module) -> None:
    call = compiled(block, on_unproved="warn")
    call(2)
    with torch.compiler.set_stance("eager_on_recompile"), pytest.warns(VerificationWarning) as caught:
        assert call(3).shape[0] == 3
    texts = {str(warning.message).splitlines()[0] for warning in caught}
    assert texts == {"unproved[VC210]: a run that was not verified"}


def test_nothing_is_said_of_what_the_user_calls_uncompiled(block: nn.Module) -> None:
    compiled(block)(2)
    assert block(torch.ones(3, 8)).shape[0] == 3


FLAG = """
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
layer = torch.compile(parallelize_module(torch.nn.Linear(4, 4), mesh, ColwiseParallel()), backend="eager", dynamic=False)
double = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
with torch._dynamo.config.patch(recompile_limit=1):
    for rows in (2, 3, 4):
        print(double(torch.ones(rows, 4)).shape[0])
    print(layer(torch.ones(2, 4)).shape[0])
    with torch.compiler.set_stance("force_eager"):
        print(double(torch.ones(9, 4)).shape[0])
        try:
            layer(torch.ones(2, 4))
        except torch._dynamo.exc.TorchDynamoException as error:
            print(error.report.findings[0].message)
    print(layer(torch.ones(3, 4)).shape[0])
"""


def run_with_flag(flag: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python(), "-c", FLAG],
        env={**os.environ, "OMP_NUM_THREADS": "1", "VERIFYCOMPILE": flag, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_flag_refuses_what_it_has_accepted_and_nothing_else() -> None:
    done = run_with_flag("1")
    assert done.stdout.splitlines() == ["2", "3", "4", "2", "9", f"{ALL}the stance of torch.compile is `force_eager`"]
    assert done.returncode == 1
    assert "RefinementError: unproved[VC210]: a run that was not verified" in done.stderr
    assert "would run as it is now: Dynamo recompile limit exceeded" in done.stderr


def test_the_flag_is_not_inert_where_torch_compile_is_turned_off() -> None:
    done = run_with_flag("1", TORCHDYNAMO_DISABLE="1")
    assert done.returncode == 1
    assert "VERIFYCOMPILE needs torch.compile, which TORCHDYNAMO_DISABLE=1 turns off" in done.stderr
