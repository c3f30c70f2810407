"""The official Python client of either major version signs in: argument: the server's URL. Needs nothing of ours.

It prints `OPEN url` where a browser has to be opened, and reads the address to which the browser is sent.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthClientProvider
from mcp.client.session import ClientSession
from mcp.shared.auth import OAuthClientMetadata

REDIRECT = "http://127.0.0.1:3333/callback"


class Kept:
    tokens: Any = None
    client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


async def opened(url: str) -> None:
    print(f"OPEN {url}", flush=True)


async def came_back() -> Any:
    line = await asyncio.to_thread(sys.stdin.readline)
    fields = {name: values[0] for name, values in parse_qs(urlsplit(line.strip()).query).items()}
    try:
        from mcp.shared.auth import AuthorizationCodeResult
    except ImportError:
        return fields["code"], fields.get("state")
    return AuthorizationCodeResult(code=fields["code"], state=fields.get("state"), iss=fields.get("iss"))


async def called(url: str, auth: OAuthClientProvider) -> Any:
    try:
        from mcp.client.streamable_http import streamablehttp_client

        way = streamablehttp_client(url, auth=auth)
    except ImportError:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        way = streamable_http_client(url, http_client=httpx2.AsyncClient(auth=auth, trust_env=False))
    async with way as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        return await session.call_tool("who", {})


async def main(url: str) -> None:
    about = OAuthClientMetadata(
        client_name="the official Python client",
        redirect_uris=[REDIRECT],  # type: ignore[list-item]
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    result = await called(url, OAuthClientProvider(url, about, Kept(), opened, came_back))
    print(f"CALLED {result.content[0].text}", flush=True)


asyncio.run(main(sys.argv[1]))
