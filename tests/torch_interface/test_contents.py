"""What is compared of a tensor's elements."""

import pytest
import torch

from verifycompile.torch_interface.operators.contents import content_of

MOST = 64
LONG = torch.randn(2**15 + 5, generator=torch.Generator().manual_seed(0))


def changed(tensor: torch.Tensor, place: int) -> torch.Tensor:
    other = tensor.clone().reshape(-1)
    other[place] = ~other[place] if other.dtype is torch.bool else other[place] + 1
    return other.view(tensor.shape)


def changed_to(tensor: torch.Tensor, place: int, value: float) -> torch.Tensor:
    other = tensor.clone()
    other[place] = value
    return other


@pytest.mark.parametrize(
    "tensor",
    [
        LONG, LONG[1:], LONG[::2], LONG.double(), LONG.bfloat16(), LONG.bfloat16()[3:], LONG.to(torch.complex64), LONG > 0,
        LONG[:-5].view(64, -1).t(), LONG[:1].expand(999), (LONG * 9).to(torch.uint8), LONG[:MOST],
    ],
)  # fmt: skip
def test_every_element_counts(tensor: torch.Tensor) -> None:
    content = content_of(tensor, MOST)
    assert content is not None
    assert content_of(tensor.clone(), MOST) == content
    for place in (0, 1, 7, 63, tensor.numel() // 2 + 1, tensor.numel() - 1):
        assert content_of(changed(tensor, place % tensor.numel()), MOST) != content


def test_rows_that_are_exchanged_are_noticed() -> None:
    rows = LONG[: 2**15].view(16, -1).clone()
    rows[:, :: 2**15 // MOST] = 0.0  # what the sample holds is alike
    assert content_of(rows, MOST) != content_of(rows.roll(1, 0), MOST)


@pytest.mark.parametrize("values", [(3, 8), (0, -(2**63)), (1.0, -1.0), (1.0, 2.0), (True, False)])
@pytest.mark.parametrize("places", [(1, 2), (5, 1021), (7, 7 + 512)])
def test_elements_that_are_exchanged_within_a_row_are_noticed(
    values: tuple[float, float], places: tuple[int, int]
) -> None:
    held = torch.full((2**16,), values[0])
    one, other = (changed_to(held, place, values[1]) for place in places)
    assert content_of(one, MOST) != content_of(other, MOST)


@pytest.mark.parametrize("values", [(0.0, 1.0), (-1.0, 1.0)])
def test_a_permutation_of_another_order_is_noticed(values: tuple[float, float]) -> None:
    held = torch.full((512, 512), values[0])
    places = torch.arange(512)
    others = places.clone()
    others[[1, 2]] = places[[2, 1]]
    one, other = held.clone(), held.clone()
    one[places, places], other[places, others] = values[1], values[1]
    assert content_of(one, MOST) != content_of(other, MOST)


def test_elements_that_cannot_be_read() -> None:
    assert content_of(torch.empty(4, device="meta"), MOST) is None
