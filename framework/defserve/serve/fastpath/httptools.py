"""What httptools needs: it says which part of a request comes, and it takes trailers for headers."""

from __future__ import annotations

from typing import Any

from defserve.serve.fastpath.deadlines import RequestHeadDeadline
from defserve.serve.fastpath.framing import check_framing
from defserve.serve.fastpath.holding import MAX_READ_AHEAD_BYTES


class SealedHeaders(list[tuple[bytes, bytes]]):
    """The headers of a complete head. Whatever is added later is a trailer, and counts for nothing."""

    def append(self, item: tuple[bytes, bytes]) -> None:
        """Drop it."""


class AnyLength(int):
    """How long a response still has to be, if any length is right: always as long as what is compared with it."""

    def __lt__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> AnyLength:
        return self


ANY_LENGTH = AnyLength()


class BoundedHttptoolsProtocol(RequestHeadDeadline):
    """Mixed in before uvicorn's protocol for httptools."""

    headers: Any
    url: bytes
    pipeline: Any
    parser: Any
    _head_begun = False  # part of a head came; the parser says so
    _ahead = 0  # bytes that came while requests waited
    _read: object | None = None

    def _feed(self, data: bytes) -> None:
        super()._feed(data)
        if self.pipeline:
            self._ahead += len(data)
            if self._ahead > MAX_READ_AHEAD_BYTES:
                self.flow.hold_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()  # pyright: ignore
        self._head_begun = True

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        check_framing(version, self.headers)  # the parser makes its own error of ours
        self._head_begun = False
        super().on_headers_complete()  # pyright: ignore
        # The scope keeps the list as it is now.
        self.headers = SealedHeaders(self.headers)
        if not self.url.startswith(b"/"):
            # uvicorn drops the host of an absolute URI. The app must judge it.
            self.scope["raw_path"] = self.url.partition(b"?")[0]
        cycle = self.cycle
        if version == "1.0" and cycle is not None and cycle.scope is self.scope:
            # uvicorn would send chunks, which HTTP/1.0 does not know (RFC 9112 §6.1). The response ends by closing.
            cycle.chunked_encoding, cycle.expected_content_length = False, ANY_LENGTH

    def on_message_complete(self) -> None:
        super().on_message_complete()  # pyright: ignore
        self._read = self.cycle

    def on_response_complete(self) -> None:
        if len(self.pipeline) <= 1:  # uvicorn starts one of them
            self._ahead, self.flow.is_held = 0, False
        super().on_response_complete()  # pyright: ignore

    @property
    def _is_read(self) -> bool:
        return self._read is self.cycle

    @property
    def _has_begun(self) -> bool:
        return self._head_begun

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._read = None
        self.pipeline.clear()
