"""Pieces in an order of their own, and positions up to a bound: verified, and refuted with another piece or bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

import verifycompile
from tests.programs.forms import comm
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

Model = Callable[..., Any]


def squares(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x @ w) - y).pow(2).sum()


def zigzag(mesh: DeviceMesh, last: int) -> Model:
    """Each rank takes a piece from the front and one from the back; ``last``: which one, counted from the end."""

    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rank, ranks = mesh.get_local_rank(), mesh.size()

        def own(value: torch.Tensor, back: int) -> torch.Tensor:
            pieces = value.chunk(2 * ranks)
            return torch.cat([pieces[rank], pieces[2 * ranks - back - rank]])

        return funcol.all_reduce((torch.tanh(own(x, 1) @ w) - own(y, last)).pow(2).sum(), "sum", mesh)

    return program


def _report(program: Callable[[DeviceMesh], Model], spec: Model, shapes: list[list[int]], **options: Any) -> Report:
    with fake_mesh_world((2,), ("cp",)) as mesh:
        inputs = tuple(torch.randn(shape) for shape in shapes)
        whole = {"output.0": (Replicate(),)}
        return verifycompile.verify(program(mesh), inputs, spec=spec, mesh=mesh, out_placements=whole, **options)


@pytest.mark.parametrize(("last", "verdict"), [(1, Verdict.VERIFIED), (2, Verdict.REFUTED)])
def test_pieces_from_both_ends(last: int, verdict: Verdict) -> None:
    report = _report(lambda mesh: zigzag(mesh, last), squares, [[8, 4], [8, 3], [4, 3]])
    assert report.verdict is verdict, str(report)


def by_positions(mesh: DeviceMesh, read: str, last: int) -> Model:
    """The same by the numbers of the rows, counted out by each rank."""

    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rank, rows = mesh.get_local_rank(), torch.arange(2)
        back = 2 * mesh.size() - last - rank
        places = torch.cat([rows + 2 * rank, rows + 2 * back])

        def own(value: torch.Tensor) -> torch.Tensor:
            if read == "pieces":  # numbers that each rank writes down, as in Megatron-LM
                pieces = value.view(2 * mesh.size(), 2, *value.shape[1:])
                return pieces.index_select(0, torch.tensor([rank, back])).flatten(0, 1)
            return value[places] if read == "index" else value.index_select(0, places)

        return funcol.all_reduce((torch.tanh(own(x) @ w) - own(y)).pow(2).sum(), "sum", mesh)

    return program


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("read", "last", "verdict"),
    [
        ("index", 1, Verdict.VERIFIED),
        ("index_select", 1, Verdict.VERIFIED),
        ("pieces", 1, Verdict.VERIFIED),
        ("index", 2, Verdict.REFUTED),
        ("pieces", 2, Verdict.REFUTED),
    ],
)
def test_pieces_by_the_positions_of_their_rows(read: str, last: int, verdict: Verdict) -> None:
    report = _report(lambda mesh: by_positions(mesh, read, last), squares, [[8, 4], [8, 3], [4, 3]])
    assert report.verdict is verdict, str(report)


def permuted(mesh: DeviceMesh, both: bool) -> Model:
    """The loader permutes the whole sequence before it is cut; ``both``: the labels too."""

    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rank, ranks = mesh.get_local_rank(), mesh.size()
        order = [piece for first in range(ranks) for piece in (first, 2 * ranks - 1 - first)]

        def loaded(value: torch.Tensor, moved: bool) -> torch.Tensor:
            pieces = value.chunk(2 * ranks)
            whole = torch.cat([pieces[piece] for piece in order]) if moved else value
            return whole.chunk(ranks)[rank]

        return funcol.all_reduce((torch.tanh(loaded(x, True) @ w) - loaded(y, both)).pow(2).sum(), "sum", mesh)

    return program


@pytest.mark.parametrize(("both", "verdict"), [(True, Verdict.VERIFIED), (False, Verdict.REFUTED)])
def test_a_sequence_permuted_by_the_loader(both: bool, verdict: Verdict) -> None:
    report = _report(lambda mesh: permuted(mesh, both), squares, [[8, 4], [8, 3], [4, 3]])
    assert report.verdict is verdict, str(report)


def attention(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ k


def causal(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return attention(q, k, torch.ones(len(q), len(k)).tril().bool())


def zigzag_attention(mesh: DeviceMesh, beyond: int) -> Model:
    """Queries of a piece from each end see the keys up to their own place; ``beyond``: and so many more."""

    def program(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        pieces = mesh.get_local_rank(), 2 * mesh.size() - 1 - mesh.get_local_rank()
        places = torch.cat([torch.arange(2) + 2 * piece for piece in pieces])
        own = torch.cat([q[2 * piece : 2 * piece + 2] for piece in pieces])
        found = attention(own, k, torch.arange(len(k)) <= places[:, None] + beyond)
        whole = torch.zeros_like(q)
        for number, piece in enumerate(pieces):
            whole[2 * piece : 2 * piece + 2] = found[2 * number : 2 * number + 2]
        return funcol.all_reduce(whole, "sum", mesh)

    return program


@pytest.mark.parametrize(("beyond", "verdict"), [(0, Verdict.VERIFIED), (1, Verdict.REFUTED)])
def test_attention_of_pieces_from_both_ends(beyond: int, verdict: Verdict) -> None:
    report = _report(lambda mesh: zigzag_attention(mesh, beyond), causal, [[8, 4], [8, 4]])
    assert report.verdict is verdict, str(report)


def fused(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, k, is_causal=True)


def zigzag_fused(mesh: DeviceMesh, mistake: str) -> Model:
    """The same by the fused operator, whose rows are zero where they see no key: each of these sees some."""

    def program(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        rank, last = mesh.get_local_rank(), 2 * mesh.size() - 1 - mesh.get_local_rank()
        places = torch.cat([torch.arange(2) + 2 * piece for piece in (rank, last)])
        seen = torch.arange(k.shape[2]) <= (places.flip(0) if mistake == "mask" else places)[:, None]
        whole = torch.zeros_like(q)
        own = F.scaled_dot_product_attention(q[:, :, places], k, k, attn_mask=seen)
        whole[:, :, places.flip(0) if mistake == "places" else places] = own
        return funcol.all_reduce(whole, "sum", mesh)

    return program


@pytest.mark.parametrize("mistake", ["", "mask", "places"])
def test_fused_attention_of_pieces_from_both_ends(mistake: str) -> None:
    report = _report(lambda mesh: zigzag_fused(mesh, mistake), fused, [[1, 2, 8, 4], [1, 2, 8, 4]])
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)


def next_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:-1] - y[1:]).pow(2).sum()


def shifted(mesh: DeviceMesh, left_out: int) -> Model:
    """The rows behind the shard's are gathered; those past the ``left_out`` last ones have no target."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rank, rows = mesh.get_local_rank(), x.shape[0]
        whole = funcol.all_gather_tensor(y, 0, mesh)
        behind = torch.cat([whole[1:], torch.zeros_like(whole[:1])])[rank * rows : (rank + 1) * rows]
        valid = torch.arange(rows) + rank * rows < mesh.size() * rows - left_out
        return funcol.all_reduce(((x - behind).pow(2) * valid[:, None]).sum(), "sum", mesh)

    return program


@pytest.mark.parametrize(("left_out", "verdict"), [(1, Verdict.VERIFIED), (0, Verdict.REFUTED), (2, Verdict.REFUTED)])
def test_the_last_row_has_no_target(left_out: int, verdict: Verdict) -> None:
    rows = {"x": (Shard(0),), "y": (Shard(0),)}
    report = _report(lambda mesh: shifted(mesh, left_out), next_rows, [[4, 4], [4, 4]], in_placements=rows)
    assert report.verdict is verdict, str(report)


def _from_both_ends(value: torch.Tensor) -> torch.Tensor:
    """A sequence in order, as its pieces lie on the ranks one after another."""
    first, second, third, fourth = value.chunk(4, 2)
    return torch.cat([first, fourth, second, third], 2)


def _in_order(value: torch.Tensor) -> torch.Tensor:
    first, fourth, second, third = value.chunk(4, 2)
    return torch.cat([first, second, third, fourth], 2)


def _causal_of_pieces(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _from_both_ends(F.scaled_dot_product_attention(*map(_in_order, (q, k, v)), is_causal=True))


def _keys_in_order(mesh: DeviceMesh, mistake: str) -> Model:
    """Keys and values are gathered and put in order; the queries' positions are those of a rank's two pieces."""

    def in_order(value: torch.Tensor) -> torch.Tensor:
        pieces = comm.gather(value, 2, mesh.get_group()).chunk(2 * mesh.size(), 2)
        back = pieces[1::2] if mistake == "not turned round" else tuple(reversed(pieces[1::2]))
        return torch.cat([*pieces[0::2], *back], 2)

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rank, length = mesh.get_local_rank(), q.size(2) // 2
        last = 2 * mesh.size() - (2 if mistake == "another piece" else 1) - rank
        own = torch.cat([torch.arange(length) + rank * length, torch.arange(length) + last * length])
        seen = torch.where(own[:, None] >= torch.arange(2 * mesh.size() * length), 0.0, -torch.inf)
        return F.scaled_dot_product_attention(q, in_order(k), in_order(v), attn_mask=seen)

    return program


@pytest.mark.parametrize("mistake", ["", "not turned round", "another piece"])
def test_keys_that_are_gathered_and_put_in_order(mistake: str) -> None:
    sequence = (Shard(2),)
    with fake_mesh_world((2,), ("cp",), rank=1) as mesh:
        report = verifycompile.verify(
            None,
            tuple(torch.randn(1, 2, 4, 2, requires_grad=True) for _ in range(3)),
            build=lambda: _keys_in_order(mesh, mistake),
            spec=_causal_of_pieces,
            mesh=mesh,
            in_placements=dict.fromkeys("qkv", sequence),
            out_placements={"output.0": sequence},
        )
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
    assert mistake or set(report.relations) == {"output.0", "grad.q", "grad.k", "grad.v"}
