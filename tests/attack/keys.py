"""API keys for the attacked servers: made and revoked by the command, as an operator does it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from defserve.auth import ApiKeys
from tests.attack.arena import PEPPER, Arena, Served
from tests.attack.trial import NotTried


class Key(NamedTuple):
    id: str
    token: str


def create(served: Served, principal: str, *permissions: str, expires_in: float | None = None, scopes: str = "") -> Key:
    """A key in the store of this server."""

    async def made() -> Key:
        keys = ApiKeys(served.folder / "keys.json", pepper=PEPPER)
        new = await keys.create(principal, permissions=permissions, expires_in=expires_in, scopes=scopes.split())
        await keys.close()
        return Key(new.key.id, new.token)

    return asyncio.run(made())


def revoke(arena: Arena, served: Served, key: Key) -> None:
    """By the command, in a process of its own, as an operator does it."""
    done = arena.command("keys", "revoke", key.id, "--store", str(served.folder / "keys.json"))
    if done.returncode:
        raise NotTried(f"defserve keys revoke fails: {done.stderr.strip()[-200:]}")
