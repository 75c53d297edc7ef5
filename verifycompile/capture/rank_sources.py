"""Where a traced program got its rank from, besides calls by name: stored functions, the environment, attributes.

Dynamo guards what it read. A guard on a function that returns a rank is a read, whatever the function is called there;
so is one on an environment variable that a launcher sets. An attribute that is called a rank and equals it is taken to
be it, which is an assumption of the report.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from verifycompile.capture.names import SourcePath
from verifycompile.program import Mesh
from verifycompile.torch_interface.dynamo import TracedFrame
from verifycompile.torch_interface.mesh import coordinate_of, own_rank
from verifycompile.torch_interface.rank_reads import CodeRead, guarded_sources, is_rank_reader

_ENVIRONMENT = re.compile(r"environ\._data\[b'(\w*(?:RANK|PROCID))'\]")
_RANK = re.compile(r"(?:(?P<axis>\w+)_)?rank")
_OF_THE_JOB = (None, "global", "world", "local")
_OF_A_MATRIX = re.compile(r"(?:\w+_)?(?:lora|low|dt|time_step)")
"""What a rank of a factored matrix is called, which is 0 where the matrix is not factored: ``q_lora_rank``."""


@dataclasses.dataclass(frozen=True)
class RankAttribute:
    """An attribute of an object that holds this rank's number; ``axis``: on that axis of the mesh, else in the job."""

    owner: Any
    name: str
    path: str
    held: int
    axis: int | None

    @property
    def assumption(self) -> str:
        return f"`{self.path}` holds the number of the rank on every rank, as on this one"

    def value(self, rank: int, mesh: Mesh) -> int:
        return rank if self.axis is None else coordinate_of(rank, mesh)[self.axis]

    def write(self, value: Any) -> None:
        vars(self.owner)[self.name] = value


def stored_reads(traced: TracedFrame) -> tuple[CodeRead, ...]:
    """Reads through functions that were stored elsewhere, and of the environment."""
    found: dict[CodeRead, None] = {}
    code = traced.frame.code
    for source in guarded_sources(traced.context):
        variable = _ENVIRONMENT.search(source)
        path = SourcePath.parse(source)
        if variable is not None:
            name = f"os.environ['{variable[1]}']"
        elif path is not None and is_rank_reader(path.value(traced.frame)):
            name = path.dotted()
        else:
            continue
        found[CodeRead(code.co_filename, code.co_firstlineno, code.co_name, name)] = None
    return tuple(found)


def rank_attributes(traced: TracedFrame, mesh: Mesh) -> tuple[RankAttribute, ...]:
    """Attributes that the traced program read, are called ``rank`` or ``tp_rank``, and are this rank's number."""
    return tuple(dict.fromkeys(_attributes(traced, mesh)))


def _attributes(traced: TracedFrame, mesh: Mesh) -> Iterator[RankAttribute]:
    if own_rank() not in mesh.ranks:
        return
    names = [axis.name for axis in mesh.axes]
    for source in guarded_sources(traced.context):
        path = SourcePath.parse(source)
        if path is None or not path.steps or path.steps[-1][0] != ".":
            continue
        called = _RANK.fullmatch(str(path.steps[-1][1]))
        owner = path.root(len(path.steps) - 1).value(traced.frame)
        held = getattr(owner, "__dict__", {}).get(path.steps[-1][1])
        if called is None or type(held) is not int or _OF_A_MATRIX.fullmatch(called["axis"] or ""):
            continue
        axis = names.index(called["axis"]) if called["axis"] in names else None
        if axis is None and called["axis"] not in _OF_THE_JOB and len(mesh.axes) > 1:
            continue
        attribute = RankAttribute(owner, str(path.steps[-1][1]), path.dotted(), held, axis)
        if attribute.value(own_rank(), mesh) == held:
            yield attribute
