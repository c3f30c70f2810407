"""A server over HTTP, asked with a bearer token or without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2

from defserve import Server

VERSION = "2026-07-28"


def client(server: Server, address: str = "127.0.0.1", **options: Any) -> httpx2.AsyncClient:
    app = server.asgi(allowed_hosts=["tools.example.com"], **options)
    transport = httpx2.ASGITransport(app, client=(address, 4711))
    return httpx2.AsyncClient(transport=transport, base_url="https://tools.example.com")


def stateless(method: str, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        **({"mcp-name": params["name"]} if "name" in params else {}),
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}, headers


async def post(
    http: httpx2.AsyncClient, token: str | None, method: str, *, more: Mapping[str, str] | None = None, **params: Any
) -> httpx2.Response:
    body, headers = stateless(method, **params)
    headers |= more or {}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return await http.post("/", json=body, headers=headers)
