"""Attributes that are others for a while."""

from __future__ import annotations

import pytest

from verifycompile.torch_interface.replaced import replaced


class Owner:
    number = 1

    @property
    def shape(self) -> int:
        return 2


def test_what_was_there_comes_back_after_an_error_as_well() -> None:
    before = vars(Owner)["shape"]

    def fail_inside() -> None:
        with replaced([(Owner, "number", 3), (Owner, "shape", property(lambda _: 4))]):
            assert (Owner().number, Owner().shape) == (3, 4)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail_inside()
    assert (Owner().number, vars(Owner)["shape"]) == (1, before)


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="absent"), replaced([(Owner, "absent", 1)]):
        pass
