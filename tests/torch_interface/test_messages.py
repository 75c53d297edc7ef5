from __future__ import annotations

from typing import Any

import torch
import torch.fx

from verifycompile.torch_interface.rank_threads.messages import send_copies

_operators: Any = torch.ops._c10d_functional


def sent_alone(x: torch.Tensor) -> torch.Tensor:
    _operators.wait_tensor(_operators.isend(x, 1, 0, "0"))
    return x


def sent_in_a_batch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    handle, received = _operators.batch_p2p_ops(["isend", "irecv"], [1, 1], [0, 0], [x, y], "0")
    _operators.wait_tensor(handle)
    return _operators.wait_tensor(received)


def lines(graph: torch.fx.GraphModule) -> list[str]:
    return [
        f"{node.name} = {node.target.__name__}{node.args}".replace("__", "")
        for node in graph.graph.nodes
        if node.op == "call_function"
    ]


class Tracer(torch.fx.Tracer):
    def iter(self, obj: torch.fx.Proxy) -> Any:
        return iter((obj[0], obj[1]))


def traced(function: Any) -> torch.fx.GraphModule:
    return torch.fx.GraphModule(torch.nn.Module(), Tracer().trace(function))


def test_a_copy_is_sent_and_waited_for() -> None:
    assert lines(send_copies(traced(sent_alone))) == [
        "clone = clone(x,)",
        "isend = isend(clone, 1, 0, '0')",
        "wait_tensor = wait_tensor(clone,)",
    ]


def test_in_a_batch_what_is_received_stays_as_it_is() -> None:
    found = lines(send_copies(traced(sent_in_a_batch)))
    assert found == [
        "clone = clone(x,)",
        "batch_p2p_ops = batch_p2p_ops(['isend', 'irecv'], [1, 1], [0, 0], [clone, y], '0')",
        "getitem = getitem(batch_p2p_ops, 0)",
        "getitem_1 = getitem(batch_p2p_ops, 1)",
        "wait_tensor = wait_tensor(clone,)",
        "wait_tensor_1 = wait_tensor(getitem_1,)",
    ]


def test_a_graph_without_messages_stays_as_it_is() -> None:
    graph = traced(lambda x: x + 1)
    code = graph.code
    assert send_copies(graph).code == code
