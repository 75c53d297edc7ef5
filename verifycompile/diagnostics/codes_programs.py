"""VC1xx: the parallel program does not compute what the spec computes."""

from __future__ import annotations

from verifycompile.diagnostics.code import Code
from verifycompile.diagnostics.severity import Severity

CODES = (
    Code(
        code="VC101",
        title="partial sum used where the full value is needed",
        severity=Severity.ERROR,
        meaning=(
            "Each rank holds one summand of a value; the value is the sum over a mesh axis. An operator that is not "
            "linear in that operand, or an output that is declared whole, reads the summand as if it were the sum."
        ),
        reason=(
            "A contraction over a sharded dimension, and the gradient of a parameter that sees only this rank's part "
            "of the batch or sequence, are partial sums. Only linear operators commute with the sum that is missing; "
            "anything else (a norm, an activation, a product of two partial values) gives a different number on "
            "every rank, without an exception."
        ),
        example=(
            "h = F.relu(self.up(x))        # up: columns sharded over tp\n"
            "y = self.down(h)              # down: rows sharded over tp, so y is a partial sum\n"
            "return x + F.layer_norm(y, y.shape[-1:])"
        ),
        fix=(
            "Reduce over the named mesh axis between the label that says where the value became partial and its use: "
            "an all-reduce, or a reduce-scatter where the consumer wants a shard. With parallel styles, give the style "
            "the layout its consumer needs. For a gradient, reduce it or declare in `grad_placements` that a wrapper "
            "outside of the program does."
        ),
        fixed_example=(
            "y = funcol.all_reduce(self.down(h), 'sum', mesh['tp'])\nreturn x + F.layer_norm(y, y.shape[-1:])"
        ),
    ),
    Code(
        code="VC102",
        title="reduction done twice",
        severity=Severity.ERROR,
        meaning=(
            "A value that is already summed over a mesh axis is summed over it once more, so it comes out multiplied "
            "by the number of ranks on that axis."
        ),
        reason=(
            "The result is the right direction with the wrong length: training often still converges, with an "
            "effective learning rate or residual scale that depends on the degree of parallelism."
        ),
        example=("y = funcol.all_reduce(self.down(h), 'sum', mesh['tp'])\ny = funcol.all_reduce(y, 'sum', mesh['tp'])"),
        fix=(
            "Remove one of the two reductions. A frequent cause is a style or wrapper that reduces (for example "
            "`RowwiseParallel` with `Replicate` output) around a module that reduces by itself."
        ),
        fixed_example="y = funcol.all_reduce(self.down(h), 'sum', mesh['tp'])",
    ),
    Code(
        code="VC103",
        title="wrong scale",
        severity=Severity.ERROR,
        meaning=(
            "The implementation's value equals the spec's up to a factor, typically the number of ranks of a mesh "
            "axis or its inverse."
        ),
        reason=(
            "A sum was used for a mean or a mean for a sum, or a loss was divided by a local count. Gradients scale "
            "with it, so the learning rate silently depends on the degree of parallelism."
        ),
        example=(
            "loss = F.mse_loss(prediction, target)            # mean over this rank's rows\n"
            "loss = funcol.all_reduce(loss, 'sum', mesh['dp'])  # sum of means: too large by the size of dp"
        ),
        fix=(
            "Make the reduction and the divisor agree: `'avg'` for values that are means of equal shares, `'sum'` for "
            "summands; divide by the global count, not by the local one."
        ),
        fixed_example="loss = funcol.all_reduce(F.mse_loss(prediction, target), 'avg', mesh['dp'])",
    ),
    Code(
        code="VC104",
        title="wrong shard",
        severity=Severity.ERROR,
        meaning=(
            "The ranks together hold the right elements, or some of them, at the wrong place: another dimension is "
            "sharded, the offset belongs to another rank, or pieces are concatenated in another order."
        ),
        reason=(
            "Shapes agree wherever the two dimensions have equal sizes, so nothing raises; the values are permuted, "
            "or belong to another part of the tensor."
        ),
        example=(
            "rank = (mesh.get_local_rank('tp') + 1) % mesh['tp'].size()\n"
            "bias = self.bias.chunk(mesh['tp'].size())[rank]      # the next rank's part"
        ),
        fix=(
            "Compare the relation that was found with the one expected: they name the dimension and the offset of "
            "each. Correct the dimension of the `Shard`, of the gather or of the chunk, or the coordinate used."
        ),
        fixed_example="bias = self.bias.chunk(mesh['tp'].size())[mesh.get_local_rank('tp')]",
    ),
    Code(
        code="VC105",
        title="wrong mesh axis",
        severity=Severity.ERROR,
        meaning="A collective runs over another axis of the device mesh than the one that the value varies over.",
        reason=(
            "The value stays partial (or sharded) over the axis that was meant, and is combined with values from "
            "ranks that hold something else, or multiplied by the size of an axis that it does not depend on."
        ),
        example=(
            "mesh = init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'tp'))\n"
            "y = funcol.all_reduce(self.down(h), 'sum', mesh['dp'])     # partial over tp"
        ),
        fix="Pass the process group or submesh of the axis that the message names as expected.",
        fixed_example="y = funcol.all_reduce(self.down(h), 'sum', mesh['tp'])",
    ),
    Code(
        code="VC106",
        title="output layout other than declared",
        severity=Severity.ERROR,
        meaning=(
            "An output (a forward output, a gradient or a mutated buffer) holds the spec's value, but in another "
            "layout over the mesh than its declaration says. The declaration comes from the DTensor's own placements, "
            "from `out_placements`, from `grad_placements`, or from the parameter that a gradient belongs to."
        ),
        reason=(
            "Whoever reads the output trusts its placements: the optimizer adds the gradient to the parameter as it "
            "is, and a DTensor that claims `Replicate` is never reduced again."
        ),
        example=(
            "y = funcol.all_gather_tensor(y, 0, mesh['tp'])       # whole on every rank\n"
            "return DTensor.from_local(y, mesh['tp'], [Shard(0)])   # but declared sharded"
        ),
        fix=(
            "Correct the declaration where the value is right, or redistribute the value where the declaration is "
            "right. For a gradient that is left as a partial sum, reduce it, or say with `grad_placements` that "
            "something outside of the program does."
        ),
        fixed_example="return DTensor.from_local(y, mesh['tp'], [Replicate()])",
    ),
    Code(
        code="VC107",
        title="no relation found",
        certain_title="another value than the spec's",
        severity=Severity.ERROR,
        meaning=(
            "No value of the implementation was found from which the spec's value could be assembled by slices, "
            "concatenations, permutations and reductions over mesh axes, and the cause is none of the known ones. The "
            'title is "another value than the spec\'s" where a concrete input shows a wrong value.'
        ),
        reason=(
            "Either the programs compute different things from this node on, or they are equal by an argument that "
            "the lemma library does not have. With a counterexample the former is certain; without one the result is "
            "unproved and may be either."
        ),
        example=(
            "def spec(x, w):\n"
            "    return torch.sigmoid(x @ w)\n\n"
            "def implementation(x, w):\n"
            "    return torch.tanh(x @ w)"
        ),
        fix=(
            "Compare the two source lines: the operator, its attributes and its operands. If they are equal by "
            'mathematics that is not known here, add a lemma (CONTRIBUTING, "add a lemma").'
        ),
    ),
    Code(
        code="VC108",
        title="step left out, or other than the spec's",
        severity=Severity.ERROR,
        meaning=(
            "The implementation does not compute what the spec computes at this step: it leaves a call out (a "
            "residual, a normalisation, a scale), makes one that the spec does not make, gives a call another operand "
            "or number, or takes two values of equal shape for each other."
        ),
        reason="Equal shapes and dtypes let the program run; each rank computes a consistent but different function.",
        example=(
            "gate = F.silu(self.up(x))        # spec: F.silu(self.gate(x))\n"
            "return self.down(gate * self.gate(x))    # spec: x + self.down(...)"
        ),
        fix=(
            "Compute what the message says that the spec computes, or pass the operand that it names as expected. "
            "Where only names differ between spec and implementation, map them with `param_names`."
        ),
        fixed_example="gate = F.silu(self.gate(x))\nreturn x + self.down(gate * self.up(x))",
    ),
    Code(
        code="VC109",
        title="ranks wait for different collectives",
        severity=Severity.ERROR,
        meaning=(
            "The ranks of a process group do not make the same collective calls in the same order with the same sizes, "
            "or a message has no sender or no receiver. `dist.send` ends when its receiver has asked for the message."
        ),
        reason=(
            "A collective ends when all ranks of its group have come to it. Where one rank is elsewhere the job hangs, "
            "or the backend combines calls that do not belong together and every rank gets wrong values."
        ),
        example=(
            "dist.all_reduce(loss, group=tp)\nif rank == 0:\n    dist.all_reduce(norm, group=tp)   # rank 1 never comes"
        ),
        fix=(
            "Let every rank of the group make the same calls in the same order. The two places shown are where the "
            "ranks wait for each other."
        ),
        fixed_example="dist.all_reduce(loss, group=tp)\ndist.all_reduce(norm, group=tp)",
    ),
)
