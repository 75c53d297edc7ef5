"""Layers of megatron-core, captured rank by rank with ``make_fx``, forward and backward, against the layers at TP 1.

Built on the CPU without Transformer Engine or apex. Three things that need a GPU are replaced: the current device, the
random number tracker of attention dropout (which is zero), and the norm that refuses sequence parallelism.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import verifycompile
from benchmarks.coverage import Case, Package

PACKAGE = Package("megatron-core", "pip install --no-deps megatron-core==0.16.1")

SEQUENCE, BATCH, WIDTH, VOCABULARY = 8, 2, 16, 24
Inputs = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Program:
    """``build``: from a configuration to a module. ``inputs``: what one rank passes. ``options``: of the configuration.

    ``strided``: parameters of which each rank holds its part of two halves.
    """

    build: Callable[[Any], nn.Module]
    inputs: Callable[[int, bool], Inputs]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    strided: tuple[str, ...] = ()
    sequence_parallel: bool = True
    wrong: bool = False
    needs_mask: bool = False


def _hidden(ranks: int, sequence_parallel: bool) -> Inputs:
    return {"x": torch.randn(SEQUENCE // ranks if sequence_parallel else SEQUENCE, BATCH, WIDTH)}


def _row_input(ranks: int, _: bool) -> Inputs:
    return {"x": torch.randn(SEQUENCE, BATCH, WIDTH // ranks)}


def _tokens(_: int, __: bool) -> Inputs:
    return {"x": torch.randint(VOCABULARY, (BATCH, SEQUENCE))}


def _logits(ranks: int, _: bool) -> Inputs:
    return {
        "x": torch.randn(SEQUENCE, BATCH, VOCABULARY // ranks),
        "labels": torch.randint(VOCABULARY, (SEQUENCE, BATCH)),
    }


class _First(nn.Module):
    """Megatron's linear layers return the bias beside the result."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]  # type: ignore[no-any-return]


def _column(config: Any) -> nn.Module:
    from megatron.core.tensor_parallel import ColumnParallelLinear

    initialize, gathered = nn.init.xavier_normal_, not config.sequence_parallel
    return _First(ColumnParallelLinear(WIDTH, 2 * WIDTH, config=config, init_method=initialize, gather_output=gathered))


def _row(config: Any) -> nn.Module:
    from megatron.core.tensor_parallel import RowParallelLinear

    layer = RowParallelLinear(
        WIDTH,
        2 * WIDTH,
        config=config,
        init_method=nn.init.xavier_normal_,
        bias=True,
        input_is_parallel=True,
        skip_bias_add=False,
    )
    return _First(layer)


def _embedding(config: Any) -> nn.Module:
    from megatron.core.tensor_parallel import VocabParallelEmbedding

    return VocabParallelEmbedding(  # type: ignore[no-any-return]
        VOCABULARY, WIDTH, init_method=nn.init.xavier_normal_, config=config, reduce_scatter_embeddings=True
    )


class _CrossEntropy(nn.Module):
    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

        return vocab_parallel_cross_entropy(x, labels, self.smoothing)  # type: ignore[no-any-return]


class _Norm(nn.LayerNorm):
    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:  # noqa: ARG002 - as Megatron calls it
        super().__init__(hidden_size, eps)


def _layer(config: Any) -> nn.Module:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module

    spec = get_gpt_layer_local_spec(normalization="LayerNorm")
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = _Norm
    return build_module(spec, config=config, layer_number=1)  # type: ignore[no-any-return]


PROGRAMS: dict[str, Program] = {
    "ColumnParallelLinear": Program(_column, _hidden),
    "RowParallelLinear": Program(_row, _row_input),
    "VocabParallelEmbedding": Program(_embedding, _tokens),
    "vocab_parallel_cross_entropy": Program(lambda _: _CrossEntropy(0.0), _logits, sequence_parallel=False),
    # Every rank smooths over its own part of the vocabulary.
    "vocab_parallel_cross_entropy, label_smoothing": Program(
        lambda _: _CrossEntropy(0.1), _logits, sequence_parallel=False, wrong=True
    ),
    "MLP": Program(lambda config: _layer(config).mlp, _hidden),
    "MLP, gated": Program(
        lambda config: _layer(config).mlp,
        _hidden,
        {"gated_linear_unit": True, "activation_func": F.silu},
        ("linear_fc1.weight", "linear_fc1.bias"),
    ),
    "SelfAttention": Program(lambda config: _layer(config).self_attention, _hidden, needs_mask=True),
    "SelfAttention, grouped": Program(
        lambda config: _layer(config).self_attention, _hidden, {"num_query_groups": 4}, needs_mask=True
    ),
    "TransformerLayer": Program(_layer, _hidden, needs_mask=True),
}


MUTANTS = ("parts not summed", "parts summed twice")
"""Changes of the first all-reduce on every rank, which must not verify."""


def cases(_: str) -> Iterator[Case]:
    """Every layer at two degrees, with and without sequence parallelism."""
    for name, program in PROGRAMS.items():
        expected = "refuted" if program.wrong else "verified"
        for degree in (2, 4):
            yield Case(name, f"tp={degree}", "training", expected)
            if program.sequence_parallel:
                yield Case(name, f"tp={degree}", "training, sequence parallel", expected)
    for name in ("RowParallelLinear", "MLP"):
        for mutant in MUTANTS:
            yield Case(name, "tp=2", f"training, mutant: {mutant}", "refuted")


def check(case: Case) -> verifycompile.Report:
    """Capture the layer at TP 1 and on every rank, and compare."""
    program, ranks = PROGRAMS[case.program], int(case.degree.partition("=")[2])
    sequence_parallel = "sequence" in case.mode
    spec = _capture(program, 0, 1, sequence_parallel)
    graphs = [_capture(program, rank, ranks, sequence_parallel) for rank in range(ranks)]
    layouts = _layouts(program, spec, graphs[0])
    # Any clean relation will do but for weights of two halves, whose gradients lie as they do.
    strided = {name.replace(".", "_") for name in program.strided}
    outputs = {f"output.{1 + i}": placed for i, (name, placed) in enumerate(layouts.items()) if name in strided}
    mutant = case.mode.partition("mutant: ")[2]
    if mutant:
        for graph in graphs:
            _mutate(graph, mutant)
        outputs["output.0"] = (Replicate(),)
    return verifycompile.verify_graphs(spec, graphs, layouts, outputs)


def _mutate(graph: torch.fx.GraphModule, mutant: str) -> None:
    """The first all-reduce is left out, or done once more; it writes to its operand."""
    first = graph.graph.find_nodes(op="call_function", target=torch.ops.c10d.allreduce_.default)[0]
    with graph.graph.inserting_after(first):
        again = graph.graph.node_copy(first)
    if mutant == "parts not summed":
        graph.graph.erase_node(again)
        (tensor,) = first.args[0]
        for results in list(first.users):
            for result in list(results.users):
                result.replace_all_uses_with(tensor)
                graph.graph.erase_node(result)
            graph.graph.erase_node(results)
        graph.graph.erase_node(first)
    graph.recompile()


def _layouts(program: Program, spec: torch.fx.GraphModule, graph: torch.fx.GraphModule) -> dict[str, Any]:
    """Each input is sharded along the dimension in which its sizes differ."""
    layouts: dict[str, Any] = {}
    strided = {name.replace(".", "_") for name in program.strided}
    own = graph.graph.find_nodes(op="placeholder")
    for whole, part in zip(spec.graph.find_nodes(op="placeholder"), own, strict=True):
        sizes = zip(whole.meta["val"].shape, part.meta["val"].shape, strict=True)
        dims = [dim for dim, (full, local) in enumerate(sizes) if full != local]
        if not dims:
            layouts[part.name] = (Replicate(),)
        else:
            layouts[part.name] = (_StridedShard(dims[0], split_factor=2) if part.name in strided else Shard(dims[0]),)
    return layouts


def _capture(program: Program, rank: int, ranks: int, sequence_parallel: bool) -> torch.fx.GraphModule:
    """The layer's results, and the gradients of parameters and inputs, as one graph with named placeholders."""
    _enter_world(rank, ranks)
    module = program.build(_configuration(ranks, sequence_parallel, program.options))
    inputs = program.inputs(ranks, sequence_parallel)
    arguments = {**dict(module.named_parameters()), **inputs}
    differentiated = [name for name, value in arguments.items() if value.is_floating_point()]

    def forward(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        own = {name: values[name] for name, _ in module.named_parameters()}
        rest = {name: value for name, value in values.items() if name not in own}
        if program.needs_mask:
            rest["attention_mask"] = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE), 1).bool()
        with _reparametrize_module(module, own):
            result = module(*[rest.pop("x")], **rest)
        return result[0] if isinstance(result, tuple) else result

    def run(*flat: torch.Tensor) -> list[torch.Tensor]:
        values = {
            name: value.detach().requires_grad_(name in differentiated)
            for name, value in zip(arguments, flat[:-1], strict=True)
        }
        # Megatron's loss overwrites its input: a leaf must not be.
        given = {name: value * 1 if name == "x" and name in differentiated else value for name, value in values.items()}
        result = forward(given)
        gradients = torch.autograd.grad(result, [values[name] for name in differentiated], flat[-1], allow_unused=True)
        return [result.detach(), *gradients]

    shape = _result_shape(forward, arguments)
    graph = make_fx(run, tracing_mode="fake")(*arguments.values(), torch.randn(shape))
    for node, name in zip(graph.graph.find_nodes(op="placeholder"), [*arguments, "cotangent"], strict=True):
        node.name = node.target = name.replace(".", "_")
    graph.recompile()
    return graph


def _result_shape(
    forward: Callable[[Mapping[str, torch.Tensor]], torch.Tensor], arguments: Mapping[str, torch.Tensor]
) -> tuple[int, ...]:
    traced = make_fx(lambda *flat: forward(dict(zip(arguments, flat, strict=True))), tracing_mode="fake")(
        *(value.detach().clone() for value in arguments.values())
    )
    (result,) = next(iter(traced.graph.find_nodes(op="output"))).all_input_nodes
    _forget_buffers()
    return tuple(result.meta["val"].shape)


def _enter_world(rank: int, ranks: int) -> None:
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    from megatron.core import parallel_state

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks, create_gloo_process_groups=False)
    from megatron.core import tensor_parallel

    tensor_parallel.get_cuda_rng_tracker = tensor_parallel.random.get_cuda_rng_tracker = _NoRandomState


def _forget_buffers() -> None:
    """Buffers that a trace made hold its fake tensors."""
    from megatron.core import parallel_state

    parallel_state._GLOBAL_MEMORY_BUFFER = None  # noqa: SLF001 - there is no public way
    parallel_state._set_global_memory_buffer()  # noqa: SLF001


class _NoRandomState:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def fork(self, *_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _configuration(ranks: int, sequence_parallel: bool, options: Mapping[str, Any]) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        **{
            "num_layers": 1,
            "hidden_size": WIDTH,
            "num_attention_heads": 8,
            "ffn_hidden_size": 2 * WIDTH,
            "use_cpu_initialization": True,
            "tensor_model_parallel_size": ranks,
            "sequence_parallel": sequence_parallel and ranks > 1,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "bias_activation_fusion": False,
            "masked_softmax_fusion": False,
            "bias_dropout_fusion": False,
            "gradient_accumulation_fusion": False,
            "persist_layer_norm": False,
            "apply_rope_fusion": False,
            **options,
        }
    )
