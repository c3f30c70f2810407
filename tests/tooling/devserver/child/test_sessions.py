"""A session of an earlier child is opened again by requests of our own. What the app refuses leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.serve.sockets import BUFFERED_REQUEST_KEY
from defserve.tooling.devserver import child_http
from defserve.tooling.devserver.child_http import SessionReopener, SessionSetups
from tests.asgi import BOTH, Peer, Web, living, with_tokens
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "version"}}


async def test_what_is_repeated_for_a_client_is_not_taken_for_the_request_that_came(tmp_path: Path):
    SessionSetups(tmp_path).record_message("old", INITIALIZE)
    seen: list[tuple[Any, bool]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((json.loads((await receive())["body"]), BUFFERED_REQUEST_KEY in scope))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"mcp-session-id", b"new")]})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(CALL).encode(), "more_body": False}

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "headers": [(b"mcp-session-id", b"old")], BUFFERED_REQUEST_KEY: object()}
    await SessionReopener(app, tmp_path, lambda: None, lambda: None)(scope, receive, send)
    assert seen == [(INITIALIZE, False), (CALL, False)]


# -- what the app refuses ----------------------------------------------------------------------------------


class EndlessBody:
    """Sends as long as anybody reads, but not more than a hundred chunks: nobody needs so many to refuse it."""

    def __init__(self, app: Any) -> None:
        self._app, self.reads = app, 0

    async def __call__(self, scope: Any, _: Any, send: Any) -> None:
        await self._app(scope, self._receive, send)

    async def _receive(self) -> dict[str, Any]:
        assert self.reads < 100
        self.reads += 1
        return {"type": "http.request", "body": b"x" * 65_536, "more_body": True}


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def reopener(app: Any, folder: Path) -> SessionReopener:
    return SessionReopener(app, folder, lambda: None, lambda: None)


REFUSED: list[tuple[str, dict[str, str]]] = [
    ("POST", {"host": "evil.example"}),
    ("POST", {"origin": "https://evil.example"}),
    ("POST", {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}),
    ("POST", {"content-type": "text/plain"}),
    ("POST", {"content-length": "700000000"}),
    ("POST", {"authorization": "Bearer wrong"}),
    ("POST", {"mcp-session-id": "made-up"}),
    ("POST", {"mcp-session-id": "made-up", "host": "evil.example"}),
    ("POST", {"mcp-session-id": "made-up", "content-length": "700000000"}),
    ("POST", {}),
    ("PUT", {}),
    ("DELETE", {"mcp-session-id": "made-up"}),
]


@for_each_row(("verb", "headers"), REFUSED)
async def test_of_a_request_that_is_refused_no_more_is_read_than_the_app_reads(
    verb: str, headers: dict[str, str], tmp_path: Path
):
    async with living(with_tokens(Server("dev").asgi(), "me")) as app:
        alone, wrapped = EndlessBody(app), EndlessBody(reopener(app, tmp_path))
        for each in (alone, wrapped):
            given = {"content-type": "application/json", "accept": BOTH, **headers}
            response = await Web(each).begin(verb, b"", given).ended()
            assert response.status >= 400
        assert wrapped.reads == alone.reads
    assert not files_in(tmp_path)


@for_each_row(
    "headers",
    [
        {"mcp-session-id": "made-up"},
        {"host": "evil.example"},
        {"host": "evil.example", "mcp-session-id": "made-up"},
        {"origin": "https://evil.example"},
        {"authorization": "Bearer wrong", "mcp-session-id": "made-up"},
        {"mcp-protocol-version": "1999-01-01", "mcp-session-id": "made-up"},
    ],
)
async def test_what_a_refused_message_would_have_set_up_is_not_noted(headers: dict[str, str], tmp_path: Path):
    async with living(with_tokens(Server("dev").asgi(), "me")) as app:
        response = await Web(reopener(app, tmp_path)).post(INITIALIZE, headers).ended()
        assert response.status >= 400
    assert not files_in(tmp_path)


async def test_a_session_is_noted_when_it_is_opened_and_forgotten_when_it_is_ended(tmp_path: Path):
    async with living(Server("dev").asgi()) as app:
        peer = await Peer(reopener(app, tmp_path)).open()
        assert peer.session is not None
        setups = SessionSetups(tmp_path)
        assert [each["method"] for each in setups.messages(peer.session)] == ["initialize", "notifications/initialized"]
        refused = await peer.begin("DELETE", b"", {**peer.its_headers, "host": "evil.example"}).ended()
        assert refused.status == 421 and setups.messages(peer.session)
        assert (await peer.delete().ended()).status < 300
        assert not setups.messages(peer.session)


async def test_a_session_outlives_the_child_that_opened_it(tmp_path: Path):
    async with living(Server("dev").asgi()) as app:
        peer = await Peer(reopener(app, tmp_path)).open()
    async with living(Server("dev").asgi()) as app:
        peer.app = reopener(app, tmp_path)
        assert (await peer.ask("ping"))["result"] == {}


def test_the_messages_of_a_session_are_kept_up_to_a_number_of_bytes(tmp_path: Path):
    setups = SessionSetups(tmp_path)
    setups.record_message("s", INITIALIZE)
    for number in range(200):
        uri = f"a://{number}/" + "x" * 10_000
        setups.record_message("s", {"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": uri}})
    assert setups.messages("s")[0] == INITIALIZE
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= child_http.MAX_SETUP


def test_of_too_many_sessions_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child_http, "MAX_SESSIONS", 3)
    setups = SessionSetups(tmp_path)
    for number in range(10):
        setups.record_message(str(number), INITIALIZE)
    assert len(list(tmp_path.iterdir())) == 3
    assert setups.messages("9") == [INITIALIZE]
