"""Long certificates as a short text."""

from __future__ import annotations

import base64
import lzma

_LONGEST_UNPACKED = 1 << 30
"""Characters."""


def packed(text: str) -> str:
    """Layers are alike, so that what they say is packed to a few percent."""
    return base64.b85encode(lzma.compress(text.encode())).decode()


def unpacked(packed: str) -> str:
    """Raises ValueError for what was not packed, or is longer than any program."""
    reader = lzma.LZMADecompressor()
    try:
        text = reader.decompress(base64.b85decode(packed), _LONGEST_UNPACKED)
    except lzma.LZMAError as error:
        raise ValueError(f"not a verifycompile certificate: {error}") from error
    if not reader.eof:
        raise ValueError("not a verifycompile certificate: it ends too early, or is too long")
    return text.decode()
