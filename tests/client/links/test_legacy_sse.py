"""The host over HTTP+SSE of 2024: an event stream in, POSTs out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve.client import Answers, Client, RemoteServer
from defserve.client.links import endpoint, event_streams
from defserve.client.links.event_streams import LegacySseLink
from defserve.client.links.http import HttpLink
from defserve.client.targets import connect_url
from defserve.errors import PeerError, PeerGone
from defserve.serve.address import CredentialsRequired, SignInError
from tests.client.links.asgi import serving
from tests.client.web import RenewingAuthorizer, SlowAuthorizer
from tests.rows import for_each_row
from tests.testing import calculator

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def streaming(
    *lines: bytes, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> AsyncIterator[str]:
    """The address of a server whose stream has these lines and then ends."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": status, "headers": [*STREAM, *headers]})
        await send({"type": "http.response.body", "body": b"\n".join(lines) + b"\n\n"})

    async with serving(_http_only(app), "/sse") as url:
        yield url


STREAM = ((b"content-type", b"text/event-stream"),)


def _http_only(app: Any) -> Any:
    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    return wrapped


async def test_tools_resources_prompts_and_questions_work():
    heard: list[Any] = []
    options: dict[str, Any] = {
        "answers": Answers(ask=lambda message, schema: {"name": "Ann"}),
        "on_progress": lambda done, total, message: heard.append(done),
    }
    async with (
        serving(calculator.server.asgi(legacy_sse=True), "/sse") as url,
        RemoteServer(url).connect(timeout=10, **options) as client,
    ):
        assert await client.call("add", a=1) == 3
        assert await client.read_text("note://today") == "buy milk"
        assert await client.call("work") == "done"
        assert heard[-1] == 2
        assert await client.call("greet") == "hello Ann"


async def test_an_address_that_ends_with_sse_and_has_no_stream_is_an_endpoint_of_todays_kind():
    app = calculator.server.asgi()

    async def at_sse(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "path": "/"} if scope["type"] == "http" else scope, receive, send)

    async with serving(at_sse, "/api/sse") as url:
        link = await connect_url(url)
        assert isinstance(link, HttpLink)
        await link.aclose()
        async with RemoteServer(url).connect(timeout=10) as client:
            assert await client.call("add", a=1) == 3


async def test_messages_are_never_sent_to_another_server():
    async with streaming(b"event: endpoint", b"data: http://127.0.0.1:1/steal") as url:
        with pytest.raises(PeerError, match="another server"):
            await LegacySseLink.connect(url)


@for_each_row(("before", "after"), [("127.0.0.1", "127.0.0.1"), ("me:secret@LOCALHOST", "localhost")])
async def test_the_same_server_may_be_written_in_another_way(before: str, after: str):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        port = scope["server"][1]
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        address = f"event: endpoint\ndata: http://{after}:{port}/messages?id=1\n\n"
        await send({"type": "http.response.body", "body": address.encode()})

    async with serving(_http_only(app), "/sse") as url:
        link = await LegacySseLink.connect(url.replace("127.0.0.1", before))
        await link.aclose()
        assert await link.receive() is None


async def test_a_path_with_two_slashes_is_no_other_server():
    paths: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_post = scope["method"] == "POST"
        await send({"type": "http.response.start", "status": 202 if is_post else 200, "headers": STREAM})
        if is_post:
            paths.append(scope["raw_path"].decode())
        address = f"event: endpoint\ndata: http://127.0.0.1:{scope['server'][1]}//127.0.0.1:1/messages\n\n"
        await send({"type": "http.response.body", "body": b"" if is_post else address.encode()})

    async with serving(_http_only(app), "/sse") as url:
        link = await LegacySseLink.connect(url, token="secret")
        await link.send(b"{}")
        await link.aclose()
    assert paths == ["//127.0.0.1:1/messages"]


async def test_an_end_that_waits_for_an_issuer_and_is_called_off_leaves_no_connection_open():
    authorizer = RenewingAuthorizer()
    there: Any = authorizer
    async with serving(calculator.server.asgi(legacy_sse=True), "/sse") as url:
        link = await LegacySseLink.connect(url, authorizer=there)
        ending = asyncio.create_task(link.aclose())
        await authorizer.closing.wait()
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        with pytest.raises(PeerGone, match="closed"):
            await link.send(b"{}")


async def test_an_address_that_is_none_is_told_at_once():
    async with streaming(b"event: endpoint\ndata: http://[") as url:
        with pytest.raises(PeerError, match="not an address"):
            await LegacySseLink.connect(url)


async def test_a_stream_that_ends_before_its_address_is_an_error():
    async with streaming(b": nothing") as url:
        with pytest.raises(PeerGone, match="ended its stream"):
            await LegacySseLink.connect(url)


async def test_a_challenge_is_told():
    async with streaming(status=401, headers=((b"www-authenticate", b"Bearer"),)) as url:
        with pytest.raises(CredentialsRequired):
            await connect_url(url)


async def test_a_person_may_take_longer_to_sign_in_than_a_stream_to_begin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_streams, "OPEN_SECONDS", 0.2)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        status = 200 if (b"authorization", b"Bearer t") in scope["headers"] else 401
        await send({"type": "http.response.start", "status": status, "headers": STREAM})
        await send({"type": "http.response.body", "body": b"event: endpoint\ndata: /messages\n\n"})

    async with serving(_http_only(app), "/sse") as url:
        authorizer: Any = SlowAuthorizer()
        link = await LegacySseLink.connect(url, authorizer=authorizer)
        await link.aclose()


async def test_who_declines_to_sign_in_is_not_asked_again_for_another_kind_of_link():
    class Declining(SlowAuthorizer):
        def authorizer(self, url: str) -> Any:
            return self

        async def handle_challenge(self, challenge: Any) -> bool:
            raise SignInError("the person declined")

    async with streaming(status=401, headers=((b"www-authenticate", b"Bearer"),)) as url:
        with pytest.raises(SignInError, match="declined"):
            await connect_url(url, auth=Declining())


async def test_a_call_waits_for_a_person_who_signs_in_for_its_message(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "TELL_SECONDS", 0.2)
    app = calculator.server.asgi(legacy_sse=True)

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        if is_post and (b"authorization", b"Bearer t") not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    async with serving(guarded, "/sse") as url:
        authorizer: Any = SlowAuthorizer()
        link = await LegacySseLink.connect(url, authorizer=authorizer)
        async with Client(link, timeout=0.3) as client:
            assert await client.call("add", a=1) == 3


async def test_nobody_there_is_told():
    with pytest.raises(PeerGone, match="cannot be reached"):
        await LegacySseLink.connect("http://127.0.0.1:1/sse")


async def test_the_end_of_the_stream_ends_the_link():
    async with streaming(b"event: endpoint", b"data: /messages?id=1") as url:
        link = await LegacySseLink.connect(url)
        with pytest.raises(PeerGone, match="ended its stream"):
            await link.receive()
        await link.aclose()
