"""The matrix of sliding windows as its numbers: which window reads which position, and where it is zero.

``[o, k, x]``, one where ``x = o * stride - padding + k * dilation``, says the same of any stretch of windows and of the
line once the padding is shifted.
"""

from __future__ import annotations

import dataclasses

from verifycompile.ir.term import Axis, View
from verifycompile.rewrites.operations import SLIDING_WINDOW

WINDOWS, REACH, LINE = range(3)
"""The axes: number of the window, place in it, position on the line."""


@dataclasses.dataclass(frozen=True)
class Matrix:
    """The numbers of one matrix of sliding windows."""

    stride: int
    padding: int
    dilation: int
    windows: int
    reach: int
    line: int

    def moved(self, axis: int, start: int, length: int) -> Matrix:
        """The matrix whose position 0 along ``axis`` is position ``start`` of this one, and which has ``length``."""
        if axis == WINDOWS:
            return dataclasses.replace(self, padding=self.padding - start * self.stride, windows=length)
        if axis == REACH:
            return dataclasses.replace(self, padding=self.padding - start * self.dilation, reach=length)
        return dataclasses.replace(self, padding=self.padding + start, line=length)

    def hits(self, axis: int, span: tuple[int, int] | None = None) -> tuple[int, int]:
        """A range outside of which the matrix is zero along ``axis``, the others (or ``span`` of them) being whole.

        ``span``: first and last position on the line for ``WINDOWS``, first and last window for ``LINE``.
        """
        last = (self.reach - 1) * self.dilation
        if axis == WINDOWS:
            low, high = span or (0, self.line - 1)
            return max(0, -((last - self.padding - low) // self.stride)), min(
                self.windows - 1, (high + self.padding) // self.stride
            )
        low, high = span or (0, self.windows - 1)
        return max(0, low * self.stride - self.padding), min(self.line - 1, high * self.stride - self.padding + last)

    def everything(self, axis: int) -> tuple[int, int]:
        """``(start, length)``, as for ``moved``: all windows that reach the line, or all positions that one reaches."""
        last = (self.reach - 1) * self.dilation
        if axis == LINE:
            return -self.padding, (self.windows - 1) * self.stride + last + 1
        start = -((last - self.padding) // self.stride)
        return start, (self.line - 1 + self.padding) // self.stride - start + 1


def matrix_of(view: View) -> Matrix | None:
    """The numbers of a matrix of sliding windows."""
    if view.term.operation is not SLIDING_WINDOW or view.coefficient != 1:
        return None
    numbers = (*view.term.attributes, *view.term.index_sizes)
    if not all(isinstance(number, int) for number in numbers):
        return None
    return Matrix(*numbers)  # type: ignore[arg-type]  # checked above


def axis_along(view: View, dim: int) -> int | None:
    """The axis of a matrix that is all of ``dim``, which no other axis reads."""
    whole: Axis = ((dim, 1, view.shape[dim]),)
    found = [k for k, axis in enumerate(view.axes) if any(digit[0] == dim for digit in axis)]
    return found[0] if len(found) == 1 and view.axes[found[0]] == whole else None
