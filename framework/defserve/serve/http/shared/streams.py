"""The messages of one request in a shared session. Once its response is a stream, they go through the store."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING

from defserve.auth.principals import encode_principal
from defserve.core.messages import RequestId
from defserve.serve.http.exchange import Exchange, WritableMessage
from defserve.serve.http.sessions import SSE_RETRY_MS, ResponseStream, StandaloneStream
from defserve.serve.http.shared.reading import SHARED_STANDALONE_STREAM_NAME, StreamReader
from defserve.stores.shared import lua_scripts

if TYPE_CHECKING:
    from defserve.serve.http.shared.session import SharedSession


class SharedResponseStream(ResponseStream):
    """As long as it has no name, nothing of it is in the store: a plain answer costs nothing.

    A response that becomes a stream while the store is away has no name either, and cannot be resumed.
    """

    __slots__ = ("request",)

    session: SharedSession

    def __init__(
        self, session: SharedSession, exchange: Exchange, request: RequestId | list[RequestId] | None = None
    ) -> None:
        super().__init__(session, exchange)
        self.request = request

    def push(self, message: WritableMessage) -> None:
        self.answered = self.answered or message.answers
        if self.name:
            self.session.append_event(self.name, message)
        elif self.exchange is not None and self.is_read:
            self.exchange.push(message)
        elif message.taken is not None:
            message.taken()

    def start_events(self) -> bytes:
        # A response that is complete need not be resumed.
        if not self.name and not self.answered and self.session.link.is_up:
            self._take_name()
        # The rest of this event is its id, which comes when the store knows the stream.
        return b"retry: %d\n" % SSE_RETRY_MS if self.name and self.session.primed else b""

    def _take_name(self) -> None:
        session, exchange = self.session, self.exchange
        assert exchange is not None
        self.name = name = session.new_name()
        session.streams[name] = self
        reader = session.reading[name] = StreamReader(session, name, exchange)
        reader.is_begun = False
        owner, request = json.dumps(encode_principal(exchange.principal)), json.dumps(self.request)
        done = partial(self._on_stream_started, reader)
        session.link.queue_script(
            *(
                lua_scripts.BEGIN_STREAM,
                session.id,
                name,
                session.link.worker,
                request,
                owner,
                reader.token,
                session.ttl,
            ),
            done=done,
        )
        waiting = list(exchange.unread)
        exchange.unread.clear()
        for item in waiting:
            session.append_event(name, item.message)

    def _on_stream_started(self, reader: StreamReader, reply: object) -> None:
        reader.is_begun = True
        reader.send_first_event_id()

    def hang_up(self) -> None:
        exchange = self.exchange
        if not self.session.primed or self.answered or not self.is_read or exchange is None:
            return
        if not self.name:
            if not self.session.link.is_up:
                return
            self._take_name()
        # After everything that was said before.
        self.session.link.call_after_writes(exchange.end_without_answer)

    def detach(self, exchange: Exchange) -> None:
        self.session.readers -= 1
        self.session.used = time.monotonic()
        exchange.take_unread()
        if self.exchange is exchange:
            self.exchange = None
        reader = self.session.reading.get(self.name)
        if reader is not None and reader.exchange is exchange:
            del self.session.reading[self.name]


class SharedStandaloneStream(StandaloneStream):
    """The messages that belong to no request. All processes add to it; the store has their order."""

    __slots__ = ()

    session: SharedSession

    def push(self, message: WritableMessage) -> None:
        self.session.append_event(SHARED_STANDALONE_STREAM_NAME, message, delivery=self.session.link.delivering)

    def drop_waiting(self) -> None:
        """Nothing waits here."""
