"""What one rank alone does in compiled code is named by its line; a call past the wrapper is told of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.agreement.asked_on_two_ranks import answers_of
from tests.agreement.scripts import one_rank_alone

PRINTED = "`sys.stderr.write(str(y.shape))`"
LOGGED = '`logging.getLogger("one").info("mean %s", y.mean())`'
NO_PROGRAM = "unproved VC208: a rank that runs this program has not said what it captured: rank {}: {}"
KEEP = (
    "Keep what one rank alone does, as printing and logging, out of what is compiled: do it with what the call returns, "
    "or on all ranks. No graph breaks at a function that `torch._dynamo.config` lists: at `print` in "
    "`reorderable_logging_functions`, at `logging.Logger.info` in `ignore_logging_functions`."
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[str]]:
    return answers_of("one_rank_alone", VERIFYCOMPILE_RANKS_TIMEOUT="2")


def at(written: str, which: int = 0) -> str:
    """A line of the script as a message names it; ``which``: of those that read like this."""
    lines = Path(one_rank_alone.__file__).read_text().splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if line.strip() == written.strip("`")]
    return f"{written} (one_rank_alone.py:{numbers[which]})"


@pytest.mark.parametrize(("name", "line"), [("printed", PRINTED), ("logged", LOGGED)])
def test_what_the_first_rank_alone_does_is_named_on_both(outcomes: dict[str, list[str]], name: str, line: str) -> None:
    text = (
        "error[VC305]: a graph break ends the graph of the only process of a job, as which the spec is recovered, at "
        f"{at(line)}, and this rank goes on there. {KEEP}"
    )
    assert outcomes[name] == [NO_PROGRAM.format(1, f"it stopped with {text}"), text]


def test_what_another_rank_alone_does_is_named_on_both(outcomes: dict[str, list[str]]) -> None:
    text = (
        f"unproved VC208: a graph break ends the graph of rank 1 at {at(PRINTED, 1)}, and rank 0 goes on there. {KEEP}"
    )
    assert outcomes["printed_on_the_last"] == [text, text]


def test_where_no_other_rank_compiles_the_function_the_line_is_named_too(outcomes: dict[str, list[str]]) -> None:
    first, second = outcomes["called"]
    waited = re.sub(r"within \d+ s", "within 2 s", first)
    assert waited == (
        f"{NO_PROGRAM.format(1, 'no answer within 2 s')}; a graph break ends the graph of this rank at {at(PRINTED)}, and "
        f"other ranks may go on there. {KEEP}"
    )
    assert at(PRINTED) in second


def test_where_a_spec_is_given_the_line_is_named(outcomes: dict[str, list[str]]) -> None:
    text = (
        f"error[VC305]: a graph break ends this graph at {at(PRINTED)}, and the option `spec` says what the whole program "
        "computes: what follows the break could not be compared. Take what stands there out of what is compiled "
        "(`fullgraph=True` says more), or leave the option out."
    )
    assert outcomes["given"] == [text, NO_PROGRAM.format(0, f"it stopped with {text}")]


@pytest.mark.parametrize("name", ["on_all_ranks", "listed"])
def test_what_all_ranks_log_or_torch_is_told_of_is_compared_around_it(
    outcomes: dict[str, list[str]], name: str
) -> None:
    assert outcomes[name] == ["ran", "ran"]


def test_a_call_past_the_wrapper_is_told_of_where_it_makes_gradients(outcomes: dict[str, list[str]]) -> None:
    text = (
        "`Net.forward` reads parameters of a `DistributedDataParallel` whose forward does not run, as in "
        "`model.module(x)`: no rank reduces the gradients of this call, unless that forward runs before the same "
        "backward. Call the wrapper"
    )
    assert outcomes["past the wrapper"] == [text, "ran"]
    assert outcomes["the wrapper"] == outcomes["evaluated past the wrapper"] == ["ran", "ran"]
