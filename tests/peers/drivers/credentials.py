"""A client in Python comes in by credentials of its own, or by an identity assertion of a company.

Run by the peer's own interpreter. The arguments: which client, which grant, and what it needs, as JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

KIND, GRANT, NEEDED = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
URL, ISSUER, SECRET = NEEDED["url"], NEEDED["issuer"], NEEDED["secret"]


class Kept:
    tokens: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return None

    async def set_client_info(self, client_info: Any) -> None: ...


def http_client(**options: Any) -> Any:
    """The HTTP client that this release of the SDK uses."""
    try:
        import httpx2 as httpx
    except ImportError:
        import httpx
    return httpx.AsyncClient(trust_env=False, **options)


async def fetch_id_jag(audience: str, resource: str) -> str:
    """An ID-JAG, as the SDK leaves it to its users: a token exchange at the company's provider."""
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "subject_token": "the person's ID token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "audience": audience,
        "resource": resource,
    }
    async with http_client() as http:
        answer = await http.post(f"{NEEDED['company']}/token", data=form, auth=tuple(NEEDED["at_company"]))
        return answer.json()["access_token"]


def signed(module: Any) -> Any:
    """What signs the client's assertions, in the way of this release."""
    make = module.SignedJWTParameters
    given = {"issuer": "agent", "subject": "agent", "signing_key": NEEDED["key"], "signing_algorithm": "ES256"}
    return make(**given).create_assertion_provider()


def official() -> Any:
    if GRANT == "identity assertion":
        module = importlib.import_module("mcp.client.auth.extensions.identity_assertion")
        return module.IdentityAssertionOAuthProvider(URL, Kept(), "claude", SECRET, ISSUER, fetch_id_jag)
    module = importlib.import_module("mcp.client.auth.extensions.client_credentials")
    if GRANT == "client secret":
        return module.ClientCredentialsOAuthProvider(URL, Kept(), "job", SECRET, issuer=ISSUER)
    return module.PrivateKeyJWTOAuthProvider(URL, Kept(), "agent", signed(module), issuer=ISSUER)


async def call_official() -> str:
    from mcp.client.session import ClientSession

    auth = official()
    async with AsyncExitStack() as stack:
        try:
            from mcp.client.streamable_http import streamablehttp_client

            way = streamablehttp_client(URL, auth=auth)
        except ImportError:
            from mcp.client.streamable_http import streamable_http_client

            way = streamable_http_client(URL, http_client=http_client(auth=auth))
        streams = await stack.enter_async_context(way)
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
        await session.initialize()
        return (await session.call_tool("who", {})).content[0].text


async def call_fastmcp() -> str:
    from fastmcp import Client

    module = importlib.import_module("fastmcp.client.auth.client_credentials")
    if GRANT == "client secret":
        auth = module.ClientCredentialsOAuthProvider(URL, client_id="job", client_secret=SECRET, issuer=ISSUER)
    else:
        auth = module.PrivateKeyJWTOAuthProvider(
            URL, client_id="agent", assertion_provider=signed(module), issuer=ISSUER
        )
    client: Any = Client(URL, auth=auth)
    async with client:
        return (await client.call_tool("who", {})).content[0].text


print(asyncio.run(call_fastmcp() if KIND == "fastmcp" else call_official()))
