"""Scripts fail on the wrong program and pass on the mended one, on the same inputs, with torch alone."""

from __future__ import annotations

import dataclasses
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

from tests.warm import python
from tests.witness.graphs import mesh, trace
from verifycompile.counterexamples import counterexample_of, with_script
from verifycompile.diagnostics.finding import Counterexample
from verifycompile.program import Program
from verifycompile.reproduction import reproduction_script
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.witness import find_witness

TP = mesh(("tp", 2))
DP_TP = mesh(("dp", 2), ("tp", 4))
R, S0, S1 = Replicate(), Shard(0), Shard(1)
collective = torch.ops._c10d_functional
GROUPS = {"tp": (0,)}
GROUPS_2D = {"dp": (0,), "tp": (1,), "all": (0, 1)}


def reduced(value, op="sum", group="tp"):
    return collective.wait_tensor(collective.all_reduce(value, op, group))


def gathered(value, size=2, group="tp"):
    return collective.wait_tensor(collective.all_gather_into_tensor(value, size, group))


def scattered(value, size=2, group="tp"):
    return collective.wait_tensor(collective.reduce_scatter_tensor(value, "sum", size, group))


def exchanged(value, group="tp"):
    return collective.wait_tensor(collective.all_to_all_single(value, [], [], group))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a script where the package cannot be imported."""
    default = torch.get_default_dtype()
    loaded = [name for name in sys.modules if name.partition(".")[0] == "verifycompile"]

    def execute(script: str, *arguments: str) -> None:
        path = tmp_path / "repro.py"
        path.write_text(script)
        with monkeypatch.context() as without:
            without.setattr(sys, "argv", [str(path), *arguments])
            for name in {*loaded, "verifycompile"}:
                without.setitem(sys.modules, name, None)
            try:
                runpy.run_path(str(path), run_name="__main__")
            finally:
                torch.set_default_dtype(default)

    return execute


def shows(spec: Program, wrong: Program, right: Program, run: Callable[..., None]) -> Counterexample:
    """The counterexample of ``wrong``, whose script was run; the same script of ``right`` passes."""
    witness = find_witness(spec, wrong)
    assert witness is not None
    assert witness.shown is not None
    found = with_script(counterexample_of(witness, wrong), witness, spec, wrong)
    with pytest.raises(AssertionError, match="in the spec"):
        run(found.script)
    assert find_witness(spec, right) is None
    with real_tensors():
        script = reproduction_script(spec, wrong, witness.shown, mended=right)
    with pytest.raises(AssertionError, match="in the spec"):
        run(script)
    run(script, "mended")
    return found


def mlp(x, w1, w2):
    return F.relu(x @ w1) @ w2


MLP = trace(mlp, {"x": torch.randn(4, 8), "w1": torch.randn(8, 16), "w2": torch.randn(16, 8)})
LOCAL = {"x": torch.randn(4, 8), "w1": torch.randn(8, 8), "w2": torch.randn(8, 8)}


@pytest.mark.parametrize(
    ("wrong", "layout"),
    [
        (mlp, [R]),
        (lambda *a: reduced(mlp(*a), "avg"), [R]),
        (lambda *a: reduced(mlp(*a), "max"), [R]),
        (lambda *a: gathered(scattered(mlp(*a))).flip(0), [R]),
        (lambda *a: exchanged(scattered(mlp(*a)).repeat(2, 1))[:2], [S0]),
    ],
)
def test_collectives(wrong, layout, run):
    def on_ranks(function):
        layouts = {"x": [R], "w1": [S1], "w2": [S0], "output.0": layout}
        return trace(function, LOCAL, on=TP, layouts=layouts, groups=GROUPS)

    right = on_ranks(lambda *a: reduced(mlp(*a)) if layout == [R] else scattered(mlp(*a)))
    found = shows(MLP, on_ranks(wrong), right, run)
    assert found.spec_value == round(found.spec_value)


def test_two_mesh_axes_strided_shards_and_partial_inputs(run):
    spec = trace(lambda x, y: x.sum(0) + y, {"x": torch.zeros(16, 2), "y": torch.zeros(2)})
    inputs = {"x": torch.zeros(2, 2), "y": torch.zeros(2)}
    layouts = {"x": [_StridedShard(0, split_factor=4), S0], "y": [Partial(), Partial("avg")], "output.0": [R, R]}

    def right(x, y):
        return reduced(x.sum(0), group="all") + reduced(reduced(y, group="dp"), "avg", "tp")

    def wrong(x, y):
        return reduced(x.sum(0), group="all") + reduced(y, group="dp")

    def on_ranks(function):
        return trace(function, inputs, on=DP_TP, layouts=layouts, groups=GROUPS_2D)

    shows(spec, on_ranks(wrong), on_ranks(right), run)


def test_gradients_and_their_cotangents(run):
    def whole(x, w, tangent):
        return {"output.0": x @ w, "grad.w": x.t() @ tangent}

    def summed(x, w, tangent):
        return {"output.0": x @ w, "grad.w": reduced(x.t() @ tangent)}

    spec = trace(whole, {"x": torch.zeros(4, 8), "w": torch.zeros(8, 6), "tangent.output.0": torch.zeros(4, 6)})
    local = {"x": torch.zeros(2, 8), "w": torch.zeros(8, 6), "tangent.output.0": torch.zeros(2, 6)}

    def on_ranks(function):
        return trace(function, local, on=TP, layouts={"x": [S0], "w": [R], "grad.w": [R]}, groups=GROUPS)

    found = shows(spec, on_ranks(whole), on_ranks(summed), run)
    assert found.output == "grad.w"
    assert "def implementation(me, x, cotangent_of_output_0):" in found.script


def test_a_gradient_that_is_not_there(run):
    def both(x, w):
        return {"output.0": x @ w, "grad.w": x.sum(0), "grad.x": w.sum(1)}

    inputs = {"x": torch.zeros(4, 8), "w": torch.zeros(8, 8)}
    spec = trace(both, inputs)

    def on_ranks(function):
        return trace(function, inputs, on=TP, layouts={name: [R] for name in both(torch.ones(1, 1), torch.ones(1, 1))})

    def without(x, w):
        return {name: value for name, value in both(x, w).items() if name != "grad.w"}

    found = shows(spec, on_ranks(without), on_ranks(both), run)
    assert "# it computes no such gradient" in found.script


def test_any_clean_relation_will_do(run):
    spec = trace(lambda x: x * 2, {"x": torch.zeros(4, 2)})

    def on_ranks(function):
        return trace(function, {"x": torch.zeros(2, 2)}, on=TP, layouts={"x": [S0]}, groups=GROUPS)

    shows(spec, on_ranks(lambda x: x * 3), on_ranks(lambda x: x * 2), run)


def test_attention_and_constants(run):
    def attention(q, k, v):
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask.double().log())[0]
        return out + torch.tensor([1.0, 2.0])

    def unmasked(q, k, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0] + torch.tensor([1.0, 2.0])

    inputs = {name: torch.zeros(1, 2, 4, 2) for name in "qkv"}
    local = {name: torch.zeros(1, 1, 4, 2) for name in "qkv"}
    layouts = {name: [S1] for name in ("q", "k", "v", "output.0")}
    right, wrong = (trace(f, local, on=TP, layouts=layouts) for f in (attention, unmasked))
    shows(trace(attention, inputs), wrong, right, run)


def test_views_of_memory(run):
    """``as_strided`` needs the memory layout that an input was traced with."""
    spec = trace(lambda x: x.as_strided((2, 3), (1, 2)) * 2, {"x": torch.zeros(3, 2).t()})
    wrong, right = (
        trace(f, {"x": torch.zeros(3, 2).t()}, on=TP, layouts={"output.0": [R]})
        for f in (lambda x: x.as_strided((2, 3), (1, 2)) * 3, lambda x: x + x)
    )
    found = shows(spec, wrong, right, run)
    assert "x = with_strides(x, (1, 2))" in found.script


def test_the_script_needs_torch_alone(tmp_path):
    """In another process, by the command that its text names; its exit code is that of a failed assertion."""
    spec = trace(lambda x: x.sum(), {"x": torch.zeros(4)})
    wrong = trace(lambda x: x.sum(), {"x": torch.zeros(2)}, on=TP, layouts={"x": [S0], "output.0": [R]})
    witness = find_witness(spec, wrong)
    assert witness is not None
    found = with_script(counterexample_of(witness, wrong), witness, spec, wrong)
    found.save(tmp_path / "repro.py")
    blocked = "import sys, runpy; sys.modules['verifycompile'] = None; runpy.run_path('repro.py', run_name='__main__')"
    done = subprocess.run(
        [python(), "-c", blocked],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},  # torch loads the installed package otherwise
    )
    assert done.returncode == 1
    assert done.stderr.endswith("AssertionError: output.0 at [] is 1 in the spec, 0 in the implementation\n")
    assert "    x[0] = 1\n" in found.script


def test_the_first_lines_say_what_differs(tmp_path):
    found = dataclasses.replace(Counterexample({}, 1.0, 2.0, 0, "output.0", (3,)), script="pass\n", premise="a premise")
    found.save(tmp_path / "repro.py")
    text = '"""`output.0` at [3] is 1 in the spec, 2 on rank 0\na premise"""\n\npass\n'
    assert (tmp_path / "repro.py").read_text() == text


def test_ranks_that_would_wait_for_ever(run):
    """As where somebody mends the script and lets one rank alone communicate."""
    spec = trace(lambda x: x.sum(), {"x": torch.zeros(4)})
    wrong = trace(lambda x: x.sum(), {"x": torch.zeros(2)}, on=TP, layouts={"x": [S0], "output.0": [R]}, groups=GROUPS)
    witness = find_witness(spec, wrong)
    assert witness is not None
    found = with_script(counterexample_of(witness, wrong), witness, spec, wrong)
    summed = 'me.all_reduce(sum_1, "sum", "tp")'
    mended = found.script.replace("    return sum_1\n\n\nOUTPUT", f"    return {summed}\n\n\nOUTPUT")
    run(mended)
    alone = mended.replace(summed, f'{summed} if me.coordinate("tp") else sum_1')
    with pytest.raises(RuntimeError, match="ranks wait for others that do not call the same collective"):
        run(alone.replace("SECONDS_TO_WAIT = 30", "SECONDS_TO_WAIT = 1"))


def test_a_program_of_another_library_has_no_script():
    found = dataclasses.replace(
        Counterexample({}, 1.0, 2.0, 0, "output.0"), no_script="the operator `a.b` is not torch's"
    )
    with pytest.raises(ValueError, match=r"no script shows this counterexample: the operator `a.b` is not torch's\."):
        found.save("repro.py")
