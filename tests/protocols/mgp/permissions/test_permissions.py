"""MGP §3: who grants what, for how long, and that a tool whose permission is missing does not run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from defserve import Server, UsageError
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.core.call import Call
from defserve.core.extension import Offer
from defserve.core.shapes import read_member
from defserve.errors import MAX_REFUSAL_LENGTH, InvalidParams
from defserve.guard.verdict import log_author_note
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.security import moderate, safe
from defserve.protocols.mgp.vocabulary import INSTANT_KIND, PERMISSION_RISKS
from tests.core.stepping import Talk
from tests.effort import examples
from tests.protocols.mgp.callers import ALICE, LOOPBACK, NOON, STRANGER, Clock, Trail, code_of, offer, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
GRANTS = "dev.cloto/mgp/grants"
EVENTS = ("PERMISSION_GRANTED", "PERMISSION_DENIED", "PERMISSION_REVOKED")


def library(clock: Clock | None = None, **options: Any) -> tuple[Server, Trail]:
    trail = Trail()
    server = Server("library", "1", audit=trail, **options)
    server.mgp.permissions.clock = clock or Clock()

    @server.tool
    @moderate("network.outbound", "com.example.lending")
    def lend(title: str = "Emma") -> str:
        return f"lent {title}"

    @server.tool
    @moderate("memory.write")
    def note() -> str:
        return "noted"

    @server.tool
    @safe
    def hours() -> str:
        return "9 to 5"

    return server, trail


async def ask(peer: Raw, method: str, **params: Any) -> Json:
    asks = {"request_id": "perm-000", "policy": "interactive"} if method in ("request", "await") else {}
    reply = await peer.ask(f"mgp/permission/{method}", {**asks, **params})
    assert "result" in reply, reply
    return reply["result"]


async def refusal(peer: Raw, method: str, **params: Any) -> str:
    reply = await peer.ask(f"mgp/permission/{method}", params)
    assert reply["error"]["code"] == -32602, reply
    return reply["error"]["message"]


async def call(peer: Raw, tool: str, **more: Any) -> Json:
    return await peer.ask("tools/call", {"name": tool, "arguments": {}, **more})


# -- policies --------------------------------------------------------------------------------------------


@for_each_row("version", ERAS)
@for_each_row("extensions", [(), ("security",)], ids=["plain", "mgp"])
@for_each_row(
    ("options", "who", "runs"),
    [
        ({}, LOCAL_PRINCIPAL, True),
        ({}, ALICE, True),
        ({}, LOOPBACK, False),
        ({}, STRANGER, False),
        ({"granted": ["memory.write"]}, STRANGER, True),
        ({"granted": ["memory.read"]}, STRANGER, False),
        ({"permissions": "operator"}, STRANGER, True),
        ({"permissions": "config_only"}, LOCAL_PRINCIPAL, False),
        ({"permissions": "config_only", "granted": ["memory.write"]}, LOCAL_PRINCIPAL, True),
        ({"permissions": "deny_all", "granted": ["memory.write"]}, LOCAL_PRINCIPAL, False),
    ],
)
async def test_policy_decides_for_those_who_do_not(
    options: Any, who: Principal, runs: bool, extensions: tuple[str, ...], version: str
):
    server, _ = library(**options)
    async with speaking(server, version, extensions, who=who) as peer:
        refused = 1000 if extensions else "permission_denied"
        assert code_of(await call(peer, "note")) == (None if runs else refused)
        assert code_of(await call(peer, "hours")) is None  # the rest keeps working


@pytest.mark.parametrize("version", ERAS)
async def test_a_refusal_names_the_tool_and_the_permission_and_the_log_the_way_to_it(
    version: str, caplog: pytest.LogCaptureFixture
):
    log_author_note.cache_clear()
    server, _ = library(permissions="config_only", granted=["network.outbound"])
    async with speaking(server, version) as peer:
        text = text_of((await call(peer, "lend"))["result"])
        assert "lend" in text and "com.example.lending: nobody has granted it" in text
        assert "network.outbound" not in text
        assert text.endswith("The operator can grant it.")
    assert "granted=['com.example.lending']" in caplog.text
    async with speaking(server, version, ["security"]) as peer:
        error = (await call(peer, "lend"))["error"]
        assert (GRANTS if version == STATELESS else "mgp/permission/grant") in error["message"]
        assert error["data"]["_mgp"]["details"] == {"tool": "lend", "missing": {"com.example.lending": "deferred"}}
    async with speaking(server, version, ["security"], who=STRANGER) as peer:
        assert "over stdio" in (await call(peer, "lend"))["error"]["message"]


async def test_of_many_missing_permissions_five_are_named():
    server = Server("library", "1", permissions="deny_all")

    @server.tool
    @moderate(*(f"com.example.p{number}" for number in range(8)))
    def busy() -> None: ...

    async with speaking(server, STATELESS) as peer:
        result = (await call(peer, "busy"))["result"]
    assert text_of(result).count("com.example.p") == 5 and "; and 3 more)" in text_of(result)
    assert len(text_of(result)) <= MAX_REFUSAL_LENGTH
    assert len(result["_meta"]["dev.defserve/error"]["missing"]) == 8


@pytest.mark.parametrize(
    "options", [{"granted": ["shell"]}, {"granted": "memory.read"}, {"permissions": "auto_approve"}]
)
async def test_a_policy_that_cannot_be_meant_is_refused(options: Any):
    with pytest.raises(UsageError):
        _ = Server("s", "1", **options).mgp.permissions


@pytest.mark.req("MGP-2.3")
async def test_what_tools_need_is_gathered_and_sorted():
    server, _ = library()
    assert server.mgp.permissions.list_required_permissions(server.mgp.tools) == [
        "com.example.lending",
        "memory.write",
        "network.outbound",
    ]


# -- request ---------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-3.5", "MGP-3.6")
@for_each_row("version", ERAS)
@for_each_row("method", ["request", "await"])
@for_each_row("request_id", ["perm-001", 7])
async def test_a_request_is_told_what_policy_grants_and_what_is_open(method: str, request_id: Any, version: str):
    server, trail = library(permissions="config_only", granted=["shell.execute"])
    async with speaking(server, version, ["permissions"]) as peer:
        answer = await ask(
            peer,
            method,
            request_id=request_id,
            permissions=["shell.execute", "filesystem.read"],
            policy="auto_approve",
            message="Waiting for operator approval",
        )
        assert {name: answer[name] for name in ("request_id", "grants", "approved_by", "expires_at")} == {
            "request_id": request_id,
            "grants": {"shell.execute": "approved", "filesystem.read": "deferred"},
            "approved_by": "operator",
            "expires_at": None,
        }
        assert code_of(await call(peer, "note")) == 1000  # however often it asks
    assert trail.told(*EVENTS) == []


@pytest.mark.req("MGP-3.2")
async def test_families_stand_for_their_members_and_unknown_names_are_denied():
    server, _ = library(permissions="config_only", granted=["network.listen", "com.example.lending"])
    async with speaking(server, SESSION, ["security"]) as peer:
        answer = await ask(peer, "request", permissions=["network", "com.example.lending", "teleport", "com", "Camera"])
    assert answer["grants"] == {
        "network.outbound": "deferred",
        "network.listen": "approved",
        "com.example.lending": "approved",
        "teleport": "denied",
        "com": "denied",
        "Camera": "denied",
    }
    assert answer["reasons"] == dict.fromkeys(["teleport", "com", "Camera"], "there is no such permission")


@for_each_row(
    "params",
    [
        {},
        {"permissions": []},
        {"permissions": [], "request_id": None},
        {"request_id": "r", "policy": "interactive"},
        {"request_id": "r", "permissions": "shell.execute"},
        {"request_id": "r", "permissions": [1]},
        {"request_id": "r", "permissions": ["x" * 257]},
        {"request_id": "r", "permissions": ["camera"] * 257},
        {"request_id": "r", "permissions": [], "policy": "bogus"},
        {"request_id": "r", "permissions": [], "policy": "operator"},
        {"request_id": "r", "permissions": [], "policy": ["interactive"]},
        {"request_id": "r", "permissions": [], "policy": {}},
        {"request_id": "r", "permissions": [], "message": 7},
        {"permissions": [], "request_id": True},
        {"permissions": [], "request_id": 1.5},
        {"permissions": [], "request_id": "x" * 257},
    ],
)
async def test_a_request_that_does_not_fit_is_refused(params: Json):
    server, _ = library()
    async with speaking(server, SESSION, ["security"]) as peer:
        assert "Invalid params" in await refusal(peer, "request", **params)


@pytest.mark.req("MGP-3.3", "MGP-3.5")
@pytest.mark.parametrize("policy", ["interactive", "auto_approve", "deny_all", "config_only"])
async def test_a_clients_policy_is_one_of_four(policy: str):
    server, _ = library()
    async with speaking(server, SESSION, ["security"]) as peer:
        about = {"policy": policy, "message": "Waiting for operator approval"}
        assert (await ask(peer, "request", permissions=["camera"], **about))["request_id"] == "perm-000"


@pytest.mark.req("MGP-3.6g")
@pytest.mark.parametrize("version", ERAS)
async def test_what_is_put_off_can_be_tried_again_and_what_is_denied_cannot(version: str):
    server, _ = library(permissions="config_only")

    async def answer(decision: str, **more: Any) -> Json:
        async with speaking(server, version, ["security"], **more) as peer:
            meta = {"_meta": {GRANTS: {"memory.write": decision}}} if version == STATELESS else {}
            if version != STATELESS:
                await ask(peer, "grant", grants={"memory.write": decision})
            return (await call(peer, "note", **meta))["error"]

    put_off, denied = await answer("deferred"), await answer("denied")
    assert (put_off["code"], denied["code"]) == (1000, 1000)
    assert put_off["data"]["_mgp"].items() >= {"retryable": True, "retry_strategy": "fixed_delay"}.items()
    assert put_off["data"]["_mgp"]["retry_after_ms"] > 0
    assert denied["data"]["_mgp"]["retryable"] is False
    assert "waits for a decision" in put_off["message"] and "waits" not in denied["message"]
    # Nothing that a stranger does can bring a decision.
    assert (await answer("deferred", who=STRANGER))["data"]["_mgp"]["retryable"] is False


@pytest.mark.req("MGP-3.3")
async def test_a_server_that_denies_all_says_denied_and_not_later():
    server, _ = library(permissions="deny_all")
    async with speaking(server, SESSION, ["security"]) as peer:
        assert (await ask(peer, "request", permissions=["memory.write"]))["grants"] == {"memory.write": "denied"}
        assert (await call(peer, "note"))["error"]["data"]["_mgp"]["retryable"] is False


# -- grant -----------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-3.6", "MGP-3.6g")
@for_each_row("method", ["grant", "response"])
@for_each_row(
    ("value", "becomes"),
    [
        ("approved", "approved"),
        ({"decision": "approved"}, "approved"),
        ({"granted": True}, "approved"),
        ("denied", "denied"),
        ({"decision": "denied"}, "denied"),
        ({"granted": False}, "denied"),
        ("deferred", "deferred"),
        ({"decision": "deferred"}, "deferred"),
    ],
)
@for_each_row("policy", ["operator", "deny_all"])
async def test_the_clients_decision_counts_in_every_form(method: str, value: Any, becomes: str, policy: Any):
    server, _ = library(permissions=policy)
    async with speaking(server, SESSION, ["security"]) as peer:
        answer = await ask(peer, method, request_id="r", grants={"memory.write": value})
        assert answer["grants"] == {"memory.write": becomes}
        assert (await ask(peer, "request", permissions=["memory.write"]))["grants"] == {"memory.write": becomes}
        assert code_of(await call(peer, "note")) == (None if becomes == "approved" else 1000)
        assert code_of(await call(peer, "hours")) is None


async def test_it_is_the_caller_who_approved_whoever_it_names():
    server, trail = library(permissions="deny_all")
    async with speaking(server, SESSION, ["security"], who=ALICE) as peer:
        grants = {"memory.write": "approved", "camera": "denied"}
        answer = await ask(peer, "grant", request_id=1, grants=grants, approved_by="root", expires_at=None)
    assert answer == {
        "request_id": 1,
        "grants": grants,
        "approved_by": "alice",
        "expires_at": None,
        "reasons": {"camera": "the client denied it"},
    }
    assert trail.told(*EVENTS) == [
        ("PERMISSION_GRANTED", {"permissions": ["memory.write"]}),
        ("PERMISSION_DENIED", {"permissions": ["camera"]}),
    ]
    assert {event["actor"]["id"] for event in trail.events} == {"alice"}
    assert "root" not in str(trail.events)


async def test_a_grant_taken_back_is_a_revocation():
    server, trail = library()
    async with speaking(server, SESSION, ["security"]) as peer:
        assert code_of(await call(peer, "note")) is None
        await ask(peer, "grant", grants={"memory.write": "denied"})
        assert code_of(await call(peer, "note")) == 1000
        await ask(peer, "grant", grants={"memory.write": "approved"})
        assert code_of(await call(peer, "note")) is None
    assert [event for event, _ in trail.told(*EVENTS)] == ["PERMISSION_REVOKED", "PERMISSION_GRANTED"]


async def test_a_full_name_outranks_its_family_in_either_order():
    server, _ = library(permissions="deny_all")
    async with speaking(server, SESSION, ["security"]) as peer:
        for grants in (
            {"network": "approved", "network.listen": "denied"},
            {"network.listen": "denied", "network": "approved"},
        ):
            answer = await ask(peer, "grant", grants=grants)
            assert answer["grants"] == {"network.outbound": "approved", "network.listen": "denied"}


@pytest.mark.req("MGP-3.6e")
@pytest.mark.parametrize("policy", ["operator", "deny_all"])
@pytest.mark.parametrize("expires_at", ["2026-03-01T12:01:00Z", "2026-03-01T21:01:00+09:00"])
async def test_an_approval_holds_until_it_expires(expires_at: str, policy: Any):
    clock = Clock()
    server, trail = library(clock, permissions=policy)
    async with speaking(server, SESSION, ["security"]) as peer:
        answer = await ask(peer, "grant", grants={"memory.write": "approved"}, expires_at=expires_at)
        assert answer["expires_at"] == "2026-03-01T12:01:00Z"
        clock.pass_seconds(59.9)
        assert code_of(await call(peer, "note")) is None
        clock.pass_seconds(0.1)
        reply = await call(peer, "note")
        assert code_of(reply) == 1000 and "expired at 2026-03-01T12:01:00Z" in reply["error"]["message"]
        answer = await ask(peer, "request", permissions=["memory.write"])
        assert (answer["grants"], answer["approved_by"]) == ({"memory.write": "deferred"}, None)
    details = {"permissions": ["memory.write"], "expires_at": {"memory.write": "2026-03-01T12:01:00Z"}}
    assert trail.told(*EVENTS) == [("PERMISSION_GRANTED", details)]


@for_each_row(
    "params",
    [
        {},
        {"grants": ["camera"]},
        {"grants": {"camera": True}},
        {"grants": {"camera": "granted"}},
        {"grants": {"camera": {}}},
        {"grants": {"camera": {"granted": "yes"}}},
        {"grants": {"camera": {"granted": 1}}},
        {"grants": {"camera": {"decision": ["approved"]}}},
        {"grants": {"camera": {"decision": "denied", "granted": True}}},
        {"grants": {"camera": "approved"}, "expires_at": "tomorrow"},
        {"grants": {"camera": "approved"}, "expires_at": "2026-03-01T12:00:00"},
        {"grants": {"camera": "approved"}, "expires_at": 1_772_366_400},
        {"grants": {"camera": "approved"}, "expires_at": "0001-01-01T00:00:00+14:00"},
        {"grants": {"camera": {"granted": True, "expires_at": ""}}},
        {"grants": {"camera": "approved"}, "request_id": []},
        {"grants": {f"com.example.n{number}": "approved" for number in range(257)}},
    ],
)
async def test_a_grant_that_does_not_fit_changes_nothing(params: Json):
    server, trail = library(permissions="deny_all")
    if isinstance(params.get("grants"), dict):
        params = {**params, "grants": {"memory.write": "approved", **params["grants"]}}
    async with speaking(server, SESSION, ["security"]) as peer:
        assert "Invalid params" in await refusal(peer, "grant", **params)
        assert code_of(await call(peer, "note")) == 1000
    assert trail.told(*EVENTS) == []


async def test_a_session_remembers_a_bounded_number_of_grants():
    server, _ = library()
    async with speaking(server, SESSION, ["security"]) as peer:
        await ask(peer, "grant", grants={f"com.example.a{number}": "approved" for number in range(256)})
        reply = await peer.ask("mgp/permission/grant", {"grants": {"com.example.b": "approved"}})
        assert reply["error"]["code"] == 3001
        await ask(peer, "grant", grants={"com.example.a1": "denied"})


@pytest.mark.parametrize(
    ("who", "runs"), [(LOCAL_PRINCIPAL, True), (ALICE, True), (LOOPBACK, False), (STRANGER, False)]
)
async def test_a_stranger_can_only_give_up(who: Principal, runs: bool):
    server, trail = library(permissions="config_only", granted=["network.outbound", "com.example.lending"])
    async with speaking(server, SESSION, ["security"], who=who) as peer:
        answer = await ask(peer, "grant", grants={"memory.write": "approved", "network.outbound": "approved"})
        assert answer["grants"] == {"memory.write": "approved" if runs else "denied", "network.outbound": "approved"}
        assert code_of(await call(peer, "note")) == (None if runs else 1000)
        assert code_of(await call(peer, "lend")) is None
        await ask(peer, "grant", grants={"network.outbound": "denied"})
        assert code_of(await call(peer, "lend")) == 1000
        await ask(peer, "grant", grants={"network.outbound": "approved"})
        assert code_of(await call(peer, "lend")) is None
    assert (("PERMISSION_DENIED", {"permissions": ["memory.write"]}) in trail.told(*EVENTS)) is not runs


async def test_sessions_know_nothing_of_each_others_grants():
    server, _ = library(permissions="deny_all")
    async with speaking(server, SESSION, ["security"]) as one, speaking(server, SESSION, ["security"]) as other:
        await ask(one, "grant", request_id="perm-001", grants={"memory.write": "approved"})
        assert code_of(await call(one, "note")) is None
        assert code_of(await call(other, "note")) == 1000
        answer = await ask(other, "request", request_id="perm-001", permissions=["memory.write"])
        assert answer["grants"] == {"memory.write": "denied"}


@pytest.mark.req("MGP-3.4")
async def test_permissions_are_settled_before_the_client_says_initialized():
    server, _ = library(permissions="deny_all")
    async with speaking(server, SESSION, ["security"], opened=False) as peer:
        early = await peer.ask("mgp/permission/grant", {"grants": {"memory.write": "approved"}})
        assert early["error"]["code"] == -32601
        about = {
            "protocolVersion": SESSION,
            "capabilities": peer.capabilities,
            "clientInfo": {"name": "c", "version": "1"},
        }
        await peer.ask("initialize", about)
        assert (await ask(peer, "request", permissions=["memory"]))["grants"] == {
            "memory.read": "denied",
            "memory.write": "denied",
        }
        await ask(peer, "grant", grants={"memory": "approved"})
        await peer.tell("notifications/initialized")
        assert code_of(await call(peer, "note")) is None


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("extensions", [(), ("audit",)])
async def test_grants_of_a_client_that_did_not_negotiate_them_count_for_nothing(
    version: str, extensions: tuple[str, ...]
):
    server, _ = library(permissions="deny_all")
    async with speaking(server, version, extensions) as peer:
        reply = await peer.ask("mgp/permission/grant", {"grants": {"memory.write": "approved"}})
        assert reply["error"]["code"] == -32601
        assert code_of(await call(peer, "note", _meta={GRANTS: {"memory.write": "approved"}})) is not None


# -- without sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [GRANTS, "dev.defserve/grants"])
async def test_without_sessions_grants_travel_with_the_request_and_end_with_it(key: str):
    server, trail = library(permissions="deny_all")
    async with speaking(server, STATELESS, ["security"], who=ALICE) as peer:
        sent = {key: {"memory.write": {"decision": "approved", "expires_at": "2026-03-01T12:00:01Z"}}}
        assert code_of(await call(peer, "note", _meta=sent)) is None
        assert code_of(await call(peer, "note")) == 1000
        server.mgp.permissions.clock = lambda: NOON + timedelta(seconds=1)
        assert code_of(await call(peer, "note", _meta=sent)) == 1000
        reply = await peer.ask("mgp/permission/grant", {"grants": {"memory.write": "approved"}})
        assert reply["error"]["code"] == -32601 and GRANTS in reply["error"]["message"]
    assert trail.told(*EVENTS) == [("PERMISSION_GRANTED", {"permissions": ["memory.write"]})]


@pytest.mark.parametrize("value", ["denied", "deferred", {"granted": False}])
async def test_without_sessions_a_client_may_say_no_for_one_request(value: Any):
    server, _ = library()
    async with speaking(server, STATELESS, ["security"]) as peer:
        assert code_of(await call(peer, "note", _meta={GRANTS: {"memory": value}})) == 1000
        assert code_of(await call(peer, "note", _meta={GRANTS: {"camera": value}})) is None
        assert code_of(await call(peer, "note")) is None


async def test_without_sessions_a_stranger_grants_nothing_either():
    server, _ = library()
    async with speaking(server, STATELESS, ["security"], who=STRANGER) as peer:
        reply = await call(peer, "note", _meta={GRANTS: {"memory.write": "approved"}})
        assert code_of(reply) == 1000 and "an anonymous client can give" in reply["error"]["message"]


@pytest.mark.parametrize("sent", ["approved", [], {"memory.write": 1}])
async def test_grants_sent_along_that_cannot_be_read_are_refused(sent: Any):
    server, _ = library()
    async with speaking(server, STATELESS, ["security"]) as peer:
        assert code_of(await call(peer, "note", _meta={GRANTS: sent})) == -32602


@pytest.mark.req("MGP-3.5")
@pytest.mark.parametrize("method", ["mgp/permission/request", "mgp/permission/await"])
async def test_nothing_is_said_to_be_approved_before_somebody_grants_it(method: str):
    """On a pipe its user may use the tool at once; that is no grant."""
    server, _ = library()
    asked = {"request_id": "r", "permissions": ["memory.write"], "policy": "interactive"}
    async with speaking(server, SESSION, ["security"]) as peer:
        answer = (await peer.ask(method, asked))["result"]
        assert (answer["grants"], answer["approved_by"]) == ({"memory.write": "deferred"}, None)
        await peer.ask("mgp/permission/grant", {"grants": {"memory.write": "approved"}})
        answer = (await peer.ask(method, asked))["result"]
        assert (answer["grants"], answer["approved_by"]) == ({"memory.write": "approved"}, "local")


# -- a model ---------------------------------------------------------------------------------------------

NAMES = sorted(PERMISSION_RISKS)
CALLERS = {"local": LOCAL_PRINCIPAL, "token": ALICE, "loopback": LOOPBACK, "stranger": STRANGER}


@given(st.text() | st.none() | st.integers())
def test_an_expiry_is_read_or_refused(text: Any):
    try:
        found = read_member({"expires_at": text}, "expires_at", INSTANT_KIND, None)
    except InvalidParams:
        return
    assert found is None or INSTANT_KIND.read(INSTANT_KIND.write(found)) == found


class GrantSequences(RuleBasedStateMachine):
    """Any sequence of grants, expiries and calls, against a dictionary of what was said last."""

    @initialize(
        policy=st.sampled_from([None, "operator", "config_only", "deny_all"]),
        granted=st.sets(st.sampled_from(NAMES)),
        who=st.sampled_from(sorted(CALLERS)),
    )
    def begin(self, policy: Any, granted: set[str], who: str) -> None:
        self.clock, self.who = Clock(), CALLERS[who]
        self.server = Server("model", "1", permissions=policy, granted=sorted(granted))
        self.permissions = self.server.mgp.permissions
        self.permissions.clock = self.clock
        self.talk = Talk(self.server.composition, identity=self.who, principal=self.who.id)
        self.terms = self.talk.session.open(Offer(SESSION, offer(SESSION, "security"), {}))
        self.by_word = set(NAMES) if policy == "operator" else set[str]() if policy == "deny_all" else granted
        policy = policy or ("config_only" if self.who.kind == "anonymous" else "operator")
        self.otherwise = "denied" if policy == "deny_all" else "deferred"
        self.by_policy = {"operator": set(NAMES), "config_only": granted, "deny_all": set[str]()}[policy]
        self.said: dict[str, tuple[str, float | None]] = {}
        self.seconds = 0.0
        self.tools = {name: self._tool(name) for name in NAMES}

    def _tool(self, permission: str) -> Any:
        @self.server.tool(name=permission)
        @moderate(permission, confirm=False)
        def needing() -> None: ...

        return self.server.mgp.tools.get(permission)

    def _call(self, method: str) -> Call:
        return Call(self.talk.session, 1, method, {}, {}, self.terms)

    @rule(
        grants=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["approved", "denied", "deferred"]), max_size=4),
        lasts=st.none() | st.integers(-5, 20),
    )
    def grant(self, grants: dict[str, str], lasts: int | None) -> None:
        expires = None if lasts is None else vocabulary.format_instant(self.clock.now + timedelta(seconds=lasts))
        self.permissions.grant(self._call("mgp/permission/grant"), {"grants": grants, "expires_at": expires})
        for name, decision in grants.items():
            if decision == "approved" and self.who.kind == "anonymous" and name not in self.by_policy:
                self.said[name] = "denied", None
            else:
                self.said[name] = decision, None if lasts is None else self.seconds + lasts

    @rule(seconds=st.integers(0, 10))
    def wait(self, seconds: int) -> None:
        self.clock.pass_seconds(seconds)
        self.seconds += seconds

    def _expected(self, name: str) -> str:
        if name not in self.said:
            return "approved" if name in self.by_policy else self.otherwise
        decision, until = self.said[name]
        return decision if until is None or self.seconds < until else "deferred"

    @invariant()
    def what_is_told_is_enforced(self) -> None:
        if not hasattr(self, "talk"):
            return
        asked = {"request_id": "r", "permissions": NAMES}
        told = self.permissions.request(self._call("mgp/permission/request"), asked)["grants"]
        for name, tool in self.tools.items():
            expected = self._expected(name)
            assert self._admitted(tool) == (expected == "approved")
            # What nobody has granted may be used by known callers, and is still waited for.
            is_granted = expected != "approved" or name in self.said or name in self.by_word
            assert told[name] == (expected if is_granted else "deferred")

    def _admitted(self, tool: Any) -> bool:
        try:
            self.permissions.check_permissions(self._call("tools/call"), tool)
        except PermissionDenied:
            return False
        return True


TestGrantSequences = GrantSequences.TestCase
TestGrantSequences.settings = settings(max_examples=examples(12), stateful_step_count=25, deadline=None)
