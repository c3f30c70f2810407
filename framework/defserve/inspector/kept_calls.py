"""The calls of tools that pages have made: each runs here, and is kept with its parts and its outcome.

So a call outlives the page that made it: a page that is reloaded, or a second one, follows it from its beginning.
What is kept is bounded in number and bytes. The oldest calls make room.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import uuid4

from defserve.base.concurrency import BackgroundTasks
from defserve.base.peer_bounds import RecentItems, estimate_value_bytes
from defserve.client.client import Client
from defserve.client.mgp.streaming import ChunkOrder
from defserve.client.replies import object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import INTERNAL_ERROR
from defserve.errors import PeerError
from defserve.inspector.era_connection import get_client_era
from defserve.inspector.protocol import BadMessage, Json, describe_error_for_page
from defserve.inspector.waterfalls import (
    NOT_MEASURED_NOTE,
    ROUND_TRIP_ONLY_NOTE,
    Waterfall,
    measure_round_trip,
    place_in_round_trip,
)

if TYPE_CHECKING:
    from defserve.inspector.inspection import Inspection
    from defserve.inspector.recording.recorder import RecordedMessage

MAX_CALLS: Final = 20
MAX_RUNNING_CALLS: Final = 100
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_LINES: Final = 20_000
MAX_LINES_BYTES: Final = 16 * 1024 * 1024
MAX_PARTS: Final = 5_000
MAX_PARTS_BYTES: Final = 16 * 1024 * 1024
MAX_BRIEF_LENGTH: Final = 24
MAX_CALL_SECONDS: Final = 24 * 3600.0

PORTION_LINES: Final = 500
PORTION_PARTS: Final = 100
PAUSE_SECONDS: Final = 0.05
"""Between two portions, so that a page draws one before it gets the next."""

CURRENT_CALL: ContextVar[KeptCall | None] = ContextVar("defserve.inspector.call", default=None)
"""The call that asks the person something, where that is known."""

CallState: TypeAlias = Literal["running", "done", "failed", "cancelled"]


class KeptCalls:
    """The calls of one inspection, by their numbers, the oldest first."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self._calls: dict[int, KeptCall] = {}
        self._tasks = BackgroundTasks()
        self._last = 0

    def start(self, era: str | None, tool: str, arguments: Json) -> KeptCall:
        """Begin a call. It goes on until it ends or is cancelled, whoever follows it. Raises BadMessage if many run."""
        if len(self._tasks) >= MAX_RUNNING_CALLS:
            raise BadMessage(f"{MAX_RUNNING_CALLS} calls run already", fix="cancel some of them")
        self._last += 1
        call = self._calls[self._last] = KeptCall(self._last, era or "", tool, arguments)
        call.task = self._tasks.start(self._run(call), name=f"defserve.inspector call {tool}")
        call.task.add_done_callback(lambda _: self._finish(call))
        return call

    def restore_calls(self) -> None:
        """Take the newest calls of a saved session, as its messages have them."""
        recorder = self._inspection.recorder
        requests = (each for each in reversed(recorder.get_messages(0, recorder.count)) if each.is_answered_call)
        for request in reversed(list(islice(requests, MAX_CALLS))):
            params = object_or_empty(recorder.parse_body(request.seq).get("params"))
            answer = recorder.parse_body(request.of) if request.of is not None else {}
            if isinstance(tool := params.get("name"), str) and ("result" in answer or "error" in answer):
                self._last += 1
                call = KeptCall(self._last, request.era, tool, object_or_empty(params.get("arguments")))
                call.restore_outcome(request, answer)
                if (waterfall := recorder.get_waterfall(request.seq)) is not None:
                    call.outcome["waterfall"] = waterfall
                self._calls[self._last] = call

    def __getitem__(self, number: int) -> KeptCall:
        """Raises BadMessage for a call that is no longer kept."""
        if (call := self._calls.get(number)) is None:
            raise BadMessage(f"call {number} is no longer kept")
        return call

    def to_wire(self) -> list[Json]:
        """All of them without their parts, the newest first."""
        return [call.to_wire() for call in reversed(self._calls.values())]

    async def aclose(self) -> None:
        self._tasks.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, call: KeptCall) -> None:
        inspection, era = self._inspection, call.era or None
        CURRENT_CALL.set(call)
        try:
            client = await inspection.client(era)
            call.era = get_client_era(client)
            try:
                result = await RunningCall(client, call).run(inspection.notices)
            except PeerError as error:
                inspection.on_request_failed(era, error)
                raise
            call.end("failed" if object_or_empty(result).get("isError") is True else "done", result=result)
            if call.state == "failed" and (process := inspection.target.process) is not None:
                call.outcome["traceback"] = process.find_traceback_by_error_id(join_texts(result))
        except Exception as error:
            call.failure = error
            call.end("failed", error=describe_error_for_page(error))
        self._add_waterfall(call)

    def _add_waterfall(self, call: KeptCall) -> None:
        """Say where the time of a call went: beside its outcome, and at its request in the timeline."""
        recorder = self._inspection.recorder
        if (request := recorder.find_request(call.request)) is not None:
            waterfall = self._measure(call, request)
            call.outcome["waterfall"] = waterfall.to_wire()
            recorder.attach_waterfall(request.seq, waterfall)

    def _measure(self, call: KeptCall, request: RecordedMessage) -> Waterfall:
        process = self._inspection.target.process
        if process is not None and (measured := process.find_waterfall(call.request)) is not None:
            return place_in_round_trip(measured, call.sent, call.took_ms)
        exchange = self._inspection.recorder.find_http_exchange(request.seq)
        return measure_round_trip(
            call.took_ms,
            head=(exchange.at - request.time) * 1000 if exchange is not None and exchange.at else None,
            first=call.first,
            server_timing=exchange.answered.get("server-timing", "") if exchange is not None else "",
            is_failed=call.state == "failed",
            note=ROUND_TRIP_ONLY_NOTE if process is None else NOT_MEASURED_NOTE,
        )

    def _finish(self, call: KeptCall) -> None:
        """Tell those who follow a call that it has ended, and drop the oldest calls if there are too many."""
        if call.state == "running":
            call.end("cancelled")
        call.wake_followers()
        ended = [call for call in self._calls.values() if call.state != "running"]
        size = sum(call.bytes for call in self._calls.values())
        while ended and (len(self._calls) > MAX_CALLS or size > MAX_BYTES):
            call = ended.pop(0)
            size -= call.bytes
            del self._calls[call.number]


class KeptCall:
    """One call. `outcome` is empty while it runs; then it has the `result` or the `error`, and how long it took.

    It was `sent` then, by the `perf_counter`, and took `took_ms`. The `waterfall` in its outcome says what for.
    """

    def __init__(self, number: int, era: str, tool: str, arguments: Json) -> None:
        self.number, self.era, self.tool, self.arguments = number, era, tool, arguments
        self.state: CallState = "running"
        self.outcome: Json = {}
        self.failure: Exception | None = None
        self.task: asyncio.Task[None] | None = None
        self.request, self.first = "", None
        self.began = time.time()
        self.sent = time.perf_counter()
        self.took_ms = 0.0
        self._lines: RecentItems[Json] = RecentItems(MAX_LINES, MAX_LINES_BYTES)
        self._parts: RecentItems[Any] = RecentItems(MAX_PARTS, MAX_PARTS_BYTES)
        self._line_count = self._part_count = 0
        self._progress: Json | None = None
        self._size = estimate_value_bytes(arguments)
        self._news = asyncio.Event()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return self._size + self._lines.bytes + self._parts.bytes

    @property
    def ms(self) -> float:
        """Milliseconds since it was sent."""
        return round((time.perf_counter() - self.sent) * 1000, 1)

    def to_wire(self) -> Json:
        """The call for the page, without its parts."""
        told = {name: getattr(self, name) for name in ("number", "era", "tool", "arguments", "state", "began", "first")}
        ended = ("ms", "request", "tokens", "brief")
        return {**told, **{name: self.outcome[name] for name in ended if name in self.outcome}}

    def restart_clock(self) -> None:
        """A question that was asked before the call was sent is not part of its time."""
        self.sent = time.perf_counter()

    def add_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self._progress = {"progress": progress, "total": total, "message": message, "ms": self._begin_part()}
        self.wake_followers()

    def add_line(self, params: Json) -> None:
        line = {name: params.get(name) for name in ("level", "logger", "data")}
        self._lines.append({**line, "ms": self._begin_part()})
        self._line_count += 1
        self.wake_followers()

    def add_part(self, content: Any) -> None:
        self._begin_part()
        self._parts.append(content)
        self._part_count += 1
        self.wake_followers()

    def end(self, state: CallState, **outcome: Any) -> None:
        self.state, self.took_ms = state, (time.perf_counter() - self.sent) * 1000
        self.outcome = {"ms": self.ms, "first": self.first, "era": self.era, "request": self.request, **outcome}
        if "result" in outcome:
            result = outcome["result"]
            self.outcome |= {"tokens": count_result_tokens(result), "brief": summarize_result(result)}
            self._size += estimate_value_bytes(result)

    def restore_outcome(self, request: RecordedMessage, answer: Json) -> None:
        """End it as its answer in a saved session says."""
        self.began, self.request = request.time, str(request.id)
        if "result" in answer:
            result = answer["result"]
            self.end("failed" if object_or_empty(result).get("isError") is True else "done", result=result)
        else:
            error = object_or_empty(answer["error"])
            code = error.get("code")
            self.failure = PeerError(
                str(error.get("message")),
                code=code if isinstance(code, int) else INTERNAL_ERROR,
                data=error.get("data"),
            )
            self.end("failed", error=describe_error_for_page(self.failure))
        self.outcome["ms"] = request.ms

    def wake_followers(self) -> None:
        """There is something new for those who follow."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, send: Callable[[Json], object]) -> None:
        """Send what there is and then what comes, in portions, until the call has ended.

        A portion has the new lines of the `log`, the new parts of the `content`, and the newest `progress`. `dropped`
        counts lines that were left out.
        """
        lines = parts = 0
        progress: Json | None = None
        while True:
            news, portion = self._news, Json()
            new_lines, lines, dropped = _take_new(self._lines, self._line_count, lines, PORTION_LINES)
            new_parts, parts, _ = _take_new(self._parts, self._part_count, parts, PORTION_PARTS)
            if new_lines:
                portion["log"] = new_lines
            if dropped:
                portion["dropped"] = dropped
            if new_parts:
                portion["content"] = new_parts
            if self._progress is not progress:
                portion["progress"] = progress = self._progress
            if portion:
                send(portion)
            if self.state != "running" and lines == self._line_count and parts == self._part_count:
                return
            if portion:
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                await news.wait()

    def _begin_part(self) -> float:
        ms = self.ms
        if self.first is None:
            self.first = ms
        return ms


def _take_new(kept: deque[Any], count: int, seen: int, most: int) -> tuple[list[Any], int, int]:
    """The next of those that were not seen, how many are seen then, and how many of them are no longer kept."""
    oldest = count - len(kept)
    dropped, begin = max(0, oldest - seen), max(seen, oldest)
    end = min(count, begin + most)
    return [kept[place - oldest] for place in range(begin, end)], end, dropped


def join_texts(result: Any) -> str:
    """The texts of a result, one after the other."""
    content = object_or_empty(result).get("content")
    blocks = [block for block in content if is_object(block)] if is_array(content) else []
    return "\n".join(str(block.get("text")) for block in blocks if block.get("type") == "text")


def count_result_tokens(result: Any) -> int:
    """About what a result costs a model that reads its texts: characters/4, as for definitions. Media are left out."""
    return -(-len(join_texts(result)) // 4)


def summarize_result(result: Any) -> str:
    """A result in a word or two, for the tab of its call: how many rows it has, its short text, or its kinds."""
    about = object_or_empty(result)
    structured, content = about.get("structuredContent"), about.get("content")
    if is_object(structured) and len(structured) == 1:
        structured = next(iter(structured.values()))
    if is_array(structured) and structured and all(map(is_object, structured)):
        return f"{len(structured):,} row{'s' * (len(structured) != 1)}"
    blocks = [block for block in content if is_object(block)] if is_array(content) else []
    kinds = list(dict.fromkeys(str(block.get("type"))[:MAX_BRIEF_LENGTH] for block in blocks))
    if kinds != ["text"]:
        return ", ".join(kinds)[:MAX_BRIEF_LENGTH] or "nothing"
    text = join_texts(result).strip("# \n").partition("\n")[0]
    return text if len(text) <= MAX_BRIEF_LENGTH else f"{len(join_texts(result)):,} characters"


class RunningCall:
    """Follows the request of a call. It is the observer of the request, and reads its chunks where there are some."""

    def __init__(self, client: Client, call: KeptCall) -> None:
        self._client, self._call = client, call
        self._streams = client.mgp.streams if client.mgp and "streaming" in client.mgp.sections else None
        self._order = ChunkOrder()

    async def run(self, notices: list[Any]) -> Any:
        """The whole result, also one with `isError`. Cancelling it cancels the request."""
        call = self._call
        params: Json = {"name": call.tool, "arguments": call.arguments}
        if self._streams is not None:
            params["_mgp"] = {"stream": True}

        def heard(of: str, method: str, said: Json) -> None:
            # A log line does not say which call it belongs to: every call of its conversation shows it.
            if of == call.era and method == "notifications/message":
                call.add_line(said)

        notices.append(heard)
        try:
            return await self._client.request(
                "tools/call", params, on_progress=call.add_progress, timeout=MAX_CALL_SECONDS, observer=self
            )
        finally:
            notices.remove(heard)
            self._forget_stream()
            # What still waited for an earlier chunk: every part goes before the answer.
            self._add_chunks(self._order.take_remaining())

    # -- the observer of the request ---------------------------------------------------------------------

    def assign_request_id(self) -> str:
        self._forget_stream()
        # Without a session anyone who knows the id can cancel the call, so it must be hard to guess.
        self._call.request = uuid4().hex
        self._call.restart_clock()
        if self._streams is not None:
            self._streams[self._call.request] = self
        self._order.repeat()
        return self._call.request

    @property
    def is_repeatable(self) -> bool:
        return self._order.next == 0

    def should_keep_waiting(self) -> bool:
        return True

    def receive_chunk(self, params: Mapping[str, Any]) -> None:
        """Take a chunk. Chunks may come in any order."""
        index = params.get("index")
        if type(index) is not int or index < 0:
            return
        lost = params.get("gap_unrecoverable") is True
        self._add_chunks(self._order.skip_chunk(index) if lost else self._order.add_chunk(index, params.get("content")))
        if missing := self._order.take_unrequested_indices():
            about = {"request_id": self._call.request, "missing_indices": missing}
            self._client.notify_soon("notifications/mgp.stream.gap", about)

    def _add_chunks(self, contents: list[Any]) -> None:
        for content in contents:
            self._call.add_part(content)

    def _forget_stream(self) -> None:
        if self._streams is not None:
            self._streams.pop(self._call.request, None)
