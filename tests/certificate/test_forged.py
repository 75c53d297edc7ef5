"""Certificates that were changed and sealed again: each kind of leaf, each entry, and forgeries with a purpose."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import z3
from torch.distributed.tensor import Replicate
from torch.fx.experimental.proxy_tensor import make_fx

from tests.certificate.test_certificate import content, get_at, leaves, of_case, sealed, set_at
from tests.programs import mlp
from tests.programs.forms import vocabulary
from tests.programs.test_forms import judged
from tests.soundness.plain import verify_functions
from verifycompile.certificate import CertificateCheck, check_certificate
from verifycompile.certificate.making import _Proof
from verifycompile.certificate.parts import NO_CUTS
from verifycompile.certificate.storage import placements_from_data
from verifycompile.frontends.graphs import verify_graphs

Path = tuple[Any, ...]

HARMLESS = {
    "implementation.inputs.*.assumed": "who placed an input; where it lies is told",
    "implementation.inputs.*.open_axes": "a cotangent lies there as its output does, whose relation is told",
    "implementation.nodes.*.value.object": "the kind of an object that no proof reads",
    "implementation.outputs.*.global_stride.*": "how a DTensor's whole lies in memory",
    "implementation.outputs.*.open_axes": "what is required of an output; the relation that was found is told",
    "implementation.by_definition": "whether functions are written by others while values are compared",
    "implementation.piecewise": "how values are written while they are compared",
}
"""Kinds of leaves that may change without a change of what is claimed, and why."""


@functools.cache
def _original() -> str:
    report = of_case(mlp.residual_case(2))
    assert report.certificate is not None
    return report.certificate.to_json()


def _data() -> dict[str, Any]:
    return json.loads(_original())


def _kind(path: Path) -> str:
    parts = ["*" if isinstance(part, int) else str(part) for part in path]
    if parts[0] in {"relations", "placements"} and len(parts) > 1:
        parts[1] = "*"
    while len(parts) > 1 and parts[-2:] == ["*", "*"]:
        parts.pop()
    return ".".join(parts)


def _other(value: Any, draw: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + draw.choice([1, -1, 2])
    if isinstance(value, list | dict):
        return [0] if isinstance(value, list) else {"x": 0}
    if value in {"torch.float32", "torch.int64"}:
        return "torch.int64" if value == "torch.float32" else "torch.float32"
    return f"{value}x" if isinstance(value, str) else 1


def _chosen(data: dict[str, Any]) -> dict[str, list[Path]]:
    kinds: dict[str, list[Path]] = {}
    for path in leaves(data):
        if path != ("seal",):
            kinds.setdefault(_kind(path), []).append(path)
    return {kind: random.Random(0).sample(paths, min(2, len(paths))) for kind, paths in kinds.items()}


def _accepted(data: dict[str, Any], kinds: dict[str, list[Path]]) -> Iterator[tuple[str, CertificateCheck]]:
    draw = random.Random(1)
    for kind, paths in kinds.items():
        for path in paths:
            before = get_at(data, path)
            set_at(data, path, _other(before, draw))
            if found := check_certificate(sealed(data)):
                yield kind, found
            set_at(data, path, before)


def test_each_kind_of_leaf() -> None:
    data = _data()
    before = check_certificate(_original())
    assert before
    kinds = _chosen(data)
    assert len(kinds) >= 80
    for kind, found in _accepted(data, kinds):
        assert kind in HARMLESS, f"{kind}: {found}"
        assert str(found) == str(before), kind


def _entries(data: Any, path: Path = ()) -> Iterator[Path]:
    """Every list that is not empty, and every object, by its path."""
    if isinstance(data, dict | list) and data:
        yield path
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from _entries(data[key], (*path, key))


def test_an_entry_that_is_left_out() -> None:
    """Of lists the last entry and of objects each, of one list or object of a kind."""
    data, tried, accepted = _data(), 0, set[str]()
    for kind, path in {_kind(path): path for path in _entries(data) if path}.items():
        held = get_at(data, path)
        for key in list(held) if isinstance(held, dict) else [len(held) - 1]:
            fewer = copy.deepcopy(data)
            del get_at(fewer, path)[key]
            tried += 1
            if check_certificate(sealed(fewer)):
                accepted.add(kind if isinstance(held, list) else f"{kind}.{key}")
    assert tried > 60
    assert accepted <= OPTIONAL.keys()


OPTIONAL = {
    "implementation.assumptions": "an assumption of the capture, which the certificate goes on to list",
}
"""Entries that may be left out without a change of what is claimed, and why."""


# ------------------------------------------------------------------------------------------------ with a purpose


def _of_functions(spec: Any, implementation: Any, *values: torch.Tensor) -> dict[str, Any]:
    report = verify_graphs(make_fx(spec)(*values), make_fx(implementation)(*values), mesh=(2,))
    assert report.certificate is not None, str(report)
    return json.loads(report.certificate.to_json())


def _rejected(data: dict[str, Any], **options: bool) -> str:
    found = check_certificate(sealed(data), **options)
    assert not found
    return found.reason


@pytest.mark.parametrize("solver", [False, True])
def test_a_quotient_of_whole_numbers_is_not_whole(solver: bool) -> None:
    """The mean of whole numbers is a fraction: recorded as a whole number, it could be used as an index."""
    data = _of_functions(lambda x: x / 2 * 2, lambda x: x / 2 * 2, torch.arange(4))
    for side in ("spec", "implementation"):
        for node in data[side]["nodes"]:
            node["value"]["tensor"] = "torch.int64"
    assert _rejected(data, solver=solver) == "`div` is recorded as int64[4] where torch gives float32[4]"


def test_a_dtype_that_is_left_out() -> None:
    data = _of_functions(lambda x: x / 2, lambda x: x / 2, torch.arange(4))
    data["spec"]["nodes"][-1]["value"] = None
    assert _rejected(data) == "`div` is recorded as nothing where torch gives float32[4]"


def test_strides_that_are_read() -> None:
    def transposed(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x.t().contiguous(), (2, 3), (1, 2))

    data = _of_functions(transposed, transposed, torch.randn(2, 3))
    for side in ("spec", "implementation"):
        for node in data[side]["nodes"]:
            if "clone" in node["name"] or "contiguous" in node["name"]:
                node["value"]["stride"] = node["value"]["stride"][::-1]
    assert "lies otherwise in memory" in _rejected(data)


def _as_strided(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(x, (2, 3), (1, 2))


def test_strides_of_an_input_are_told_where_memory_is_read() -> None:
    """The same functions of an input that lies otherwise are other ones, and what is claimed says so."""
    data = _of_functions(_as_strided, _as_strided, torch.randn(2, 3))
    assert check_certificate(sealed(data)).inputs == {"x_1": "x_1"}
    for sides in (("spec", "implementation"), ("spec",), ("implementation",)):
        forged = copy.deepcopy(data)
        for side in sides:
            next(node for node in forged[side]["nodes"] if node["op"] == "placeholder")["value"]["stride"] = [1, 2]
        assert _rejected(forged)
    implementation = "(at strides 1, 2 from 0 in the implementation)"
    for spec, told in (
        (_as_strided, f"x_1 (at strides 1, 2 from 0 in the spec) {implementation}"),
        (lambda x: x.clone(), f"x_1 {implementation}"),
    ):
        transposed = _of_functions(spec, _as_strided, torch.randn(3, 2).t())
        assert check_certificate(sealed(transposed)).inputs == {"x_1": told}
    assert check_certificate(sealed(_of_functions(torch.t, torch.t, torch.randn(3, 2).t()))).inputs == {"arg0_1": "arg0_1"}


def test_no_outputs() -> None:
    data = _data()
    for side in ("spec", "implementation"):
        data[side]["outputs"] = []
    assert _rejected({**data, "relations": {}, "placements": {}, "steps": []}) == "it covers no output"


def test_assumptions_that_are_stripped() -> None:
    data = _data()
    assert "it does not list the assumption" in _rejected({**data, "assumptions": []})
    data["implementation"]["assumptions"] = data["spec"]["assumptions"] = []
    assert _rejected({**data, "assumptions": []}) == "it does not list the assumption: `x` is placed (R) by default"


def test_numbers_among_the_inputs_that_change_places() -> None:
    """What is a factor in one program is called by the name of another number in the other one."""
    given = (torch.randn(4, 6), 3, 5)
    graphs = (make_fx(lambda x, n, m: x * n, tracing_mode="symbolic")(*given) for _ in range(2))
    certificate = verify_graphs(*graphs, mesh=(2,)).certificate
    assert certificate is not None
    data = json.loads(certificate.to_json())
    _, first, second = data["implementation"]["inputs"]
    first["name"], second["name"] = second["name"], first["name"]
    wanted = "the number `m_1`, an input of the implementation, is not the spec's input of that name"
    assert _rejected(data) == wanted


def test_another_kind_of_output() -> None:
    data = _data()
    for side in ("spec", "implementation"):
        (output,) = (o for o in data[side]["outputs"] if o["name"] == "output.0")
        output["kind"] = "gradient"
    assert _rejected(data) == "`output.0` of the spec is no gradient"


def test_another_global_shape() -> None:
    data = _data()
    weight = next(i for i in data["implementation"]["inputs"] if i["name"] == "up.weight")
    weight["global_shape"][0] *= 2
    assert _rejected(data) == "the whole of `up.weight` is another one in the spec"


@pytest.mark.parametrize(
    "path",
    [
        (), ("inputs", 0), ("outputs", 0), ("nodes", 0), ("nodes", -1), ("nodes", 0, "value"),
    ],
)  # fmt: skip
def test_what_nothing_reads(path: Path) -> None:
    data = _data()
    get_at(data, ("implementation", *path))["believe"] = True
    assert _rejected(data) == "no stored program: StorageError: it holds what its programs do not need: `believe`"


@pytest.mark.parametrize("side", ["spec", "implementation"])
def test_a_node_that_nothing_needs(side: str) -> None:
    data = _data()
    last = data[side]["nodes"][-1]
    data[side]["nodes"].append({**last, "name": "unneeded"})
    assert _rejected(data) == "it holds what its programs do not need: the node `unneeded`"


@pytest.mark.parametrize("axes", [[["tp", 0]], [["tp", 2], ["tp", 1]], [["tp", -1]]])
def test_another_mesh(axes: list[list[Any]]) -> None:
    data = _data()
    data["implementation"]["mesh"] = axes
    assert _rejected(data) == "its mesh is none: an axis occurs twice, or has no ranks"


@pytest.mark.parametrize("side", ["spec", "implementation"])
def test_inputs_that_are_left_out(side: str) -> None:
    data = _data()
    for position in range(len(data[side]["inputs"])):
        fewer = copy.deepcopy(data)
        del fewer[side]["inputs"][position]
        assert _rejected(fewer) == f"the inputs of the {side} are not its placeholders"


def test_what_is_covered() -> None:
    found = check_certificate(_original())
    assert found.outputs == ("output.0",)
    assert found.gradients == tuple(f"grad.{name}" for name in ("up.weight", "up.bias", "down.weight", "down.bias"))
    assert found.mutations == ()
    assert found.mesh == "tp=2"
    assert found.inputs["up.weight"] == "concat(up.weight, dim=0, over=tp)"
    assert "`x` is placed (R) by default" in found.assumptions
    assert found.facts == ()
    facts = check_certificate(sealed(content("facts of the solver"))).facts
    assert len(facts) >= 2


def _proved_again(data: dict[str, Any]) -> dict[str, Any]:
    """With what a forger finds who proves the changed programs."""
    placements = {name: placements_from_data(item) or () for name, item in data["placements"].items()}
    made = _Proof([data["spec"], data["implementation"]], placements, data["equalities"]).made_again(NO_CUTS)
    found = {"relations": dict(made.replay.relations), "values": dict(made.replay.values), "families": made.families}
    return {**data, **found, "steps": made.rules.data, "views": made.rules.views, "facts": made.facts}


def _call(name: str, target: str, *args: Any, shape: list[int]) -> dict[str, Any]:
    value = {"tensor": "torch.float32", "shape": shape, "stride": [*shape[1:], 1], "offset": 0}
    return {"name": name, "op": "call_function", "target": target, "args": list(args), "value": value}


def test_a_gradient_that_is_twice_the_specs_is_told() -> None:
    """It is right where a wrapper takes the mean of it afterwards."""
    data = _data()
    (output,) = (o for o in data["implementation"]["outputs"] if o["name"] == "grad.down.bias")
    twice = _call("twice", "aten.mul.Tensor", {"node": output["node"]}, 2.0, shape=[16])
    data["implementation"]["nodes"].append(twice)
    output.update(node="twice", outer_mean=[0])
    found = check_certificate(sealed(_proved_again(data)))
    assert found.gradients[-1] == "grad.down.bias (its mean over tp is taken outside)"
    output["outer_mean"] = []
    assert _rejected(data) == "no relation of `grad.down.bias`"


@pytest.mark.parametrize("solver", [False, True])
def test_a_text_of_a_function_that_names_a_group(solver: bool) -> None:
    """What a text says where no group is called is what it says, whatever groups the mesh has."""
    data = _of_functions(F.gelu, F.gelu, torch.randn(4))
    side = data["implementation"]
    (call,) = (node for node in side["nodes"] if node["op"] == "call_function")
    call["kwargs"] = {"approximate": "tanh"}
    assert _rejected(data, solver=solver) == "no relation of `output.0`"
    side["groups"]["tanh"] = [0]
    assert _rejected(data, solver=solver) == "no relation of `output.0`"


def test_where_a_cotangent_lies_is_told() -> None:
    """Gradients of which every rank adds up the cotangent are right where it is a part of a sum."""
    data = _data()
    nodes = data["implementation"]["nodes"]
    (cotangent,) = (i for i in data["implementation"]["inputs"] if i["role"] == "tangent")
    (place,) = (k for k, node in enumerate(nodes) if node["name"] == "wait_tensor")
    group, summed = {"node": "mesh_get_process_group"}, [8, 16]
    added = _call("added", "_c10d_functional.all_reduce.default", {"node": "tangents_1"}, "sum", group, shape=summed)
    waited = _call("waited", "_c10d_functional.wait_tensor.default", {"node": "added"}, shape=summed)
    text = json.dumps(nodes[place:]).replace('"tangents_1"', '"waited"')
    data["implementation"]["nodes"] = [*nodes[:place], added, waited, *json.loads(text)]
    assert _rejected(data).startswith("no relation of `grad.")
    cotangent["placements"] = [["partial", "sum"]]
    found = check_certificate(sealed(_proved_again(data)))
    assert found, found.reason
    assert found.inputs["cotangent of output.0"] == "sum(output.0, over=tp)"


# ------------------------------------------------------------------------------------------------ steps by lemmas


@functools.cache
def _loss() -> str:
    """A cross entropy over a sharded vocabulary: exponentials, look-ups and masks."""
    (form,) = (form for form in vocabulary.FORMS if form.name == "loss-cross-entropy-4")
    report, _ = judged(form, "")
    assert report.certificate is not None
    return report.certificate.to_json()


def with_steps() -> dict[str, Any]:
    return json.loads(_loss())


def _refused(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Iterator[str]:
    """Why a certificate is refused, for each of its steps after a change of the step."""
    for number in range(len(with_steps()["steps"])):
        data = with_steps()
        change(data, data["steps"][number])
        yield _rejected(data)


def test_a_step_that_is_left_out() -> None:
    """A relation may hold without a step: then the certificate says the same without it."""
    before, accepted = check_certificate(_loss()), 0
    for step in with_steps()["steps"]:
        data = with_steps()
        data["steps"].remove(step)
        found = check_certificate(sealed(data))
        accepted += bool(found)
        assert not found or str(found) == str(before)
        assert found or found.reason.startswith(("no relation of", "its values", "it lists", "it holds a view"))
    assert accepted <= len(with_steps()["steps"]) // 4


@pytest.mark.parametrize(("field", "other"), [(0, "7/3"), (2, "0" * 16), (3, []), (4, [2, 2])])
def test_a_view_of_a_step_is_another_one(field: int, other: Any) -> None:
    """Each view of the table with another coefficient, term, axes or shape.

    A linear law holds with a multiple of its values too: such a certificate holds, and says the same.
    """
    before, accepted = check_certificate(_loss()), 0
    for number in range(len(with_steps()["views"])):
        data = with_steps()
        same = data["views"][number][field] == other
        data["views"][number][field] = other
        found = check_certificate(sealed(data))
        assert not found or str(found) == str(before)
        assert found or found.reason.startswith(("its step by", "no relation of", "its values"))
        accepted += bool(found) and not same
    assert accepted <= len(with_steps()["views"]) // (2 if field == 0 else 8)


def test_a_step_by_another_lemma() -> None:
    def change(data: dict[str, Any], step: dict[str, Any]) -> None:
        step["lemma"] = "VL42" if step["lemma"] != "VL42" else "VL41"

    assert all(" is none: " in reason for reason in _refused(change))


def test_other_factors_are_matched() -> None:
    def change(data: dict[str, Any], step: dict[str, Any]) -> None:
        step["matched"] = step["matched"][1:] or [step["matched"][0] + 1]

    assert all(" is none: " in reason for reason in _refused(change))


def test_a_step_of_another_node() -> None:
    def change(data: dict[str, Any], step: dict[str, Any]) -> None:
        step["node"] = "spec.none"

    assert all("`spec.none` is needed at `" in reason for reason in _refused(change))


def test_a_step_at_another_position() -> None:
    def change(data: dict[str, Any], step: dict[str, Any]) -> None:
        step["position"] = "0" * 16

    for reason in _refused(change):
        assert reason.startswith(("no relation of", "it lists", "its step by"))


def test_two_steps_at_one_position() -> None:
    data = with_steps()
    data["steps"].append(data["steps"][0])
    assert _rejected(data) == "two steps are at one position"


def test_a_step_with_something_more() -> None:
    data = with_steps()
    data["steps"][0]["believe"] = True
    assert _rejected(data) == "a step has no `believe`"


def test_views_that_no_step_needs() -> None:
    data = with_steps()
    data["views"].append(data["views"][0])
    assert _rejected(data) == "it holds a view that no step needs"


def test_a_value_that_is_made_of_others() -> None:
    """Of a gradient at places of a flat table: what stands beside a mask is made again, and no other value is taken for it."""

    def taken(codes: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return table.flatten()[(codes * 4)[:, None] + torch.arange(4)].tanh()

    given = torch.randint(4, (3,)), torch.randn(5, 4, requires_grad=True)
    whole = {"a": (Replicate(),), "b": (Replicate(),)}
    report = verify_functions(taken, lambda mesh, codes, table: taken(codes, table), given, in_placements=whole)
    assert report.certificate is not None
    data = json.loads(report.certificate.to_json())
    found = check_certificate(sealed(data))
    assert found, str(found)
    made = [number for number, view in enumerate(data["views"]) if view[1] == "made" and view[2][0] == "beside"]
    assert made
    for number in made:
        name, mask, value = data["views"][number][2]
        for operands in ((value, mask), (mask, mask), (value, value)):
            views = [*data["views"]]
            views[number] = ["1", "made", [name, *operands], [], None]
            assert _rejected({**data, "views": views}).startswith("its step by ")


def test_families_that_were_not_used() -> None:
    data = with_steps()
    fewer = {**data, "families": [name for name in data["families"] if name != "contraction"]}
    reason = "it lists other families of declarations than the proof has used"
    assert _rejected(fewer) == _rejected({**data, "families": [*data["families"], "writing"]}) == reason
    other = "no certificate: ValueError: no family of declarations is called `os`"
    assert _rejected({**data, "families": ["os"]}) == other


# ------------------------------------------------------------------------------------------------ facts


def test_facts_are_texts_that_a_solver_is_asked() -> None:
    facts = content("facts of the solver")["facts"]
    assert len(facts) >= 2
    for text in facts:
        solver = z3.Solver()
        solver.from_string(text)
        assert solver.check() == z3.unsat
        assert text.startswith("(set-logic ALL) (declare-const ")
        assert text.endswith(" (check-sat)")


@pytest.mark.parametrize("solver", [False, True])
def test_the_text_of_another_fact_answers_no_question(solver: bool) -> None:
    """A text that follows, but of another question, and one that does not follow."""
    data = content("facts of the solver")
    first, second, *rest = data["facts"]
    assert not check_certificate(sealed({**data, "facts": [first, first, *rest]}), solver=solver)
    weaker = "(set-logic ALL) (assert false) (check-sat)"
    assert not check_certificate(sealed({**data, "facts": [weaker, second, *rest]}), solver=solver)
    assert not check_certificate(sealed({**data, "facts": [first.replace("(not ", "(and ", 1), second, *rest]}))
