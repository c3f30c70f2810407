"""Compressed bodies, unpacked in bounded pieces: a small body cannot become a large one unread."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from defserve.host.links.http_client.errors import Broken

ACCEPTED: Final = "gzip, deflate"
PIECE: Final = 64 * 1024
# By content coding: gzip, and zlib or bare deflate. Servers write both of the latter under one name.
GZIP, ZLIB, BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Unpacker:
    """Unpacks one body. Raises Broken for a coding that was not asked for, and for one that does not fit the body."""

    __slots__ = ("_codec", "_may_be_bare")

    def __init__(self, coding: str) -> None:
        coding = coding.strip().lower()
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise Broken(f"the response is encoded as {coding[:60]!r}, which was not asked for")
        self._may_be_bare = coding == "deflate"
        self._codec = zlib.decompressobj(ZLIB if self._may_be_bare else GZIP)

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """The pieces that `data` gives, one at a time."""
        while data:
            try:
                piece = self._codec.decompress(data, PIECE)
            except zlib.error as error:
                if not self._may_be_bare:
                    raise Broken(f"the response is not encoded as it says: {error}") from None
                self._codec = zlib.decompressobj(BARE)
                self._may_be_bare = False
                continue
            self._may_be_bare = False
            data = self._codec.unconsumed_tail
            if piece:
                yield piece
