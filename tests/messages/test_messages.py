"""Ten messages, word by word: each names the line of the model, the cause and what to do.

Chosen are the kinds of mistakes whose messages once named a line inside a helper, or the last line with no cause. The
numbers of the counterexamples are tested with the witnesses.
"""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.messages.cases import CASES, report
from verifycompile import Verdict
from verifycompile.diagnostics.render_text import render_finding

MESSAGES = {
    "bias": """\
error[VC116]: summand added on every rank before a reduction
  --> tests/messages/programs.py:27:28
   |
27 |         return reduce_from(F.linear(x, self.weight, self.bias), self.group)
   |                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ every rank adds `bias` before the sum over `tp`, which then has it 2 times
   = note: output `output.0`
   = help: add `bias` after the sum over `tp` (checked)
   = see: verifycompile explain VC116
""",
    "mask": """\
error[VC117]: index, mask or offset of another rank's part
  --> tests/messages/programs.py:36:16
   |
36 |     position = torch.arange(q.shape[0])
   |                ^^^^^^^^^^^^^^^^^^^^^^^^ `position` holds positions within a rank's part, the same on every rank of `tp`
   = note: output `output.0`
   = help: add the rank's coordinate on `tp` times 2 to `position` (checked)
   = see: verifycompile explain VC117
""",
    "vocabulary": """\
error[VC117]: index, mask or offset of another rank's part
  --> tests/messages/programs.py:51:27
   |
51 |         own = F.embedding(tokens.clamp(0, rows - 1), table) * mine[:, None]
   |                           ^^^^^^^^^^^^^^^^^^^^^^^^^ `tokens` counts from the beginning of the whole, where each rank of `tp` holds 2 entries
   = note: output `output.0`
   = help: subtract the rank's coordinate on `tp` times 2 from `tokens` (checked)
   = see: verifycompile explain VC117
""",
    "fused": """\
error[VC118]: fused parameter cut across its parts
  --> tests/messages/programs.py:63:20
   |
63 |         gate, up = (x @ self.gate_up).chunk(2, -1)
   |                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ `(x @ self.gate_up).chunk(2, -1)` cuts dimension 1 of `x @ self.gate_up`, of which each rank of `tp` holds a part: the rank's pieces are not parts of the whole's pieces
   = note: output `output.0`
   = help: cut each of the 2 components of `gate_up` over `tp` by itself, and join the rank's parts: `torch.cat([part.chunk(2, dim)[rank] for part in weight.chunk(2, dim)], dim)` (checked)
   = see: verifycompile explain VC118
""",
    "labels": """\
error[VC113]: mean over a rank's own items
  --> tests/messages/programs.py:75:15
   |
75 |         own = F.cross_entropy(logits, labels)
   |               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ `F.cross_entropy(logits, labels)` is the mean over a rank's own targets other than -100; ranks may have different numbers of them. Divide the sum by the number on all ranks
68 |     return F.cross_entropy(logits, labels)
   |            ------------------------------- the spec computes it here
   = note: output `output.0`
   = help: take the sum (`reduction="sum"`) at line 75, and divide it by the number of targets that count, all-reduced over `tp` (avg) (checked)
   = see: verifycompile explain VC113
""",
    "tokens": """\
error[VC113]: mean over a rank's own items
  --> tests/messages/programs.py:90:27
   |
90 |         return all_reduce(total / count, group) / mesh.size()
   |                           ^^^^^^^^^^^^^ `(losses * mask).sum()` and `mask.sum()` are a rank's own sums over tp: their quotient is no mean of the whole
82 |     return (losses * mask).sum() / mask.sum()
   |            ---------------------------------- the spec computes it here
   = note: output `output.0`
   = help: all-reduce `count` over `tp` (avg) after line 89 (checked)
   = see: verifycompile explain VC113
""",
    "norm": """\
error[VC114]: statistics of a rank's own part
   --> tests/messages/programs.py:100:12
    |
100 |     mean = x.pow(2).mean(-1, keepdim=True)
    |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ `x.pow(2).mean(-1, keepdim=True)` runs over dimension 1 of `x.pow(2)`, of which each rank of `tp` holds a part: each rank has the result of its own part
 96 |     return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * gain
    |                 ------------------------------- the spec computes it here
    = note: relation expected: x.pow(2).mean(-1, keepdim=True), whole or sharded
    = note: relation found: the sum of the implementation's value over tp is 2 * x.pow(2).mean(-1, keepdim=True)
    = note: output `output.0`
    = help: all-reduce `mean` over `tp` (avg) after line 100 (checked)
    = see: verifycompile explain VC114
""",
    "gain": """\
error[VC101]: partial sum used where the full value is needed
   --> tests/messages/programs.py:111:16
    |
111 |         return F.rms_norm(torch.einsum("ti,ihd->thd", x, self.wq), (3,), self.gain, 1e-6)
    |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ `grad.gain` is returned as a partial sum over tp; it must be the full value
    |                -------------------------------------------------------------------------- the value became partial over tp here
    = note: relation expected: grad.gain
    = note: relation found: the sum of the implementation's value over tp is grad.gain
    = note: output `grad.gain`
    = help: sum the gradient of `gain` over `tp`: use `gain` through a function that returns it and all-reduces its gradient (sum) over `tp`; or all-reduce it in a hook of the parameter (`register_hook`). If an optimizer or a wrapper does so after the backward pass, say so: `grad_placements={"gain": (Partial("sum"),)}` (checked)
    = see: verifycompile explain VC101
""",
    "scale": """\
error[VC103]: wrong scale
   --> tests/messages/programs.py:123:16
    |
123 |         return all_reduce(own / mesh.size(), group, "avg")
    |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ `all_reduce` takes the mean over tp of a value that is a partial sum over tp
122 |         own = (x @ copy_to(w, group)).square().mean()
    |               --------------------------------------- the value became partial over tp here
   ::: tests/messages/communication.py:10:31
    |
 10 |     return funcol.wait_tensor(funcol.all_reduce(x.contiguous(), operation, group))
    |                               --------------------------------------------------- the helper `all_reduce` calls `all_reduce` here
   ::: tests/messages/programs.py:115:12
    |
115 |     return (x @ w).square().mean()
    |            ----------------------- the spec computes it here
    = note: relation expected: (x @ w).square().mean() on every rank of tp
    = note: relation found: the sum of the implementation's value over tp is (x @ w).square().mean()
    = note: output `output.0`
    = help: leave out the division by 2 at line 123 (checked)
    = see: verifycompile explain VC103
""",
    "group": """\
error[VC105]: wrong mesh axis
   --> tests/messages/programs.py:136:27
    |
136 |         return torch.tanh(all_reduce(x @ w, group))
    |                           ^^^^^^^^^^^^^^^^^^^^^^^^ `all_reduce` over dp of a value that is a partial sum over tp
    |                                      ----- the value became partial over tp here
   ::: tests/messages/communication.py:10:31
    |
 10 |     return funcol.wait_tensor(funcol.all_reduce(x.contiguous(), operation, group))
    |                               --------------------------------------------------- the helper `all_reduce` calls `all_reduce` here
   ::: tests/messages/programs.py:129:23
    |
129 |     return torch.tanh(x @ w)
    |                       ----- the spec computes it here
    = note: relation expected: x @ w on every rank of dp
    = note: relation found: the sum of the implementation's value over tp is x @ w
    = note: output `output.0`
    = help: pass the group of `tp` to the all-reduce at line 136 (checked)
    = see: verifycompile explain VC105
""",
}

GRAPH_NAMES = re.compile(r"\b(primals|tangents|view|squeeze|unsqueeze|getitem|mm|addmm|add|mul|div|sum|mean)_\d+\b|\barg\d")
"""Names that torch gives to nodes of a graph."""


@pytest.mark.parametrize("name", CASES)
def test_message(name: str) -> None:
    found = report(name)
    assert found.verdict is Verdict.REFUTED
    (finding,) = found.findings
    assert finding.counterexample is not None
    assert render_finding(dataclasses.replace(finding, counterexample=None)) + "\n" == MESSAGES[name]
    assert GRAPH_NAMES.search(str(found)) is None
