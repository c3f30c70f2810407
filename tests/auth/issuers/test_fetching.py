from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from defserve.auth import issuers
from defserve.auth.issuers import HttpRequest, send_http_request
from tests.rows import for_each_row


@for_each_row(
    "answer",
    [
        b"what?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"",
    ],
    ids=range(4),
)
def test_an_answer_that_is_not_http_is_an_error_that_callers_expect(answer: bytes) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(OSError):
                await send_http_request(HttpRequest(f"http://127.0.0.1:{port}/"))

    asyncio.run(ask())


def test_an_answer_whose_head_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers, "ISSUER_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        given_up = threading.Event()

        def drip() -> None:
            with server.accept()[0] as peer:
                peer.sendall(b"HTTP/1.1 200 OK\r\na: ")
                until = time.monotonic() + 30
                with suppress(ConnectionError):  # whoever gives up may have gone
                    while time.monotonic() < until and not given_up.wait(0.05):
                        peer.sendall(b"b")

        dripping, began = threads.submit(drip), time.monotonic()
        with pytest.raises(OSError):
            asyncio.run(send_http_request(HttpRequest(f"http://127.0.0.1:{server.getsockname()[1]}/")))
        assert time.monotonic() - began < 20
        given_up.set()
        dripping.result()


def test_a_header_that_cannot_be_sent_is_not_repeated_for_it_may_hold_a_token() -> None:
    request = HttpRequest("http://127.0.0.1:1/", headers={"authorization": "Bearer our\nsecret"})
    with pytest.raises(ValueError) as refused:
        asyncio.run(send_http_request(request))
    assert "secret" not in str(refused.value)


def test_headers_of_one_name_are_joined() -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 No\r\nWWW-Authenticate: Basic\r\nwww-authenticate: Bearer\r\n\r\n")
        writer.close()

    async def ask() -> str:
        async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return (await send_http_request(HttpRequest(f"http://127.0.0.1:{port}/"))).headers["www-authenticate"]

    assert asyncio.run(ask()) == "Basic, Bearer"


def test_an_address_where_nobody_listens_is_told_in_the_words_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    with pytest.raises(OSError) as refused:
        asyncio.run(send_http_request(HttpRequest(url)))
    assert "refused" in str(refused.value) and "urlopen" not in str(refused.value)
