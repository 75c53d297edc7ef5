"""Tensors without dimensions where an operator indexes a dimension: torch takes them for rows of one element."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import Handler

_INDEXED = ("self", "index", "src", "source")


def scalars_as_rows(handler: Handler) -> Handler:
    """``handler`` on rows of one element for those of its tensors that have no dimensions, where ``self`` is one row.

    The result has no dimensions where torch recorded none.
    """
    signature = inspect.signature(handler)

    @functools.wraps(handler)
    def on_rows(b: Builder, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(b, *args, **kwargs).arguments
        scalars = {
            name: value for name in _INDEXED if isinstance(value := given.get(name), View) and b.rank(value) == 0
        }
        if not scalars or b.rank(given["self"]) > 1:
            return handler(**given)
        result = handler(**{**given, **{name: b.unsqueeze(value, 0) for name, value in scalars.items()}})
        return b.select(result, 0, 0) if b.call.shape == () and b.rank(result) == 1 else result

    return on_rows
