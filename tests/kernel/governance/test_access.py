"""Who may use which server of a kernel (MGP §5): a policy for each, with the file's default."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from defserve.auth.principals import Principal
from defserve.protocols.mgp.access import AccessPolicy, Entry
from defserve.server.server import Server
from tests.at_address import at_address
from tests.kernel.governance.governing import governed, tool
from tests.kernel.running import Running, entry, running, url_entry
from tests.protocols.mgp.callers import ALICE, BOB, STRANGER, Trail, code_of, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw

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


async def test_an_entry_that_names_a_dangerous_tool_is_an_operators_yes(tmp_path: Path) -> None:
    dangerous = '[servers.mgp.tools."act"]\nrisk = "dangerous"\n'
    async with governed(tmp_path, tool("act"), mgp=dangerous, kernel=CLOSED) as one:
        server = one.here.kernel.server
        async with (
            speaking(server, HANDSHAKE[-1], ["access_control"], who=ALICE) as admin,
            speaking(server, HANDSHAKE[-1], who=BOB) as bob,
        ):
            await admin.ask("mgp/access/grant", about("server_grant", permission="allow"))
            assert await uses(bob, "s_act") == "confirmation_required"
            await admin.ask("mgp/access/grant", about("tool_grant", "act", permission="allow"))
            assert await uses(bob, "s_act") is None
        assert one.trail.told("dev.defserve.confirmed_by_right")[0][1] == {"right": "access entry of bob"}


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


def gallery(folder: Path) -> Server:
    """A server with something of every kind."""
    server = Server("gallery", "1", instructions="Look, do not touch.")
    (folder / "tour").mkdir()
    (folder / "tour" / "SKILL.md").write_text("---\nname: tour\ndescription: d\n---\nWalk.\n")
    server.skill(folder / "tour")

    @server.tool
    def paint() -> str:
        return "done"

    @server.resource("art://hours")
    def hours() -> str:
        return "9 to 5"

    @server.resource("art://rooms/{room}")
    def rooms(room: Literal["east", "west"]) -> str:
        return room

    @server.prompt
    def critique(style: Literal["kind", "harsh"]) -> str:
        return style

    return server


UPDATED = "notifications/resources/updated"
LISTS = ("resources/list", "resources/templates/list", "prompts/list", "skills/list")
HOURS, ROOM, TEMPLATE, SKILL = "art://a/hours", "art://a/rooms/east", "art://a/rooms/{room}", "skill://a/tour/SKILL.md"
STYLE, OF_ROOM = {"name": "style", "value": ""}, {"name": "room", "value": ""}
# Every way to what is no tool, also to what no list names.
USES = (
    ("resources/read", {"uri": HOURS}),
    ("resources/read", {"uri": ROOM}),
    ("resources/read", {"uri": SKILL}),
    ("prompts/get", {"name": "a_critique", "arguments": {"style": "kind"}}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a_critique"}, "argument": STYLE}),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": TEMPLATE}, "argument": OF_ROOM}),
    ("skills/get", {"uri": SKILL}),
)
UNLISTED = (
    ("resources/read", {"uri": "art://a/none"}),
    ("skills/get", {"uri": "skill://a/none/SKILL.md"}),
    ("resources/directory/read", {"uri": "skill://a/none"}),
)


def policy_of(here: Running) -> AccessPolicy:
    access = here.kernel.governance.access
    assert access is not None
    policy = access.find_policy("a")
    assert policy is not None
    return policy


async def rows(peer: Raw) -> list[int]:
    """How many items each list shows."""
    results = [(await peer.ask(method))["result"] for method in LISTS]
    return [sum(len(found) for found in result.values() if isinstance(found, list)) for result in results]


async def refusals(peer: Raw) -> list[bool]:
    return ["error" in await peer.ask(method, params) for method, params in USES]


@pytest.mark.parametrize("who", [BOB, STRANGER], ids=lambda who: who.id)
@pytest.mark.parametrize("version", ERAS[-2:])
async def test_who_may_not_use_a_server_gets_nothing_of_it(tmp_path: Path, version: str, who: Principal) -> None:
    asked: list[str] = []
    back = gallery(tmp_path)

    @back.resource("art://{+path}")
    def others(path: str) -> str:
        asked.append(path)
        return path

    async with at_address(back) as url, running(tmp_path, f"[kernel]\n{CLOSED}", url_entry("a", url)) as here:
        async with speaking(here.kernel.server, version, who=who) as peer:
            policy = policy_of(here)
            # An entry for a tool opens the tool, and nothing else.
            policy.grant(Entry("tool_grant", who.id, "paint"))
            assert await uses(peer, "a_paint") is None
            assert await rows(peer) == [0, 0, 0, 0]
            for method, params in (*USES, *UNLISTED):
                assert "error" in await peer.ask(method, params), method
            assert not asked
            if version != STATELESS:
                assert "error" in await peer.ask("resources/subscribe", {"uri": HOURS})
            policy.grant(Entry("server_grant", who.id))
            assert 0 not in await rows(peer)
            assert await refusals(peer) == [False] * len(USES)
            policy.grant(Entry("server_grant", who.id, permission="deny"))
            assert await rows(peer) == [0, 0, 0, 0]
            assert await refusals(peer) == [True] * len(USES)


async def test_who_may_not_use_a_server_is_not_told_its_instructions(tmp_path: Path) -> None:
    async with (
        at_address(gallery(tmp_path)) as url,
        running(tmp_path, f"[kernel]\n{CLOSED}", url_entry("a", url)) as here,
    ):
        policy = policy_of(here)
        for told in (False, True):
            policy.grant(Entry("server_grant", "bob", permission="allow" if told else "deny"))
            async with speaking(here.kernel.server, STATELESS, who=BOB) as bob:
                found = (await bob.ask("server/discover"))["result"]
                assert ("do not touch" in found.get("instructions", "")) is told


async def test_who_may_not_use_a_server_is_not_told_that_it_is_down(tmp_path: Path) -> None:
    async with (
        at_address(gallery(tmp_path)) as url,
        running(tmp_path, f"[kernel]\n{CLOSED}", url_entry("a", url)) as here,
    ):
        policy = policy_of(here)
        await here.kernel.stop("a")
        # With and without pages that others have seen.
        for told in (False, True, False):
            policy.grant(Entry("server_grant", "bob", permission="allow" if told else "deny"))
            async with speaking(here.kernel.server, STATELESS, who=BOB) as bob:
                for method in ("tools/list", "resources/list", "prompts/list"):
                    found = (await bob.ask(method))["result"]["_meta"]
                    assert ("a" in found.get("dev.defserve/servers", {})) is told, method


async def updated(peer: Raw) -> None:
    while (await peer.hear()).get("method") != UPDATED:
        pass


async def test_a_subscription_ends_with_the_right_to_read(tmp_path: Path) -> None:
    back = gallery(tmp_path)
    async with (
        at_address(back) as url,
        running(tmp_path, '[kernel]\nadmins = ["alice"]\n', url_entry("a", url, 'per = "shared"')) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], who=BOB) as bob,
        speaking(here.kernel.server, HANDSHAKE[-1], who=ALICE) as alice,
    ):
        policy = policy_of(here)
        for peer in (bob, alice):
            assert "error" not in await peer.ask("resources/subscribe", {"uri": HOURS})
        back.resource_updated("art://hours")
        await updated(alice)
        await updated(bob)
        policy.grant(Entry("server_grant", "bob", permission="deny"))
        back.resource_updated("art://hours")
        await updated(alice)
        await bob.ask("ping")
        assert UPDATED not in [message.get("method") for message in bob.heard]


async def test_audit_events_go_to_the_file_and_name_the_server(tmp_path: Path) -> None:
    async with governed(tmp_path, tool("look")) as one:
        await one.here.call("s_look")
        (event,) = [each for each in one.trail.events if each["event_type"] == "TOOL_EXECUTED"]
        assert event["target"] == {"server_id": "s", "tool_name": "s_look"}
    async with running(tmp_path, '[kernel]\naudit = "audit.jsonl"\n', entry("a")) as here:
        await here.call("a_pid")
    assert "TOOL_EXECUTED" in (tmp_path / "audit.jsonl").read_text()
