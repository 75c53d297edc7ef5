"""What trying a change may raise, and what is said of anything else that is raised in the search for a cause."""

from __future__ import annotations

from verifycompile.capture.ranks.merged_collectives import UnmergeableError
from verifycompile.capture.ranks.rank_schedule import OrderError
from verifycompile.cause.draft import DraftError
from verifycompile.witness.error import EvaluationError

UNKNOWN = (EvaluationError, DraftError)
"""What is raised where something that a kind of change asks for is not known: a value, a node, a mesh."""

UNFIT = (*UNKNOWN, UnmergeableError, OrderError, RuntimeError, TypeError, ValueError, IndexError, ArithmeticError)
"""What a changed program may raise that is none: ranks that no longer fit together, and what torch's operators raise of
any kind for arguments that do not fit."""


def failure(doing: str, error: Exception) -> str:
    """What a report says where something else was raised: a mistake of this package, which ends ``doing`` alone."""
    return f"an internal error ended {doing}: {type(error).__name__}: {error}. Please report it"
