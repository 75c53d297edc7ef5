"""Why a program was refused, and how to mend it: changes of the program after which it is proved."""

from verifycompile.cause.findings import with_causes
from verifycompile.cause.moves.plans import with_styles
from verifycompile.cause.moves.records import right_record
from verifycompile.cause.moves.unused import with_unread_input
from verifycompile.cause.origins import line_of_own
from verifycompile.cause.search import find_causes
from verifycompile.cause.stopped import with_gradients_passed
from verifycompile.cause.subject import OneGraph, Subject
from verifycompile.cause.told import Cause

__all__ = [
    "Cause",
    "OneGraph",
    "Subject",
    "find_causes",
    "line_of_own",
    "right_record",
    "with_causes",
    "with_gradients_passed",
    "with_styles",
    "with_unread_input",
]
