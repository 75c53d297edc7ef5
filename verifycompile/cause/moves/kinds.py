"""The kinds of changes that are tried, and their order: few and telling ones before those that are many."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

from verifycompile.cause.moves.arrangements import arranged_before_cut, cut_as_others, neighbouring_positions
from verifycompile.cause.moves.as_other_ranks import lines_of_other_ranks
from verifycompile.cause.moves.as_spec import calls_of_spec, missing_summands
from verifycompile.cause.moves.before_reductions import reduced_operands
from verifycompile.cause.moves.boundary import other_input_placements, other_output_placements
from verifycompile.cause.moves.collectives import (
    exchanged_groups,
    missing_exchanges,
    missing_gradient_reductions,
    missing_reductions,
    missing_sums_of_graphs,
    needless_collectives,
    other_groups,
    other_reductions,
    sums_of_functions,
)
from verifycompile.cause.moves.entries import exchanged_entries
from verifycompile.cause.moves.fused import component_placements, own_components
from verifycompile.cause.moves.gathered_products import gathered_products
from verifycompile.cause.moves.look_ups import (
    ends_of_parts,
    foreign_rows,
    indices_of_part,
    numbers_of_part,
    other_bounds,
    wrapped_positions,
)
from verifycompile.cause.moves.lost_sums import lost_sums
from verifycompile.cause.moves.lost_turns import lost_turns
from verifycompile.cause.moves.means import means_of_all, means_of_kept
from verifycompile.cause.moves.move import Move, Scene
from verifycompile.cause.moves.needless_gathers import gathers_of_wholes, needless_gathers
from verifycompile.cause.moves.numbers import other_coordinates, other_numbers, shifted_numbers
from verifycompile.cause.moves.offsets import missing_scatters, own_part_of_operand, own_parts
from verifycompile.cause.moves.operands import needless_calls, other_operands
from verifycompile.cause.moves.orders import other_orders, parts_of_blocks
from verifycompile.cause.moves.pieces import (
    exchanged_inputs,
    exchanged_pieces,
    other_dimensions,
    other_pieces,
)
from verifycompile.cause.moves.scales import (
    added_on_every_rank,
    factor_changes,
    missing_factors,
    ratios,
    scaled_means,
    scaled_values,
)
from verifycompile.cause.moves.spec_arguments import arguments_of_spec, numbers_of_lines, shares_of_numbers
from verifycompile.cause.moves.steps import other_steps, spread_pieces
from verifycompile.cause.moves.tables import positions_of_spec, tables_of_spec
from verifycompile.cause.moves.turns import values_of_turns
from verifycompile.cause.moves.unused import unused_summands
from verifycompile.cause.moves.versions import other_versions, overwritten
from verifycompile.cause.moves.whole_dimensions import (
    gathered_along_others,
    gathered_operands,
    gathered_repeats,
    scattered_along_others,
)
from verifycompile.cause.moves.whole_inputs import whole_inputs
from verifycompile.program import Role

Kinds = Callable[[Scene], tuple[Iterator[Move], ...]]
"""The changes of a program by kind."""


class Stage(enum.Enum):
    """What is tried one after the other: at last moves that are many."""

    SUSPECTED = -1
    """Reductions at the lines where the proof found that one is missing."""
    LIKELY = 0
    NEAR = 1
    """Reductions behind which the next missing value of the spec is held."""
    MISSING = 2
    SCALED = 3
    UNLIKELY = 4
    LAST = 5
    """What mends many mistakes, and is seldom what was mistaken."""

    @property
    def kinds(self) -> Kinds:
        kinds = {Stage.LIKELY: likely, Stage.SCALED: scaled, Stage.UNLIKELY: unlikely, Stage.LAST: last}
        return kinds.get(self, missing)

    @property
    def is_last_of_likely(self) -> bool:
        """Whether changes that mend some outputs each may be combined now: what else mends them is known.

        A scale that mends all is no four missing means.
        """
        return self.value >= Stage.SCALED.value


AT_FIRST = (Stage.SUSPECTED, Stage.LIKELY, Stage.MISSING, Stage.SCALED, Stage.NEAR)
"""The order where there are few nodes to look at: then what takes long is what looks at values on the way."""


def likely(scene: Scene) -> tuple[Iterator[Move], ...]:
    """What is wrong in most parallel programs, by kind: few and telling moves before others."""
    found = ratios(scene)
    factors_of_their_own, other_factors, factors_of_spec = factor_changes(scene, found)
    return (
        means_of_all(scene),
        means_of_kept(scene),
        iter(factors_of_their_own),
        needless_collectives(scene),
        reduced_operands(scene),
        lost_sums(scene),
        gathers_of_wholes(scene),
        iter(other_factors),
        other_groups(scene),
        exchanged_groups(scene),
        other_reductions(scene),
        sums_of_functions(scene),
        added_on_every_rank(scene),
        iter(factors_of_spec),
        missing_gradient_reductions(scene),
        missing_scatters(scene),
        own_parts(scene),
        other_input_placements(scene),
        own_components(scene),
        component_placements(scene, (Role.PARAMETER, Role.BUFFER)),
        scaled_means(scene, found),
        indices_of_part(scene),
        other_bounds(scene),
        wrapped_positions(scene),
        numbers_of_part(scene),
        foreign_rows(scene),
        other_coordinates(scene),
        other_steps(scene),
        spread_pieces(scene),
        other_numbers(scene),
        ends_of_parts(scene),
        tables_of_spec(scene),
        shares_of_numbers(scene),
        numbers_of_lines(scene),
        shifted_numbers(scene),
        exchanged_entries(scene),
    )


def of_places(scene: Scene) -> tuple[Iterator[Move], ...]:
    """Where a rank's part begins and ends."""
    return other_numbers(scene), ends_of_parts(scene), other_steps(scene), arranged_before_cut(scene), own_parts(scene)


def missing(scene: Scene) -> tuple[Iterator[Move], ...]:
    return missing_reductions(scene), missing_sums_of_graphs(scene)


def scaled(scene: Scene) -> tuple[Iterator[Move], ...]:
    return (scaled_values(scene, ratios(scene)),)


def unlikely(scene: Scene) -> tuple[Iterator[Move], ...]:
    """What else a change of one node may be: moves that are many."""
    return (
        lines_of_other_ranks(scene),
        missing_exchanges(scene),
        values_of_turns(scene),
        lost_turns(scene),
        unused_summands(scene),
        other_versions(scene),
        overwritten(scene),
        arguments_of_spec(scene),
        missing_summands(scene),
        missing_factors(scene),
        gathered_along_others(scene),
        gathered_repeats(scene),
        scattered_along_others(scene),
        gathered_operands(scene),
        gathered_products(scene),
        needless_gathers(scene),
        cut_as_others(scene),
        arranged_before_cut(scene),
        other_orders(scene),
        neighbouring_positions(scene),
        own_part_of_operand(scene),
        needless_calls(scene),
        exchanged_pieces(scene),
        exchanged_inputs(scene),
        other_dimensions(scene),
        parts_of_blocks(scene),
        other_output_placements(scene),
        other_pieces(scene),
        calls_of_spec(scene),
    )


def last(scene: Scene) -> tuple[Iterator[Move], ...]:
    return (
        positions_of_spec(scene),
        other_operands(scene),
        component_placements(scene, (Role.INPUT,)),
        whole_inputs(scene),
    )


def arranged(scene: Scene) -> tuple[Iterator[Move], ...]:
    """Orders that are wrong twice where elements go to other ranks and come back."""
    return (other_orders(scene),)


def as_spec(scene: Scene) -> tuple[Iterator[Move], ...]:
    """What the spec computes before, and the program behind, something else."""
    return (calls_of_spec(scene),)
