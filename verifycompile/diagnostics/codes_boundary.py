"""VC11x: what enters and leaves the parallel program does not correspond to the spec's."""

from __future__ import annotations

from verifycompile.diagnostics.code import Code
from verifycompile.diagnostics.severity import Severity

CODES = (
    Code(
        code="VC110",
        title="shards of a DTensor result that are not DTensor's chunks",
        severity=Severity.ERROR,
        meaning=(
            "A DTensor that leaves the program is read as another tensor than the spec's: the shape or the strides "
            "that it records are not those of the spec's value, or its shards are not the chunks into which DTensor "
            "divides that shape."
        ),
        reason=(
            "A DTensor keeps the shape of the whole apart from its shards. `full_tensor()`, `redistribute` and every "
            "operator that gathers compute from that shape where each shard ends, as `torch.chunk` does: 5 rows over 2 "
            "ranks are 3 and 2. Ranks that hold 2 and 3 rows exchange the wrong ones, or hang. `DTensor.from_local` "
            "without `shape`, and so `local_map`, multiplies each rank's own shard by the number of ranks, which gives "
            "every rank another shape where shards are uneven."
        ),
        example=(
            "own = x[:2] if mesh.get_local_rank() == 0 else x[2:]      # x has 5 rows\n"
            "return DTensor.from_local(own, mesh, [Shard(0)], shape=x.shape, stride=x.stride())"
        ),
        fix=(
            "Hold the chunks that DTensor would hold: `distribute_tensor(x, mesh, [Shard(0)])`, or cut where "
            "`torch.chunk` cuts, and pass `from_local` the shape and the strides of the whole. Where an operator makes "
            "other pieces of uneven shards, redistribute its operand to `Replicate` first."
        ),
        fixed_example=(
            "own = x[:3] if mesh.get_local_rank() == 0 else x[3:]\n"
            "return DTensor.from_local(own, mesh, [Shard(0)], shape=x.shape, stride=x.stride())"
        ),
    ),
    Code(
        code="VC111",
        title="gradients, outputs or writes of one program alone",
        severity=Severity.ERROR,
        meaning=(
            "One of the two programs trains a parameter, returns a value or writes to a tensor, and the other one does "
            "not: the parameter requires grad on one side alone, an output is detached or missing, or a buffer is "
            "updated in one of them."
        ),
        reason=(
            "All values that both programs have may be equal, and still the parallel job trains another model than one "
            "device would: a frozen parameter keeps its first value, and a buffer that is not updated is stale. What "
            "one program alone returns is compared with nothing, so that nothing is known of it."
        ),
        example=(
            "model = parallelize(Model(), mesh)\n"
            "model.embedding.requires_grad_(False)\n"
            "report = verifycompile.verify(model, (tokens,), spec=Model())    # the spec trains its embedding"
        ),
        fix=(
            "Freeze and train the same parameters in both programs, and let both return and update the same. A spec "
            "that was only made without gradients gets them by `spec.requires_grad_(True)`. Where both run without "
            "gradients, under `torch.no_grad()`, what requires grad does not matter."
        ),
        fixed_example=(
            "spec = Model()\n"
            "spec.embedding.requires_grad_(False)\n"
            "report = verifycompile.verify(model, (tokens,), spec=spec)"
        ),
    ),
)
