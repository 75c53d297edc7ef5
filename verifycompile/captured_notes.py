"""What a capture knows of a program beside what is proved of it: for the ranks, and for what a report says."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement

from verifycompile.program import Blocker, Program, SourceLocation

BROKEN_ON_SOME = (
    "a graph break ends the graph of {} at {}, and {}. Keep what one rank alone does, as printing and logging, out of "
    "what is compiled: do it with what the call returns, or on all ranks. No graph breaks at a function that "
    "`torch._dynamo.config` lists: at `print` in `reorderable_logging_functions`, at `logging.Logger.info` in "
    "`ignore_logging_functions`."
)


@dataclasses.dataclass(frozen=True, eq=False)
class OwnCapture:
    """What the process that captured a program knows for the comparison with the other ranks.

    ``frame``: its name on every rank. ``axes``: mesh axes along which ranks run it together. ``held``: tensors that
    are no arguments of it, ``passed``: those that are, of whole numbers. ``numbers``: of Python that it leaves
    open, by name, which input each is, and what it was. ``returned``: what is said of the graphs that returned its
    arguments. ``dtensors``: inputs that say how they are laid out. ``unless_compared``: assumptions that comparing
    replaces. ``wrappers``: parameter -> what wrapper sends it, and how. ``alone``: captures it as what a rank runs.
    ``broken_at``: the line at which a graph break ends its graph, "" for none.
    ``places``: where an output is found -> its name. ``constants``: place -> what is returned there that is no
    tensor. ``contents``: rank -> name -> digest of what the models that `build` makes hold.
    """

    frame: str
    axes: tuple[int, ...]
    held: Mapping[str, torch.Tensor]
    passed: Mapping[str, torch.Tensor]
    numbers: Mapping[str, tuple[int, float]]
    returned: Mapping[str, str]
    dtensors: frozenset[str]
    unless_compared: tuple[str, ...]
    places: Mapping[str, str]
    constants: Mapping[str, str]
    wrappers: Mapping[str, tuple[str, ...]]
    alone: Callable[[], Program]
    broken_at: str
    contents: Mapping[int, Mapping[str, bytes]]


@dataclasses.dataclass(frozen=True)
class ModuleStyle:
    """``kind``: the class of a module. ``name``: its style in the plan of ``parallelize_module``, "" for none;
    ``layouts``: of its result. ``inputs``: those that it takes its input for. ``line``: what made the style.
    """

    kind: str
    name: str
    layouts: tuple[Placement, ...]
    inputs: tuple[Placement, ...] = ()
    line: SourceLocation | None = None


@dataclasses.dataclass(frozen=True)
class RanBeside:
    """What ran beside the calls of a graph. ``functions``: those that were traced. ``numbers``: module -> attribute
    that holds a number -> the functions and lines that ran when it was assigned, the innermost first. ``styles``: the
    modules of a model to which ``parallelize_module`` was applied.
    """

    functions: Collection[types.CodeType] = ()
    numbers: Mapping[str, Mapping[str, tuple[tuple[types.CodeType, int], ...]]] = dataclasses.field(
        default_factory=dict[str, Any]
    )
    styles: Mapping[str, ModuleStyle] = dataclasses.field(default_factory=dict[str, ModuleStyle])


class BareDoubt(Blocker):
    """That the spec may be another one, for which nothing that was read speaks: a verified repair outweighs it."""
