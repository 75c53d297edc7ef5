"""Certificates: what holds is accepted by a checker without an engine, what was tampered with is not."""

from __future__ import annotations

import copy
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

import verifycompile
from tests.programs import llama, mlp
from tests.programs.captured import capture
from tests.programs.case import Case
from tests.programs.test_forms import FORMS, judged
from tests.refinement.test_dynamic_sizes import dynamic
from tests.soundness.plain import reduce_out, verify_functions
from tests.support import fake_mesh_world
from verifycompile.certificate import Certificate, check_certificate
from verifycompile.certificate.certificate import seal_of
from verifycompile.certificate.digests import Digests
from verifycompile.certificate.making import certificate_of
from verifycompile.certificate.storage import StoredModule, placements_from_data, program_from_data
from verifycompile.certificate.writing import order_of, program_to_data
from verifycompile.cli import main
from verifycompile.diagnostics.report import Report, SecondLook
from verifycompile.options import Options
from verifycompile.refinement.attempt import Attempt
from verifycompile.refinement.check import new_pool
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.refinement.result import RefinementResult
from verifycompile.rewrites.lemmas.table import TABLE
from verifycompile.two_programs import verify_programs


def of_case(case: Case) -> Report:
    with fake_mesh_world(case.mesh_shape, case.mesh_names, rank=1) as mesh:
        return verify_programs(*capture(case, mesh), Options.from_mapping({}))


def with_equalities() -> Report:
    return verify_functions(
        lambda x, y, w: torch.relu((x + 2 * y) @ w),
        lambda mesh, x, y, w: torch.relu(x @ w + 2 * (y @ w)),
        (torch.randn(8, 4), torch.randn(8, 4), torch.randn(4, 4)),
    )


def with_symbols() -> Report:
    return verify_functions(
        lambda x, w: torch.relu(x) @ w,
        lambda mesh, x, w: reduce_out(torch.relu(x) @ w, mesh),
        (dynamic((4, 6, 8), {0: None, 1: None}), torch.randn(8, 16)),
        in_placements={"a": (Shard(2),), "b": (Shard(0),)},
        out_placements={"output.0": (Replicate(),)},
    )


def with_a_long_line() -> Report:
    """Guards that small sizes do not fulfil."""
    return verify_functions(
        F.conv1d,
        lambda mesh, x, w: F.conv1d(x, w),
        (dynamic((4, 4, 40), {2: None}), torch.randn(5, 4, 25)),
        in_placements={"a": (Shard(0),)},
    )


def _behind_the_wait(mesh: DeviceMesh, x: torch.Tensor) -> torch.Tensor:
    """torch gives the same tensor before and behind the wait."""
    result = torch.ops._c10d_functional.all_reduce(x.sum(0), "sum", mesh.get_group().group_name)
    view = result.view(3, 1)
    return torch.ops._c10d_functional.wait_tensor(result) + result + view[:, 0]


def with_a_result_behind_its_wait() -> Report:
    given = (torch.randn(4, 3),)
    return verify_functions(lambda x: 3 * x.sum(0), _behind_the_wait, given, in_placements={"a": (Shard(0),)})


PROGRAMS: dict[str, Callable[[], Report]] = {
    "perceptron": functools.partial(of_case, mlp.residual_case(2)),
    "facts of the solver": functools.partial(of_case, llama.case(2)),
    "repeated layers": functools.partial(of_case, llama.case(2, layers=2)),
    "two axes": functools.partial(of_case, llama.block_case(2, data_parallel=2)),
    "equalities of the e-graph": with_equalities,
    "symbolic sizes": with_symbols,
    "a long line": with_a_long_line,
    "a result behind its wait": with_a_result_behind_its_wait,
}


@functools.cache
def text_of(name: str) -> str:
    report = PROGRAMS[name]()
    assert report.certificate is not None, str(report)
    return report.certificate.to_json()


def content(name: str) -> dict[str, Any]:
    return json.loads(text_of(name))


def sealed(data: dict[str, Any]) -> str:
    return json.dumps({**data, "seal": seal_of(data)})


# ------------------------------------------------------------------------------------------------ what holds


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_proved_holds(name: str) -> None:
    found = check_certificate(text_of(name))
    assert found, str(found)
    again = Certificate.from_json(text_of(name))
    assert check_certificate(again)
    assert again.to_json() == text_of(name)
    for side in ("spec", "implementation"):
        program = program_from_data(again.data[side])
        written = program_to_data(program, *order_of(cast("StoredModule", program.graph)))
        assert json.loads(json.dumps(written)) == again.data[side]


FURTHER = (
    ("attention-halves-gqa-replicated-4", "a slice that starts where the rank says lies elsewhere on each rank"),
    ("token-shift-gate-2", "gradients flow back from what ranks return that run different graphs"),
    ("decoder-caches-2", "a gradient flows back from what is written into a cache"),
    ("experts-numbered-by-table-2", "a function of what is looked up is made again"),
)


@pytest.mark.parametrize(("name", "what"), FURTHER)
def test_what_was_proved_of_forms_holds(name: str, what: str) -> None:
    """``what`` is particular to it."""
    (form,) = (form for form in FORMS if form.name == name)
    report, _ = judged(form, "")
    assert report.certificate is not None
    found = check_certificate(report.certificate)
    assert found, str(found)


class Sines(torch.nn.Module):
    """Ranks run different graphs; ``cut``: no gradient flows back on the second one."""

    def __init__(self, rank: int, cut: bool) -> None:
        super().__init__()
        self.rank, self.cut = rank, cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.sin(x) if self.rank else torch.sin(x) * 1
        return found.detach() if self.rank and self.cut else found


@pytest.mark.parametrize("cut", [False, True])
def test_gradients_that_flow_back_from_what_each_rank_returns(cut: bool) -> None:
    with fake_mesh_world((2,), ("x",)) as mesh:
        build = lambda: Sines(mesh.get_local_rank(), cut)  # noqa: E731 - as users write it
        given = {"spec": Sines(0, cut=False), "build": build, "in_placements": {"x": (Replicate(),)}}
        report = verifycompile.verify(build(), (torch.randn(4, 3, requires_grad=True),), mesh=mesh, **given)
    if cut:
        assert [finding.code for finding in report.findings] == ["VC111"]
        return
    assert report.certificate is not None
    assert check_certificate(report.certificate)


def test_a_long_one_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are alike: packed, another layer takes few bytes. What was packed is checked as what was not."""
    plain = text_of("repeated layers")
    single = text_of("facts of the solver")
    monkeypatch.setattr("verifycompile.certificate.certificate._LONGEST", 1000)
    packed, of_one = (Certificate.from_json(text).to_json() for text in (plain, single))
    assert len(packed) < len(plain) / 8
    assert len(packed) - len(of_one) < (len(plain) - len(single)) / 8
    assert json.loads(packed).keys() == {"packed"}
    assert Certificate.from_json(packed) == Certificate.from_json(plain)
    for broken in (packed.replace("packed", "paced"), packed[:-9] + packed[-2:], json.dumps({"packed": "x"})):
        assert not check_certificate(broken)


def test_what_is_in_it() -> None:
    found = content("facts of the solver")
    assert len(found["facts"]) >= 2
    assert {step["lemma"] for step in found["steps"]} >= {"VL40"}
    assert {step["node"].partition(".")[0] for step in found["steps"]} == {"spec", "impl"}
    assert check_certificate(sealed(found), solver=True)
    (equality, *_) = content("equalities of the e-graph")["equalities"]
    assert "VL05" in equality["lemmas"]


def test_the_checker_imports_no_search_engine(tmp_path: Path) -> None:
    """In a process of its own that has none, with other hashes of strings.

    Each import of one raises: torch tries z3 where a ``ShapeEnv`` is made, and does without.
    """
    files = [tmp_path / f"{k}.json" for k in range(2)]
    for file, name in zip(files, ("facts of the solver", "equalities of the e-graph"), strict=True):
        file.write_text(text_of(name), encoding="utf-8")
    script = (
        "import sys; sys.modules.update({'z3': None, 'egglog': None})\n"
        "from verifycompile.cli import main\n"
        "sys.exit(max(main(['check-certificate', file]) for file in sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, files)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "certificate.json"
    file.write_text(text_of("perceptron"), encoding="utf-8")
    assert main(["check-certificate", str(file)]) == 0
    covered = (
        "  outputs: output.0\n"
        "  gradients: grad.up.weight, grad.up.bias, grad.down.weight, grad.down.bias\n"
        "  inputs: x = x, up.weight = concat(up.weight, dim=0, over=tp), up.bias = concat(up.bias, dim=0, over=tp), "
        "down.weight = concat(down.weight, dim=1, over=tp), down.bias = down.bias\n"
        "  mesh: tp=2"
    )
    told = capsys.readouterr().out
    assert told.startswith(f"{file}: the certificate holds\n{covered}\n  question: ")
    assert all(f"  assumption: {text}\n" in told for text in content("perceptron")["assumptions"])
    data = content("perceptron")
    data["relations"]["output.0"] = "sum(output.0, over=tp)"
    file.write_text(sealed(data), encoding="utf-8")
    assert main(["check-certificate", str(file)]) == 1
    expected = f"{file}: the certificate does not hold: its relations are other ones\n"
    assert capsys.readouterr().out == expected
    assert main(["check-certificate", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_nothing_is_written_down_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifycompile.certificate.making._content", lambda *_: pytest.fail("made"))
    report = with_symbols()
    assert report.verdict is verifycompile.Verdict.VERIFIED
    assert report.certificate is not None


# ------------------------------------------------------------------------------------------------ what was changed


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, dict | list) and data:
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from leaves(data[key], (*path, key))
    else:
        yield path


def changed(value: Any, draw: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + draw.choice([1, -1, 2])
    return f"{value}x" if isinstance(value, str) else "x"


def set_at(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def get_at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_change_breaks_the_seal(name: str) -> None:
    draw = random.Random(0)
    data = content(name)
    places = list(leaves(data))
    for _ in range(30):
        path = draw.choice(places)
        before = get_at(data, path)
        set_at(data, path, changed(before, draw))
        assert not check_certificate(json.dumps(data)), path
        set_at(data, path, before)
    assert check_certificate(json.dumps(data))


def nodes_with(data: dict[str, Any], side: str, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    return [node for node in data[side]["nodes"] if wanted(node)]


def other_operator(data: dict[str, Any], draw: random.Random) -> str:
    swaps = {
        "aten.add.Tensor": "aten.sub.Tensor", "aten.mul.Tensor": "aten.div.Tensor", "aten.relu.default":
        "aten.tanh.default", "aten.sum.dim_IntList": "aten.amax.default", "aten.t.default": "aten.clone.default",
        "aten.mm.default": "aten.add.Tensor", "aten.rsqrt.default": "aten.exp.default",
        "_c10d_functional.wait_tensor.default": "aten.neg.default",
    }  # fmt: skip
    side = draw.choice(["spec", "implementation"])
    node = draw.choice(nodes_with(data, side, lambda node: node.get("target") in swaps))
    node["target"] = swaps[node["target"]]
    return f"{side} {node['name']}"


def values_of(data: dict[str, Any], side: str) -> dict[str, str]:
    """What the nodes of a program are, as text that is equal for equal values."""
    spec, implementation = program_from_data(data["spec"]), program_from_data(data["implementation"])
    placements = {name: placements_from_data(item) or () for name, item in data["placements"].items()}
    attempt = Attempt(spec, implementation, new_pool(implementation), placements)
    assert attempt.run() is None
    digests = Digests()
    lowering = attempt.spec if side == "spec" else attempt.implementation
    return {node.name: digests.value(value) for node, value in lowering.values.items()}


def other_argument(data: dict[str, Any], draw: random.Random) -> str:
    side = draw.choice(["spec", "implementation"])
    node = draw.choice(nodes_with(data, side, lambda node: any(isinstance(a, dict) for a in node.get("args", []))))
    earlier = data[side]["nodes"][: data[side]["nodes"].index(node)]
    position = draw.choice([k for k, a in enumerate(node["args"]) if isinstance(a, dict)])
    values = values_of(data, side)
    taken = values.get(node["args"][position].get("node"))
    node["args"][position] = {"node": draw.choice([n["name"] for n in earlier if values.get(n["name"]) != taken])}
    return f"{side} {node['name']} takes {node['args'][position]}"


def other_step(data: dict[str, Any], draw: random.Random) -> str:
    """A step with the substitution of another one."""
    step = draw.choice(data["steps"])
    others = [s for s in data["steps"] if s.get("values") != step.get("values")]
    step["values"] = draw.choice(others).get("values", {})
    return f"step at {step['node']}"


def other_lemma(data: dict[str, Any], draw: random.Random) -> str:
    step = draw.choice(data["steps"])
    step["lemma"] = draw.choice([lemma.code for lemma in TABLE if lemma.code != step["lemma"]])
    return f"{step['lemma']} at {step['node']}"


def other_position(data: dict[str, Any], draw: random.Random) -> str:
    """Two steps, each at the position of the other one."""
    first, second = draw.sample(data["steps"], 2)
    first["position"], second["position"] = second["position"], first["position"]
    return f"steps at {first['node']} and {second['node']}"


def other_node(data: dict[str, Any], draw: random.Random) -> str:
    step = draw.choice(data["steps"])
    step["node"] = draw.choice([s["node"] for s in data["steps"] if s["node"] != step["node"]])
    return f"a step at {step['node']}"


def dropped_step(data: dict[str, Any], draw: random.Random) -> str:
    return f"without {data['steps'].pop(draw.randrange(len(data['steps'])))['node']}"


def other_values(data: dict[str, Any], draw: random.Random) -> str:
    side = draw.choice(["spec", "implementation"])
    data["values"][side] = data["values"]["implementation" if side == "spec" else "spec"]
    return f"values of the {side}"


def dropped_node(data: dict[str, Any], draw: random.Random) -> str:
    side = draw.choice(["spec", "implementation"])
    node = draw.choice(nodes_with(data, side, lambda node: node.get("op", "call_function") == "call_function"))
    data[side]["nodes"].remove(node)
    return f"{side} without {node['name']}"


def other_relation(data: dict[str, Any], draw: random.Random) -> str:
    name = draw.choice(sorted(data["relations"]))
    data["relations"][name] = f"mean({data['relations'][name]}, over=tp)"
    return name


def other_placement(data: dict[str, Any], draw: random.Random) -> str:
    name = draw.choice(sorted(data["placements"]))
    placements = data["placements"][name]
    axis = draw.randrange(len(placements))
    options = (["replicate"], ["shard", 0, 1], ["shard", 1, 1], ["partial", "sum"], ["partial", "avg"])
    placements[axis] = draw.choice([p for p in options if p != placements[axis]])
    return f"{name} is {placements}"


def other_input(data: dict[str, Any], draw: random.Random) -> str:
    sharded = [i for i in data["implementation"]["inputs"] if i["placements"] and ["replicate"] not in i["placements"]]
    chosen = draw.choice(sharded)
    dim = chosen["placements"][0][1]
    chosen["placements"][0] = draw.choice([["replicate"], ["shard", 1 - dim, 1], ["partial", "sum"]])
    return f"{chosen['name']} is {chosen['placements']}"


def other_program(data: dict[str, Any], draw: random.Random) -> str:
    side = draw.choice(["spec", "implementation"])
    data[side] = content("two axes")[side]
    return side


TAMPERINGS = (
    other_operator, other_argument, other_step, other_lemma, other_position, other_node, dropped_step, other_values,
    dropped_node, other_relation, other_placement, other_input, other_program,
)  # fmt: skip


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
@pytest.mark.parametrize("name", ["perceptron"])
def test_what_was_tampered_with_and_sealed_again_is_rejected(
    name: str, tamper: Callable[[dict[str, Any], random.Random], str]
) -> None:
    original = content(name)
    for seed in range(8):
        data = copy.deepcopy(original)
        what = tamper(data, random.Random(seed))
        found = check_certificate(sealed(data))
        assert not found, what
        assert found.reason


@pytest.mark.sweep
@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_tampering_sweep(tamper: Callable[[dict[str, Any], random.Random], str]) -> None:
    original = content("facts of the solver")
    for seed in range(60):
        data = copy.deepcopy(original)
        what = tamper(data, random.Random(seed))
        assert not check_certificate(sealed(data)), what


def test_facts_are_needed_and_tried() -> None:
    data = content("facts of the solver")
    for k in range(len(data["facts"])):
        fewer = {**data, "facts": [fact for j, fact in enumerate(data["facts"]) if j != k]}
        assert not check_certificate(sealed(fewer))
    wider = copy.deepcopy(data)
    wider["facts"].append("(set-logic ALL) (assert false) (check-sat)")
    assert check_certificate(sealed(wider)).reason == "it lists a fact that nothing needs"


def test_a_wrong_fact_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that believes everything proves a wrong program; the checker does not take over what it says."""

    def lookup(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(x, table)

    def sharded(mesh: Any, table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        start = mesh.get_local_rank() * 4
        outside = (x < start) | (x > start + 4)  # one too many
        found = torch.nn.functional.embedding((x - start).masked_fill(outside, 0), table)
        return reduce_out(found.masked_fill(outside[:, None], 0.0), mesh)

    monkeypatch.setattr("verifycompile.rewrites.side_conditions.solver.follows", lambda _: True)
    monkeypatch.setattr("verifycompile.rewrites.side_conditions.solver._answers", {})
    monkeypatch.setattr("verifycompile.rewrites.side_conditions.solver.counterexample", lambda *_: None)
    unseen = SecondLook(done=False, text="not done")
    monkeypatch.setattr("verifycompile.two_programs.look_again", lambda *_: (unseen, None))
    report = verify_functions(
        lookup, sharded, (torch.randn(8, 4), torch.arange(6)), in_placements={"a": (Shard(0),), "b": (Replicate(),)}
    )
    assert report.certificate is not None, str(report)
    text = report.certificate.to_json()
    monkeypatch.undo()
    assert "a fact is wrong where" in check_certificate(text).reason


def test_a_wrong_equality_is_found_out() -> None:
    data = content("equalities of the e-graph")
    (equality, *rest) = data["equalities"]
    assert not check_certificate(sealed({**data, "equalities": rest}))
    names = [node["name"] for node in data["spec"]["nodes"] if node.get("op", "call_function") == "call_function"]
    for name in names:
        if name != equality["spec_node"]:
            other = {**data, "equalities": [{**equality, "spec_node": name}, *rest]}
            assert not check_certificate(sealed(other)), name


def test_an_assumption_that_the_proof_makes_must_be_listed() -> None:
    data = content("facts of the solver")
    needed = [text for text in data["assumptions"] if "treated as identity" in text or "by default" in text]
    for text in needed:
        fewer = {**data, "assumptions": [t for t in data["assumptions"] if t != text]}
        assert check_certificate(sealed(fewer)).reason == f"it does not list the assumption: {text}"


# ------------------------------------------------------------------------------------------------ what is none


def test_a_result_with_a_mismatch_has_none() -> None:
    data = content("perceptron")
    programs = program_from_data(data["spec"]), program_from_data(data["implementation"])
    result = RefinementResult({}, Mismatch("VC107", "no relation found", "output.0"))
    with pytest.raises(ValueError, match="a result with a mismatch has no certificate"):
        certificate_of(*programs, result, ())


@pytest.mark.parametrize("text", ["[]", "{}", '{"version": 1}'])
def test_other_json_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a verifycompile certificate"):
        Certificate.from_json(text)
    assert not check_certificate(text)


def test_what_is_no_json_is_rejected() -> None:
    assert not check_certificate("certificate")


def test_another_format_is_rejected() -> None:
    with pytest.raises(ValueError, match="certificate format 13 is not the supported format 12"):
        Certificate.from_json(json.dumps({**content("perceptron"), "version": 13}))


@pytest.mark.parametrize(
    ("given", "what"),
    [(None, "this is of type NoneType"), (7, "this is of type int"), ("proof.json", "this text is no JSON")],
)
def test_what_is_no_certificate(given: Any, what: str) -> None:
    text = f"a certificate is `report.certificate` of a verified program, or the text that its `to_json()` returns, and {what}"
    assert check_certificate(given).reason == text
