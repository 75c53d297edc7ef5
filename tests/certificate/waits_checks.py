"""Results of collectives that are waited for, or are not, as rows that mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from tests.certificate.storage_checks import Data, _call, _given, _input, _is_refused, _output, program
from tests.lemmas.conditions import Check
from verifycompile.certificate.storage import program_from_data
from verifycompile.certificate.waits import require_waits

_SUM = "_c10d_functional.all_reduce.default"


def _reduced(name: str, operand: str) -> Data:
    return _call(name, operand, target=_SUM, args=[{"node": operand}, "sum", "g"])


def _wait(name: str, operand: str) -> Data:
    return _call(name, operand, target="_c10d_functional.wait_tensor.default")


def _view(name: str, operand: str) -> Data:
    return _call(name, operand, target="aten.view.default", args=[{"node": operand}, [4]])


def _both(name: str, *operands: str) -> Data:
    return _call(name, "", target="aten.add.Tensor", args=[{"node": operand} for operand in operands])


def _like(first: str, count: int, names: list[Any], *operands: str) -> Data:
    return {"names": names, "count": count, "like": first, "operands": list(operands)}


_R = _reduced("r", "x")
_SEVERAL = [_reduced("c", "x"), _call("item", "c", target="_operator:getitem", args=[{"node": "c"}, 0])]
_RIGHT: tuple[list[Data], ...] = (
    [_R, _wait("w", "r"), _call("n", "w")],
    [_R, _view("v", "r"), _wait("w", "v"), _call("n", "w")],
    [_view("v", "x"), _call("n", "v")],
    [*_SEVERAL, _wait("w", "item"), _call("n", "w")],
    [_R, _wait("w", "r"), _call("s", "r", target="aten.sym_size.int", args=[{"node": "r"}, 0]), _both("n", "w", "s")],
    [_R, _wait("w", "r"), _like("r", 2, [[1, "w2"]], "w"), _call("n", "w2")],
    [_R, _wait("w", "r"), _reduced("r2", "w"), _call("m", "w"), _like("w", 1, [[0, "w2"]], "r2"), _both("n", "w2", "m")],
)  # fmt: skip
_EARLY: tuple[tuple[list[Data], str], ...] = (
    ([_R, _call("n", "r")], "n"), ([_R, _both("n", "x", "r")], "n"), ([_R, _wait("w", "r"), _both("n", "w", "r")], "n"),
    ([_R, _reduced("r2", "r"), _wait("n", "r2")], "r2"), ([_R, _view("v", "r"), _call("n", "v")], "n"),
    ([*_SEVERAL, _call("n", "item")], "n"), ([_R, _call("n", "r", target="_operator:neg")], "n"),
    ([_call("a", "x"), _call("b", "a"), _reduced("r", "b"), _like("a", 2, [[1, "n"]], "r")], "a"),
    ([_call("a", "x"), _reduced("r", "a"), _wait("w", "r"), _like("a", 2, [[1, "r2"]], "w"), _call("n", "r2")], "n"),
    ([_R, _view("v", "r"), _wait("w", "v"), _like("r", 2, [[1, "v2"]], "w"), _call("n", "v2")], "n"),
)  # fmt: skip
_RETURNED: tuple[list[Data], ...] = ([_reduced("n", "x")], [_R, _view("n", "r")])


def checks() -> Iterator[tuple[str, Check]]:
    for number, nodes in enumerate(_RIGHT):
        yield f"right {number}", functools.partial(_says, nodes, "")
    for number, (nodes, reader) in enumerate(_EARLY):
        said = f"`{reader}` reads the result of a collective before `wait_tensor`"
        yield f"early {number}", functools.partial(_says, nodes, said)
    for number, nodes in enumerate(_RETURNED):
        said = "`output.0` is the result of a collective before `wait_tensor`"
        yield f"returned {number}", functools.partial(_says, nodes, said)


def _says(nodes: list[Data], said: str) -> None:
    """The program of these calls of `x`, of which `n` is returned."""
    data = {
        **program(),
        "nodes": [_given("x"), *nodes],
        "inputs": [_input("x")],
        "outputs": [_output("n")],
        "groups": {},
    }
    _is_refused(lambda data: require_waits(program_from_data(data)), data, said)
