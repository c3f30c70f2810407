"""JSON-RPC over one link: it matches replies with requests, keeps deadlines and answers the peer's own requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from time import monotonic
from typing import Any, Final, TypeAlias

from defserve.base.concurrency import BackgroundTasks
from defserve.base.peer_bounds import estimate_value_bytes
from defserve.base.redaction import get_logger
from defserve.client.exchange import (
    ForwardedRequestListener,
    IncomingMessageRouter,
    IncomingRequests,
    NotificationHandler,
    PendingRequest,
    ProgressHandler,
    RequestHandler,
    RequestObserver,
)
from defserve.client.link import (
    ClientLink,
    ExchangingLink,
    LoopTimeBudget,
    LostRequest,
    MessageHandler,
    PushingLink,
    ReopenableLink,
    SessionLost,
    SigningInLink,
    TargetedLink,
)
from defserve.client.replies import RawReply, read_raw_reply
from defserve.core.messages import EncodedJson, Message, Reply, Request, RequestId, encode, is_request_id
from defserve.core.peer import OutgoingRequests, mark_error_retrieved, unwrap_reply
from defserve.errors import PeerError, PeerGone, PeerTimeout

Params: TypeAlias = Mapping[str, Any]

FLUSH_SECONDS = 1.0
NO_ANSWER: Final = "no answer to {method} within {seconds:g} s"

log = get_logger("client")


class ClientConversation:
    """Reads the link from `start` to `aclose`.

    `on_request` answers the peer's requests. `on_notification` is called in the order of arrival, and before any reply
    that came later is handed out. `on_gone` is called once, when the peer leaves or we close after `mark_open`.
    `shown` is how a message of the peer is shown in logs: it may hold secrets that its host knows.
    """

    def __init__(
        self,
        link: ClientLink,
        *,
        on_request: RequestHandler,
        on_notification: NotificationHandler,
        on_gone: Callable[[PeerGone], None],
        shown: Callable[[bytes], bytes | str] = bytes,
    ) -> None:
        self._link = link
        self._sessions = Sessions(link) if isinstance(link, ExchangingLink) else None
        self._pushing = link if isinstance(link, PushingLink) else None
        self._on_gone = on_gone
        self._pending: OutgoingRequests[PendingRequest] = OutgoingRequests()
        self._answering = IncomingRequests(self._send_message)
        self._incoming = IncomingMessageRouter(self._pending, self._answering, on_request, on_notification, shown)
        self._tasks = BackgroundTasks()
        self._reader: asyncio.Task[None] | None = None
        self._gone: PeerGone | None = None
        self._left: asyncio.Future[None] | None = None
        self._opened = False

    def start(self) -> None:
        self._left = asyncio.get_running_loop().create_future()
        if self._pushing is not None:
            self._pushing.push(self._feed_bytes, self._leave)
        else:
            self._reader = asyncio.create_task(self._read_messages(), name="defserve.client reader")

    def mark_open(self) -> None:
        """Both sides have agreed: from now on the server cannot leave without `on_gone` being told."""
        self._opened = True
        if self._gone is not None:
            self._on_gone(self._departure())

    async def reopen(self) -> bool:
        """Connect to the server anew, if it has left and the link can do that. Nothing was agreed on before."""
        if not self.can_restart or self._left is None:
            return False
        # A failed write may be the first sign that the server left. That is noticed a moment later.
        await asyncio.wait((self._left,), timeout=FLUSH_SECONDS)
        if self._gone is None:
            return False
        await self.restart()
        return True

    @property
    def target(self) -> str:
        """The command or address of the server; empty if its link has none."""
        return self._link.target if isinstance(self._link, TargetedLink) else ""

    @property
    def can_restart(self) -> bool:
        return isinstance(self._link, ReopenableLink)

    async def restart(self) -> None:
        """End a server that is silent, and connect to it anew. Nothing was agreed on before. Raises PeerGone."""
        assert isinstance(self._link, ReopenableLink)
        if self._reader is not None:
            self._reader.cancel()
        await self._link.reopen()
        self._gone = None
        self.start()

    async def aclose(self) -> None:
        """Stop reading, fail all open requests, close the link."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FLUSH_SECONDS)
        if self._sessions is not None:
            await self._sessions.aclose()
        alone = [pending.task for pending in self._pending.values() if pending.task]
        self._leave(PeerGone("the client was closed"))
        tasks = [*alone, *self._tasks, *self._answering.tasks.values(), *([self._reader] if self._reader else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.aclose()

    def enable_session_reopening(self, opens: OpenAgain) -> None:
        """From now on a session that the server has lost is opened again by `opens`, which calls `open_conversation`.

        The log level and the subscriptions are then said again. A request that the server refused for want of the
        session is repeated. Only links with sessions (Streamable HTTP) can lose one.
        """
        if self._sessions is not None:
            self._sessions.enable_session_reopening(
                opens, lambda method, params: self.request(method, params, within=SETTING_SECONDS)
            )

    async def request(
        self,
        method: str,
        params: Params,
        *,
        within: float | None,
        on_progress: ProgressHandler | None = None,
        cancellable: bool = True,
        observer: RequestObserver | None = None,
    ) -> Any:
        """Send a request, wait up to `within` seconds, and give back the result.

        Raises PeerError if the peer answers with an error, PeerTimeout if it does not answer in time, PeerGone if it
        leaves. If the deadline passes or our task is cancelled, the peer is sent `notifications/cancelled`, unless
        the request is not `cancellable`.
        """
        pending = self._new(method, on_progress, None, observer.assign_request_id() if observer else None)
        return unwrap_reply(await self._exchange(pending, params, within, cancellable, observer))

    async def forward_request(
        self, method: str, params: Params, follower: ForwardedRequestListener, within: float | None = None
    ) -> RawReply:
        """Pass on a request for somebody else, and give back the whole reply, also one that is an error.

        Nothing of it is changed but the progress token: a token of the caller's is replaced by ours on the way out, and
        put back on the way in. `RawReply.raw` has the bytes of the result.

        Raises PeerTimeout and PeerGone, and PeerError if the link refuses the message. A deadline or a cancelled task
        cancels the request, as in `request`.
        """
        reply = await self._exchange(self._new(method, None, follower), params, within)
        return reply if isinstance(reply, RawReply) else RawReply(reply.id, reply.result, reply.error)

    @property
    def can_start_forwarding(self) -> bool:
        """Whether the link can do what `start_forwarding` needs."""
        return self._pushing is not None

    def start_forwarding(
        self, method: str, params: Params | EncodedJson, follower: ForwardedRequestListener
    ) -> PendingRequest | None:
        """Like `forward_request`, without a frame of its own: a proxy does it for every call. None if the link can't.

        First await `unsent`, then `reply`; if that raises, call `abandon_request` with the reason. Params that are
        encoded already are sent as they are: their follower has no progress token.
        """
        link = self._pushing
        if link is None:
            return None
        if self._gone:
            raise self._departure()
        id = self._pending.next_id()
        pending = self._pending[id] = PendingRequest(id, method, None, follower)
        try:
            if isinstance(params, EncodedJson):
                data = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (id, method.encode(), params)
            else:
                if follower.token is not None:
                    params = {**params, "_meta": {**params["_meta"], "progressToken": id}}
                data = encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            pending.unsent = link.write(data)
        except BaseException as reason:
            self.abandon_request(pending, reason)
            raise
        return pending

    def find_forwarded_listener(self, id: Any) -> ForwardedRequestListener | None:
        """Who follows the request with this number, or progress token."""
        pending = self._pending.get(id) if is_request_id(id) else None
        return pending.follower if pending is not None else None

    def abandon_request(self, pending: PendingRequest, reason: BaseException) -> None:
        """Nobody waits for the reply any more. The peer is told, unless it is the peer who failed."""
        if isinstance(reason, asyncio.CancelledError):
            self._call_off(pending, "no longer needed")
        pending.stop_waiting()
        self._pending.pop(pending.id, None)

    def start_request(self, method: str, params: Params) -> PendingRequest:
        """Send a request soon, without waiting for its reply. The caller keeps the deadline."""
        pending = self._new(method, None, None)
        pending.reply.add_done_callback(mark_error_retrieved)
        pending.task = asyncio.create_task(self._exchange_alone(pending, params), name=f"defserve.client {method}")
        return pending

    def _new(
        self,
        method: str,
        on_progress: ProgressHandler | None,
        follower: ForwardedRequestListener | None,
        id: RequestId | None = None,
    ) -> PendingRequest:
        if self._gone:
            raise self._departure()
        if id is None:
            id = self._pending.next_id()
        pending = self._pending[id] = PendingRequest(id, method, on_progress, follower)
        return pending

    async def _exchange(
        self,
        pending: PendingRequest,
        params: Params,
        within: float | None,
        cancellable: bool = True,
        observer: RequestObserver | None = None,
    ) -> Reply:
        """Send a request and wait for its reply. A request that is given up is cancelled."""
        if within is not None:
            # While we work on a question of the peer, or sign in, it waits for us.
            pending.set_deadline(
                asyncio.get_running_loop().call_later,
                within,
                NO_ANSWER,
                lambda: (
                    self._answering.is_peer_awaiting_own_work
                    or (isinstance(self._link, SigningInLink) and self._link.is_signing_in)
                    or (observer and observer.should_keep_waiting())
                ),
            )
        message = _message(pending, params)
        try:
            if self._sessions is None:
                data = encode(message)
                if waits := self._link.send(data) if self._pushing is None else self._pushing.write(data):
                    await pending.await_unless_settled(waits)
                return await pending.reply
            request = Request(pending.id, pending.method, message.get("params", {}), message)
            reply = await pending.await_unless_settled(
                self._sessions.send_request(request, encode(message), self._hears(pending))
            )
            self._incoming.malformed = 0
            return pending.reply.result() if reply is None else reply
        except PeerGone:
            if not pending.reply.done():
                raise
            # The exchange ended without an answer, because what came could not be read.
            return pending.reply.result()
        except (asyncio.CancelledError, PeerTimeout) as reason:
            if cancellable:
                self._call_off(pending, "timed out" if isinstance(reason, PeerTimeout) else "no longer needed")
            raise
        finally:
            pending.stop_waiting()
            self._pending.pop(pending.id, None)

    async def _exchange_alone(self, pending: PendingRequest, params: Params) -> None:
        """The exchange of a request that nobody waits for in a task of their own."""
        try:
            reply = await self._exchange(pending, params, None, cancellable=False)
        except PeerError as error:
            if not pending.reply.done():
                pending.reply.set_exception(error)
        else:
            if not pending.reply.done():
                pending.reply.set_result(reply)

    def _hears(self, pending: PendingRequest) -> MessageHandler:
        """Takes what comes on the stream of a request beside its reply."""

        async def hear(message: Message, data: bytes) -> None:
            self._incoming.feed_message(message, data, pending)

        return hear

    def cancel(self, pending: PendingRequest, reason: str) -> asyncio.Task[None] | None:
        """Tell the peer that nobody waits for the reply any more.

        Another task sends it, because the current task may be in cancellation. Messages sent before that task is done
        may overtake it.
        """
        self._pending.pop(pending.id, None)
        return None if pending.reply.done() else self._call_off(pending, reason)

    def _call_off(self, pending: PendingRequest, reason: str) -> asyncio.Task[None] | None:
        if pending.task is not None:
            pending.task.cancel()
        if self._gone:
            return None
        return self.notify_soon("notifications/cancelled", {"requestId": pending.id, "reason": reason})

    def start_answer_task(self, work: Coroutine[Any, Any, None], params: Params, *, is_own_work: bool = True) -> None:
        """Run `work`, which answers a notification of the peer with these params, in a task. While it runs, none of our
        deadlines passes. It is left out while too many answers are under way.

        If it sends requests, it is not `is_own_work`: then only what it gives to `run_own_work` is.
        """
        if self._answering.is_full:
            log.debug("skipped a notification: too many are being answered already")
            work.close()
        else:
            self._answering.start(work, is_own_work=is_own_work, size=estimate_value_bytes(params))

    async def run_own_work(self, work: Awaitable[Any]) -> Any:
        """Await `work`, for which the peer waits: meanwhile, none of our deadlines passes."""
        return await self._answering.run_own_work(work)

    async def notify(self, method: str, params: Params, *, within: float | None = None) -> None:
        """Send a notification. Raises PeerTimeout if the peer does not take it within so many seconds.

        A link that may have to sign in has limits of its own.
        """
        if self._gone:
            raise self._departure()
        message = encode({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})
        try:
            async with asyncio.timeout(None if isinstance(self._link, SigningInLink) else within):
                await self._send_message(message, method)
        except TimeoutError:
            raise PeerTimeout(f"the server did not take {method} within {within:g} s") from None

    async def _send_message(self, message: bytes, method: str | None = None) -> None:
        if self._sessions is None:
            await self._link.send(message)
        else:
            await self._sessions.send_message(method, message)

    def notify_soon(self, method: str, params: Params) -> asyncio.Task[None]:
        """Send a notification in another task. It is not an error if the peer has left."""
        return self._tasks.start(self._try_notify(method, params))

    async def _try_notify(self, method: str, params: Params) -> None:
        try:
            await self.notify(method, params, within=SETTING_SECONDS)
        except PeerError as error:
            log.debug("the peer could not be told: %s", error)

    async def _read_messages(self) -> None:
        reason, turns = PeerGone("the peer left"), LoopTimeBudget()
        try:
            while self._gone is None and (data := await self._link.receive()) is not None:
                began = monotonic()
                if not isinstance(data, LostRequest):
                    self._feed_bytes(data)
                elif awaited := self._pending.pop_future(data.id):
                    awaited.set_exception(data.error)
                await turns.charge_time(began)
        except PeerGone as gone:
            reason = gone
        except Exception as error:
            log.exception("reading from the peer failed")
            reason = PeerGone(f"reading from the peer failed: {error}")
        self._leave(reason)

    def _feed_bytes(self, data: bytes) -> None:
        messages = read_raw_reply(data)
        if type(messages) is RawReply and (pending := self._pending.get(messages.id)) and not pending.reply.done():  # pyright: ignore[reportArgumentType]
            # What most messages are takes the short way.
            del self._pending[pending.id]
            self._incoming.malformed = 0
            pending.reply.set_result(messages)
            return
        try:
            for message in messages if isinstance(messages, list) else (messages,):
                self._incoming.feed_message(message, data)
        except PeerGone as gone:
            self._leave(gone)
            if self._pushing is not None:
                self._pushing.push(_ignore, _ignore)

    def _leave(self, reason: PeerGone) -> None:
        if self._gone is None:
            self._gone = reason
            if self._opened:
                self._on_gone(self._departure())
        if self._left is not None and not self._left.done():
            self._left.set_result(None)
        self._pending.fail_all_requests(self._gone.message)

    def _departure(self) -> PeerGone:
        # A new exception each time: one that is raised twice keeps the first traceback.
        return PeerGone(self._gone.message if self._gone else "the peer left")


def _ignore(said: object) -> None:
    """What comes after the end."""


def _message(pending: PendingRequest, params: Params) -> dict[str, Any]:
    follower = pending.follower
    asked = follower is not None and follower.token is not None and "progressToken" in params.get("_meta", {})
    if pending.on_progress or asked:
        params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": pending.id}}
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": pending.id, "method": pending.method}
    if params:
        message["params"] = params
    return message


# -- The session of a link that has one. A session that the server has lost is opened again, once that is asked for.


OpenAgain: TypeAlias = Callable[[], Awaitable[object]]
"""Opens the conversation again, in the same words."""
SendSetting: TypeAlias = Callable[[str, Params], Awaitable[object]]

MAX_SETTINGS: Final = 10_000
SETTING_SECONDS = 30.0
LEVEL, SUBSCRIBE, UNSUBSCRIBE = "logging/setLevel", "resources/subscribe", "resources/unsubscribe"
SETTINGS: Final = frozenset((LEVEL, SUBSCRIBE, UNSUBSCRIBE))

# They are about something that ended with the session.
NOT_REPEATED: Final = frozenset(("notifications/cancelled", "notifications/progress"))


class Sessions:
    """Sends messages over one link. Until `enable_session_reopening`, the end of the session ends the conversation."""

    def __init__(self, link: ExchangingLink) -> None:
        self._link = link
        self._opens: OpenAgain | None = None
        self._send_setting: SendSetting | None = None
        self._settings: dict[tuple[str, str], Params] = {}
        """What the server has accepted and keeps until the session ends: the log level, and the subscriptions."""
        self._lost = False
        self._opening: asyncio.Task[None] | None = None

    def enable_session_reopening(self, opens: OpenAgain, send_setting: SendSetting) -> None:
        """From now on open a lost session again: with `opens`, and then with the settings."""
        self._opens, self._send_setting = opens, send_setting
        self._link.on_session_lost = self._on_lost

    async def aclose(self) -> None:
        """Open nothing any more."""
        self._opens = None
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    async def send_request(self, request: Request, message: bytes, hear: MessageHandler) -> Reply:
        """The answer to a request. One that was refused for want of a session is sent again in a new one."""
        if self._lost:
            await self._open_again()
        session = self._link.session_id
        try:
            reply = await self._link.send_request(request, message, hear)
        except SessionLost:
            await self._recover(session)
            reply = await self._link.send_request(request, message, hear)
        if request.method in SETTINGS and reply.error is None:
            self._store_setting(request.method, request.params)
        return reply

    def _store_setting(self, method: str, params: Params) -> None:
        if method == LEVEL:
            self._settings[LEVEL, ""] = params
        elif method == UNSUBSCRIBE:
            self._settings.pop((SUBSCRIBE, str(params.get("uri"))), None)
        elif len(self._settings) < MAX_SETTINGS:
            self._settings[SUBSCRIBE, str(params.get("uri"))] = params

    async def send_message(self, method: str | None, message: bytes) -> None:
        """Send a notification; without a `method`, an answer."""
        if self._lost and method is not None:
            await self._open_again()
        session = self._link.session_id
        try:
            await self._link.send(message)
        except SessionLost:
            await self._recover(session)
            if method is not None and method not in NOT_REPEATED:
                await self._link.send(message)

    async def _recover(self, session: str | None) -> None:
        """The server has refused a message for want of `session`. Raises SessionLost if that cannot be helped."""
        if self._opens is None or self._opening is asyncio.current_task():
            raise SessionLost
        # Somebody else may have noticed it before, and opened a new one.
        self._lost = self._lost or self._link.session_id == session
        if self._lost:
            await self._open_again()

    def _on_lost(self) -> None:
        """Open it at once, rather than with the next request: the server may have something to say."""
        if self._opens is not None and self._opening is None:
            self._lost = True
            self._start()

    async def _open_again(self) -> None:
        opening = self._opening
        if opening is asyncio.current_task():
            return
        opening = opening or self._start()
        await asyncio.wait((opening,))
        if opening.cancelled():
            raise PeerGone("the client was closed")
        if error := opening.exception():
            raise PeerGone(f"the server ended the session, and opened no other: {error}") from None

    def _start(self) -> asyncio.Task[None]:
        opening = self._opening = asyncio.create_task(self._open(), name="defserve.client opening")
        # Perhaps nobody waits for it.
        opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        return opening

    async def _open(self) -> None:
        assert self._opens is not None and self._send_setting is not None
        log.info("the server ended the session; opening another")
        try:
            self._link.forget_session()
            await self._opens()
            for (method, _), params in list(self._settings.items()):
                try:
                    await self._send_setting(method, params)
                except PeerError as error:
                    log.warning("%s could not be said again: %s", method, error)
            self._lost = False
        finally:
            self._opening = None
