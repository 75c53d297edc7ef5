"""Tensors that a comparison keeps in a file."""

from __future__ import annotations

import os

import pytest
import torch

from verifycompile.comparison.store import Store

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5), (40, 300)], ids=str)
def test_what_is_kept_is_what_is_taken(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    store, value = Store(), (torch.randn(shape) * 3).to(dtype)
    store.keep("x", value)
    taken = store["x"]
    assert (taken.dtype, taken.shape) == (value.dtype, value.shape)
    assert torch.equal(taken.flatten().view(torch.uint8), value.contiguous().flatten().view(torch.uint8))


def test_a_view_is_kept_by_its_elements() -> None:
    store, value = Store(), torch.arange(20_000.0).view(100, 200).t()[::2]
    store.keep("x", value)
    store.keep("y", value.conj().to(torch.complex64).conj())
    assert torch.equal(store["x"], value)
    assert torch.equal(store["y"].real, value)


def test_what_is_taken_is_a_copy_and_so_is_what_is_kept() -> None:
    store, large, small = Store(), torch.zeros(10_000), torch.zeros(3)
    store.keep("large", large)
    store.keep("small", small)
    for name, value in (("large", large), ("small", small)):
        value.fill_(1)
        store[name].fill_(2)
        assert not store[name].any()


def test_a_later_tensor_takes_the_place_of_an_earlier_one_of_its_name() -> None:
    store = Store()
    store.keep("x", torch.zeros(5_000))
    store.keep("x", torch.ones(6_000))
    assert (list(store), store["x"].shape, "y" in store) == (["x"], (6_000,), False)
    store.clear()
    assert len(store) == 0
    store.keep("y", torch.ones(5_000))
    assert bool(store["y"].all())


def test_a_file_that_was_cut_short_is_told() -> None:
    store = Store()
    store.keep("x", torch.zeros(5_000))
    os.ftruncate(store._file.fileno(), 100)
    with pytest.raises(OSError, match=r"^the file with the tensors of a comparison was cut short$"):
        store["x"]
