"""The server that peers sign in to: by an issuer's own tokens, or through `OAuthProxy`. MEMBERS_URL is its address.

With MEMBERS_COMPANY, a company's identity provider, people of the company and programs come in without a browser.
"""

from __future__ import annotations

import json
import os

from defserve import Context, Server
from defserve.auth import OIDC, Auth, OAuthProxy, RegisteredClient, TrustedIssuer, Vendor

URL, ISSUER = os.environ["MEMBERS_URL"], os.environ.get("MEMBERS_ISSUER", "")


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


def without_browser(company: str) -> Auth:
    secret = os.environ["MEMBERS_SECRET"]
    clients = [
        RegisteredClient("claude", secret=secret),
        RegisteredClient("job", secret=secret, scopes=[]),
        RegisteredClient("agent", key=os.environ["MEMBERS_KEY"], scopes=[]),
    ]
    return OAuthProxy(url=URL, issuers=[TrustedIssuer(company)], clients=clients)


def make_auth() -> Auth:
    if company := os.environ.get("MEMBERS_COMPANY"):
        return without_browser(company)
    return through_proxy() if os.environ.get("MEMBERS_PROXY") else at_issuer()


def at_issuer() -> Auth:
    return Auth(OIDC(ISSUER, audience=URL), scopes=["notes:read"])


server = Server("members", "1", auth=make_auth())


@server.tool
def who(ctx: Context) -> str:
    """Who is calling."""
    return ctx.principal


if __name__ == "__main__":
    server.main()
