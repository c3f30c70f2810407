"""What h11 needs: it joins folded headers, prefers chunks to a length, and keeps requests that came too early."""

from __future__ import annotations

import re
from typing import Any, cast

import h11

from defserve.serve.fastpath.deadlines import MAX_REQUEST_HEAD_BYTES, RequestHeadDeadline
from defserve.serve.fastpath.framing import BadFraming, check_framing
from defserve.serve.fastpath.holding import MAX_READ_AHEAD_BYTES

_FOLD = re.compile(rb"\n[ \t]")


class StrictConnection(h11.Connection):
    """Refuses heads that another reader could read in another way."""

    def next_event(self) -> Any:
        """The next part of a request. Raises RemoteProtocolError for a bad one."""
        if self.their_state is not h11.IDLE:
            return super().next_event()
        before, _ = self.trailing_data
        event = super().next_event()
        if isinstance(event, h11.Request):
            head = before[: len(before) - len(self.trailing_data[0])]
            if _FOLD.search(head):
                raise h11.RemoteProtocolError("a header goes on in another line")
            try:
                check_framing(event.http_version.decode(), event.headers)
            except BadFraming as error:
                raise h11.RemoteProtocolError(str(error)) from None
        return event


class BoundedH11Protocol(RequestHeadDeadline):
    """Mixed in before uvicorn's protocol for h11.

    What comes behind a request waits here until that request is answered. So it is never taken for one long head.
    """

    conn: h11.Connection
    _waiting = b""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = StrictConnection(h11.SERVER, 2 * MAX_REQUEST_HEAD_BYTES)

    def _feed(self, data: bytes) -> None:
        if self._is_read and not self._is_between:
            self._waiting += data
            self._hold_much()
        else:
            super()._feed(data)

    def on_response_complete(self) -> None:
        before, self.flow.is_held = self.cycle, False
        cast(Any, super()).on_response_complete()
        if self.cycle is not before:
            self._head_bytes = self._bare_bytes = 0  # a request that had come already
        while self._waiting and not (self._is_handed_over or self.transport.is_closing()):
            if self._is_read and not self._is_between:
                self._hold_much()
                break
            piece, self._waiting = self._waiting[:MAX_REQUEST_HEAD_BYTES], self._waiting[MAX_REQUEST_HEAD_BYTES:]
            super()._feed(piece)
        if not self._is_handed_over:
            self._note_next_head()

    def _hold_much(self) -> None:
        if len(self._waiting) > MAX_READ_AHEAD_BYTES:
            self.flow.hold_reading()

    @property
    def _is_read(self) -> bool:
        return self.conn.their_state is not h11.SEND_BODY

    @property
    def _has_begun(self) -> bool:
        return self._is_read and bool(self._waiting or self.conn.trailing_data[0])

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._waiting = b""
