"""Pairs of functions as graphs: what the verifier says of them, and what numbers say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from verifycompile import Report

Function = Callable[..., Any]


def report_on(spec: Function, implementation: Function, inputs: Sequence[torch.Tensor], **options: Any) -> Report:
    """The report on one graph that both of two ranks run, where nothing is sharded unless ``options`` say so."""
    graphs = (make_fx(function)(*inputs) for function in (spec, implementation))
    return verifycompile.verify_graphs(*graphs, **{"mesh": (2,), **options})


def differ(spec: Function, implementation: Function, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the two functions have different results, bit by bit."""
    left, right = spec(*inputs), implementation(*inputs)
    pairs = zip(left, right, strict=True) if isinstance(left, tuple) else [(left, right)]
    return any(not torch.equal(one, other) for one, other in pairs)
