"""The options of the backend and of ``verify``: one frozen value, checked when it is made."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Shard

from verifycompile.diagnostics.waiver import Waiver
from verifycompile.errors import UsageError
from verifycompile.waivers import waivers_of

_MAPPINGS = ("in_placements", "param_placements", "param_names", "out_placements", "grad_placements")

Placements = tuple[Placement, ...]
"""One placement per mesh axis, outermost first."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user may say about a program; every field has a default.

    ``spec``: an ``nn.Module`` or a callable with the model's signature; None recovers it from the model.
    ``mesh``: the root mesh; None takes the one of the model's DTensors.
    ``in_placements``: argument name of ``forward`` (dotted into containers) -> placements.
    ``param_placements``: fully qualified name or ``fnmatch`` pattern of a plain parameter or buffer -> placements.
    ``param_names``: implementation name -> spec name. ``out_placements``: ``output.N`` -> placements.
    ``grad_placements``: name or pattern of a plain parameter -> placements of its gradient.
    ``build``: a callable without arguments that makes the parallel model of the rank that calls it.
    ``per_rank_numbers``: ``fnmatch`` patterns of dotted attribute paths, as ``"layers.*.attention.n_heads"``, that hold
    a number per rank; an empty sequence says that none does, None says nothing.
    ``inner``: backend that compiles what was verified. ``on_unproved``: ``"error"`` or ``"warn"``.
    ``time_limit``: seconds for everything that follows capture; None: ten times what capture took, at least 120.
    ``waivers``: findings that stop nothing for a time; the path of a TOML file or a list, see ``waivers_of``.
    ``memory_limit``: bytes by which the process may grow meanwhile; None: what it has after capture, at least 4 GiB.
    """

    spec: Callable[..., Any] | None = None
    mesh: DeviceMesh | None = None
    in_placements: Mapping[str, Placements] = dataclasses.field(default_factory=dict[str, Placements])
    param_placements: Mapping[str, Placements] = dataclasses.field(default_factory=dict[str, Placements])
    param_names: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    out_placements: Mapping[str, Placements] = dataclasses.field(default_factory=dict[str, Placements])
    grad_placements: Mapping[str, Placements] = dataclasses.field(default_factory=dict[str, Placements])
    build: Callable[[], Callable[..., Any]] | None = None
    per_rank_numbers: tuple[str, ...] | None = None
    inner: str | Callable[..., Any] = "inductor"
    on_unproved: str = "error"
    time_limit: float | None = None
    memory_limit: int | None = None
    waivers: tuple[Waiver, ...] = ()

    @staticmethod
    def from_mapping(mapping: Mapping[str, Any] | None) -> Options:
        """Options from ``torch.compile(options={...})``. Raises ``UsageError`` VC306 for what is not an option."""
        values = _by_name(mapping)
        for name in _MAPPINGS:
            if values.get(name, ...) is None:
                del values[name]
        known = tuple(field.name for field in dataclasses.fields(Options))
        unknown = sorted(set(values) - set(known))
        if unknown:
            close = difflib.get_close_matches(str(unknown[0]), known, n=1)
            meant = f"; did you mean `{close[0]}`? The" if close else "; the"
            raise UsageError("VC306", f"unknown option {_quoted(unknown)}{meant} options are {_quoted(known)}.")
        for name in _MAPPINGS:
            if name in values and name != "param_names":
                values[name] = _placements_by_name(name, values[name])
        if "param_names" in values and not _maps_text(values["param_names"]):
            raise UsageError("VC306", "option `param_names` must map implementation names to spec names.")
        _check_spec(values.get("spec"))
        if values.get("build") is not None and not callable(values["build"]):
            raise UsageError("VC306", "option `build` must be a callable without arguments that makes the model.")
        if values.get("mesh") is not None and not isinstance(values["mesh"], DeviceMesh):
            raise UsageError("VC306", f"option `mesh` must be a DeviceMesh: make one with {_MESH}.")
        if values.get("per_rank_numbers") is not None:
            values["per_rank_numbers"] = _patterns("per_rank_numbers", values["per_rank_numbers"])
            if values["per_rank_numbers"] and values.get("spec") is not None:
                raise UsageError("VC310", "option `per_rank_numbers` does not apply: it is about a recovered spec.")
        if not isinstance(values.get("inner", ""), str) and not callable(values["inner"]):
            raise UsageError("VC306", "option `inner` must be the name of a backend of torch.compile, or a callable.")
        if values.get("on_unproved", "error") not in ("error", "warn"):
            raise UsageError("VC306", 'option `on_unproved` must be "error" or "warn".')
        values["waivers"] = waivers_of(values.get("waivers"))
        _check_limits(values.get("time_limit"), values.get("memory_limit"))
        return Options(**values)


_MESH = '`torch.distributed.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))`'


def _by_name(options: object) -> dict[str, Any]:
    if not isinstance(options or {}, Mapping):
        raise UsageError("VC306", "`options` must map names of options to values: `options={...}`.")
    return dict(options or {})  # type: ignore[call-overload]  # checked above


_EXAMPLES = {
    "in_placements": "x",
    "out_placements": "output.0",
    "param_placements": "layer.weight",
    "grad_placements": "layer.weight",
}


def _placements_by_name(option: str, value: object) -> dict[str, Placements]:
    if not isinstance(value, Mapping):
        example = f'{{"{_EXAMPLES[option]}": (Shard(0),)}}'
        raise UsageError("VC306", f"option `{option}` must map names to tuples of placements: `{option}={example}`.")
    result: dict[str, Placements] = {}
    for name, placements in cast(Mapping[object, object], value).items():
        if not isinstance(name, str):
            raise UsageError(
                "VC306", f"option `{option}` must map names to tuples of placements; `{name!r}` is no name."
            )
        items = (placements,) if isinstance(placements, Placement) else placements
        as_in = f': write `{{"{name}": (Shard(0),)}}`'
        if not isinstance(items, tuple | list):
            raise UsageError(
                "VC306", f"option `{option}`: the value for `{name}` must be a tuple of placements{as_in}."
            )
        checked = tuple(cast("tuple[object, ...] | list[object]", items))
        if not all(isinstance(item, Placement) for item in checked):
            raise UsageError(
                "VC306", f"option `{option}`: the value for `{name}` must be a tuple of placements{as_in}."
            )
        backwards = next((item for item in checked if isinstance(item, Shard) and item.dim < 0), None)
        if backwards is not None:
            text = f"option `{option}`: `{name}` counts a dimension from the end, {backwards}; count it from the front."
            raise UsageError("VC306", text)
        result[name] = cast(Placements, checked)
    return result


def _maps_text(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(isinstance(item, str) for pair in cast(Mapping[object, object], value).items() for item in pair)


def _check_limits(seconds: object, memory: object) -> None:
    if seconds is not None and not (_is_number(seconds, float) and 0 < cast(float, seconds) < float("inf")):
        raise UsageError("VC306", "option `time_limit` must be a number of seconds greater than zero.")
    if memory is not None and not (_is_number(memory) and cast(int, memory) > 0):
        raise UsageError("VC306", "option `memory_limit` must be a number of bytes greater than zero.")


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, (int, *kinds)) and not isinstance(value, bool)


def _check_spec(spec: object) -> None:
    if spec is not None and not callable(spec):
        raise UsageError("VC306", "option `spec` must be an nn.Module or a callable.")
    if isinstance(spec, type):
        what = f"it is the class `{spec.__name__}`: make a model of it first"
        raise UsageError("VC306", f"option `spec` must be an nn.Module or a function; {what}.")


def _patterns(option: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in cast("list[object]", value)):
        raise UsageError("VC306", f"option `{option}` must be a list of patterns of attributes.")
    return tuple(cast("list[str]", value))


def _quoted(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
