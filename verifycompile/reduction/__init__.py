"""Smaller sizes for both programs together (TrainVerify, section 5.3): what differs there differs by the same error.

The sizes of a model of real size are found by what its operators require of them; names, order and places in the source
stay, so that a node of the reduced programs is found by its name in the ones that were captured.
"""

from verifycompile.reduction.reduce import Reduced, reduce_sizes

__all__ = ["Reduced", "reduce_sizes"]
