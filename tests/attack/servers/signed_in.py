"""Two servers by environment: one that signs users in through a vendor, or one that takes tokens of two issuers."""

from __future__ import annotations

import os

from defserve import Context, Server
from defserve.auth import JWT, Auth, DPoP, OAuthProxy

PUBLIC = "http://localhost:8080/mcp"
SECRET = "the secret of the attack suite, not a secret"


def auth() -> Auth:
    if vendor := os.environ.get("VENDOR"):
        return OAuthProxy(
            "oidc",
            issuer=vendor,
            client_id="our-app",
            client_secret="our-app-secret",
            url=PUBLIC,
            allow=["alice@example.com"],
            optional_scopes=["erase"],
            scopes_for=lambda claims: ["erase"] if claims.get("email") == "alice@example.com" else [],
            store=f"sqlite:///{os.environ['STORE']}",
            secret=SECRET,
        )
    issuers = [
        JWT(key=os.environ[f"KEY_{name}"], audience=PUBLIC, issuer=f"https://{name.lower()}.example") for name in "AB"
    ]
    store, nonce = f"sqlite:///{os.environ['STORE']}", bool(os.environ.get("NONCE"))
    return Auth(issuers, dpop=DPoP(store, nonce=nonce, secret=SECRET))


server = Server("signed in", "1", auth=auth())


@server.tool
def who(ctx: Context) -> str:
    """Who is calling."""
    return ctx.principal
