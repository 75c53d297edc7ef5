"""VC12x and VC213, VC214: what a comparison of two runs finds, and what it cannot compare."""

from __future__ import annotations

from verifycompile.diagnostics.code import Code
from verifycompile.diagnostics.severity import Severity

CODES = (
    Code(
        code="VC120",
        title="value beyond the rounding of both programs",
        severity=Severity.ERROR,
        meaning=(
            "`verifycompile.compare` ran both programs on one input, and a tensor of the parallel one is farther from "
            "the spec's than the spec's own tensor moves when each of its operations errs by a machine epsilon."
        ),
        reason=(
            "What rounding does not explain is another value: a collective that is missing or doubled, a wrong shard, "
            "a stale buffer, a kernel that computes something else, or a dtype that is coarser than the program's."
        ),
        example=(
            "def forward(self, x):\n    return self.norm(x + self.down(self.up(x)).to_local())      # a partial sum"
        ),
        fix=(
            "Look at the module that the finding names: what enters it is right and what leaves it is not. The notes "
            "say under which layout or with which factor the value would be right, and which ranks are off."
        ),
        fixed_example="def forward(self, x):\n    return self.norm(x + self.down(self.up(x)).full_tensor())",
    ),
    Code(
        code="VC121",
        title="replicas that differ",
        severity=Severity.ERROR,
        meaning=(
            "Ranks that hold the same tensor hold different values of it, in a run or before it: one of them is the "
            "spec's and another one is not, or parameters began with different values."
        ),
        reason=(
            "Replicas that differ never come together again by themselves: every rank trains another model, and which "
            "one is saved depends on the rank that saves."
        ),
        example="torch.manual_seed(dist.get_rank())\nmodel = Router(config)      # every rank draws its own weights",
        fix="Draw with the same seed on every rank, broadcast from one, or reduce the gradient over all replicas.",
        fixed_example="torch.manual_seed(0)\nmodel = Router(config)",
    ),
    Code(
        code="VC213",
        title="tensor that was not compared",
        severity=Severity.WARNING,
        meaning=(
            "`verifycompile.compare` found no layout under which the ranks' parts of a tensor have the shape of the "
            "spec's tensor of that name, or one of the programs has no tensor of that name."
        ),
        reason="What was not compared is neither equal nor different, and nothing is called fine because of it.",
        example="report = verifycompile.compare(model, (tokens,), spec=Transformer(config))",
        fix=(
            "Say how the tensor lies with `in_placements`, `param_placements`, `out_placements` or `grad_placements`, "
            "or name the spec's tensor with `param_names`."
        ),
        fixed_example=(
            "report = verifycompile.compare(\n"
            "    model, (tokens,), spec=Transformer(config), out_placements={'output.0': (Shard(1),)}\n)"
        ),
    ),
    Code(
        code="VC214",
        title="run that failed or did not end",
        severity=Severity.ERROR,
        meaning=(
            "`verifycompile.compare` runs the parallel program. It raised an error on a rank, or the ranks wait for "
            "one another without end."
        ),
        reason="A program that does not end has no values to compare.",
        example="if dist.get_rank() == 0:\n    dist.all_reduce(loss)      # the other ranks never come",
        fix="Run the model by itself on all ranks; the message has the error, or for what each rank waits.",
        fixed_example="dist.all_reduce(loss)",
    ),
)
