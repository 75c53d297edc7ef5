"""Wrong data parallelism: the gradient reduced by another operation, over another axis, not at all, or scaled twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import RowwiseParallel
from torch.distributed.tensor.placement_types import Placement

from tests.mutants import edits
from tests.mutants.edits import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tests.mutants.mutant import Mutant
from tests.programs import data_parallel as programs
from tests.programs import mlp
from tests.programs.case import Case
from tests.programs.data_parallel import MEAN, SUM, Layout

CASES = programs.programs()
DDP, FSDP, HSDP = CASES["ddp-mlp-2"], CASES["fsdp-mlp-2"], CASES["hsdp-mlp-2x2"]
PROPERTIES = CASES["fsdp-properties-mlp-4"]
FSDP_TP, HSDP_TP = CASES["fsdp-tp-mlp-2x2"], CASES["hsdp-tp-mlp-2x2x2"]
LLAMA_TP = CASES["fsdp-tp-sp-llama-2x2"]

SCALE = frozenset({"VC103", "VC102"})
LOCAL = frozenset({"VC101", "VC103", "VC104", "VC105", "VC106"})


def _gradients(kind: str, case: Case, layout: Layout, *gradient: Placement, plan: bool = False) -> Mutant:
    """The case with gradients that are reduced otherwise."""
    wrong = dataclasses.replace(layout, gradient=gradient)
    parallelize = programs.data_parallel(wrong, mlp.plan() if plan else None)
    detail = "-".join(str(item) for item in gradient)
    return Mutant(kind, detail, case, changed=dataclasses.replace(case, parallelize=parallelize), codes=LOCAL | SCALE)


def wrong_reductions() -> Iterator[Mutant]:
    """Sum for mean, an axis left out, nothing reduced."""
    yield _gradients("sum-for-mean", DDP, programs.DDP, SUM)
    yield _gradients("sum-for-mean", FSDP, programs.FSDP, SUM)
    yield _gradients("sum-for-mean", PROPERTIES, programs.FSDP_PROPERTIES, SUM)
    yield _gradients("sum-for-mean", HSDP, programs.HSDP, MEAN, SUM)
    yield _gradients("sum-for-mean", FSDP_TP, programs.FSDP, SUM, plan=True)
    yield _gradients("sum-for-mean", HSDP_TP, programs.HSDP, SUM, MEAN, plan=True)
    yield _gradients("not-reduced", DDP, programs.DDP, Replicate())
    yield _gradients("not-reduced", FSDP, programs.FSDP, Replicate())
    yield _gradients("not-reduced", PROPERTIES, programs.FSDP_PROPERTIES, Replicate())
    yield _gradients("not-reduced", HSDP, programs.HSDP, Replicate(), MEAN)
    yield _gradients("not-reduced", HSDP, programs.HSDP, MEAN, Replicate())
    yield _gradients("not-reduced", FSDP_TP, programs.FSDP, Replicate(), plan=True)
    yield _gradients("not-reduced", HSDP_TP, programs.HSDP, Replicate(), MEAN, plan=True)


def scaled_twice() -> Iterator[Mutant]:
    """The loss is divided by the number of ranks, and the gradients are averaged too."""
    for case in (DDP, FSDP, FSDP_TP):
        plan = mlp.plan() if case is FSDP_TP else None
        layout = programs.DDP if case is DDP else programs.FSDP
        right = programs.data_parallel(layout, plan)

        def parallelize(model, mesh, right=right):
            model.__class__ = programs.DividedTwice
            return right(model, mesh)

        yield Mutant(
            "divided-twice", "loss", case, changed=dataclasses.replace(case, parallelize=parallelize), codes=SCALE
        )


def wrong_axes() -> Iterator[Mutant]:
    """Batches over the tensor-parallel axis, reductions over the wrong one, plans with a placement missing."""
    yield Mutant("batch-axis", "tp", FSDP_TP, changed=dataclasses.replace(FSDP_TP, batch=("tp",)))
    yield Mutant("batch-axis", "one-of-two", HSDP_TP, changed=dataclasses.replace(HSDP_TP, batch=("shard", "tp")))
    partial = {**mlp.plan(), "down": RowwiseParallel(output_layouts=Partial())}
    kept = dataclasses.replace(FSDP_TP, parallelize=programs.data_parallel(programs.FSDP, partial))
    yield Mutant("partial-kept", "down", FSDP_TP, changed=kept)
    yield Mutant("axis", "reduce-scatter-backward-0", FSDP_TP, edit=edits.other_axis(REDUCE_SCATTER, 0, True, 1))
    yield Mutant("axis", "all-reduce-backward-0", HSDP, edit=edits.other_axis(ALL_REDUCE, 0, True, 1))
    yield Mutant("axis", "all-gather-forward-0", FSDP_TP, edit=edits.other_axis(ALL_GATHER, 0, False, 1))
    yield Mutant("drop", "reduce-scatter-backward-0", FSDP, edit=edits.drop(REDUCE_SCATTER, 0, True))
    yield Mutant("drop", "all-reduce-backward-1", LLAMA_TP, edit=edits.drop(ALL_REDUCE, 1, True))
    yield Mutant("drop", "reduce-scatter-backward-3", LLAMA_TP, edit=edits.drop(REDUCE_SCATTER, 3, True))
    yield Mutant(
        "mean-for-sum",
        "reduce-scatter-2",
        LLAMA_TP,
        edit=edits.other_reduction(REDUCE_SCATTER, 2, True, "avg"),
        codes=SCALE,
    )
    yield Mutant("rotate", "all-gather-forward-1", FSDP, edit=edits.rotate_pieces(ALL_GATHER, 1, False))
    yield Mutant("rotate", "reduce-scatter-backward-1", FSDP, edit=edits.rotate_pieces(REDUCE_SCATTER, 1, True))
    yield Mutant("rotate", "reduce-scatter-backward-1", FSDP_TP, edit=edits.rotate_pieces(REDUCE_SCATTER, 1, True))
    yield Mutant(
        "sum", "reduce-scatter-backward-2", FSDP_TP, edit=edits.other_reduction(REDUCE_SCATTER, 2, True, "sum")
    )
