"""Where two programs are found not to be related, with everything a report needs."""

from __future__ import annotations

import dataclasses

import torch.fx


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """The first root cause. ``code`` is a diagnostic code; texts are ready to print.

    ``spec_node``/``impl_node``: the FX nodes to locate in the user's source (either may be None).
    ``origin_node``: an earlier implementation node worth a secondary label (where a value became partial,
    sharded or scaled) with its text ``origin_label``.
    ``output``: name of the program output that fails because of it.
    ``certain``: torch's own record shows it, whatever the inputs; any other mismatch only a witness makes REFUTED.
    """

    code: str
    message: str
    output: str
    spec_node: torch.fx.Node | None = None
    impl_node: torch.fx.Node | None = None
    relation_found: str = ""
    relation_expected: str = ""
    impl_label: str = ""
    origin_node: torch.fx.Node | None = None
    origin_label: str = ""
    notes: tuple[str, ...] = ()
    certain: bool = False
    followers: int = 0
    """Number of further outputs and spec nodes without a relation that follow from this one."""
