"""After Ctrl-C in a trace operators are dispatched as before, also while the exception is looked at."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from verifycompile.torch_interface.rank_threads.dispatch_state import dispatch_as_before


def half_done() -> None:
    """What is left where Ctrl-C comes while torch takes back what it set."""
    outer, inner = torch._C._EnablePythonDispatcher(), torch._C._EnablePythonDispatcher()
    FakeTensorMode().__enter__()
    raise KeyboardInterrupt(outer is inner)


def test_what_is_left_half_done_is_put_back() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, dispatch_as_before():
        half_done()
    assert not torch._C._dispatch_tls_is_dispatch_key_included("PythonDispatcher")
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.ones(2).sum().item() == 2
    del caught
    assert not torch._C._dispatch_tls_is_dispatch_key_included("PythonDispatcher")
