"""A host that speaks MGP, and servers that do or do not: what is offered, read, granted and called."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from defserve import Server
from defserve.client import Accept, Answers, Client, Grant, Mgp
from defserve.errors import PeerError, UsageError
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.errors import AccessDenied, PermissionDenied
from defserve.server import AccessPolicy, Entry
from tests.client.mgp import guarded
from tests.client.mgp.hosts import DONE, ERAS, Trail, connected, mgp_block, speaking, tool, trusting
from tests.client.pretend import STATELESS, Fail, PretendServer
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ROADS = ["memory", "stdio", "http"]


@pytest.mark.slow
@pytest.mark.req("MGP-1.3")
@for_each_row("speaks", ["plain", "mgp"])
@for_each_row("road", ROADS)
@for_each_row("version", ERAS)
async def test_a_host_with_and_without_mgp_calls_a_server_with_mgp(speaks: str, road: str, version: str):
    options: dict[str, Any] = (
        {"mgp": trusting()} if speaks == "mgp" else {"answers": Answers(ask=lambda *_: {"v": True})}
    )
    async with connected(road, version, **options) as client:
        assert await client.call("add", a=1, b=2) == 3
        assert (client.mgp is not None) == (speaks == "mgp")
        if client.mgp is not None:
            assert client.mgp.version == "0.3.0"
            assert await client.call("run", command="git status") == "git status"


@pytest.mark.req("MGP-1.3", "MGP-2.4.2", "MGP-8.2")
@for_each_row("speaks", ["plain", "mgp"])
@for_each_row("version", ERAS)
async def test_a_host_with_and_without_mgp_calls_a_plain_server(speaks: str, version: str):
    listed = [{"name": "add", "inputSchema": {"type": "object"}}]
    replies = {"tools/list": {"tools": listed}, "tools/call": {"content": [{"type": "text", "text": "3"}]}}
    server = PretendServer({**(STATELESS if version == ERAS[1] else {}), **replies})
    async with Client(server, version=version, mgp=Mgp(audit=[]) if speaks == "mgp" else None) as client:
        assert await client.call("add", a=1) == "3"
        if client.mgp is not None:
            assert (client.mgp.version, client.mgp.extensions, client.mgp.grants) == (None, (), {})
    call = server.asked("tools/call")[0]
    assert set(call) - {"_meta"} == {"name", "arguments"}
    assert not [key for key in call.get("_meta", {}) if "mgp" in key]
    assert not [message for message in server.sent if message["method"].startswith("mgp/")]


@pytest.mark.req("MGP-2.2")
async def test_the_offer_has_a_version_and_extensions():
    server = PretendServer()
    async with Client(server, version=ERAS[0], mgp=Mgp(audit=[]), capabilities={"experimental": {"x": {}}}):
        offered = server.asked("initialize")[0]["capabilities"]
    assert offered["mgp"]["version"] == "0.3.0"
    assert {"security", "permissions", "tool_security", "audit"} <= set(offered["mgp"]["extensions"])
    assert "callbacks" not in offered["mgp"]["extensions"]  # nobody could be asked
    assert offered["experimental"] == {"mgp": offered["mgp"], "x": {}}
    assert "extensions" not in offered


@pytest.mark.req("MGP-2.2")
async def test_without_sessions_the_offer_travels_with_every_request():
    server = PretendServer({**STATELESS, "tools/list": {"tools": []}})
    mgp = Mgp(audit=[], extensions=["audit"])
    async with Client(server, version=ERAS[1], mgp=mgp) as client:
        await client.tools()
    for method in ("server/discover", "tools/list"):
        capabilities = server.asked(method)[0]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert capabilities == {"extensions": {"dev.cloto/mgp": {"version": "0.3.0", "extensions": ["audit"]}}}


async def test_a_client_without_mgp_offers_nothing_of_it():
    server = PretendServer()
    async with Client(server, version=ERAS[0]) as client:
        assert client.mgp is None
    assert server.asked("initialize")[0]["capabilities"] == {}


@for_each_row("version", ERAS)
async def test_what_was_negotiated_can_be_read(version: str):
    async with guarded.server.connect(
        version, mgp=trusting(extensions=["security", "audit", "com.example.x"])
    ) as client:
        found = client.mgp
        assert found is not None
        assert found.extensions == ("security", "audit")
        assert found.sections == {"permissions", "tool_security", "audit"}
        assert (found.server_id, found.trust_level) == ("test.guarded", "sandboxed")
        needed = ("code_execution", "network.outbound", "shell.execute", "system.info")
        assert found.permissions_required == needed
        assert found.grants == dict.fromkeys(needed, "approved")


@for_each_row("version", ["1.0.0", 3, None])
async def test_a_server_of_another_major_version_is_a_plain_one(version: Any):
    server = speaking(mgp_block(version=version, permissions_required=["shell.execute"]))
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        assert client.mgp is not None and client.mgp.version is None
    assert server.asked("mgp/permission/request") == []


async def test_an_extension_that_was_not_offered_is_not_active():
    server = speaking(mgp_block(extensions=["security", "audit", 7]))
    async with Client(server, version=ERAS[0], mgp=trusting(extensions=["audit"])) as client:
        assert client.mgp is not None and client.mgp.extensions == ("audit",)


@pytest.mark.req("MGP-3.3", "MGP-3.4", "MGP-3.5")
async def test_permissions_are_settled_between_initialize_and_initialized():
    server = speaking(
        mgp_block(permissions_required=["shell.execute"]), {"mgp/permission/request": {}, "mgp/permission/grant": {}}
    )
    async with Client(server, version=ERAS[0], mgp=Mgp("config_only", granted=["shell.execute"], audit=[])):
        pass
    assert [message["method"] for message in server.sent] == [
        "initialize",
        "mgp/permission/request",
        "mgp/permission/grant",
        "notifications/initialized",
    ]
    asked, told = server.asked("mgp/permission/request")[0], server.asked("mgp/permission/grant")[0]
    assert (asked["permissions"], asked["policy"]) == (["shell.execute"], "config_only")
    assert told["grants"] == {"shell.execute": "approved"}
    assert asked["request_id"] == told["request_id"]


async def test_a_server_that_only_knows_the_other_names_is_told_by_those():
    replies = {"mgp/permission/await": {}, "mgp/permission/response": {}}
    server = speaking(mgp_block(permissions_required=["camera"]), replies)
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        assert client.mgp is not None and client.mgp.grants == {"camera": "approved"}
    assert server.asked("mgp/permission/response")[0]["grants"] == {"camera": "approved"}


async def test_a_server_that_takes_no_grants_is_still_called():
    refuses = Fail(-32600, "not yet")
    replies = {"mgp/permission/request": refuses, "mgp/permission/grant": refuses, "tools/call": {"content": []}}
    server = speaking(mgp_block(permissions_required=["camera"]), replies)
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        assert await client.call("look") is None


@pytest.mark.req("MGP-3.3")
@for_each_row("version", ERAS)
@for_each_row(
    ("options", "granted"),
    [
        ({"approval": "auto_approve"}, "approved"),
        ({"approval": "config_only"}, "deferred"),
        ({"approval": "config_only", "granted": ["network.outbound"]}, "approved"),
        ({"approval": "interactive", "approve": lambda *_: True}, "approved"),
        ({"approval": "interactive", "approve": lambda *_: "denied"}, "denied"),
        ({"approval": "interactive", "approve": lambda *_: None}, "deferred"),
        ({"approval": "interactive"}, "deferred"),
    ],
)
async def test_a_policy_decides_what_a_server_may_use(version: str, options: dict[str, Any], granted: str):
    async with guarded.server.connect(version, mgp=Mgp(**options, audit=[])) as client:
        assert client.mgp is not None and client.mgp.grants["network.outbound"] == granted
        assert await client.call("add", a=1, b=2) == 3
        if granted == "approved":
            assert "fetched" in await client.call("fetch", url="https://1.1.1.1/")
        else:
            with pytest.raises(PermissionDenied) as refused:
                await client.call("fetch", url="https://1.1.1.1/")
            assert refused.value.data["missing"] == {"network.outbound": granted}


@pytest.mark.req("MGP-3.3")
async def test_interactive_asks_once_for_each_permission_with_its_risk():
    asked: list[tuple[str, str, str]] = []

    async def approve(permission: str, risk: str, server: str) -> bool:
        asked.append((permission, risk, server))
        return permission == "system.info"

    async with guarded.server.connect(mgp=Mgp(approve=approve, granted=["code_execution"], audit=[])) as client:
        assert await client.call("uptime") == "long"
        with pytest.raises(PermissionDenied):
            await client.call("run", command="git status")
    assert asked == [
        ("network.outbound", "moderate", "test.guarded"),
        ("shell.execute", "dangerous", "test.guarded"),
        ("system.info", "safe", "test.guarded"),
    ]


async def test_without_approve_the_person_behind_the_client_is_asked():
    questions: list[str] = []

    def ask(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        questions.append(message)
        return {"approved": "shell" in message}

    async with guarded.server.connect(ERAS[0], answers=Answers(ask=ask), mgp=Mgp(audit=[])) as client:
        assert client.mgp is not None and client.mgp.grants["shell.execute"] == "approved"
        assert client.mgp.grants["system.info"] == "denied"
    assert "Allow test.guarded to use shell.execute (dangerous)?" in questions


async def test_a_server_is_told_what_was_denied():
    async with guarded.server.connect(ERAS[0], mgp=Mgp(approve=lambda *_: False, audit=[])) as client:
        asked = {"request_id": "r", "permissions": ["network.outbound"], "policy": "interactive", "message": ""}
        reply = await client.request("mgp/permission/request", asked)
        assert reply["grants"] == {"network.outbound": "denied"}


@pytest.mark.req("MGP-3.3", "MGP-3.4")
@for_each_row("version", ERAS)
async def test_a_server_that_needs_what_deny_all_denies_is_not_connected(version: str):
    events = list[Any]()
    with pytest.raises(PermissionDenied, match=r"needs .*shell.execute.*deny_all"):
        async with guarded.server.connect(version, mgp=Mgp("deny_all", audit=Trail(events))):
            pass
    assert [event["event_type"] for event in events][-1] == "SERVER_DISCONNECTED"


async def test_under_deny_all_a_server_whose_tools_say_nothing_is_stopped_too():
    replies = {"mgp/permission/request": {}, "mgp/permission/grant": {}, "tools/list": {"tools": [tool("act", "x")]}}
    server = speaking(mgp_block(permissions_required=["shell.execute"]), replies)
    with pytest.raises(PermissionDenied):
        async with Client(server, version=ERAS[0], mgp=Mgp("deny_all", audit=[])) as client:
            await client.call("act", x="1")
    assert server.asked("tools/call") == [] and server.asked("notifications/initialized") == []


@for_each_row("version", ERAS)
async def test_under_deny_all_what_was_configured_is_approved(version: str):
    needed = ["code_execution", "network.outbound", "shell.execute", "system.info"]
    async with guarded.server.connect(version, mgp=Mgp("deny_all", granted=needed, audit=[])) as client:
        assert client.mgp is not None and client.mgp.grants == dict.fromkeys(needed, "approved")


@for_each_row(
    ("answer", "words", "retryable"), [(False, "does not grant", False), (None, "waits for a decision", True)]
)
async def test_a_tool_that_does_not_say_what_it_needs_needs_what_its_server_does(
    answer: bool | None, words: str, retryable: bool
):
    listed = {"tools": [tool("act", "x"), tool("free", security={"risk_level": "safe", "permissions_required": []})]}
    replies = {"mgp/permission/request": {}, "mgp/permission/grant": {}, "tools/list": listed, "tools/call": DONE}
    server = speaking(mgp_block(permissions_required=["shell.execute"]), replies)
    async with Client(server, version=ERAS[0], mgp=Mgp(approve=lambda *_: answer, audit=[])) as client:
        with pytest.raises(PermissionDenied, match=words) as refused:
            await client.call("act", x="1")
        assert refused.value.data["retryable"] is retryable
        assert await client.call("free") == "done"


@pytest.mark.req("MGP-3.5", "MGP-3.6")
async def test_what_a_server_is_told_has_the_fields_of_the_text():
    noon = datetime(2999, 3, 1, 12, tzinfo=UTC)
    decided = {"camera": Grant("approved", noon), "memory.read": Grant("denied"), "memory.write": Grant("approved")}
    replies = {"mgp/permission/request": {}, "mgp/permission/grant": {}}
    server = speaking(mgp_block(permissions_required=[*decided]), replies)
    async with Client(server, version=ERAS[0], mgp=Mgp(approve=lambda name, *_: decided[name], audit=[])):
        pass
    (asked,) = server.asked("mgp/permission/request")
    assert asked == {
        "request_id": asked["request_id"],
        "permissions": [*decided],
        "policy": "interactive",
        "message": "Waiting for operator approval",
    }
    about = {"request_id": asked["request_id"], "approved_by": "defserve"}
    assert server.asked("mgp/permission/grant") == [
        {**about, "grants": {"camera": "approved"}, "expires_at": "2999-03-01T12:00:00Z"},
        {**about, "grants": {"memory.read": "denied", "memory.write": "approved"}, "expires_at": None},
    ]


@for_each_row("version", ERAS)
async def test_grants_reach_the_server_in_both_eras(version: str):
    server = Server("strict", permissions="deny_all")
    server.add_tool(guarded.uptime)
    async with server.connect(version) as client:
        assert (await client.call_raw("uptime"))["isError"]
    async with server.connect(version, mgp=trusting()) as client:
        assert await client.call("uptime") == "long"


@pytest.mark.parametrize("version", ERAS)
async def test_an_approval_holds_until_its_time_and_is_asked_for_again(version: str, monkeypatch: pytest.MonkeyPatch):
    now = datetime.now(UTC)
    given: list[Grant] = [Grant("denied"), Grant("approved", now + timedelta(hours=1))]
    mgp = Mgp(approve=lambda *_: given.pop(), granted=["network.outbound", "shell.execute", "code_execution"], audit=[])
    async with guarded.server.connect(version, mgp=mgp) as client:
        assert await client.call("uptime") == "long"
        monkeypatch.setattr(vocabulary, "utc_now", lambda: now + timedelta(hours=2))
        assert client.mgp is not None and client.mgp.grants["system.info"] == "deferred"
        with pytest.raises(PermissionDenied):
            await client.call("uptime")
    assert given == []


async def test_what_a_person_put_off_is_asked_when_it_is_needed():
    said: list[Any] = [True, None]
    granted = ["network.outbound", "shell.execute", "code_execution"]
    mgp = Mgp(approve=lambda *_: said.pop(), granted=granted, audit=[])
    async with guarded.server.connect(ERAS[0], mgp=mgp) as client:
        assert client.mgp is not None and client.mgp.grants["system.info"] == "deferred"
        assert await asyncio.gather(*(client.call("uptime") for _ in range(5))) == ["long"] * 5
        assert client.mgp.grants["system.info"] == "approved"
    assert said == []  # asked once, though five calls wanted it


async def test_a_bare_family_name_stands_for_its_permissions():
    listed = {
        "tools": [{"name": "cat", "security": {"risk_level": "safe", "permissions_required": ["filesystem.read"]}}]
    }
    replies = {"mgp/permission/request": {}, "mgp/permission/grant": {}, "tools/list": listed}
    server = speaking(mgp_block(permissions_required=["filesystem"]), {**replies, "tools/call": {"content": []}})
    asked: list[Any] = []
    mgp = Mgp(approve=lambda *about: asked.append(about) or True, granted=["filesystem.read"], audit=[])
    async with Client(server, version=ERAS[0], mgp=mgp) as client:
        assert await client.call("cat") is None
    assert asked == [("filesystem", "dangerous", "pretend.mgp")]  # more than was configured: reading alone
    assert server.asked("mgp/permission/grant")[0]["grants"] == {"filesystem": "approved"}


async def test_a_grant_that_ends_at_nobodys_time_is_refused():
    with pytest.raises(UsageError, match="no time zone"):
        async with guarded.server.connect(
            mgp=Mgp(approve=lambda *_: Grant("approved", datetime(2026, 1, 1)), audit=[])
        ):
            pass


@for_each_row(
    "options", [{"approval": "yolo"}, {"granted": "camera"}, {"granted": ["cammera"]}, {"validators": {"x": "sandbx"}}]
)
def test_options_that_mean_nothing_are_refused_when_they_are_made(options: dict[str, Any]):
    with pytest.raises(UsageError):
        Mgp(**options)


@for_each_row("version", ERAS)
async def test_an_admin_asks_grants_and_revokes_access(version: str):
    server = Server("kept", access=AccessPolicy("opt-out", [Entry("server_grant", "bob")], admins=["local"]))
    server.add_tool(guarded.add)
    async with server.connect(version, mgp=trusting()) as client:
        assert (await client.access_query("ann"))["permission"] == "allow"
        entry = await client.access_grant("ann", "add", permission="deny", justification="for now")
        assert (entry["entry_type"], entry["granted_by"]) == ("tool_grant", "local")
        assert (await client.access_query("ann", "add"))["source"] == "tool_grant"
        assert (await client.access_revoke("ann", "add"))["revoked"] is True
        await client.access_grant("local", permission="deny")
        with pytest.raises(AccessDenied):
            await client.call("add", a=1, b=2)


@for_each_row(
    ("mgp", "reason"),
    [(None, "this client does not speak MGP"), (Mgp(extensions=["audit"], audit=[]), "no access control")],
)
async def test_access_that_was_not_negotiated_cannot_be_changed(mgp: Mgp | None, reason: str):
    async with guarded.server.connect(mgp=mgp) as client:
        with pytest.raises(PeerError, match=reason):
            await client.access_grant("ann", "add")


async def test_the_names_that_a_server_gives_do_not_hide_what_a_person_is_asked():
    questions: list[str] = []
    block = mgp_block(extensions=["security", "permissions"], server_id="s" * 5_000, trust_level="t" * 5_000)
    needs = {"risk_level": "safe", "permissions_required": ["p" * 5_000] * 5_000}
    server = speaking(block, {"tools/list": {"tools": [tool("act", security=needs)]}, "tools/call": DONE})
    answers = Answers(ask=lambda message, schema: questions.append(message) or Accept)
    async with Client(server, version=ERAS[0], answers=answers, mgp=Mgp(audit=[])) as client:
        await client.call("act")
        assert client.mgp is not None and client.mgp.trust_level == "t" * 256
    assert questions == [f"Allow {'s' * 256} to use {'p' * 256} (dangerous)?"]
