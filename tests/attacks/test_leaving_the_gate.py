"""After the gate accepted a frame nothing of it runs unverified: later calls are verified, or raise."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.warm import python

HEAD = """
import warnings, logging
warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
import verifycompile
torch.set_num_threads(1)
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
ROWS, WHOLE = (Shard(0),), (Replicate(),)

def compiled(forward, spec, **options):
    return torch.compile(forward, backend="verify", options={"spec": spec, "mesh": mesh, "in_placements": {"x": ROWS}, "out_placements": {"output.0": ROWS}, "inner": "eager", **options})

def call(model, *args, **kwargs):
    try:
        model(*args, **kwargs)
    except Exception as error:
        print("raised", type(error).__name__)
        return
    print("ran")

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
    def forward(self, x): return x * self.weight

def steps(change, before=lambda module: None):
    module = Scale()
    before(module)
    model = compiled(module, Scale(), grad_placements={"weight": (Partial(),)})
    for k in range(2):
        call(lambda: model(torch.ones(2, 3)).sum().backward())
        change(module) if k == 0 else None

def sharded_steps(change):
    module = fully_shard(Scale(), mesh=mesh)
    model = torch.compile(module, backend="verify", options={"spec": Scale(), "inner": "eager"})
    for k in range(2):
        call(lambda: model(torch.ones(2, 3)).mean().backward())
        change(module) if k == 0 else None

def twice(factor): return lambda gradient: gradient * factor
"""

# What each program does first is right; what comes last is wrong, and must raise rather than run.
LAST_RAISES = {
    "recompile limit": """
torch._dynamo.config.recompile_limit = 2
def forward(x, scale): return torch.tanh(x) * (2 if scale > 3 else 1) + 0 * scale
model = compiled(forward, lambda x, scale: torch.tanh(x) + 0 * scale, inner="eager")
for scale in (1, 2, 3): call(model, torch.randn(2, 3), scale)
call(model, torch.randn(2, 3), 4)
""",
    "recompile limit by shapes": """
torch._dynamo.config.recompile_limit = 2
torch._dynamo.config.automatic_dynamic_shapes = False
def forward(x): return torch.tanh(x) * (2 if x.shape[1] == 7 else 1)
model = compiled(forward, lambda x: torch.tanh(x))
for columns in (3, 4): call(model, torch.randn(2, columns))
call(model, torch.randn(2, 7))
""",
    "recompile limit with a global": """
torch._dynamo.config.recompile_limit = 2
SCALE = 1
def forward(x): return torch.tanh(x) * SCALE
model = compiled(forward, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
for SCALE in (2, 3, 4): call(model, torch.randn(2, 3))
""",
    "stance eager_on_recompile": """
SCALE = 1
def forward(x): return torch.tanh(x) * SCALE
model = compiled(forward, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
SCALE = 2
with torch.compiler.set_stance("eager_on_recompile"):
    call(model, torch.randn(2, 3))
""",
    "stance force_eager": """
SCALE = 1
def forward(x): return torch.tanh(x) * SCALE
model = compiled(forward, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
SCALE = 2
with torch.compiler.set_stance("force_eager"):
    call(model, torch.randn(2, 3))
""",
    "suppress_errors": """
torch._dynamo.config.suppress_errors = True
SCALE = 2
def forward(x): return torch.tanh(x) * SCALE
model = compiled(forward, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
""",
    "second call after an error": """
def forward(x): return torch.tanh(x) * 2
model = compiled(forward, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
call(model, torch.randn(2, 3))
""",
    "accumulated recompile limit": """
torch._dynamo.config.accumulated_recompile_limit = 2
SCALE = 1
def forward(x): return torch.tanh(x) * SCALE
model = compiled(forward, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
for SCALE in (2, 3, 4): call(model, torch.randn(2, 3))
""",
    "another mode of autograd": """
def forward(x): return torch.tanh(x) * (1 if torch.is_grad_enabled() else 2)
model = compiled(forward, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
with torch.no_grad():
    call(model, torch.randn(2, 3))
""",
    "evaluation after training": """
class Model(torch.nn.Module):
    def forward(self, x): return torch.tanh(x) * (1 if self.training else 2)
inner = Model()
model = compiled(inner, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
inner.eval()
call(model, torch.randn(2, 3))
""",
    "a partial value made a number": """
def forward(x):
    y = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    scale = float(y.sum().to_local())
    return torch.tanh(x) * scale
model = compiled(forward, lambda x: torch.tanh(x) * x.sum().item())
call(model, torch.randn(2, 3))
""",
    "float of a partial DTensor between two graphs": """
def forward(x):
    y = DTensor.from_local(x, mesh, [Partial()], run_check=False).sum()
    return torch.tanh(x) * float(y._local_tensor)
model = torch.compile(forward, backend="verify", options={"mesh": mesh, "in_placements": {"x": WHOLE}, "inner": "eager"})
call(model, torch.randn(2, 3))
""",
    "a hook on a gradient after the first call": """
steps(lambda module: module.weight.register_hook(twice(2)))
""",
    "a hook on a gradient that is another one": """
def change(module):
    for handle in handles: handle.remove()
    module.weight.register_hook(twice(2.0))
handles = []
module = Scale()
handles.append(module.weight.register_hook(twice(1.0)))
model = compiled(module, Scale(), grad_placements={"weight": (Partial(),)})
call(lambda: model(torch.ones(2, 3)).sum().backward())
change(module)
call(lambda: model(torch.ones(2, 3)).sum().backward())
""",
    "a hook after accumulation after the first call": """
def double(parameter): parameter.grad.mul_(2)
steps(lambda module: module.weight.register_post_accumulate_grad_hook(double))
""",
    "a global that a hook on a gradient reads": """
FACTOR = 1
def hook(gradient): return gradient * FACTOR
def change(module): globals()["FACTOR"] = 2
steps(change, lambda module: module.weight.register_hook(hook))
""",
    "an attribute that a hook on a gradient reads by a method": """
class Scaling:
    settings = {"factors": [1]}
    def factor(self): return self.settings["factors"][0]
    def __call__(self, gradient): return gradient * self.factor()
def change(module): Scaling.settings["factors"][0] = 2
steps(change, lambda module: module.weight.register_hook(Scaling()))
""",
    "a hook that communicates on a shard after the first call": """
group = mesh.get_group()
sharded_steps(lambda module, group=group: module.weight.register_post_accumulate_grad_hook(
    lambda parameter: dist.all_reduce(parameter.grad, group=group)))
""",
    "a parameter in the place of one whose gradient a wrapper reduces": """
module = torch.nn.parallel.DistributedDataParallel(Scale())
model = torch.compile(module, backend="verify", options={"spec": Scale(), "inner": "eager"})
call(model, torch.ones(2, 3))
module.module.weight = torch.nn.Parameter(torch.ones(3))
call(model, torch.ones(2, 3))
""",
    "a module's hook for backward after the first call": """
steps(lambda module: module.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 2,)))
""",
    "a size by which only the spec branches": """
def forward(x): return torch.tanh(x)
model = compiled(forward, lambda x: torch.tanh(x) * (1 if x.shape[1] < 9 else 2))
for columns in (3, 4, 30): call(model, torch.randn(2, columns))
""",
    "rows of all ranks by which only the spec branches": """
def forward(x): return torch.tanh(x)
model = compiled(forward, lambda x: torch.tanh(x) * (1 if x.shape[0] <= x.shape[1] else 2))
for rows, columns in ((2, 7), (3, 8), (4, 9), (5, 9)): call(model, torch.randn(rows, columns))
""",
    "a real number by which only the spec branches": """
def forward(x, scale): return torch.tanh(x) * scale
model = compiled(forward, lambda x, scale: torch.tanh(x) * (scale if scale < 2 else 1))
for scale in (1.0, 1.5, 3.0): call(model, torch.randn(2, 3), scale)
""",
    "a whole number by which only the spec branches": """
def forward(x, scale): return torch.tanh(x) * scale
model = compiled(forward, lambda x, scale: torch.tanh(x) * (scale if scale < 9 else 1))
for scale in (2, 3, 30): call(model, torch.randn(2, 3), scale)
""",
    "a mask that only the spec reads": """
def forward(x, mask): return torch.tanh(x)
model = compiled(forward, lambda x, mask: torch.tanh(x) if mask is None else torch.tanh(x) * mask)
for mask in (None, torch.zeros(3)): call(model, torch.randn(2, 3), mask)
""",
    "a keyword that only the spec reads": """
def forward(x, **settings): return torch.tanh(x)
model = compiled(forward, lambda x, **settings: torch.tanh(x) * settings.get("scale", 1))
for settings in ({}, {"scale": 2}): call(model, torch.randn(2, 3), **settings)
""",
    "an attribute of an argument that only the spec reads": """
class Settings:
    def __init__(self, scale): self.scale = scale
def forward(x, settings): return torch.tanh(x)
model = compiled(forward, lambda x, settings: torch.tanh(x) * settings.scale)
for scale in (1, 2): call(model, torch.randn(2, 3), Settings(scale))
""",
    "positions that only the spec reads": """
table = torch.randn(8, 3)
def forward(x, positions): return x + table[:2]
model = compiled(forward, lambda x, positions: x + table[positions], in_placements={"x": WHOLE}, out_placements={})
for positions in ([0, 1], [0, 0]): call(model, torch.randn(2, 3), torch.tensor(positions))
""",
    "one tensor twice, of which only the spec reads both": """
def forward(x, y): return torch.tanh(x) - torch.sin(x)
model = compiled(forward, lambda x, y: torch.tanh(x) - torch.sin(y), in_placements={"x": ROWS, "y": ROWS})
x = torch.randn(2, 3)
for y in (x, torch.randn(2, 3)): call(model, x, y)
""",
    "a hook on the node that accumulates after the first call": """
def change(module):
    global node
    node = module.weight.view_as(module.weight).grad_fn.next_functions[0][0]
    node.register_prehook(lambda gradients: (gradients[0] * 2,))
steps(change)
""",
    "a hook on what is saved for backward after the first call": """
class Model(Scale):
    def forward(self, x): return torch.tanh(x * self.weight)
model = compiled(Model(), Model(), grad_placements={"weight": (Partial(),)})
call(lambda: model(torch.ones(2, 3)).sum().backward())
with torch.autograd.graph.saved_tensors_hooks(lambda value: value * 2, lambda value: value):
    call(lambda: model(torch.ones(2, 3)).sum().backward())
""",
    "nothing computed, and a spec that computes": """
model = compiled(lambda x: x, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
""",
    "results of a module that computes nothing, and another spec": """
class Model(torch.nn.Module):
    def forward(self, x): return x
model = compiled(Model(), lambda x: x * 2)
call(model, torch.randn(2, 3))
""",
    "a graph break in the middle": """
def forward(x):
    y = torch.tanh(x)
    torch._dynamo.graph_break()
    return y * 2
model = compiled(forward, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
""",
}

# A spec says what the whole program computes, and these compile parts, each of which is what the spec says.
PARTS = {
    "a graph break in a loop": """
def forward(x):
    for _ in range(2):
        x = part(x)
        torch._dynamo.graph_break()
    return x
model = compiled(forward, torch.tanh)
""",
    "a graph break under a context": """
class Context:
    def __enter__(self): return self
    def __exit__(self, *error): return False
def forward(x):
    with Context():
        torch._dynamo.graph_break()
        x = part(x)
    return part(x)
model = compiled(forward, torch.tanh)
""",
    "nothing but a disabled function": """
@torch.compiler.disable
def twice_part(x): return part(part(x))
def forward(x): return twice_part(x)
model = compiled(forward, torch.tanh)
""",
    "a checkpoint that counts": """
from torch.utils.checkpoint import checkpoint
class Counting(Scale):
    count = 0
    def forward(self, x):
        def part(x):
            self.count += 1
            return x * self.weight * self.count
        return checkpoint(part, x, use_reentrant=False)
model = compiled(Counting(), Scale(), grad_placements={"weight": (Partial(),)})
""",
    "a hook on the module": """
class Model(torch.nn.Module):
    def forward(self, x): return torch.tanh(x)
inner = Model()
inner.register_forward_hook(lambda *given: torch.tanh(given[-1]))
model = compiled(inner, lambda x: torch.tanh(x))
""",
    "a hook that computes nothing": """
class Model(torch.nn.Module):
    def forward(self, x): return torch.tanh(x), torch.relu(x)
inner = Model()
inner.register_forward_hook(lambda module, args, results: results[::-1])
model = compiled(inner, lambda x: (torch.tanh(x), torch.relu(x)))
""",
    "a hook after the first call": """
class Model(torch.nn.Module):
    def forward(self, x): return torch.tanh(x), torch.relu(x)
inner = Model()
model = compiled(inner, lambda x: (torch.tanh(x), torch.relu(x)))
call(model, torch.randn(2, 3))
inner.register_forward_pre_hook(torch.compiler.disable(lambda module, args: (args[0] * 2,)))
""",
}
LAST_RAISES |= {
    name: f"def part(x): return torch.tanh(x)\n{program}\ncall(model, torch.randn(2, 3))\n"
    for name, program in PARTS.items()
}

# The same ways with nothing wrong in them: everything runs.
ALL_RUN = {
    "several shapes": """
def forward(x): return torch.tanh(x) * 2
model = compiled(forward, lambda x: torch.tanh(x) * 2)
for columns in (3, 4, 5): call(model, torch.randn(2, columns))
""",
    "a hook on a gradient that changes nothing": """
steps(lambda module: module.weight.register_hook(twice(1)))
""",
    "a hook on a gradient with a variable that is not assigned": """
def hook_of(factor):
    def hook(gradient): return gradient * (factor if factor else unassigned)
    return hook
    unassigned = 2
steps(lambda module: None, lambda module: module.weight.register_hook(hook_of(1)))
""",
    "a hook on a shard after the first call": """
sharded_steps(lambda module: module.weight.register_post_accumulate_grad_hook(lambda parameter: None))
""",
    "a parameter whose gradient a wrapper reduces holds other numbers": """
module = torch.nn.parallel.DistributedDataParallel(Scale())
model = torch.compile(module, backend="verify", options={"spec": Scale(), "inner": "eager"})
call(model, torch.ones(2, 3))
module.module.weight.data = torch.zeros(3)
call(model, torch.ones(2, 3))
""",
    "a hook on the node that accumulates that changes nothing": """
def change(module):
    global node
    node = module.weight.view_as(module.weight).grad_fn.next_functions[0][0]
    node.register_prehook(lambda gradients: (gradients[0] * 1,))
steps(change)
""",
    "what is saved for backward is kept elsewhere": """
class Model(Scale):
    def forward(self, x): return torch.tanh(x * self.weight)
model = compiled(Model(), Model(), grad_placements={"weight": (Partial(),)})
call(lambda: model(torch.ones(2, 3)).sum().backward())
with torch.autograd.graph.save_on_cpu():
    call(lambda: model(torch.ones(2, 3)).sum().backward())
""",
    "nothing computed between two graphs": """
class Same(torch.nn.Module):
    def forward(self, x): return x
same = Same()
def forward(x): return same(torch.tanh(x))
model = compiled(forward, forward)
call(model, torch.randn(2, 3))
""",
    "a decorated function": """
import functools
def decorated(function):
    @functools.wraps(function)
    def around(*args): return function(*args)
    return around
@torch.no_grad()
@decorated
def forward(x): return torch.tanh(x)
call(compiled(forward, torch.tanh), torch.randn(2, 3))
""",
    "a module that compiles itself": """
module = Scale()
module.compile(backend="verify", options={"spec": Scale(), "mesh": mesh, "in_placements": {"x": ROWS}, "grad_placements": {"weight": (Partial(),)}, "inner": "eager"})
call(module, torch.randn(2, 3))
""",
    "a variable that is not assigned": """
def make():
    def forward(x): return torch.tanh(x) if x.shape[1] < 9 else unassigned
    return forward
    unassigned = 2
model = compiled(make(), torch.tanh)
call(model, torch.randn(2, 3))
""",
    "rows that change more often than torch compiles a frame": """
def forward(x): return torch.tanh(x)
model = compiled(forward, lambda x: torch.tanh(x))
for rows in range(2, 14): call(model, torch.randn(rows, 3))
""",
    "whole numbers that change": """
def forward(x, scale, columns): return torch.cat([torch.tanh(x) * scale, x.new_ones(x.shape[0], columns)], 1)
model = compiled(forward, forward)
for scale, columns in ((2, 4), (3, 5), (30, 6)): call(model, torch.randn(2, 3), scale, columns)
""",
    "real numbers that change": """
def forward(x, scale): return torch.tanh(x) * scale
model = compiled(forward, lambda x, scale: torch.tanh(x) * (scale if scale < 9 else 1))
for scale in (1.0, 1.5, 3.0): call(model, torch.randn(2, 3), scale)
""",
    "arguments that only the spec reads, and that stay": """
def forward(x, mask, step): return torch.tanh(x)
model = compiled(forward, lambda x, mask, step: torch.tanh(x) if mask is None else torch.tanh(x) * mask)
for step in range(12): call(model, torch.randn(2, 3), None, step)
""",
    "stance eager_on_recompile without a recompile": """
def forward(x): return torch.tanh(x) * 2
model = compiled(forward, lambda x: torch.tanh(x) * 2)
call(model, torch.randn(2, 3))
with torch.compiler.set_stance("eager_on_recompile"):
    call(model, torch.randn(2, 3))
""",
    "training and evaluation": """
class Model(torch.nn.Module):
    def forward(self, x): return torch.tanh(x) * (1 if self.training else 1.0)
inner = Model()
model = compiled(inner, lambda x: torch.tanh(x))
call(model, torch.randn(2, 3))
inner.eval()
call(model, torch.randn(2, 3))
""",
}


EACH_ALONE = """
import json, os, pathlib, sys, traceback
import functorch.compile, torch._dynamo.backends.debugging, z3
import verifycompile.pipeline, verifycompile.backends.verify, verifycompile.strategies, verifycompile.two_programs
from verifycompile.rewrites import families
families.load()

def run(name, file):
    print("program", name, flush=True)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        exec(compile(pathlib.Path(file).read_text(), file, "exec"), globals())
    except BaseException:
        traceback.print_exc()
        print("failed", flush=True)
    sys.stdout.flush()
    os._exit(0)

for name, file in json.loads(sys.argv[1]).items():
    run(name, file)
"""
"""Every program in a process of its own, of which torch and what verifies are imported once for all."""


def outcomes(programs: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """What each of the programs prints of its calls: "ran", "raised ..."."""
    files = {name: folder / f"program_{k}.py" for k, name in enumerate(programs)}
    for name, file in files.items():
        file.write_text(programs[name])
    script = folder / "each.py"
    script.write_text(HEAD + EACH_ALONE)
    done = subprocess.run(
        [python(), str(script), json.dumps({name: str(file) for name, file in files.items()})],
        capture_output=True, text=True, check=False, timeout=500, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    parts = [part.split("\n") for part in done.stdout.split("program ")[1:]]
    found = {name: [line for line in lines if line.startswith(("ran", "raised", "failed"))] for name, *lines in parts}
    assert found.keys() == programs.keys()
    assert not [name for name, lines in found.items() if "failed" in lines], done.stderr[-4000:]
    return found


def test_what_runs_and_what_raises(tmp_path: Path) -> None:
    found = outcomes({**LAST_RAISES, **ALL_RUN}, tmp_path)
    assert {
        name: found[name] for name in LAST_RAISES if not found[name][-1:] or not found[name][-1].startswith("raised")
    } == {}
    assert {name: found[name] for name in ALL_RUN if set(found[name]) != {"ran"}} == {}
