"""The server card, the AI catalog and the domain challenge over HTTP: for everybody, cacheable, and without secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from defserve import Server, UsageError
from defserve.auth import Auth, StaticTokens
from defserve.serve.address import Address
from defserve.server.web import make_asgi_app
from tests.asgi import Peer, Web
from tests.listening import listening
from tests.raw import STATELESS
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

CARD, CATALOG, CHALLENGE = "/mcp/server-card", "/.well-known/ai-catalog.json", "/.well-known/openai-apps-challenge"
MEDIA_TYPES = {CARD: "application/mcp-server-card+json", CATALOG: "application/ai-catalog+json"}
HOST = "tools.example.com"
CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET",
    "access-control-allow-headers": "Content-Type, If-None-Match",
    "access-control-expose-headers": "ETag",
}
WRONG = ("tools", "capabilities", "extensions", "packages", "instructions", "resources", "prompts")


def weather(**options: Any) -> Server:
    server = Server("weather", "1.2.0", instructions="Be kind to clouds.", **options)

    @server.tool
    def forecast(city: str) -> str:
        """The weather in a city."""
        return city

    return server


def served(server: Server | None = None, **options: Any) -> Any:
    server = server or weather()
    fields: Any = {"allowed_hosts": [HOST], **options}
    address = Address.parse("http://127.0.0.1:8000/mcp", "/mcp")
    return make_asgi_app(server.composition, server.mcp, getattr(server, "auth", None), fields, address)


async def ask(app: Any, path: str, verb: str = "GET", /, **headers: str) -> Any:
    given = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await Web(app, path).begin(verb, b"", given).ended()


@pytest.mark.req("MCP-CARD-4")
@for_each_row("path", MEDIA_TYPES)
async def test_a_document_has_its_media_type_and_says_how_long_it_holds(path: str) -> None:
    response = await ask(served(), path, accept=MEDIA_TYPES[path])
    assert (response.status, response.headers["content-type"]) == (200, MEDIA_TYPES[path])
    assert response.headers["cache-control"] == "public, max-age=3600"
    assert CORS.items() <= response.headers.items()


@pytest.mark.req("MCP-CARD-4")
@for_each_row("path", MEDIA_TYPES)
async def test_who_has_the_document_gets_no_second_copy(path: str) -> None:
    app = served()
    tag = (await ask(app, path)).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await ask(app, path, if_none_match=known)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        assert CORS.items() <= again.headers.items() and "content-length" not in again.headers
    assert (await ask(app, path, if_none_match='"other"')).status == 200


async def test_another_version_is_another_tag() -> None:
    tags = {(await ask(served(Server("weather", version)), CARD)).headers["etag"] for version in ("1.0", "1.1")}
    assert len(tags) == 2


@for_each_row("path", MEDIA_TYPES)
async def test_web_pages_of_any_site_may_read_it(path: str) -> None:
    app, origin = served(), "https://chat.example.org"
    assert (await ask(app, path, origin=origin, sec_fetch_site="cross-site")).status == 200
    asked = {"origin": origin, "access_control_request_method": "GET"}
    preflight = await ask(app, path, "OPTIONS", **asked)
    assert (preflight.status, preflight.body) == (200, b"") and CORS.items() <= preflight.headers.items()


@for_each_row("path", MEDIA_TYPES)
async def test_a_web_page_does_not_find_out_what_runs_on_your_machine(path: str) -> None:
    app = served()
    assert (await ask(app, path, host="127.0.0.1:8000", origin="https://evil.example.org")).status == 403
    assert (await ask(app, path, host="127.0.0.1:8000")).status == 200


async def test_the_host_is_checked_and_the_endpoint_keeps_its_rule_for_origins() -> None:
    app = served()
    assert (await ask(app, CARD, host="evil.example.org", origin="https://evil.example.org")).status == 421
    assert (await ask(app, "/mcp", origin="https://evil.example.org")).status == 403


@for_each_row("path", MEDIA_TYPES)
async def test_head_has_the_headers_of_get_and_other_methods_are_refused(path: str) -> None:
    async with listening(weather()) as where:
        host = f"host: {where.authority}"
        answers = [await where.ask(host, verb=verb, path=path) for verb in ("GET", "HEAD")]
        tag = next(line for line in answers[0].split(b"\r\n") if line.startswith(b"etag: ")).decode()
        known = await where.ask(host, f"if-none-match: {tag.removeprefix('etag: ')}", verb="GET", path=path)
    (head, body), (same, nothing) = (answer.split(b"\r\n\r\n", 1) for answer in answers)
    assert same == head and body and nothing == b""
    assert known.startswith(b"HTTP/1.1 304 ") and known.endswith(b"\r\n\r\n")
    refused = await ask(served(), path, "POST")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.req("MCP-CARD-3")
async def test_behind_sign_in_the_card_is_public_and_tells_only_who_the_server_is() -> None:
    tokens = Auth(StaticTokens({"secret-token": "ann"}), resource="https://weather.example.com/mcp")
    app = served(weather(auth=tokens, description="Tells the weather."), allowed_hosts=[HOST])
    assert (await ask(app, "/mcp", accept="text/event-stream")).status == 401
    card = (await ask(app, CARD)).json
    assert card.keys() == {"$schema", "name", "version", "description", "remotes"}
    # The address is the author's, not what a header says.
    assert card["remotes"] == [{"type": "streamable-http", "url": "https://weather.example.com/mcp"}]
    for path in MEDIA_TYPES:
        text = (await ask(app, path)).body.decode()
        assert not any(word in text for word in ("forecast", "clouds", "secret-token", "ann"))


@pytest.mark.req("MCP-CARD-2")
async def test_the_card_does_not_contradict_server_discover() -> None:
    icon = {"src": "https://example.com/i.png", "mimeType": "image/png", "sizes": ["48x48"]}
    about: Any = {"title": "Weather", "description": "Tells the weather.", "icons": [icon]}
    server = weather(website_url="https://example.com", **about)
    card = (await ask(served(server), CARD)).json
    live = (await Peer(server.asgi(), STATELESS).begin_request("server/discover").ended()).json["result"]
    info = live["_meta"]["io.modelcontextprotocol/serverInfo"]
    assert card["name"].partition("/")[2] == info["name"]
    for member in ("version", "title", "description", "websiteUrl", "icons"):
        assert card[member] == info[member], member
    assert card.keys().isdisjoint(WRONG)


async def test_the_catalog_leads_to_the_card() -> None:
    app = served()
    (entry,) = (await ask(app, CATALOG)).json["entries"]
    assert entry == {
        "identifier": "urn:air:tools.example.com:mcp:weather",
        "type": MEDIA_TYPES[CARD],
        "url": f"http://{HOST}{CARD}",
    }


async def test_a_mounted_server_has_both_below_its_path() -> None:
    app = Starlette(routes=[Mount("/api", weather().asgi(allowed_hosts=[HOST]))])
    (entry,) = (await ask(app, f"/api{CATALOG}")).json["entries"]
    assert entry["url"] == f"http://{HOST}/api/server-card"
    card = (await ask(app, "/api/server-card")).json
    assert card["remotes"] == [{"type": "streamable-http", "url": f"http://{HOST}/api/"}]


async def test_a_server_without_a_card_has_no_catalog_either() -> None:
    app = served(card=False)
    assert [(await ask(app, path)).status for path in MEDIA_TYPES] == [404, 404]


async def test_a_version_that_is_no_release_has_no_card() -> None:
    app = served(Server("weather", "latest"))
    assert [(await ask(app, path)).status for path in MEDIA_TYPES] == [404, 404]


async def test_the_challenge_is_the_exact_token_and_nothing_until_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await ask(served(), CHALLENGE)).status == 404
    response = await ask(served(openai_challenge="tok-123"), CHALLENGE)
    assert (response.status, response.body, response.headers["content-type"]) == (200, b"tok-123", "text/plain")
    assert response.headers["cache-control"] == "no-store"
    monkeypatch.setenv("DEFSERVE_OPENAI_CHALLENGE", "tok-env")
    assert (await ask(served(), CHALLENGE)).body == b"tok-env"
    assert (await ask(served(openai_challenge="tok-123"), CHALLENGE)).body == b"tok-123"


@for_each_row("token", ["two words", "line\nbreak", "x" * 1025, "ünicode"])
def test_a_challenge_that_is_no_token_is_refused_at_the_start(token: str) -> None:
    with pytest.raises(UsageError, match="--openai-challenge TOKEN"):
        served(openai_challenge=token)


def test_json_of_a_card_is_small() -> None:
    server = weather(title="t" * 500, description="d " * 5_000)
    members = server.mcp.lifecycle.identity.profile.at_address("https://example.com/mcp").shared_members
    assert len(json.dumps(members)) < 1_000
