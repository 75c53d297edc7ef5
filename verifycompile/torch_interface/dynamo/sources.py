"""Where Dynamo found a value: the variable of the frame and the steps that lead from it, by Dynamo's own sources."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch.fx
from torch import nn
from torch._dynamo import source as dynamo
from torch._guards import Source, TracingContext

from verifycompile.torch_interface.dynamo.frames import Frame
from verifycompile.torch_interface.ranks.constructed import Step

HELD_IN = frozenset({"_modules", "_parameters", "_buffers"})
"""Where a module holds its modules and tensors."""

_SAME_OBJECT = (dynamo.NNModuleSource, dynamo.OptimizerSource, dynamo.SkipGuardSource, dynamo.NumpyTensorSource)
_ATTRIBUTES = (dynamo.AttrSource, dynamo.GenericAttrSource, dynamo.GradSource)
_ITEMS = (dynamo.GetItemSource, dynamo.DictGetItemSource, dynamo.DictSubclassGetItemSource)
_NAMED_ATTRIBUTES = {dynamo.ClosureSource: "__closure__", dynamo.CodeSource: "__code__"}


def source_of(placeholder: torch.fx.Node) -> Source | None:
    """Where Dynamo found a graph input."""
    return getattr(placeholder, "_dynamo_source", None)


def source_name(placeholder: torch.fx.Node) -> str:
    """Dynamo's expression for where a graph input comes from, as ``L['self']._modules['up']._parameters['weight']``."""
    source = source_of(placeholder)
    return "" if source is None else source.name


def size_of(source: Source | None) -> tuple[Source, str] | None:
    """The tensor of which ``source`` is a size or stride, and which one: ``size(0)``."""
    if not isinstance(source, dynamo.TensorPropertySource) or source.idx is None:
        return None
    return source.base, f"{source.prop.method_name()}({source.idx})"


@dataclasses.dataclass(frozen=True)
class SourcePath:
    """The steps from a variable to a value. ``scope``: ``L`` for a variable of the frame, ``G`` for a global one."""

    scope: str
    variable: str
    steps: tuple[Step, ...]

    @staticmethod
    def of(source: Source | None) -> SourcePath | None:
        """The path, or None where the source is more than attribute and item accesses."""
        steps: list[Step] = []
        while isinstance(source, dynamo.ChainedSource):
            found = _last_steps(source)
            if found is None:
                return None
            source, last = found
            steps.extend(reversed(last))
        steps.reverse()
        if isinstance(source, dynamo.LocalSource):
            return SourcePath("L", source.local_name, tuple(steps))
        return SourcePath("G", source.global_name, tuple(steps)) if isinstance(source, dynamo.GlobalSource) else None

    def module_prefix(self, frame: Frame) -> int | None:
        """Number of steps to the root module, for what a module holds; None for other values."""
        for position, step in enumerate(self.steps):
            if step[0] == "." and (step[1] in HELD_IN or isinstance(self.root(position).value(frame), nn.Module)):
                return position
        return None

    def root(self, length: int) -> SourcePath:
        """The path of the first ``length`` steps."""
        return SourcePath(self.scope, self.variable, self.steps[:length])

    def value(self, frame: Frame) -> Any:
        """The object that the path leads to in ``frame``, None where it leads nowhere."""
        try:
            found: Any = (frame.locals if self.scope == "L" else frame.globals)[self.variable]
            for kind, step in self.steps:
                found = getattr(found, str(step)) if kind == "." else found[step]
        except (AttributeError, KeyError, IndexError, TypeError):
            return None
        return found

    def dotted(self) -> str:
        """``batch.tokens`` for ``L['batch']['tokens']``."""
        return ".".join((self.variable, *(str(step) for _, step in self.steps)))


def paths_under_compilation() -> set[SourcePath]:
    """Of all that Dynamo guards in the frame that it compiles. Only inside a Dynamo backend."""
    guards = TracingContext.get().guards_context.dynamo_guards
    return {path for guard in guards if (path := SourcePath.of(guard.originating_source)) is not None}


def _last_steps(source: Any) -> tuple[Source, tuple[Step, ...]] | None:
    """What a source begins from, and the steps from there."""
    if isinstance(source, _SAME_OBJECT):
        return source.base, ()
    if isinstance(source, _ATTRIBUTES):
        return source.base, ((".", source.member),)
    if type(source) in _NAMED_ATTRIBUTES:
        return source.base, ((".", _NAMED_ATTRIBUTES[type(source)]),)
    if isinstance(source, dynamo.DefaultsSource):
        return source.base, ((".", source.field), ("[]", source.idx_key))
    if not isinstance(source, _ITEMS) or isinstance(source, dynamo.TupleIteratorGetItemSource):
        return None
    if isinstance(source.index, Source) or getattr(source, "index_is_slice", False):
        return None
    if isinstance(source.base, dynamo.TypeDictSource):
        owner = _instance_of(source.base.base)
        return None if owner is None else (owner, ((".", source.index),))
    return source.base, (("[]", source.index),)


def _instance_of(held: Source) -> Source | None:
    """``x`` for ``type(x)`` and ``type(x).__mro__[1]``: what such a class holds is an attribute of ``x``."""
    if isinstance(held, dynamo.GetItemSource) and isinstance(held.base, dynamo.TypeMROSource):
        held = held.base.base
    return held.base if isinstance(held, dynamo.TypeSource) else None
