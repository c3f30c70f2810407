"""Targets of request lines: paths, absolute URIs whose host is judged as Host is, and what is neither."""

from __future__ import annotations

import json
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server
from defserve.auth import OAuthProxy, RegisteredClient
from defserve.serve.http.request_heads import GateRefusal, has_needless_encoding, normalize_request_target
from tests.listening import Listening, listening, request
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

UPGRADE = (
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==",
)
BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}).encode()


async def status(where: Listening, verb: str, target: str, *headers: str, body: bytes = b"") -> int:
    reader, writer = await where.connect()
    end = ("connection: close",) if "upgrade" not in "".join(headers) else ()
    writer.write(request(*headers, *end, verb=verb, path=target, body=body))
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@for_each_row(
    ("target", "host", "expected"),
    [
        ("http://localhost/healthz", "localhost", 200),
        ("HTTP://LocalHost:80/healthz", "localhost", 200),
        ("http://localhost:8000/healthz", "localhost:8000", 200),
        ("https://localhost/healthz", "localhost:443", 200),
        ("http://evil.example/healthz", "localhost", 400),
        ("http://localhost/healthz", "evil.example", 400),
        ("http://evil.example/healthz", "evil.example", 421),
        ("http://localhost:81/healthz", "localhost:80", 400),
        ("http://user@localhost/healthz", "localhost", 400),
        ("http://user:x@localhost/healthz", "user:x@localhost", 400),
        ("http://localhost@evil.example/healthz", "localhost", 400),
        ("http://localhost\\@evil.example/healthz", "localhost", 400),
        ("http://localhost", "localhost", 400),
        ("ftp://localhost/healthz", "localhost", 400),
        ("//localhost/healthz", "localhost", 400),
        ("//evil.example/healthz", "localhost", 400),
        ("*", "localhost", 400),
        ("healthz", "localhost", 400),
        ("localhost:80", "localhost", 400),
    ],
)
async def test_a_target_is_a_path_or_names_the_same_host_as_host(target: str, host: str, expected: int):
    async with listening(Server("s", "1")) as where:
        for _ in range(2):
            assert await status(where, "GET", target, f"host: {host}") == expected


async def test_a_known_head_with_a_foreign_host_is_refused_each_time():
    async with listening(Server("s", "1")) as where:
        reader, writer = await where.connect()
        for target, expected in (("http://evil.example/mcp", b" 400 "), ("http://localhost/mcp", b" 406 ")) * 2:
            writer.write(request("accept: text/html", verb="POST", path=target, body=BODY))
            head = await reader.readuntil(b"\r\n\r\n")
            assert expected in head
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.close()


async def test_nobody_is_connected_to_another_host():
    async with listening(Server("s", "1")) as where:
        for target in ("evil.example:443", "localhost:80", "/mcp", "http://evil.example/mcp"):
            assert await status(where, "CONNECT", target) in (400, 405)


@for_each_row(
    ("target", "expected"),
    [("http://localhost/mcp", 101), ("http://evil.example/mcp", 400), ("//localhost/mcp", 400), ("/mcp", 101)],
)
async def test_a_socket_is_judged_in_the_same_way(target: str, expected: int):
    async with listening(Server("s", "1")) as where:
        assert await status(where, "GET", target, *UPGRADE) == expected


@given(st.text("htps:/@.\\localevi80?#%[]*", max_size=30))
def test_whatever_passes_is_a_path_or_names_the_host(text: str):
    target = text.encode()
    scope = {"path": text, "raw_path": target}
    if isinstance(normalize_request_target(scope, "localhost"), GateRefusal) or not target:
        return
    assert scope["path"].startswith("/")
    assert target.startswith((b"/", b"http://localhost/", b"https://localhost/", b"http://localhost:80/"))
    assert not target.startswith(b"//")


PLAIN = string.ascii_letters + string.digits + "-._~/"


def spellings(path: str) -> list[str]:
    """The path with each of its characters but the first encoded once, and with all of them."""
    ways = [f"{path[:at]}%{ord(path[at]):02x}{path[at + 1 :]}" for at in range(1, len(path))]
    return [*ways, "/" + "".join(f"%{ord(c):02X}" for c in path[1:])]


@given(st.text(PLAIN, min_size=1), st.integers(0), st.booleans())
def test_every_needless_encoding_is_seen(text: str, place: int, upper: bool):
    at = place % len(text)
    code = f"%{ord(text[at]):02x}"
    path = f"/{text[:at]}{code.upper() if upper else code}{text[at + 1 :]}"
    assert has_needless_encoding({"path": f"/{text}", "raw_path": path.encode()})
    assert not has_needless_encoding({"path": f"/{text}", "raw_path": f"/{text}".encode()})


@given(st.text(min_size=1))
def test_what_has_to_be_encoded_may_be(text: str):
    encoded = quote(text, safe=PLAIN, errors="surrogatepass").encode()
    assert not has_needless_encoding({"path": f"/{text}", "raw_path": b"/" + encoded})


async def test_nothing_is_found_under_a_second_spelling_of_its_path():
    server = Server("shop")

    @server.tool
    def put() -> str:
        return "put"

    async with listening(server, metrics=True, rest=True) as where:
        for verb, path in (("GET", "/metrics"), ("GET", "/healthz"), ("GET", "/openapi.json"), ("POST", "/tools/put")):
            body = b"{}" if verb == "POST" else b""
            head = ("content-type: application/json",)
            assert await status(where, verb, path, *head, body=body) == 200
            for other in (*spellings(path), f"http://localhost{spellings(path)[0]}"):
                assert await status(where, verb, other, *head, body=body) == 400, other
        for other in spellings("/mcp"):
            head = ("content-type: application/json", "accept: application/json, text/event-stream")
            assert await status(where, "POST", other, *head, body=BODY) == 400
            assert await status(where, "GET", other, *UPGRADE) == 400


@for_each_row(
    ("target", "host", "expected"),
    [
        ("/token", "localhost", 405),
        ("http://localhost/token", "localhost", 405),
        ("http://localhost/.well-known/oauth-authorization-server", "localhost", 200),
        ("http://evil.example/token", "localhost", 400),
        ("http://evil.example/token", "evil.example", 421),
        ("http://localhost/%74oken", "localhost", 400),
    ],
)
async def test_the_paths_of_an_authorization_server_may_be_written_as_whole_addresses(
    target: str, host: str, expected: int
):
    auth = OAuthProxy(url="http://localhost/mcp", clients=[RegisteredClient("bot", secret="s" * 32, scopes=())])
    async with listening(Server("s", "1", auth=auth)) as where:
        assert await status(where, "GET", target, f"host: {host}") == expected
