"""The recovered spec has the numbers that the model was constructed with; what nothing confirms is listed, or asked."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import re
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from tests.support import fake_mesh_world
from verifycompile import UsageError, Verdict, verify
from verifycompile.diagnostics.report import Report
from verifycompile.question import Provenance
from verifycompile.torch_interface.ranks import constructed

DEGREE = 2
HEADS = 4
X = (torch.randn(2, 6, 32),)
PLAN: dict[str, ParallelStyle] = {
    "q": ColwiseParallel(),
    "k": ColwiseParallel(),
    "v": ColwiseParallel(),
    "o": RowwiseParallel(),
}
SAY = (
    "Pass the single-device program as the option `spec`, or say by an option what it has: "
    '`per_rank_numbers=["{0}"]` where it has {1}, and `per_rank_numbers=[]` where it has {2}.'
)
NAME = (
    "Pass the single-device program as the option `spec`, or name all numbers that are one rank's out of {0}: "
    '`per_rank_numbers=["{1}"]` where it has {2} of the first and the others as they are, and `per_rank_numbers=[]` '
    "where it has all as they are."
)


@dataclasses.dataclass
class Config:
    heads: int = 4
    groups: int = 4


class Attention(nn.Module):
    """``scale``: of what it returns."""

    def __init__(self, heads: int = 4, degree: int = 1) -> None:
        super().__init__()
        self.n_heads = heads
        self.width = 32 // heads
        self.n_groups = heads
        self.degree = degree
        self.factor = 0.5
        self.config = Config()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32, bias=False) for _ in range(4))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, self.n_heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = F.scaled_dot_product_attention(self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x)))
        return self.scaled(self.o(mixed.transpose(1, 2).reshape(*x.shape[:2], -1)))

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x


class ByWidth(Attention):
    def heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.width).transpose(1, 2)


class ByBoth(Attention):
    def heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, self.n_heads, self.width).transpose(1, 2)


class ByConstant(Attention):
    def heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, self.n_heads, 8).transpose(1, 2)


class OfConfig(Attention):
    def heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, self.config.heads, -1).transpose(1, 2)


class OfModule(Attention):
    def heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, HEADS, -1).transpose(1, 2)


def split(x: torch.Tensor, heads: int = 4, dim: int = 2) -> torch.Tensor:
    return x.unflatten(dim, (heads, -1))


class OfDefault(Attention):
    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return split(x).transpose(1, 2)


class DividedByGroups(ByWidth):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x / self.n_groups


class DividedByGroupsOfConfig(ByWidth):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x / self.config.groups


class TimesDegree(ByWidth):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.degree


class TimesFactor(ByWidth):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@pytest.fixture(autouse=True)
def mesh() -> Generator[DeviceMesh]:
    with fake_mesh_world((DEGREE,), ("tp",)) as found:
        yield found


def parallel(model: nn.Module, mesh: DeviceMesh, **numbers: Any) -> Any:
    """The model in parallel, with ``numbers`` as the plan sets them afterwards."""
    parallelize_module(model, mesh, PLAN)
    for name, value in numbers.items():
        setattr(model, name, value)
    return model


def without_record(model: nn.Module) -> Any:
    """As if the package had been imported after the model was built."""
    for module in model.modules():
        constructed._RECORDS._entries.pop(id(module), None)
    return model


def message(report: Report) -> str:
    assert report.verdict is Verdict.UNPROVED
    assert [finding.code for finding in report.findings] == ["VC209"]
    return report.findings[0].message


def test_a_count_that_the_plan_divides_is_the_recorded_one(mesh: DeviceMesh) -> None:
    report = verify(parallel(Attention(), mesh, n_heads=2), X)
    assert report.verdict is Verdict.VERIFIED
    assert report.question.spec is Provenance.RECORDED
    assert report.assumptions[0] == "the spec has `n_heads` = 4, as the model was constructed; it is 2 now"


def test_a_count_that_the_plan_forgets_is_refuted(mesh: DeviceMesh) -> None:
    report = verify(parallel(Attention(), mesh), X)
    assert report.verdict is Verdict.REFUTED
    assert report.question.spec is Provenance.RECORDED


@pytest.mark.parametrize(
    ("model", "wrong", "right"),
    [(DividedByGroups, {"n_groups": 2}, {}), (TimesDegree, {"degree": DEGREE}, {"degree": 1})],
)
def test_a_count_that_is_used_in_arithmetic(
    mesh: DeviceMesh, model: type[Attention], wrong: dict[str, int], right: dict[str, int]
) -> None:
    assert verify(parallel(model(), mesh, **wrong), X).verdict is Verdict.REFUTED
    assert verify(parallel(model(), mesh, **right), X).verdict is Verdict.VERIFIED


def test_numbers_of_a_config_are_recorded_with_the_module_that_holds_it(mesh: DeviceMesh) -> None:
    right, forgotten = parallel(OfConfig(), mesh), parallel(OfConfig(), mesh)
    right.config.heads //= DEGREE
    report = verify(right, X)
    assert report.verdict is Verdict.VERIFIED
    assert report.assumptions[0] == "the spec has `config.heads` = 4, as the model was constructed; it is 2 now"
    assert right.config.heads == 2
    assert verify(forgotten, X).verdict is Verdict.REFUTED
    divided = parallel(DividedByGroupsOfConfig(), mesh)
    assert verify(divided, X).verdict is Verdict.VERIFIED
    divided.config.groups //= DEGREE
    assert verify(divided, X).verdict is Verdict.REFUTED


def test_a_number_of_no_module_may_be_one_rank_s_where_code_asked_for_the_degree_before(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parallel(OfModule(), mesh)
    divided = HEADS // mesh.size()
    assert verify(model, X).verdict is Verdict.REFUTED  # it is as old as the file
    monkeypatch.setattr(sys.modules[__name__], "HEADS", divided)
    text = message(verify(model, X))
    assert re.sub(r"\(read at .*?\)", "(read at ...)", text) == (
        "`HEADS` is 2 (read at ...). Code asked how many ranks there are before it was set, and nothing says whether it "
        "is the number of the single-device program or that of one rank, in the place of 4. Pass the single-device "
        "program as the option `spec`, or say with `per_rank_numbers=[]` that no number is per rank."
    )
    assert verify(model, X, per_rank_numbers=[]).verdict is Verdict.REFUTED
    assert verify(model, X, spec=Attention()).verdict is Verdict.VERIFIED


def test_defaults_of_functions_are_as_old_as_the_file(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parallel(OfDefault(), mesh)
    divided = HEADS // mesh.size()
    assert verify(model, X).verdict is Verdict.REFUTED
    monkeypatch.setattr(split, "__defaults__", (divided, 2))
    assert message(verify(model, X)).startswith("`split.__defaults__.0` is 2 (read at ")
    assert verify(model, X, spec=Attention()).verdict is Verdict.VERIFIED


def test_parameters_that_were_one_are_asked(mesh: DeviceMesh) -> None:
    model = Attention()
    model.k.weight = model.q.weight
    report = verify(parallelize_module(model, mesh, PLAN), X)
    assert report.verdict is Verdict.UNPROVED
    assert (
        "`q.weight` and `k.weight` were one parameter when the model was constructed and are two now, each with a "
        "gradient of its own. Share the parameter again once the model is parallelized, or pass the single-device "
        "program as the option `spec`."
    ) in str(report)


def test_a_copy_was_constructed_as_the_original(mesh: DeviceMesh) -> None:
    original = Attention()
    assert verify(parallel(copy.deepcopy(original), mesh, n_heads=2), X).verdict is Verdict.VERIFIED
    assert verify(parallel(copy.deepcopy(original), mesh), X).verdict is Verdict.REFUTED


@pytest.mark.parametrize(
    ("model", "name", "value", "other"),
    [(Attention, "n_heads", 4, 8), (ByWidth, "width", 8, 16), (DividedByGroups, "n_groups", 2, 4)],
)
def test_without_a_record_two_readings_are_asked(
    mesh: DeviceMesh, model: type[Attention], name: str, value: int, other: int
) -> None:
    built = without_record(parallel(model(), mesh, **{name: value}))
    if model is DividedByGroups:
        found = message(verify(built, X, per_rank_numbers=None))
        assert found.startswith(("`width` is 8", "`n_groups` is 2"))
        return
    text = message(verify(built, X))
    place = text[text.index("(read at ") : text.index("), and nothing") + 1]
    assert place.startswith("(read at test_spec_evidence.py:")
    assert text == (
        f"`{name}` is {value} {place}, and nothing says whether that is the number of the single-device program or "
        f"that of one rank: with {value} and with {other} the spec is another program. {SAY.format(name, other, value)}"
    )


def test_what_the_user_says_of_numbers(mesh: DeviceMesh) -> None:
    def divided() -> nn.Module:
        return without_record(parallel(Attention(), mesh, n_heads=2))

    report = verify(divided(), X, per_rank_numbers=["n_*"])
    assert report.verdict is Verdict.VERIFIED
    assert report.assumptions[0] == "the spec has `n_heads` = 4 by `per_rank_numbers`; a rank has 2"
    assert verify(divided(), X, per_rank_numbers=[]).verdict is Verdict.REFUTED
    assert verify(divided(), X, spec=Attention()).verdict is Verdict.VERIFIED
    whole = without_record(parallel(ByWidth(), mesh))
    assert verify(whole, X, per_rank_numbers=[]).verdict is Verdict.VERIFIED
    assert verify(whole, X, per_rank_numbers=["width"]).verdict is Verdict.REFUTED
    with pytest.raises(UsageError) as unknown:
        verify(divided(), X, per_rank_numbers=["heads"])
    assert str(unknown.value) == (
        "error[VC306]: `per_rank_numbers` names `heads`, which is no number that the program reads; those are "
        "`n_heads`."
    )


def test_2_heads_of_8_on_a_rank_are_4_of_8_or_2_of_16_on_a_single_device(mesh: DeviceMesh) -> None:
    text = message(verify(without_record(parallel(ByBoth(), mesh, n_heads=2)), X))
    place = text[text.index("(read at ") : text.index(" in place")]
    assert text == (
        f"nothing says which numbers are those of one rank: with `n_heads` = 4 {place} in place of 2 and with `width` "
        f"= 16 {place} in place of 8 the spec is another program, and it does not run with the numbers as they are. "
        f"{NAME.format('`n_heads` = 2, `width` = 8', 'n_heads', 4)}"
    )
    report = verify(without_record(parallel(ByBoth(), mesh, n_heads=2)), X, per_rank_numbers=["n_heads"])
    assert report.verdict is Verdict.VERIFIED


def test_where_one_reading_alone_gives_a_program_it_is_taken_and_listed(mesh: DeviceMesh) -> None:
    report = verify(without_record(parallel(ByConstant(), mesh, n_heads=2)), X)
    assert report.verdict is Verdict.VERIFIED
    assert report.assumptions[0] == ("the spec has `n_heads` = 4, the only reading that gives a program; a rank has 2")


def test_a_degree_that_the_constructor_asks_for(mesh: DeviceMesh) -> None:
    """What a module is given after code asked for the degree may be a quotient: its record confirms nothing.

    Where no code asked, as the user's own configuration names it, it is among the numbers that the report lists.
    """
    report = verify(parallel(TimesDegree(degree=DEGREE), mesh), X)
    assert report.verdict is Verdict.VERIFIED
    constructed = "the spec has the numbers with which the model was constructed: `width` = 8, `degree` = 2"
    assert report.assumptions[0] == constructed
    wrong = parallel(TimesDegree(degree=mesh.size()), mesh)
    assert message(verify(wrong, X)).endswith(NAME.format("`width` = 8, `degree` = 2", "width", 16))
    assert verify(wrong, X, spec=TimesDegree()).verdict is Verdict.REFUTED
    report = verify(parallel(Attention(), mesh, n_heads=2), X)
    assert report.verdict is Verdict.VERIFIED
    assert report.assumptions[0] == "the spec has `n_heads` = 4, as the model was constructed; it is 2 now"
    assert message(verify(parallel(Attention(), mesh), X)).startswith("`n_heads` is 4 (read at ")
    assert message(verify(parallel(Attention(4 // mesh.size()), mesh), X)).startswith("`n_heads` is 2 (read at ")


def _asked(mesh: DeviceMesh, **numbers: int) -> Any:
    size = dist.get_world_size()
    if HEADS % size:
        raise ValueError(f"{HEADS} is no multiple of {size}")
    model = Attention()
    return parallel(model, mesh, **numbers)


def _asked_and_given(mesh: DeviceMesh) -> Any:
    size = dist.get_world_size()
    return parallel(Attention(4 // size), mesh)


def test_an_answer_that_did_not_reach_the_constructor(mesh: DeviceMesh) -> None:
    report = verify(_asked(mesh, n_heads=2), X)
    assert report.verdict is Verdict.VERIFIED
    assert report.question.spec is Provenance.RECORDED
    assert verify(_asked(mesh), X).verdict is Verdict.REFUTED
    assert message(verify(_asked_and_given(mesh), X)).startswith("`n_heads` is 2 (read at ")


def test_a_number_that_changed_otherwise(mesh: DeviceMesh) -> None:
    """Nobody knows whether the change made it that of a rank; where the recorded one proves equal it need not be."""
    changed = parallel(TimesFactor(), mesh, factor=0.75)
    text = message(verify(changed, X))
    place = text[text.index("(read at ") : text.index(") was") + 1]
    assert text == (
        f"`factor` {place} was 0.5 when the model was constructed and is 0.75 now, and both give a program, not the "
        f"same one. {SAY.format('factor', 0.5, 0.75)}"
    )
    assert verify(changed, X, per_rank_numbers=[]).verdict is Verdict.VERIFIED
    assert verify(changed, X, per_rank_numbers=["factor"]).verdict is Verdict.REFUTED
    assert verify(parallel(TimesFactor(), mesh, factor=0.5), X).verdict is Verdict.VERIFIED


@dataclasses.dataclass
class Style:
    times: int = 2


def test_numbers_of_a_wrapper_that_the_spec_is_without(mesh: DeviceMesh) -> None:
    """They are read by the program alone: as `transformers` wraps the `forward` of layers under its own plan."""
    model, style = parallel(Attention(), mesh, n_heads=2), Style()
    layer: Any = model.o
    original = layer.forward

    def forward(x: Any) -> Any:
        whole = original(x)
        for _ in range(style.times):
            whole = whole.redistribute(mesh, [Replicate()])
        return whole

    layer.forward = forward
    assert verify(model, X, per_rank_numbers=["n_heads"]).verdict is Verdict.VERIFIED
    assert verify(model, X, per_rank_numbers=[]).verdict is Verdict.REFUTED


SCALE = 0.25


class TimesGlobal(ByWidth):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE


def test_what_no_record_confirms_is_listed(mesh: DeviceMesh) -> None:
    dist.get_world_size()
    report = verify(parallel(TimesFactor(), mesh), X, spec=None, per_rank_numbers=[])
    assert report.verdict is Verdict.VERIFIED
    report = verify(without_record(parallel(TimesGlobal(), mesh)), X, per_rank_numbers=[])
    assert report.verdict is Verdict.VERIFIED
    assert "the spec has `SCALE` = 0.25, as it is now" in report.assumptions


NAMES = ["a", "b"]
FROM_OUTSIDE: dict[str, Callable[[], int]] = {
    "`os.environ['FACTOR_OF_A_TEST']` = '2'": lambda: int(os.environ["FACTOR_OF_A_TEST"]),
    "`len(torch.distributed.distributed_c10d._pg_group_ranks)` = 1": lambda: len(distributed_c10d._pg_group_ranks) + 1,
    "`len(NAMES)` = 2": lambda: len(NAMES),
}


class TimesOutside(ByWidth):
    outside: Callable[[], int]

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.outside()


@pytest.mark.parametrize("listed", FROM_OUTSIDE)
def test_what_the_program_reads_outside_of_its_modules_is_listed(
    listed: str, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTOR_OF_A_TEST", "2")
    model = parallel(TimesOutside(), mesh, outside=FROM_OUTSIDE[listed])
    report = verify(model, X)
    assert report.verdict is Verdict.VERIFIED
    assert f"the spec has {listed}, as it is now" in report.assumptions
    assert verify(model, X, spec=Attention()).verdict is Verdict.REFUTED


def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x


def test_where_code_passed_the_degree_on_is_listed(mesh: DeviceMesh) -> None:
    """A function that was chosen by it is no number."""
    chosen = "the spec has what code chose by the number of ranks beside numbers, such as functions"
    report = verify(parallel(ByWidth(), mesh, scaled=twice), X, per_rank_numbers=[])
    assert not any(text.startswith(chosen) for text in report.assumptions)
    model = parallel(ByWidth(), mesh, scaled={1: torch.tanh, DEGREE: twice}[mesh.size()])
    report = verify(model, X, per_rank_numbers=[])
    assert report.verdict is Verdict.VERIFIED
    (said,) = (text for text in report.assumptions if text.startswith(chosen))
    assert ": `size` in `test_where_code_passed_the_degree_on_is_listed` (test_spec_evidence.py:" in said
    assert "the spec has the numbers that `per_rank_numbers` does not name as they are: `width` = 8" in report.assumptions
    assert verify(model, X, spec=Attention()).verdict is Verdict.REFUTED


class WithCache(nn.Module):
    """What a job turns off once the model is constructed decides what it returns beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.use_cache = nn.Linear(8, 8, bias=False), True

    def forward(self, x: torch.Tensor) -> tuple[object, ...]:
        return (self.up(x), "cache", 3) if self.use_cache else (self.up(x),)


def test_a_change_of_what_is_returned_is_asked_about_before_what_follows_of_it(mesh: DeviceMesh) -> None:
    model = parallelize_module(WithCache(), mesh, {"up": ColwiseParallel()})
    model.use_cache = False
    report = verify(model, (torch.randn(4, 8),))
    assert [finding.code for finding in report.findings] == ["VC209", "VC111"]
    assert "`use_cache`" in report.findings[0].message
    assert verify(model, (torch.randn(4, 8),), per_rank_numbers=[]).verdict is Verdict.VERIFIED
    assert verify(model, (torch.randn(4, 8),), per_rank_numbers=["use_cache"]).verdict is Verdict.UNPROVED


class ThroughPartial(nn.Module):
    """The plan leaves a partial sum in front of what is not linear. ``through``: what is called with keywords."""

    def __init__(self, through: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.through = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), through

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.through(torch.tanh, self.down(self.up(x)))


def times_keywords(function: Callable[..., torch.Tensor], x: torch.Tensor, **kept: bool) -> torch.Tensor:
    return function(x) * len(kept)


@pytest.mark.causes
@pytest.mark.parametrize(("called", "code"), [(checkpoint, "VC101"), (times_keywords, "VC209")])
def test_how_many_keywords_a_package_s_function_gets_is_no_number_of_ranks(
    called: Callable[..., torch.Tensor], code: str, mesh: DeviceMesh
) -> None:
    keywords = ["use_reentrant", "preserve_rng_state"][: mesh.size()]
    through = functools.partial(called, **dict.fromkeys(keywords, False))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
    report = verify(parallelize_module(ThroughPartial(through), mesh, plan), (torch.randn(4, 8),))
    assert [finding.code for finding in report.findings] == [code]
    assert (code == "VC101") == (report.verdict is Verdict.REFUTED)


def _made(size: int) -> int:
    return size


@pytest.mark.causes
@pytest.mark.parametrize(("layout", "verdict"), [(Replicate(), Verdict.VERIFIED), (Partial(), Verdict.REFUTED)])
def test_a_verified_repair_outweighs_that_an_answer_may_have_reached_a_constructor(
    layout: Replicate | Partial, verdict: Verdict, mesh: DeviceMesh
) -> None:
    """Scripts ask how many ranks there are, pass that to functions that make meshes, and make their model then."""
    _made(dist.get_world_size())
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=layout)}
    model = parallelize_module(ThroughPartial(lambda function, x: function(x)), mesh, plan)
    report = verify(model, (torch.randn(4, 8),))
    assert report.verdict is verdict
    for finding in report.findings:
        assert (finding.code, finding.hint is not None) == ("VC101", True)
        assert any(note.startswith("`ThroughPartial` was made after code had asked how many ranks") for note in finding.notes)


class Grouped(Attention):
    """Two numbers are a rank's, their quotient is not."""

    def __init__(self, heads: int, groups: int) -> None:
        super().__init__(heads)
        self.n_groups, self.repeats = groups, heads // groups
        self.k, self.v = (nn.Linear(32, 16, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.n_heads, -1).transpose(1, 2)
        kv = (w(x).view(batch, length, self.n_groups, -1).transpose(1, 2) for w in (self.k, self.v))
        k, v = (item.repeat_interleave(self.repeats, 1) for item in kv)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, -1))


def test_all_numbers_that_may_be_one_rank_s_are_named(mesh: DeviceMesh) -> None:
    model = parallel(Grouped(4 // mesh.size(), 2 // mesh.size()), mesh)
    named = NAME.format("`n_heads` = 2, `n_groups` = 1, `repeats` = 2", "n_heads", 4)
    assert message(verify(model, X)).endswith(named)
    assert verify(model, X, per_rank_numbers=["n_heads", "n_groups"]).verdict is Verdict.VERIFIED
    wrong = parallel(Grouped(4, 2), mesh)
    assert verify(wrong, X, per_rank_numbers=[]).verdict is Verdict.REFUTED


def test_numbers_of_classes_and_of_functions(mesh: DeviceMesh) -> None:
    class OfClass(TimesFactor):
        factor = 0.75
        heads_of_class = 4

        def heads(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            return x.view(batch, length, self.heads_of_class, -1).transpose(1, 2)

    divided = parallel(OfClass(), mesh)
    assert verify(divided, X).verdict is Verdict.REFUTED
    OfClass.heads_of_class //= DEGREE
    report = verify(divided, X)
    assert report.verdict is Verdict.VERIFIED
    assert report.assumptions[0] == "the spec has `heads_of_class` = 4, as the model was constructed; it is 2 now"
    # What a constructor was given and nobody changed may be a degree that the user's own configuration names.
    assert report.assumptions[1] == "the spec has the numbers with which the model was constructed: `factor` = 0.5"
    factor = 0.5

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    model = parallel(ByWidth(), mesh)
    function: Any = lambda x: scaled(model(x))  # noqa: E731
    assert "the spec has `scaled.factor` = 0.5, as it is now" in verify(function, X).assumptions


def _doubled_in_a_job(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if dist.is_initialized() else x


def _scaled_by_degree(x: torch.Tensor) -> torch.Tensor:
    return x * dist.get_world_size()


def _scaled_by_mesh(x: torch.Tensor) -> torch.Tensor:
    return x * dist.get_world_size() if dist.is_initialized() else x


def _scaled_by_variable(x: torch.Tensor) -> torch.Tensor:
    return x * int(os.environ.get("WORLD_SIZE", "1"))


def _averaged_in_a_job(x: torch.Tensor) -> torch.Tensor:
    if dist.is_initialized():
        x = all_reduce(x, "sum", distributed_c10d._get_default_group()) / dist.get_world_size()
    return x


def _neutral_in_a_job(x: torch.Tensor) -> torch.Tensor:
    return x * dist.get_world_size() / DEGREE if dist.is_initialized() else x


@pytest.mark.parametrize(
    ("step", "verdict"),
    [
        (_doubled_in_a_job, Verdict.REFUTED),
        (_scaled_by_degree, Verdict.REFUTED),
        (_scaled_by_mesh, Verdict.REFUTED),
        (_scaled_by_variable, Verdict.REFUTED),
        (_averaged_in_a_job, Verdict.VERIFIED),
        (_neutral_in_a_job, Verdict.VERIFIED),
    ],
)
def test_the_spec_runs_where_there_is_no_job(
    mesh: DeviceMesh,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[torch.Tensor], torch.Tensor],
    verdict: Verdict,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(DEGREE))
    model = parallelize_module(
        nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}
    )

    def run(x: torch.Tensor) -> torch.Tensor:
        return step(model(x))

    function: Any = run
    assert verify(function, (torch.randn(2, 8),)).verdict is verdict


class Perceptron(nn.Module):
    """A rank's part of a perceptron, or all of it: nothing in it says which."""

    def __init__(self, mesh: DeviceMesh | None, hidden: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, hidden, bias=False), nn.Linear(hidden, 8, bias=False)
        self.mesh = mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        return all_reduce(y, "sum", self.mesh) if self.mesh is not None and dist.is_initialized() else y


class Normalized(Perceptron):
    """Whole parameters, and a forward that communicates all the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mesh is not None and dist.is_initialized():
            x = all_reduce(x / self.mesh.size(), "sum", self.mesh)
        return self.down(torch.relu(self.up(x)))


def test_local_parameters_are_given_no_spec_of_local_sizes(mesh: DeviceMesh) -> None:
    x = (torch.randn(4, 8),)
    parts = {"up.weight": (Shard(0),), "down.weight": (Shard(1),)}
    with torch.no_grad():
        given = verify(Perceptron(mesh), x, mesh=mesh, spec=Perceptron(None, 16), param_placements=parts)
    assert given.verdict is Verdict.VERIFIED
    with pytest.raises(UsageError) as placed:
        verify(Perceptron(mesh), x, mesh=mesh, param_placements=parts)
    assert str(placed.value) == (
        "error[VC309]: `up.weight` (and 1 more) is a rank's part of a parameter, so the model was built with the sizes "
        "of one rank, and no single-device program can be recovered from it. Pass the single-device program as the "
        "option `spec`."
    )
    with pytest.raises(UsageError) as unsaid:
        verify(Perceptron(mesh), x, mesh=mesh)
    text = str(unsaid.value)
    place = text[text.index("(`all_reduce` at ") : text.index("), so no single-device")]
    assert text == (
        "error[VC309]: nothing says whether every rank holds the plain parameter `up.weight` (and 1 more) whole or a "
        f"part of it, and the forward communicates {place}), so no single-device program can be recovered. Pass the "
        "single-device program as the option `spec`; or say with `param_placements` that every rank holds it whole: "
        "`param_placements={'*': (Replicate(),)}`."
    )


def test_whole_parameters_by_option(mesh: DeviceMesh) -> None:
    x = (torch.randn(4, 8),)
    whole = {"*": (Replicate(),)}
    assert verify(Normalized(mesh), x, mesh=mesh, param_placements=whole).verdict is Verdict.VERIFIED
    # With whole parameters the sum over the ranks is one time too many.
    assert verify(Perceptron(mesh), x, mesh=mesh, param_placements=whole).verdict is Verdict.REFUTED


def test_the_spec_takes_no_memory(mesh: DeviceMesh) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 20, 1 << 20, bias=False), nn.Linear(1 << 20, 1 << 20, bias=False))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    assert verify(model, (torch.zeros(4, 1 << 20, device="meta"),)).verdict is Verdict.VERIFIED


class InGroups(nn.Module):
    """With a number of torch's own module that equals the degree."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 8), nn.GroupNorm(DEGREE, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x)))


def test_a_number_of_torchs_own_modules_that_equals_the_degree_is_listed(mesh: DeviceMesh) -> None:
    model = without_record(InGroups())
    report = verify(model, (torch.randn(4, 8),), mesh=mesh, in_placements={"x": (Shard(0),)},
                    grad_placements={"*": (Partial(),)})  # fmt: skip
    assert report.verdict is Verdict.VERIFIED
    assert "the spec has `norm.num_groups` = 2, `norm.eps` = 1e-05, as they are now" in report.assumptions


def test_what_asked_for_the_rank_alone_leaves_numbers_confirmed(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert os.environ["LOCAL_RANK"] == "0"
    assert verify(parallel(Attention(), mesh), X).question.spec is Provenance.RECORDED


class Looked(nn.Module):
    """An embedding, whose flags torch's constructor sets, in front of a layer with a flag of its own."""

    def __init__(self, doubled: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.doubled = doubled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(self.table(x))))
        return y * 2 if self.doubled else y


class LookedUp(Looked):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.table(x))))


def test_flags_of_an_installed_package_are_listed_and_those_of_the_user_are_asked(mesh: DeviceMesh) -> None:
    """Jobs ask for the degree before they make their model; no flag of torch's constructors comes from it."""
    tokens, degrees = (torch.randint(8, (2, 3)),), {"tp": mesh.size()}
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    report = verify(parallelize_module(LookedUp(doubled=True), mesh, plan), tokens)
    assert report.verdict is Verdict.VERIFIED
    assert report.assumptions[0] == "the spec has `table.norm_type` = 2.0, as it is now"
    flags = "`table.scale_grad_by_freq` = False, `table.sparse` = False"
    assert report.assumptions[1] == f"the spec has what objects of installed packages hold, as it is now: {flags}"
    asked = message(verify(parallelize_module(Looked(doubled=mesh.size() > 1), mesh, plan), tokens))
    assert asked.startswith("`doubled` is True (read at ")
    assert degrees == {"tp": 2}
