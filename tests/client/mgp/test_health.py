"""Health and the end of a server, over every road and in both eras; and with a server that is a table."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Server
from defserve.client import LifecycleChange, ShutdownAnswer
from defserve.errors import PeerError, PeerGone, Refused
from defserve.testing.transports import TRANSPORTS
from tests.client.mgp.table import ERAS, Table, flowing, talking

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked")]

CHANGED = "notifications/mgp.lifecycle"

eras = pytest.mark.parametrize("version", ERAS)
roads = pytest.mark.parametrize("road", TRANSPORTS)


# -- a server of ours ------------------------------------------------------------------------------------


@pytest.mark.req("MGP-11.3p", "MGP-11.3s", "MGP-11.3v")
@eras
@roads
async def test_a_server_says_how_it_is(road: str, version: str):
    async with flowing(road, version, token=None) as client:
        found = await client.health()
        assert (found.status, found.is_healthy, found.uptime_secs >= 0) == ("degraded", False, True)
        assert found.tools_available == found.tools_total > 0
        assert found.pending_requests == 0
        pong = await client.health_ping()
        assert (pong.status, pong.server_id, pong.timestamp[-1]) == ("degraded", "test.flowing", "Z")
        # To a stranger over the network it says no more.
        assert found.checks == ({"has_words": True, "has_ink": False} if road in ("memory", "stdio") else {})
        assert found.problems == ({"has_ink": "the well is dry"} if found.checks else {})
        assert ("memory_bytes" in found.resources) is bool(found.checks)


@pytest.mark.slow
@pytest.mark.req("MGP-11.4s", "MGP-11.4n")
async def test_a_server_that_is_asked_to_end_says_so_finishes_and_leaves():
    async with flowing("stdio", ERAS[0]) as client, client.lifecycle() as changes:
        async with client.stream("forever") as stream:
            await anext(stream)
            drain = await client.shutdown("idle_timeout", timeout=0.2)
            assert (drain.accepted, drain.pending_requests, drain.estimated_drain_ms) == (True, 1, 200)
            # The notice of the handshake may have come before this client listened.
            first = await anext(change async for change in changes if change.state != "connected")
            assert (first.previous, first.state, first.reason) == ("connected", "draining", "idle_timeout")
            assert first.server_id == "test.flowing"
            states = [change.state async for change in changes]
            assert states in ([], ["disconnected"])


@pytest.mark.slow
async def test_without_a_session_a_server_ends_all_the_same():
    async with flowing("stdio", ERAS[1]) as client:
        assert await client.shutdown() == ShutdownAnswer(accepted=True, pending_requests=0, estimated_drain_ms=0)
        with pytest.raises(PeerGone):
            while True:
                await client.ping()


@eras
@pytest.mark.parametrize("road", ["http", "ws"])
async def test_a_stranger_may_not_end_it(road: str, version: str):
    async with flowing(road, version, Server("s", "1"), token=None) as client:
        with pytest.raises(Refused):
            await client.shutdown()
        assert (await client.health_ping()).status == "healthy"


@eras
async def test_a_client_without_mgp_is_told_nothing(version: str):
    async with Server("s", "1").connect(version) as client:
        for question in (client.health(), client.health_ping(), client.shutdown()):
            with pytest.raises(PeerError, match="does not speak MGP"):
                await question


# -- a server that is a table ----------------------------------------------------------------------------


def table(**replies: Any) -> Table:
    return Table({name.replace("_", "/"): reply for name, reply in replies.items()}, extensions=("lifecycle",))


async def test_what_a_server_leaves_out_or_garbles_is_nothing():
    garbled: dict[str, Any] = {
        "status": "healthy",
        "uptime_secs": "long",
        "tools_total": True,
        "checks": [],
        "resources": None,
    }
    async with talking(table(mgp_health_status=garbled)) as client:
        found = await client.health()
    assert found.is_healthy
    assert (found.uptime_secs, found.tools_total, found.checks, found.resources) == (0, 0, {}, {})


async def test_health_without_a_status_is_the_servers_error():
    async with talking(table(mgp_health_status={}, mgp_health_ping={"status": 1})) as client:
        for question in (client.health(), client.health_ping()):
            with pytest.raises(PeerError, match="without a status"):
                await question


async def test_the_request_says_why_and_how_long():
    server = table(mgp_lifecycle_shutdown={"accepted": False})
    async with talking(server) as client:
        assert not (await client.shutdown("resource_limit", timeout=1.5)).accepted
    assert server.asked("mgp/lifecycle/shutdown") == [{"reason": "resource_limit", "timeout_ms": 1500}]


def change(previous: str, new: str) -> dict[str, Any]:
    return {"method": CHANGED, "params": {"server_id": "s", "previous_state": previous, "new_state": new}}


async def test_changes_are_heard_and_nothing_else():
    server = table()
    async with talking(server) as client, client.lifecycle() as changes:
        server.say({"method": "notifications/other"})
        server.say(change("connected", "error"))
        assert repr(await anext(changes)) == "Change('connected' to 'error', 'None')"
        server.leave()
        with pytest.raises(PeerGone):
            await anext(changes)


async def test_a_server_that_said_so_leaves_without_an_error():
    server, seen = table(), list[LifecycleChange]()
    async with talking(server) as client:
        changes = aiter(client.lifecycle())
        server.say(change("connected", "draining"))
        server.leave()
        async for one in changes:
            seen.append(one)
    assert [one.state for one in seen] == ["draining"]
