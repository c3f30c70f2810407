"""A server behind `OAuthProxy`, for processes that a test starts. Their environment says the rest."""

from __future__ import annotations

import os

from defserve import Context, Server
from defserve.auth import OAuthProxy
from tests.auth.vendor import CLIENT_ID, CLIENT_SECRET

server = Server(
    "notes",
    auth=OAuthProxy(
        "oidc",
        issuer=os.environ["VENDOR"],
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        url=os.environ["PUBLIC_URL"],
        allow="*",
        store=os.environ["STORE"],
    ),
)


@server.tool
def who(ctx: Context) -> str:
    """Who is calling."""
    return ctx.principal
