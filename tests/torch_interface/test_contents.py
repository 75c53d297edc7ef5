"""What is compared of a tensor's elements."""

import pytest
import torch

from verifycompile.torch_interface.contents import content_of

MOST = 64
LONG = torch.randn(2**15 + 5, generator=torch.Generator().manual_seed(0))


def changed(tensor: torch.Tensor, place: int) -> torch.Tensor:
    other = tensor.clone().reshape(-1)
    other[place] = ~other[place] if other.dtype is torch.bool else other[place] + 1
    return other.view(tensor.shape)


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


def test_elements_that_cannot_be_read() -> None:
    assert content_of(torch.empty(4, device="meta"), MOST) is None
