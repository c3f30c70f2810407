"""MGP's methods and notices for the servers of a kernel."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from tests.kernel.running import entry, running
from tests.protocols.mgp.callers import ALICE, BOB, LOOPBACK, STRANGER, Trail, code_of, speaking
from tests.raw import ERAS, HANDSHAKE
from tests.waiting import until

pytestmark = pytest.mark.anyio

ADMINS = '[kernel]\nadmins = ["alice", "local"]\n'
METHODS = ("mgp/health/ping", "mgp/health/status", "mgp/lifecycle/shutdown", "mgp/lifecycle/restart")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("version", ERAS)
async def test_health_of_one_server_is_told_to_operators(tmp_path: Path, version: str) -> None:
    async with running(tmp_path, ADMINS, entry("a")) as here:
        for who in (LOCAL_PRINCIPAL, ALICE):
            async with speaking(here.kernel.server, version, ["lifecycle"], who=who) as peer:
                ping = (await peer.ask("mgp/health/ping", {"server_id": "a"}))["result"]
                assert (ping["status"], ping["server_id"]) == ("healthy", "a")
                assert ping["observed_at"]
                status = (await peer.ask("mgp/health/status", {"server_id": "a"}))["result"]
                assert status["tools_available"] == 7
                assert status["state"] == "connected"
                # Without a server it is about the kernel itself.
                assert (await peer.ask("mgp/health/ping"))["result"]["server_id"] == "kernel"


@pytest.mark.parametrize("who", [BOB, LOOPBACK, STRANGER, Principal("local", kind="anonymous")], ids=lambda who: who.id)
async def test_others_may_not_even_learn_which_servers_there_are(tmp_path: Path, who: Principal) -> None:
    async with (
        running(tmp_path, ADMINS, entry("a")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["lifecycle"], who=who) as peer,
    ):
        for method in METHODS:
            for id in ("a", "unknown"):
                reply = await peer.ask(method, {"server_id": id, "reason": "operator_request"})
                assert code_of(reply) == 1000
        assert here.state("a") == "connected"


async def test_without_lifecycle_there_are_no_such_methods(tmp_path: Path) -> None:
    async with (
        running(tmp_path, ADMINS, entry("a")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["audit"]) as peer,
    ):
        for method in METHODS:
            assert code_of(await peer.ask(method, {"server_id": "a"})) == -32601
        assert here.state("a") == "connected"


async def test_a_server_is_shut_down_and_restarted_by_its_id(tmp_path: Path) -> None:
    async with (
        running(tmp_path, entry("a"), entry("b")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["lifecycle"]) as peer,
    ):
        assert (await peer.ask("mgp/lifecycle/restart", {"server_id": "a"}))["result"] == {
            "id": "a",
            "status": "connected",
        }
        down = (await peer.ask("mgp/lifecycle/shutdown", {"server_id": "a", "reason": "idle_timeout"}))["result"]
        assert (down["accepted"], down["pending_requests"], down["estimated_drain_ms"]) == (True, 0, 0)
        await until(lambda: here.state("a") == "disconnected")
        assert here.state("b") == "connected"
        assert code_of(await peer.ask("mgp/health/ping", {"server_id": "a"})) == 2000


BAD: tuple[dict[str, Any], ...] = (
    {"server_id": 1},
    {"server_id": ["a"]},
    {"server_id": "a", "reason": "boredom"},
    {"server_id": "a", "timeout_ms": -1},
    {"server_id": "a", "timeout_ms": True},
    {"server_id": "a", "timeout_ms": 10**12},
)


async def test_bad_params_are_refused_and_nothing_happens(tmp_path: Path) -> None:
    async with (
        running(tmp_path, entry("a")) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["lifecycle"]) as peer,
    ):
        for params in BAD:
            assert code_of(await peer.ask("mgp/lifecycle/shutdown", params)) == -32602
        assert code_of(await peer.ask("mgp/lifecycle/restart", {})) == -32602
        for method in METHODS:
            reply = await peer.ask(method, {"server_id": "unknown"})
            assert (code_of(reply), reply["error"]["data"]["error_type"]) == (4004, "server_not_found")
        assert here.state("a") == "connected"


@pytest.mark.req("MGP-11.5w")
async def test_peers_and_the_audit_trail_are_told_how_servers_are(tmp_path: Path) -> None:
    trail = Trail()
    async with (
        running(tmp_path, entry("a", mgp="max_restarts = 1"), audit=trail) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["lifecycle"]) as peer,
        speaking(here.kernel.server, HANDSHAKE[-1]) as plain,
    ):
        for state in ("connected", "error"):
            restarts = here.kernel.ps()[0]["restarts"]
            os.kill(here.kernel.ps()[0]["pid"], signal.SIGKILL)
            if state == "connected":
                await until(lambda restarts=restarts: here.kernel.ps()[0]["restarts"] > restarts)  # pyright: ignore
            await until(lambda state=state: here.state("a") == state)  # pyright: ignore
        told = [one["params"] for one in await peer.news() if one.get("method") == "notifications/mgp.lifecycle"]
        moves = [(one["previous_state"], one["new_state"]) for one in told if one["server_id"] == "a"]
        assert moves == [
            ("connected", "error"),
            ("error", "restarting"),
            ("restarting", "connected"),
            ("connected", "error"),
        ]
        assert all(one["timestamp"] and one["reason"] for one in told)
        assert not [one for one in await plain.news() if "mgp" in one["method"]]
        ends = [event for event in trail.events if event["event_type"] == "SERVER_DISCONNECTED"]
        assert ends[-1]["target"] == {"server_id": "a"}
        assert ends[-1]["details"]["reason"] == "restart_limit_exceeded"
