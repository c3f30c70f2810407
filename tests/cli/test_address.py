"""Commands that are pointed at a server which only code can be served."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from websockets.asyncio.server import ServerConnection, serve

from defserve.cli.target_connection import explain_http_errors
from defserve.errors import PeerGone
from defserve.serve.address import AddressUnreachable
from tests.cli.running import Run
from tests.client.pretend import STATELESS
from tests.client.web import Exchange, Web, web
from tests.rows import for_each_row

RESULTS = {
    "server/discover": STATELESS["server/discover"],
    "tools/list": {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [], "structuredContent": {"sum": 3}},
}


@pytest.fixture
def elsewhere() -> Iterator[Web]:
    """A server at an HTTP address, on a loop of its own."""

    async def handle(exchange: Exchange) -> None:
        await exchange.answer(RESULTS[exchange.method])

    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(web(handle)) as server:
        yield server


def test_a_server_at_an_http_address_is_listed(defserve: Run, elsewhere: Web):
    code, out, err = defserve("list", elsewhere.url, "--token", "t0ken", "-H", "X-Team: blue")
    assert (code, err) == (0, "")
    assert out.startswith("pretend 2 (protocol 2026-07-28)\n\nTools\n  add()\n")
    assert {exchange.headers["authorization"] for exchange in elsewhere.seen} == {"Bearer t0ken"}
    assert {exchange.headers["x-team"] for exchange in elsewhere.seen} == {"blue"}


def test_a_list_with_nothing_in_it_says_that_the_token_may_be_why(
    defserve: Run, elsewhere: Web, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(RESULTS, "tools/list", {"tools": []})
    code, out, err = defserve("list", elsewhere.url, "--token", "t0ken")
    assert (code, out.splitlines()[-1]) == (0, "It shows you no tools, resources or prompts.")
    assert "a server shows only what your token may use" in err
    assert defserve("list", elsewhere.url).err == ""


def test_a_token_may_be_in_a_file(defserve: Run, elsewhere: Web, folder: Path):
    (folder / "ann.key").write_text("t0ken\n")
    for spelling in ("@ann.key", "ann.key"):
        assert defserve("list", elsewhere.url, "--token", spelling).code == 0
    assert {exchange.headers["authorization"] for exchange in elsewhere.seen} == {"Bearer t0ken"}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (None, "cannot read ann.key: No such file"),
        (b"", "ann.key must contain exactly one token"),
        (b"two words", "ann.key must contain exactly one token"),
        (b"\xff\xfe", "ann.key must contain exactly one token"),
        (b"x" * 100_000, "ann.key must contain exactly one token"),
    ],
)
def test_a_file_without_a_token_is_an_error_that_does_not_show_it(
    defserve: Run, elsewhere: Web, folder: Path, held: bytes | None, said: str
):
    if held is not None:
        (folder / "ann.key").write_bytes(held)
    code, out, err = defserve("list", elsewhere.url, "--token", "@ann.key")
    assert (code, out) == (1, "") and said in err and "two words" not in err
    assert elsewhere.seen == []


def test_a_tool_at_an_http_address_is_called(defserve: Run, elsewhere: Web):
    code, out, err = defserve("call", elsewhere.url, "add", "a:=1", "b:=2")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"sum": 3}


def test_a_server_at_a_websocket_address_is_listed(defserve: Run):
    async def handle(socket: ServerConnection) -> None:
        async for frame in socket:
            message = json.loads(frame)
            result = RESULTS[message["method"]]
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(lambda: _serve(handle))) as server,
    ):
        port = next(iter(server.sockets)).getsockname()[1]
        code, out, err = defserve("list", f"ws://127.0.0.1:{port}/mcp")
    assert (code, err) == (0, "")
    assert "  add()\n" in out


@for_each_row(
    ("address", "message", "fix"),
    [
        ("https://localhost:80/mcp", "[SSL: WRONG_VERSION_NUMBER]", "not speak TLS: write http://localhost:80/mcp"),
        ("wss://127.0.0.1/mcp", "[SSL] record layer failure", "not speak TLS: write ws://127.0.0.1/mcp"),
        # Nobody is told to send secrets over a network in the open.
        ("https://h.example/mcp", "[SSL: WRONG_VERSION_NUMBER]", "may not speak TLS; check the address and its port"),
        ("https://127.0.0.1/mcp", "[SSL: CERTIFICATE_VERIFY_FAILED]", "SSL_CERT_FILE=FILE"),
    ],
)
def test_a_server_that_fails_at_tls_is_told_apart_from_nobody(address: str, message: str, fix: str):
    with pytest.raises(PeerGone, match=f"fix: .*{fix}"), explain_http_errors(address):
        raise AddressUnreachable(f"{address} cannot be reached: {message}")


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_nobody_at_an_address_is_unreachable(defserve: Run, scheme: str):
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(web(_never)) as gone:
        url = gone.url.replace("http", scheme)
    code, out, err = defserve("list", url)
    assert (code, out) == (4, "")
    assert f"{url} cannot be reached" in err
    assert f"fix: nothing listens there; start the server with defserve run FILE --on {url}\n" in err


@pytest.mark.parametrize(
    ("status", "challenge", "said"),
    [
        (
            401,
            "Bearer",
            "wants a token (HTTP 401)\n  fix: add --token TOKEN, or --token @FILE. Whoever runs the server gives out"
            " its tokens, such as API keys\n",
        ),
        (401, 'Bearer error="invalid_token"', "does not take this token (HTTP 401)\n  fix: use another --token"),
        (403, 'Bearer error="insufficient_scope"', "wants a token with more scopes (HTTP 403)\n  fix: use a --token"),
        (
            403,
            'Bearer error="insufficient_scope", scope="a $(reboot)", resource_metadata="http://x/"',
            "wants a token with more scopes (HTTP 403): scope a $(reboot)\n  fix: sign in: defserve login http",
        ),
        (
            401,
            'Bearer resource_metadata="http://x/"',
            "wants a token (HTTP 401)\n  fix: sign in: defserve login http",
        ),
        (401, "", "answered HTTP 401 Whatever\n  fix: sign in: defserve login http"),
        (401, 'Basic realm="x"', 'refuses these credentials (HTTP 401): Basic realm="x"\n  fix: add -H '),
        (404, "", "answered HTTP 404 Whatever\n  fix: check the address"),
        (500, "", "answered HTTP 500 Whatever\n"),
    ],
)
def test_what_http_refuses_is_told_with_what_helps(defserve: Run, status: int, challenge: str, said: str):
    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(status, **({"www_authenticate": challenge} if challenge else {}))

    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(web(refuse)) as server:
        code, out, err = defserve("list", server.url)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {server.url} {said}")
    assert "$(" not in err.partition("fix:")[2], "people copy what helps into a shell"


async def _never(exchange: Exchange) -> None:
    raise AssertionError("nobody is here")


async def _serve(handle: Callable[[ServerConnection], object]) -> serve:
    return serve(handle, "127.0.0.1", 0, subprotocols=["mcp"])  # pyright: ignore


@pytest.mark.parametrize(("argv", "name"), [([], "pretend"), (["--name", "mine"], "mine")])
def test_a_server_at_an_address_is_installed_under_its_own_name(
    defserve: Run, elsewhere: Web, folder: Path, argv: list[str], name: str
):
    assert defserve("install", elsewhere.url, "--token", "t0ken", *argv).code == 0
    entry = {"type": "http", "url": elsewhere.url, "headers": {"Authorization": "Bearer t0ken"}}
    assert json.loads((folder / ".mcp.json").read_text())["mcpServers"] == {name: entry}


def test_a_server_that_is_not_there_yet_is_installed_under_its_port_or_host(defserve: Run, folder: Path):
    code, _, err = defserve("install", "http://127.0.0.1:9/mcp")
    assert code == 0 and "did not say its name, so the client calls it server-9; --name NAME" in err
    assert list(json.loads((folder / ".mcp.json").read_text())["mcpServers"]) == ["server-9"]


def test_a_tool_that_keeps_state_says_how_its_server_is_started(
    defserve: Run, elsewhere: Web, monkeypatch: pytest.MonkeyPatch
):
    refused = {
        "content": [{"type": "text", "text": "This tool keeps state"}],
        "isError": True,
        "_meta": {"dev.defserve/error": {"error_type": "state_unowned"}},
    }
    monkeypatch.setitem(RESULTS, "tools/call", refused)
    code, _, err = defserve("call", elsewhere.url, "add")
    assert code == 5
    assert err.startswith("error: This tool keeps state\n  fix: --era handshake opens a session")
