"""The closure that disposes of the e-graph's instances: what must hold of it, check by check."""

from __future__ import annotations

from tests.refinement.closure_checks import checks


def test_what_the_closure_must_say() -> None:
    """Instances of all laws, other equations, guards that do not hold; ``python -m tests.lemmas`` tries its mutants."""
    found = list(checks())
    assert len(found) > 90
    for name, check in found:
        try:
            check()
        except AssertionError as error:
            raise AssertionError(name) from error
