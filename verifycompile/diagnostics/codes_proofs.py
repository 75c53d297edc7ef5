"""VC2xx: something stopped the proof. The program may be right or wrong."""

from __future__ import annotations

from verifycompile.diagnostics.code import Code
from verifycompile.diagnostics.severity import Severity

CODES = (
    Code(
        code="VC201",
        title="operator without declaration",
        severity=Severity.ERROR,
        meaning="A graph holds an operator about which nothing is declared; everything computed from it is unproved.",
        reason=(
            "An operator is never assumed to commute with sharding. What is unknown is reported as unproved, neither "
            "accepted nor called wrong."
        ),
        example="y = torch.ops.my_library.fused_rotate(x)      # a custom operator",
        fix=(
            'Declare the operator (CONTRIBUTING, "add an operator"): its index signature and its linearity are '
            "enough. Or write the step with operators that are declared."
        ),
    ),
    Code(
        code="VC202",
        title="argument, dtype or attribute outside of a declaration",
        severity=Severity.ERROR,
        meaning=(
            "The operator is declared, but not for this call: an optional argument that changes the value, a dtype, "
            "or an attribute that the declaration does not cover."
        ),
        reason="An argument that is not understood may change the value, so ignoring it could accept a wrong program.",
        example="y = F.softmax(x, dim=-1, dtype=torch.float64)",
        fix=(
            "Use the form that the message names as declared, or extend the declaration with this argument "
            '(CONTRIBUTING, "add an operator").'
        ),
        fixed_example="y = F.softmax(x.to(torch.float64), dim=-1)",
    ),
    Code(
        code="VC203",
        title="rank constant baked into the graph",
        severity=Severity.ERROR,
        meaning=(
            "Python code asked for this process's rank or coordinate while torch.compile traced it, so the graph holds "
            "a number that is right on this rank only. The program was traced as the other ranks too, and that did not "
            "give one graph for all of them."
        ),
        reason=(
            "The captured graph says nothing about what the other ranks run, so it cannot stand for the whole program, "
            "and a numeric comparison of it would be meaningless too."
        ),
        example=("rank = torch.distributed.get_rank()\nrows = x[rank * 4 : (rank + 1) * 4]"),
        fix=(
            "Express the step through DTensor, whose graphs do not depend on the rank, or through a collective, or let "
            "the ranks run one graph whose numbers are linear in the rank's coordinates."
        ),
        fixed_example=(
            "x = DTensor.from_local(x, mesh, [Replicate()])\nrows = x.redistribute(placements=[Shard(0)]).to_local()"
        ),
    ),
    Code(
        code="VC204",
        title="uneven shards",
        severity=Severity.ERROR,
        meaning=(
            "The size of a sharded dimension is not a multiple of the number of ranks on its mesh axis, so ranks hold "
            "shards of different sizes and run different graphs."
        ),
        reason="One graph stands for all ranks only where all have the same shapes.",
        example=(
            "mesh = init_device_mesh('cuda', (4,), mesh_dim_names=('tp',))\n"
            "parallelize_module(nn.Linear(16, 30), mesh, ColwiseParallel())      # 30 is not a multiple of 4"
        ),
        fix="Pad the dimension to a multiple of the axis size, or choose another degree or another dimension to shard.",
        fixed_example="parallelize_module(nn.Linear(16, 32), mesh, ColwiseParallel())",
    ),
    Code(
        code="VC205",
        title="budget exhausted",
        severity=Severity.ERROR,
        meaning=(
            "The search for a relation of this node, or the verification as a whole, reached its limit of time, "
            "memory, steps or size before an answer. The message names the stage that was ended and the limit that "
            "ended it; the notes say what else was tried."
        ),
        reason="A search that was cut short proves nothing in either direction.",
        example="y = (a + b + c + d) @ (e + f + g + h)      # many equal ways to write one value",
        fix=(
            "Write the step in the same order on both sides, or split it, so that the nodes in between can be related "
            "one by one. Where the spec differs on purpose, a lemma for the pattern makes the search short. The "
            "options `time_limit` (seconds) and `memory_limit` (bytes) are for everything that follows capture; by "
            "default they are ten times what capture took, at least 120 seconds, and what the process has in memory "
            "after capture, at least 4 GiB."
        ),
    ),
    Code(
        code="VC206",
        title="value or layout that cannot be represented",
        severity=Severity.ERROR,
        meaning=(
            "A value depends on how a tensor lies in memory (strides, aliasing, views with overlapping elements), on "
            "data (a shape computed from values), or on an object that has no tensor value."
        ),
        reason="The proof is about tensor values; what is not one has no relation.",
        example="y = x.as_strided((4, 4), (1, 1))      # overlapping windows",
        fix="Write it with indexing, `reshape`, `transpose` or `unfold`: they mean the same in any memory layout.",
        fixed_example="y = x.unfold(0, 4, 1)",
    ),
    Code(
        code="VC207",
        title="ranks that one process cannot speak for",
        severity=Severity.ERROR,
        meaning=(
            "One process stands for all ranks, with the model object that one of them built, and the program asked for "
            "its rank: while it was traced, or before, as in a constructor. Or what the option `build` runs may hold "
            "an answer that was given before it was called, in a variable, an attribute or a cache, or the models that "
            "it made for two ranks hold different values of a tensor that is taken to be replicated."
        ),
        reason=(
            "An object that was made with the number of one rank (`self.start = rank * n`, a module global, an "
            "activation chosen by rank) says nothing about the objects of the others, so neither a proof nor a "
            "difference that was found with it holds for the job."
        ),
        example=(
            "model = parallelize(Transformer(config), mesh)      # asks for its rank\n"
            "report = verifycompile.verify(model, (tokens,))"
        ),
        fix=(
            "Pass the option `build`, a callable without arguments that makes the parallel model. It is called once "
            "for each rank, while every way to ask for the rank answers as on that rank. In a job with one process a "
            "rank, the ranks are compared and it is not needed. For a tensor, say how it lies with `param_placements`."
        ),
        fixed_example=(
            "report = verifycompile.verify(None, (tokens,), build=lambda: parallelize(Transformer(config), mesh))"
        ),
    ),
    Code(
        code="VC208",
        title="the ranks were not found to run one program",
        severity=Severity.ERROR,
        meaning=(
            "In a job of several processes the ranks of a mesh compare what each of them captured, over the store of "
            "the process group. A rank did not answer, or its capture failed; or the ranks hold other numbers in a "
            "buffer or parameter that is taken to be the same on all of them, or change one before a later call, or "
            "update it by other numbers; were given other options, have data-parallel wrappers that send gradients or "
            "parameters otherwise, were compared with other specs, or run programs that differ and that cannot be "
            "checked together."
        ),
        reason="What one rank captured says nothing about a rank that runs something else, or nobody knows what.",
        example="self.register_buffer('scale', torch.tensor(1.0 + torch.distributed.get_rank()))",
        fix=(
            "Let every rank of the mesh compile the same model, and call `verifycompile.verify` on all of them. Say "
            "how a tensor that differs by rank is laid out with `param_placements`; give all ranks one `spec`. How "
            "long the others are waited for is set in seconds by `VERIFYCOMPILE_RANKS_TIMEOUT` in the environment."
        ),
        fixed_example="self.register_buffer('scale', torch.tensor(1.0))      # the same on every rank",
    ),
    Code(
        code="VC209",
        title="number with two readings",
        severity=Severity.ERROR,
        meaning=(
            "The single-device program is recovered from the model, and a number of the model may be that of the "
            "whole program or that of one rank (`n_heads`, which a plan divided by the degree, or forgot to divide). "
            "With both the recovered program runs, and it is not the same. Or the recovered program leaves out a part "
            "of an input that the ranks together read, as where the length of a micro-batch is written down."
        ),
        reason=(
            "Which one is meant decides whether the program is right: a spec that was scaled to fit repeats the "
            "program's own mistake, and one that was not makes a right program look wrong."
        ),
        example=(
            "q = self.wq(x).view(batch, length, self.n_heads, -1)      # runs with 4 heads of 8 and with 8 heads of 4"
        ),
        fix=(
            "Give the single-device program with the option `spec`; or name the attributes that hold a number per rank "
            "in `per_rank_numbers`, an empty list where none does. Where `verifycompile` is imported, or VERIFYCOMPILE "
            "is set, before the model is built, the numbers of the construction are recorded and need not be said, "
            "unless code had asked for the number of ranks and put the answer where it may have gone into them: into "
            "an attribute, a container, a global, or a call of other code. Build the model before that."
        ),
        fixed_example=(
            "verifycompile.verify(model, (x,), spec=single_device_model)\n"
            "verifycompile.verify(model, (x,), per_rank_numbers=['layers.*.attention.n_heads'])"
        ),
    ),
    Code(
        code="VC210",
        title="a run that was not verified",
        severity=Severity.ERROR,
        meaning=(
            "A function was compiled and verified, and now runs in another way: `torch.compile` has reached its "
            "recompile limit, gave the function up for these inputs, hides an error (`suppress_errors`), or is told by "
            "a stance or a setting to run eagerly, to leave guards out, to take another backend or stored code. "
            "Past the recompile limit the same is said of a program that was never verified: torch counts every "
            "compilation of the same code, and of all modules of its own together."
        ),
        reason="What was proved is about the graphs that were compiled. No proof speaks of this run.",
        example=(
            "model = torch.compile(model, backend='verify')\n"
            "model(x)                                             # verified\n"
            "torch.compiler.set_stance('eager_on_recompile')\n"
            "model(x[:1])                                         # another size: not compiled, not verified"
        ),
        fix=(
            "Let `torch.compile` compile: raise `torch._dynamo.config.recompile_limit` or mark sizes as dynamic, take "
            "the stance or setting back, mend what cannot be traced. To run the program unverified on purpose, call "
            "the model that was given to `torch.compile`, or set `on_unproved='warn'` (`VERIFYCOMPILE=warn`)."
        ),
        fixed_example="torch.compiler.set_stance('default')\nmodel(x[:1])             # compiled and verified",
    ),
    Code(
        code="VC211",
        title="the proof and an evaluation contradict each other",
        severity=Severity.ERROR,
        meaning=(
            "The programs are proved equal, and evaluated once on one input, on all ranks, they differ by more than "
            "rounding. One of the two is wrong, and nothing says which."
        ),
        reason=(
            "A proof that a single evaluation contradicts must not let a program pass. The evaluation calls torch's "
            "own operators on the captured graphs and shares nothing else with the proof."
        ),
        example="y = my_library.scale(x)      # declared as another function than the one that it computes",
        fix=(
            "Where the program calls an operator that you declared, compare the declaration with the operator. Else "
            "this is a defect of verifycompile: report it with the message, the versions of torch and verifycompile, "
            "and the program."
        ),
    ),
    Code(
        code="VC212",
        title="not decided element by element",
        severity=Severity.ERROR,
        meaning=(
            "`verifycompile.cross_check` compares two programs element by element. An output, or some elements of it, "
            "could not be compared: an operator has no meaning element by element, a place depends on real values, z3 "
            "gave no answer, or the programs are too large at every size."
        ),
        reason="What was not compared is neither equal nor different. The verdict of `verify` does not depend on it.",
        example="order = scores.argsort()      # which element comes first depends on the values",
        fix="Compare the part of the program before that operator, or at smaller sizes.",
    ),
    Code(
        code="VC215",
        title="training step that cannot be captured",
        severity=Severity.ERROR,
        meaning=(
            "`verifycompile.verify_step` calls the step on tensors without memory and records what is computed. Here "
            "that ended: the step reads the value of a tensor to decide what to do, ends before its data-parallel "
            "wrapper has reduced every gradient, calls a wrapper whose communication is the user's own, writes a "
            "tensor that it does not say it uses, or raised an error of its own."
        ),
        reason="What was not captured was not compared. Nothing is said about the step.",
        example="if torch.isfinite(loss): optimizer.step()      # which way it goes depends on the value of the loss",
        fix=(
            "Let the step compute the same for all values (`torch.where`), and leave what depends on values outside of "
            "it. Synchronize gradients in the last backward of the step (`set_requires_gradient_sync(True)`). Where a "
            "wrapper is not followed, verify the compiled model with `torch.compile(model, backend='verify')` instead."
        ),
        fixed_example="loss.backward()\noptimizer.step()",
    ),
    Code(
        code="VC216",
        title="random numbers are drawn",
        severity=Severity.ERROR,
        meaning=(
            "An output depends on random numbers that the program draws: dropout with p > 0, stochastic depth, noise, "
            "sampling."
        ),
        reason=(
            "Nothing in a graph says which numbers a generator gives on which rank. Ranks with one seed drop the same "
            "elements of different shards, and ranks with different seeds drop different elements of a replicated "
            "tensor. That both programs draw the same numbers is therefore not assumed."
        ),
        example="self.dropout = nn.Dropout(0.1)      # in training mode",
        fix=(
            "Verify the model with the drawing turned off (`p=0.0`, or `model.eval()`), or draw the numbers outside of "
            "what is compiled and pass them in. Everything else of the program is proved then."
        ),
        fixed_example="self.dropout = nn.Dropout(0.0)",
    ),
)
