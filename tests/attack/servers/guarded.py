"""A server with an access policy, a scoped feature set, and feature sets that are off until a host says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from defserve import Context, Limits, Server
from defserve.server import AccessPolicy, Entry

MARKS = Path(os.environ["ATTACK_MARKS"])

server = Server(
    "guarded",
    "1",
    limits=Limits(header=2, body=3, question=20),
    access=AccessPolicy(
        "opt-in",
        entries=[Entry("tool_grant", "anonymous:127.0.0.1", name) for name in ("echo", "edit", "quiet")],
        admins=["alice"],
        admin_scopes=["admin:write"],
    ),
    feature_sets="strict",
)
files = server.feature_set("files.edit", "Edit files", scoped=True)
quiet_set = server.feature_set("quiet", "Off until a host says otherwise")


def mark(word: str) -> None:
    with MARKS.open("a") as file:
        file.write(word + "\n")


@server.tool
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool
def reserved(word: str) -> str:
    """No entry names a stranger for it."""
    mark(f"reserved:{word}")
    return "reserved"


@files.tool(scope=lambda path: path)
def edit(path: str, word: str, ctx: Context) -> str:
    """Asks the host whether it may act there."""
    mark(f"edit:{word}")
    return "edited"


@quiet_set.tool
def quiet(word: str) -> str:
    """Off until a host says otherwise."""
    mark(f"quiet:{word}")
    return "quiet"
