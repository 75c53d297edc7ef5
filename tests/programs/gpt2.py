"""GPT-2: LayerNorm, GELU (tanh), head tied to the embedding, tensor parallel with replicated activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tests.programs.case import Case, Plan, tensor_parallel, tensor_parallel_mesh

HEAD_DIM = 4
SEQUENCE = 8
VOCABULARY = 32


class Block(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        dim = heads * HEAD_DIM
        self.ln_1 = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, 2 * dim)
        self.fc_proj = nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        y = self.ln_1(x)
        q, k, v = (w(y).view(batch, sequence, -1, HEAD_DIM).transpose(1, 2) for w in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, sequence, -1))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, heads: int, layers: int = 1) -> None:
        super().__init__()
        dim = heads * HEAD_DIM
        self.wte = nn.Embedding(VOCABULARY, dim)
        self.wpe = nn.Embedding(SEQUENCE, dim)
        self.h = nn.ModuleList(Block(heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def plan() -> Plan:
    return {
        "wte": RowwiseParallel(input_layouts=Replicate()),
        "h.*.q": ColwiseParallel(),
        "h.*.k": ColwiseParallel(),
        "h.*.v": ColwiseParallel(),
        "h.*.proj": RowwiseParallel(),
        "h.*.fc": ColwiseParallel(),
        "h.*.fc_proj": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }


def inputs() -> tuple[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(0, VOCABULARY, (2, SEQUENCE), generator=generator),)


def case(degree: int, *, layers: int = 1, data_parallel: int = 1) -> Case:
    mesh = tensor_parallel_mesh(degree, data_parallel)
    name = f"gpt2-{layers}layers-{'x'.join(str(size) for _, size in mesh)}"
    return Case(name, mesh, lambda: GPT2(max(4, degree), layers), tensor_parallel(plan(), ("wte", "head")), inputs)
