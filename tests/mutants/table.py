"""The mutants: what is done to which program."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

from tests.mutants import data_parallel, edits, users
from tests.mutants.edits import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tests.mutants.mutant import Mutant
from tests.programs import gpt2, llama, mlp, torch_transformer
from tests.programs.case import Case
from verifycompile.program import Program

PLAIN = mlp.case(2)
MLP, MLP_2D = mlp.residual_case(2), mlp.residual_case(2, data_parallel=2)
TRANSFORMER, TRANSFORMER_TP = torch_transformer.case(2), torch_transformer.case(2, sequence_parallel=False)
LLAMA, LLAMA_2D, BLOCK = llama.case(2), llama.case(2, data_parallel=2), llama.block_case(2)
GPT2 = gpt2.case(2)
TIES = (("wte", "head"),)

PARTIAL = frozenset({"VC101", "VC106"})
TWICE = frozenset({"VC102", "VC103"})
SCALE = frozenset({"VC103", "VC102"})
SHARD = frozenset({"VC104", "VC106"})
AXIS = frozenset({"VC105", "VC101", "VC102", "VC106"})
OPERAND = frozenset({"VC108"})


def _graph(kind: str, detail: str, case: Case, edit: edits.Edit, codes: frozenset[str] = frozenset()) -> Mutant:
    return Mutant(kind, detail, case, edit=edit, codes=codes)


def _user(kind: str, detail: str, case: Case, changed: Case, codes: frozenset[str] = frozenset()) -> Mutant:
    return Mutant(kind, detail, case, changed=changed, codes=codes)


_COLLECTIVES = {"all-reduce": ALL_REDUCE, "all-gather": ALL_GATHER, "reduce-scatter": REDUCE_SCATTER}


def _dropped(case: Case, collective: str, position: int, direction: str) -> Mutant:
    codes = SHARD if collective == "all-gather" else PARTIAL
    edit = edits.drop(_COLLECTIVES[collective], position, direction == "backward")
    return _graph("drop", f"{collective}-{direction}-{position}", case, edit, codes)


def dropped_collectives() -> Iterator[Mutant]:
    """A collective is missing, forward or backward."""
    yield _dropped(PLAIN, "all-reduce", 0, "forward")  # a plain output may be partial
    yield _dropped(MLP, "all-reduce", 0, "forward")
    yield _dropped(MLP_2D, "all-reduce", 0, "forward")
    for position in (0, 2, 3):
        yield _dropped(TRANSFORMER_TP, "all-reduce", position, "forward")
    for position in (0, 3):
        yield _dropped(TRANSFORMER_TP, "all-reduce", position, "backward")
    for position in range(3):
        yield _dropped(GPT2, "all-reduce", position, "forward")
    for position in (0, 2, 4):
        yield _dropped(GPT2, "all-reduce", position, "backward")
    yield _dropped(TRANSFORMER, "all-gather", 0, "forward")
    yield _dropped(TRANSFORMER, "reduce-scatter", 2, "forward")
    yield _dropped(TRANSFORMER, "reduce-scatter", 0, "backward")
    yield _dropped(LLAMA, "reduce-scatter", 1, "forward")
    yield _dropped(LLAMA, "all-gather", 3, "forward")
    yield _dropped(LLAMA, "all-gather", 1, "backward")
    yield _dropped(LLAMA, "reduce-scatter", 1, "backward")
    yield _dropped(LLAMA_2D, "reduce-scatter", 2, "backward")
    yield _dropped(BLOCK, "reduce-scatter", 1, "forward")
    yield _dropped(BLOCK, "all-gather", 0, "backward")


def changed_reductions() -> Iterator[Mutant]:
    """Reduced twice, by another operation, scaled, over another axis."""
    yield _graph("twice", "all-reduce-forward-0", MLP, edits.reduce_twice(0, False), TWICE)
    yield _graph("twice", "all-reduce-forward-2", GPT2, edits.reduce_twice(2, False), TWICE)
    yield _graph("twice", "all-reduce-backward-1", GPT2, edits.reduce_twice(1, True), TWICE)
    yield _graph("scale", "all-reduce-forward-0", MLP, edits.scale(ALL_REDUCE, 0, False, 2.0), SCALE)
    yield _graph("scale", "reduce-scatter-forward-2", LLAMA, edits.scale(REDUCE_SCATTER, 2, False, 0.5), SCALE)
    yield _graph("scale", "all-gather-backward-0", LLAMA, edits.scale(ALL_GATHER, 0, True, 2.0), SCALE)
    yield _graph("mean", "all-reduce-forward-1", GPT2, edits.other_reduction(ALL_REDUCE, 1, False, "avg"), SCALE)
    yield _graph(
        "mean", "reduce-scatter-backward-2", LLAMA, edits.other_reduction(REDUCE_SCATTER, 2, True, "avg"), SCALE
    )
    yield _graph("maximum", "all-reduce-forward-0", MLP, edits.other_reduction(ALL_REDUCE, 0, False, "max"))
    yield _graph("axis", "all-reduce-forward-0", MLP_2D, edits.other_axis(ALL_REDUCE, 0, False, 0), AXIS)
    yield _graph("axis", "reduce-scatter-forward-1", LLAMA_2D, edits.other_axis(REDUCE_SCATTER, 1, False, 0), AXIS)
    yield _graph("axis", "all-gather-forward-1", LLAMA_2D, edits.other_axis(ALL_GATHER, 1, False, 0), AXIS | SHARD)
    yield _graph("axis", "reduce-scatter-backward-1", LLAMA_2D, edits.other_axis(REDUCE_SCATTER, 1, True, 0), AXIS)


def changed_shards() -> Iterator[Mutant]:
    """Another rank's slice, rotated pieces."""
    for case, target, position, direction in (
        (LLAMA, ALL_GATHER, 0, "forward"),
        (LLAMA, REDUCE_SCATTER, 1, "forward"),
        (LLAMA, REDUCE_SCATTER, 1, "backward"),
        (TRANSFORMER, ALL_GATHER, 3, "forward"),
        (BLOCK, REDUCE_SCATTER, 1, "forward"),
        (GPT2, ALL_GATHER, 0, "forward"),
    ):
        name = next(name for name, collective in _COLLECTIVES.items() if collective is target)
        edit = edits.rotate_pieces(target, position, direction == "backward")
        yield _graph("rotate", f"{name}-{direction}-{position}", case, edit, SHARD)
    for case, position in ((GPT2, 0), (GPT2, 1), (LLAMA, 0), (LLAMA, 1), (TRANSFORMER, 3)):
        yield _graph("other-rank", f"coordinate-{position}", case, edits.other_rank(position))


def swapped_operands() -> Iterator[Mutant]:
    """Two parameters of one shape are exchanged."""
    for case, prefix, one, two in (
        (LLAMA, "layers.0.feed_forward", "w1", "w3"),
        (LLAMA, "layers.0.attention", "wk", "wv"),
        (TRANSFORMER, "layers.0.attention", "wq", "wk"),
        (TRANSFORMER_TP, "layers.0.attention", "wq", "wv"),
        (GPT2, "h.0", "q", "k"),
        (BLOCK, "block.feed_forward", "w1", "w3"),
    ):
        edit = edits.swap_inputs(f"{prefix}.{one}.weight", f"{prefix}.{two}.weight")
        yield _graph("swap", f"{one}-{two}", case, edit, OPERAND)
    norms = edits.swap_inputs("layers.0.attention_norm.weight", "layers.0.ffn_norm.weight")
    yield _graph("swap", "norms", LLAMA, norms, OPERAND)


def wrong_plans() -> Iterator[Mutant]:
    """Styles with a wrong placement."""
    kept = RowwiseParallel(output_layouts=Partial())
    yield _user("partial-kept", "down", MLP, users.with_style(MLP, mlp.plan(), down=kept), PARTIAL)
    yield _user("partial-kept", "fc_proj", GPT2, _gpt2(h__each__fc_proj=kept), PARTIAL)
    yield _user("partial-kept", "proj", GPT2, _gpt2(h__each__proj=kept), PARTIAL)
    yield _user("input-layouts", "head", GPT2, _gpt2(head=ColwiseParallel(input_layouts=Shard(1))))
    sharded = ColwiseParallel(output_layouts=Shard(-1))
    yield _user("output-layouts", "head", GPT2, _gpt2(head=sharded), SHARD)
    gathered = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
    yield _user("input-layouts", "up", MLP, users.with_style(MLP, mlp.plan(), **gathered))
    yield _user("sequence-dim", "norm", LLAMA, _llama(norm=SequenceParallel(sequence_dim=0)), SHARD)
    scrambled = {f"h__each__{name}": ColwiseParallel(output_layouts=Shard(1)) for name in ("q", "k", "v")}
    yield _user("output-layouts", "qkv", GPT2, _gpt2(**scrambled))
    fc = {"h__each__fc": ColwiseParallel(input_layouts=Shard(1))}
    yield _user("input-layouts", "fc", GPT2, _gpt2(**fc, h__each__fc_proj=RowwiseParallel(output_layouts=Shard(1))))


def _gpt2(**styles: object) -> Case:
    return users.with_style(GPT2, gpt2.plan(), TIES, **styles)


def _llama(**styles: object) -> Case:
    return users.with_style(LLAMA, llama.llama_plan(), **styles)


def wrong_code() -> Iterator[Mutant]:
    """Hooks and module code that a user got wrong."""
    twice, doubled, halved = users.reduced_again(), users.scaled(2.0), users.scaled(0.5)
    yield _user("hook-twice", "down", MLP, users.with_output_hook(MLP, "down", twice), TWICE)
    yield _user("hook-twice", "fc_proj", GPT2, users.with_output_hook(GPT2, "h.0.fc_proj", twice), TWICE)
    yield _user("hook-scale", "down", MLP, users.with_output_hook(MLP, "down", doubled), SCALE)
    yield _user("hook-scale", "proj", GPT2, users.with_output_hook(GPT2, "h.0.proj", doubled), SCALE)
    yield _user(
        "hook-scale", "feed_forward", LLAMA, users.with_output_hook(LLAMA, "layers.0.feed_forward", halved), SCALE
    )
    partial = users.with_style(MLP_2D, mlp.plan(), down=RowwiseParallel(output_layouts=Partial()))
    for name, axis in (("wrong", "dp"), ("right", "tp")):
        hooked = users.with_output_hook(partial, "down", users.redistributed(axis, Partial(), Replicate()))
        yield _user(f"hook-{name}-axis", "down", MLP_2D, hooked, AXIS)
    mean = users.with_output_hook(partial, "down", users.redistributed("tp", Partial("avg"), Replicate()))
    yield _user("hook-mean", "down", MLP_2D, mean, SCALE)
    yield _user("gradient", "fc", GPT2, _gpt2(h__each__fc=users.ColwiseByHand()), PARTIAL)
    yield _user("gradient", "q", GPT2, _gpt2(h__each__q=users.ColwiseByHand()))
    yield _user("code-swap", "w1-w3", LLAMA, users.with_model(LLAMA, _swap_gate), OPERAND)
    yield _user("code-swap", "q-k", GPT2, users.with_model(GPT2, _swap_queries), OPERAND)


class SwappedFeedForward(llama.FeedForward):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w3(x)) * self.w1(x))


class SwappedBlock(gpt2.Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        y = self.ln_1(x)
        q, k, v = (w(y).view(batch, sequence, -1, gpt2.HEAD_DIM).transpose(1, 2) for w in (self.k, self.q, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, sequence, -1))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


def _swap_gate(model: nn.Module) -> None:
    model.get_submodule("layers.0.feed_forward").__class__ = SwappedFeedForward


def _swap_queries(model: nn.Module) -> None:
    model.get_submodule("h.0").__class__ = SwappedBlock


def every_collective(case: Case, program: Program) -> Iterator[Mutant]:
    """Every edit of every collective and coordinate of one captured program."""
    for name, target in _COLLECTIVES.items():
        for direction in ("forward", "backward"):
            backward = direction == "backward"
            for position in range(len(edits.nodes_of(program, target, backward=backward))):
                detail = f"{name}-{direction}-{position}"
                yield _graph("drop", detail, case, edits.drop(target, position, backward))
                yield _graph("scale", detail, case, edits.scale(target, position, backward, 2.0))
                if target is not ALL_GATHER:
                    yield _graph("mean", detail, case, edits.other_reduction(target, position, backward, "avg"))
                if target is ALL_REDUCE:
                    yield _graph("twice", detail, case, edits.reduce_twice(position, backward))
                else:
                    yield _graph("rotate", detail, case, edits.rotate_pieces(target, position, backward))
                if len(case.mesh) == 2 and case.mesh[0][1] == case.mesh[1][1]:
                    yield _graph("axis", detail, case, edits.other_axis(target, position, backward, 0))
    for position in range(len(edits.coordinates(program))):
        yield _graph("other-rank", f"coordinate-{position}", case, edits.other_rank(position))


_FAMILIES: tuple[Callable[[], Iterator[Mutant]], ...] = (
    dropped_collectives,
    changed_reductions,
    changed_shards,
    swapped_operands,
    wrong_plans,
    wrong_code,
    data_parallel.wrong_reductions,
    data_parallel.scaled_twice,
    data_parallel.wrong_axes,
)
MUTANTS: tuple[Mutant, ...] = tuple(mutant for family in _FAMILIES for mutant in family())
