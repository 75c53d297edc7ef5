"""What the user of ``torch.compile`` sees of an exception that a backend raises."""

from __future__ import annotations

import subprocess
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

import verifycompile
from tests.warm import python
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.torch_interface.errors import CompileUsageError, InternalError, RefinementError, as_compile_error

REPORT = Report(
    verdict=Verdict.UNPROVED,
    findings=(Finding("VC201", Severity.ERROR, "operator `my_library.rotate` has no declaration"),),
)
TEXT = """\
unproved[VC201]: operator without declaration
  = note: operator `my_library.rotate` has no declaration
  = see: verifycompile explain VC201

unproved: the parallel program is neither verified nor refuted; what blocked the proof is listed above"""


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.cos(x)) + 1


def raise_refinement_error() -> NoReturn:
    raise RefinementError(REPORT)


def raise_usage_error() -> NoReturn:
    raise UsageError("VC301", "the program has no device mesh.")


def raise_key_error() -> NoReturn:
    raise KeyError("axis")


def caught_from_compile(fail: Callable[[], NoReturn]) -> Exception:
    """What a call of the compiled program raises where its backend does ``fail``."""

    def backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> NoReturn:
        try:
            fail()
        except Exception as error:
            raise as_compile_error(error) from None

    torch.compiler.reset()
    try:
        torch.compile(program, backend=backend)(torch.ones(2))
    except Exception as error:
        return error
    finally:
        torch.compiler.reset()
    pytest.fail("the compiled program ran although its backend raised")


@pytest.fixture(params=[False, True], ids=["default", "suppress_errors"])
def suppress_errors(request: pytest.FixtureRequest):
    with torch._dynamo.config.patch(suppress_errors=request.param):
        yield


@pytest.mark.usefixtures("suppress_errors")
def test_refinement_error_reaches_the_user_as_it_is() -> None:
    error = caught_from_compile(raise_refinement_error)
    assert type(error) is verifycompile.RefinementError
    assert error.report is REPORT
    assert str(error) == TEXT
    assert traceback.format_exception_only(error) == [f"verifycompile.RefinementError: {TEXT}\n"]


@pytest.mark.usefixtures("suppress_errors")
def test_usage_error_reaches_the_user_as_it_is() -> None:
    error = caught_from_compile(raise_usage_error)
    assert isinstance(error, verifycompile.UsageError)
    assert (error.code, error.message) == ("VC301", "the program has no device mesh.")
    assert traceback.format_exception_only(error) == [
        "verifycompile.UsageError: error[VC301]: the program has no device mesh.\n"
    ]


@pytest.mark.usefixtures("suppress_errors")
def test_internal_error_stops_the_program_and_keeps_its_traceback() -> None:
    error = caught_from_compile(raise_key_error)
    assert isinstance(error, InternalError)
    lines = str(error).splitlines()
    assert lines[0] == "verifycompile failed with KeyError: 'axis'"
    assert lines[1] == (
        "This says nothing about the program that was being verified. Please report it with what follows."
    )
    assert lines[3] == "Traceback (most recent call last):"
    assert '    raise KeyError("axis")' in lines
    assert lines[-1] == "KeyError: 'axis'"


@pytest.mark.usefixtures("suppress_errors")
def test_the_traceback_ends_where_the_user_calls_the_program() -> None:
    error = caught_from_compile(raise_refinement_error)
    files = [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]
    assert files == ["test_errors.py", "eval_frame.py"]
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_a_failed_compilation_is_not_cached() -> None:
    calls: list[int] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        calls.append(1)
        raise RefinementError(REPORT)

    torch.compiler.reset()
    compiled = torch.compile(program, backend=backend)
    for _ in range(2):
        with pytest.raises(RefinementError):
            compiled(torch.ones(2))
    torch.compiler.reset()
    assert len(calls) == 2


def test_plain_exceptions_are_wrapped_and_suppressed_by_torch() -> None:
    """The behaviour that these classes exist for; where a release changes it, they may become simpler."""

    def backend(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> NoReturn:
        raise RuntimeError("plain")

    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(program, backend=backend)(torch.ones(2))
    torch.compiler.reset()
    with torch._dynamo.config.patch(suppress_errors=True):
        assert torch.compile(program, backend=backend)(torch.ones(2)).shape == (2,)
    torch.compiler.reset()


def test_as_compile_error_keeps_what_is_one() -> None:
    error = RefinementError(REPORT)
    assert as_compile_error(error) is error
    assert type(as_compile_error(UsageError("VC301", "no mesh."))) is CompileUsageError


def test_an_uncaught_error_ends_a_script_with_its_text_and_a_non_zero_status(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from verifycompile.diagnostics.finding import Finding
            from verifycompile.diagnostics.report import Report
            from verifycompile.diagnostics.severity import Severity
            from verifycompile.diagnostics.verdict import Verdict
            from verifycompile.torch_interface.errors import RefinementError

            def backend(gm, example_inputs):
                finding = Finding("VC201", Severity.ERROR, "operator `my_library.rotate` has no declaration")
                raise RefinementError(Report(Verdict.UNPROVED, findings=(finding,)))

            torch.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(2))
            """
        )
    )
    done = subprocess.run([python(), str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith(f"verifycompile.RefinementError: {TEXT}\n")
    assert "TORCHDYNAMO_VERBOSE" not in done.stderr
