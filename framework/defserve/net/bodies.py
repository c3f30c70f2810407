"""The body of a response, bounded in time and in bytes, both as received and as decompressed."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

import httpx2

from defserve.errors import LimitExceeded, Refused
from defserve.net.egress import Egress

ACCEPTED: Final = "gzip, deflate"
_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_PIECE: Final = 64 * 1024
_GZIP: Final = zlib.MAX_WBITS | 16
_RAW: Final = -zlib.MAX_WBITS


class BoundedBody(httpx2.AsyncByteStream):
    """The decoded body of a response; `encoding` is its Content-Encoding."""

    def __init__(self, body: httpx2.AsyncByteStream, encoding: str, egress: Egress, deadline: float) -> None:
        self._body, self._encoding, self._egress, self._deadline = body, encoding, egress, deadline

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = decoded = 0
        most = self._egress.max_bytes
        inflate = _Inflate(self._encoding) if self._encoding in _CODINGS else None
        async for chunk in self._chunks():
            received += len(chunk)
            if received > most:
                raise too_long(most)
            if inflate is None and self._encoding not in ("", "identity"):
                # Only a body that has bytes is refused: HEAD has none.
                reason = f"the body has the Content-Encoding {self._encoding[:40]!r}, which was not asked for"
                hints = {"accepted": ACCEPTED}
                raise Refused(reason, data={"status": "rejected", "reason": reason, "violations": [], "hints": hints})
            for piece in inflate.pieces(chunk) if inflate else (chunk,):
                decoded += len(piece)
                if decoded > most:
                    raise too_long(most)
                yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._body)
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise too_late(self._egress.timeout) from None
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


class _Inflate:
    """Decompresses in pieces of bounded size, so that a small chunk cannot become a large one unnoticed."""

    def __init__(self, encoding: str) -> None:
        self._zlib = zlib.decompressobj(_GZIP if encoding in ("gzip", "x-gzip") else zlib.MAX_WBITS)
        # Some servers leave the zlib header out of "deflate".
        self._may_be_raw = encoding == "deflate"

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        full = True
        # After a full piece there may be more: the decompressor keeps what did not fit, even without input left.
        while (chunk or full) and not self._zlib.eof:
            try:
                piece = self._zlib.decompress(chunk, _PIECE)
            except zlib.error as error:
                if not self._may_be_raw:
                    raise httpx2.DecodingError(f"the body is not what its Content-Encoding says: {error}") from None
                self._zlib, self._may_be_raw = zlib.decompressobj(_RAW), False
                continue
            self._may_be_raw = False
            chunk, full = self._zlib.unconsumed_tail, len(piece) == _PIECE
            yield piece


def too_long(most: int) -> LimitExceeded:
    return _exceeded(f"the response is longer than {most} bytes", "max_bytes", most)


def too_late(seconds: float) -> LimitExceeded:
    return _exceeded(f"the response was not complete within {seconds:g} s", "timeout", seconds)


def _exceeded(reason: str, limit: str, value: float) -> LimitExceeded:
    data = {"status": "rejected", "reason": reason, "violations": [reason], "hints": {limit: value}, "limit": limit}
    return LimitExceeded(reason, data=data)
