"""Variables of enclosing functions."""

from __future__ import annotations

from verifycompile.torch_interface.dynamo.closures import closed_over, values_closed_over


def test_names_and_values_of_what_is_assigned():
    first, second = 1, "two"

    def function():
        return first, second, later

    assert list(closed_over(function.__code__, function.__closure__)) == [("first", 1), ("second", "two")]
    later = 3
    assert list(values_closed_over(function.__code__, function.__closure__)) == [1, 3, "two"]


def test_a_function_without_variables():
    assert list(closed_over(test_a_function_without_variables.__code__, None)) == []
