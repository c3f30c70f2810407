"""Which spellings of a path lead somewhere. A rule of a proxy in front counts on there being one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest

from defserve import Server
from defserve.serve.address import Address
from defserve.serve.http.app import HttpApp
from defserve.server.web import make_asgi_app as web_app
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
OPTIONS: Any = {"metrics": True, "rest": True, "legacy_sse": True, "page": True}


def app() -> HttpApp:
    server = Server("shop")

    @server.tool
    def buy() -> str:
        return "bought"

    server.observe(metrics=True)
    return web_app(server.composition, server.mcp, None, OPTIONS, Address.parse("http://127.0.0.1:8000/mcp", "/mcp"))


def routes() -> list[str]:
    """Every path that is served beside the endpoint."""
    made = app()
    beside = {*made._routes, *made._probes, *made.documents.paths}  # pyright: ignore[reportPrivateUsage]
    return sorted(beside - {made.endpoint} | {"/tools/buy", "/openapi.json", "/docs"})


async def status_of(served: HttpApp, verb: str, target: str) -> int:
    """The status for a path exactly as it is written. Clients of HTTP would tidy it up."""
    headers = {"host": "127.0.0.1:8000", "content-type": "application/json", "accept": "application/json, text/html"}
    scope: Any = {
        "type": "http",
        "method": verb,
        "path": unquote(target),
        "raw_path": target.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 5000),
        "state": {},
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await served(scope, receive, send)
    return sent[0]["status"]


SPELLINGS = (
    "{path}/",
    "{path}//",
    "/{path}",
    "//{path}",
    "/x/..{path}",
    "/.{path}",
    "{path}/.",
    "{path}%2f",
    "{path}%2F",
    "%2f{path}",
    "{path}%00",
    "{path}%20",
    "{path};x",
    "{path}/x/..",
    "/mcp{path}",
)


def test_the_table_knows_the_routes_that_there_are() -> None:
    assert {"/metrics", "/healthz", "/readyz", "/sse"} <= set(routes())


@for_each_row("spelling", SPELLINGS)
async def test_nothing_but_the_endpoint_is_reached_by_another_spelling(spelling: str) -> None:
    served = app()
    for path in routes():
        for verb in ("GET", "POST"):
            status = await status_of(served, verb, spelling.format(path=path))
            assert status >= 400, (verb, path, status)


async def test_each_route_is_reached_by_its_own_spelling() -> None:
    served = app()
    for path in ("/metrics", "/healthz", "/readyz", "/mcp/server-card", "/.well-known/ai-catalog.json"):
        for verb in ("GET", "HEAD"):
            assert await status_of(served, verb, path) == 200, (verb, path)


@for_each_row("path", ["/mcp", "/mcp/"])
async def test_the_endpoint_is_reached_with_and_without_a_slash(path: str) -> None:
    transport = httpx2.ASGITransport(app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as web:
        answer = await web.post(path, json={}, headers={"accept": "application/json, text/event-stream"})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == -32600
        assert (await web.post(path + "/", json={})).status_code in (400, 404)


def test_every_documented_denial_matches_by_prefix() -> None:
    texts = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.conf"), *ROOT.glob("framework/**/*.conf")]
    exact = re.compile(r"location\s+=\s*/\w+\s*\{\s*deny|respond\s+/\w+\s+403|<Location\s+\"?/metrics\"?>")
    found = [path.relative_to(ROOT).as_posix() for path in texts if exact.search(path.read_text())]
    assert not found
    assert any("location ^~ /metrics" in path.read_text() for path in texts)
