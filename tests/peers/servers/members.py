"""The server that peers sign in to: by an issuer's own tokens, or through `OAuthProxy`. MEMBERS_URL is its address."""

from __future__ import annotations

import json
import os

from defserve import Context, Server
from defserve.auth import OIDC, Auth, OAuthProxy, Vendor

URL, ISSUER = os.environ["MEMBERS_URL"], os.environ["MEMBERS_ISSUER"]


# What Claude Code says of itself, at its address. Peers have no network.
CLAUDE_CODE = {
    "client_id": "https://claude.ai/oauth/claude-code-client-metadata",
    "client_name": "Claude Code",
    "redirect_uris": ["http://localhost/callback", "http://127.0.0.1/callback"],
    "grant_types": ["authorization_code", "refresh_token"],
    "response_types": ["code"],
    "token_endpoint_auth_method": "none",
}


async def document(url: str) -> bytes:
    if url != CLAUDE_CODE["client_id"]:
        raise OSError("there is no network")
    return json.dumps(CLAUDE_CODE).encode()


def through_proxy() -> Auth:
    vendor = Vendor("the provider", ISSUER, scopes=("openid",), method="basic")
    return OAuthProxy(
        vendor, client_id="our-app", client_secret="our-app-secret", url=URL, allow=["alice"], fetch=document
    )


def at_issuer() -> Auth:
    return Auth(OIDC(ISSUER, audience=URL), scopes=["notes:read"])


server = Server("members", "1", auth=through_proxy() if os.environ.get("MEMBERS_PROXY") else at_issuer())


@server.tool
def who(ctx: Context) -> str:
    """Who is calling."""
    return ctx.principal


if __name__ == "__main__":
    server.main()
