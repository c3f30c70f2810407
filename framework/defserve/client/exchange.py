"""A request of ours, from the moment it is sent to its reply: who follows it, its deadline, its reply.

And what the peer sends beside replies: notifications, and requests of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from defserve.base.peer_bounds import estimate_parsed_json_bytes
from defserve.base.redaction import get_logger
from defserve.client.replies import TruncatedMessage, UnreadableLine, UnreadableReply, number_or_none, string_or_none
from defserve.core.messages import (
    INTERNAL_ERROR,
    PARSE_ERROR,
    MalformedMessage,
    Message,
    Notification,
    Reply,
    Request,
    RequestId,
    encode,
    is_request_id,
)
from defserve.core.peer import OutgoingRequest, OutgoingRequests
from defserve.errors import PeerError, PeerGone, ProtocolError
from defserve.serve.threads import ImmediateFuture

ProgressHandler: TypeAlias = Callable[[float, float | None, str | None], object]
"""Called with progress, total and message."""
NotificationHandler: TypeAlias = Callable[[str, dict[str, Any]], object]
"""Called with the method and params of a notification."""
RequestHandler: TypeAlias = Callable[[Request], Awaitable[Any]]
"""Gives the result of a request of the peer; a ProtocolError becomes its error."""

T = TypeVar("T")


class RequestObserver(Protocol):
    """Follows one request, which may be sent several times."""

    def assign_request_id(self) -> RequestId:
        """The request is about to be sent. Gives its id, which must be new."""
        ...

    def should_keep_waiting(self) -> bool:
        """The deadline has passed. Whether to wait once more."""
        ...

    @property
    def is_repeatable(self) -> bool:
        """Whether the request may be sent again after a failure."""
        ...


class ForwardedRequestListener(Protocol):
    """Hears what belongs to one request that is passed on for somebody else, who has a progress `token` of their own.

    `on_notification` is called with the notifications that belong to this request, which then do not go to the
    conversation's own handler: progress, and on a link where every request has its own stream (Streamable HTTP) all
    that comes on it. `on_request` answers what the server asks on that stream. On other links a question does not say
    which request it belongs to, so the conversation's own handler answers it. None: the conversation's own handler.
    """

    @property
    def token(self) -> Any: ...

    @property
    def on_notification(self) -> NotificationHandler | None: ...

    @property
    def on_request(self) -> RequestHandler | None: ...


class PendingRequest(OutgoingRequest):
    """A request of a client, and who hears what comes before its reply.

    task     exchanges it, on a link where every request has an exchange of its own and nobody waits for this one
    unsent   what to await before the reply: the link has not written all of it yet
    """

    __slots__ = ("on_progress", "follower", "task", "unsent")

    def __init__(
        self,
        id: RequestId,
        method: str,
        on_progress: ProgressHandler | None = None,
        follower: ForwardedRequestListener | None = None,
    ) -> None:
        # Not by `super`: a proxy makes one for every call.
        self.id, self.method, self.on_progress, self.follower = id, method, on_progress, follower
        self.reply: asyncio.Future[Reply] = ImmediateFuture(loop=asyncio.get_running_loop())
        self._timer = None
        self.task: asyncio.Task[None] | None = None
        self.unsent: Awaitable[None] | None = None

    async def await_unless_settled(self, work: Awaitable[T]) -> T | None:
        """Await `work`. Gives it up, for None, once there is a reply, the deadline has passed or the peer has left."""

        task, is_over, is_given_up = asyncio.current_task(), False, False
        assert task is not None
        others = task.cancelling()

        def give_up(_: object) -> None:
            nonlocal is_given_up
            if not is_over:  # the work may be done at the same moment
                is_given_up = True
                task.cancel()

        # `asyncio.timeout` in a few lines: a proxy does this for every call.
        self.reply.add_done_callback(give_up)
        try:
            return await work
        except asyncio.CancelledError:
            if is_given_up and task.uncancel() <= others:
                return None
            raise
        finally:
            is_over = True
            self.reply.remove_done_callback(give_up)


# -- What the peer sends: each message goes to whoever waits for it, follows it, or answers it.
#
# It knows two methods by name: `notifications/cancelled` and `notifications/progress`.


MAX_LOGGED_MESSAGES: Final = 10
"""What is wrong with messages, for one conversation: a peer must not fill our log."""
MAX_MALFORMED_LINES = 10_000
"""Lines in a row. Programs print much on the wrong stream and are sound: they get to their messages."""
MAX_NUMBER_LENGTH: Final = 20
"""Digits of an id."""
ROW_SECONDS: Final = 1.0
"""Silence ends a row: a line that keeps a connection alive does no harm, however often it comes."""

log = get_logger("client")


class IncomingMessageRouter:
    """Takes the messages of one conversation.

    `pending` are its open requests. A request that is answered is taken out of it. `malformed` counts the lines since
    the last message.
    """

    __slots__ = (
        "malformed", "_answering", "_logged", "_malformed_at", "_on_notification", "_on_request", "_pending", "_shown",
    )  # fmt: skip

    def __init__(
        self,
        pending: OutgoingRequests[PendingRequest],
        answering: IncomingRequests,
        on_request: RequestHandler,
        on_notification: NotificationHandler,
        shown: Callable[[bytes], bytes | str],
    ) -> None:
        self.malformed = self._logged = 0
        self._malformed_at = 0.0
        self._pending, self._answering = pending, answering
        self._on_request, self._on_notification, self._shown = on_request, on_notification, shown

    def feed_message(self, message: Message, data: bytes, beside: PendingRequest | None = None) -> None:
        """Take one message. `beside`: the request on whose stream it came.

        Raises PeerGone if the peer sends so many lines that are no messages that none is to be expected.
        """
        if isinstance(message, MalformedMessage):
            self._count_malformed()
        else:
            self.malformed = 0
        try:
            self._dispatch(message, data, beside)
        except Exception:  # whatever the peer says, the next message is read
            log.exception("a message could not be taken: %.200r", self._shown(data))

    def _dispatch(self, message: Message, data: bytes, beside: PendingRequest | None) -> None:
        follower = None if beside is None else beside.follower
        if isinstance(message, Reply):
            if not self._pending.set_reply(message) and not self._set_text_reply(message):
                log.debug("a reply that nobody waits for: %.200r", self._shown(data))
        elif isinstance(message, Notification):
            self._handle_notification(message, follower)
        elif isinstance(message, Request) and message.id in self._answering.tasks:
            self._warn("skipped a request whose id is in use", data)
        elif isinstance(message, Request) and self._answering.is_full:
            log.debug("skipped a request: too many are being answered already: %.200r", self._shown(data))
        elif isinstance(message, Request):
            answer = follower.on_request if follower else None
            work = self._answering.answer_request(message, answer or self._on_request)
            self._answering.start(work, message.id, size=estimate_parsed_json_bytes(data))
        else:
            self._handle_malformed(message, data, beside)

    def _set_text_reply(self, reply: Reply) -> bool:
        """Some servers keep ids as texts, and answer request 5 with "5". Whether somebody waits for it."""
        id = reply.id
        if not isinstance(id, str) or len(id) > MAX_NUMBER_LENGTH or not (id.isascii() and id.isdecimal()):
            return False
        if (awaited := self._pending.pop_future(int(id))) is not None:
            awaited.set_result(reply)
        return awaited is not None

    def _count_malformed(self) -> None:
        now = monotonic()
        self.malformed = 1 if now - self._malformed_at > ROW_SECONDS else self.malformed + 1
        self._malformed_at = now
        if self.malformed > MAX_MALFORMED_LINES:
            self.malformed = 0
            raise PeerGone(
                f"it sent more than {MAX_MALFORMED_LINES:,} lines in a row that are no JSON-RPC messages"
                "\n  fix: have it write what it logs to standard error"
            )

    def _warn(self, problem: str, data: bytes) -> None:
        """Log what is wrong with a message. Only the first times: what the peer sends has no end."""
        self._logged += 1
        if self._logged <= MAX_LOGGED_MESSAGES:
            more = "; more of this peer's messages are skipped silently" if self._logged == MAX_LOGGED_MESSAGES else ""
            log.warning("%s: %.200r%s", problem, self._shown(data), more)

    def _handle_malformed(self, message: MalformedMessage, data: bytes, beside: PendingRequest | None) -> None:
        why = f"longer than {data.limit} bytes" if isinstance(data, TruncatedMessage) else message.message
        self._warn(f"skipped a line that is not a message ({why})", data)
        id = message.id
        # A line that can be read, and names no request of ours, answers none.
        if id is None and message.code == PARSE_ERROR and (line := UnreadableLine(data)).is_reply:
            # Who waits for it would wait to the limit.
            meant = [beside.id] if beside is not None else list(self._pending)
            id = line.id if line.id is not None else meant[0] if len(meant) == 1 else None
        self._pending.set_reply(UnreadableReply(id, message.code, why))

    def _handle_notification(self, note: Notification, follower: ForwardedRequestListener | None) -> None:
        if note.method == "notifications/cancelled":
            id = note.params.get("requestId")
            if is_request_id(id):
                self._answering.cancel(id)
        elif note.method == "notifications/progress" and self._handle_progress(note.params):
            return
        own = follower.on_notification if follower else None
        self._hand(own or self._on_notification, note.method, note.params)

    def _hand(self, handler: NotificationHandler, method: str, params: dict[str, Any]) -> None:
        try:
            handler(method, params)
        except Exception:
            log.exception("the handler of %s failed", method)

    def _handle_progress(self, params: dict[str, Any]) -> bool:
        """Tell whoever wants the progress of this request. Whether nobody else may hear it."""
        token = params.get("progressToken")
        pending = self._pending.get(token) if is_request_id(token) else None
        if pending is None:
            return False
        if (follower := pending.follower) is not None:
            if follower.on_notification is not None:
                own = params if follower.token is None else {**params, "progressToken": follower.token}
                self._hand(follower.on_notification, "notifications/progress", own)
            return True
        if pending.on_progress is None:
            return False
        progress, total = number_or_none(params.get("progress")), number_or_none(params.get("total"))
        try:
            pending.on_progress(progress or 0, total, string_or_none(params.get("message")))
        except Exception:
            log.exception("the progress handler of %s failed", pending.method)
        return False


# -- The peer's own requests. Each is answered in a task, which ends when the peer cancels the request.


MAX_PEER_REQUESTS: Final = 1_024
MAX_PEER_REQUEST_BYTES: Final = 64 * 1024 * 1024


class IncomingRequests:
    """`tasks` are the answers under way, by the id of their request. `send` takes an encoded answer."""

    __slots__ = ("tasks", "bytes", "_send", "_own_work")

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self.tasks: dict[object, asyncio.Task[None]] = {}
        self._send, self._own_work = send, 0
        self.bytes = 0
        """What the requests take whose answers are under way."""

    @property
    def is_peer_awaiting_own_work(self) -> bool:
        """Whether the peer waits for a person or a handler of ours.

        It does not while an answer is being written: that is for the peer to read. Nor for a ping, which needs no work.
        """
        return self._own_work > 0

    @property
    def is_full(self) -> bool:
        """Whether so many answers are under way that no more are begun. A peer may ask, and not read the answers."""
        return len(self.tasks) >= MAX_PEER_REQUESTS or self.bytes >= MAX_PEER_REQUEST_BYTES

    def start(
        self, work: Coroutine[Any, Any, None], id: RequestId | None = None, *, is_own_work: bool = False, size: int = 0
    ) -> None:
        """Run `work` in a task. `is_own_work`: the peer waits for all of it. `size` is that of its request."""
        key = object() if id is None else id
        task = self.tasks[key] = asyncio.create_task(work)
        self._own_work += is_own_work
        self.bytes += size

        def drop_task(_: object) -> None:
            self.tasks.pop(key, None)
            self._own_work -= is_own_work
            self.bytes -= size

        task.add_done_callback(drop_task)

    async def run_own_work(self, work: Awaitable[T]) -> T:
        """Await `work`, for which the peer waits."""
        self._own_work += 1
        try:
            return await work
        finally:
            self._own_work -= 1

    def cancel(self, id: RequestId) -> None:
        if task := self.tasks.get(id):
            task.cancel()

    async def answer_request(self, request: Request, handler: RequestHandler) -> None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request.id}
        try:
            work = handler(request)
            reply["result"] = await (work if request.method == "ping" else self.run_own_work(work))
        except ProtocolError as error:
            data = {} if error.data is None else {"data": error.data}
            reply["error"] = {"code": error.code, "message": error.message, **data}
        except Exception as error:
            log.exception("answering %s failed", request.method)
            reply["error"] = {"code": INTERNAL_ERROR, "message": f"{type(error).__name__}: {error}"}
        try:
            await self._send(_encode_reply(reply, request))
        except PeerError as error:
            log.debug("the peer did not take the answer to %s: %s", request.method, error)


def _encode_reply(reply: dict[str, Any], request: Request) -> bytes:
    try:
        return encode(reply)
    except ValueError as error:
        log.error("the answer to %s has no JSON form: %s", request.method, error)
        failure = {"code": INTERNAL_ERROR, "message": "the answer has no JSON form"}
        return encode({"jsonrpc": "2.0", "id": request.id, "error": failure})
