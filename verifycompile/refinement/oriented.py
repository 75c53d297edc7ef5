"""Values of both programs as they are compared."""

from __future__ import annotations

from verifycompile.ir.term import TermPool, View
from verifycompile.program import Mesh
from verifycompile.refinement.placement import Placements, reduce_partial, shard


def oriented(
    pool: TermPool, left: View, right: View, placements: Placements | None, mesh: Mesh | None
) -> tuple[View, View]:
    """Both values as they are compared under ``placements``. Raises UnsupportedError and UnalignedError."""
    if mesh is None or placements is None:
        return left, right
    return shard(pool, left, placements, mesh), reduce_partial(pool, right, placements, mesh)
