"""Layers and GPT models of megatron-core, forward and backward, against the same at tensor parallelism 1.

Captured rank by rank with ``make_fx`` for ``verify_graphs``; rows called "compiled" go through ``verify`` as
``torch.compile`` traces them. Built on the CPU without Transformer Engine or apex: see ``megatron_world``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

import verifycompile
from benchmarks.coverage import Case, Package
from benchmarks.real_programs.megatron_capture import Captured, Inputs, capture
from benchmarks.real_programs.megatron_mutants import MUTANTS, mutate
from benchmarks.real_programs.megatron_world import Norm, configuration, enter_world

PACKAGE = Package("megatron-core", "pip install --no-deps megatron-core==0.16.1")

SEQUENCE, BATCH, WIDTH, VOCABULARY = 8, 2, 16, 24
SEQUENCE_PARALLEL = "sequence parallel"


@dataclasses.dataclass(frozen=True)
class Program:
    """``build``: from a configuration to a module. ``inputs``: what one of so many ranks passes.

    ``options``: of the configuration. ``halves``: placeholders of which each rank holds its part of two halves.
    ``plain``, ``sequence_parallel``: whether it can be so. ``wrong``: known to be.
    """

    build: Callable[[Any], nn.Module]
    inputs: Callable[[int, bool], Inputs]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    halves: tuple[str, ...] = ()
    plain: bool = True
    sequence_parallel: bool = True
    wrong: bool = False


def _hidden(ranks: int, sequence_parallel: bool) -> Inputs:
    return {"hidden_states": torch.randn(SEQUENCE // ranks if sequence_parallel else SEQUENCE, BATCH, WIDTH)}


def _with_mask(ranks: int, sequence_parallel: bool) -> Inputs:
    return {**_hidden(ranks, sequence_parallel), "attention_mask": _mask()}


def _row_input(ranks: int, _: bool) -> Inputs:
    return {"hidden_states": torch.randn(SEQUENCE, BATCH, WIDTH // ranks)}


def _tokens(_: int, __: bool) -> Inputs:
    return {"input_": torch.randint(VOCABULARY, (BATCH, SEQUENCE))}


def _logits(ranks: int, _: bool) -> Inputs:
    return {
        "logits": torch.randn(SEQUENCE, BATCH, VOCABULARY // ranks),
        "labels": torch.randint(VOCABULARY, (SEQUENCE, BATCH)),
    }


def _text(_: int, __: bool) -> Inputs:
    return {
        "input_ids": torch.randint(VOCABULARY, (BATCH, SEQUENCE)),
        "position_ids": torch.arange(SEQUENCE).expand(BATCH, SEQUENCE).clone(),
        "attention_mask": _mask(),
        "labels": torch.randint(VOCABULARY, (BATCH, SEQUENCE)),
    }


def _mask() -> torch.Tensor:
    return torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE), 1).bool()


class _Sum(nn.Module):
    """Megatron's linear layers return the bias beside the result; the sum is where it is added."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result, bias = self.layer(hidden_states)
        return result if bias is None else result + bias


def _column(**options: Any) -> Callable[[Any], nn.Module]:
    def build(config: Any) -> nn.Module:
        from megatron.core.tensor_parallel import ColumnParallelLinear

        return _Sum(
            ColumnParallelLinear(WIDTH, 2 * WIDTH, config=config, init_method=nn.init.xavier_normal_, **options)
        )

    return build


def _row(**options: Any) -> Callable[[Any], nn.Module]:
    chosen = {"bias": True, "input_is_parallel": True, "skip_bias_add": False, **options}

    def build(config: Any) -> nn.Module:
        from megatron.core.tensor_parallel import RowParallelLinear

        return _Sum(RowParallelLinear(WIDTH, 2 * WIDTH, config=config, init_method=nn.init.xavier_normal_, **chosen))

    return build


def _embedding(scattered: bool) -> Callable[[Any], nn.Module]:
    def build(config: Any) -> nn.Module:
        from megatron.core.tensor_parallel import VocabParallelEmbedding

        return VocabParallelEmbedding(  # type: ignore[no-any-return]
            VOCABULARY,
            WIDTH,
            init_method=nn.init.xavier_normal_,
            config=config,
            reduce_scatter_embeddings=scattered,
        )

    return build


class _CrossEntropy(nn.Module):
    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

        return vocab_parallel_cross_entropy(logits, labels, self.smoothing)  # type: ignore[no-any-return]


def _layer_spec(config: Any) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    spec = get_gpt_layer_local_spec(normalization="LayerNorm", num_experts=getattr(config, "num_moe_experts", None))
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    return spec


def _layer(config: Any) -> nn.Module:
    from megatron.core.transformer.spec_utils import build_module

    return build_module(_layer_spec(config), config=config, layer_number=1)  # type: ignore[no-any-return]


def _gpt(**options: Any) -> Callable[[Any], nn.Module]:
    def build(config: Any) -> nn.Module:
        from megatron.core.models.gpt import GPTModel
        from megatron.core.transformer import transformer_block

        transformer_block.LayerNormImpl = Norm
        return GPTModel(config, _layer_spec(config), VOCABULARY, SEQUENCE, **options)  # type: ignore[no-any-return]

    return build


_GATED = {"gated_linear_unit": True, "activation_func": F.silu, "add_bias_linear": False}
_GATED_BIAS = {"gated_linear_unit": True, "activation_func": F.silu}
_LLAMA = {**_GATED, "num_query_groups": 4, "num_layers": 2}
_HALVES = ("linear_fc1_weight", "linear_fc1_bias")

PROGRAMS: dict[str, Program] = {
    "ColumnParallelLinear": Program(_column(gather_output=False), _hidden),
    "ColumnParallelLinear, gather_output": Program(_column(gather_output=True), _hidden, sequence_parallel=False),
    "ColumnParallelLinear, skip_bias_add": Program(_column(gather_output=False, skip_bias_add=True), _hidden),
    "RowParallelLinear": Program(_row(), _row_input),
    "RowParallelLinear, whole input": Program(_row(input_is_parallel=False), _hidden, sequence_parallel=False),
    "RowParallelLinear, skip_bias_add": Program(_row(skip_bias_add=True), _row_input),
    "VocabParallelEmbedding": Program(_embedding(False), _tokens, sequence_parallel=False),
    "VocabParallelEmbedding, reduce_scatter_embeddings": Program(_embedding(True), _tokens, plain=False),
    "vocab_parallel_cross_entropy": Program(lambda _: _CrossEntropy(0.0), _logits, sequence_parallel=False),
    # Every rank smooths over its own part of the vocabulary.
    "vocab_parallel_cross_entropy, label_smoothing": Program(
        lambda _: _CrossEntropy(0.1), _logits, sequence_parallel=False, wrong=True
    ),
    "MLP": Program(lambda config: _layer(config).mlp, _hidden),
    "MLP, gated": Program(lambda config: _layer(config).mlp, _hidden, _GATED_BIAS, _HALVES),
    "SelfAttention": Program(lambda config: _layer(config).self_attention, _with_mask),
    "SelfAttention, grouped": Program(
        lambda config: _layer(config).self_attention, _with_mask, {"num_query_groups": 4}
    ),
    # Fewer groups than ranks: the projections are gathered whole.
    "SelfAttention, two groups": Program(
        lambda config: _layer(config).self_attention, _with_mask, {"num_query_groups": 2}
    ),
    "SelfAttention, one group": Program(
        lambda config: _layer(config).self_attention, _with_mask, {"num_query_groups": 1}
    ),
    "TransformerLayer": Program(_layer, _with_mask),
    "TransformerLayer, gated, grouped": Program(_layer, _with_mask, {**_LLAMA, "num_layers": 1}, _HALVES),
    "GPTModel": Program(_gpt(), _text),
    "GPTModel, tied": Program(_gpt(share_embeddings_and_output_weights=True), _text),
    "GPTModel, rope, gated, grouped": Program(_gpt(position_embedding_type="rope"), _text, _LLAMA, _HALVES),
}

WITH_MUTANTS = (
    "ColumnParallelLinear",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "vocab_parallel_cross_entropy",
    "MLP, gated",
    "SelfAttention, grouped",
    "TransformerLayer",
    "GPTModel, rope, gated, grouped",
)


def cases(_: str) -> Iterator[Case]:
    """Every program at two degrees, with and without sequence parallelism; mutants at one."""
    for name, program in PROGRAMS.items():
        expected = "refuted" if program.wrong else "verified"
        for degree in (2, 4):
            if program.plain:
                yield Case(name, f"tp={degree}", "training", expected)
            if program.sequence_parallel:
                yield Case(name, f"tp={degree}", f"training, {SEQUENCE_PARALLEL}", expected)
    for name in WITH_MUTANTS:
        for mutant in MUTANTS:
            yield Case(name, "tp=2", f"training, mutant: {mutant}", "refuted")
            if PROGRAMS[name].sequence_parallel and name != "ColumnParallelLinear":
                yield Case(name, "tp=2", f"training, {SEQUENCE_PARALLEL}, mutant: {mutant}", "refuted")


def check(case: Case) -> verifycompile.Report:
    """Capture the layer at tensor parallelism 1 and on every rank, and compare."""
    program, ranks = PROGRAMS[case.program], int(case.degree.partition("=")[2])
    sequence_parallel = SEQUENCE_PARALLEL in case.mode
    spec = _captured(program, 0, 1, sequence_parallel)
    every = [_captured(program, rank, ranks, sequence_parallel) for rank in range(ranks)]
    inputs = _layouts(program, spec, every[0])
    mutant = case.mode.partition("mutant: ")[2]
    graphs = [found.graph for found in every]
    if mutant:
        mutate(graphs, mutant)
    return verifycompile.verify_graphs(spec.graph, graphs, inputs, _required(spec, every[0], inputs))


def _captured(program: Program, rank: int, ranks: int, sequence_parallel: bool) -> Captured:
    enter_world(rank, ranks)
    options: dict[str, Any] = {
        "hidden_size": WIDTH,
        "sequence_parallel": sequence_parallel and ranks > 1,
        **program.options,
    }
    return capture(program.build(configuration(ranks, options)), program.inputs(ranks, options["sequence_parallel"]))


def _layouts(program: Program, spec: Captured, own: Captured) -> dict[str, tuple[Placement, ...]]:
    """Each input is sharded along the dimension in which its sizes differ."""
    sizes = ((name, spec.inputs[name], own.inputs[name]) for name in own.inputs)
    return {name: (_layout(whole, part, name.endswith(program.halves)),) for name, whole, part in sizes}


def _layout(whole: torch.Size, part: torch.Size, halves: bool) -> Placement:
    dims = [dim for dim, (full, local) in enumerate(zip(whole, part, strict=True)) if full != local]
    if not dims:
        return Replicate()
    return _StridedShard(dims[0], split_factor=2) if halves else Shard(dims[0])


def _required(
    spec: Captured, own: Captured, inputs: Mapping[str, tuple[Placement, ...]]
) -> dict[str, tuple[Placement, ...]]:
    """The result is whole or sharded as its shape says. A gradient lies as its parameter does.

    Where the layer marks a parameter, its gradients are added by the optimizer: megatron's ``finalize_model_grads``.
    """
    required: dict[str, tuple[Placement, ...]] = {"output.0": (_layout(spec.result, own.result, False),)}
    for place, name in enumerate(own.differentiated):
        required[f"output.{1 + place}"] = (Partial(),) if name in own.added_later else inputs[name]
    return required
