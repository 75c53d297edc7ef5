"""From a call or a Dynamo graph to ``Program`` values: the parallel implementation and its single-device spec."""

from verifycompile.capture.data_parallel.sample_readings import capture_both
from verifycompile.capture.implementation import Results, capture_implementation
from verifycompile.capture.model import arguments_of_call, capture_model, check_model, frame_of_model, model_or_built
from verifycompile.capture.ranks.one_rank import identity_of
from verifycompile.capture.single_device.spec import recover_spec

__all__ = [
    "Results", "arguments_of_call", "capture_both", "capture_implementation", "capture_model", "check_model",
    "frame_of_model", "identity_of", "model_or_built", "recover_spec",
]  # fmt: skip
