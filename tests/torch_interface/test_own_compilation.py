"""What Dynamo compiles for one rank is taken for no other one, and nothing of it stays with the program's own code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.eval_frame import _get_cache_entries_for_region

from verifycompile.torch_interface.dynamo.eager_frames import uncompiled
from verifycompile.torch_interface.dynamo.own_compilation import OwnCompilation


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_each_rank_has_what_was_compiled_for_it() -> None:
    torch._dynamo.reset()
    called: list[int] = []
    rank = 0

    def compiler(graph: Any, inputs: Any) -> Any:
        for_rank = rank
        return lambda *args: called.append(for_rank) or graph(*args)

    with uncompiled():  # what watches compiled programs is installed
        pass
    compiled, x = torch.compile(double, backend=compiler), torch.ones(3)
    compiled(x)
    own = {1: OwnCompilation(), 2: OwnCompilation()}
    for rank in (1, 2, 1, 2):
        with own[rank].entered():
            assert compiled(x).equal(2 * x)
    compiled(x)
    assert called == [0, 1, 2, 1, 2, 0]
    assert len(_get_cache_entries_for_region(double, -1)) == 1


def test_what_is_compiled_already_is_not_taken() -> None:
    with uncompiled():
        pass
    compiled = torch.compile(double, backend="eager")
    refused = pytest.raises(NotImplementedError, match="another stance")
    with OwnCompilation().entered(), torch.compiler.set_stance("eager_on_recompile"), refused:
        compiled(torch.ones(3))
