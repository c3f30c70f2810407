"""Streamable HTTP for sessions that any process may serve."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from defserve.auth.principals import decode_principal, encode_principal
from defserve.core.messages import INVALID_REQUEST, MalformedMessage, Message, Reply, Request, RequestId, encode
from defserve.errors import LimitExceeded, Refused
from defserve.serve.http.exchange import Exchange
from defserve.serve.http.sessions import HttpSession, HttpSessions
from defserve.serve.http.shared.session import SharedSession, StreamFullyRead
from defserve.serve.http.shared.sessions import SharedSessions
from defserve.serve.http.shared.settling import PersistedCall
from defserve.serve.http.shared.streams import SharedResponseStream
from defserve.serve.http.streamable import (
    INTERNAL_ERROR,
    NOTHING_TO_RESUME,
    RETRY_AFTER_HEADERS,
    STREAM_ALREADY_OPEN,
    ClientWatch,
    HttpProtocolRules,
    ResponseRoute,
    StreamableEndpoint,
    answer_call,
    run_call,
    send_jsonrpc_error,
    stream_events,
)
from defserve.serve.sockets import CallOrReply, FinalReply
from defserve.stores.shared import lua_scripts
from defserve.stores.shared.worker_link import SharedStoreLink
from defserve.stores.store import StoreUnavailable

if TYPE_CHECKING:
    from defserve.core.extension import Offer
    from defserve.serve.session_opener import SessionOpener


FORBIDDEN = "Forbidden: this question is for a caller with more rights"
MAX_QUESTION_ID_LENGTH = 64
# A call has run when it waits for the store: as long as a store takes that is started again. Then it is answered all
# the same.
TOLD_SECONDS = 30.0

log = logging.getLogger("defserve")


class SharedStreamableEndpoint(StreamableEndpoint):
    """As `StreamableEndpoint`, with one step before: a session that is not known here is looked for in the store.

    What needs the store while it is away is refused with 503. Calls of known sessions do not need it.
    """

    def __init__(self, provider: SessionOpener, rules: HttpProtocolRules, link: SharedStoreLink) -> None:
        self.link, self._published = link, 0
        """How often all processes were told something before the call that begins now."""
        super().__init__(provider, rules)

    def _session_table(self) -> HttpSessions:
        return SharedSessions(self.provider, self.link, self.rules.priming_event_versions)

    @property
    def _shared(self) -> SharedSessions:
        return cast(SharedSessions, self.sessions)

    # -- the session first -------------------------------------------------------------------------------

    def _must_load(self, exchange: Exchange) -> bool:
        id = exchange.headers.get("mcp-session-id")
        return id is not None and not self._shared.is_current(id)

    async def _after_loading(self, exchange: Exchange, go_on: Callable[[], Awaitable[None] | None]) -> None:
        try:
            await self._shared.load(exchange.headers.get("mcp-session-id") or "", exchange.principal)
        except Refused as error:
            await _away(exchange, error)
            return
        if (left := go_on()) is not None:
            await left

    async def get(self, exchange: Exchange) -> None:
        if self._must_load(exchange):
            await self._after_loading(exchange, lambda: super(SharedStreamableEndpoint, self).get(exchange))
        else:
            await super().get(exchange)

    async def delete(self, exchange: Exchange) -> None:
        if self._must_load(exchange):
            await self._after_loading(exchange, lambda: super(SharedStreamableEndpoint, self).delete(exchange))
        else:
            await super().delete(exchange)

    async def _handle_message(self, exchange: Exchange, message: Message | list[Message]) -> None:
        if self._must_load(exchange):
            await self._after_loading(exchange, lambda: self._take_known(exchange, message))
        else:
            await self._take_known(exchange, message)

    def _call(self, exchange: Exchange, request: Request, offer: Offer | None) -> Awaitable[None] | None:
        if request.method == self.rules.opening:
            return self._open(exchange, request)
        if self._must_load(exchange):
            return self._after_loading(exchange, lambda: self._call_known(exchange, request, offer))
        return self._call_known(exchange, request, offer)

    def _call_alone(self, exchange: Exchange, request: Request, offer: Offer) -> Awaitable[None] | None:
        self._published = self.link.published
        return super()._call_alone(exchange, request, offer)

    def _fail_question(self, exchange: Exchange, malformed: MalformedMessage) -> None:
        """A broken answer may be meant for a question of another process. Its question fails there when it is late."""
        if not self._must_load(exchange):
            super()._fail_question(exchange, malformed)

    # -- POST --------------------------------------------------------------------------------------------

    def _call_known(self, exchange: Exchange, request: Request, offer: Offer | None) -> Awaitable[None] | None:
        session = self._session(exchange)
        if not isinstance(session, SharedSession):
            return cast("Awaitable[None]", session)
        route = SharedResponseStream(session, exchange, request.id)
        self._published = self.link.published
        begun = session.conversation.start_call(request, route, offer, exchange.principal)
        if isinstance(begun, tuple) and session.has_changed:
            return self._answer_kept(exchange, session, route, begun)
        return self.run(exchange, route, begun, session)

    def run(
        self, exchange: Exchange, route: ResponseRoute, begun: CallOrReply, session: SharedSession | None = None
    ) -> Awaitable[None] | None:
        """As `answering.run`. A call that has told all processes something is answered when the store has that."""
        if not isinstance(begun, tuple):
            return run_call(exchange, route, PersistedCall(begun, partial(self._settle, session, self._published)))
        if self.link.published != self._published:
            return self._answer_told(exchange, route, begun)
        return run_call(exchange, route, begun)

    async def _settle(self, session: SharedSession | None, published: int) -> None:
        """What a call has changed and told is in the store before it is answered, if the store can take it.

        A call that has run is answered in any case. What an absent store has not taken is written when it is back; what
        is too much to remember is known in this process alone.
        """
        if session is not None and session.has_changed:
            try:
                await session.save_changes()
            except Refused as error:
                log.error("what a call has changed is not in the store: %s", error.message)
        if self.link.published != published and not self.link.is_written:
            await self.link.wait_until_written(TOLD_SECONDS)

    async def _answer_told(self, exchange: Exchange, route: ResponseRoute, reply: FinalReply) -> None:
        await self.link.wait_until_written(TOLD_SECONDS)
        if (left := run_call(exchange, route, reply)) is not None:
            await left

    async def _answer_kept(
        self, exchange: Exchange, session: SharedSession, route: SharedResponseStream, reply: FinalReply
    ) -> None:
        """Answer when the store has what the call has changed."""
        try:
            await session.save_changes()
        except Refused as error:
            await _away(exchange, error)
        else:
            if (left := self.run(exchange, route, reply)) is not None:
                await left

    async def _take_known(self, exchange: Exchange, message: Message | list[Message]) -> None:
        session = self._session(exchange)
        if not isinstance(session, SharedSession):
            await cast("Awaitable[None]", session)
            return
        if isinstance(message, list) and not session.conversation.takes_batches:
            await super()._handle_message(exchange, message)
            return
        try:
            for each in message if isinstance(message, list) else [message]:
                if isinstance(each, Reply) and not await self._hand_over(session, exchange, each):
                    await send_jsonrpc_error(exchange, 403, INVALID_REQUEST, FORBIDDEN)
                    return
            route = SharedResponseStream(session, exchange, _ids(message))
            session.conversation.feed_message(message, route, exchange.principal)
            # A notification may have changed what is kept, without saying so.
            await session.save_changes()
        except Refused as error:
            await _away(exchange, error)
            return
        if isinstance(message, list):
            await answer_call(exchange, route)
        else:
            await exchange.respond(202)

    async def _hand_over(self, session: SharedSession, exchange: Exchange, reply: Reply) -> bool:
        """Give an answer to the process that asks. False: this caller may not give it."""
        if not session.conversation.takes_answer(reply, exchange.principal):
            return False
        question = reply.id
        if (
            not isinstance(question, str)
            or len(question) > MAX_QUESTION_ID_LENGTH
            or question.startswith(session.numbering)
        ):
            return True  # it was asked here, or by nobody
        found = await self.link.run_script(lua_scripts.FIND_QUESTION, session.id, question)
        if found is not None and not exchange.principal.covers(decode_principal(json.loads(found.split(b"\n", 2)[2]))):
            return False
        body = {"result": reply.result} if reply.error is None else {"error": reply.error}
        data, who = encode({"jsonrpc": "2.0", "id": question, **body}), json.dumps(encode_principal(exchange.principal))
        if not self.link.is_written:
            await session.wait_until_written()  # what came before the answer comes first
        await self._deliver(session, question, data, who, is_kept=found is not None)
        return True

    async def _deliver(self, session: SharedSession, question: str, data: bytes, who: str, *, is_kept: bool) -> None:
        """Put an answer into the mailbox of the process that asks."""
        worker = question.partition(".")[0]
        if is_kept:
            taken = await self.link.run_script(lua_scripts.ANSWER_QUESTION, session.id, question, worker, data, who)
        elif not session.is_asked_elsewhere(question):
            return  # nobody waits for it any more
        else:
            # Nobody waits for it, or it was asked while the store was away. The process that asked knows, and judges.
            letter = ("t", "answer", "s", session.id, "d", data, "p", who)
            taken = await self.link.run_script(lua_scripts.SEND_MAIL, "", "", worker, *letter)
            if taken == 0 and not self.link.knows_live_workers:
                raise StoreUnavailable("The process that asks is not back yet")
        if taken == lua_scripts.MAILBOX_FULL:
            raise StoreUnavailable("The process that asks is behind with its answers")

    async def _list(self, session: HttpSession, exchange: Exchange, request: Request) -> bool:
        try:
            await self._shared.store_session(cast(SharedSession, session))
        except Refused as error:
            session.conversation.close()
            await _away(exchange, error, request.id)
            return False
        return True

    # -- GET and DELETE ----------------------------------------------------------------------------------

    async def _stream(self, exchange: Exchange, session: HttpSession) -> None:
        shared, last = cast(SharedSession, session), exchange.headers.get("last-event-id")
        try:
            if last is not None:
                reader = await shared.resume_shared(last, exchange)
            else:
                reader = await shared.listen_shared(exchange)
        except StreamFullyRead:
            # Some clients take an error for a stream that was cut, and come back for ever. This tells them not to.
            await exchange.respond(204)
            return
        except Refused as error:
            await _away(exchange, error)
            return
        if reader is None and last is not None:
            await send_jsonrpc_error(exchange, 404, INVALID_REQUEST, NOTHING_TO_RESUME)
        elif reader is None:
            await send_jsonrpc_error(exchange, 409, INVALID_REQUEST, STREAM_ALREADY_OPEN)
        else:
            with ClientWatch(exchange, reader) as attached:
                attached.watch()
                await stream_events(exchange, reader, b"")

    async def _end(self, exchange: Exchange, session: HttpSession) -> None:
        self.sessions.end_session(session)
        try:
            await cast(SharedSession, session).wait_until_written()
        except Refused as error:
            await _away(exchange, error)
        else:
            await exchange.respond(204)

    def drain(self) -> None:
        """End the streams that belong to no call here. Their clients go on with another process."""
        for session in self.sessions:
            for name, reader in list(cast(SharedSession, session).reading.items()):
                if name not in session.streams:
                    reader.exchange.end_without_answer()


async def _away(exchange: Exchange, error: Refused, id: RequestId | None = None) -> None:
    text = error.message if isinstance(error, LimitExceeded) else f"{error.message}; try again"
    await send_jsonrpc_error(exchange, 503, INTERNAL_ERROR, text, id, RETRY_AFTER_HEADERS)


def _ids(message: Message | list[Message]) -> list[RequestId]:
    return [each.id for each in message if isinstance(each, Request)] if isinstance(message, list) else []
