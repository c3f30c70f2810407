"""What a peer says is not kept for ever: large offers, names, ids, heads, subscriptions, many times over.

Each part sends 50 MB or more in different texts; the server may grow by 40 MB.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.attack.arena import Kind, Served
from tests.attack.controls.bounds import (
    keep_every_address,
    keep_whole_offers,
    know_every_head,
    leave_calls_to_the_collector,
    watch_anything,
)
from tests.attack.speaking.conversation import SocketConversation
from tests.attack.speaking.http import Wire, head
from tests.attack.speaking.mcp import (
    PREFIX,
    SESSION,
    STATELESS,
    Caller,
    message,
    mgp_offer,
    notification,
    opening,
    stateless_params,
    tool_call,
    works,
)  # fmt: skip
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("memory")
KB = 1024
LARGE = 900 * KB
TIMES = 50

Json = dict[str, Any]


def text(n: int, size: int) -> str:
    """A text of that size that nobody has sent before."""
    return f"{n:08d}" + "x" * (size - 8)


def many_keys(n: int) -> Json:
    """An object of about 200 kB in many small members, which cost more in memory than on the wire."""
    return {f"k{n}-{m}": {"a": {}} for m in range(8_000)}


def handshake(capabilities: Json, about: Json | None = None) -> Json:
    body = opening(capabilities)
    body["params"]["clientInfo"] |= about or {}
    return body


# Each is one request that opens a session, which is then deleted: only caches can keep it.
OFFERS: dict[str, Callable[[int], Json]] = {
    "capabilities": lambda n: handshake({"experimental": {text(n, LARGE): {}}}),
    "capabilities of many members": lambda n: handshake({"experimental": many_keys(n)}),
    "a client's name": lambda n: handshake({}, {"name": text(n, LARGE)}),
    "a client's title": lambda n: handshake({}, {"title": text(n, LARGE)}),
    "MGP extensions": lambda n: handshake({"mgp": {"version": "0.3.0", "extensions": [text(n, LARGE)]}}),
    "MGP version": lambda n: handshake({"mgp": {"version": "0." + text(n, LARGE), "extensions": ["audit"]}}),
    "MCPL offer": lambda n: handshake({"experimental": {"mcpl": {"version": "0.4", text(n, LARGE): True}}}),
    "elicitation modes": lambda n: handshake({"elicitation": {text(n, LARGE): {}}}),
}

ECHO, ASK = tool_call("echo", {"text": "a"}), tool_call("ask", {})

Meta = Callable[[int], tuple[str, Json, Json, Json]]
"""Number → method, params, capabilities, further _meta of a request that stands alone."""

ALONE: dict[str, Meta] = {
    "capabilities": lambda n: ("tools/list", {}, {"extensions": {text(n, LARGE): {}}}, {}),
    "capabilities of many members": lambda n: ("tools/list", {}, {"extensions": many_keys(n)}, {}),
    "an MGP offer": lambda n: ("tools/list", {}, mgp_offer(STATELESS, text(n, LARGE)), {}),
    "client information": lambda n: ("tools/list", {}, {}, {PREFIX + "clientInfo": {"name": text(n, LARGE)}}),
    "grants": lambda n: (
        "tools/call", tool_call("erase", {"word": "a"}), mgp_offer(STATELESS),
        {"dev.cloto/mgp/grants": {text(n, LARGE): "approved"}},
    ),
    "trace ids": lambda n: ("tools/call", ECHO, {}, {"traceparent": text(n, LARGE), "trace_id": text(n, LARGE)}),
    "progress tokens": lambda n: ("tools/call", tool_call("count", {"n": 1}), {}, {"progressToken": text(n, LARGE)}),
    "log levels": lambda n: ("tools/call", ECHO, {}, {PREFIX + "logLevel": text(n, LARGE)}),
    "arguments": lambda n: ("tools/call", tool_call("echo", {"text": text(n, LARGE)}), {}, {}),
    "unknown arguments": lambda n: ("tools/call", tool_call("echo", {text(n, LARGE): 1}), {}, {}),
    "unknown methods": lambda n: (text(n, 120), {"a": text(n, LARGE)}, {}, {}),
    "unknown tools": lambda n: ("tools/call", {"name": text(n, 6_000), "arguments": {"a": text(n, LARGE)}}, {}, {}),
    "cursors": lambda n: ("tools/list", {"cursor": text(n, LARGE)}, {}, {}),
    "unknown resources": lambda n: ("resources/read", {"uri": "memo://" + text(n, LARGE)}, {}, {}),
    "unknown prompts": lambda n: ("prompts/get", {"name": text(n, 6_000), "arguments": {"a": text(n, LARGE)}}, {}, {}),
    "completions": lambda n: (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": text(n, LARGE)}, "argument": {"name": "a", "value": "b"}}, {}, {},
    ),
    "request states": lambda n: ("tools/call", {**ASK, "requestState": text(n, LARGE)}, {"elicitation": {}}, {}),
    "answers unasked": lambda n: (
        "tools/call", {**ASK, "inputResponses": {text(n, LARGE): {}}}, {"elicitation": {}}, {},
    ),
    "feature sets": lambda n: (
        "tools/list", {}, {"experimental": {"mcpl": {"version": "0.4"}}},
        {"dev.defserve/featureSets": {"enabled": [text(n, LARGE)]}},
    ),
}  # fmt: skip

# Requests of one session that stays open. What it may keep is bounded, whatever the texts are.
INSIDE: dict[str, Callable[[int], Json]] = {
    "watched resources": lambda n: message("resources/subscribe", {"uri": "memo://" + text(n, LARGE)}, n + 1),
    "grants": lambda n: message("mgp/permission/grant", {"grants": {"com.example." + text(n, 250): "denied"}}, n + 1),
    "long grants": lambda n: message("mgp/permission/grant", {"grants": {text(n, LARGE): "denied"}}, n + 1),
    "event channels": lambda n: message("mgp/events/subscribe", {"channels": [text(n, LARGE), "tool.*"]}, n + 1),
    "callbacks": lambda n: message("mgp/callback/respond", {"callback_id": text(n, LARGE), "response": 1}, n + 1),
    "cancellations": lambda n: notification("notifications/cancelled", {"requestId": text(n, LARGE), "reason": "x"}),
    "progress": lambda n: notification("notifications/progress", {"progressToken": text(n, LARGE), "progress": 1}),
    "replies to nothing": lambda n: {"jsonrpc": "2.0", "id": text(n, LARGE), "result": {"a": "b"}},
    "request ids": lambda n: message("ping", {}, text(n, 200)),
    "long request ids": lambda n: message("ping", {}, text(n, LARGE)),
    "unknown notifications": lambda n: notification("notifications/" + text(n, 100), {"a": text(n, LARGE)}),
    "feature sets": lambda n: notification(
        "featureSets/update",
        {"enabled": [text(n, 1_000)], "scopes": {text(n, 900): {"whitelist": [text(m, 1_000) for m in range(900)]}}},
    ),
    "handshakes again": lambda n: handshake({"experimental": {text(n, LARGE): {}}}),
    "log levels": lambda n: message("logging/setLevel", {"level": text(n, LARGE)}, n + 1),
    "roots changed": lambda n: notification("notifications/roots/list_changed", {"a": text(n, LARGE)}),
}  # fmt: skip


def offers(trial: Trial) -> None:
    """Sessions opened with large offers and deleted at once."""
    for name, make in trial.choose(OFFERS):
        served = trial.arena.serve(Kind())
        served.begin_measuring()
        for n in range(TIMES):
            answer = Caller(served.place).post(make(n))
            trial.expect(answer is not None, f"{name}: no answer")
            if answer is not None and (id := answer.headers.get("mcp-session-id")):
                Caller(served.place, session=id).send("DELETE")
        _judge(trial, served, name)


def kept_offers(trial: Trial) -> None:
    """The same, and the sessions stay."""
    served = trial.arena.serve(Kind())
    for name, make in trial.choose({name: OFFERS[name] for name in ("capabilities", "a client's name")}):
        served.begin_measuring()
        for n in range(TIMES):
            Caller(served.place).post(make(TIMES + n))  # no text that the attack before this has sent
        _judge(trial, served, f"sessions that stay, {name}")
        served = trial.arena.serve(Kind(), fresh=True)


def alone(trial: Trial) -> None:
    for name, make in trial.choose(ALONE):
        served = trial.arena.serve(Kind())
        served.begin_measuring()
        for n in range(TIMES):
            method, params, capabilities, meta = make(n)
            reply = Caller(served.place).alone(method, params, capabilities=capabilities, meta=meta)
            if not trial.expect(reply["status"] is not None, f"{name}: no answer"):
                break
        _judge(trial, served, name)


def inside(trial: Trial) -> None:
    for name, make in trial.choose(INSIDE):
        served = trial.arena.serve(Kind())
        served.begin_measuring()
        caller = Caller(served.place).open({**mgp_offer(SESSION), "experimental": {"mcpl": {"version": "0.4"}}})
        for n in range(TIMES):
            caller.post(make(n))
        growth = served.growth
        caller.send("DELETE")
        _judge(trial, served, name, growth)


def over_a_socket(trial: Trial) -> None:
    """The same over one WebSocket, where nothing ends in between."""
    for name, make in trial.choose(INSIDE):
        served = trial.arena.serve(Kind())
        served.begin_measuring()
        talk = SocketConversation(Caller(served.place))
        talk.open(mgp_offer(SESSION))
        for n in range(TIMES):
            if not talk.socket.say(make(n)):
                break
        talk.ask("ping", seconds=10)
        growth = served.growth
        talk.close()
        _judge(trial, served, name, growth)


def heads(trial: Trial) -> None:
    """Heads that are all different and as large as they may be: known heads are bounded in bytes."""
    served = trial.arena.serve(Kind())
    served.begin_measuring()
    body = json.dumps(message("tools/list", stateless_params({}, {}))).encode()
    usual = {
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": STATELESS, "Mcp-Method": "tools/list", "Content-Length": str(len(body)),
    }  # fmt: skip
    with Wire(served.place) as wire:
        for n in range(6_000):
            more = {"X-Large": text(n, 7_000), "Cookie": text(n, 7_000)}
            if not wire.send(head("POST", "/mcp", served.place, {**usual, **more}) + body):
                break
            if not trial.expect(wire.response(10), f"head {n}: no answer"):
                break
    _judge(trial, served, "heads of 14 kB")


def addresses(trial: Trial) -> None:
    """A stranger with any number of addresses, as IPv6 gives everybody: what is kept of each is bounded."""
    served = trial.arena.serve(Kind(options=("--trusted-proxy",)))
    served.begin_measuring()
    body = json.dumps(message("tools/call", stateless_params(tool_call("echo", {"text": "a"}), {}))).encode()
    usual = {
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "echo",
        "Content-Length": str(len(body)),
    }  # fmt: skip
    with Wire(served.place) as wire:
        for n in range(200):
            wire.send(b"".join(
                head("POST", "/mcp", served.place, {**usual, "X-Forwarded-For": f"2001:db8::{n:x}:{m:x}"}) + body
                for m in range(50)
            ))  # fmt: skip
            answers = [wire.response(10) for _ in range(50)]
            if not trial.expect(all(answers), "no answer"):
                break
    # A kilobyte for each would be too much: they are not known any more.
    _judge(trial, served, "10,000 addresses", most=10)


def _judge(trial: Trial, served: Served, name: str, growth: float | None = None, *, most: float = 40) -> None:
    growth = max(served.growth, growth or 0.0)
    trial.expect(growth < most, f"{name}: {growth:.0f} MB more")
    trial.expect(not (said := works(Caller(served.place))), f"{name}: an honest caller afterwards: {said}")
    if growth >= most:
        trial.arena.drop(served)


# Each part is measured by itself, so that the whole may be more.
ALL = 100_000.0
MORE = r"\d+ MB more"
REMEMBERED = Control(keep_whole_offers, f"^capabilities: {MORE}", "capabilities")
KEPT = Control(keep_whole_offers, f"capabilities: {MORE}", "capabilities")
UNCOLLECTED = Control(leave_calls_to_the_collector, f"^arguments: {MORE}", "arguments")
WATCHED = Control(watch_anything, f"^watched resources: {MORE}", "watched resources")
FAMILY.add("offers of sessions that end", offers, REMEMBERED, growth=ALL)
FAMILY.add("offers of sessions that stay", kept_offers, KEPT, growth=ALL)
FAMILY.add("requests that stand alone", alone, REMEMBERED, UNCOLLECTED, growth=ALL)
FAMILY.add("in one session", inside, WATCHED, growth=ALL)
FAMILY.add("over one WebSocket", over_a_socket, WATCHED, growth=ALL)
FAMILY.add("heads", heads, Control(know_every_head, f"^heads of 14 kB: {MORE}"))
FAMILY.add("addresses", addresses, Control(keep_every_address, f"^10,000 addresses: {MORE}"))
