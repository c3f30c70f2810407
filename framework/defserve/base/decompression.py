"""Compressed bodies, unpacked in bounded pieces: a small one cannot become a large one unnoticed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

ACCEPT_ENCODING_VALUE: Final = "gzip, deflate"
"""The header that asks for what can be unpacked here."""
SUPPORTED_CONTENT_CODINGS: Final = frozenset(("gzip", "x-gzip", "deflate"))
MAX_PIECE_BYTES: Final = 64 * 1024

# gzip, and zlib or bare deflate. Servers write both of the latter under one name.
_GZIP, _ZLIB, _BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Decompressor:
    """Unpacks one body. `coding` is one of `SUPPORTED_CONTENT_CODINGS`."""

    __slots__ = ("_codec", "_may_be_bare", "_begin")

    def __init__(self, coding: str) -> None:
        self._may_be_bare = coding == "deflate"
        self._codec = zlib.decompressobj(_ZLIB if self._may_be_bare else _GZIP)
        self._begin: bytes = b""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """The pieces that `data` gives, one at a time. Raises `zlib.error` if the body is not encoded as it says."""
        if self._may_be_bare:
            # The header of zlib is two bytes: one alone does not tell what this is.
            data = self._begin + data
            if len(data) < 2:
                self._begin = bytes(data)
                return
        is_full = True
        # After a full piece there may be more: the codec keeps what did not fit, even without input left.
        while (data or is_full) and not self._codec.eof:
            try:
                piece = self._codec.decompress(data, MAX_PIECE_BYTES)
            except zlib.error:
                if not self._may_be_bare:
                    raise
                self._codec, self._may_be_bare = zlib.decompressobj(_BARE), False
                continue
            self._may_be_bare = False
            data, is_full = self._codec.unconsumed_tail, len(piece) == MAX_PIECE_BYTES
            if piece:
                yield piece
