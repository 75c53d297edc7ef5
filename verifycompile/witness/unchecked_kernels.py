"""Kernels of torch that do not look at shapes and indices: on others than autograd's they read and write elsewhere.

A search for a cause evaluates programs with other operands than autograd gave them. What such a kernel writes outside
of its results ends the process. Which kernels these are was tried; what each needs is said here. Kernels that search
take their boundaries for ascending: among others what they find means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from verifycompile.witness.error import EvaluationError


def require_operands_that_fit(name: str, arguments: Mapping[str, Any]) -> None:
    """Raises ``EvaluationError`` where the kernel of ``name`` would leave the memory of its operands or results,
    or what it is given is not what it takes it for.
    """
    fits = _FITS.get(name.split(".")[1])
    if fits is not None and not fits(arguments):
        raise EvaluationError(f"{name}: its operands do not fit together")


def _embedding_backward(a: Mapping[str, Any]) -> bool:
    return _is_within(a["indices"], int(a["num_weights"]))


def _max_pool_backward(a: Mapping[str, Any]) -> bool:
    plane = 2 if len(a["kernel_size"]) <= 2 and a["self"].dim() <= 4 else 3
    elements = math.prod(a["self"].shape[-plane:])
    return a["indices"].shape == a["grad_output"].shape and _is_within(a["indices"], elements)


def _layer_norm_backward(a: Mapping[str, Any]) -> bool:
    own = tuple(a["normalized_shape"])
    rows = a["input"].numel() // max(1, math.prod(own))
    return (
        tuple(a["input"].shape[a["input"].dim() - len(own) :]) == own
        and a["grad_out"].shape == a["input"].shape
        and all(a[name].numel() == rows for name in ("mean", "rstd"))
        and all(a.get(name) is None or tuple(a[name].shape) == own for name in ("weight", "bias"))
    )


def _batch_norm(a: Mapping[str, Any]) -> bool:
    channels = a["input"].shape[1] if a["input"].dim() > 1 else -1
    held = ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd")
    tensors = [a[name] for name in held if isinstance(a.get(name), torch.Tensor)]
    gradient = a.get("grad_out")
    # In inference what a forward kernel saves for its backward is empty.
    return all(tensor.numel() in (channels, 0) for tensor in tensors) and (
        gradient is None or gradient.shape == a["input"].shape
    )


def _softmax_backward(a: Mapping[str, Any]) -> bool:
    return a["grad_output"].shape == a["output"].shape


def _likelihood_backward(a: Mapping[str, Any]) -> bool:
    target = a["target"]
    return _is_within(target[target != a["ignore_index"]], a["self"].shape[1 if a["self"].dim() > 1 else 0])


def _distances_backward(a: Mapping[str, Any]) -> bool:
    pairs = (*a["x1"].shape[:-1], a["x2"].shape[-2])
    return tuple(a["grad"].shape) == tuple(a["cdist"].shape) == pairs and a["x1"].shape[-1] == a["x2"].shape[-1]


def _alignments(a: Mapping[str, Any]) -> bool:
    lengths = all(isinstance(a[name], (list, tuple)) for name in ("input_lengths", "target_lengths"))
    return (
        lengths
        and max(a["input_lengths"], default=0) <= a["log_probs"].shape[0]
        and max(a["target_lengths"], default=0) <= a["targets"].shape[-1]
        and _is_within(a["targets"], a["log_probs"].shape[-1])
    )


def _ascends(boundaries: str) -> Callable[[Mapping[str, Any]], bool]:
    def ascends(a: Mapping[str, Any]) -> bool:
        order = a.get("sorter")
        values = a[boundaries] if order is None else a[boundaries].gather(-1, order)
        return bool((values.diff(dim=-1) >= 0).all())

    return ascends


def _is_within(indices: torch.Tensor, size: int) -> bool:
    return not indices.numel() or (int(indices.min()) >= 0 and int(indices.max()) < size)


_FITS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "embedding_dense_backward": _embedding_backward,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "max_pool3d_with_indices_backward": _max_pool_backward,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_functional": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_batch_norm_backward": _batch_norm,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "nll_loss_backward": _likelihood_backward,
    "nll_loss2d_backward": _likelihood_backward,
    "_cdist_backward": _distances_backward,
    "_ctc_loss": _alignments,
    "bucketize": _ascends("boundaries"),
    "searchsorted": _ascends("sorted_sequence"),
}
