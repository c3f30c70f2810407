"""Who may use which server of a kernel (MGP §5): a policy for each, with the file's default."""

from __future__ import annotations

from pathlib import Path

import pytest

from defserve.auth.principals import Principal
from tests.kernel.governance.governing import governed, tool
from tests.kernel.running import entry, running
from tests.protocols.mgp.callers import ALICE, BOB, STRANGER, Trail, code_of, speaking
from tests.raw import ERAS, HANDSHAKE, Json, Raw

pytestmark = pytest.mark.anyio

CLOSED = 'admins = ["alice"]\ndefault_policy = "opt-in"\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def about(entry_type: str, tool_name: str | None = None, **more: str) -> Json:
    named = {"tool_name": tool_name} if tool_name else {}
    return {"entry_type": entry_type, "agent_id": "bob", "server_id": "s", **named, **more}


async def uses(peer: Raw, name: str) -> int | str | None:
    return code_of(await peer.ask("tools/call", {"name": name, "arguments": {}}))


async def sees(peer: Raw) -> set[str]:
    return {one["name"] for one in (await peer.ask("tools/list"))["result"]["tools"]}


@pytest.mark.req("MGP-5.2", "MGP-5.5")
@pytest.mark.parametrize("version", ERAS)
async def test_grants_for_a_server_and_its_tools_decide(tmp_path: Path, version: str) -> None:
    async with governed(tmp_path, tool("look"), tool("act"), kernel=CLOSED) as one:
        server = one.here.kernel.server
        async with (
            speaking(server, version, ["access_control"], who=ALICE) as admin,
            speaking(server, version, who=BOB) as bob,
        ):
            assert await sees(bob) == set()
            assert await uses(bob, "s_look") == "access_denied"
            # The tool has the name that its own server gives it.
            await admin.ask("mgp/access/grant", about("server_grant", permission="allow"))
            await admin.ask("mgp/access/grant", about("tool_grant", "act", permission="deny", granted_by="root"))
            assert await sees(bob) == {"s_look"}
            assert (await uses(bob, "s_look"), await uses(bob, "s_act")) == (None, "access_denied")
            query = {"agent_id": "bob", "server_id": "s", "tool_name": "act"}
            found = (await admin.ask("mgp/access/query", query))["result"]
            assert (found["permission"], found["source"], found["granted_by"]) == ("deny", "tool_grant", "alice")
            assert (await admin.ask("mgp/access/revoke", about("server_grant")))["result"]["revoked"] is True
            assert await uses(bob, "s_look") == "access_denied"
            assert code_of(await admin.ask("mgp/access/query", {"agent_id": "bob", "server_id": "x"})) == 4004
        assert one.trail.told("ACCESS_GRANTED")[0][1]["server_id"] == "s"


@pytest.mark.parametrize("who", [BOB, STRANGER], ids=lambda who: who.id)
async def test_only_operators_change_access(tmp_path: Path, who: Principal) -> None:
    async with (
        governed(tmp_path, tool("look"), kernel=CLOSED) as one,
        speaking(one.here.kernel.server, HANDSHAKE[-1], ["access_control"], who=who) as peer,
    ):
        assert code_of(await peer.ask("mgp/access/grant", about("server_grant", permission="allow"))) == 1001
        assert await uses(peer, "s_look") == 1001


async def test_grants_outlive_the_kernel(tmp_path: Path) -> None:
    async with (
        governed(tmp_path, tool("look"), kernel=CLOSED) as one,
        speaking(one.here.kernel.server, HANDSHAKE[-1], ["access_control"], who=ALICE) as admin,
    ):
        until = {"expires_at": "2999-01-01T00:00:00Z"}
        reply = await admin.ask("mgp/access/grant", about("tool_grant", "look", permission="allow", **until))
        assert "error" not in reply
    async with (
        governed(tmp_path, tool("look"), kernel=CLOSED) as one,
        speaking(one.here.kernel.server, HANDSHAKE[-1], who=BOB) as bob,
    ):
        assert await uses(bob, "s_look") is None


async def test_a_server_may_be_closed_beside_an_open_one(tmp_path: Path) -> None:
    trail = Trail()
    closed = entry("a", more='default_policy = "opt-in"')
    async with (
        running(tmp_path, closed, entry("b"), audit=trail) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], who=BOB) as bob,
    ):
        assert {name.partition("_")[0] for name in await sees(bob)} == {"b"}
        assert (await uses(bob, "a_pid"), await uses(bob, "b_pid")) == ("access_denied", None)


async def test_audit_events_go_to_the_file_and_name_the_server(tmp_path: Path) -> None:
    async with governed(tmp_path, tool("look")) as one:
        await one.here.call("s_look")
        (event,) = [each for each in one.trail.events if each["event_type"] == "TOOL_EXECUTED"]
        assert event["target"] == {"server_id": "s", "tool_name": "s_look"}
    async with running(tmp_path, '[kernel]\naudit = "audit.jsonl"\n', entry("a")) as here:
        await here.call("a_pid")
    assert "TOOL_EXECUTED" in (tmp_path / "audit.jsonl").read_text()
