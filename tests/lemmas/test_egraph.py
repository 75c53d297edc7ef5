"""The e-graph proposes instances of laws of functions; the closure decides by them. Equalities, and what is none."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifycompile.ir.exponential import MAXIMUM, WHERE
from verifycompile.refinement import egraph
from verifycompile.refinement.check import new_pool
from verifycompile.refinement.closure import Instance, instances_prove
from verifycompile.refinement.egraph import may_help, propose, prove_equal, rule_text
from verifycompile.refinement.encoding import encode
from verifycompile.refinement.numbers import differ
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.interpretation import build, ground
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.operators.elementwise import FUNCTIONS


@pytest.fixture
def b():
    return Builder(new_pool())


@pytest.fixture
def leaves(b):
    return {name: b.pool.leaf(name, (3, 4)) for name in "xyz"}


def function(b, name, view):
    return b.pointwise(FUNCTIONS[name], view)


def as_sigmoid(b, x, factor=2):
    return b.sub(b.scale(function(b, "sigmoid", b.scale(x, factor)), 2), 1)


def shifted_maxima(b, x, y, z):
    return b.add(b.pointwise(MAXIMUM, x, y), z), b.pointwise(MAXIMUM, b.add(x, z), b.add(y, z))


def test_the_instances_that_prove_it_are_listed(b, leaves):
    x = leaves["x"]
    proof = prove_equal(b.pool, function(b, "tanh", x), as_sigmoid(b, x))
    assert proof is not None
    assert proof.means == "egraph"
    assert proof.lemmas == (("hyperbolic-tangent", 1),)
    assert proof.instances == (Instance("VL110", {"a": 0}),)


@pytest.mark.parametrize("factor", [0, 1, 3, -2])
def test_another_factor_is_not_proved(b, leaves, factor):
    x = leaves["x"]
    assert prove_equal(b.pool, function(b, "tanh", x), as_sigmoid(b, x, factor)) is None


def test_what_replaces_a_term_is_forgotten_after_the_question(b, leaves):
    x = leaves["x"]
    tanh = function(b, "tanh", x)
    assert prove_equal(b.pool, tanh, as_sigmoid(b, x)) is not None
    assert b.pool.aliases == {}
    assert function(b, "tanh", x) == tanh


def test_values_of_other_shapes_and_without_functions_are_not_asked_about(b, leaves, monkeypatch):
    monkeypatch.setattr(egraph, "_prove_equal", lambda *_: pytest.fail("asked"))
    x, y, _ = leaves.values()
    assert prove_equal(b.pool, function(b, "tanh", x), function(b, "tanh", b.pool.leaf("w", (4, 2)))) is None
    assert not may_help(b.add(x, y), b.mul(x, y))
    assert prove_equal(b.pool, b.exp(x), b.mul(x, y)) is None


def test_what_differs_in_numbers_starts_no_search(b, leaves, monkeypatch):
    monkeypatch.setattr(egraph, "propose", lambda *_: pytest.fail("searched"))
    x, y, _ = leaves.values()
    assert prove_equal(b.pool, function(b, "tanh", x), function(b, "sigmoid", x)) is None
    assert prove_equal(b.pool, b.pointwise(MAXIMUM, x, y), b.add(x, b.pointwise(MAXIMUM, y, 0))) is None


def test_a_question_is_asked_once(b, leaves, monkeypatch):
    asked = []
    monkeypatch.setattr(egraph, "_prove_equal", lambda *views: asked.append(views))
    x, y, _ = leaves.values()
    for _ in range(2):
        assert prove_equal(b.pool, function(b, "tanh", x), function(b, "tanh", y)) is None
    assert len(asked) == 1


def test_integers_wrap_around_and_are_left_out(b):
    views = [b.pool.leaf(name, (3, 4), whole=True) for name in "xyz"]
    assert prove_equal(b.pool, *shifted_maxima(b, *views)) is None


def test_a_choice_of_what_may_be_no_number_is_no_product(b, leaves):
    x, y, z = leaves.values()
    mask = b.pool.leaf("m", (3, 4), indicator=True)

    def proof(value):
        left = b.pointwise(WHERE, mask, b.add(value, z), z)
        return prove_equal(b.pool, left, b.add(z, b.mul(mask, value)))

    assert proof(y) is not None
    assert proof(b.log(x)) is None
    assert proof(b.divide(y, x)) is None


def test_what_ran_out_is_named(b, leaves, monkeypatch):
    sides = shifted_maxima(b, *leaves.values())
    egraph.take_exhausted()
    assert prove_equal(b.pool, *sides) is not None
    b.pool.forget()
    egraph.take_exhausted()
    monkeypatch.setattr(egraph, "_MAX_NODES", 3)
    prove_equal(b.pool, *sides)
    assert egraph.take_exhausted() == ("3 e-nodes",)


def test_a_class_that_holds_zero_does_not_grow_without_bound(b, leaves):
    """``max(-max(x, 0), 0)`` is zero, and so is each of its scalings."""
    x, y, _ = leaves.values()
    mask, zero = b.pool.leaf("m", (3, 4), indicator=True), b.scale(x, 0)
    nothing = b.pointwise(MAXIMUM, zero, b.scale(b.pointwise(MAXIMUM, x, zero), -1))
    encoded = encode(b.mul(y, mask), nothing)
    assert encoded is not None
    assert len(propose(*encoded)) > 1


def test_a_rule_records_its_instance():
    (law,) = [law for law in FUNCTION_LAWS if law.code == "VL124"]
    assert rule_text(law) == (
        "(relation fired-VL124 (BigRat V))\n"
        "(rule ((= e (Maximum (Scale p a) (Zero))) (> p (bigrat (bigint 0) (bigint 1))) (defined a)) "
        "((union e (Scale p (Maximum a (Zero)))) (fired-VL124 p a)))"
    )


def test_every_instance_that_is_proposed_is_one_of_its_law(b, leaves):
    encoded = encode(*shifted_maxima(b, *leaves.values()))
    laws = {law.code: law for law in FUNCTION_LAWS}
    instances = propose(*encoded)
    assert {instance.code for instance in instances} >= {"VL123"}
    for instance in instances:
        law = laws[instance.code]
        assert not differ(encoded[0], ground(law.left, instance.values), ground(law.right, instance.values))


def test_an_expression_is_built_to_the_value_that_it_was_read_from(b, leaves):
    x, y, _ = leaves.values()
    left = b.contraction("m k, k n -> m n", function(b, "tanh", b.add(x, b.exp(y))), b.pool.leaf("w", (4, 4)))
    space, first, second = encode(left, b.mul(x, x))
    for expression, view in ((first, left), (second, b.mul(x, x))):
        built = build(b, space, expression)
        assert (built.term, built.coefficient, built.axes) == (view.term, view.coefficient, view.axes)


EXPRESSIONS = st.recursive(
    st.integers(0, 1) | st.just(("one",)) | st.just(("zero",)),
    lambda inner: (
        st.tuples(st.sampled_from(["add", "mul", "maximum", "where"]), inner, inner)
        | st.tuples(st.sampled_from(["tanh", "abs", "sigmoid", "nonsense"]), inner)
        | st.tuples(st.just("scale"), st.sampled_from([Fraction(-1), Fraction(1, 2)]), inner)
    ),
    max_leaves=4,
)
NUMBERS = st.sampled_from([Fraction(-2), Fraction(3), 0])
VALUES = st.fixed_dictionaries({"a": EXPRESSIONS, "b": EXPRESSIONS, "c": EXPRESSIONS, "p": NUMBERS})
CODES = st.sampled_from([*(law.code for law in FUNCTION_LAWS), "VL05", "nonsense"])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.builds(Instance, CODES, VALUES), max_size=6))
def test_no_instances_prove_what_is_not_equal(instances):
    """Whatever is proposed: different values stay different, and nothing raises."""
    b = Builder(new_pool())
    x, y = (b.pool.leaf(name, (3, 4)) for name in "xy")
    pairs = [
        (function(b, "tanh", x), function(b, "tanh", y)),
        (function(b, "abs", x), x),
        (b.pointwise(MAXIMUM, x, y), x),
        (function(b, "tanh", x), as_sigmoid(b, x, 3)),
    ]
    for left, right in pairs:
        assert instances_prove(b.pool, *encode(left, right), instances) is None
    assert b.pool.aliases == {}
