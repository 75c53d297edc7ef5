"""Options must apply: a name that no tensor has, or placements for what has placements of its own, is an error."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from verifycompile.capture.boundary import Export
from verifycompile.capture.layouts import Placements
from verifycompile.capture.names import clean_module_name, tensors_of_modules
from verifycompile.capture.refine_mesh import RefinedMesh
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import OutputKind, ProgramInput, ProgramOutput, Role
from verifycompile.torch_interface.dynamo.aot import Layout

TENSOR_ROLES = (Role.INPUT, Role.PARAMETER, Role.BUFFER)


def check_axes(option: str, name: str, placements: Placements, mesh: RefinedMesh) -> None:
    """Raises ``UsageError`` VC303 for a number of placements that is not that of the mesh's axes."""
    named = mesh.named.axes
    if len(placements) not in (len(named), len(mesh.mesh.axes)):
        axes = f"{len(named)} {'axis' if len(named) == 1 else 'axes'} ({', '.join(axis.name for axis in named)})"
        raise UsageError("VC303", f"{option}`{name}` has {len(placements)} placements, but the mesh has {axes}.")


class OptionNames:
    """The names that a captured program knows. ``own_names``: spec name -> name in the implementation.

    The rest of a function after a graph break has inputs of its own, and options speak of the parts before it too:
    what they name that this part does not have is listed, see ``unknown_here``.
    """

    def __init__(
        self, exported: Export, inputs: Sequence[ProgramInput], own_names: Mapping[str, str], options: Options
    ) -> None:
        self._frame = exported.traced.frame
        self._is_part = exported.traced.is_broken or self._frame.is_resumption
        self._options = options
        pairs = list(zip(inputs, exported.joint.inputs, strict=True))
        held = [(own_names.get(item.name, item.name), item, flat) for item, flat in pairs if item.role in TENSOR_ROLES]
        self._dtensors: dict[str, Layout] = {name: flat.layout for name, _, flat in held if flat.layout is not None}
        self._inputs = [name for name, item, flat in held if flat.layout is None and item.role is Role.INPUT]
        self._parameters = [name for name, item, flat in held if flat.layout is None and item.role is not Role.INPUT]
        self._tensors = [name for name, _, _ in held]
        self._without_gradient = {name for name, item, _ in held if not item.requires_grad}
        self._unread = _plain_tensors(self._frame.locals.values())
        self.unknown_here: list[str] = []

    def check(self, mesh: RefinedMesh) -> None:
        """Raises ``UsageError``: VC303 for a number of placements, VC306 for an unknown name, VC310 else."""
        options = self._options
        for option in ("in_placements", "param_placements", "grad_placements"):
            for name, placements in getattr(options, option).items():
                if not self._is_part:
                    check_axes(f"option `{option}`: ", name, placements, mesh)
        self._check_inputs()
        self._check_patterns("param_placements", options.param_placements, self._parameters)
        self._check_patterns("grad_placements", options.grad_placements, self._tensors)
        self._check_renamed()

    def _check_inputs(self) -> None:
        for name in self._options.in_placements:
            if name in self._inputs:
                continue
            value = _value_at(name, self._frame.locals)
            if self._frame.is_resumption:
                self._unknown("in_placements", name, "")
                continue
            if name in self._dtensors or isinstance(value, DTensor):
                own = "" if name not in self._dtensors else f" ({_listed_placements(self._dtensors[name])})"
                raise UsageError(
                    "VC310",
                    f"option `in_placements` does not apply to `{name}`: it is a DTensor and has placements{own} of "
                    "its own.",
                )
            if isinstance(value, int | float | str | torch.Size):
                raise UsageError(
                    "VC310", f"option `in_placements` does not apply to `{name}`: it is no tensor, but {value!r}."
                )
            if value is not _MISSING:
                continue  # A tensor that the graph does not read.
            self._unknown(
                "in_placements",
                name,
                f"option `in_placements` names `{name}`; the plain tensor inputs are {listed(sorted(self._inputs))}.",
            )

    def _check_patterns(self, option: str, patterns: Mapping[str, Placements], candidates: Sequence[str]) -> None:
        is_of_parameters = option == "param_placements"
        for pattern in patterns:
            found = fnmatch.filter(candidates, pattern)
            settled = fnmatch.filter(self._dtensors, pattern)
            if self._frame.is_resumption:
                if not found and not settled and not fnmatch.filter(self._unread, pattern):
                    self._unknown(option, pattern, "")
                continue
            if is_of_parameters and settled and not found:
                raise UsageError(
                    "VC310",
                    f"option `param_placements` does not apply to `{settled[0]}`: it is a DTensor and has placements "
                    f"({_listed_placements(self._dtensors[settled[0]])}) of its own.",
                )
            if not is_of_parameters and found and set(found) <= self._without_gradient:
                raise UsageError(
                    "VC310",
                    f"option `grad_placements` does not apply to `{found[0]}`: it requires no gradient.",
                )
            if not found and not fnmatch.filter(self._unread, pattern):
                self._unknown(
                    option,
                    pattern,
                    f"option `{option}`: nothing matches `{pattern}`; "
                    f"the {'plain ' if is_of_parameters else ''}tensors are {listed(sorted(candidates))}.",
                )

    def _check_renamed(self) -> None:
        if self._options.param_names and self._options.spec is None:
            raise UsageError(
                "VC310",
                "option `param_names` does not apply: without the option `spec` the spec has the model's own names.",
            )
        # What the program calls a tensor is the spec's name for it by now: its own names are those of its modules.
        of_modules = tensors_of_modules(self._frame.locals.values())
        known = {*(of_modules or self._tensors), *self._frame.locals}
        for name in self._options.param_names:
            if name not in known:
                self._unknown(
                    "param_names",
                    name,
                    f"option `param_names` names `{name}`, which the model does not have; its tensors are "
                    f"{listed(sorted(of_modules or self._tensors))}.",
                )

    def _unknown(self, option: str, name: str, message: str) -> None:
        if not (self._frame.is_resumption or (self._is_part and option in ("in_placements", "param_names"))):
            raise UsageError("VC306", message)
        self.unknown_here.append(f"option `{option}` names `{name}`, which this part of a broken graph does not have")


def check_outputs(outputs: Sequence[ProgramOutput], dtensors: Mapping[str, Layout], options: Options) -> None:
    """Raises ``UsageError``: VC306 for an unknown name in ``out_placements``, VC310 for one of a DTensor."""
    known = {output.name for output in outputs if output.kind is OutputKind.VALUE}
    for name in sorted(options.out_placements):
        if name in dtensors:
            raise UsageError(
                "VC310",
                f"option `out_placements` does not apply to `{name}`: it is a DTensor and has placements "
                f"({_listed_placements(dtensors[name])}) of its own.",
            )
        if name not in known:
            raise UsageError(
                "VC306", f"option `out_placements` names `{name}`; the outputs are {listed(sorted(known))}."
            )


_MISSING = object()


def _value_at(name: str, variables: Mapping[str, Any]) -> Any:
    """What ``batch.tokens`` leads to, through mappings, sequences and attributes; ``_MISSING`` for nothing."""
    first, *steps = name.split(".")
    found = variables.get(first, _MISSING)
    for step in steps:
        if isinstance(found, Mapping):
            found = {str(key): item for key, item in found.items()}.get(step, _MISSING)
        elif isinstance(found, list | tuple) and step.isdecimal():
            found = found[int(step)] if int(step) < len(found) else _MISSING
        else:
            found = _MISSING if isinstance(found, torch.Tensor) else getattr(found, step, _MISSING)
    return found


def _plain_tensors(values: Iterable[object]) -> list[str]:
    """As ``tensors_of_modules``, without DTensors."""
    modules = [value for value in values if isinstance(value, nn.Module)]
    return [
        clean_module_name(name.split("."))
        for module in modules
        for name, value in (*module.named_parameters(), *module.named_buffers())
        if not isinstance(value, DTensor)
    ]


def _listed_placements(layout: Layout) -> str:
    return ", ".join(map(str, layout.placements))


def listed(names: Sequence[str]) -> str:
    """Names as a message shows them."""
    return ", ".join(f"`{name}`" for name in names) if names else "none"
