"""Streaming tool calls (MGP §12): chunks in order, missing ones asked for again, a slow reader slows the server.

The result always has every part, also those that a reader missed. If the server does not stream, the value is the only
part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pydantic_core import to_json

from defserve.base.concurrency import wait_for_shared
from defserve.client.conversation import ProgressHandler
from defserve.client.replies import extract_result_value, object_or_empty
from defserve.errors import PeerError

if TYPE_CHECKING:
    from defserve.client.client import Client
    from defserve.client.mgp.peer import MgpPeer


FASTEST: Final = 1_000_000
"""Chunks per second; as good as no limit."""
PAUSE_AT: Final = 256 * 1024
RESUME_AT: Final = 64 * 1024
MAX_UNREAD_BYTES: Final = 16 * 1024 * 1024
LATE_SECONDS: Final = 1.0


class Stream:
    """`async with client.stream("think", about="…") as stream: async for part in stream: …`.

    A part is a text, or a content block of another kind. A call that sent no parts has one part, its value.
    Iterating raises what `client.call` would raise. Leaving the block early cancels the call.

    In a session a slow reader slows the server down. Unread parts are kept up to a limit. `missed` counts the parts
    that were dropped or lost; the result has them all.
    """

    def __init__(
        self,
        client: Client,
        mgp: MgpPeer | None,
        tool: str,
        arguments: Mapping[str, Any],
        on_progress: ProgressHandler | None = None,
    ) -> None:
        self.tool, self.cancelled = tool, False
        self.figures: dict[str, Any] = {}
        """The server's figures, once there is a result: `chunks_sent`, `duration_ms`."""
        self._client, self._arguments, self._on_progress = client, dict(arguments), on_progress
        self._mgp = mgp if mgp is not None and "streaming" in mgp.sections else None
        self._id: str | None = None
        self._order, self._dropped = ChunkOrder(), 0
        self._ready: deque[Any] = deque()
        self._unread = 0
        self._news = asyncio.Event()
        self._outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._outcome.add_done_callback(self._on_outcome_done)
        self._running: asyncio.Task[None] | None = None
        self._cancelling: asyncio.Future[bool] | None = None
        self._rate: float = FASTEST
        self._paused = self._spoke = self._is_awaited = False
        self._pausing: asyncio.Task[None] | None = None

    @property
    def missed(self) -> int:
        """How many parts were lost on the way, or dropped because nobody read them."""
        return self._order.missed + self._dropped

    # -- for the reader ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Stream:
        self._running = asyncio.create_task(self._run(), name=f"defserve.client stream {self.tool}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end(PeerError(f"the stream of {self.tool} was left before its result"))
        await self._cancel()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        while not self._ready:
            if self._outcome.done():
                self._outcome.result()
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        part = self._ready.popleft()
        self._unread -= part_size(part)
        if self._paused and self._unread <= RESUME_AT:
            await self._resume()
        return part

    async def result(self) -> Any:
        """The whole value, as `client.call` returns it. For a cancelled call, the parts so far."""
        # The result must not wait for a reader of the parts.
        self._is_awaited = True
        await self._resume()
        return await wait_for_shared(self._outcome)

    async def pace(self, chunks_per_second: float | None) -> None:
        """Ask for at most so many chunks per second from now on; 0 pauses, None lifts the limit. It is a hint."""
        self._rate = FASTEST if chunks_per_second is None else chunks_per_second
        await self._notify_stream("pace", max_chunks_per_second=self._rate)

    async def cancel(self, reason: str = "user_cancelled") -> Any:
        """Cancel the call. Returns its parts so far, or its result if the call was over before."""
        if self._cancelling is not None:
            await wait_for_shared(self._cancelling)
        elif self._mgp is not None and self._id is not None and not self._outcome.done():
            self._cancelling = asyncio.get_running_loop().create_future()
            try:
                reply = await self._client.request("mgp/stream/cancel", {"request_id": self._id, "reason": reason})
                if reply.get("cancelled") is True:
                    self._cut(object_or_empty(reply.get("partial_result")))
            finally:
                self._cancelling.set_result(self._outcome.done())
            if not self._outcome.done() and self._running is not None:
                # The server does not know the call: its answer is on the way, or will never come.
                await asyncio.wait((self._running,), timeout=LATE_SECONDS)
        if not self._outcome.done():
            self._cut({})
        await self._cancel()
        return await self._outcome

    # -- the call ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        params: dict[str, Any] = {"name": self.tool, "arguments": self._arguments}
        if self._mgp is not None:
            params["_mgp"] = {"stream": True}
        try:
            result = await self._client.request("tools/call", params, on_progress=self._on_progress, observer=self)
            value = await self._value(result)
        except Exception as error:
            if self._cancelling is None or not await self._cancelling:
                self._end(error)
        else:
            if not self._outcome.done():
                self._outcome.set_result(value)
        finally:
            self._unregister_stream()

    async def _value(self, result: dict[str, Any]) -> Any:
        self.figures = object_or_empty(result.get("_mgp"))
        if self.figures.get("cancelled") is True:
            self.cancelled = True
            return extract_result_value({"content": result.get("content")}, None)
        value = await self._client.value(self.tool, result)
        self._deliver_parts(self._order.take_remaining())
        if self._order.next == 0 and value is not None:
            self._deliver_parts([value])
        return value

    def _cut(self, partial: dict[str, Any]) -> None:
        if not self._outcome.done():
            self.cancelled = True
            try:
                self._outcome.set_result(extract_result_value({"content": partial.get("content")}, None))
            except PeerError as error:  # it is no content; nothing else comes
                self._end(error)

    def _end(self, error: Exception) -> None:
        if not self._outcome.done():
            self._deliver_parts(self._order.take_remaining())
            self._outcome.set_exception(error)

    def _on_outcome_done(self, outcome: asyncio.Future[Any]) -> None:
        outcome.exception()  # marks it as retrieved: perhaps nobody awaits it
        self._news.set()

    async def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    # -- the observer of the request (see `conversation`) ------------------------------------------------

    def assign_request_id(self) -> str:
        """A new id. Without a session, anyone who knows the id can cancel the call, so it must be hard to guess."""
        self._unregister_stream()
        self._order.repeat()
        self._id = uuid4().hex
        if self._mgp is not None:
            self._mgp.streams[self._id] = self
        return self._id

    @property
    def is_repeatable(self) -> bool:
        """Whether the call may be sent again: parts that were read cannot be taken back."""
        return self._order.next == 0

    def should_keep_waiting(self) -> bool:
        """Whether the server has sent something since the last time, or is silent because we paused it."""
        spoke, self._spoke = self._spoke, False
        return spoke or self._paused or not self._rate

    def _unregister_stream(self) -> None:
        if self._mgp is not None and self._id is not None:
            self._mgp.streams.pop(self._id, None)

    # -- chunks ------------------------------------------------------------------------------------------

    def receive_chunk(self, params: Mapping[str, Any]) -> None:
        """Take a chunk. Chunks may come in any order."""
        index = params.get("index")
        if type(index) is not int or index < 0 or self._outcome.done():
            return
        self._spoke = True
        if params.get("gap_unrecoverable") is True:
            self._deliver_parts(self._order.skip_chunk(index))
        else:
            self._deliver_parts(self._order.add_chunk(index, _part(params.get("content"))))
        if missing := self._order.take_unrequested_indices():
            self._notify_stream_soon("gap", missing_indices=missing)

    def _deliver_parts(self, parts: list[Any]) -> None:
        for part in parts:
            if self._unread > MAX_UNREAD_BYTES:
                self._dropped += 1
            else:
                self._ready.append(part)
                self._unread += part_size(part)
        if parts:
            self._news.set()
        if self._unread > PAUSE_AT and not (self._paused or self._is_awaited or self._outcome.done()):
            self._paused = True
            self._pausing = self._notify_stream_soon("pace", max_chunks_per_second=0)

    async def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._pausing is not None:
                await asyncio.wait((self._pausing,))  # over HTTP the later notification could overtake the earlier one
            await self._notify_stream("pace", max_chunks_per_second=self._rate)

    async def _notify_stream(self, what: str, **fields: Any) -> None:
        if self._mgp is not None and self._id is not None and not self._outcome.done():
            await self._client.notify(f"notifications/mgp.stream.{what}", {"request_id": self._id, **fields})

    def _notify_stream_soon(self, what: str, **fields: Any) -> asyncio.Task[None]:
        return self._client.notify_soon(f"notifications/mgp.stream.{what}", {"request_id": self._id, **fields})


def _part(content: Any) -> Any:
    block = object_or_empty(content)
    return block["text"] if block.get("type") == "text" and isinstance(block.get("text"), str) else block


# -- MGP §12.9: puts the chunks of a stream in order by their index, and knows which ones are missing.


MAX_EARLY_CHUNKS: Final = 1_000
MAX_EARLY_BYTES: Final = 16 * 1024 * 1024
AROUND_BYTES: Final = 128
"""What a part takes besides its content, about."""
MAX_MISSING_INDICES: Final = 256
"""How many missing chunks are asked for at a time. The server chooses the indices, so a gap may be huge."""

_LOST: Final = object()


class ChunkOrder:
    """`next` is the index of the next chunk to give out. `missed` counts chunks that will never come."""

    __slots__ = ("next", "missed", "_early", "_early_bytes", "_asked")

    def __init__(self) -> None:
        self.next = self.missed = 0
        self._early: dict[int, tuple[Any, int]] = {}
        self._early_bytes = 0
        self._asked: set[int] = set()

    def add_chunk(self, index: int, content: Any) -> list[Any]:
        """Take one more chunk; returns the chunks that are next in order. A repeated chunk is ignored."""
        if index < self.next or index in self._early:
            return []
        # What can be given out at once does not wait, so it need not be measured.
        size = part_size(content) if index > self.next else 0
        self._early[index] = (content, size)
        self._early_bytes += size
        if len(self._early) > MAX_EARLY_CHUNKS or self._early_bytes > MAX_EARLY_BYTES:
            self._skip_to(min(self._early))
        return self._due()

    def skip_chunk(self, index: int) -> list[Any]:
        """Give up a chunk that cannot be sent again. Other missing chunks may be asked for once more."""
        self._asked.clear()
        return self.add_chunk(index, _LOST)

    def take_unrequested_indices(self) -> list[int]:
        """The missing chunks that were not asked for yet."""
        until = min(max(self._early, default=0), self.next + MAX_MISSING_INDICES)
        found = [index for index in range(self.next, until) if index not in self._early and index not in self._asked]
        self._asked = {index for index in self._asked if index >= self.next}.union(found)
        return found

    def repeat(self) -> None:
        """The chunks start again from the first. Those that were given out are not given out twice."""
        self._early.clear()
        self._early_bytes = 0
        self._asked.clear()

    def take_remaining(self) -> list[Any]:
        """All remaining chunks, when no more can come."""
        found: list[Any] = []
        while self._early:
            self._skip_to(min(self._early))
            found += self._due()
        return found

    def _skip_to(self, index: int) -> None:
        self.missed += index - self.next
        self.next = index

    def _due(self) -> list[Any]:
        found: list[Any] = []
        while self.next in self._early:
            content, size = self._early.pop(self.next)
            self._early_bytes -= size
            self.next += 1
            if content is _LOST:
                self.missed += 1
            else:
                found.append(content)
        return found


def part_size(part: Any) -> int:
    """The bytes that a part takes, about."""
    size = len(part) if isinstance(part, str) else len(to_json(part, fallback=str, inf_nan_mode="null"))
    return AROUND_BYTES + size
