"""Peers of any identity, in both eras, with and without MGP; and what the server writes into its audit trail."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from defserve import Server
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal, make_anonymous_principal
from tests.raw import STATELESS, Json, Raw, raw

ALICE = Principal("alice", frozenset({"tools:admin"}))
BOB = Principal("bob")
LOOPBACK = make_anonymous_principal("127.0.0.1")
STRANGER = make_anonymous_principal("203.0.113.7")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    """A wall clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Trail:
    """A sink that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Json] = []

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        self.events.append({**event, "durable": durable})

    def told(self, *event_types: str) -> list[tuple[str, Any]]:
        """The events of these types, each with its details."""
        return [(e["event_type"], e["details"]) for e in self.events if e["event_type"] in event_types]


def offer(version: str, *extensions: str) -> Json:
    """The capabilities of a client that speaks MGP."""
    mgp = {"version": "0.3.0", "extensions": list(extensions)}
    return {"extensions": {"dev.cloto/mgp": mgp}} if version == STATELESS else {"mgp": mgp}


@asynccontextmanager
async def speaking(
    server: Server,
    version: str,
    extensions: Sequence[str] = (),
    *,
    who: Principal = LOCAL_PRINCIPAL,
    capabilities: Mapping[str, Any] | None = None,
    opened: bool = True,
) -> AsyncGenerator[Raw]:
    """A peer that the transport has authenticated as `who`; a plain one where no extensions are named."""
    before = set(server.composition.sessions)
    offered = {**(capabilities or {}), **(offer(version, *extensions) if extensions else {})}
    async with raw(server, version, offered, opened=False) as peer:
        (session,) = set(server.composition.sessions) - before
        session.identity, session.is_local = who, who.kind == "local"
        if opened:
            await peer.open()
        yield peer


def code_of(reply: Json) -> int | str | None:
    """How a call was refused: the error's code, or the symbolic one of a result; None for one that was not."""
    if "error" in reply:
        return reply["error"]["code"]
    result = reply["result"]
    return result["_meta"]["dev.defserve/error"]["error_type"] if result.get("isError") else None
