"""Scripts that ask how many ranks there are and then make a model that holds a number.

Those of ``LEFT`` make the number of the answer, or might have; in those of ``STAYED`` it is the script's own. They stand in a
file of their own because pytest writes the assertions of its test files anew.
"""
# ruff: noqa: T201 - scripts print

from __future__ import annotations

import builtins
import collections
import functools
import io
import logging
import os
import sys
import types
from collections.abc import Callable, Generator

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

LOG = logging.getLogger(__name__)
SETTINGS: dict[str, int] = {}
CONFIG = types.SimpleNamespace(number=8)
number_of_all = 8


class Held(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


Row = Callable[[DeviceMesh], nn.Module]
STAYED: list[Row] = []
LEFT: list[Row] = []


def stays(row: Row) -> Row:
    STAYED.append(row)
    return row


def leaves(row: Row) -> Row:
    LEFT.append(row)
    return row


def told(*what: object) -> None:
    LOG.info("%s", what)


def setup() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def world() -> int:
    return dist.get_world_size()


@functools.cache
def kept_world() -> int:
    return dist.get_world_size()


def made_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def store(number: int) -> None:
    SETTINGS["number"] = number


def check(size: int) -> None:
    if size % dist.get_world_size():
        raise ValueError(f"{size} is no multiple of {dist.get_world_size()}")


# ------------------------------------------------------------------------------------------------ it stays


@stays
def prints_it_and_makes_a_mesh(mesh: DeviceMesh) -> nn.Module:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"{size} ranks, {100 / size:.1f} %")
        LOG.info("world %d", size)
    made = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    model = Held(8)
    told(made, size)
    return model


@stays
def checks_that_it_divides(mesh: DeviceMesh) -> nn.Module:
    size = mesh.size()
    assert 8 % size == 0, f"8 is no multiple of {size}"
    if 8 // size < 2:
        raise ValueError(f"too many ranks: {size}")
    return Held(8)


@stays
def has_it_from_a_function(mesh: DeviceMesh) -> nn.Module:
    rank, size = setup()
    again = world()
    batch = 64 // size if size > 1 else 64
    model = Held(8)
    store(rank + batch + again)
    return model


@stays
def reads_it_from_the_environment(mesh: DeviceMesh) -> nn.Module:
    size = int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    print("job of", size, "here", local)
    return Held(8)


@stays
def asks_elsewhere_and_keeps_a_mesh(mesh: DeviceMesh) -> nn.Module:
    made = made_mesh()
    check(8)
    model = Held(8)
    SETTINGS["mesh"] = made.size()
    return model


@stays
def counts_up_to_it(mesh: DeviceMesh) -> nn.Module:
    for rank in range(dist.get_world_size()):
        print(rank)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return Held(8)


# ------------------------------------------------------------------------------------------------ it may leave


@leaves
def divides_by_it(mesh: DeviceMesh) -> nn.Module:
    return Held(16 // dist.get_world_size())


@leaves
def divides_by_a_variable(mesh: DeviceMesh) -> nn.Module:
    _, size = setup()
    number = 16 // size
    return Held(number)


@leaves
def decides_by_it(mesh: DeviceMesh) -> nn.Module:
    if dist.get_world_size() > 1:
        number = 8
    else:
        number = 16
    return Held(number)


@leaves
def chooses_by_it(mesh: DeviceMesh) -> nn.Module:
    number = 8 if dist.is_initialized() else 16
    return Held(number)


@leaves
def makes_another_model_alone(mesh: DeviceMesh) -> nn.Module:
    if mesh.size() == 1:
        return Held(16)
    return Held(8)


@leaves
def counts_with_it(mesh: DeviceMesh) -> nn.Module:
    number = 4
    for _ in range(dist.get_world_size()):
        number += 2
    return Held(number)


@leaves
def counts_until_it(mesh: DeviceMesh) -> nn.Module:
    size, number = mesh.size(), 4
    while number < 4 * size:
        number = number + 4
    return Held(number)


@leaves
def keeps_it_in_a_dictionary(mesh: DeviceMesh) -> nn.Module:
    SETTINGS["number"] = 16 // dist.get_world_size()
    return Held(SETTINGS["number"])


@leaves
def keeps_it_in_a_list(mesh: DeviceMesh) -> nn.Module:
    numbers: list[int] = []
    numbers.append(16 // mesh.size())
    return Held(numbers[0])


@leaves
def keeps_it_in_a_configuration(mesh: DeviceMesh) -> nn.Module:
    CONFIG.number = 16 // mesh.size()
    return Held(CONFIG.number)


@leaves
def keeps_it_in_a_computed_attribute(mesh: DeviceMesh) -> nn.Module:
    setattr(CONFIG, "num" + "ber", 16 // mesh.size())
    return Held(CONFIG.number)


@leaves
def keeps_it_in_a_global(mesh: DeviceMesh) -> nn.Module:
    global number_of_all  # noqa: PLW0603 - as users do
    number_of_all = 16 // mesh.size()
    return Held(number_of_all)


@leaves
def gives_it_to_a_function(mesh: DeviceMesh) -> nn.Module:
    store(16 // dist.get_world_size())
    return Held(SETTINGS["number"])


@leaves
def calls_a_function_by_it(mesh: DeviceMesh) -> nn.Module:
    SETTINGS["number"] = 16
    if dist.get_world_size() > 1:
        store(8)
    return Held(SETTINGS["number"])


@leaves
def closes_over_it(mesh: DeviceMesh) -> nn.Module:
    size = mesh.size()
    return (lambda: Held(16 // size))()


@leaves
def has_it_as_a_default(mesh: DeviceMesh) -> nn.Module:
    def make(number: int = 16 // mesh.size()) -> nn.Module:
        return Held(number)

    return make()


@leaves
def has_it_from_a_cache(mesh: DeviceMesh) -> nn.Module:
    kept_world.cache_clear()
    print(kept_world())
    return Held(16 // kept_world())


@leaves
def catches_an_error_by_it(mesh: DeviceMesh) -> nn.Module:
    number = 8
    try:
        print((0,)[dist.get_world_size() - 1])
        number = 16
    except IndexError:
        LOG.info("several ranks")
    return Held(number)


@leaves
def catches_an_error_of_a_function_by_it(mesh: DeviceMesh) -> nn.Module:
    number = 8
    try:
        check(3)
        number = 16
    except ValueError:
        LOG.info("several ranks")
    return Held(number)


@leaves
def reads_it_by_its_name(mesh: DeviceMesh) -> nn.Module:
    size = mesh.size()
    print(size)
    return Held(16 // locals()["size"])


@stays
def model_is_evaluated_afterwards(mesh: DeviceMesh) -> nn.Module:
    size = dist.get_world_size()
    model = Held(number_of_all)
    model.eval()
    print(size, vars(model))
    return model


@stays
def another_model_is_evaluated_before(mesh: DeviceMesh) -> nn.Module:
    def evaluated(model: nn.Module) -> None:
        model.eval()

    size = dist.get_world_size()
    evaluated(nn.Linear(2, 2))
    nn.Linear(2, 2).eval()
    print(size)
    return Held(number_of_all)


@leaves
def variable_is_evaluated_by_its_name(mesh: DeviceMesh) -> nn.Module:
    size = dist.get_world_size()
    number = builtins.eval("16 // size")
    print(size)
    return Held(number)


@leaves
def variable_is_evaluated_by_what_is_imported(mesh: DeviceMesh) -> nn.Module:
    import builtins as named

    size = dist.get_world_size()
    number = named.eval("16 // size")
    print(size)
    return Held(number)


@leaves
def variable_is_evaluated_by_what_is_looked_up(mesh: DeviceMesh) -> nn.Module:
    size = dist.get_world_size()
    number = sys.modules["builtins"].eval("16 // size")
    print(size)
    return Held(number)



@leaves
def calls_what_a_known_function_chose(mesh: DeviceMesh) -> nn.Module:
    min(store, store, key=id)(16 // mesh.size())
    return Held(SETTINGS["number"])


@leaves
def adds_to_a_list_in_place(mesh: DeviceMesh) -> nn.Module:
    numbers: list[int] = []
    others = numbers
    others += [16 // mesh.size()]
    return Held(numbers[0])


@leaves
def comes_back_to_the_constructor(mesh: DeviceMesh) -> nn.Module:
    model, number = Held(8), 8
    for _ in range(2):
        model = Held(number)
        number = 16 // mesh.size()
    return model


@leaves
def is_called_again(mesh: DeviceMesh) -> nn.Module:
    models = [_with_what_the_last_call_left() for _ in range(2)]
    return models[1]


def _with_what_the_last_call_left() -> nn.Module:
    size = dist.get_world_size()
    model = Held(SETTINGS.get("number", 8))
    SETTINGS["number"] = 16 // size
    return model


@leaves
def writes_it_elsewhere(mesh: DeviceMesh) -> nn.Module:
    text = io.StringIO()
    print(16 // mesh.size(), file=text)
    return Held(int(text.getvalue()))


@leaves
def gives_it_to_a_key(mesh: DeviceMesh) -> nn.Module:
    print(min(16 // mesh.size(), 16, key=lambda number: SETTINGS.setdefault("number", number)))
    return Held(SETTINGS["number"])


@leaves
def inserts_it_by_reading(mesh: DeviceMesh) -> nn.Module:
    counts = collections.defaultdict[int, int](int)
    print(counts[16 // mesh.size()])
    return Held(next(iter(counts)))


@leaves
def asks_in_a_generator(mesh: DeviceMesh) -> nn.Module:
    def numbers() -> Generator[int]:
        yield 16 // dist.get_world_size()

    return Held(next(numbers()))


class Asking(Held):
    def __init__(self) -> None:
        super().__init__(0)
        self.degree = dist.get_world_size()
        self.number = 16 // self.degree


@leaves
def asks_in_the_constructor(mesh: DeviceMesh) -> nn.Module:
    return Asking()


class Checking(Held):
    def __init__(self, number: int) -> None:
        super().__init__(0)
        assert number % dist.get_world_size() == 0
        self.number = number


@stays
def checks_in_the_constructor(mesh: DeviceMesh) -> nn.Module:
    return Checking(8)


@leaves
def counts_the_ranks_of_the_mesh(mesh: DeviceMesh) -> nn.Module:
    return Held(16 // mesh.mesh.numel())


@leaves
def counts_the_ranks_of_a_mesh_of_its_own(mesh: DeviceMesh) -> nn.Module:
    made = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    return Held(16 // made.mesh.shape[0])


@leaves
def counts_the_ranks_of_a_group(mesh: DeviceMesh) -> nn.Module:
    return Held(16 // len(dist.get_process_group_ranks(mesh.get_group())))


@leaves
def keeps_it_as_a_level(mesh: DeviceMesh) -> nn.Module:
    LOG.setLevel(16 // mesh.size())
    return Held(LOG.level)
