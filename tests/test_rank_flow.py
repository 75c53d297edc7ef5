"""What a source file computes of the rank, found by reading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from verifycompile.capture.read_rank_flow import rank_flow

SOURCES = {
    "call": ("start = 4 * dist.get_rank()", {"start"}),
    "method": ("start = group.rank() + 1", {"start"}),
    "of Megatron": ("start = get_tensor_model_parallel_rank() * n", {"start"}),
    "environment": ("start = int(os.environ['LOCAL_RANK'])", {"start"}),
    "another variable": ("rank = dist.get_rank()\nend = rank + 1\nrows = 4", {"rank", "end"}),
    "condition": ("if dist.get_rank() == 0:\n    start = 0\nelse:\n    start = 4\nrows = 4", {"start"}),
    "tuple": ("start, rows = dist.get_rank(), 4", {"start"}),
    "unpacked": ("start, end = bounds(dist.get_rank())", {"start", "end"}),
    "item": ("starts['x'] = dist.get_rank()", {"starts"}),
    "loop": ("for start in range(dist.get_rank()):\n    pass", {"start"}),
    "walrus": ("print(start := dist.get_rank())", {"start"}),
    "function": ("def mine():\n    return dist.get_rank()\nstart = 4 * mine()", {"start"}),
    "argument": ("class A:\n    def __init__(self, n):\n        self.start = n\nA(dist.get_rank())", {"start"}),
    "keyword": ("class A:\n    def __init__(self, n=0):\n        self.start = n\nA(n=dist.get_rank())", {"start"}),
    "starred": ("class A:\n    def __init__(self, n):\n        self.start = n\nA(*[dist.get_rank()])", {"start"}),
    "inherited": (
        "class A:\n    def __init__(self, n):\n        self.start = n\nclass B(A):\n    pass\nB(dist.get_rank())",
        {"start"},
    ),
    "field": ("@dataclass\nclass A:\n    start: int\nA(dist.get_rank())", {"start"}),
    "set by name": ("setattr(module, 'start', dist.get_rank())", {"start"}),
    "buffer": ("class A:\n    def f(self):\n        self.register_buffer('start', tensor(dist.get_rank()))", {"start"}),
    "matrix": ("lora = Lora(rank=8)\nstart = lora.scale", set[str]()),
    "another class": (
        "class A:\n    def f(self):\n        self.a = get_rank()\nclass B:\n    def f(self):\n        self.b = self.a",
        {"a"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "names"), SOURCES.values(), ids=SOURCES.keys())
def test_what_depends_on_the_rank(text: str, names: set[str], tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    assert {item.name for item in rank_flow({str(file): None}).assigned} == names


def test_of_a_package_only_the_classes_that_are_named(tmp_path: Path) -> None:
    file = tmp_path / "package.py"
    classes = [f"class {name}:\n    def f(self, x):\n        self.{name} = x.{name} = get_rank()\n" for name in "AB"]
    file.write_text("".join(classes))
    assert [(item.name, item.owner) for item in rank_flow({str(file): frozenset({"A"})}).assigned] == [("A", "A")]


def test_a_file_that_does_not_parse_holds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("start = = get_rank()")
    assert not rank_flow({str(file): None, str(tmp_path / "missing.py"): None}).assigned
