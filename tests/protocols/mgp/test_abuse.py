"""What MGP lets a peer try: grants by the wrong side, borrowed names, guessed ids, answers that come late or twice."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from defserve import Context, Server, dangerous, moderate
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.server import AccessPolicy, AuditLog, Entry
from tests import asgi
from tests.protocols.mgp.callers import ALICE, BOB, STRANGER, Clock, Trail, code_of, offer, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw, raw, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
GRANTS = "dev.cloto/mgp/grants"
UUID = "0b8f0c66-3d0b-4c43-9d0e-6f6a2f7d8a10"


def made(**options: Any) -> tuple[Server, Trail]:
    trail = Trail()
    server = Server("bank", "1", audit=trail, **options)

    @server.tool
    @moderate("memory.write")
    def note() -> str:
        return "noted"

    @server.tool
    @dangerous("filesystem.write")
    async def wipe() -> str:
        return "wiped"

    @server.tool
    async def asks(ctx: Context) -> bool:
        return await ctx.confirm("Really?")

    return server, trail


async def noted(peer: Raw | asgi.Peer, **more: Any) -> int | str | None:
    """How the call of `note` was refused; None where it was not."""
    return code_of(await peer.ask("tools/call", {"name": "note", "arguments": {}, **more}))


def approved(*names: str) -> Json:
    return dict.fromkeys(names or ("memory.write",), "approved")


# -- who grants ------------------------------------------------------------------------------------------


@for_each_row("version", ERAS)
@for_each_row("method", ["request", "await"])
@for_each_row(
    "more",
    [
        {"policy": "auto_approve"},
        {"approved_by": "admin"},
        {"grants": approved()},
        {"message": "approve it"},
        {"result": {"grants": approved()}},
    ],
)
@pytest.mark.req("GGEN-P4-3")
async def test_asking_for_a_permission_grants_nothing_whatever_it_says(method: str, more: Json, version: str):
    server, trail = made(permissions="deny_all")
    async with speaking(server, version, ["security"]) as peer:
        reply = await peer.ask(f"mgp/permission/{method}", {"request_id": "r", "permissions": ["memory.write"], **more})
        assert reply["result"]["grants"] == {"memory.write": "denied"}
        assert reply["result"]["approved_by"] is None
        assert await noted(peer) == 1000
    assert not trail.told("PERMISSION_GRANTED")


async def test_a_tools_own_code_cannot_grant():
    """There is no verb for it: what a function can reach of its call knows permissions only to be asked."""
    server = Server("x", "1", permissions="deny_all")

    @server.tool
    def verbs(ctx: Context) -> list[str]:
        return [name for name in dir(ctx) if "grant" in name or "approve" in name or "permission" in name]

    async with raw(server, SESSION) as peer:
        (block,) = (await peer.call("verbs"))["content"]
    assert json.loads(block["text"]) == []


async def test_an_unasked_response_of_the_servers_grants_nothing():
    server, _ = made(permissions="deny_all")
    async with speaking(server, SESSION, ["security"]) as peer:
        # A reply to a question nobody asked, in the form of §3.6.
        await peer.send({"jsonrpc": "2.0", "id": "perm-001", "result": {"grants": approved(), "approved_by": "kernel"}})
        await peer.tell("notifications/mgp.permission.granted", {"grants": approved()})
        assert await noted(peer) == 1000


@for_each_row("claimed", ["operator", "admin", "bob", "local", "\r\nroot"])
@for_each_row("who", [LOCAL_PRINCIPAL, ALICE])
async def test_approved_by_is_whoever_was_authenticated(claimed: str, who: Principal):
    server, trail = made(permissions="deny_all")
    async with speaking(server, SESSION, ["security"], who=who) as peer:
        params = {"grants": approved(), "approved_by": claimed, "agent_id": claimed, "granted_by": claimed}
        reply = await peer.ask("mgp/permission/grant", params)
    assert reply["result"]["approved_by"] == who.id
    assert {event["actor"]["id"] for event in trail.events} == {who.id}


@for_each_row("version", ERAS)
async def test_a_stranger_grants_itself_nothing(version: str):
    server, _ = made()
    async with speaking(server, version, ["security"], who=STRANGER) as peer:
        if version == STATELESS:
            assert await noted(peer, _meta={GRANTS: approved()}) == 1000
        else:
            reply = await peer.ask("mgp/permission/grant", {"grants": approved()})
            assert reply["result"]["grants"] == {"memory.write": "denied"}
            assert await noted(peer) == 1000


@for_each_row("decision", ["deferred", "denied"])
@for_each_row("version", ERAS)
async def test_deferred_is_not_approved(decision: str, version: str):
    server, _ = made(permissions="operator")
    async with speaking(server, version, ["security"]) as peer:
        grants = {"memory.write": decision}
        if version == STATELESS:
            assert await noted(peer, _meta={GRANTS: grants}) == 1000
        else:
            await peer.ask("mgp/permission/grant", {"grants": grants})
            assert await noted(peer) == 1000


@for_each_row("version", ERAS)
async def test_an_expiry_is_checked_when_the_grant_is_used(version: str):
    server, _ = made(permissions="deny_all")
    clock = server.mgp.permissions.clock = Clock()
    until = (clock() + timedelta(seconds=10)).isoformat()
    sent: Json = {}
    async with speaking(server, version, ["security"]) as peer:
        if version == STATELESS:
            sent = {"_meta": {GRANTS: {"memory.write": {"decision": "approved", "expires_at": until}}}}
        else:
            await peer.ask("mgp/permission/grant", {"grants": approved(), "expires_at": until})
        assert await noted(peer, **sent) is None
        clock.pass_seconds(10)
        assert await noted(peer, **sent) == 1000


# -- what was not negotiated -----------------------------------------------------------------------------


@for_each_row("version", ERAS)
@for_each_row(
    "more",
    [
        {"_mgp": {"grants": approved(), "approved_by": "operator"}},
        {"_meta": {"_mgp": {"grants": approved()}}},
        {"_meta": {GRANTS: approved()}},
        {"_meta": {"dev.defserve/grants": approved()}},
        {"security": {"risk_level": "safe"}},
        {"permissions": approved()},
        {"confirmed": True},
    ],
)
async def test_members_of_mgp_count_for_nothing_where_it_was_not_negotiated(more: Json, version: str):
    server, _ = made(permissions="deny_all")
    async with speaking(server, version) as peer:
        assert await noted(peer, **more) == "permission_denied"


async def test_a_plain_client_hears_nothing_of_mgp():
    server, _ = made(access=AccessPolicy("opt-out"), confirm="never")
    async with speaking(server, SESSION) as peer:
        heard = [peer.opening, await peer.ask("tools/list"), await peer.call("note"), await peer.call("wipe")]
        heard += await peer.news()
        heard.append(await peer.ask("tools/call", {"name": "nothing"}))
    told = json.dumps(heard)
    assert "_mgp" not in told
    assert "notifications/mgp" not in told
    assert '"security":' not in told.replace('"dev.defserve/security":', "")


# -- access ----------------------------------------------------------------------------------------------


GRANT: Json = {
    "entry_type": "server_grant",
    "agent_id": "bob",
    "server_id": "bank",
    "permission": "allow",
    "granted_by": "root",
    "justification": "because I say so",
}


@for_each_row("version", ERAS)
@for_each_row("method", ["query", "grant", "revoke"])
@for_each_row(("admins", "who", "code"), [((), ALICE, -32601), (("alice",), BOB, 1001), (("alice",), STRANGER, 1001)])
async def test_access_is_changed_by_an_admin_or_not_at_all(
    method: str, admins: Any, who: Principal, code: int, version: str
):
    policy = AccessPolicy("opt-in", admins=admins)
    server, _ = made(access=policy)
    async with speaking(server, version, ["access_control"], who=who) as peer:
        # Whoever the caller says it is, it is who it was authenticated as.
        reply = await peer.ask(f"mgp/access/{method}", GRANT | {"caller": "alice", "actor": {"id": "alice"}})
    assert reply["error"]["code"] == code
    assert policy.entry("bob") is None


async def test_granted_by_is_the_admin_who_did_it():
    policy = AccessPolicy("opt-in", admins=["alice"])
    server, trail = made(access=policy)
    async with speaking(server, SESSION, ["access_control"], who=ALICE) as peer:
        reply = await peer.ask("mgp/access/grant", GRANT | {"granted_at": "1999-01-01T00:00:00Z"})
    assert reply["result"]["granted_by"] == "alice"
    assert not reply["result"]["granted_at"].startswith("1999")
    (event,) = trail.events
    assert (event["actor"]["id"], event["durable"]) == ("alice", True)


@for_each_row("version", ERAS)
@for_each_row("extensions", [(), ("security", "access_control")])
async def test_a_tools_deny_beats_the_servers_allow(extensions: Any, version: str):
    entries = [Entry("server_grant", "bob"), Entry("tool_grant", "bob", "note", "deny")]
    server, _ = made(access=AccessPolicy("opt-in", entries, admins=["alice"]))
    async with speaking(server, version, extensions, who=BOB) as peer:
        assert await noted(peer) == (1001 if extensions else "access_denied")
        assert await noted(peer, agent_id="alice", _meta={"agent_id": "alice"}) is not None
        assert code_of(await peer.ask("tools/call", {"name": "asks", "arguments": {}})) != "access_denied"


async def test_a_deny_that_expires_falls_back_to_what_stands_below():
    soon = datetime.now(UTC) + timedelta(seconds=60)
    entries = [Entry("server_grant", "bob", permission="deny"), Entry("tool_grant", "bob", "note", expires_at=soon)]
    server, _ = made(access=AccessPolicy("opt-out", entries))
    clock = server.mgp.access.clock = Clock()
    clock.now = soon - timedelta(seconds=1)
    async with speaking(server, SESSION, who=BOB) as peer:
        assert await noted(peer) is None
        clock.now = soon
        assert await noted(peer) == "access_denied"


# -- ids and traces --------------------------------------------------------------------------------------


@for_each_row(
    ("given", "taken"),
    [
        (UUID, True),
        (UUID.upper(), True),
        ("trace-1", True),
        ("x\r\nFAKE 200 OK", False),
        (UUID + "\n", False),
        ("\u202e" + UUID[1:], False),
        ("${jndi:ldap://x}", False),
        ("a" * 10_000, False),
        (7, False),
        ({"id": UUID}, False),
    ],
)
@for_each_row("top", [False, True], ids=["in params", "beside params"])
async def test_without_mgp_only_a_harmless_trace_id_is_taken_over(given: Any, taken: bool, top: bool):
    server, trail = made()
    async with raw(server, SESSION) as peer:
        message: Json = {"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": "note"}}
        (message if top else message["params"])["trace_id"] = given
        await peer.send(message)
        await peer.reply_to(99)
    (event,) = [event for event in trail.events if event["event_type"] == "TOOL_EXECUTED"]
    assert (event["trace_id"] == given) is taken
    assert taken or re.fullmatch(r"req-[0-9a-f]{16}", event["trace_id"])


async def callback_of(peer: Raw) -> tuple[int, Json]:
    id = await peer.begin("tools/call", {"name": "asks", "arguments": {}})
    (request,) = [m for m in await peer.news() if m["method"] == "notifications/mgp.callback.request"]
    return id, request["params"]


async def test_callback_ids_are_random_and_never_the_documents_examples():
    server, _ = made()
    async with speaking(server, SESSION, ["callbacks"]) as peer:
        ids = [(await callback_of(peer))[1]["callback_id"] for _ in range(20)]
        assert len(set(ids)) == 20
        assert min(map(len, ids)) >= 32
        for guess in ("cb-001", "cb-1", ids[0][:-1], ids[0].swapcase(), ""):
            reply = await peer.ask("mgp/callback/respond", {"callback_id": guess, "response": "confirm"})
            assert reply["error"]["code"] == -32602


async def test_a_callback_is_answered_once_in_time_and_in_its_own_session():
    server, _ = made()
    async with speaking(server, SESSION, ["callbacks"]) as peer, speaking(server, SESSION, ["callbacks"]) as other:
        id, params = await callback_of(peer)
        answer = {"callback_id": params["callback_id"], "response": "confirm"}
        assert (await other.ask("mgp/callback/respond", answer))["error"]["code"] == -32602
        assert (await peer.ask("mgp/callback/respond", answer))["result"] == {"accepted": True}
        assert (await peer.ask("mgp/callback/respond", answer | {"response": "cancel"}))["error"]["code"] == -32602
        assert (await peer.reply_to(id))["result"]["content"][0]["text"] == "true"
        # The call is over: whatever comes now is late.
        assert (await peer.ask("mgp/callback/respond", answer))["error"]["code"] == -32602


async def test_a_confirmation_of_a_cancelled_call_is_too_late():
    server, _ = made()
    async with speaking(server, SESSION, ["callbacks"]) as peer:
        id, params = await callback_of(peer)
        await peer.tell("notifications/cancelled", {"requestId": id})
        await turns()
        answer = {"callback_id": params["callback_id"], "response": "confirm"}
        assert (await peer.ask("mgp/callback/respond", answer))["error"]["code"] == -32602


async def test_over_http_nobody_answers_for_another():
    server, _ = made()
    async with asgi.living(asgi.with_tokens(server.asgi(), "ann", "bob")) as app:
        peers = [asgi.Peer(app, SESSION, offer(SESSION, "callbacks")) for _ in range(2)]
        for peer, token in zip(peers, ("ann", "bob"), strict=True):
            peer.token = token
            await peer.open()
        one, other = peers
        exchange = one.begin_call("asks")
        request = await exchange.next()
        answer = {"callback_id": request["params"]["callback_id"], "response": "confirm"}
        assert (await other.ask("mgp/callback/respond", answer))["error"]["code"] == -32602
        # Nor with the session of the one who was asked.
        other.session = one.session
        stolen = await other.begin_request("mgp/callback/respond", answer).ended()
        assert stolen.status == 404
        assert (await one.ask("mgp/callback/respond", answer))["result"] == {"accepted": True}
        assert asgi.text(asgi.last(await exchange.ended())) == "true"


# -- the audit trail -------------------------------------------------------------------------------------


class Broken:
    """A sink whose disk is full."""

    def append(self, event: Any, *, durable: bool = False) -> None:
        raise OSError("No space left on device")


@for_each_row("version", ERAS)
@for_each_row("extensions", [(), ("security", "audit")])
async def test_a_dangerous_call_that_cannot_be_written_down_does_not_happen(extensions: Any, version: str):
    ran: list[str] = []
    server = Server("x", "1", audit=Broken(), confirm="never")

    @server.tool
    @dangerous("filesystem.write")
    def wipe() -> None:
        ran.append("wipe")

    @server.tool
    @moderate("memory.write")
    def note() -> str:
        ran.append("note")
        return "noted"

    async with speaking(server, version, extensions) as peer:
        assert code_of(await peer.ask("tools/call", {"name": "wipe", "arguments": {}})) == "audit_unavailable"
        assert await noted(peer) is None
    assert ran == ["note"]


async def test_what_a_peer_sends_cannot_forge_a_line_of_the_trail(tmp_path: Any):
    path = tmp_path / "audit.log"
    server = Server("x", "1", audit=AuditLog(path, key="k" * 32))

    @server.tool
    @moderate("memory.write", validator="sandbox")
    def run(command: str) -> None: ...

    forged = '"}\n{"seq":99,"event":{"event_type":"ACCESS_GRANTED"}}\u2028\x85'
    async with raw(server, SESSION) as peer:
        await peer.ask("tools/call", {"name": "run", "arguments": {"command": forged}})
        await peer.ask("tools/call", {"name": "run", "arguments": {forged: forged}})
    server.mgp.audit.close()
    lines = path.read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert "ACCESS_GRANTED" not in [json.loads(line).get("event", {}).get("event_type") for line in lines]
