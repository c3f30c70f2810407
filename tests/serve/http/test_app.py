"""What is checked before a message is looked at, in order: the gate, the verb, the media types, the size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from defserve import Limits, Server
from tests.asgi import BOTH, Peer, Web, living, request
from tests.raw import HANDSHAKE, STATELESS
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

INITIALIZE = request(
    "initialize", {"protocolVersion": HANDSHAKE[-1], "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
)


@pytest.fixture
def server() -> Server:
    server = Server("web", "1", limits=Limits(message=10_000, body=0.05))

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


@pytest.fixture
async def app(server: Server) -> AsyncIterator[Any]:
    async with living(
        server.asgi(allowed_hosts=["tools.example.com"], allowed_origins=["https://ui.example.com"])
    ) as app:
        yield app


# The gate.


@for_each_row("verb", ["POST", "GET", "DELETE", "PUT"])
@for_each_row(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example", "origin": "http://evil.example"}, 421),
        ({"host": "localhost:8000", "origin": "http://evil.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, 403),
        ({"host": None}, 400),
    ],
)
async def test_strangers_are_kept_out_whatever_they_ask(app: Any, verb: str, headers: dict[str, str], status: int):
    response = await Web(app).begin(verb, json.dumps(INITIALIZE).encode(), headers).ended()
    assert response.status == status
    assert "mcp-session-id" not in response.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:8000", "origin": "http://localhost:8000"},
        {"host": "127.0.0.1:1", "origin": "http://localhost:5173"},
        {"host": "[::1]:8000"},
        {"host": "tools.example.com", "origin": "https://ui.example.com"},
    ],
)
async def test_friends_are_let_in(app: Any, headers: dict[str, str]):
    assert (await Web(app).post(INITIALIZE, headers).ended()).status == 200


async def test_no_page_is_invited_by_cors(app: Any):
    response = await Web(app).post(INITIALIZE, {"origin": "https://ui.example.com"}).ended()
    assert not [name for name in response.headers if name.startswith("access-control")]


# Verbs, types and sizes.


@pytest.mark.parametrize("verb", ["PUT", "PATCH", "HEAD", "OPTIONS", "TRACE"])
async def test_another_verb_is_refused_with_those_there_are(app: Any, verb: str):
    response = await Web(app).begin(verb).ended()
    assert (response.status, response.headers["allow"]) == (405, "POST, GET, DELETE")


async def test_another_path_is_not_found(server: Server):
    async with living(server.asgi()) as app:
        assert (await Web(app, "/elsewhere").post(INITIALIZE).ended()).status == 404


CONTENT_TYPES = [
    ("application/json", 200),
    ("application/json; charset=utf-8", 200),
    ("Application/JSON", 200),
    ("text/plain", 415),
    ("application/x-www-form-urlencoded", 415),
    ("application/jsonx", 415),
    ("application/json; charset=utf-16", 415),
    (None, 415),
]


@pytest.mark.parametrize(("kind", "status"), CONTENT_TYPES)
async def test_the_body_has_to_be_json_and_say_so(app: Any, kind: str | None, status: int):
    assert (await Web(app).post(INITIALIZE, {"content-type": kind}).ended()).status == status


ACCEPTS = [
    (BOTH, 200),
    ("text/event-stream, application/json", 200),
    ("*/*", 200),
    ("application/*, text/*", 200),
    (None, 200),
    ("application/json", 406),
    ("text/event-stream", 406),
    ("application/json, text/event-stream;q=0", 406),
    ("text/html", 406),
]


@pytest.mark.parametrize(("accept", "status"), ACCEPTS)
async def test_the_client_has_to_take_both_forms_of_an_answer(app: Any, accept: str | None, status: int):
    assert (await Web(app).post(INITIALIZE, {"accept": accept}).ended()).status == status


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_a_body_past_the_limit_is_refused_and_the_connection_closed(app: Any, declared: bool):
    chunks = [b" " * 4_000] * 3
    headers = {"content-length": "12000"} if declared else {}
    response = await Web(app).post(chunks, headers).ended()
    assert (response.status, response.headers["connection"]) == (413, "close")
    assert response.json["error"]["code"] == -32600


async def test_a_body_in_many_pieces_is_put_together(app: Any):
    data = json.dumps(INITIALIZE).encode()
    response = await Web(app).post([data[i : i + 7] for i in range(0, len(data), 7)]).ended()
    assert response.status == 200


async def test_a_body_that_does_not_arrive_in_time_is_given_up(app: Any):
    response = await Web(app).post([b"{"], finishes=False).ended()
    assert (response.status, response.headers["connection"]) == (408, "close")


async def test_a_client_that_leaves_within_its_body_is_not_answered(app: Any):
    exchange = Web(app).post([b"{"], finishes=False)
    await asyncio.sleep(0)
    exchange.leave()
    assert (await exchange.ended()).status == 0


BROKEN_BODIES = [
    (b"", -32700, None),
    (b"{", -32700, None),
    (b"nonsense", -32700, None),
    (b"\xff\xfe", -32700, None),
    (b"42", -32600, None),
    (b"[]", -32600, None),
    (b"{}", -32600, None),
    (b'{"jsonrpc":"1.0","id":7,"method":"ping"}', -32600, 7),
    (b'{"jsonrpc":"2.0","id":7}', -32600, 7),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":7,"method":5}', -32600, 7),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', -32602, 7),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":' + b"[" * 70 + b"]" * 70 + b"}", -32600, 7),
]


@for_each_row(("body", "code", "id"), BROKEN_BODIES, ids=[str(i) for i in range(len(BROKEN_BODIES))])
@for_each_row("version", [None, *HANDSHAKE, STATELESS])
async def test_what_is_no_message_is_a_bad_request(app: Any, body: bytes, code: int, id: Any, version: str | None):
    peer = await Peer(app).open()
    response = await Web(app).post(body, {"mcp-protocol-version": version, "mcp-session-id": peer.session}).ended()
    assert response.status == 400
    assert response.json["error"]["code"] == code
    # Python's client reads no error without an id.
    assert response.json["id"] == id


ORDER = [
    # Each request breaks the rule named and every later one.
    (421, {"host": "evil.example", "content-type": "x/y", "accept": "x/y"}, b"{" * 20_000),
    (415, {"content-type": "x/y", "accept": "x/y"}, b"{" * 20_000),
    (406, {"accept": "x/y"}, b"{"),
    (413, {"mcp-protocol-version": "v999"}, b"{" * 20_000),
    (400, {"mcp-protocol-version": "v999"}, b"{"),
]


@pytest.mark.parametrize(("status", "headers", "body"), ORDER, ids=[str(row[0]) for row in ORDER])
async def test_the_first_broken_rule_is_the_one_reported(app: Any, status: int, headers: dict[str, str], body: bytes):
    assert (await Web(app).post(body, headers).ended()).status == status


async def test_json_is_on_one_line_and_says_its_length(app: Any):
    response = await Web(app).post(INITIALIZE).ended()
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-length"] == str(len(response.body))
    assert b"\n" not in response.body
