"""Who may do what with a session: every kind of credential against everything that can be asked.

Alice has opened a session with a strong key. Nobody without a valid key does anything with it; bob's key finds nothing
there; alice's weaker key has the weaker rights, whoever opened the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import (
    act_for_the_session,
    let_everybody_in,
    read_any_authorization,
    share_everything,
)
from tests.attack.keys import create, revoke
from tests.attack.speaking.conversation import HttpConversation, SseConversation
from tests.attack.speaking.http import Json, Response
from tests.attack.speaking.mcp import BATCHES, STATELESS, Caller, message, notification, outcome, tool_call
from tests.attack.speaking.websocket import WebSocket
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("auth matrix")
KEYED = Kind("keyed", ("--rest", "--legacy-sse"))
ELICITATION = {"elicitation": {"form": {}}}


@dataclass
class Scene:
    """A server, alice's session opened with her strong key, and an event of a stream of hers."""

    trial: Trial
    served: Served
    alice: HttpConversation
    strong: str
    weak: str
    event: str = "0"

    @property
    def session(self) -> str:
        return self.alice.caller.session or ""

    def word(self) -> str:
        return f"{self.trial.random.randrange(10**12)}"


def scene(trial: Trial, version: str = "2025-11-25") -> Scene:
    served = trial.arena.serve(KEYED, fresh=True)
    strong = create(served, "alice", "ToolInvoke(*)", scopes="secrets:read").token
    weak = create(served, "alice", "ToolInvoke(echo)", "ToolInvoke(who)").token
    alice = HttpConversation(Caller(served.place, strong))
    alice.open(ELICITATION, version)
    made = Scene(trial, served, alice, strong, weak)
    stream = alice.stream(
        "POST", message("tools/call", {**tool_call("ticking", {"seconds": 0.5}), "_meta": {"progressToken": 1}}, "e")
    )
    stream.ends_within(5)
    made.event = stream.ids[0] if stream.ids else "0"
    return made


def credentials(made: Scene) -> dict[str, Caller]:
    """Those that are worth nothing."""
    served = made.served
    expired = create(served, "alice", "ToolInvoke(*)", expires_in=0.05)
    revoked = create(served, "alice", "ToolInvoke(*)")
    revoke(made.trial.arena, served, revoked)
    time.sleep(0.1)
    place = served.place
    return {
        "another user's": Caller(place, create(served, "bob", "ToolInvoke(*)", scopes="secrets:read").token),
        "no token": Caller(place),
        "a bad token": Caller(place, made.strong[:-1] + ("a" if made.strong[-1] != "a" else "b")),
        "an expired key": Caller(place, expired.token),
        "a revoked key": Caller(place, revoked.token),
        "an empty token": Caller(place, ""),
        "Basic": Caller(place, headers={"Authorization": f"Basic {made.strong}"}),
        "in the query": Caller(place, path=f"/mcp?access_token={made.strong}"),
        "in a cookie": Caller(place, headers={"Cookie": f"Authorization=Bearer {made.strong}"}),
        "two headers in one": Caller(place, headers={"Authorization": f"Bearer x, Bearer {made.strong}"}),
    }


Action = Callable[[Scene, Caller], Response | None]
# Everything that can be asked of a session. Each is sent by somebody who does not own it.
ACTIONS: dict[str, Action] = {
    "call": lambda m, c: c.post(message("tools/call", tool_call("strong", {"word": m.word()}))),
    "list": lambda m, c: c.post(message("tools/list")),
    "read": lambda m, c: c.post(message("resources/read", {"uri": "memo://secret"})),
    "subscribe": lambda m, c: c.post(message("resources/subscribe", {"uri": "memo://a"})),
    "ping": lambda m, c: c.post(message("ping")),
    "stream": lambda m, c: c.send("GET", patience=3, Accept="text/event-stream"),
    "resume": lambda m, c: c.send("GET", patience=3, Accept="text/event-stream", **{"Last-Event-ID": m.event}),
    "answer": lambda m, c: c.post({"jsonrpc": "2.0", "id": 1, "result": {"action": "accept", "content": {}}}),
    "cancel": lambda m, c: c.post(notification("notifications/cancelled", {"requestId": 1})),
    "batch": lambda m, c: c.post([message("tools/call", tool_call("strong", {"word": m.word()}))]),
    "log level": lambda m, c: c.post(message("logging/setLevel", {"level": "debug"})),
    "delete": lambda m, c: c.send("DELETE"),
}  # fmt: skip


SHARED = Control(share_everything, "^another user's, .*: 200")


@FAMILY.attack("somebody else's session", SHARED)
def _(trial: Trial) -> None:
    made = scene(trial)
    for who, caller in credentials(made).items():
        wanted = (404, 400) if who == "another user's" else (400, 401, 429)
        for name, action in ACTIONS.items():
            answer = action(made, caller.using(session=made.session))
            status = answer.status if answer is not None else None
            trial.expect(status in wanted, f"{who}, {name}: {status} {answer.text[:80] if answer else ''}")
    said = outcome(made.alice.ask("tools/call", tool_call("echo", {"text": "mine"})))
    trial.expect("mine" in said, f"alice's session afterwards: {said}")
    trial.expect(not made.served.has_marked("strong:"), "somebody's call of `strong` ran")


@FAMILY.attack("without a session", Control(let_everybody_in, "^no token, .*: (200|101)"))
def _(trial: Trial) -> None:
    """WebSocket, REST, requests that stand alone, HTTP+SSE, listening."""
    made = scene(trial)
    for who, caller in credentials(made).items():
        if who == "another user's":
            continue
        listen = caller.alone("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, patience=3)
        rest = caller.send("POST", {"word": made.word()}, path="/tools/strong" + caller.path.removeprefix("/mcp"))
        document = caller.send("GET", path="/openapi.json" + caller.path.removeprefix("/mcp"))
        sse = caller.send("GET", path="/sse" + caller.path.removeprefix("/mcp"), patience=3, Accept="text/event-stream")
        found: dict[str, int | None] = {
            "call": caller.call_alone("strong", word=made.word())["status"],
            "list": caller.alone("tools/list")["status"],
            "discover": caller.alone("server/discover")["status"],
            "listen": listen["status"],
            "REST": rest.status if rest is not None else None,
            "the document": document.status if document is not None else None,
            "SSE": sse.status if sse is not None else None,
        }
        with WebSocket(made.served.place, caller.all_headers(), caller.path, patience=5) as socket:
            found["WebSocket"] = socket.status
        for name, status in found.items():
            trial.expect(status in (400, 401, 429), f"{who}, {name}: {status}")
    trial.expect(not made.served.has_marked("strong:"), "somebody's call of `strong` ran")


@FAMILY.attack("a weaker key in the session of a stronger one", Control(act_for_the_session, ": it ran"))
def _(trial: Trial) -> None:
    made = scene(trial, BATCHES)
    weak = made.alice.caller.using(token=made.weak)
    call = message("tools/call", tool_call("strong", {"word": made.word()}))
    for name, body in {"call": call, "batch": [call, call], "as a list of one": [call]}.items():
        answer = weak.post(body)
        trial.expect(not made.served.has_marked("strong:"), f"{name}: it ran ({answer and answer.text[:120]})")
    listed = [tool["name"] for tool in (weak.ask("tools/list").get("result") or {}).get("tools", [])]
    trial.expect(set(listed) <= {"echo", "who"}, f"list: it sees {listed}")
    said = weak.ask("resources/read", {"uri": "memo://secret"})
    trial.expect("the secret" not in str(said), f"read: {str(said)[:160]}")
    said = weak.ask("resources/subscribe", {"uri": "memo://secret"})
    trial.expect("error" in said, f"subscribe to memo://secret: {str(said)[:120]}")
    said = outcome(weak.call("echo", text="own"))
    trial.expect("own" in said, f"what the weaker key may call: {said}")


@FAMILY.attack("a stronger key in the session of a weaker one", Control(act_for_the_session, "^the stronger key"))
def _(trial: Trial) -> None:
    """Every request is judged by what it shows: stepping up works, and holds for that request alone."""
    made = scene(trial)
    weak = Caller(made.served.place, made.weak).open()
    word = made.word()
    said = outcome(weak.using(token=made.strong).call("strong", word=word))
    trial.expect(made.served.has_marked(word), f"the stronger key: {said}")
    word = made.word()
    weak.call("strong", word=word)
    trial.expect(not made.served.has_marked(word), "the weaker key, after the stronger one: it ran")


@FAMILY.attack("a weaker key says yes", Control(share_everything, "a weaker key confirmed it|went to a stream"))
def _(trial: Trial) -> None:
    """A question of a strong call is not confirmed by a weaker key, and not told to its streams."""
    for asks in ("sure", "erase"):
        made = scene(trial)
        weak = made.alice.caller.using(token=made.weak)
        listening = HttpConversation(weak)
        reading = listening.stream("GET", Accept="text/event-stream")
        reading.begun.wait(3)
        word = made.word()

        def from_weak(asked: Json, weak: Caller = weak) -> None:
            if asked.get("method") == "elicitation/create":
                weak.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": _yes(asked)}})

        with ThreadPoolExecutor(1) as pool:
            params = tool_call(asks, {"word": word})
            said = outcome(pool.submit(made.alice.ask, "tools/call", params, from_weak, 4).result())
        trial.expect(not made.served.has_marked(word), f"{asks}: a weaker key confirmed it ({said})")
        heard = [each for each in _drain(listening) if each.get("method") == "elicitation/create"]
        trial.expect(not heard, f"{asks}: the question went to a stream of the weaker key")
        listening.close()


@FAMILY.attack("a weaker key reads streams", Control(share_everything, "it is told|it resumes"))
def _(trial: Trial) -> None:
    """Neither news of what it may not see, nor the rest of a stronger key's stream."""
    made = scene(trial)
    weak = made.alice.caller.using(token=made.weak)
    made.alice.ask("resources/subscribe", {"uri": "memo://secret"})
    listening = HttpConversation(weak)
    stream = listening.stream("GET", Accept="text/event-stream")
    stream.begun.wait(3)
    made.alice.ask("tools/call", tool_call("change_secret", {}))
    time.sleep(0.5)
    heard = [each for each in _drain(listening) if "memo://secret" in str(each)]
    trial.expect(not heard, f"it is told that memo://secret changed: {heard[:1]}")
    resumed = weak.send("GET", patience=2, Accept="text/event-stream", **{"Last-Event-ID": made.event})
    told = resumed is not None and resumed.status == 200 and any("result" in each for each in resumed.messages)
    trial.expect(not told, "it resumes the stream of a stronger key's call and reads its result")
    listening.close()


@FAMILY.attack("HTTP+SSE with other keys", Control(share_everything, "^another user's: 202"))
def _(trial: Trial) -> None:
    made = scene(trial)
    feed = SseConversation(Caller(made.served.place, made.strong))
    for who, caller in credentials(made).items():
        path = feed.path + ("&" + caller.path.partition("?")[2] if "?" in caller.path else "")
        answer = caller.send("POST", message("tools/call", tool_call("strong", {"word": made.word()})), path=path)
        wanted = (404, 400) if who == "another user's" else (400, 401, 429)
        trial.expect(answer is not None and answer.status in wanted, f"{who}: {answer and answer.status}")
    feed.open()
    caller = Caller(made.served.place, made.weak)
    caller.send("POST", message("tools/call", tool_call("strong", {"word": made.word()})), path=feed.path)
    time.sleep(0.5)
    trial.expect(not made.served.has_marked("strong:"), "a weaker key on the stronger key's stream: it ran")
    feed.close()


@FAMILY.attack("headers that nearly say it", Control(read_any_authorization, "^Authorization: .*result: alice"))
def _(trial: Trial) -> None:
    """One Authorization header, with one scheme, once."""
    made = scene(trial)
    good, place = made.strong, made.served.place
    values = [f"Bearer  {good} x", f"Bearer {good},", f"Bearer\t{good}\tBearer", f"Token {good}", good, f"Bearer{good}",
              f'Bearer "{good}"', f"Bearer {good}\x0b", f"Bearer {good[:-1]}", f"Bearer {good}="]  # fmt: skip
    for value in values:
        reply = Caller(place, headers={"Authorization": value}).call_alone("who")
        trial.expect("alice" not in outcome(reply), f"Authorization: {value.replace(good, 'KEY')!r}: {outcome(reply)}")
    from tests.attack.speaking.http import Wire, head

    for pair in (
        (f"Bearer {good}", "Bearer x"),
        ("Bearer x", f"Bearer {good}"),
        (f"Bearer {good}", f"Bearer {made.weak}"),
    ):
        with Wire(place) as wire:
            given = [("Authorization", value) for value in pair]
            headers = [("Accept", "text/event-stream"), ("Mcp-Protocol-Version", STATELESS), *given]
            wire.send(head("GET", "/openapi.json", place, headers))
            answer = wire.response(5)
        trial.expect(answer is None or answer.status in (400, 401, 429), f"two headers: {answer and answer.status}")


def _yes(asked: Json) -> Json:
    from tests.attack.speaking.conversation import accepted

    return accepted(asked.get("params") or {})


def _drain(talk: HttpConversation) -> list[Json]:
    found = list[Json]()
    while not talk.heard.empty():
        each = talk.heard.get_nowait()
        if each is not None:
            found.append(each)
    return found
