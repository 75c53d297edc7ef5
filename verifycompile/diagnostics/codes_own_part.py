"""VC113 to VC119: what users meet first. A rank computes with its own part where the whole is needed."""

from __future__ import annotations

from verifycompile.diagnostics.code import Code
from verifycompile.diagnostics.severity import Severity

CODES = (
    Code(
        code="VC113",
        title="mean over a rank's own items",
        severity=Severity.ERROR,
        meaning=(
            "A loss, or another mean, divides by the number of items that this rank counts: labels other than "
            "`ignore_index`, tokens under a mask, class weights. The ranks count different numbers, so that the mean "
            "of their means is not the mean of all items."
        ),
        reason=(
            "An item on a rank with few of them weighs more than one on a rank with many. No exception shows it, and "
            "with labels that are all valid both numbers agree; with padding the gradients are those of another loss."
        ),
        example=(
            "# the ranks of dp hold parts of the batch; some labels are -100\n"
            "loss = F.cross_entropy(logits, labels)\n"
            "return funcol.all_reduce(loss, 'avg', mesh['dp'])"
        ),
        fix=(
            "Sum on every rank, and divide by the number of items on all ranks: all-reduce the sum and the count, each "
            "with `'sum'`, and divide afterwards. Where no label is ever ignored, take "
            "`F.cross_entropy(..., reduction='none').mean()`, which counts all of them."
        ),
        fixed_example=(
            "total = F.cross_entropy(logits, labels, reduction='sum')\n"
            "count = (labels != -100).sum()\n"
            "total = funcol.all_reduce(total, 'sum', mesh['dp'])\n"
            "return total / funcol.all_reduce(count, 'sum', mesh['dp'])"
        ),
    ),
    Code(
        code="VC114",
        title="statistics of a rank's own part",
        severity=Severity.ERROR,
        meaning=(
            "An operator that reads a dimension as a whole (batch norm over the batch, a layer norm, a softmax, a "
            "variance, a sort) runs on a part of that dimension, because the ranks share it out."
        ),
        reason=(
            "Each rank normalizes with the mean and the variance, or with the maximum and the sum, of what it holds. "
            "The shapes are right and the values are near the right ones, and with smaller parts they get worse."
        ),
        example=("# x: the ranks of dp hold parts of the batch\nbn = nn.BatchNorm1d(width)\nreturn bn(x)"),
        fix=(
            "Reduce the statistics over the mesh axis before they are used (`nn.SyncBatchNorm`; a norm out of an "
            "all-reduced sum and sum of squares; a softmax out of an all-reduced maximum and sum), or gather the "
            "dimension, or shard another one."
        ),
        fixed_example=(
            "n = x.shape[0] * mesh['dp'].size()\n"
            "mean = funcol.all_reduce(x.sum(0), 'sum', mesh['dp']) / n\n"
            "variance = funcol.all_reduce((x - mean).square().sum(0), 'sum', mesh['dp']) / n\n"
            "return (x - mean) * (variance + bn.eps).rsqrt() * bn.weight + bn.bias"
        ),
    ),
    Code(
        code="VC115",
        title="loss over a rank's own classes",
        severity=Severity.ERROR,
        meaning=(
            "Logits whose classes are shared out among the ranks enter a loss that reads all classes: its softmax "
            "normalizes over this rank's classes, and a label of another rank's class picks a wrong number."
        ),
        reason=(
            "A column-parallel output layer leaves the vocabulary sharded. `F.cross_entropy` takes the local logits "
            "without complaint wherever the labels happen to be small enough."
        ),
        example=(
            "logits = self.head(h)      # head: columns sharded over tp, so a rank has its own classes\n"
            "return F.cross_entropy(logits, labels)"
        ),
        fix=(
            "Gather the logits along the classes before the loss, or compute the loss in parallel: an all-reduced "
            "maximum and sum of exponentials, and the label's logit from the rank that has it "
            "(`torch.distributed.tensor.parallel.loss_parallel`)."
        ),
        fixed_example=(
            "logits = funcol.all_gather_tensor(self.head(h), 1, mesh['tp'])\nreturn F.cross_entropy(logits, labels)"
        ),
    ),
    Code(
        code="VC116",
        title="summand added on every rank before a reduction",
        severity=Severity.ERROR,
        meaning=(
            "Every rank adds the same value, typically the bias of a row-parallel linear layer, to a partial sum that "
            "is reduced afterwards: the sum has it once for every rank."
        ),
        reason=(
            "The reduction adds up what the ranks hold. What is a part on each of them adds up to the whole; what is "
            "whole on each of them is multiplied by the number of ranks."
        ),
        example=(
            "y = F.linear(x, self.weight, self.bias)      # weight: rows sharded over tp; bias: whole\n"
            "return funcol.all_reduce(y, 'sum', mesh['tp'])"
        ),
        fix="Add it after the reduction, or on one rank alone.",
        fixed_example=("y = F.linear(x, self.weight)\nreturn funcol.all_reduce(y, 'sum', mesh['tp']) + self.bias"),
    ),
    Code(
        code="VC117",
        title="index, mask or offset of another rank's part",
        severity=Severity.ERROR,
        meaning=(
            "Rows or classes are picked out of a part of a table: the index has to be counted from the beginning of "
            "the rank's part, and what another rank holds has to be masked. The offset or the mask is that of another "
            "part, or is missing."
        ),
        reason=(
            "Every index that stays within the local size gives some row, so nothing raises. An embedding whose rows "
            "are sharded, labels in a vocabulary-parallel loss, positions and causal masks of a sequence shard are "
            "where it happens."
        ),
        example=(
            "rows = self.weight.shape[0]                           # the rank's part of the table\n"
            "mine = (tokens >= 0) & (tokens < rows)                # the first rank's mask on all of them\n"
            "h = F.embedding(tokens.clamp(0, rows - 1), self.weight) * mine[..., None]\n"
            "return funcol.all_reduce(h, 'sum', mesh['tp'])"
        ),
        fix="Subtract the first index of the rank's part, `rank * rows`, and mask what lies outside of it.",
        fixed_example=(
            "rows = self.weight.shape[0]\n"
            "local = tokens - mesh.get_local_rank('tp') * rows\n"
            "mine = (local >= 0) & (local < rows)\n"
            "h = F.embedding(local.clamp(0, rows - 1), self.weight) * mine[..., None]\n"
            "return funcol.all_reduce(h, 'sum', mesh['tp'])"
        ),
    ),
    Code(
        code="VC118",
        title="fused parameter cut across its parts",
        severity=Severity.ERROR,
        meaning=(
            "Several weights lie behind one another in one tensor (query, key and value; gate and up). It was shared "
            "out as one piece, so that a rank holds all of one weight and nothing of another, and cuts what it holds "
            "as if it had a share of each."
        ),
        reason=(
            "The sizes are right: half of the fused width is the width of one half. What is called `gate` on the first "
            "rank is the first half of the gate and what is called `up` its second half."
        ),
        example=(
            "own = self.gate_up.chunk(size, 1)[rank]       # gate and up behind one another\n"
            "gate, up = (x @ own).chunk(2, -1)"
        ),
        fix=(
            "Share out each of the weights and put the shares behind one another, or keep the weights apart. For a "
            "DTensor, reshape the fused dimension into (weights, width) and shard the width."
        ),
        fixed_example=(
            "gate_up = self.gate_up.unflatten(1, (2, -1)).chunk(size, 2)[rank]\n"
            "gate, up = (x @ gate_up[:, 0]), (x @ gate_up[:, 1])"
        ),
    ),
    Code(
        code="VC119",
        title="value of another turn of a loop",
        severity=Severity.ERROR,
        meaning=(
            "A line runs several times, once for each micro-batch, chunk, layer or step, and a turn uses what another "
            "turn computed: a stale micro-batch, a buffer that was overwritten, an input saved too early."
        ),
        reason=(
            "All turns have values of the same shape, so nothing raises. Pipelines, recomputation and overlapped "
            "communication keep values of several turns at once."
        ),
        example=(
            "for part in x.chunk(2):\n"
            "    saved = saved if saved is not None else part      # the first micro-batch's input stays\n"
            "    total = total + loss_of(saved)"
        ),
        fix="Use the value of the same turn: give every turn a variable or a buffer of its own.",
        fixed_example="for part in x.chunk(2):\n    total = total + loss_of(part)",
    ),
)
