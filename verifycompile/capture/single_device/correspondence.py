"""Which output of the spec belongs to which of the implementation: those that the user finds at the same place."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import torch.fx

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export
from verifycompile.program import Blocker
from verifycompile.torch_interface.training_step.returned_values import Constant, Leaf, Place, Symbol, shown_place


@dataclasses.dataclass(frozen=True)
class Correspondence:
    """``spec``: with the names of the implementation's outputs. ``blockers``: results that are no tensors differ."""

    spec: Export
    blockers: tuple[Blocker, ...]
    assumptions: tuple[str, ...]


def correspond(spec: Export, implementation: Export, sizes: Sequence[int]) -> Correspondence:
    """``sizes``: of the mesh axes. Where no place is the same in both, outputs correspond in their order."""
    blockers: list[Blocker] = []
    assumptions: list[str] = []
    ours, theirs = implementation.traced.left_behind.returned, spec.traced.left_behind.returned
    if not spec.places.keys() & implementation.places.keys() and spec.places and implementation.places:
        whole, own = _place_of_first(spec.places), _place_of_first(implementation.places)
        text = (
            f"outputs correspond in their order, since their places differ: {whole} in the spec, "
            f"{own} in the implementation"
        )
        assumptions.append(Assumption(text, AssumptionKind.CORRESPONDENCE))
    blockers.extend(_one_sided(theirs, ours))
    for place in theirs.keys() & ours.keys():
        text = _differing(theirs[place], ours[place])
        if text is None:
            continue
        if _is_share(theirs[place], ours[place], sizes):
            said = f"what is returned{shown_place(place)} is each rank's own number: {text}"
            assumptions.append(Assumption(said, AssumptionKind.UNCOMPARED))
        elif isinstance(theirs[place], Symbol) and isinstance(ours[place], Symbol):
            said = f"what is returned{shown_place(place)} is not compared: {text}"
            assumptions.append(Assumption(said, AssumptionKind.UNCOMPARED))
        else:
            blockers.append(Blocker(None, "VC107", f"what is returned{shown_place(place)} differs: {text}"))
    renamed = named_by_place(spec, implementation)
    return Correspondence(renamed, tuple(sorted(blockers, key=str)), tuple(sorted(assumptions)))


def _one_sided(expected: Mapping[Place, Leaf], found: Mapping[Place, Leaf]) -> list[Blocker]:
    """Results that are no tensors and that one of the programs alone returns; tensors are compared by their names."""
    blockers: list[Blocker] = []
    sides = ((expected, found, "spec", "implementation"), (found, expected, "implementation", "spec"))
    for own, other, owner, without in sides if expected and found else ():
        alone = [
            (place, leaf)
            for place, leaf in own.items()
            if place not in other and not isinstance(leaf, torch.fx.Node) and leaf != Constant(None)
        ]
        for place, leaf in alone[:1]:
            more = f" and {len(alone) - 1} more" if alone[1:] else ""
            what = f"{_described(leaf)}{shown_place(place)}{more}"
            text = f"the {owner} returns {what}, the {without} returns nothing there"
            blockers.append(Blocker(None, "VC111", text))
    return blockers


def _place_of_first(places: Mapping[Place, str]) -> str:
    """Where the first output is found."""
    return shown_place(next(iter(places))).strip() or "the result itself"


def _differing(expected: Leaf, found: Leaf) -> str | None:
    """How a result that is no tensor in one of the programs differs; None where it does not."""
    if isinstance(expected, torch.fx.Node) and isinstance(found, torch.fx.Node):
        return None
    same = isinstance(expected, Constant) and isinstance(found, Constant) and repr(expected.value) == repr(found.value)
    return None if same else f"{_described(expected)} in the spec, {_described(found)} in the implementation"


def _described(leaf: Leaf) -> str:
    if isinstance(leaf, Constant):
        return repr(leaf.value)
    return "a number" if isinstance(leaf, Symbol) else "a tensor"


def _is_share(expected: Leaf, found: Leaf, sizes: Sequence[int]) -> bool:
    """Whether the ranks' numbers, such as counts of rows, are shares of the spec's."""
    if not isinstance(expected, Constant) or not isinstance(found, Constant):
        return False
    whole, own = expected.value, found.value
    if type(whole) is not int or type(own) is not int:
        return False
    axes = itertools.chain.from_iterable(itertools.combinations(sizes, k) for k in range(len(sizes) + 1))
    return any(own * math.prod(chosen) == whole for chosen in axes)


# ------------------------------------------------------------------------------------------------ names


def named_by_place(exported: Export, other: Export) -> Export:
    """``exported``, of which an output has the name that what is at its place has in ``other``."""
    found: dict[str, list[str]] = {name: [] for name in sorted(_names(exported))}
    for place, name in exported.places.items():
        if place in other.places and name in found:
            found[name].append(other.places[place])
    taken = {name for names in found.values() for name in names}
    if not taken or all(set(names) == {name} for name, names in found.items()):
        return exported
    fresh = (
        name for number in itertools.count() if (name := f"output.{number}") not in taken | found.keys() | _names(other)
    )
    renamed = {
        name: tuple(dict.fromkeys(names)) if names else (next(fresh) if name in taken else name,)
        for name, names in found.items()
    }
    return dataclasses.replace(
        exported,
        results=tuple(
            tuple(dict.fromkeys(new for name in names for new in renamed[name])) for names in exported.results
        ),
        passed_through={new: source for name, source in exported.passed_through.items() for new in renamed[name]},
    )


def _names(exported: Export) -> set[str]:
    """All names of outputs."""
    return {name for names in exported.results for name in names} | set(exported.passed_through)
