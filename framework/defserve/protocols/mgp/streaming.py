"""MGP §12: streaming. Parts of a result are sent as they come; the final response holds all of them again.

§12.8 (pace) and §12.9 (gap) are notifications from the client. Both are hints, and their effect is bounded. At most
64 KiB of a call wait for the reader; then the function waits too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from defserve.auth.authority import is_stranger
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Listener, Next, OutgoingMessage
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params, RequestId, encode, is_request_id
from defserve.core.peer import CURRENT_SENDER, can_act_for
from defserve.core.session import Session
from defserve.core.shapes import NUMBER, make_checked_kind, read_member
from defserve.errors import TimedOut
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import DEFSERVE_NAMESPACE
from defserve.protocols.mcp.function import EmittedParts
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mcp.reporting import CallReports
from defserve.protocols.mcp.tools import encode_emitted_part, get_content_so_far

if TYPE_CHECKING:
    from asyncio import Future

    from defserve.core.engine import CancellableTask


PROGRESS = "notifications/mgp.stream.progress"
STREAM_KEY = DEFSERVE_NAMESPACE + "stream"
CALL = "tools/call"

# Chunks a second; more than this is no limit at all.
FASTEST = 1e6

# Strangers at one address cannot be told apart. Only an id of this length proves whose call it is: nobody can guess it.
UNGUESSABLE = 16


class StreamSection(Extension):
    """The serving side of streams. Keeps nothing: what is known of a stream belongs to its call."""

    def methods(self) -> Mapping[str, Handler]:
        return {"mgp/stream/cancel": self.cancel}

    def notifications(self) -> Mapping[str, Listener]:
        return {"notifications/mgp.stream.pace": self.on_pace, "notifications/mgp.stream.gap": self.on_gap}

    # -- calls -------------------------------------------------------------------------------------------

    def around_call(self, call: Call, params: Params, following: Next) -> Awaitable[Any]:
        """`tools/call` where streaming is negotiated: progress always, chunks for a call that wants them."""
        call.local(CallReports).also = _progress_of(call)
        asked = params.get("_mgp")
        if is_object(asked) and asked.get("stream") is True:
            return _run_streaming(call, params, following)
        return following(call, params)

    # -- what the client says of a stream ----------------------------------------------------------------

    def cancel(self, call: Call, params: Params) -> Params:
        """`mgp/stream/cancel`: end a call with its result so far. The call's own request is answered with that too.

        Runs at once, without a turn of the event loop: the calls to cancel may take up every slot.
        """
        found = _find(call, read_member(params, "request_id", make_checked_kind("the id of a request", is_request_id)))
        if found is None or found.method != CALL or found.settled or found.stopped:
            return {"cancelled": False}
        chunks, content = _chunks(found), get_content_so_far(found)
        found.cut(lambda: _with_figures(found, {"content": content, "isError": True}, chunks, cancelled=True))
        return {"cancelled": True, "partial_result": {"content": content}}

    def on_pace(self, session: Session, params: Params) -> None:
        """`notifications/mgp.stream.pace`: at most so many chunks a second from here on; 0 pauses."""
        chunks, rate = (
            _chunks_in(session, params),
            read_member(params, "max_chunks_per_second", NUMBER, -1, lenient=True),
        )
        if chunks is not None and rate >= 0:
            chunks.set_pace(min(rate, FASTEST))

    def on_gap(self, session: Session, params: Params) -> None:
        """`notifications/mgp.stream.gap`: send these chunks again, if they are still kept."""
        chunks, missing = _chunks_in(session, params), params.get("missing_indices")
        if chunks is not None and is_array(missing):
            chunks.resend({index for index in missing if type(index) is int})


async def _run_streaming(call: Call, params: Params, following: Next) -> Any:
    call.local(EmittedParts).sink = chunks = StreamChunks(call)
    try:
        result = await following(call, params)
        await chunks.wait_until_drained()
    finally:
        chunks.close()
    return _with_figures(call, result, chunks)


def _with_figures(call: Call, result: Any, chunks: StreamChunks | None, **more: Any) -> Any:
    if chunks is None or not is_object(result):
        return result
    duration = round((monotonic() - chunks.began) * 1000)
    figures = {"streamed": chunks.sent > 0, "chunks_sent": chunks.sent, "duration_ms": duration, **more}
    found = {**result, "_mgp": {**figures, **result.get("_mgp", {})}}
    if "meta" in get_dialect(call).has:
        # Strict clients drop fields they do not know, but not this one.
        found["_meta"] = {**result.get("_meta", {}), STREAM_KEY: figures}
    return found


def _progress_of(call: Call) -> Callable[[float, float | None, str | None], None]:
    began = monotonic()

    def progress(value: float, total: float | None, message: str | None) -> None:
        # Without a total, only a value between 0 and 1 can be a share.
        share = value / total if total else value
        if not 0 <= share <= 1:
            return
        params: Params = {"request_id": call.id, "progress": share}
        if message:
            params["message"] = message
        if share:
            params["estimated_remaining_ms"] = round((monotonic() - began) * 1000 * (1 - share) / share)
        call.notify(PROGRESS, params, replaces=(PROGRESS, call.id))

    return progress


def _find(call: Call, id: RequestId) -> Call | None:
    """The caller's request with this id, in its session. Without sessions, the only one that is certainly its own."""
    mine = call.session.in_flight.get(id)
    if mine is not None and not can_act_for(call.identity, mine.identity):
        return None
    if mine is not None or call.terms.offer is None or not call.terms.offer.stateless:
        return mine
    if is_stranger(identify_caller(call)) and not (isinstance(id, str) and len(id) >= UNGUESSABLE):
        return None
    short = [session for session in call.session.composition.short_sessions if session.principal == call.principal]
    found = [session.in_flight[id] for session in short if id in session.in_flight]
    return found[0] if len(found) == 1 and can_act_for(call.identity, found[0].identity) else None


def _chunks_in(session: Session, params: Params) -> StreamChunks | None:
    id = params.get("request_id")
    call = session.in_flight.get(id) if is_request_id(id) else None
    return _chunks(call) if call is not None and can_act_for(CURRENT_SENDER.get(), call.identity) else None


def _chunks(call: Call) -> StreamChunks | None:
    emitted = call.peek(EmittedParts)
    return emitted.sink if emitted is not None and isinstance(emitted.sink, StreamChunks) else None


# -- MGP §12.4: the chunks of one call, in order and no faster than their reader takes them.


# At most 64 KiB of a call wait in all: twice the window, because the transport may be writing as much as it holds,
# plus what a worker thread may be ahead. A larger chunk waits alone.
WINDOW_BYTES = 24 * 1024
AHEAD_BYTES = 16 * 1024

# About how much a message adds to its content.
AROUND_BYTES = 128

# What can be sent again.
KEPT_BYTES = 64 * 1024


class StreamChunks:
    """Sends the parts of a result as they come. Call all but `send_part` and `is_full` on the loop."""

    __slots__ = (
        "call",
        "began",
        "sent",
        "_id",
        "_waiting",
        "_unsent",
        "_ahead",
        "_waiters",
        "_advancing",
        "_kept",
        "_kept_bytes",
        "_interval",
        "_due_at",
        "_alarm",
        "_closed",
        "_draining",
    )

    def __init__(self, call: Call) -> None:
        self.call, self.began, self.sent = call, monotonic(), 0
        self._id = encode(call.id)
        self._waiting: deque[bytes] = deque()
        self._unsent = self._ahead = 0
        self._waiters: list[Future[Any]] = []
        self._kept: dict[int, bytes] = {}
        self._kept_bytes, self._due_at = 0, 0.0
        self._interval: float | None = 0.0
        self._alarm: CancellableTask | None = None
        self._advancing = self._closed = self._draining = False

    # -- from the function -------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether something has to wait for the reader."""
        return bool(self._waiting)

    def send_part(self, part: Any) -> None:
        """Take a part. In a worker thread it returns when there is room for more; on the loop, use `wait_for_room`."""
        engine, contents = self.call.engine, [encode(block) for block in encode_emitted_part(self.call, part)]
        if engine.is_on_loop():
            self._queue_contents(contents)
            return
        engine.post_to_loop(lambda: self._queue_contents(contents))
        self._ahead += sum(AROUND_BYTES + len(content) for content in contents)
        if self._ahead > AHEAD_BYTES or self._waiting:
            self._ahead = 0
            engine.wait_from_thread(self.call, self.wait_for_room())

    async def wait_for_room(self) -> None:
        """Return when it is no longer full. The call's own timeout is paused meanwhile, as for a question to the peer.

        Raises TimedOut when the reader has not caught up after as long as a question may take.
        """
        call, seconds = self.call, self.call.session.composition.limits.question
        while self._waiting and not self._closed:
            waiter = call.engine.create_future()
            self._waiters.append(waiter)
            try:
                await call.wait_for_answer(call.engine.wait_for(waiter, seconds))
            except TimeoutError:
                raise TimedOut(
                    f"nobody read the stream for {seconds:g} s", data={"timeout_ms": int(seconds * 1000)}
                ) from None

    # -- to the peer -------------------------------------------------------------------------------------

    def _queue_contents(self, contents: list[bytes]) -> None:
        if not (self._closed or self.call.stopped):
            self._waiting.extend(contents)
            self._advance()

    def _advance(self) -> None:
        """Send what there is room and time for. A transport may say at once that it has room for more."""
        if self._advancing:
            return
        if self.call.stopped:
            self._waiting.clear()
        self._advancing = True
        try:
            while self._waiting and self._has_room(len(self._waiting[0])) and self._is_due():
                self._remember_chunk(self.sent, self._waiting[0])
                self.sent += 1
                self._send(self.sent - 1, b'"content":%b,"done":false' % self._waiting.popleft())
        finally:
            self._advancing = False
        if not self._waiting:
            self._wake()

    def _has_room(self, size: int) -> bool:
        return not self._unsent or self._unsent + AROUND_BYTES + size <= WINDOW_BYTES

    def _send(self, index: int, fields: bytes) -> None:
        data = (
            b'{"jsonrpc":"2.0","method":"notifications/mgp.stream.chunk","params":'
            b'{"request_id":%b,"index":%d,%b}}' % (self._id, index, fields)
        )
        size = len(data)

        def on_sent_or_dropped() -> None:
            self._unsent -= size
            self._advance()

        self._unsent += size
        self.call.session.outlet(OutgoingMessage(data, self.call, bulk=True, taken=on_sent_or_dropped))

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_until_drained(self) -> None:
        """Return when everything is on its way. The answer comes next and ignores the pace."""
        self.set_pace(None)
        self._draining = True
        await self.wait_for_room()

    def close(self) -> None:
        """Nothing more is sent."""
        self._closed = True
        self._waiting.clear()
        self._silence()
        self._wake()

    # -- pace (§12.8) ------------------------------------------------------------------------------------

    def set_pace(self, rate: float | None) -> None:
        """At most `rate` chunks a second; 0 pauses, None is as fast as it goes. The function waits meanwhile."""
        if self._draining:
            return  # the function is done, and its answer must not wait
        self._interval = 0.0 if rate is None else 1 / rate if rate else None
        self._due_at = 0.0
        self._silence()
        self._advance()

    def _is_due(self) -> bool:
        if not self._interval:
            return self._interval is not None
        now = monotonic()
        if now < self._due_at:
            if self._alarm is None:
                self._alarm = self.call.engine.spawn(self._later(self._due_at - now))
            return False
        self._due_at = now + self._interval
        return True

    async def _later(self, seconds: float) -> None:
        try:
            await self.call.engine.wait_for(self.call.engine.create_future(), seconds)
        except TimeoutError:
            self._alarm = None
            self._advance()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # -- gaps (§12.9) ------------------------------------------------------------------------------------

    def _remember_chunk(self, index: int, content: bytes) -> None:
        self._kept[index] = content
        self._kept_bytes += len(content)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))

    def resend(self, missing: set[int]) -> None:
        """Send chunks again, as many as the window takes. The first that is no longer kept is reported as lost.

        The client may ask for the rest again. The final response always holds everything.
        """
        if self._closed or self.call.stopped:
            return
        wanted = sorted(index for index in missing if 0 <= index < self.sent)
        lost = next((index for index in wanted if index not in self._kept), None)
        if lost is not None and self._has_room(0):
            self._send(lost, b'"content":{"type":"text","text":""},"done":false,"gap_unrecoverable":true')
        for index in wanted:
            content = self._kept.get(index)
            if content is not None and self._has_room(len(content)):
                self._send(index, b'"content":%b,"done":false' % content)
