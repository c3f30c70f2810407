"""When a delivery is tried again, given up and suspended; and how one request ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcp.events import sending
from defserve.protocols.mcp.events.sending import DeliveryFailed, WebhookSender
from defserve.protocols.mcp.events.webhook_records import (
    MAX_ATTEMPTS,
    MAX_RETRY_SECONDS,
    SUSPEND_AFTER,
    DeliveryProgress,
    record_delivery_failure,
    record_delivery_success,
)
from defserve.server import EventSettings
from defserve.testing import WebhookReceiver
from tests.certificate import self_signed
from tests.raw import until
from tests.rows import for_each_row

NOW = 1_767_225_600_000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 0.3)


def make_progress() -> DeliveryProgress:
    return DeliveryProgress("00" * 8, 0)


def test_an_event_is_tried_for_twelve_minutes_and_then_given_up():
    progress, now, waits = make_progress(), NOW, list[float]()
    while not record_delivery_failure(progress, DeliveryFailed("http_5xx"), now):
        waits.append((progress.retry_at - now) / 1000)
        now = progress.retry_at
    assert waits == [30, 60, 120, 240, 300]
    assert (progress.attempts, progress.is_active) == (0, True)


FAILURES = st.builds(
    DeliveryFailed,
    st.sampled_from(("connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx")),
    is_final=st.booleans(),
    retry_after=st.floats(0, 10**9),
)


@given(st.lists(FAILURES | st.none(), max_size=300))
def test_no_schedule_waits_too_long_or_tries_too_often(outcomes: list[DeliveryFailed | None]):
    progress, now, attempts = make_progress(), NOW, 0
    for failed in outcomes:
        if failed is None:
            record_delivery_success(progress, now)
            attempts = 0
            assert (progress.failures, progress.last_error, progress.failed_since) == (0, None, None)
            continue
        is_given_up = record_delivery_failure(progress, failed, now)
        attempts = 0 if is_given_up else attempts + 1
        assert attempts < MAX_ATTEMPTS
        assert progress.last_error == failed.reason
        assert not failed.is_final or is_given_up or not progress.is_active
        assert 0 <= max(progress.retry_at - now, 0) <= MAX_RETRY_SECONDS * 1000
        if not progress.is_active:
            assert progress.failures >= 10
            return
        assert progress.failures < SUSPEND_AFTER
        now = max(now, progress.retry_at)


def test_an_hour_of_failures_suspends():
    progress, now = make_progress(), NOW
    while progress.is_active:
        record_delivery_failure(progress, DeliveryFailed("timeout"), now)
        now = max(now, progress.retry_at) + 1
    assert 3_600_000 <= now - NOW < 2 * 3_600_000


def test_what_an_endpoint_asks_for_is_told_and_bounded():
    progress = make_progress()
    record_delivery_failure(progress, DeliveryFailed("http_4xx", retry_after=120), NOW)
    status = progress.to_wire(NOW)
    assert (status["throttled"], status["retryAfterMs"], status["lastError"]) == (True, 120_000, "http_4xx")


# -- one request


@asynccontextmanager
async def answering(*pieces: bytes, pause: float = 0.0) -> AsyncGenerator[str]:
    """The address of an endpoint that answers so, piece by piece, and then says nothing."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(pause)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def find_reason(url: str, settings: EventSettings | None = None) -> str:
    sender = WebhookSender(settings or EventSettings(), is_loopback_allowed=True)
    try:
        await sender.post(url, {}, b"{}", reads_answer=True)
    except DeliveryFailed as failed:
        return failed.reason
    finally:
        await sender.aclose()
    return ""


@for_each_row(
    "pieces, reason",
    [
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), ""),
        ((b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",), "http_4xx"),
        ((b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n",), "http_4xx"),
        ((b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n",), "http_5xx"),
        ((b"this is not HTTP\r\n\r\n",), "connection_refused"),
        ((), "timeout"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"a"), "timeout"),
    ],
)
@pytest.mark.anyio
async def test_a_request_ends_with_a_word_of_the_draft(pieces: tuple[bytes, ...], reason: str):
    async with answering(*pieces) as url:
        assert await find_reason(url) == reason


@pytest.mark.anyio
async def test_https_is_verified(tmp_path: Path):
    path = self_signed(tmp_path, "127.0.0.1")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(path)
    with WebhookReceiver(tls=served) as receiver:
        assert receiver.url.startswith("https://")
        assert await find_reason(receiver.url) == "tls_error"
        # It is trusted now, and answers: nothing was signed.
        trusting = EventSettings(webhook_tls=ssl.create_default_context(cafile=str(path)))
        assert await find_reason(receiver.url, trusting) == "http_4xx"


@pytest.mark.anyio
async def test_a_receiver_does_not_hold_the_body_of_an_answer_back(monkeypatch: pytest.MonkeyPatch):
    options = list[int]()
    receive = WebhookReceiver._receive

    def note_option(receiver: WebhookReceiver, request: Any) -> Any:
        options.append(request.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return receive(receiver, request)

    monkeypatch.setattr(WebhookReceiver, "_receive", note_option)
    with WebhookReceiver() as receiver:
        await find_reason(receiver.url)
    assert len(options) == 1 and options[0]


# -- connections


@asynccontextmanager
async def keeping(*answers: bytes) -> AsyncGenerator[tuple[str, list[int]]]:
    """An endpoint that gives these answers, the last one again and again; and how many requests each connection had.

    An empty answer hangs up.
    """
    requests: list[int] = []
    left = list(answers)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(requests)
        requests.append(0)
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            while await reader.readuntil(b"{}"):
                requests[place] += 1
                if not (answer := left.pop(0) if len(left) > 1 else left[0]):
                    break
                writer.write(answer)
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", requests
    finally:
        server.close()


def answer(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body) if length is None else length, body)


async def post_three_times(url: str) -> None:
    sender = WebhookSender(EventSettings(), is_loopback_allowed=True)
    try:
        for _ in range(3):
            await sender.post(url, {}, b"{}")
    finally:
        await sender.aclose()


@for_each_row(
    "answers, expected",
    [
        ((answer(b""),), [3]),
        ((answer(b'{"ok":true}'),), [3]),
        ((answer(b"x", 1_000_000),), [1, 1, 1]),
        # It hung up just as its connection was used again: the request is sent once more.
        ((answer(b""), b"", answer(b"")), [2, 2]),
    ],
)
@pytest.mark.anyio
async def test_a_connection_is_used_again_if_its_answer_was_short(
    answers: tuple[bytes, ...], expected: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sending, "DRAIN_SECONDS", 0.05)
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 10.0)
    async with keeping(*answers) as (url, requests):
        await post_three_times(url)
    assert requests == expected


@pytest.mark.anyio
async def test_a_connection_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sending, "IDLE_SECONDS", 0.02)
    async with keeping(answer(b"")) as (url, requests):
        sender = WebhookSender(EventSettings(), is_loopback_allowed=True)
        await sender.post(url, {}, b"{}")
        await until(lambda: not sender._open)  # pyright: ignore[reportPrivateUsage]
        await sender.post(url, {}, b"{}")
        assert requests == [1, 1]
        await sender.aclose()
