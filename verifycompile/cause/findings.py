"""The findings of a refused program whose causes are known: one for each cause, with the way to mend it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.cause.told import Cause
from verifycompile.diagnostics.codes import OWN_PART_CODES
from verifycompile.diagnostics.finding import CAUSE_UNCERTAIN, Finding, Label
from verifycompile.diagnostics.locate import helper_labels, modules_before, place_of
from verifycompile.program import SourceLocation
from verifycompile.refinement.classify import ARRANGED
from verifycompile.refinement.own_part import PIECES
from verifycompile.torch_interface.source_lines.model_lines import innermost_in_file, written_backward_of
from verifycompile.torch_interface.source_lines.value_names import is_backward

CHECKED = "(checked)"
CHECKED_TOGETHER = "(checked, together with the help of the other findings)"
"""What a hint ends with: the program was proved with the change, or with all changes, in place."""

_SHOWN = 3
"""So many outputs that still differ are named."""
_TELLING = frozenset({"VC105"})
"""Codes of causes that say more than any mismatch can: the relations alone do not tell a wrong group."""
_VAGUE = frozenset({"VC107", "VC108"})
"""Codes of mismatches that name no cause."""
_EXCHANGES = frozenset({"exchange", "exchange parts"})
"""Kinds of changes after which what was taken for another value is used as it was."""
_OF_TURNS = frozenset({"VC119"})
"""Codes of mismatches that say which turn of a loop is used: a change says what of it is computed otherwise."""
_OF_PLACES = frozenset({"VC117", "VC118"})
"""Codes of mismatches that are about which elements a rank takes."""


def with_causes(finding: Finding, causes: Sequence[Cause], told_of: str = "") -> list[Finding]:
    """``finding``, of the first output that could not be related, as one finding for each cause.

    ``told_of``: the output that its message is about, where another one is shown to differ.
    """
    merged = _merged(causes)
    if not merged:  # a rank may well cut its own part: samples into micro-batches
        return [finding.noted(CAUSE_UNCERTAIN) if finding.code == PIECES else finding]
    suffix = CHECKED if len(merged) == 1 else CHECKED_TOGETHER
    if merged[0].proved:
        suffix = f"(checked: {_listed(merged[0].proved)} proved so)"
        finding = finding.noted(_of_unmended(merged)) if merged[0].unmended else finding
    if merged[0].proved and finding.output not in merged[0].proved:
        return [finding, *(_of_other(finding, cause, suffix) for cause in merged)]
    of_output = [cause for cause in merged if finding.output in cause.outputs]
    here = [cause for cause in merged if _same_line(place_of(cause.node), finding.impl_location)]
    shown_here = [cause for cause in of_output if cause in here]
    first = next(iter(shown_here or here or of_output or merged))
    others = [cause for cause in merged if cause is not first]
    # A relation that was found says more of what is wrong than the change that mends it, of whichever output it is,
    # unless that output has a finding of its own.
    is_told_again = any(told_of in cause.outputs for cause in others)
    of_another = first in of_output and told_of not in ("", *first.outputs)
    of_another = of_another and (is_told_again or not finding.relation_found)
    found = _of_first(finding, first, suffix, alone=len(merged) == 1, of_another=of_another)
    told = sum(len(cause.outputs) for cause in others)
    found = dataclasses.replace(found, followers=max(found.followers - told, 0))
    return [_at_place(found, first), *(_at_place(_of_other(finding, cause, suffix), cause) for cause in others)]


def _at_place(finding: Finding, cause: Cause) -> Finding:
    """The finding where the cause points to: the line that calls a function wrongly, or one within a helper."""
    place, other = finding.impl_location, cause.place
    if place is not None and cause.made is not None and _same_line(place, place_of(cause.node)):
        used = Label(place, finding.label or finding.message)
        made = cause.made.location
        return dataclasses.replace(finding, impl_location=made, label=cause.made.text, labels=(used, *finding.labels))
    if place is not None and cause.began is not None:
        used = Label(place, "the gradient that comes back to this line is each rank's own summand")
        labels = [label for label in finding.labels if not _same_line(label.location, place)]
        return dataclasses.replace(finding, impl_location=cause.began, labels=(used, *labels))
    if other is None or place is None or _same_line(place, other) or not _same_line(place, place_of(cause.node)):
        return finding
    labels = [label for label in finding.labels if not _same_line(label.location, other)]
    is_within = any(_same_line(other, own(cause.node)) for own in (innermost_in_file, written_backward_of))
    text = "called here" if is_within else f"`{place.function}`, called there, computes it here"
    return dataclasses.replace(finding, impl_location=other, labels=(Label(place, text), *labels))


def _of_unmended(causes: Sequence[Cause]) -> str:
    """What is said of the outputs that still differ with all changes."""
    unmended = causes[0].unmended
    shown = _listed(unmended[:_SHOWN])
    more = len(unmended) - _SHOWN
    shown += f" and {more} more" if more > 0 else ""
    gradients = all(name.startswith("grad.") for name in unmended)
    if gradients and not any(is_backward(cause.node) or cause.move.is_late for cause in causes):
        return f"the backward pass is that of the program as it is: verify {shown} again with the change in place"
    return f"no change was found that mends {shown}"


def _of_first(finding: Finding, cause: Cause, suffix: str, *, alone: bool, of_another: bool) -> Finding:
    """The finding at its cause; where it names the value that lacks a reduction already, or the cause only says how the
    output leaves the program, the place found before stays: unless it is ``of_another`` output than the cause.
    """
    message, hint = cause.texts
    place = place_of(cause.node)
    hinted = dataclasses.replace(finding, hint=f"{hint} {suffix}", output=finding.output)
    places = (finding.impl_location, *(label.location for label in finding.labels))
    is_shown = any(_same_line(place, other) for other in places)
    # No factor mends what is cut or looked up at a wrong place, and what does says which of the two it is.
    others = {"VC103", *OWN_PART_CODES} - {finding.code}
    told = finding.code in OWN_PART_CODES and not (finding.code in _OF_PLACES and cause.move.code in others)
    # What mends two values that are taken for each other leaves the part as it is: it is right further on.
    told = told and (is_shown or cause.move.kind[0] not in (*_EXCHANGES, "bound"))
    told = told or (finding.code == cause.move.code == "VC101" and is_shown)
    told = told or (finding.code in _OF_TURNS and cause.move.code not in _OF_PLACES)  # wrong positions look like turns
    # Nobody writes the factor of a derivative: how the gradient leaves the program says more.
    told = told or (cause.move.inserts and cause.move.code == "VC103" and is_backward(cause.node))
    is_here = _same_line(place, finding.impl_location)
    # A value of each rank's own samples has another scale: that it is not reduced says more.
    is_scale_of_own = finding.code == "VC103" and cause.move.code == "VC101" and not cause.move.is_late
    named = (alone and told) or cause.move.is_late or (is_here and not is_scale_of_own)
    # Where what is returned is right but for a factor, nothing that a reduction would mend is wrong.
    named = named and not (cause.move.is_late and (cause.move.code, finding.code) == ("VC103", "VC101"))
    named = named and (cause.move.code == finding.code or cause.move.code not in _TELLING)
    # Without a relation that was found, that operands lie in other ways is no more than a guess.
    is_vague = finding.code in _VAGUE or (finding.code == "VC104" != cause.move.code and not finding.relation_found)
    is_vague = is_vague or finding.relation_found.endswith(ARRANGED)
    if not is_vague and named and not of_another:
        return hinted
    return dataclasses.replace(
        hinted,
        code=cause.move.code,
        message=message,
        label=message,
        impl_location=place,
        spec_location=None if of_another or not is_here or is_vague else finding.spec_location,
        labels=helper_labels(cause.node),
        modules=modules_before(cause.node),
        notes=tuple(note for note in finding.notes if not note.startswith(CAUSE_UNCERTAIN)),
        relation_found="",
        relation_expected="",
    )


def _of_other(finding: Finding, cause: Cause, suffix: str) -> Finding:
    message, hint = cause.texts
    return Finding(
        code=cause.move.code,
        severity=finding.severity,
        message=message,
        impl_location=place_of(cause.node),
        label=message,
        labels=helper_labels(cause.node),
        modules=modules_before(cause.node),
        hint=f"{hint} {suffix}",
        verdict=finding.verdict,
        output=cause.outputs[0] if cause.outputs else finding.output,
        followers=max(len(cause.outputs) - 1, 0),
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _same_line(first: SourceLocation | None, second: SourceLocation | None) -> bool:
    return first is not None and second is not None and (first.file, first.line) == (second.file, second.line)


def _merged(causes: Sequence[Cause]) -> list[Cause]:
    """One cause for all changes at one line, in forward and in backward: a user makes them at once.

    The gradients of several parameters that are reduced where they leave are several causes.
    """
    found: dict[object, Cause] = {}
    for cause in sorted(causes, key=lambda cause: cause.move.code != "VC101"):
        place = place_of(cause.node)
        alone = place is None or cause.move.is_late
        key = cause.node if place is None or alone else (place.file, place.line)
        same = found.get(key)
        found[key] = cause if same is None else _joined(same, cause)
    return list(found.values())


def _joined(first: Cause, second: Cause) -> Cause:
    """Both changes. The same one in forward and backward is told once, of the forward pass."""
    outputs = tuple(dict.fromkeys((*first.outputs, *second.outputs)))
    moves = (*first.moves, *second.moves)
    message, hint = first.texts
    passes = is_backward(first.node), is_backward(second.node)
    if first.move.kind == second.move.kind and passes[0] != passes[1]:
        told = second if passes[0] else first
        return dataclasses.replace(told, moves=moves, outputs=outputs)
    hints = hint if second.texts[1] in hint else f"{hint}; and {second.texts[1]}"
    return dataclasses.replace(first, moves=moves, outputs=outputs, texts=(message, hints))
