"""VC3xx: the question itself is incomplete or contradictory; nothing was verified."""

from __future__ import annotations

from verifycompile.diagnostics.code import Code
from verifycompile.diagnostics.severity import Severity

CODES = (
    Code(
        code="VC301",
        title="no device mesh",
        severity=Severity.ERROR,
        meaning=(
            "The program has no DTensor to take the device mesh from, and the option `mesh` is not given; or the "
            "process groups of its mesh were destroyed."
        ),
        reason="Without a mesh there is no parallel program: neither ranks nor layouts are known.",
        example="torch.compile(model, backend='verify')      # plain parameters, explicit collectives",
        fix="Parallelize the model with DTensor, or name the mesh and the placements.",
        fixed_example=(
            "placements = {'*.wq.weight': (Shard(0),)}\n"
            "torch.compile(model, backend='verify', options={'mesh': mesh, 'param_placements': placements})"
        ),
    ),
    Code(
        code="VC302",
        title="device meshes without common coordinates",
        severity=Severity.ERROR,
        meaning=(
            "The program's DTensors lie on several root meshes, and the option `mesh` does not say which is meant; or "
            "the ranks along an axis of a mesh do not ascend, as they do in the process groups that torch makes for it."
        ),
        reason=(
            "Layouts over unrelated meshes have no common coordinates. Of ranks in another order than their group's, "
            "DTensor cuts a tensor in the one and joins it in the other."
        ),
        example=(
            "first = init_device_mesh('cuda', (8,), mesh_dim_names=('tp',))\n"
            "second = init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'ep'))      # both used in one model"
        ),
        fix=(
            "Create one mesh with all axes and take submeshes of it (`mesh['tp']`), or pass `mesh`. List ranks in "
            "ascending order along each axis."
        ),
        fixed_example="mesh = init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'tp'))\ntp = mesh['tp']",
    ),
    Code(
        code="VC303",
        title="shapes do not fit the spec",
        severity=Severity.ERROR,
        meaning=(
            "With the placements that are declared or taken by default, the local shapes of an input, parameter or "
            "output do not add up to the shape it has in the spec."
        ),
        reason="Placements that contradict the shapes cannot describe how the spec's tensor is laid out.",
        example=(
            "# x is 4 rows on each of 2 ranks; the spec takes 8 rows\n"
            "verifycompile.verify(model, args=(x,), spec=spec)      # x taken as Replicate"
        ),
        fix="Declare the placements of the tensor that the message names, or correct the spec.",
        fixed_example="verifycompile.verify(model, args=(x,), spec=spec, in_placements={'x': (Shard(0),)})",
    ),
    Code(
        code="VC304",
        title="the spec's parameters differ",
        severity=Severity.ERROR,
        meaning="The spec has a parameter or buffer that the implementation does not have, or the other way round.",
        reason="Every value of the spec must be computable from the implementation's, so their leaves must correspond.",
        example="verifycompile.verify(model, args=(x,), spec=OtherModel())",
        fix="Give the spec that the implementation was made from, or map renamed parameters with `param_names`.",
        fixed_example=(
            "verifycompile.verify(model, args=(x,), spec=spec, param_names={'block.qkv.weight': 'block.wqkv.weight'})"
        ),
    ),
    Code(
        code="VC305",
        title="graph break",
        severity=Severity.ERROR,
        meaning=(
            "torch.compile did not capture the program as one graph, so a part of it runs outside of every graph that "
            "could be checked, and the layout of what it computes there is not known."
        ),
        reason="What runs between the graphs is not seen; a proof of the pieces is not a proof of the program.",
        example=("def forward(self, x):\n    print(x.sum().item())\n    return self.down(self.up(x))"),
        fix=(
            "Remove what breaks the graph (torch names it under `fullgraph=True`), or compile the parts that are "
            "captured whole one by one (`block.compile(backend='verify')`). torch breaks no graph at functions that "
            "`torch._dynamo.config.reorderable_logging_functions` lists, as `print`, which are called behind it, and "
            "`ignore_logging_functions`, as `logging.Logger.info`, which are not called."
        ),
        fixed_example="def forward(self, x):\n    return self.down(self.up(x))",
    ),
    Code(
        code="VC306",
        title="unknown option or name in options",
        severity=Severity.ERROR,
        meaning="An option does not exist, or names an input, parameter or output that the program does not have.",
        reason="An option that is ignored would leave a question other than the one asked.",
        example="torch.compile(model, backend='verify', options={'in_placement': {'x': (Shard(0),)}})",
        fix="Use one of the names that the message lists.",
        fixed_example="torch.compile(model, backend='verify', options={'in_placements': {'x': (Shard(0),)}})",
    ),
    Code(
        code="VC307",
        title="spec cannot be recovered automatically",
        severity=Severity.ERROR,
        meaning=(
            "No single-device program could be derived from the parallelized model: it has explicit collectives, or "
            "sizes that were divided by the degree by hand, or modules that cannot be copied."
        ),
        reason="A spec that was guessed could be wrong in the same way as the implementation.",
        example=(
            "class Attention(nn.Module):\n"
            "    def __init__(self, heads, mesh):\n"
            "        self.heads = heads // mesh['tp'].size()      # a local size in the module itself"
        ),
        fix=(
            "Give the single-device program with the option `spec`. Where the number of one rank is a global "
            "variable (`HEADS //= tp`), that spec reads it too: make it an attribute of the model first."
        ),
        fixed_example="torch.compile(model, backend='verify', options={'spec': single_device_model})",
    ),
    Code(
        code="VC308",
        title="plain parameter of local shape without placement",
        severity=Severity.ERROR,
        meaning=(
            "A parameter or buffer is a plain tensor whose shape differs from the spec's, and nothing says how it "
            "is laid out."
        ),
        reason="Several layouts fit one local shape, and which one is meant decides whether the program is right.",
        example="self.weight = nn.Parameter(torch.empty(d_out // tp_size, d_in))",
        fix="Name its placements in `param_placements`; patterns are allowed.",
        fixed_example=(
            "torch.compile(\n"
            "    model,\n"
            "    backend='verify',\n"
            "    options={'spec': spec, 'mesh': mesh, 'param_placements': {'layers.*.up.weight': (Shard(0),)}},\n"
            ")"
        ),
    ),
    Code(
        code="VC310",
        title="option or wrapper that does not apply",
        severity=Severity.ERROR,
        meaning=(
            "An option says something that cannot hold of this program: a mesh that its DTensors and wrappers do not "
            "lie on, placements for what has placements of its own, a name on neither side. Or a wrapper around the "
            "model is one whose effect on parameters and gradients is not understood."
        ),
        reason="What is ignored would leave a question other than the one asked.",
        example=(
            "other = init_device_mesh('cuda', (8,), mesh_dim_names=('tp',))\n"
            "torch.compile(model, backend='verify', options={'mesh': other})      # the DTensors lie on another mesh"
        ),
        fix="Take the option away, or correct what the message names.",
        fixed_example="torch.compile(model, backend='verify')",
    ),
    Code(
        code="VC311",
        title="waiver that does not hold",
        severity=Severity.ERROR,
        meaning=(
            "A waiver is over, has no reason, no date or nothing that it speaks of, stands in a file that cannot be "
            "read, or waives nothing that was found."
        ),
        reason="A waiver that nobody looks at again would let the next error pass that it happens to fit.",
        example=(
            "waivers = [{'code': 'VC201', 'reason': 'the new kernel has no declaration yet'}]      # without an end\n"
            "torch.compile(model, backend='verify', options={'waivers': waivers})"
        ),
        fix=(
            "Give `reason`, `expires` (a date) and `code`, `module` (a pattern of module paths) or `node` (file and "
            "line). Take a waiver out when what it waives is mended, and decide again when it is over."
        ),
        fixed_example=(
            "reason = 'the new kernel has no declaration yet'\n"
            "waiver = {'code': 'VC201', 'module': 'layers.*.attention', 'reason': reason, 'expires': '2027-01-31'}\n"
            "torch.compile(model, backend='verify', options={'waivers': [waiver]})"
        ),
    ),
    Code(
        code="VC309",
        title="no spec can be recovered from local parameters",
        severity=Severity.ERROR,
        meaning=(
            "The model's parameters are plain tensors that are parts of the single-device program's, or nothing says "
            "whether they are; no single-device program was given."
        ),
        reason=(
            "What is recovered from a model that was built with the sizes of one rank has those sizes: a right program "
            "would be refuted against it."
        ),
        example=(
            "self.up = nn.Linear(width, hidden // degree)\n"
            "self.down = nn.Linear(hidden // degree, width)      # and an all_reduce after it"
        ),
        fix=(
            "Give the single-device program with the option `spec`, and the layout of the parts in `param_placements`. "
            "Where every rank holds all parameters whole, say that in `param_placements`."
        ),
        fixed_example=(
            "verifycompile.verify(\n"
            "    model,\n"
            "    (x,),\n"
            "    mesh=mesh,\n"
            "    spec=single_device_model,\n"
            "    param_placements={'up.weight': (Shard(0),), 'down.weight': (Shard(1),)},\n"
            ")"
        ),
    ),
)
