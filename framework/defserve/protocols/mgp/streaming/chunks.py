"""MGP §12.4: the chunks of one call, in order and no faster than their reader takes them."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from defserve.core.extension import OutgoingMessage
from defserve.errors import TimedOut
from defserve.protocols.mcp.tools.tools import part_blocks
from defserve.wire.codec import encode

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.engine import PendingAnswer, Task

# At most 64 KiB of a call wait in all: twice the window, because the transport may be writing as much as it holds,
# plus what a worker thread may be ahead. A larger chunk waits alone.
WINDOW_BYTES = 24 * 1024
AHEAD_BYTES = 16 * 1024

# About how much a message adds to its content.
AROUND_BYTES = 128

# What can be sent again.
KEPT_BYTES = 64 * 1024


class StreamChunks:
    """A `mcp.function.PartSink`. Call all but `give` and `full` on the loop."""

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
        self._waiters: list[PendingAnswer] = []
        self._kept: dict[int, bytes] = {}
        self._kept_bytes, self._due_at = 0, 0.0
        self._interval: float | None = 0.0
        self._alarm: Task | None = None
        self._advancing = self._closed = self._draining = False

    # -- from the function -------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether something has to wait for the reader."""
        return bool(self._waiting)

    def give(self, part: Any) -> None:
        """See `mcp.function.PartSink`. On the loop it cannot wait: use `room` there."""
        engine, contents = self.call.engine, [encode(block) for block in part_blocks(self.call, part)]
        if engine.on_loop():
            self._put(contents)
            return
        engine.post(lambda: self._put(contents))
        self._ahead += sum(AROUND_BYTES + len(content) for content in contents)
        if self._ahead > AHEAD_BYTES or self._waiting:
            self._ahead = 0
            engine.wait_from_thread(self.call, self.room())

    async def room(self) -> None:
        """See `mcp.function.PartSink`. The call's own timeout is paused meanwhile, as for a question to the peer.

        Raises TimedOut when the reader has not caught up after as long as a question may take.
        """
        call, seconds = self.call, self.call.session.composition.limits.question
        while self._waiting and not self._closed:
            waiter = call.engine.pending()
            self._waiters.append(waiter)
            try:
                await call.asked(call.engine.wait(waiter, seconds))
            except TimeoutError:
                raise TimedOut(
                    f"nobody read the stream for {seconds:g} s", data={"timeout_ms": int(seconds * 1000)}
                ) from None

    # -- to the peer -------------------------------------------------------------------------------------

    def _put(self, contents: list[bytes]) -> None:
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
                self._keep(self.sent, self._waiting[0])
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

        def taken() -> None:
            self._unsent -= size
            self._advance()

        self._unsent += size
        self.call.session.outlet(OutgoingMessage(data, self.call, bulk=True, taken=taken))

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def drained(self) -> None:
        """Return when everything is on its way. The answer comes next and ignores the pace."""
        self.pace(None)
        self._draining = True
        await self.room()

    def close(self) -> None:
        """Nothing more is sent."""
        self._closed = True
        self._waiting.clear()
        self._silence()
        self._wake()

    # -- pace (§12.8) ------------------------------------------------------------------------------------

    def pace(self, rate: float | None) -> None:
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
            await self.call.engine.wait(self.call.engine.pending(), seconds)
        except TimeoutError:
            self._alarm = None
            self._advance()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # -- gaps (§12.9) ------------------------------------------------------------------------------------

    def _keep(self, index: int, content: bytes) -> None:
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
