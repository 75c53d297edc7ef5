"""The three answers."""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    """``VERIFIED``: every output of the spec is a clean expression of the implementation's outputs.

    ``REFUTED``: a concrete input shows a different value. ``UNPROVED``: neither; never a success and never a claim
    that the program is wrong.
    """

    VERIFIED = "verified"
    REFUTED = "refuted"
    UNPROVED = "unproved"
