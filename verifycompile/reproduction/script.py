"""A script that needs torch alone, runs both programs on one input, on all ranks, and fails where they differ."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from types import ModuleType

import sympy
import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.program import Program, ProgramInput
from verifycompile.reproduction import runtime
from verifycompile.reproduction.source import GraphSource, NoScriptError, identifier, literal
from verifycompile.torch_interface.dtensor.placements import is_known, norm_order, outer_blocks, sharded_dimension
from verifycompile.torch_interface.operators.evaluation import symbolic_expression
from verifycompile.witness import Agreement, EvaluationError, attention, written_kernels
from verifycompile.witness.inputs import placements_of, size_values, tangent_inputs, tensor_inputs
from verifycompile.witness.search import Difference
from verifycompile.witness.side_by_side import compare_programs

MAX_NUMBERS = 100_000
"""Numbers that a script may hold; more make a file that nobody reads."""
_CUT = "# --8<-- what is below is part of the scripts\n"
_LISTED_NUMBERS = 64
_WIDTH = 110
_MESH_OF_ONE = "rank"
_CHANGED = "# <- changed"


@dataclasses.dataclass(frozen=True)
class Version:
    """A program that is compared with the spec; see ``Difference`` for how it lies on the ranks."""

    name: str
    program: Program
    tangents: Mapping[str, tuple[Placement, ...]]
    candidates: Sequence[tuple[Placement, ...]]
    scale: int


def reproduction_script(
    spec: Program, implementation: Program, shown: Difference, mended: Program | None = None
) -> str:
    """The text of the script, but for a first line that says what differs. Raises :class:`NoScriptError`.

    ``mended``: the implementation with the changes after which it was proved. It is left out where it cannot be written
    down, or does not agree on these inputs. To be called under ``real_tensors``.
    """
    version = Version("implementation", implementation, shown.tangents, shown.candidates, shown.scale)
    repaired = None if mended is None else _mended(spec, mended, shown)
    if repaired is not None:
        with contextlib.suppress(NoScriptError):
            return _Script(spec, shown, [version, repaired]).text()
    return _Script(spec, shown, [version]).text()


def _mended(spec: Program, mended: Program, shown: Difference) -> Version | None:
    try:
        compared = compare_programs(spec, mended, shown.inputs, shown.seed, only=shown.output)
    except EvaluationError:
        return None
    result = compared.outputs.get(shown.output)
    if result is None or result.agreement is not Agreement.EQUAL or shown.output not in compared.candidates:
        return None
    candidates, scale = compared.candidates[shown.output], compared.scales.get(shown.output, 1)
    return Version("mended", mended, compared.tangents, candidates, scale)


class _Script:
    def __init__(self, spec: Program, shown: Difference, versions: Sequence[Version]) -> None:
        self.spec, self.shown, self.versions = spec, shown, versions
        self.mesh = versions[0].program.mesh
        self.axes = {_MESH_OF_ONE: 1} if self.mesh is None else {axis.name: axis.size for axis in self.mesh.axes}
        self.names: dict[tuple[str, str], str] = {}
        """Kind and name of an input -> its name in the script."""

    def text(self) -> str:
        spec, spec_parameters = self._function(self.spec, "spec", self.shown.inputs.sizes)
        functions: list[str] = []
        placements: list[dict[str, tuple[Placement, ...]]] = []
        for version in self.versions:
            text, parameters = self._function(version.program, version.name, {}, "me")
            functions.append(_marked(text, functions[0]) if functions else text)
            placements.append({name: self._placements(version, node) for node, name in parameters.items()})
        tensors = self._tensors({*spec_parameters.values(), *(name for names in placements for name in names)})
        pieces = [
            self._about(),
            _IMPORTS,
            self._inputs(tensors),
            spec,
            *functions,
            self._settings(placements, list(spec_parameters.values())),
            self._main(placements),
            "\n".join(_module_text(module) for module in _modules("".join([spec, *functions]))),
            'if __name__ == "__main__":\n    main()\n',
        ]
        return "\n\n\n".join(piece.strip("\n") for piece in pieces) + "\n"

    # -- programs

    def _function(
        self, program: Program, name: str, sizes: Mapping[sympy.Symbol, int], *first: str
    ) -> tuple[str, dict[torch.fx.Node, str]]:
        """The text of the function ``name``, and its parameters by placeholder."""
        output = next((output for output in program.outputs if output.name == self.shown.output), None)
        if output is None:
            shape = list(next(o.node for o in self.spec.outputs if o.name == self.shown.output).meta["val"].shape)
            return (
                f"def {name}({', '.join(first)}):\n    return torch.zeros({shape})  # it computes no such gradient",
                {},
            )
        parameters = self._parameters(program)
        numbers = {node: str(number) for node, number in size_values(program, sizes).items()}
        source = GraphSource(program, output.node, {**parameters, **numbers})
        used = {node: parameters[node] for node in source.placeholders if node in parameters}
        body = source.body()
        if any("as_strided" in line for line in body):
            body = [*_layouts(used), *body]
        return "\n".join([_wrapped(f"def {name}(", [*first, *used.values()], "):", ""), *body]), used

    def _parameters(self, program: Program) -> dict[torch.fx.Node, str]:
        """Placeholders of tensors -> names, the same for both programs."""
        names: dict[torch.fx.Node, str] = {}
        for kind, entries in (("", tensor_inputs(program)), ("cotangent of ", tangent_inputs(program))):
            for name, entry in entries.items():
                if (kind, name) not in self.names:
                    self.names[kind, name] = identifier(kind.replace(" ", "_") + name, self.names.values())
                names[entry.node] = self.names[kind, name]
        return names

    # -- inputs

    def _tensors(self, used: set[str]) -> dict[str, torch.Tensor]:
        values = {("", name): value for name, value in self.shown.inputs.spec.items()}
        values |= {("cotangent of ", name): value for name, value in self.shown.inputs.tangents.items()}
        tensors = {self.names[key]: value for key, value in values.items() if self.names.get(key) in used}
        count = sum(_numbers(value) for value in tensors.values())
        if count > MAX_NUMBERS:
            raise NoScriptError(f"the inputs have {count} numbers")
        return tensors

    def _inputs(self, tensors: Mapping[str, torch.Tensor]) -> str:
        lines = ["def inputs():", '    """The inputs of the spec; every rank gets its part of them."""']
        for name, value in tensors.items():
            lines += [f"    {line}" for line in _assignment(name, value)]
        names = [f'"{name}": {name}' for name in tensors]
        return "\n".join([*lines, _wrapped("    return {", names, "}", "    ")])

    def _placements(self, version: Version, node: torch.fx.Node) -> tuple[Placement, ...]:
        if self.mesh is None:
            return (Replicate(),)
        entry = next(entry for entry in version.program.inputs if entry.node is node)
        if _is_tangent(entry, version.program):
            return version.tangents.get(entry.name, ())
        return placements_of(entry, len(self.mesh.axes))

    # -- texts

    def _about(self) -> str:
        ranks = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        runs = f"what each rank of the mesh ({ranks}) runs" if self.mesh is not None else _TOGETHER
        about = _ABOUT.format(runs=runs, communicate="" if self.mesh is None else _COMMUNICATE)
        if len(self.versions) > 1:
            about += _HELPED
        return "\n".join(f"# {line}" for line in textwrap.wrap(about, _WIDTH))

    def _settings(self, placements: Sequence[Mapping[str, tuple[Placement, ...]]], spec_inputs: Sequence[str]) -> str:
        lines = [
            f"OUTPUT = {self.shown.output!r}",
            f"MESH = {_mapping({name: str(size) for name, size in self.axes.items()})}",
            _wrapped("SPEC_INPUTS = [", [f'"{name}"' for name in spec_inputs], "]", ""),
            f"TOLERANCE = {self.shown.tolerance!r}  # what rounding may explain",
            "# How the inputs lie on the ranks, a placement for each mesh axis; and how the output may.",
        ]
        for version, on in zip(self.versions, placements, strict=True):
            if version is not self.versions[0] and self._lies_as_before(placements):
                continue
            candidates = version.candidates if self.mesh is not None else [(Replicate(),)]
            prefix = "" if version is self.versions[0] else "MENDED_"
            lines += [
                f"{prefix}PLACEMENTS = {_mapping({name: _placement_list(items) for name, items in on.items()})}",
                f"{prefix}OUTPUT_PLACEMENTS = [{', '.join(_placement_list(items) for items in candidates)}]",
            ]
        return "\n".join(lines)

    def _lies_as_before(self, placements: Sequence[Mapping[str, tuple[Placement, ...]]]) -> bool:
        """Whether all that the mended program takes and returns lies on the ranks as in the implementation."""
        candidates = [list(version.candidates) for version in self.versions]
        return all(on == placements[0] for on in placements) and all(found == candidates[0] for found in candidates)

    def _main(self, placements: Sequence[Mapping[str, tuple[Placement, ...]]]) -> str:
        partial = any(isinstance(item, Partial) for on in placements for items in on.values() for item in items)
        seed = f", seed={self.shown.seed + 2}" if partial else ""
        scales = [version.scale for version in self.versions]
        lines = [
            "def main():",
            "    ranks, values = Ranks(MESH), inputs()",
            "    program, placements, output_placements = implementation, PLACEMENTS, OUTPUT_PLACEMENTS",
        ]
        if scales != [1] * len(scales):
            lines.append(f"    scale = {scales[0]}  # a rank's gradient is so many times the spec's")
        if len(self.versions) > 1:
            taken = "program, placements, output_placements = mended, MENDED_PLACEMENTS, MENDED_OUTPUT_PLACEMENTS"
            taken = "program = mended" if self._lies_as_before(placements) else taken
            lines += ['    if sys.argv[1:] == ["mended"]:', f"        {taken}"]
            if scales != [1] * len(scales):
                lines.append(f"        scale = {scales[1]}")
        divided = " / scale" if scales != [1] * len(scales) else ""
        return "\n".join(
            [
                *lines,
                "    expected = spec(**{name: values[name] for name in SPEC_INPUTS})",
                f"    parts = {{name: parts_of(values[name], ranks, on{seed}) for name, on in placements.items()}}",
                f"    found = [value{divided} for value in ranks.run(program, parts)]",
                "    gap, text = min(difference(found, expected, ranks, on) for on in output_placements)",
                '    assert gap <= TOLERANCE, f"{OUTPUT} {text}"',
                '    print(f"{OUTPUT} agrees on this input")',
            ]
        )


def _marked(text: str, first: str) -> str:
    """``text`` with a mark at the lines that ``first`` does not have."""
    known = set(first.split("\n"))
    return "\n".join(
        line if line in known or line.startswith("def ") or line.lstrip().startswith("#") else f"{line}  {_CHANGED}"
        for line in text.split("\n")
    )


def _modules(used: str) -> list[ModuleType]:
    modules = [runtime]
    if "attention_of(" in used:
        modules.append(attention)
    if any(f"{function.__name__}(" in used for function in written_kernels.WRITTEN.values()):
        modules.append(written_kernels)
    return modules


def _is_tangent(entry: ProgramInput, program: Program) -> bool:
    return any(entry is tangent for tangent in tangent_inputs(program).values())


def _wrapped(first: str, items: Sequence[str], last: str, indent: str) -> str:
    """``items`` between brackets, on one line where that is not too long."""
    line = f"{first}{', '.join(items)}{last}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([first, *(f"{indent}    {item}," for item in items), f"{indent}{last}"])


def _layouts(parameters: Mapping[torch.fx.Node, str]) -> list[str]:
    """Lines that give the inputs the memory layouts that they were traced with."""
    lines: list[str] = []
    for node, name in parameters.items():
        traced: torch.Tensor = node.meta["val"]
        known = not any(symbolic_expression(stride) for stride in traced.stride())
        if known and traced.numel() and not traced.is_contiguous():
            lines.append(f"    {name} = with_strides({name}, {tuple(traced.stride())})")
    return lines


def _numbers(value: torch.Tensor) -> int:
    """How many numbers it takes to write ``value`` down."""
    flat = value.flatten()
    if flat.numel() and bool((flat == flat[0]).all()):
        return 1
    return min(int((flat != 0).sum()) * (value.dim() + 1), flat.numel())


def _assignment(name: str, value: torch.Tensor) -> list[str]:
    """Statements that make ``value``: zeros with a few other elements, or all of them."""
    places = value.nonzero().tolist() if value.numel() else []
    whole = literal(value)
    if not places or value.dim() == 0 or len(places) > _LISTED_NUMBERS or not whole.startswith("torch.tensor"):
        return [f"{name} = {whole}"]
    dtype = str(value.dtype)
    zeros = f"{name} = torch.zeros({list(value.shape)}, dtype={dtype})"
    return [zeros, *(f"{name}{place} = {_number(value[tuple(place)].item())}" for place in places)]


def _number(value: object) -> str:
    return repr(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)


def _mapping(items: Mapping[str, str]) -> str:
    if not items:
        return "{}"
    return "{\n" + "".join(f'    "{name}": {text},\n' for name, text in items.items()) + "}"


def _placement_list(placements: Sequence[Placement]) -> str:
    return f"[{', '.join(_placement(item) for item in placements)}]"


def _placement(placement: Placement) -> str:
    dim = sharded_dimension(placement)
    if not is_known(placement) or norm_order(placement) is not None:
        raise NoScriptError(f"the placement {placement}")
    if dim is not None:
        blocks = outer_blocks(placement)
        return f"Shard({dim})" if blocks == 1 else f"_StridedShard({dim}, split_factor={blocks})"
    return f'Partial("{placement.reduce_op}")' if isinstance(placement, Partial) else "Replicate()"


def _module_text(module: ModuleType) -> str:
    title = (module.__doc__ or "").split("\n", 1)[0]
    return f"# {title}\n" + inspect.getsource(module).split(_CUT, 1)[1]


_TOGETHER = "what all ranks run, assembled: collectives are the sums and concatenations that they compute"
_COMMUNICATE = '; ranks communicate by `me.all_reduce(value, "sum", "tp")` and the like'

_ABOUT = (
    "`python FILE` fails as long as the programs differ on this input, and says so once they agree. It needs torch "
    "alone. `spec` is the single-device program and `implementation` is {runs}, as torch captured them. Everything is "
    "computed in float64 on the CPU, and only what the output depends on is here. Above the lines stand the source "
    "lines that they come from. Mend `implementation` as you mean to mend the source, and run this again"
    "{communicate}. Then verify the mended source: this is one input."
)

_HELPED = (
    " `mended` is the implementation with the changes of the report's help, with which the proof succeeded: "
    "`python FILE mended` passes."
)

_IMPORTS = """
from __future__ import annotations

import itertools
import math
import operator
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

torch.set_default_dtype(torch.float64)
aten, prims = torch.ops.aten, torch.ops.prims
"""
