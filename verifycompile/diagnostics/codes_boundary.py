"""VC11x: what enters and leaves the parallel program does not correspond to the spec's."""

from __future__ import annotations

from verifycompile.diagnostics.code import Code
from verifycompile.diagnostics.severity import Severity

CODES = (
    Code(
        code="VC111",
        title="gradients, outputs or writes of one program alone",
        severity=Severity.ERROR,
        meaning=(
            "One of the two programs trains a parameter, returns a value or writes to a tensor, and the other one does "
            "not: the parameter requires grad on one side alone, an output is detached or missing, or a buffer is "
            "updated in one of them."
        ),
        reason=(
            "All values that both programs have may be equal, and still the parallel job trains another model than one "
            "device would: a frozen parameter keeps its first value, and a buffer that is not updated is stale. What "
            "one program alone returns is compared with nothing, so that nothing is known of it."
        ),
        example=(
            "model = parallelize(Model(), mesh)\n"
            "model.embedding.requires_grad_(False)\n"
            "report = verifycompile.verify(model, (tokens,), spec=Model())    # the spec trains its embedding"
        ),
        fix=(
            "Freeze and train the same parameters in both programs, and let both return and update the same. A spec "
            "that was only made without gradients gets them by `spec.requires_grad_(True)`. Where both run without "
            "gradients, under `torch.no_grad()`, what requires grad does not matter."
        ),
        fixed_example=(
            "spec = Model()\n"
            "spec.embedding.requires_grad_(False)\n"
            "report = verifycompile.verify(model, (tokens,), spec=spec)"
        ),
    ),
)
