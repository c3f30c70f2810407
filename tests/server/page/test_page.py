"""A browser that opens the address of a server gets a page; everybody else gets what they got before."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from defserve import Context, Refused, Server
from defserve.auth import Auth, StaticTokens
from defserve.auth.local_token import add_local_token_auth
from defserve.client.known_clients import KNOWN_CLIENTS
from defserve.serve.http import other_endpoints as page_module
from defserve.serve.http.other_endpoints import NO_PAGE
from defserve.server import AccessPolicy, page
from tests.asgi import BOTH, Peer, Web, living, request
from tests.certificate import self_signed
from tests.listening import listening
from tests.raw import STATELESS
from tests.rows import for_each_row

from .reading import ABOUT, BROWSER, Page, greenhouse, parted

pytestmark = pytest.mark.anyio

ACCEPT = {"accept": BROWSER}


async def opened(app: Any, path: str = "/mcp", verb: str = "GET", root_path: str = "", **headers: str | None) -> Any:
    """The response to a browser."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    more = {"scheme": given.pop("scheme")} if "scheme" in given else {}
    return await Web(app, path, root_path).begin(verb, b"", {**ACCEPT, **given}, **more).ended()


async def shown(app: Any, path: str = "/", **headers: Any) -> Page:
    response = await opened(app, path, **headers)
    assert (response.status, response.headers["content-type"]) == (200, "text/html; charset=utf-8"), response.body
    return Page(response.body.decode())


# On a socket.


async def test_a_browser_gets_the_same_page_at_the_address_at_the_root_and_at_docs():
    async with listening(greenhouse()) as where:
        host = f"host: {where.authority}"
        answers = [await where.ask(f"accept: {BROWSER}", host, verb="GET", path=p) for p in ("/mcp", "/", "/docs")]
        heads = [await where.ask(f"accept: {BROWSER}", host, verb="HEAD", path=p) for p in ("/mcp", "/", "/docs")]
    assert len(set(answers)) == 1
    status, headers, body = parted(answers[0])
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert int(headers["content-length"]) == len(body.encode()) <= page.MAX_PAGE_BYTES
    found = Page(body)
    assert found.address == f"http://{where.authority}/mcp"
    assert found.texts["h1"] == ["greenhouse "]
    assert found.texts["small"] == ["0.4.2"]
    assert ABOUT in found.notes
    assert found.tools == [
        ("safe", "list_sensors", "All sensors and when each last reported."),
        ("moderate", "set_target", "Set the wanted range of a bed."),
        ("dangerous", "clear_bed", "Take every plant out of a bed."),
        ("unmarked", "water", "Water a bed for some seconds."),
    ]
    for head in heads:
        assert parted(head) == (200, headers, "")


@for_each_row(
    ("accept", "status"),
    [
        ("*/*", 400),
        ("text/event-stream", 400),
        (f"{BROWSER},text/event-stream", 400),
        ("application/json, text/event-stream", 400),
        ("text/html;q=0, */*", 400),
        ("text/*", 400),
        ("application/json", 406),
        ("application/json, text/html;q=0.9", 406),
    ],
)
async def test_who_is_no_browser_gets_what_it_got_before(accept: str, status: int):
    async with listening(greenhouse()) as where:
        at_endpoint = parted(await where.ask(f"accept: {accept}", verb="GET"))
        at_root = parted(await where.ask(f"accept: {accept}", verb="GET", path="/"))
        head = parted(await where.ask(f"accept: {accept}", verb="HEAD"))
    assert at_endpoint[0] == status
    assert "<html" not in at_endpoint[2]
    assert at_root[0] == 404
    assert (head[0], head[1]["allow"]) == (405, "post, get, delete")


async def test_a_post_of_a_browser_is_a_message_and_never_looks_at_the_page(monkeypatch: pytest.MonkeyPatch):
    def forbidden(*_: object) -> Any:
        raise AssertionError("a POST looked at the page")

    monkeypatch.setattr(page_module.PageMount, "is_page_request", forbidden)
    monkeypatch.setattr(page_module.PageMount, "is_page_allowed", forbidden)
    body = json.dumps(request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}))
    async with listening(greenhouse()) as where:
        assert parted(await where.ask(f"accept: {BOTH}", body=body.encode()))[0] == 200
        assert parted(await where.ask(f"accept: {BROWSER}", body=body.encode()))[0] == 200


async def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else():
    async with listening(greenhouse()) as where:
        _, headers, body = parted(await where.ask(f"accept: {BROWSER}", verb="GET"))
    raw = body.encode()
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), raw, re.DOTALL)
        digest = b64encode(sha256(text).digest()).decode()
        assert f"{tag}-src 'sha256-{digest.lower()}'" in headers["content-security-policy"]
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    for directive in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert directive in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["vary"] == "accept"
    page = Page(body)
    assert not {name for _, name, _ in page.attributes if name.startswith("on") or name == "style"}
    loads = {value for _, name, value in page.attributes if name in ("src", "href")}
    # Links that open an editor load nothing.
    assert {value for value in loads if value and not value.startswith(("#", "data:,", "cursor:", "vscode:"))} == set()


async def test_a_page_over_tls_shows_an_address_with_https(tmp_path: Path):
    path = str(self_signed(tmp_path, "127.0.0.1"))
    async with listening(greenhouse(), "https://127.0.0.1:0/mcp", certfile=path, keyfile=path) as where:
        trusting = ssl.create_default_context(cafile=path)
        reader, writer = await asyncio.open_connection(where.address.host, where.address.port, ssl=trusting)
        writer.write(
            f"GET / HTTP/1.1\r\nhost: {where.authority}\r\naccept: text/html\r\nconnection: close\r\n\r\n".encode()
        )
        _, _, body = parted(await reader.read())
        writer.close()
    assert Page(body).address == f"https://{where.authority}/mcp"


# Who gets it.


@pytest.mark.parametrize("path", ["/mcp", "/", "/docs"])
@for_each_row(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "localhost.evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8000"}, 421),
        ({"host": "localhost", "origin": "http://evil.example"}, 403),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "local host"}, 400),
        ({"host": "127.0.0.1:1<script>"}, 400),
    ],
)
async def test_a_rebound_name_is_refused_as_elsewhere(path: str, headers: dict[str, str], status: int):
    async with listening(greenhouse(), page=True) as where:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        found = parted(await where.ask(f"accept: {BROWSER}", *lines, verb="GET", path=path))
    assert found[0] == status
    assert "greenhouse" not in found[2]


def no_facts(response: Any, status: int) -> None:
    assert response.status == status and NO_PAGE in response.body.decode()
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["cache-control"] == "no-store"
    assert not re.search("greenhouse|clear_bed|0.4.2", str(response.headers) + response.body.decode())


PROXIED = [
    {"x_forwarded_for": "203.0.113.9"},
    {"x_forwarded_host": "tools.example.com"},
    {"x_forwarded_proto": "https"},
    {"x_real_ip": "203.0.113.9"},
    {"forwarded": "for=203.0.113.9"},
    {"via": "1.1 proxy"},
]


@for_each_row("headers", [{"host": "tools.example.com"}, *PROXIED])
async def test_by_another_name_or_through_a_proxy_there_is_no_page_unless_the_operator_says_so(
    headers: dict[str, str],
):
    async with living(greenhouse().asgi(allowed_hosts=["tools.example.com"])) as app:
        no_facts(await opened(app, "/", **headers), 406)
        no_facts(await opened(app, "/docs", **headers), 404)
    async with living(greenhouse().asgi(allowed_hosts=["tools.example.com"], page=True)) as app:
        assert (await shown(app, **headers)).names
        assert "on this machine" not in (await shown(app, **headers)).notes


@for_each_row("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000"])
async def test_every_loopback_name_gets_it_and_is_shown_as_it_was_asked_for(host: str):
    async with living(greenhouse().asgi()) as app:
        page = await shown(app, host=host)
    assert page.address == f"http://{host}/"
    assert "Only browsers on this machine see this page." in page.notes


@for_each_row("options", [{"page": False}, {"trusted_proxy": True}])
async def test_a_page_that_is_off_is_off_everywhere(options: dict[str, Any]):
    async with living(greenhouse().asgi(**options)) as app:
        no_facts(await opened(app, "/"), 406)
        no_facts(await opened(app, "/", "HEAD"), 406)
        no_facts(await opened(app, "/docs"), 404)


async def test_on_a_unix_socket_browsers_come_through_a_proxy_so_there_is_no_page(tmp_path: Path):
    async with listening(greenhouse(), f"unix:{tmp_path}/s") as where:
        status, _, body = parted(await where.ask(f"accept: {BROWSER}", verb="GET"))
    assert status == 406 and NO_PAGE in body


async def test_a_server_with_auth_has_no_page():
    async with living(greenhouse(auth=StaticTokens({"good": "ada"})).asgi()) as app:
        challenged = await opened(app, "/")
        assert challenged.status == 401
        assert b"greenhouse" not in challenged.body
        no_facts(await opened(app, "/docs"), 404)
        no_facts(await opened(app, "/", authorization="Bearer good"), 406)


async def test_a_server_with_auth_whose_operator_wants_a_page_says_where_it_is_and_nothing_more():
    ran: list[str] = []
    server = greenhouse(auth=Auth(StaticTokens({"good": "ada"})))

    @server.around("tools/list")
    async def listing(call: Any, params: Any, next: Any) -> Any:
        ran.append("listed")
        return await next(call, params)

    async with living(server.asgi(page=True, metrics=True, rest=True)) as app:
        pages = [
            await shown(app),
            await shown(app, "/docs"),
            # A token that a browser shows changes nothing.
            await shown(app, authorization="Bearer good"),
        ]
        assert (await opened(app, "/", authorization="Bearer bad")).status == 401
        # Other paths stay as they are.
        assert [(await opened(app, path)).status for path in ("/metrics", "/openapi.json", "/x")] == [401, 401, 404]
    for shown_page in pages:
        assert shown_page.texts["h1"] == ["greenhouse"]
        assert shown_page.tools == []
        assert "Clients need a token to see them." in shown_page.notes
        assert ABOUT not in shown_page.html
        assert "0.4.2" not in shown_page.html
    assert ran == []


def kinds_of_callers(server: Server) -> list[str]:
    """What kinds of callers ask for the list of tools."""
    seen: list[str] = []

    @server.around("tools/list")
    async def listing(call: Any, params: Any, next: Any) -> Any:
        seen.append(call.identity.kind)
        return await next(call, params)

    return seen


async def test_who_shows_the_local_token_sees_what_a_stranger_sees():
    seen = kinds_of_callers(server := greenhouse())
    app = server.asgi()
    app.auth = add_local_token_auth("the-local-key", app.auth)
    async with living(app):
        assert (await shown(app, authorization="Bearer the-local-key")).names
        assert (await shown(app)).names
    assert seen == ["anonymous", "anonymous"]


async def test_the_local_user_of_a_unix_socket_sees_what_a_stranger_sees(tmp_path: Path):
    seen = kinds_of_callers(server := greenhouse())
    async with listening(server, f"unix:{tmp_path}/s", trust_same_user=True, page=True) as where:
        assert Page(parted(await where.ask(f"accept: {BROWSER}", verb="GET"))[2]).names
    assert seen == ["anonymous"]


# What it says.


def unchanged(server: Server) -> None:
    pass


def for_views_only(server: Server) -> None:
    @server.tool(name="for_views", visible_to="app")
    def for_views() -> str:
        """Only views call this."""
        return ""


def filtered_by_author(server: Server) -> None:
    @server.around("tools/list")
    async def without_water(call: Any, params: Any, next: Any) -> Any:
        found = await next(call, params)
        return {**found, "tools": [tool for tool in found["tools"] if tool["name"] != "water"]}


def changed_while_serving(server: Server) -> None:
    server.remove_tool("water")


@for_each_row(
    ("options", "change"),
    [
        ({}, unchanged),
        ({}, for_views_only),
        ({}, filtered_by_author),
        ({}, changed_while_serving),
        ({"search": "always"}, unchanged),
        ({"code_mode": True}, unchanged),
        ({"permissions": "deny_all"}, unchanged),
    ],
)
async def test_it_lists_what_a_client_without_a_token_is_told(
    options: dict[str, Any], change: Callable[[Server], None]
):
    server = greenhouse(**options)
    change(server)
    async with living(server.asgi()) as app:
        page = await shown(app)
        told = (await Peer(app, STATELESS).ask("tools/list"))["result"]["tools"]
    assert page.names == [tool["name"] for tool in told]
    assert page.names


async def test_tools_that_an_access_policy_hides_from_strangers_are_not_on_it():
    server = greenhouse(access=AccessPolicy())
    async with living(server.asgi()) as app:
        told = (await Peer(app, STATELESS).ask("tools/list"))["result"]["tools"]
        page = await shown(app)
    assert page.names == [tool["name"] for tool in told] == []
    assert "clear_bed" not in page.html


async def test_a_list_that_is_refused_leaves_a_page_without_tools():
    server = greenhouse()

    @server.around("tools/list")
    async def refusing(call: Any, params: Any, next: Any) -> Any:
        raise Refused("not for you: secret")

    async with living(server.asgi()) as app:
        page = await shown(app)
    assert page.tools == []
    assert "They are not listed here." in page.notes
    assert "secret" not in page.html


async def test_every_client_of_the_install_table_is_on_it():
    async with living(greenhouse().asgi()) as app:
        page = await shown(app, host="localhost:8000")
    assert sorted(page.texts["b"]) == sorted([*(client.title for client in KNOWN_CLIENTS.values()), "Command line"])
    blocks = page.texts["pre"]
    assert "claude mcp add --transport http greenhouse http://localhost:8000/" in blocks
    assert "defserve list http://localhost:8000/" in blocks
    entries = [json.loads(block) for block in blocks if block.startswith("{")]
    assert {"mcpServers": {"greenhouse": {"url": "http://localhost:8000/"}}} in entries
    assert {"servers": {"greenhouse": {"type": "http", "url": "http://localhost:8000/"}}} in entries
    assert '[mcp_servers.greenhouse]\nurl = "http://localhost:8000/"' in blocks


# Where it is.


def mounted(app: Any) -> dict[str, tuple[Any, str, str]]:
    """Ways to serve an app below another: the whole, the path of a browser, the path that clients need."""
    fast = FastAPI(docs_url=None)
    fast.mount("/tools", app)
    within = Starlette(routes=[Mount("/api", Starlette(routes=[Mount("/mcp", app)]))])
    return {
        "a mount": (Starlette(routes=[Mount("/tools", app)]), "/tools/", "/tools/"),
        "docs of a mount": (Starlette(routes=[Mount("/tools", app)]), "/tools/docs", "/tools/"),
        "a route": (Starlette(routes=[Route("/mcp", app)]), "/mcp", "/mcp"),
        "FastAPI": (fast, "/tools/", "/tools/"),
        "a mount in a mount": (within, "/api/mcp/", "/api/mcp/"),
        "a path with a blank": (Starlette(routes=[Mount("/my tools", app)]), "/my tools/", "/my%20tools/"),
    }


@for_each_row("way", mounted(PlainTextResponse()))
async def test_below_another_app_the_address_is_where_clients_reach_it(way: str):
    whole, path, address = mounted(greenhouse().asgi())[way]
    page = await shown(whole, path)
    assert page.address == f"http://localhost{address}"
    assert page.names


async def test_a_root_path_belongs_to_the_address():
    async with living(greenhouse().asgi()) as app:
        assert (await shown(app, "/below/", root_path="/below")).address == "http://localhost/below/"
        assert (await shown(app, "/", root_path="/below")).address == "http://localhost/below/"
        assert (await shown(app, "/below/docs", root_path="/below")).address == "http://localhost/below/"
        assert (await shown(app, scheme="https")).address == "https://localhost/"


@for_each_row(
    ("prefix", "address"),
    [
        ("/tools", "https://tools.example.com/tools/mcp"),
        ("/a/b/", "https://tools.example.com/a/b/mcp"),
        ("//evil.example", "https://tools.example.com/mcp"),
        ("/<script>", "https://tools.example.com/mcp"),
        ("/x" * 200, "https://tools.example.com/mcp"),
        ("", "https://tools.example.com/mcp"),
    ],
)
async def test_behind_a_trusted_proxy_scheme_and_prefix_are_what_the_proxy_says(prefix: str, address: str):
    lines = (
        f"accept: {BROWSER}",
        "host: tools.example.com",
        "x-forwarded-proto: https",
        f"x-forwarded-prefix: {prefix}",
    )
    async with listening(greenhouse(), trusted_proxy=True, page=True) as where:
        assert Page(parted(await where.ask(*lines, verb="GET"))[2]).address == address


async def test_a_prefix_that_no_trusted_proxy_gave_is_ignored():
    async with living(greenhouse().asgi(page=True)) as app:
        assert (await shown(app, x_forwarded_prefix="/evil")).address == "http://localhost/"


async def test_an_endpoint_further_down_has_its_page_beside_it_and_at_the_root():
    async with listening(greenhouse(), "http://127.0.0.1:0/a/b/mcp") as where:
        found = {
            path: parted(await where.ask(f"accept: {BROWSER}", verb="GET", path=path))
            for path in ("/", "/a/b", "/a/b/", "/a/b/docs", "/a/b/mcp", "/a", "/docs", "/a/b/mcp/docs")
        }
    assert {path for path, (status, _, _) in found.items() if status == 200} == {
        "/", "/a/b", "/a/b/", "/a/b/docs", "/a/b/mcp",
    }  # fmt: skip
    assert {Page(body).address for status, _, body in found.values() if status == 200} == {"http://localhost/a/b/mcp"}


async def test_a_server_that_is_mounted_without_a_lifespan_starts_with_the_first_browser():
    server = greenhouse()

    @server.tool
    async def late(ctx: Context) -> str:
        """Declared late."""
        return ""

    page = await shown(Starlette(routes=[Mount("/tools", server.asgi())]), "/tools/docs")
    assert "late" in page.names


async def test_a_page_that_is_asked_for_again_is_not_made_again_until_the_tools_change(
    monkeypatch: pytest.MonkeyPatch,
):
    made: list[int] = []
    make_page = page.render_page

    def counted(about: Any, address: str, **more: Any) -> bytes:
        made.append(len(about.tools))
        return make_page(about, address, **more)

    monkeypatch.setattr(page, "render_page", counted)
    server = greenhouse()
    async with living(server.asgi()) as app:
        pages = [(await shown(app)).html for _ in range(3)]
        server.remove_tool("water")
        changed = await shown(app)
    assert len(set(pages)) == 1
    assert "water" not in changed.names
    assert made == [4, 3]
