"""What a proof that failed, a limit or a blocker says to the user, as findings."""

from __future__ import annotations

import torch.fx

from verifycompile.bounds import RanOut
from verifycompile.cause import line_of_own
from verifycompile.diagnostics.finding import Finding, Label
from verifycompile.diagnostics.locate import helper_labels, modules_before, place_of
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import Blocker, Program
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.rewrites.registry import EXHAUSTED
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.source import at_line, lines_of


def finding_of_mismatch(mismatch: Mismatch, spec: Program) -> Finding:
    """The mismatch at the user's lines: refuted where it is certain, else still to be tried on numbers.

    A line that the spec runs too is right: what comes to it is wrong where another line made it.
    """
    labels: tuple[Label, ...] = ()
    place = place_of(mismatch.impl_node)
    origin = None if mismatch.origin_node is None else model_location_of(mismatch.origin_node)
    if origin is not None and place is not None and at_line(place) in lines_of(spec.graph.graph):
        assert mismatch.origin_node is not None
        assert mismatch.impl_node is not None
        own = line_of_own(mismatch.origin_node, mismatch.impl_node, spec)
        if own is not None:
            place, labels = own, (Label(place, "it is needed here"),)
            labels += (Label(origin, mismatch.origin_label),) if at_line(own) != at_line(origin) else ()
    if origin is not None and not labels:
        labels = (Label(origin, mismatch.origin_label),)
    labels = (*labels, *helper_labels(mismatch.impl_node))
    return Finding(
        code=mismatch.code,
        severity=Severity.ERROR,
        message=mismatch.message,
        spec_location=place_of(mismatch.spec_node),
        impl_location=place,
        relation_found=mismatch.relation_found,
        relation_expected=mismatch.relation_expected,
        label=mismatch.impl_label,
        labels=labels,
        modules=modules_before(mismatch.impl_node),
        notes=mismatch.notes,
        output=mismatch.output,
        followers=mismatch.followers,
        verdict=Verdict.REFUTED if mismatch.certain else Verdict.UNPROVED,
    )


def finding_of_limit(ended: RanOut) -> Finding:
    """What a limit ended before there was an answer."""
    message, place = ended.describe(), ended.place
    location = place_of(place) if isinstance(place, torch.fx.Node) else None
    return Finding(code=EXHAUSTED, severity=Severity.ERROR, message=message, impl_location=location)


def finding_of_blocker(blocker: Blocker) -> Finding:
    return Finding(
        code=blocker.code,
        severity=Severity.ERROR,
        message=blocker.message,
        impl_location=place_of(blocker.node),
    )


def with_remedy(finding: Finding) -> Finding:
    return finding.noted(_REMEDIES[finding.code]) if finding.code in _REMEDIES else finding


_REMEDIES = {
    "VC201": (
        "write the step with operators that are declared, or declare this one (CONTRIBUTING, `Add an operator`); a "
        "waiver lets a job go on for a time"
    ),
    "VC202": (
        "write this call with arguments and dtypes that are declared (docs/operators.md), verify the model without it "
        "(a cast to a narrower dtype is rounding), or extend the declaration (CONTRIBUTING, `Add an operator`); a "
        "waiver lets a job go on for a time"
    ),
}
