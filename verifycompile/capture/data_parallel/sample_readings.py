"""Which inputs of a data-parallel program are samples, where nobody said: all of them, else those of one batch size.

A mask or a table that is the same on all ranks is passed as the samples are. With all inputs taken as the ranks' own
samples such a program does not run on one device. Then the inputs whose first dimension is as long as a batch are the
samples, and the others are the same on all ranks, where that runs for one batch size alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from verifycompile.capture.data_parallel.samples import sample_inputs
from verifycompile.capture.implementation import Results, results_of
from verifycompile.capture.single_device.spec import recover_spec, with_unwritten
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Program
from verifycompile.torch_interface.logs import without_logged_failures


@dataclasses.dataclass(frozen=True)
class Captured:
    """Both programs; ``results`` of the implementation as its Dynamo graph returns them."""

    spec: Program
    implementation: Program
    results: Results


_DOES_NOT_RUN = frozenset({"VC303", "VC307"})


def capture_both(capture: Callable[[frozenset[str]], Program], options: Options) -> Captured:
    """The implementation and its spec. ``capture`` takes the names of inputs that are the same on all ranks.

    Raises ``UsageError`` as ``capture`` and ``recover_spec`` do; it names the inputs that were taken as samples.
    """
    implementation = capture(frozenset())
    groups = sample_inputs(implementation)
    try:
        with without_logged_failures():
            return _with_spec(implementation, options)
    except UsageError as error:
        if error.code not in _DOES_NOT_RUN or not groups:
            raise
        failure = error
    readings = _that_run(capture, groups, options) if len(groups) > 1 else []
    if len(readings) == 1:
        return readings[0][1]
    if not readings:
        names = ", ".join(f"`{name}`" for group in groups for name in group)
        raise UsageError(
            failure.code,
            f"{failure.message}\nBy default {names} were taken as the ranks' own samples, sharded on dimension 0; say "
            "otherwise with `in_placements`.",
        ) from failure
    choices = " or ".join(" with ".join(f"`{name}`" for name in group) for group, _ in readings)
    raise UsageError(
        failure.code,
        f"the ranks' own samples are {choices}: the program runs on one device either way. "
        "Say it with `in_placements`.",
    ) from failure


def _that_run(
    capture: Callable[[frozenset[str]], Program], groups: Sequence[tuple[str, ...]], options: Options
) -> list[tuple[tuple[str, ...], Captured]]:
    found: list[tuple[tuple[str, ...], Captured]] = []
    for group in groups:
        whole = frozenset(name for other in groups if other is not group for name in other)
        try:
            with without_logged_failures():
                found.append((group, _with_spec(capture(whole), options)))
        except UsageError as error:
            if error.code not in _DOES_NOT_RUN:
                raise
    return found


def _with_spec(implementation: Program, options: Options) -> Captured:
    results = results_of(implementation)
    spec = recover_spec(options, implementation)
    return Captured(spec, with_unwritten(spec, implementation), results)
