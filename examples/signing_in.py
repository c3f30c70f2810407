"""Notes for whoever signs in with GitHub. Clients register here by themselves; GitHub says who the user is.

Register an OAuth app at GitHub with the redirect `http://localhost:8000/callback`, then:

    GITHUB_CLIENT_ID=… GITHUB_CLIENT_SECRET=… GITHUB_USERS=octocat,hubot GITHUB_WRITERS=octocat \
        python examples/signing_in.py --on http://127.0.0.1:8000/mcp
"""

from __future__ import annotations

import os

from defserve import Context, Server
from defserve.auth import OAuthProxy

WRITERS = os.environ.get("GITHUB_WRITERS", "").split(",")

auth = OAuthProxy(
    "github",
    client_id=os.environ.get("GITHUB_CLIENT_ID", "not set"),
    client_secret=os.environ.get("GITHUB_CLIENT_SECRET", "not set"),
    url=os.environ.get("PUBLIC_URL", "http://localhost:8000/mcp"),
    allow=os.environ.get("GITHUB_USERS", "nobody-yet").split(","),
    optional_scopes=["notes:write"],
    scopes_for=lambda claims: ["notes:write"] if claims["login"] in WRITERS else [],
)
server = Server("signed notes", "1.0.0", auth=auth)

_notes: dict[str, list[str]] = {}


@server.tool
def read(ctx: Context) -> list[str]:
    """The caller's own notes."""
    return _notes.get(ctx.principal, [])


@server.tool(scopes=["notes:write"])
def write(ctx: Context, text: str) -> str:
    """Write a note. A client that lacks the scope is asked to sign in for it; only writers get it."""
    _notes.setdefault(ctx.principal, []).append(text)
    return "written"


if __name__ == "__main__":
    server.main()
