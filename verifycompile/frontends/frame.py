"""A frame that Dynamo compiles, as a source of graphs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import torch.fx

from verifycompile.agreement.together import captured_in_job
from verifycompile.capture import capture_both, capture_implementation
from verifycompile.frontends import Captured
from verifycompile.options import Options
from verifycompile.torch_interface.dynamo.backend import compilation_left_as_it_is, without_override
from verifycompile.torch_interface.dynamo.frames import frame_under_compilation


@dataclasses.dataclass(frozen=True)
class CompiledFrame:
    """The frame under compilation, of which Dynamo made the graph ``gm``. Call it inside a backend."""

    gm: torch.fx.GraphModule
    example_inputs: Sequence[Any]

    @contextlib.contextmanager
    def captured(self, options: Options) -> Generator[Captured]:
        gm, inputs = self.gm, self.example_inputs
        with without_override(), compilation_left_as_it_is():
            with captured_in_job(frame_under_compilation()) as channel:
                both = capture_both(lambda whole: capture_implementation(gm, inputs, options, whole), options)
            yield Captured(both.spec, both.implementation, channel, both.results)
