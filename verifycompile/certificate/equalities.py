"""Equalities that a search has found, as a certificate holds them: shown again, then taken for known.

Of an instance of a law an expression is a list as JSON, a rational number an object with its text.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch.fx

from verifycompile.certificate.storage import StorageError, placements_from_data
from verifycompile.ir.relabel import UnalignedError, permute
from verifycompile.ir.term import TermPool, View
from verifycompile.program import Mesh, Program
from verifycompile.refinement.attempt import Attempt, ClaimError
from verifycompile.refinement.cases import equal_by_cases
from verifycompile.refinement.closure import Instance, alias_of, instances_prove
from verifycompile.refinement.encoding import encode
from verifycompile.refinement.oriented import oriented
from verifycompile.refinement.placement import Placements
from verifycompile.refinement.ring import equal_in_ring
from verifycompile.rewrites.interpretation import Expression
from verifycompile.rewrites.registry import UnsupportedError


@dataclasses.dataclass(frozen=True)
class Equality:
    """The values of two nodes are equal under these placements (None: no mesh), by the lemmas named.

    ``instances``: of laws, by which they are; without any, they are equal in the ring, or in every case. ``order``: of
    the dimensions of the spec's value as the implementation has them (None: their own).
    """

    spec_node: str
    impl_node: str
    placements: Placements | None
    lemmas: tuple[str, ...]
    instances: tuple[Instance, ...] = ()
    order: tuple[int, ...] | None = None

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Equality:
        """The equality that was written. Raises StorageError."""
        return Equality(
            data["spec_node"],
            data["impl_node"],
            placements_from_data(data["placements"]),
            tuple(data["lemmas"]),
            tuple(map(_instance_from_data, data["instances"])),
            None if data["order"] is None else tuple(data["order"]),
        )

    def take(self, pool: TermPool, left: View, right: View, mesh: Mesh | None, *, real: bool) -> None:
        """Replace the implementation's term by the spec's from now on. Raises ClaimError where they are not equal.

        ``real``: whether no value of the programs is complex, without which laws of functions say nothing.
        """
        if self.order is not None and sorted(self.order) != list(range(left.rank)):
            raise ClaimError(f"{self.order} is no order of the dimensions of `{self.spec_node}`")
        left = left if self.order is None else permute(left, self.order)
        try:
            expected, found = oriented(pool, left, right, self.placements, mesh)
        except (UnsupportedError, UnalignedError) as error:
            raise ClaimError(f"the equality of `{self.impl_node}`: {error}") from error
        alias = alias_of(expected, found)
        if alias is None or found.term in pool.aliases or not self._is_shown(pool, expected, found, real):
            raise ClaimError(f"`{self.impl_node}` is not shown to be `{self.spec_node}`")
        pool.replace(found.term, alias)

    def _is_shown(self, pool: TermPool, expected: View, found: View, real: bool) -> bool:
        if not self.instances:
            return equal_in_ring(pool, expected, found) or (real and equal_by_cases(expected, found))
        encoded = encode(expected, found) if real else None
        return encoded is not None and instances_prove(pool, *encoded, self.instances) is not None


def take_all(
    equalities: Sequence[Mapping[str, Any]],
    spec: Program,
    implementation: Program,
    pool: TermPool,
    placements: Mapping[str, Placements],
) -> None:
    """Show each equality, and take it for known. They were proved with all facts about indices known."""
    _learn_facts(spec, implementation, pool, placements)
    for equality in map(Equality.from_data, equalities):
        checker = Attempt(spec, implementation, pool, placements)
        nodes = _named(spec, equality.spec_node), _named(implementation, equality.impl_node)
        left, right = checker.value_of(*nodes)
        if left is None or right is None:
            raise ClaimError(f"`{equality.spec_node}` or `{equality.impl_node}` has no value")
        equality.take(pool, left, right, implementation.mesh, real=spec.is_real and implementation.is_real)


def _learn_facts(spec: Program, implementation: Program, pool: TermPool, placements: Mapping[str, Placements]) -> None:
    """Lower both programs once, so that every fact about an index is known; what that proves is left to others."""
    while True:
        with contextlib.suppress(ClaimError):
            Attempt(spec, implementation, pool, placements).run()
        if not pool.learn():
            return


def _named(program: Program, name: str) -> torch.fx.Node:
    for node in program.graph.graph.nodes:
        if node.name == name:
            return node
    raise ClaimError(f"no node is called `{name}`")


def _instance_from_data(data: Mapping[str, Any]) -> Instance:
    return Instance(str(data["law"]), {str(name): _from_data(value) for name, value in data["values"].items()})


def _from_data(data: Any) -> Expression:
    if isinstance(data, dict):
        return Fraction(data["number"])
    if isinstance(data, list):
        return tuple(_from_data(part) for part in data)
    if isinstance(data, bool) or not isinstance(data, (int, str)):
        raise StorageError(f"no expression: {data!r}")
    return data
