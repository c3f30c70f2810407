"""Users sign in with your company's OpenID provider. Clients register by themselves; writing needs a scope."""

import os
from typing import Annotated

from defserve import Context, Server
from defserve.auth import OAuthProxy

WRITERS = os.environ.get("WRITERS", "ann@example.com").split(",")

auth = OAuthProxy(
    "oidc",
    issuer=os.environ.get("ISSUER", "https://login.example.com"),
    client_id=os.environ.get("CLIENT_ID", "not set"),
    client_secret=os.environ.get("CLIENT_SECRET", "not set"),
    url=os.environ.get("PUBLIC_URL", "http://localhost:8000/mcp"),
    allow=["@example.com"],
    optional_scopes=["board:write"],
    scopes_for=lambda claims: ["board:write"] if claims.get("email") in WRITERS else [],
)
server = Server("board", "1.0.0", auth=auth)

messages: list[str] = []


@server.tool
def read_board() -> list[str]:
    """The messages on the board."""
    return messages


@server.tool(scopes=["board:write"])
def write_on_board(text: Annotated[str, "What everybody may read."], ctx: Context) -> str:
    """Put a message on the board. A client whose token lacks the scope is asked to sign in for it."""
    messages.append(f"{ctx.principal}: {text}")
    return "It is on the board."


if __name__ == "__main__":
    server.main()
