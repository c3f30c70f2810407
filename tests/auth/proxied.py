"""A server behind `OAuthProxy`, in this process, and a visit to it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from defserve import Context, Server
from defserve.auth import OAuthProxy
from defserve.serve.address import Address
from defserve.server.web import make_asgi_app
from tests.auth.browsing import Visit
from tests.auth.vendor import CLIENT_ID, CLIENT_SECRET, FakeVendor
from tests.auth.web import stateless

URL = "https://tools.example.com/mcp"
SITE = "https://tools.example.com"
CIMD = "https://app.example/client.json"


def everything(claims: Mapping[str, Any]) -> list[str]:
    """A rule that gives every optional scope of these tests."""
    return ["a", "b", "more", "notes:write"]


async def documents(url: str) -> bytes:
    if url != CIMD:
        raise OSError("404")
    redirects = ["https://app.example/cb", "http://127.0.0.1/callback"]
    return json.dumps({"client_id": url, "client_name": "App", "redirect_uris": redirects}).encode()


def proxy(vendor: FakeVendor, **options: Any) -> OAuthProxy:
    ours = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "url": URL}
    given = {"issuer": vendor.issuer, "allow": "*", **ours, **options}
    return OAuthProxy(given.pop("which", "oidc"), send=vendor.send, fetch=documents, **given)


@asynccontextmanager
async def visiting(
    vendor: FakeVendor | None = None, auth: OAuthProxy | None = None, **options: Any
) -> AsyncGenerator[Visit]:
    vendor = vendor or FakeVendor()
    server = Server("notes", auth=auth or proxy(vendor, **options))

    @server.tool
    def who(ctx: Context) -> str:
        return ctx.principal

    @server.tool(scopes=["notes:write"])
    def write() -> str:
        return "written"

    async with browser(server) as http:
        yield Visit(http, vendor)


def browser(server: Server, address: str = "127.0.0.1") -> httpx2.AsyncClient:
    made = make_asgi_app(
        server.composition,
        server.mcp,
        server.auth,
        {"allowed_hosts": ["tools.example.com"]},
        Address.parse("http://127.0.0.1:8000/mcp", "/mcp"),
    )
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(made, client=(address, 4711)), base_url=SITE)


async def call(http: httpx2.AsyncClient, token: str, tool: str = "who") -> httpx2.Response:
    body, headers = stateless("tools/call", name=tool, arguments={})
    return await http.post("/mcp", json=body, headers={**headers, "authorization": f"Bearer {token}"})
