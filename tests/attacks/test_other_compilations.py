"""What other compilations of a process made of a program's code lets nothing of the program run unverified."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.test_leaving_the_gate import outcomes

# Another compilation has told Dynamo to leave the code of this program alone, whoever runs it.
MARKED = {
    "the recompile limit of another compilation": """
with torch._dynamo.config.patch(recompile_limit=1, automatic_dynamic_shapes=False):
    other = torch.compile(Model(), backend="eager")
    for columns in (2, 3, 4): other(torch.randn(2, columns))
""",
    "the recompile limit of another compilation below this one": """
other = torch.compile(Model(), backend="eager")
def both(x):
    torch._dynamo.graph_break()
    with torch._dynamo.config.patch(recompile_limit=1, automatic_dynamic_shapes=False):
        for columns in (2, 3, 4): other(torch.randn(2, columns))
    return None
torch.compile(both, backend="verify")(torch.randn(2, 3))
""",
    "a mode around another compilation": """
from torch.utils.flop_counter import FlopCounterMode
other = torch.compile(Model(), backend="eager")
with FlopCounterMode(display=False): other(torch.randn(2, 3))
""",
    "another compilation that is switched off": """
other = torch.compile(Model(), backend="eager")
with torch._dynamo.config.patch(disable=True): other(torch.randn(2, 3))
""",
    "an error that is suppressed in another compilation": """
def failing(graph, inputs): raise RuntimeError
other = torch.compile(Model(), backend=failing)
with torch._dynamo.config.patch(suppress_errors=True): other(torch.randn(2, 3))
""",
    "no tensors in another compilation": """
torch.compile(Model(), backend="eager")(2)
""",
}
_MODEL = """
class Model(torch.nn.Module):
    scale = 1
    def forward(self, x): return torch.tanh(x) * self.scale if isinstance(x, torch.Tensor) else x
"""
_AFTER = """
module = Model()
module.scale = {}
call(compiled(module, Model()), torch.randn(2, 3))
"""
LAST_RAISES = {
    **{name: _MODEL + program + _AFTER.format(2) for name, program in MARKED.items()},
    "the recompile limit of all modules of torch's own": """
def given(count): return torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(count)))
for count in range(3, 15): torch.compile(given(count), backend="eager")(torch.randn(2, 3))
call(compiled(given(2), given(1), in_placements={"input": ROWS}), torch.randn(2, 3))
""",
    "what a function calls that is past the recompile limit": """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
class Model(torch.nn.Module):
    scale = 1
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(4, 3, bias=False)
    def forward(self, x):
        y = self.up(x)
        return self.down(y) if self.scale == 1 else torch.tanh(y @ self.down.weight.to_local().t())
module = parallelize_module(Model(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
def step(x, number):
    moved = x + number
    print(end="")
    return module(moved)
torch._dynamo.config.recompile_limit = 2
torch._dynamo.config.automatic_dynamic_shapes = False
model = torch.compile(step, backend="verify", options={"inner": "eager"})
for number in range(6): call(model, torch.randn(2, 3), number)
module.scale = 2
call(model, torch.randn(2, 3), 7)
""",
    "a model that is disabled": """
class Model(torch.nn.Module):
    @torch.compiler.disable
    def forward(self, x): return torch.tanh(x) * 2
call(compiled(Model(), torch.tanh), torch.randn(2, 3))
""",
    "a model that is disabled, and not what it calls": """
class Model(torch.nn.Module):
    @torch.compiler.disable(recursive=False)
    def forward(self, x): return torch.tanh(x) * 2
call(compiled(Model(), lambda x: torch.tanh(x)), torch.randn(2, 3))
""",
}
# A graph that was verified for one model is right for another one only where their specs are the same.
_HEADS = """
import copy, pickle
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
class Heads(torch.nn.Module):
    def __init__(self, heads, number=0):
        super().__init__()
        self.heads, self.number = heads, number
        self.q, self.o = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    def forward(self, x):
        q = torch.softmax(self.q(x).view(*x.shape[:2], self.heads, -1), -1)
        return self.o(q.flatten(2))
def parallel(model): return parallelize_module(model, mesh, {"q": ColwiseParallel(), "o": RowwiseParallel()})
def halved(model):
    model.heads //= 2
    return model
def checked(model): call(torch.compile(model, backend="verify", options={"inner": "eager"}), torch.randn(2, 3, 8))
checked(halved(parallel(Heads(4))))
"""
LAST_RAISES |= {
    "a model constructed with the heads of one rank behind a right one": _HEADS + "checked(parallel(Heads(2)))",
    "a model that nobody saw constructed behind a right one": _HEADS
    + """
made = Heads.__new__(Heads)
made.__dict__.update(copy.deepcopy(vars(Heads(2))))
checked(parallel(made))
""",
    "the heads of a model in an object behind a right one": _HEADS
    + """
class Trainer:
    def __init__(self, model): self.models = {"first": [model]}
    def step(self, x): return self.models["first"][0](x)
for model in (halved(parallel(Heads(4))), parallel(Heads(2))):
    call(torch.compile(Trainer(model).step, backend="verify", options={"inner": "eager"}), torch.randn(2, 3, 8))
""",
    "the heads of a global model behind a right one": _HEADS
    + """
def step(x): return model(x)
for model in (halved(parallel(Heads(4))), parallel(Heads(2))):
    call(torch.compile(step, backend="verify", options={"inner": "eager"}), torch.randn(2, 3, 8))
""",
    "the heads of a model in a list behind a right one": _HEADS
    + """
def step(models, x): return models[0](x)
for model in (halved(parallel(Heads(4))), parallel(Heads(2))):
    call(torch.compile(step, backend="verify", options={"inner": "eager"}), [model], torch.randn(2, 3, 8))
""",
}

RAISED = {
    "a model that is disabled": "raised UsageError",
    "a model that is disabled, and not what it calls": "raised CompileUsageError",
}
# The same ways with nothing wrong in them: everything runs.
ALL_RUN = {
    f"{name}, and nothing wrong": _MODEL + program + _AFTER.format(1)
    for name, program in MARKED.items()
    if name in ("a mode around another compilation", "no tensors in another compilation")
} | {"layers constructed alike": _HEADS + "for number in range(1, 12): checked(halved(parallel(Heads(4, number))))"}


def test_what_runs_and_what_raises_after_other_compilations(tmp_path: Path) -> None:
    found = outcomes({**LAST_RAISES, **ALL_RUN}, tmp_path)
    last = {name: lines[-1] for name, lines in found.items()}
    assert last == {
        name: RAISED.get(name, "raised RefinementError") if name in LAST_RAISES else "ran" for name in found
    }
