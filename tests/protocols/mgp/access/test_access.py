"""MGP §5: whose entry decides, what agents see and call of it, and that only an admin changes it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server, UsageError
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.protocols.mgp.access import AccessDecision, AccessPolicy, Entry
from tests.protocols.mgp.callers import ALICE, BOB, LOOPBACK, NOON, STRANGER, Clock, Trail, code_of, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
CHANGES = ("ACCESS_GRANTED", "ACCESS_REVOKED", "dev.defserve.access_refused")
LATER = NOON + timedelta(seconds=60)


def office(policy: AccessPolicy, **options: Any) -> tuple[Server, Trail, Clock]:
    trail, clock = Trail(), Clock()
    server = Server("office", "1", access=policy, audit=trail, **options)
    server.mgp.access.clock = clock

    @server.tool
    def copy() -> str:
        return "copied"

    @server.tool
    def shred() -> str:
        return "gone"

    @server.resource("text://plan")
    def plan() -> str:
        return "of the house"

    return server, trail, clock


async def listed(peer: Raw) -> set[str]:
    return {tool["name"] for tool in (await peer.ask("tools/list"))["result"]["tools"]}


async def call(peer: Raw, tool: str) -> int | str | None:
    return code_of(await peer.ask("tools/call", {"name": tool}))


async def change(peer: Raw, method: str, **params: Any) -> Json:
    return await peer.ask(f"mgp/access/{method}", {"server_id": "office", **params})


async def changed(peer: Raw, method: str, **params: Any) -> Json:
    reply = await change(peer, method, **params)
    assert "result" in reply, reply
    return reply["result"]


# -- deciding --------------------------------------------------------------------------------------------

AGENTS, TOOLS = ("ann", "ben"), ("copy", "shred")
SECONDS = st.none() | st.integers(-3, 3)


def _entries() -> st.SearchStrategy[list[Entry]]:
    def entry(agent: str, tool: str | None, permission: Any, lasts: int | None) -> Entry:
        expires = None if lasts is None else NOON + timedelta(seconds=lasts)
        kind = "server_grant" if tool is None else "tool_grant"
        return Entry(kind, agent, tool, permission, "root", NOON, expires)

    one = st.builds(
        entry, st.sampled_from(AGENTS), st.sampled_from((*TOOLS, None)), st.sampled_from(["allow", "deny"]), SECONDS
    )
    return st.lists(one, max_size=8)


def _expected(default: str, entries: Iterable[Entry], agent: str, tool: str | None, now: datetime) -> tuple[str, str]:
    """§5.2 as it reads: the last word given on each of three levels, the first level that has one."""
    for level, subject in (("tool_grant", tool), ("server_grant", None)):
        last = [e for e in entries if (e.entry_type, e.agent_id, e.tool_name) == (level, agent, subject)][-1:]
        if last and (last[0].expires_at is None or now < last[0].expires_at):
            return last[0].permission, level
    return ("deny" if default == "opt-in" else "allow"), "default_policy"


@pytest.mark.req("MGP-5.2", "MGP-5.5")
@given(default=st.sampled_from(["opt-in", "opt-out"]), entries=_entries(), seconds=st.integers(-4, 4))
def test_a_tools_entry_outranks_the_servers_which_outranks_the_default(
    default: Any, entries: list[Entry], seconds: int
):
    policy, now = AccessPolicy(default), NOON + timedelta(seconds=seconds)
    for entry in entries:
        policy.grant(entry)
    for agent in (*AGENTS, "stranger"):
        for tool in (*TOOLS, None):
            found = policy.decide(agent, tool, now)
            assert (found.permission, found.source) == _expected(default, entries, agent, tool, now)
        rules = dict(policy.list_active_entries(agent, now))
        for tool in TOOLS:  # what a list is remembered by says all there is to know
            assert policy.decide(agent, tool, now).permission == rules.get(
                tool, rules.get(None, "deny" if default == "opt-in" else "allow")
            )


@given(entries=_entries())
def test_what_is_revoked_leaves_no_trace(entries: list[Entry]):
    policy = AccessPolicy("opt-out")
    for entry in entries:
        policy.grant(entry)
    for entry in entries:
        policy.revoke(entry.agent_id, entry.tool_name)
        assert policy.revoke(entry.agent_id, entry.tool_name) is None
    assert all(policy.decide(agent, tool, NOON) == ("allow", "default_policy", None, None, None)
               for agent in AGENTS for tool in TOOLS)  # fmt: skip


@pytest.mark.req("MGP-5.5")
def test_who_has_no_entry_is_denied_unless_the_policy_says_otherwise():
    assert AccessPolicy().decide("ann", "copy", NOON).permission == "deny"
    assert AccessPolicy("opt-out").decide("ann", "copy", NOON).permission == "allow"


@pytest.mark.req("MGP-5.3")
@for_each_row(
    "entry",
    [
        lambda: Entry("tool_grant", "ann"),
        lambda: Entry("server_grant", "ann", "copy"),
        lambda: Entry("grant", "ann"),  # pyright: ignore[reportArgumentType]
        lambda: Entry("server_grant", ""),
        lambda: Entry("server_grant", "a\nb"),
        lambda: Entry("server_grant", "x" * 257),
        lambda: Entry("server_grant", "ann", permission="maybe"),  # pyright: ignore[reportArgumentType]
        lambda: Entry("server_grant", "ann", expires_at=datetime(2026, 1, 1)),
        lambda: Entry("server_grant", "ann", expires_at="2026-01-01T00:00:00Z"),  # pyright: ignore[reportArgumentType]
        lambda: AccessPolicy("open"),  # pyright: ignore[reportArgumentType]
        lambda: AccessPolicy(admins="alice"),
        lambda: AccessPolicy(admins=["anonymous:127.0.0.1"]),
        lambda: AccessPolicy(admins=["admin:write"]),
        lambda: AccessPolicy(admin_scopes=["two words"]),
        lambda: AccessPolicy(entries=[Entry("server_grant", "a"), Entry("server_grant", "a", permission="deny")]),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(entry: Any):
    with pytest.raises(UsageError):
        entry()


def test_a_store_is_read_at_the_start_and_written_before_a_change_takes_effect():
    kept = {"ann": Entry("server_grant", "ann")}

    class Kept:
        def iter_entries(self) -> Iterable[Entry]:
            return list(kept.values())

        def store_entry(self, entry: Entry) -> None:
            if entry.agent_id == "full":
                raise OSError
            kept[entry.agent_id] = entry

        def remove(self, entry: Entry) -> None:
            del kept[entry.agent_id]

    policy = AccessPolicy(entries=[Entry("server_grant", "ann", permission="deny")], store=Kept())
    assert policy.decide("ann", "copy", NOON).permission == "allow"
    policy.grant(Entry("server_grant", "ben"))
    policy.revoke("ann")
    assert list(kept) == ["ben"]
    with pytest.raises(OSError):
        policy.grant(Entry("server_grant", "full"))
    assert AccessPolicy(store=Kept()).decide("ben", "copy", NOON) == policy.decide("ben", "copy", NOON)
    assert policy.decide("full", "copy", NOON).permission == "deny"


def test_entries_changed_from_many_threads_are_all_there():
    policy = AccessPolicy()

    def work(thread: int) -> None:
        for number in range(50):
            policy.grant(Entry("tool_grant", f"agent{number}", f"tool{thread}"))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(policy.list_active_entries(f"agent{number}", NOON)) == 4 for number in range(50))


# -- the gate --------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-5.2")
@for_each_row("version", ERAS)
@for_each_row("extensions", [(), ("access_control",)], ids=["plain", "mgp"])
@for_each_row("who", [LOCAL_PRINCIPAL, ALICE, LOOPBACK, STRANGER], ids=lambda who: who.id)
async def test_agents_see_and_call_what_they_have_access_to(who: Principal, extensions: tuple[str, ...], version: str):
    entries = [Entry("server_grant", who.id), Entry("tool_grant", who.id, "shred", "deny")]
    server, trail, _ = office(AccessPolicy(entries=entries, admins=["root"]))
    async with speaking(server, version, extensions, who=who) as peer:
        assert await listed(peer) == {"copy"}
        assert await call(peer, "copy") is None
        assert await call(peer, "shred") == (1001 if extensions else "access_denied")
        assert "result" in await peer.ask("resources/read", {"uri": "text://plan"})
    assert [details["reason"] for _, details in trail.told("TOOL_BLOCKED")] == ["access_denied"]


async def test_a_refusal_names_the_agent_and_the_tool():
    server, _, _ = office(AccessPolicy(admins=["root"]))
    async with speaking(server, SESSION, ["access_control"], who=BOB) as peer:
        error = (await peer.ask("tools/call", {"name": "shred"}))["error"]
    assert "bob" in error["message"] and "shred" in error["message"]
    assert error["data"]["_mgp"]["details"] == {"tool": "shred", "agent_id": "bob", "source": "default_policy"}


async def test_an_agent_cannot_name_itself_another():
    server, _, _ = office(AccessPolicy(entries=[Entry("server_grant", "alice")], admins=["root"]))
    async with speaking(server, SESSION, ["access_control"], who=BOB) as peer:
        claims = {"agent_id": "alice", "_meta": {"agent_id": "alice"}, "_mgp": {"agent_id": "alice"}}
        assert code_of(await peer.ask("tools/call", {"name": "copy", **claims})) == 1001
        assert (await peer.ask("tools/list", claims))["result"]["tools"] == []


@for_each_row("version", ERAS)
async def test_an_entry_that_expires_takes_list_and_call_with_it(version: str):
    server, _, clock = office(AccessPolicy(entries=[Entry("tool_grant", "bob", "copy", expires_at=LATER)]))
    async with speaking(server, version, who=BOB) as peer:
        clock.pass_seconds(59)
        assert (await listed(peer), await call(peer, "copy")) == ({"copy"}, None)
        clock.pass_seconds(1)
        assert (await listed(peer), await call(peer, "copy")) == (set(), "access_denied")


async def test_agents_with_the_same_rules_share_a_view_and_others_do_not():
    server, _, _ = office(
        AccessPolicy(entries=[Entry("server_grant", "alice"), Entry("server_grant", "bob", justification="too")])
    )
    async with speaking(server, SESSION, who=ALICE) as alice, speaking(server, SESSION, who=BOB) as bob:
        async with speaking(server, SESSION, who=STRANGER) as stranger:
            assert [await listed(peer) for peer in (alice, bob, stranger)] == [{"copy", "shred"}] * 2 + [set()]
    assert server.mgp.access.policy.list_active_entries("alice", NOON) == server.mgp.access.policy.list_active_entries(
        "bob", NOON
    )


# -- an admin's methods ----------------------------------------------------------------------------------


@pytest.mark.req("MGP-5.4q", "MGP-5.4g", "MGP-5.4r")
@for_each_row("version", ERAS)
async def test_an_admin_grants_asks_and_revokes(version: str):
    policy = AccessPolicy(admins=["alice"])
    server, trail, _ = office(policy)
    async with speaking(server, version, ["access_control"], who=ALICE) as admin:
        about = {"entry_type": "tool_grant", "agent_id": "bob", "tool_name": "copy"}
        reason = {"justification": "needs copies", "expires_at": "2026-03-01T21:01:00+09:00"}
        granted = await changed(admin, "grant", **about, permission="allow", granted_by="root", **reason)
        entry = {
            **about,
            "server_id": "office",
            "permission": "allow",
            "granted_by": "alice",
            "granted_at": "2026-03-01T12:00:00Z",
            "expires_at": "2026-03-01T12:01:00Z",
            "justification": "needs copies",
        }
        assert granted.items() >= entry.items()
        answer = await changed(admin, "query", agent_id="bob", tool_name="copy")
        assert {name: value for name, value in answer.items() if name not in ("_meta", "resultType")} == {
            "permission": "allow",
            "source": "tool_grant",
            "granted_by": "alice",
            "granted_at": "2026-03-01T12:00:00Z",
            "expires_at": "2026-03-01T12:01:00Z",
        }
        async with speaking(server, version, who=BOB) as peer:
            assert (await listed(peer), await call(peer, "copy")) == ({"copy"}, None)
            assert (await changed(admin, "revoke", **about)).items() >= {"revoked": True, **entry}.items()
            assert (await listed(peer), await call(peer, "copy")) == (set(), "access_denied")
        again = await changed(admin, "revoke", **about)
        assert (again["revoked"], again["reason"]) == (False, "there is no such entry")
        assert (await changed(admin, "query", agent_id="bob", tool_name="copy"))["source"] == "default_policy"
    assert trail.told(*CHANGES) == [("ACCESS_GRANTED", entry), ("ACCESS_REVOKED", entry)]
    assert all(event["durable"] for event in trail.events if event["event_type"] in CHANGES)


@pytest.mark.req("MGP-5.4g")
async def test_an_admin_denies_one_tool_or_the_server():
    server, trail, _ = office(AccessPolicy("opt-out", admin_scopes=["tools:admin"]))
    async with speaking(server, SESSION, ["access_control"], who=ALICE) as admin:
        await changed(admin, "grant", entry_type="server_grant", agent_id="bob", tool_name=None, permission="deny")
        await changed(admin, "grant", entry_type="tool_grant", agent_id="bob", tool_name="copy", permission="allow")
        assert (await changed(admin, "query", agent_id="bob"))["permission"] == "deny"
        async with speaking(server, SESSION, who=BOB) as peer:
            assert await listed(peer) == {"copy"}
    assert [event for event, _ in trail.told(*CHANGES)] == ["ACCESS_REVOKED", "ACCESS_GRANTED"]


@for_each_row("method", ["query", "grant", "revoke"])
@for_each_row("who", [LOCAL_PRINCIPAL, BOB, LOOPBACK, STRANGER], ids=lambda who: who.id)
async def test_nobody_but_an_admin_may_ask_or_change(who: Principal, method: str):
    policy = AccessPolicy("opt-out", admins=["alice"], admin_scopes=["tools:admin"])
    server, trail, _ = office(policy)
    async with speaking(server, SESSION, ["access_control"], who=who) as peer:
        entry = {"entry_type": "server_grant", "agent_id": who.id, "permission": "deny", "granted_by": "alice"}
        assert code_of(await change(peer, method, **entry)) == 1001
    assert trail.told(*CHANGES) == [("dev.defserve.access_refused", {"method": f"mgp/access/{method}"})]
    assert policy.entry(who.id) is None


def test_a_scope_does_not_make_an_admin_of_somebody_nobody_vouches_for():
    policy = AccessPolicy(admin_scopes=["tools:admin"])
    nobody = Principal("anonymous:203.0.113.7", frozenset({"tools:admin"}), kind="anonymous")
    assert (policy.is_admin(ALICE), policy.is_admin(nobody)) == (True, False)


@for_each_row("name", ["local", "alice", "tools:admin"])
def test_a_scope_is_no_id_and_an_id_no_scope(name: str):
    by_id, by_scope = AccessPolicy(admins=[name]), AccessPolicy(admin_scopes=[name])
    with_scope = Principal("mallory", frozenset({name}))
    with_id = Principal("local", kind="local") if name == "local" else Principal(name)
    assert (by_id.is_admin(with_scope), by_id.is_admin(with_id)) == (False, True)
    assert (by_scope.is_admin(with_scope), by_scope.is_admin(with_id)) == (True, False)


async def test_a_local_peer_is_an_admin_where_it_is_listed():
    server, _, _ = office(AccessPolicy(admins=["local"]))
    async with speaking(server, SESSION, ["access_control"]) as peer:
        await changed(peer, "grant", entry_type="server_grant", agent_id="local", permission="allow")
        assert await call(peer, "shred") is None


@for_each_row("extensions", [(), ("access_control",)])
async def test_without_admins_there_are_no_methods(extensions: tuple[str, ...]):
    server, _, _ = office(AccessPolicy("opt-out"))
    async with speaking(server, SESSION, extensions) as peer:
        assert code_of(await change(peer, "query", agent_id="local")) == -32601


@pytest.mark.req("MGP-5.3")
@for_each_row(
    ("method", "params"),
    [
        ("grant", {"server_id": "other"}),
        ("grant", {"server_id": None}),
        ("grant", {"entry_type": "tool_grant"}),
        ("grant", {"entry_type": "tool_grant", "tool_name": 1}),
        ("grant", {"entry_type": "all"}),
        ("grant", {"tool_name": "copy"}),
        ("grant", {"agent_id": None}),
        ("grant", {"agent_id": "b\nob"}),
        ("grant", {"permission": None}),
        ("grant", {"permission": "maybe"}),
        ("grant", {"expires_at": "soon"}),
        ("grant", {"justification": "x" * 2001}),
        ("revoke", {"server_id": "other"}),
        ("revoke", {"entry_type": None}),
        ("revoke", {"entry_type": "all"}),
        ("revoke", {"entry_type": "tool_grant"}),
        ("revoke", {"tool_name": "copy"}),
        ("query", {"server_id": "other"}),
        ("query", {"agent_id": 7}),
        ("query", {"tool_name": []}),
    ],
)
async def test_an_admins_request_that_does_not_fit_changes_nothing(method: str, params: Json):
    policy = AccessPolicy(admins=["alice"], entries=[Entry("server_grant", "bob", permission="deny")])
    server, trail, _ = office(policy)
    fitting = {"entry_type": "server_grant", "agent_id": "bob", "permission": "allow"}
    async with speaking(server, SESSION, ["access_control"], who=ALICE) as admin:
        code = 4004 if params == {"server_id": "other"} else -32602
        assert code_of(await change(admin, method, **(fitting | params))) == code
    assert trail.told(*CHANGES) == []
    assert policy.entry("bob") == Entry("server_grant", "bob", permission="deny")


async def test_what_cannot_be_written_down_does_not_happen():
    policy = AccessPolicy(admins=["alice"])
    server, trail, _ = office(policy)

    def full(event: Any, *, durable: bool = False) -> None:
        raise OSError("disk full")

    trail.append = full  # pyright: ignore[reportAttributeAccessIssue]
    async with speaking(server, SESSION, ["access_control"], who=ALICE) as admin:
        reply = await change(admin, "grant", entry_type="server_grant", agent_id="bob", permission="allow")
    assert "error" in reply
    assert policy.decide("bob", "copy", NOON) == AccessDecision("deny", "default_policy")


@for_each_row("version", ERAS)
@for_each_row("by", ["admin", "author"])
async def test_a_change_is_told_as_a_change_of_the_list(by: str, version: str):
    policy = AccessPolicy(admins=["alice"])
    server, _, _ = office(policy)
    async with (
        speaking(server, SESSION, ["access_control"], who=ALICE) as admin,
        speaking(server, version, who=BOB) as peer,
    ):
        if version == STATELESS:
            await peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        assert await listed(peer) == set()
        await peer.news()
        if by == "admin":
            await changed(admin, "grant", entry_type="tool_grant", agent_id="bob", tool_name="copy", permission="allow")
        else:
            policy.grant(Entry("tool_grant", "bob", "copy"))
        assert [news["method"] for news in await peer.news()] == ["notifications/tools/list_changed"]
        assert await listed(peer) == {"copy"}
