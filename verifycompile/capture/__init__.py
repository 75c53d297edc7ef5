"""From a call or a Dynamo graph to ``Program`` values: the parallel implementation and its single-device spec."""

from verifycompile.capture.implementation import capture_implementation, has_parallelism

__all__ = ["capture_implementation", "has_parallelism"]
