"""Causes in where the ranks' parts lie, in what a rank counts, and in how partial results are combined."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.cause.test_of_loops_and_ranks import Mistake, of_size, report_of, told_at_its_line
from tests.programs.autograd_collectives import Copy, Reduce
from verifycompile import Verdict
from verifycompile.diagnostics.finding import CAUSE_UNCERTAIN

R, S0, S1 = Replicate(), Shard(0), Shard(1)


def by_place(x):
    return x * torch.arange(x.shape[0])[:, None]


def by_place_of_rank(mesh, wrong):
    def program(x):
        rank, rows = mesh.get_local_rank(), x.shape[0]
        first = (mesh.size() - 1 - rank if wrong else rank) * rows
        return x * (torch.arange(rows) + first)[:, None]

    return program


def shares(q, k, v):
    return (q @ k.t()).softmax(-1) @ v


def shares_of_parts(mesh, wrong):
    def program(q, k, v):
        scores = q @ k.t()
        own = torch.logsumexp(scores, -1, keepdim=True)
        total = funcol.all_reduce(own if wrong else own.exp(), "sum", mesh)
        total = total if wrong else total.log()
        return funcol.all_reduce(torch.exp(scores - total) @ v, "sum", mesh)

    return program


def of_kept(x, y):
    return F.cross_entropy(x, y, ignore_index=0)


def counted_kept(_, wrong):
    def program(x, y):
        kept = y != 0
        each = F.cross_entropy(x, y, reduction="none") * kept
        return each.sum() / (y.numel() if wrong else kept.sum())

    return program


def in_groups(x):
    return F.group_norm(x, 4)


def in_groups_of_rank(_, wrong):
    return lambda x: F.group_norm(x, 4 if wrong else 2)


def in_documents(x, document):
    return (document[:, None] == document[None]).float() @ x


def in_documents_of_rank(mesh, wrong):
    def program(x, document):
        x = funcol.all_gather_tensor(x, 0, mesh)
        others = torch.cat([document, document]) if wrong else funcol.all_gather_tensor(document, 0, mesh)
        return (document[:, None] == others[None]).float() @ x

    return program


def of_earlier(x):
    place = torch.arange(x.shape[0])
    return (place[None] <= place[:, None]).float() @ x


def of_earlier_on_ranks(mesh, wrong):
    def program(x):
        rank, rows = mesh.get_local_rank(), x.shape[0]
        whole = funcol.all_gather_tensor(x, 0, mesh)
        own, others = torch.arange(rows), torch.arange(rows * mesh.size())
        if wrong:
            others = others + rank * rows
        else:
            own = own + rank * rows
        return (others[None] <= own[:, None]).float() @ whole

    return program


def scaled_and_squashed(x):
    return torch.tanh(448 * x / x.abs().amax())


def scaled_on_ranks(mesh, wrong):
    def program(x):
        largest = x.abs().amax()
        whole = largest if wrong else funcol.all_reduce(largest, "max", mesh)
        return torch.tanh(448 * x / whole)

    return program


def product_of_squares(x, w):
    return x.square() @ w


def scattered_product(mesh, wrong):
    def program(x, w):
        own = x.square() @ w
        rows = own.shape[0] // mesh.size()
        return own[:rows] * 1 if wrong else funcol.reduce_scatter_tensor(own, "sum", 0, mesh)

    return program


def squashed(q, k):
    return (q @ k.t() / 2).softmax(-1)


def squashed_by_width_of_all(_, wrong):
    return lambda q, k: (q @ k.t() / (4 if wrong else 2)).softmax(-1)


def by_position(x):
    return x * torch.arange(x.shape[1])


def by_position_of_rank(mesh, wrong):
    def program(x):
        first = mesh["dp" if wrong else "cp"].get_local_rank() * x.shape[1]
        return x * torch.arange(first, first + x.shape[1])

    return program


def clipped(gradient):
    return gradient / (gradient.norm() + 1e-6)


def clipped_on_ranks(mesh, wrong):
    def program(gradient):
        own = gradient.norm()
        norm = funcol.all_reduce(own if wrong else own**2, "sum", mesh)
        return gradient / ((norm if wrong else norm**0.5) + 1e-6)

    return program


def clipped_by_own_norm(mesh, wrong):
    def program(gradient):
        norm = gradient.norm()
        if not wrong:
            norm = funcol.all_reduce(norm**2, "sum", mesh) ** 0.5
        return gradient / (norm + 1e-6)

    return program


def weighed(x, w):
    return x * torch.tanh(w)


def weighed_by_part(mesh, wrong):
    def program(x, w):
        rows, whole = x.shape[0], torch.tanh(Copy.apply(w, mesh.get_group()))
        first = 0 if wrong else mesh.get_local_rank() * rows
        return x * whole[first : first + rows]

    return program


def written_by_part(mesh, wrong):
    def program(x):
        rows = x.shape[0]
        whole = torch.zeros(mesh.size() * rows, x.shape[1])
        first = 0 if wrong else mesh.get_local_rank() * rows
        whole[first : first + rows] = torch.tanh(x)
        return funcol.all_reduce(whole, "sum", mesh)

    return program


def pooled(x, mask):
    return torch.tanh(x * mask[:, None]).sum(0) / mask.sum()


def pooled_over_padding(mesh, wrong):
    def program(x, mask):
        total = Reduce.apply(torch.tanh(x * mask[:, None]).sum(0), mesh.get_group())
        count = x.shape[0] * mesh.size() if wrong else funcol.all_reduce(mask.sum(), "sum", mesh)
        return total / count

    return program


def gated_by_heads(x, w):
    values, gates = (x @ w).unflatten(-1, (-1, 2, 3)).unbind(-2)
    return (values * torch.tanh(gates)).flatten(1)


def gated_by_halves(_, wrong):
    def program(x, w):
        fused = x @ w
        parts = fused.chunk(2, -1) if wrong else fused.unflatten(-1, (-1, 2, 3)).unbind(-2)
        values, gates = (part.reshape(-1, 2, 3) for part in parts)
        return (values * torch.tanh(gates)).flatten(1)

    return program


def from_both_ends(x):
    return (x * torch.arange(8)[:, None])[torch.tensor([0, 1, 6, 7, 2, 3, 4, 5])]


def chunks_from_both_ends(mesh, wrong):
    def program(x):
        rank, last = mesh.get_local_rank(), 2 * mesh.size() - 1
        rows = x.shape[0] // (last + 1)
        late = torch.arange(rows) + (last - rank - wrong) * rows
        places = torch.cat([torch.arange(rows) + rank * rows, late])
        return x[places] * places[:, None]

    return program


MISTAKES = {
    "chunk": Mistake(
        from_both_ends, chunks_from_both_ends, of_size((8, 3)), {}, ((S0,),), "VC117",
        "late = torch.arange(rows) + (last - rank - wrong) * rows", "let line {line} take 6, 4 on the ranks: 2 more (checked)",
    ),
    "padding": Mistake(
        pooled, pooled_over_padding, lambda: (torch.randn(3, 2, requires_grad=True), torch.ones(3)),
        {"x": (S0,), "mask": (S0,)}, ((R,),), "VC113", "return total / count",
        "divide by the number of entries that `mask` keeps, the sum of it, all-reduced over `tp`, at line {line} "
        "(checked)",
    ),
    "heads": Mistake(
        gated_by_heads, gated_by_halves, lambda: (torch.randn(3, 4), torch.randn(4, 12, requires_grad=True)),
        {"w": (S1,)}, ((S1,),), "VC104",
        "parts = fused.chunk(2, -1) if wrong else fused.unflatten(-1, (-1, 2, 3)).unbind(-2)",
        "view dimension 1 of `fused` as (2, 2, 3) at line {line}, and take the parts along the second of the three "
        "(checked)",
    ),
    "taken": Mistake(
        weighed, weighed_by_part,
        lambda: (torch.randn(3, 2, requires_grad=True), torch.randn(6, 2, requires_grad=True)),
        {"x": (S0,)}, ((S0,),), "VC104", "return x * whole[first : first + rows]",
        "begin `whole[first : first + rows]` at the rank's own part: at the rank's coordinate on `tp` times its length "
        "(checked)",
    ),
    "written": Mistake(
        torch.tanh, written_by_part, of_size((3, 2)), {"x": (S0,)}, ((R,),), "VC104",
        "whole[first : first + rows] = torch.tanh(x)",
        "write `tanh` in `torch.tanh(x)` from the rank's coordinate on `tp` times its length on (checked)",
    ),
    "coordinate": Mistake(
        by_position, by_position_of_rank, of_size((2, 3)), {"x": (S0, S1)}, ((S0, S1),), "VC105",
        "return x * torch.arange(first, first + x.shape[1])",
        "compute with the rank's coordinate on `cp` in the place of that on `dp` (checked)",
        ((2, 2), ("dp", "cp")),
    ),
    "norms": Mistake(
        clipped, clipped_on_ranks, of_size((4,)), {"gradient": (S0,)}, ((S0,),), "VC114",
        "own = gradient.norm()",
        "all-reduce the square of `own` over `tp` (sum) at line {next}, and take the root of it (checked)",
    ),
    "norm": Mistake(
        clipped, clipped_by_own_norm, of_size((4,)), {"gradient": (S0,)}, ((S0,),), "VC114", "norm = gradient.norm()",
        "all-reduce the square of `norm` over `tp` (sum) after line {line}, and take the root of it (checked)",
    ),
    "divisor": Mistake(
        squashed, squashed_by_width_of_all, lambda: (torch.randn(2, 3, requires_grad=True), torch.randn(4, 3)),
        {"q": (S0,)}, ((S0,),), "VC103", "return lambda q, k: (q @ k.t() / (4 if wrong else 2)).softmax(-1)",
        "divide by 2 at line {line}, not by 4 (checked)",
    ),
    "scattered": Mistake(
        product_of_squares, scattered_product, of_size((4, 6), (6, 3)), {"x": (S1,), "w": (S0,)}, ((S0,),), "VC101",
        'return own[:rows] * 1 if wrong else funcol.reduce_scatter_tensor(own, "sum", 0, mesh)',
        "reduce-scatter `own` over `tp` (sum) at line {line} (checked)",
    ),
    "saturated": Mistake(
        scaled_and_squashed, scaled_on_ranks, of_size((2, 3)), {"x": (S0,)}, ((S0,),), "VC101",
        "largest = x.abs().amax()", "all-reduce `largest` over `tp` (max) after line {line} (checked)",
    ),
    "mirrored": Mistake(
        by_place, by_place_of_rank, of_size((3, 2)), {"x": (S0,)}, ((S0,),), "VC117",
        "return x * (torch.arange(rows) + first)[:, None]",
        "let line {line} take 0, 3 on the ranks: the rank's coordinate on `tp` times 3 (checked)",
    ),
    "logarithms": Mistake(
        shares, shares_of_parts, of_size((3, 4), (2, 4), (2, 3)), {"k": (S0,), "v": (S0,)}, ((R,),), "VC108",
        'total = funcol.all_reduce(own if wrong else own.exp(), "sum", mesh)',
        "all-reduce `exp` of `own` over `tp` (sum) at line {line}, and take the logarithm of it (checked)",
    ),
    "entries": Mistake(
        of_kept, counted_kept, lambda: (torch.randn(4, 3), torch.tensor([0, 1, 2, 0])), {}, ((R,),), "VC113",
        "return each.sum() / (y.numel() if wrong else kept.sum())",
        "divide by the number of entries that `kept` keeps, the sum of it, at line {line} (checked)",
    ),
    "groups": Mistake(
        in_groups, in_groups_of_rank, of_size((2, 4, 3)), {"x": (S1,)}, ((S1,),), "VC114",
        "return lambda x: F.group_norm(x, 4 if wrong else 2)",
        "pass 2, this rank's share of 4, at line {line} (checked)",
    ),
    "documents": Mistake(
        in_documents, in_documents_of_rank, lambda: (torch.randn(3, 2), torch.tensor([0, 0, 1])),
        {"x": (S0,), "document": (S0,)}, ((S0,),), "VC104",
        "others = torch.cat([document, document]) if wrong else funcol.all_gather_tensor(document, 0, mesh)",
        "gather `document` over `tp` along dimension 0 at line {line} (checked)",
    ),
}  # fmt: skip
TWO = Mistake(of_earlier, of_earlier_on_ranks, of_size((3, 2)), {"x": (S0,)}, ((S0,),), "VC117", "", "")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", [*MISTAKES, "two"])
def test_the_mended_program_is_verified(name):
    assert report_of(MISTAKES.get(name, TWO), wrong=False).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_told_at_its_line(name):
    mistake = MISTAKES[name]
    hint, line = told_at_its_line(mistake)
    assert hint == mistake.hint.format(line=line, next=line + 1)


def test_an_offset_that_the_other_positions_have_is_two_mistakes():
    report = report_of(TWO, wrong=True)
    assert report.verdict is Verdict.REFUTED
    first = inspect.getsourcelines(of_earlier_on_ranks)[1]
    together = "(checked, together with the help of the other findings)"
    told = {(f.code, f.impl_location.line - first, f.hint) for f in report.findings if f.impl_location is not None}
    assert told == {
        ("VC117", 6, f"let line {first + 6} take 0 on all ranks {together}"),
        ("VC117", 4, f"add the rank's coordinate on `tp` times 3 to `own` {together}"),
    }


def states(x, decay):
    state, found = torch.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        state = decay[t] * state + x[t]
        found.append(state)
    return torch.stack(found)


def states_that_do_not_decay(mesh, _):
    def program(x, decay):
        own = states(x, decay)
        return own + funcol.all_gather_tensor(own[-1:], 0, mesh)[:1] * mesh.get_local_rank()

    return program


def test_a_cut_of_a_part_is_no_certain_cause():
    """What a rank cuts is its own part as it should, and nothing that is tried lets the state before it decay."""
    inputs, placements = of_size((2, 3), (2, 3)), {"x": (S0,), "decay": (S0,)}
    report = report_of(Mistake(states, states_that_do_not_decay, inputs, placements, ((S0,),), "", "", ""), wrong=True)
    finding = report.findings[0]
    assert (report.verdict, finding.code) == (Verdict.REFUTED, "VC118"), str(report)
    assert CAUSE_UNCERTAIN in finding.notes
