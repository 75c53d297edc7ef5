"""One root cause, as data. Renderers turn it into text, JSON, SARIF, HTML or workflow commands."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation

CAUSE_UNCERTAIN = "that the programs differ is certain; that this line is the cause is not: the proof stopped here"
"""How a note begins that takes the place of a finding's line back."""


@dataclasses.dataclass(frozen=True)
class Sparse:
    """A tensor of zeros but for a few ``elements``: index and value of each."""

    shape: tuple[int, ...]
    elements: tuple[tuple[tuple[int, ...], float], ...]


@dataclasses.dataclass(frozen=True)
class Counterexample:
    """A concrete input on which the two programs differ.

    ``inputs``: name -> the spec's whole input as nested lists where it is small, as ``Sparse`` where it is nearly all
    zeros, else a summary; ``seed`` reproduces them. ``mesh``: axis name -> number of ranks. ``output``: the output that
    differs. ``rank`` holds the element ``index`` of the spec's output, or takes part in it where it is partial. Values
    are computed in float64; both are NaN where the shapes differ, which ``detail`` then tells. ``premise``: what sets
    the inputs apart from those on which no difference was found.
    ``script``: the text of a script that replays it, but for the first lines, which say what differs; "" where there is
    none because of ``no_script``. ``shapes``: of ranks that run different graphs, node of the program of all of them ->
    its shape here, where sizes may be reduced.
    """

    inputs: Mapping[str, object]
    spec_value: float
    implementation_value: float
    rank: int
    output: str
    index: tuple[int, ...] = ()
    seed: int = 0
    detail: str = ""
    premise: str = ""
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[int, ...]], repr=False, compare=False
    )
    script: str = dataclasses.field(default="", repr=False, compare=False)
    no_script: str = dataclasses.field(default="", repr=False, compare=False)

    def save(self, path: str | pathlib.Path) -> None:
        """Write a script that needs torch alone, runs both programs on these inputs and fails where they differ.

        Raises ``ValueError`` where the programs cannot be written as such a script, ``OSError`` where the file cannot
        be written.
        """
        if not self.script:
            reason = self.no_script or "the programs are not known"
            raise ValueError(f"no script shows this counterexample: {reason}.")
        from verifycompile.diagnostics.describe import describe_difference

        summary = "\n".join(line for line in (describe_difference(self), self.premise) if line)
        pathlib.Path(path).write_text(f'"""{summary}"""\n\n{self.script}', encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Label:
    """A place in the user's source with what there is to say about it."""

    location: SourceLocation
    text: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """One root cause.

    ``code`` is one of ``verifycompile.diagnostics.codes.CODES``; ``message`` says in one line what is wrong here.
    ``verdict``: what this finding makes of the program: ``REFUTED`` where a counterexample shows it, else ``UNPROVED``.
    ``label``: what to say at the source line where that is not the message itself; ``labels``: further places that
    explain it, in order of importance.
    ``hint``: a fix that was verified before it is offered, else None. ``output``: the program output that fails
    because of this; ``followers``: how many more outputs and spec nodes lack a relation only because of this one.
    ``modules``: the paths of those that made what is used there.
    ``waived``: why, by which waiver and until when this stops nothing; "" where it does.
    """

    code: str
    severity: Severity
    message: str
    spec_location: SourceLocation | None = None
    impl_location: SourceLocation | None = None
    relation_found: str = ""
    relation_expected: str = ""
    hint: str | None = None
    counterexample: Counterexample | None = None
    verdict: Verdict = Verdict.UNPROVED
    label: str = ""
    labels: tuple[Label, ...] = ()
    modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    output: str = ""
    followers: int = 0
    waived: str = ""

    @property
    def location(self) -> SourceLocation | None:
        """Where to point: the implementation's line, else the spec's."""
        return self.impl_location if self.impl_location is not None else self.spec_location

    def noted(self, *notes: str) -> Finding:
        """The finding with these notes behind its own."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))
