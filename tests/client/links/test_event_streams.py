"""The event streams of a server: how often they are asked for again, and when they are given up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from defserve.base.http_connection import BrokenHttpConnection
from defserve.client.links import event_streams
from defserve.client.links.event_streams import MAX_FAILURES, MAX_RETRY_SECONDS, EventStreams, SseParser
from defserve.core.messages import Reply, Request
from defserve.serve.address import TokenNotRenewed
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

CUT = 0
"""Stands for a connection that ends without an answer."""
AWAY = 1
"""Stands for an issuer that renews no token."""
OPEN = 200
ANSWER = Reply(1, {}, None)


class Over(Exception):
    """All answers of the server were given, and it was asked once more."""


class Response:
    """A status; 200 is a stream with one event."""

    def __init__(self, status: int, retry_after: str | None, event: bytes) -> None:
        self.status, self._event, self.is_over = status, event, True
        self.headers = {"content-type": "text/event-stream" if status == OPEN else "text/plain"}
        if retry_after is not None:
            self.headers["retry-after"] = retry_after

    async def iter_parts(self) -> AsyncGenerator[bytes]:
        yield self._event

    async def aclose(self) -> None: ...


class Server:
    """Answers GETs with these statuses, one after the other. No socket, no clock: `waits` are only noted."""

    def __init__(self, *statuses: int, retry_after: str | None = None, event: bytes = b"data: news\n\n") -> None:
        self._statuses, self._retry_after, self._event = list(statuses), retry_after, event
        self.waits: list[float] = []
        self.heard: list[bytes] = []
        self.lost = 0

    @property
    def left(self) -> int:
        return len(self._statuses)

    async def poll(self, request: Request | None = None) -> Reply | None:
        async def overhear(message: Any, data: bytes) -> None: ...

        streams = EventStreams(self, self._take, asyncio.create_task, overhear)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patched:
            clock = SimpleNamespace(sleep=self._sleep, timeout=asyncio.timeout)
            patched.setattr(event_streams, "asyncio", clock)
            return await streams.poll(
                SseParser(1000),
                request,
                overhear,
                make_headers=dict,
                on_opened=lambda: None,
                on_lost=self._on_lost,
            )

    async def send(self, method: str, headers: Mapping[str, str], *, repeatable: bool) -> Response:
        if not self._statuses:
            raise Over
        status = self._statuses.pop(0)
        if status == CUT:
            raise BrokenHttpConnection("cut")
        if status == AWAY:
            raise TokenNotRenewed("the issuer is away")
        return Response(status, self._retry_after, self._event)

    async def _take(self, data: bytes, request: Request | None, hear: Any) -> Reply | None:
        self.heard.append(data)
        return ANSWER if request is not None else None

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def _on_lost(self) -> None:
        self.lost += 1


@for_each_row("passing", [(CUT,), (AWAY,), (500,), (503,), (408,), (409,), (425,), (429,), (503, 429, CUT)])
async def test_a_session_listens_again_however_long_its_server_was_away(passing: tuple[int, ...]):
    server = Server(OPEN, *passing * 1_200, OPEN)
    with pytest.raises(Over):
        await server.poll()
    assert server.heard == [b"news", b"news"]
    assert server.waits[:6] == [1, 2, 4, 8, 16, 32]
    assert set(server.waits[6:-1]) == {MAX_RETRY_SECONDS}
    assert server.waits[-1] == 1


async def test_waits_grow_even_if_the_server_wants_none():
    server = Server(OPEN, *[503] * 20, event=b"retry: 0\ndata: news\n\n")
    with pytest.raises(Over):
        await server.poll()
    assert server.waits[:4] == [0.01, 0.02, 0.04, 0.08]
    assert server.waits[-1] == MAX_RETRY_SECONDS


@for_each_row(
    ("said", "waited"),
    [("7", 7), ("0", 2), ("99999999", MAX_RETRY_SECONDS), ("-1", 2), ("soon", 2), ("²", 2), ("9" * 5_000, 2)],
)
async def test_a_server_says_how_long_it_wants_to_be_left_alone(said: str, waited: float):
    server = Server(OPEN, 429, OPEN, retry_after=said)
    with pytest.raises(Over):
        await server.poll()
    assert server.waits == [1, waited, 1]


@for_each_row(("status", "lost"), [(404, 1), (410, 1), (405, 0), (400, 0), (403, 0)])
async def test_a_stream_that_was_open_ends_if_the_server_no_longer_has_it_and_somebody_is_told(
    caplog: pytest.LogCaptureFixture, status: int, lost: int
):
    caplog.clear()
    server = Server(OPEN, status, OPEN)
    with caplog.at_level(logging.WARNING, "defserve.client"):
        assert await server.poll() is None
    assert (server.left, server.lost) == (1, lost)
    assert ("no longer listening" in caplog.text) is not bool(lost)


async def test_a_token_that_cannot_be_renewed_is_warned_of_once_and_fails_a_request(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "defserve.client"), pytest.raises(Over):
        await Server(OPEN, AWAY, AWAY, OPEN).poll()
    assert [record.getMessage().partition(" to ")[0] for record in caplog.records] == ["not listening"]
    with pytest.raises(TokenNotRenewed):
        await Server(AWAY, OPEN).poll(Request(1, "tools/call", {}, {}))
    with pytest.raises(TokenNotRenewed):
        await Server(AWAY, OPEN).poll()


async def test_a_server_without_such_a_stream_is_no_news(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "defserve.client"):
        assert await Server(405).poll() is None
    assert caplog.text == ""


@for_each_row("status", [CUT, 503, 429])
async def test_a_stream_that_never_opened_is_given_up_after_a_few_failures(status: int):
    server = Server(*[status] * MAX_FAILURES)
    assert await server.poll() is None
    assert (server.left, server.waits) == (0, [2, 4, 8, 16])


@for_each_row("status", [CUT, 503, 408, 409, 425, 429])
async def test_the_stream_of_a_request_is_asked_for_again_a_few_times(status: int):
    asked = Request(1, "x/y", {}, {})
    server = Server(*[status] * (MAX_FAILURES - 1), OPEN)
    assert await server.poll(asked) is ANSWER
    assert server.waits == [1, 2, 4, 8, 16]
    server = Server(OPEN, *[status] * MAX_FAILURES, event=b": working\n\n")
    assert await server.poll(asked) is None
    assert server.left == 0


async def test_a_stream_of_many_events_leaves_turns_to_others():
    turns: list[int] = []
    turn = 0

    class Busy(Server):
        async def _take(self, data: bytes, request: Request | None, hear: Any) -> Reply | None:
            turns.append(turn)
            time.sleep(0.0005)  # noqa: ASYNC251 (it is work that keeps the loop busy)
            return await super()._take(data, request, hear)

    server = Busy(OPEN, event=b"data: x\n\n" * 500)
    polling = asyncio.create_task(server.poll())
    async with asyncio.timeout(60):
        while not polling.done():
            turn += 1
            await asyncio.sleep(0)
    assert isinstance(polling.exception(), Over)
    assert server.heard == [b"x"] * 500
    assert max(Counter(turns).values()) < 50


@for_each_row("line", [b"\n", b":\n", b"\r\n"])
async def test_lines_that_are_no_events_leave_turns_to_others(line: bytes):
    server = Server(OPEN, event=line * 100_000 + b"data: x\n\n")
    polling = asyncio.create_task(server.poll())
    turn = 0
    async with asyncio.timeout(60):
        while not polling.done():
            turn += 1
            await asyncio.sleep(0)
    assert isinstance(polling.exception(), Over)
    assert server.heard == [b"x"]
    assert turn > 5
