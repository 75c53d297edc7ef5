import operator

import torch

from verifycompile.torch_interface.operators.calls import is_overload, is_pointwise, number_arguments
from verifycompile.torch_interface.operators.prims import READ_NUMBER
from verifycompile.torch_interface.operators.schema import Argument, arguments_of, draws_random_numbers, is_mutable

aten = torch.ops.aten


def test_arguments_carry_their_defaults():
    beta = next(a for a in arguments_of(aten.addmm.default) or () if a.name == "beta")
    assert beta == Argument("beta", kwarg_only=True, has_default=True, default=1)


def test_arguments_without_a_default():
    assert [a.has_default for a in arguments_of(aten.mm.default) or ()] == [False, False]


def test_other_call_targets_have_no_schema():
    assert arguments_of(operator.getitem) is None
    assert not is_overload(operator.getitem)
    assert is_overload(aten.mm.default)


def test_numbers_that_an_operator_calculates_with():
    assert number_arguments(aten.add.Scalar) == {"self", "other", "alpha"}
    assert number_arguments(aten.clamp.default) == {"self", "min", "max"}
    assert number_arguments(aten.view.default) == {"self"}
    assert "dim" not in number_arguments(aten.sum.dim_IntList)
    assert number_arguments(operator.getitem) == frozenset()


def test_in_place_operators_are_mutable():
    assert is_mutable(aten.add_.Tensor)
    assert is_mutable(torch.ops._c10d_functional.all_reduce_.default)
    assert not is_mutable(aten.add.Tensor)
    assert not is_mutable(operator.getitem)


def test_what_draws_random_numbers():
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert draws_random_numbers(aten.native_dropout.default, (None, 0.5, True), {})
    assert not draws_random_numbers(aten.native_dropout.default, (None, 0.0, True), {})
    assert draws_random_numbers(aten.bernoulli.p, (None, 0.5), {})
    assert draws_random_numbers(aten.rand_like.default, (None,), {})
    assert not draws_random_numbers(attention, (None, None, None), {})
    assert draws_random_numbers(attention, (None, None, None, 0.1), {})
    assert not draws_random_numbers(aten.mm.default, (None, None), {})
    assert not draws_random_numbers(operator.getitem, (None, 0), {})


def test_what_works_on_single_elements():
    assert is_pointwise(aten.mul.Tensor)
    assert is_pointwise(aten.silu_backward.default)
    assert not is_pointwise(aten.mm.default)
    assert not is_pointwise(aten._softmax.default)
    assert not is_pointwise(aten.cumsum.default)
    assert not is_pointwise(operator.getitem)


def test_the_only_element_as_a_number():
    assert READ_NUMBER(torch.tensor(3)) == 3
