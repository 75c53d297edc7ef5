"""What modules had when they were constructed, however they came to be."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame

from verifycompile.torch_interface.ranks import constructed
from verifycompile.torch_interface.ranks.constructed import MISSING, Contents, recorded


@dataclasses.dataclass
class Config:
    heads: int = 4
    name: str = "plain"


class Block(nn.Module):
    kind = "block"

    def __init__(self, heads: int, config: Config | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.heads = heads + 1
        self.sizes = [1, 2]
        self.config = config
        self.linear = nn.Linear(2, 2)
        self.extent = (2, 3)
        self._more()

    def _more(self) -> None:
        self.flag = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return self.linear(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block: Any = Block(3)
        block.heads = 100
        block.number = 7
        self.block = block


class Equal(nn.Module):
    """A class with equality and without a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.heads = 4

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)


def values(module: nn.Module) -> dict[str, Any]:
    return {name: record.value for name, record in recorded(module).items()}


def test_what_the_constructor_sets_last_is_recorded() -> None:
    block = Block(3)
    found = values(block)
    assert (found["heads"], found["extent"], found["flag"], found["kind"]) == (4, (2, 3), True, "block")
    assert "linear" not in found
    assert recorded(block)["sizes"].at([("[]", 1)]) == 2
    assert recorded(block)["extent"].at([("[]", 0)]) == 2
    assert recorded(block)["sizes"].at([("[]", 5)]) is MISSING


def test_what_is_set_later_is_not() -> None:
    block: Any = Block(3)
    block.heads //= 2
    block.sizes[0] = 9
    block.eval()
    block.later = 5
    assert values(block)["heads"] == 4
    assert recorded(block)["sizes"].at([("[]", 0)]) == 1
    assert {"later", "training"}.isdisjoint(values(block))


def test_a_module_around_adds_and_does_not_replace() -> None:
    found = values(Model().block)
    assert (found["heads"], found["number"]) == (4, 7)


def test_an_object_is_recorded_as_it_was() -> None:
    config = Config()
    block = Block(3, config)
    config.heads = 1
    assert recorded(block)["config"].at([(".", "heads")]) == 4
    assert isinstance(recorded(block)["config"].value, Contents)
    namespace: Any = types.SimpleNamespace(heads=8, inner=types.SimpleNamespace(width=2))
    block = Block(3, namespace)
    namespace.inner.width = 1
    assert recorded(block)["config"].at([(".", "inner"), (".", "width")]) == 2


def test_later_moments_are_larger() -> None:
    found = recorded(Block(3))
    assert found["heads"].moment < found["extent"].moment < recorded(Block(3))["heads"].moment


def test_a_deep_copy_was_constructed_as_the_original() -> None:
    block = Block(3)
    block.heads = 1
    made: Any = copy.deepcopy(nn.ModuleList([block]))[0]
    assert made is not block
    assert made.heads == 1
    assert values(made)["heads"] == 4
    made.heads = 2
    assert values(made)["heads"] == 4


def test_a_parameter_that_modules_share_is_known_as_one() -> None:
    def made() -> nn.ModuleList:
        first, second, third = (nn.Linear(2, 2, bias=False) for _ in range(3))
        second.weight = first.weight
        return nn.ModuleList([first, second, third])

    def separated(model: nn.ModuleList) -> list[tuple[int, int]]:
        numbers = {module: number for number, module in enumerate(model)}
        return [(numbers[first], numbers[second]) for (first, _), (second, _) in constructed.separated(model)]

    for model in (made(), copy.deepcopy(made())):
        assert separated(model) == []
        model[1].weight = nn.Parameter(model[0].weight.detach().clone())
        assert separated(model) == [(0, 1)]
        model[1].weight = model[0].weight
        assert separated(model) == []
    tied_later = made()
    tied_later[2].weight = tied_later[0].weight
    tied_later[2].register_parameter("weight", nn.Parameter(torch.zeros(2, 2)))
    assert separated(tied_later) == [(0, 2)]
    for tied_past_every_method in (made(), copy.deepcopy(made()), pickle.loads(pickle.dumps(made()))):
        tied_past_every_method[2]._parameters["weight"] = tied_past_every_method[0].weight
        assert separated(tied_past_every_method) == []
        tied_past_every_method[2].register_parameter("weight", nn.Parameter(torch.zeros(2, 2)))
        assert separated(tied_past_every_method) == [(0, 2)]
    clones = nn.ModuleList(copy.deepcopy(made()[0]) for _ in range(2))
    assert separated(clones) == []


def test_a_shallow_copy_and_one_from_a_file_have_no_record() -> None:
    block = Block(3)
    for made in (copy.copy(block), pickle.loads(pickle.dumps(block))):
        assert made.heads == 4
        assert values(made) == {}


def test_on_the_meta_device() -> None:
    with torch.device("meta"):
        block = Block(3)
    block.to_empty(device="cpu")
    assert values(block)["heads"] == 4


def test_records_go_with_their_modules() -> None:
    block = Block(3)
    gone = weakref.ref(block)
    del block
    gc.collect()
    assert gone() is None


def test_a_module_without_a_hash() -> None:
    one, other = Equal(), Equal()
    one.heads = 1
    assert values(one)["heads"] == values(other)["heads"] == 4


def test_compiled_modules_set_attributes_as_before() -> None:
    block = Block(3)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    x = torch.randn(2, 2)
    for calls in range(1, 4):
        assert torch.equal(compiled(x), block.linear(x))
        assert block.calls == calls


def test_a_class_is_recorded_with_what_it_constructs() -> None:
    class Kind(nn.Module):
        heads = 4

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

    unseen: Any = Kind.__new__(Kind)
    nn.Module.__init__(unseen)
    unseen.linear = nn.Linear(2, 2)
    Kind.heads = 8
    seen = Kind()
    Kind.heads = 1
    assert values(unseen) == {}
    assert values(seen) == {"heads": 8}


def test_objects_are_not_asked_for_their_length() -> None:
    """It is their own code that would answer: torch's script objects raise an error."""

    class Uncountable:
        def __len__(self) -> int:
            raise NotImplementedError

    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = Uncountable()

    assert isinstance(Holds().held, Uncountable)


class _Forwarding(nn.Module):
    """Asks a child for what it lacks, as the first FSDP does, also before the child is there."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 3
        self.inner = nn.Linear(2, 2)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)


def test_a_module_that_forwards_attributes_to_a_child_that_is_not_there_yet() -> None:
    assert recorded(_Forwarding())["scale"].value == 3


class Dropping(nn.Module):
    """Between two compiled graphs a module that the model holds dies, and another one is constructed."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [nn.Linear(2, 2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        self.held.clear()
        torch._dynamo.graph_break()
        self.held.append(nn.Linear(2, 2))
        self.added = nn.Linear(2, 2)
        return x * 2


def test_dynamo_takes_up_none_of_these_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called when a module dies is no Python function, as Dynamo then holds on to what dies."""
    frames: list[types.CodeType] = []
    take_up = convert_frame.CatchErrorsWrapper.__call__

    def seen(self: Any, frame: Any, *rest: Any) -> Any:
        frames.append(frame.f_code)
        return take_up(self, frame, *rest)

    monkeypatch.setattr(convert_frame.CatchErrorsWrapper, "__call__", seen)
    model = Dropping()
    [dies] = [weakref.ref(one) for one in model.held]
    torch.compile(model, backend="eager")(torch.ones(2))
    assert dies() is None
    assert recorded(model.added)["in_features"].value == 2
    assert any(code.co_name == "forward" for code in frames)
    assert [code.co_name for code in frames if code.co_filename == constructed.__file__] == []
