"""Whole conversations of each protocol. Bytes choose messages and change parts of them, so that most make sense."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from defserve import Context, Server
from defserve.protocols.mcpx.envelope import MCPX_PROTOCOL
from tests.core.stepping import Talk
from tests.gateway.in_memory import CAPABILITIES, topic_of_three
from tests.strange_messages import ODD_IDS, changed, places

META = "io.modelcontextprotocol/"
ENVELOPE = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
MOST = 6
ODD: Sequence[Any] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x" * 300,
    "\x00",
    "é",
    [],
    [1],
    {},
    {"a": [{}]},
    "tools/call",
    "2026-07-28",
    *ODD_IDS,
)
CALLS: tuple[dict[str, Any], ...] = (
    {"method": "ping"},
    {"method": "tools/list", "params": {}},
    {"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "a", "count": 2}}},
    {"method": "resources/list", "params": {}},
    {"method": "resources/templates/list", "params": {}},
    {"method": "resources/read", "params": {"uri": "note://a"}},
    {"method": "resources/subscribe", "params": {"uri": "note://a"}},
    {"method": "prompts/list", "params": {"cursor": "x"}},
    {"method": "prompts/get", "params": {"name": "greet", "arguments": {"name": "Ada"}}},
    {"method": "logging/setLevel", "params": {"level": "debug"}},
    {
        "method": "completion/complete",
        "params": {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "A"}},
    },
    {"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "no"}},
    {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 0.5}},
    {"method": "server/discover", "params": {"_meta": ENVELOPE}},
    {"method": "tools/call", "params": {"name": "echo", "arguments": {}, "_meta": ENVELOPE}},
    {"method": "tools/call", "params": {"name": "ask", "arguments": {}, "_meta": ENVELOPE}},
    {
        "method": "tools/call",
        "params": {"name": "ask", "arguments": {}, "_meta": ENVELOPE, "requestState": "x", "inputResponses": {"a": {}}},
    },
    {"id": "r", "result": {"action": "accept", "content": {"value": "Ada"}}},
    {"id": "r", "error": {"code": 1, "message": "no"}},
)
# Without mgp/health/status: it asks its checks on an event loop, and there is none.
MGP_CALLS: tuple[dict[str, Any], ...] = (
    {"method": "mgp/health/ping", "params": {}},
    {"method": "mgp/permission/respond", "params": {"request_id": "a", "grants": [{"permission": "memory.write"}]}},
    {"method": "mgp/access/query", "params": {"agent_id": "a", "server_id": "fuzzed"}},
    {"method": "mgp/access/grant", "params": {"entry_type": "tool_grant", "agent_id": "a", "server_id": "fuzzed"}},
    {"method": "mgp/events/subscribe", "params": {"channels": ["tool.*"], "min_severity": "info"}},
    {"method": "mgp/events/unsubscribe", "params": {"subscription_id": "a"}},
    {"method": "mgp/stream/cancel", "params": {"request_id": 1, "reason": "x"}},
    {"method": "mgp/lifecycle/shutdown", "params": {"reason": "x", "timeout_ms": 1}},
    {"method": "notifications/mgp.stream.pace", "params": {"request_id": 1, "max_chunks_per_second": 1}},
)
MCPL_CALLS: tuple[dict[str, Any], ...] = (
    {"method": "featureSets/list", "params": {}},
    {"method": "featureSets/update", "params": {"enabled": ["notes.edit"], "disabled": []}},
    {"method": "state/rollback", "params": {"featureSet": "notes.edit", "checkpoint": "chk_x"}},
    {"method": "context/beforeInference", "params": {"inferenceId": "i", "conversationId": "c", "turnIndex": 1}},
    {"method": "context/afterInference", "params": {"inferenceId": "i", "conversationId": "c", "turnIndex": 1}},
    {"method": "channels/list", "params": {}},
    {"method": "channels/open", "params": {"type": "chat", "address": {}}},
    {"method": "push/event", "params": {"featureSet": "notes.edit", "eventId": "1"}},
    {"method": "scope/elevate", "params": {"featureSet": "notes.edit", "scope": {"label": "x"}}},
)

server = Server("fuzzed")


@server.tool
async def echo(ctx: Context, text: str = "", count: int = 1) -> str:
    ctx.progress(1)
    return text * min(count, 10)


@server.tool
async def ask(ctx: Context) -> str:
    return await ctx.ask("Your name?", str)


@server.resource("note://{name}")
async def note(name: str) -> str:
    return name


@server.prompt
async def greet(name: str) -> str:
    return f"Hello {name}"


class Bytes:
    """Numbers out of bytes; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def below(self, most: int) -> int:
        size = 1 if most <= 256 else 2
        found = int.from_bytes(self._data[self._at : self._at + size], "big")
        self._at += size
        return found % most


def message(given: Bytes, calls: Sequence[dict[str, Any]]) -> Any:
    """A message of the list, with an id if it is a request, and perhaps parts changed."""
    made: Any = {"jsonrpc": "2.0", **calls[given.below(len(calls))]}
    if "method" in made and not made["method"].startswith("notifications/"):
        made["id"] = given.below(4)
    for _ in range(given.below(3)):
        where = places(made)
        made = changed(made, where[given.below(len(where))], ODD[given.below(len(ODD))])
    return made


def converse(data: bytes, calls: Sequence[dict[str, Any]], capabilities: dict[str, Any]) -> None:
    """Each reply is by the rules, none is an internal error, and the conversation is alive until it ends.

    Then no call of it runs or waits any more: the server would have less room for the next one.
    """
    given, talk = Bytes(data), Talk(server.composition)
    versions = (None, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
    try:
        if version := versions[given.below(len(versions))]:
            talk.open(version, **capabilities)
        for _ in range(MOST):
            if not given:
                break
            said = message(given, calls)
            batch = [said, message(given, calls)] if given.below(16) == 0 else said
            for reply in talk.say(json.dumps(batch).encode()) + talk.step():
                for one in reply if isinstance(reply, list) else [reply]:
                    check(one)
        if version:
            alive = talk.ask("still here", "ping")
            assert {"jsonrpc": "2.0", "id": "still here", "result": {}} in alive, alive
    finally:
        talk.session.close()
        talk.step()
    assert server.composition.running == server.composition.queued == 0


def check(one: Any) -> None:
    assert one["jsonrpc"] == "2.0"
    if "method" in one:
        assert isinstance(one["method"], str)
        return
    assert ("result" in one) != ("error" in one), one
    assert one.get("id") is None or type(one["id"]) in (int, str), one
    told = one.get("error") or one["result"]
    assert "internal error" not in json.dumps(told).lower(), one


def mcp(data: bytes) -> None:
    """MCP, in all versions."""
    converse(data, CALLS, {"elicitation": {}, "sampling": {}})


def mgp(data: bytes) -> None:
    """The same with MGP negotiated."""
    extensions = ["security", "access_control", "lifecycle", "streaming", "events", "audit", "callbacks"]
    converse(data, (*CALLS, *MGP_CALLS), {"mgp": {"version": "0.6.0", "extensions": extensions}})


def mcpl(data: bytes) -> None:
    """The same with MCPL negotiated."""
    offer = {"version": "0.5", "featureSets": True, "pushEvents": True, "contextHooks": {"beforeInference": True}}
    converse(data, (*CALLS, *MCPL_CALLS), {"experimental": {"mcpl": offer}})


ENVELOPES: tuple[dict[str, Any], ...] = tuple(
    {"protocol": MCPX_PROTOCOL, "id": "1", "from": sender, "kind": kind, "payload": {"text": "a"}, **more}
    for sender in CAPABILITIES
    for kind in ("chat", "mcp/request:tools/call", "mcp/proposal:tools/call:x", "mcp/response:ping", "system/welcome")
    for more in ({}, {"to": ["mute"]}, {"correlation_id": "1"})
)


def mcpx(data: bytes) -> None:
    """A topic of three members, in memory. What is passed on is whole, and what its sender may say."""
    given = Bytes(data)
    made, members, ears = topic_of_three()
    names = list(members)
    for _ in range(MOST):
        if not given:
            break
        name, said = names[given.below(len(names))], dict(ENVELOPES[given.below(len(ENVELOPES))])
        for _ in range(given.below(3)):
            where = places(said)
            said = changed(said, where[given.below(len(where))], ODD[given.below(len(ODD))])
        frame = json.dumps(said).encode()
        before = {who: len(ear.heard) for who, ear in ears.items()}
        made.relay_frame(members[name], frame)
        fresh = {who: ear.heard[before[who] :] for who, ear in ears.items()}
        if all(heard[:1] == [frame] for heard in fresh.values()):
            assert said["from"] == name and members[name].capabilities.allows_kind(said["kind"])
            told = fresh[name].pop() if len(fresh[name]) > 1 else None
            # A request to nobody who is there reaches those who are, and its sender is told.
            assert told is None or json.loads(told)["payload"]["error"] == "not_present", told
            assert all(heard == [frame] for heard in fresh.values()), fresh
        else:
            refusal = json.loads(fresh[name][0])
            assert len(fresh[name]) == 1 and ("error" in refusal or refusal["kind"] == "system/error"), fresh
            assert all(not heard for who, heard in fresh.items() if who != name), fresh
    assert set(made.topics["demo"].members) == set(members)
