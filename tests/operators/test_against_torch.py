"""Every declaration means what torch computes: values, attributes, dtypes, and operands stacked over a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.ir.evaluate import Evaluator
from tests.operators.call import Refused, Sample, assert_same, evaluate_call, flat_results, lower_call, sharded
from tests.operators.samples import SAMPLES

from verifycompile.ir.term import TermPool
from verifycompile.refinement.placement import same_value

IDS = [str(s) for s in SAMPLES]


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_value(sample: Sample) -> None:
    expected = sample.run()
    _, actual = evaluate_call(sample)
    for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_same(a, e, f"output {k}")
