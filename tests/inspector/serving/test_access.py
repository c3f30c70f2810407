"""Who gets in: nobody without the token, no page of another origin, no name that was rebound to us."""

from __future__ import annotations

import asyncio
import base64
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.inspector.page_server import Access, RunningInspector

pytestmark = pytest.mark.anyio

UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}


async def raw(
    inspector: RunningInspector, path: str = "/", method: str = "GET", **headers: str | None
) -> tuple[int, str]:
    """The status and the whole answer to a request of raw bytes. A header that is None is left out."""
    port = inspector.access.port
    given = {"Host": f"127.0.0.1:{port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value is not None)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())
        await writer.drain()
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = [int(line.split(":")[1]) for line in text.lower().splitlines() if line.startswith("content-length:")]
        body = await reader.readexactly(length[0]) if length and method != "HEAD" and " 101 " not in text else b""
    finally:
        writer.close()
    return int(text.split()[1]), text + body.decode("latin-1")


async def socket(inspector: RunningInspector, path: str = "/socket", **headers: str | None) -> int:
    """The status of a handshake. Without other headers it is one of our own page."""
    port = inspector.access.port
    own: dict[str, str | None] = {
        **UPGRADE,
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Protocol": f"defserve-inspector, token.{inspector.access.token}",
        "Origin": f"http://127.0.0.1:{port}",
    }
    return (await raw(inspector, path, **{**own, **{name.replace("_", "-"): text for name, text in headers.items()}}))[
        0
    ]


# ------------------------------------------------------------------------------------------------------------ the page


async def test_the_address_that_a_browser_is_started_with_leads_to_the_page_once(running: RunningInspector):
    path = f"/?{running.ticket_url().partition('?')[2]}"
    status, text = await raw(running, path, Sec_Fetch_Site="cross-site")
    assert status == 403
    status, text = await raw(running, path)
    assert status == 303 and f"location: /?token={running.access.token}\r\n" in text
    status, text = await raw(running, path)
    assert status == 401 and running.access.token not in text


async def test_a_ticket_is_good_for_a_minute(running: RunningInspector, monkeypatch: pytest.MonkeyPatch):
    path, now = f"/?ticket={running.access.new_ticket()}", time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert (await raw(running, path))[0] == 401


async def test_the_printed_address_opens_the_page_and_sets_a_cookie_for_its_files(running: RunningInspector):
    status, text = await raw(running, f"/?token={running.access.token}")
    assert status == 200 and "<title>" in text
    cookie = next(line for line in text.splitlines() if line.lower().startswith("set-cookie:"))
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert running.access.token not in cookie
    status, _ = await raw(running, "/app.js", Cookie=cookie.split(": ", 1)[1].partition(";")[0])
    assert status == 200


@pytest.mark.parametrize("path", ["/", "/app.js", "/nothing", "/?token=", "/?token=x", "/?token=x&token=y", "/../x"])
async def test_without_the_token_nothing_is_served(running: RunningInspector, path: str):
    assert (await raw(running, path))[0] == 401
    assert (await raw(running, path, Cookie="defserve-inspector-0=x; token=y"))[0] == 401


async def test_the_token_twice_or_with_something_added_is_not_the_token(running: RunningInspector):
    token = running.access.token
    for query in (
        f"token={token}&token={token}",
        f"token={token}x",
        f"token={token[:-1]}",
        f"Token={token}",
        f"x={token}",
    ):
        assert (await raw(running, f"/?{query}"))[0] == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost.evil.example:{port}",
        "0.0.0.0:{port}",
        "[::]:{port}",
        "127.0.0.2:{port}",
        "",
    ],
)
async def test_another_host_name_is_refused_even_with_the_token(running: RunningInspector, host: str):
    named = host.format(port=running.access.port)
    assert (await raw(running, f"/?token={running.access.token}", Host=named))[0] in (400, 421)
    assert await socket(running, Host=named, Origin=f"http://{named}") in (400, 403)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST"])
async def test_loopback_names_are_ours(running: RunningInspector, name: str):
    host = f"{name}:{running.access.port}"
    assert (await raw(running, f"/?token={running.access.token}", Host=host))[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_elsewhere_cannot_load_ours(running: RunningInspector, site: str):
    """Another port of this machine is the same site, and gets the cookie too."""
    assert (await raw(running, f"/?token={running.access.token}", Sec_Fetch_Site=site))[0] == 403


async def test_every_answer_has_a_strict_policy(running: RunningInspector):
    for path in (f"/?token={running.access.token}", "/"):
        _, text = await raw(running, path)
        policy = next(line for line in text.splitlines() if line.startswith("content-security-policy:"))
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert "no-store" in text and "nosniff" in text and "no-referrer" in text


async def test_only_files_are_read(running: RunningInspector):
    query = f"?token={running.access.token}"
    assert (await raw(running, f"/nothing.js{query}"))[0] == 404
    assert (await raw(running, f"/vendor/../../access.py{query}"))[0] == 404
    assert (await raw(running, f"/vendor/LICENSE.htm.txt{query}"))[0] == 404
    assert (await raw(running, f"/{query}", "POST", Content_Length="0"))[0] == 405
    status, text = await raw(running, f"/{query}", "HEAD")
    assert status == 200 and text.endswith("\r\n\r\n")


async def test_a_file_comes_compressed_to_those_who_take_it(running: RunningInspector):
    _, text = await raw(running, f"/app.js?token={running.access.token}", Accept_Encoding="gzip, br")
    assert "content-encoding: gzip" in text and "import" not in text.partition("\r\n\r\n")[2]


# ---------------------------------------------------------------------------------------------------------- the socket


async def test_our_page_may_open_the_socket(running: RunningInspector):
    assert await socket(running) == 101


@pytest.mark.parametrize(
    "protocols",
    [
        None,
        "defserve-inspector",
        "token.{token}",
        "defserve-inspector, token.",
        "defserve-inspector, token.x",
        "defserve-inspector, token.{token}, token.{token}",
        "defserve-inspector, {token}",
    ],
)
async def test_a_socket_without_the_token_is_refused(running: RunningInspector, protocols: str | None):
    given = protocols and protocols.format(token=running.access.token)
    assert await socket(running, Sec_WebSocket_Protocol=given) == 403
    assert await socket(running, f"/socket?token={running.access.token}", Sec_WebSocket_Protocol=given) == 403


async def test_the_cookie_opens_no_socket(running: RunningInspector):
    cookie = running.access.cookie.partition(";")[0]
    assert await socket(running, Sec_WebSocket_Protocol="defserve-inspector", Cookie=cookie) == 403


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "http://evil.example",
        "http://127.0.0.1:1",
        "https://127.0.0.1:{port}",
        "http://localhost:{port}",
        "http://127.0.0.1:{port}.evil.example",
        "http://127.0.0.1:{port}, http://evil.example",
    ],
)
async def test_a_page_of_another_origin_is_refused_even_with_the_token(running: RunningInspector, origin: str | None):
    given = origin and origin.format(port=running.access.port)
    assert await socket(running, Origin=given) == 403


async def test_a_rebound_name_is_refused(running: RunningInspector):
    host = f"evil.example:{running.access.port}"
    assert await socket(running, Host=host, Origin=f"http://{host}") == 403


async def test_there_is_one_socket(running: RunningInspector):
    assert await socket(running, "/") == 403
    assert await socket(running, "/socket/") == 403


async def test_each_inspector_has_a_token_of_its_own():
    assert len({Access().token for _ in range(100)}) == 100 and len(Access().token) >= 43


@pytest.mark.slow
@given(st.text(), st.text(), st.lists(st.text(max_size=60), max_size=4))
def test_no_header_breaks_the_rules(query: str, cookie: str, protocols: list[str]):
    access = Access("the-token")
    access.port = 8000
    headers = {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000", "cookie": cookie}
    if "the-token" not in query:
        assert access.find_page_refusal(headers, query) is not None
    if "token.the-token" not in protocols:
        assert access.find_socket_refusal(headers, protocols) is not None
