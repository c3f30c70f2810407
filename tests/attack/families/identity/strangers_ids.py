"""Ids of others: an id is never authority. Bob, and nobody, try what alice was given."""

from __future__ import annotations

import base64
from typing import Any

from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import find_any_session, seal_for_anybody, share_everything, tell_everybody
from tests.attack.keys import create
from tests.attack.speaking.conversation import HttpConversation, SseConversation, accepted
from tests.attack.speaking.http import Json
from tests.attack.speaking.mcp import SESSION, Caller, message, mgp_offer, outcome, tool_call
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("ids of others")
KEYED = Kind("keyed", ("--legacy-sse",))
ELICITATION = {"elicitation": {"form": {}}}


def people(served: Served) -> tuple[Caller, Caller]:
    """Alice and bob, who may do the same."""
    made = (create(served, name, "ToolInvoke(*)", scopes="secrets:read").token for name in ("alice", "bob"))
    alice, bob = (Caller(served.place, token) for token in made)
    return alice, bob


@FAMILY.attack("guessed session ids", Control(find_any_session, "with a guessed id: 200"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(KEYED)
    alice, bob = people(served)
    session = alice.open().session or ""
    trial.expect(len(session) >= 22, f"a session id has {len(session)} characters")
    near = [session[:-1] + letter for letter in "abcXYZ019_"] + [
        session.lower(),
        session.upper(),
        session + "a",
        "0",
    ]
    for caller in (alice, bob):
        for id in near:
            if id == session:
                continue
            status = caller.using(session=id).ask("ping")["status"]
            trial.expect(status in (404, 400), f"{'alice' if caller is alice else 'bob'} with a guessed id: {status}")
    ids = {alice.open().session for _ in range(50)}
    trial.expect(len(ids) == 50, "session ids repeat")


@FAMILY.attack("events of another's stream", Control(share_everything, "^Last-Event-ID"))
def _(trial: Trial) -> None:
    """Bob resumes alice's streams: in his own session, and in hers."""
    served = trial.arena.serve(KEYED)
    alice, bob = people(served)
    hers = HttpConversation(alice)
    hers.open()
    params = {**tool_call("ticking", {"seconds": 0.5}), "_meta": {"progressToken": 1}}
    stream = hers.stream("POST", message("tools/call", params, 5))
    stream.ends_within(5)
    trial.expect(stream.ids, "alice's stream has no event ids")
    own = bob.open()
    for id in [*stream.ids[:3], "0", "1", "standalone", *(f"standalone-{n}" for n in range(3))]:
        for caller in (own, own.using(session=hers.caller.session)):
            answer = caller.send("GET", patience=2, Accept="text/event-stream", **{"Last-Event-ID": id})
            told = answer is not None and answer.status == 200 and answer.messages
            trial.expect(not told, f"Last-Event-ID {id}: {answer and answer.text[:100]}")


@FAMILY.attack("answers to another's questions", Control(share_everything, "bob confirmed"))
def _(trial: Trial) -> None:
    """Bob answers alice's question: by its id, by its callback id, and with her sealed state."""
    served = trial.arena.serve(KEYED)
    alice, bob = people(served)
    word = f"{trial.random.randrange(10**12)}"
    hers, own = HttpConversation(alice), bob.open({**ELICITATION, **mgp_offer(SESSION)})

    def by_bob(asked: Json) -> None:
        result = {"action": "accept", "content": accepted(asked.get("params") or {})}
        for caller in (own, own.using(session=hers.caller.session), bob):
            caller.post({"jsonrpc": "2.0", "id": asked.get("id"), "result": result})
            given = {"callback_id": (asked.get("params") or {}).get("callback_id", "x"), "response": "confirm"}
            caller.post(message("mgp/callback/respond", given))

    for capabilities in (ELICITATION, mgp_offer(SESSION, "callbacks")):
        hers = HttpConversation(alice)
        hers.open(capabilities)
        said = outcome(hers.ask("tools/call", tool_call("sure", {"word": word}), by_bob, 3))
        trial.expect(not served.has_marked(word), f"bob confirmed alice's call ({said})")
        hers.close()


@FAMILY.attack("sealed states", Control(seal_for_anybody, "^bob: it ran"))
def _(trial: Trial) -> None:
    """A request state belongs to its caller, its call and its arguments; a changed one is worth nothing."""
    served = trial.arena.serve(KEYED)
    alice, bob = people(served)
    word = f"{trial.random.randrange(10**12)}"
    params = tool_call("sure", {"word": word})
    asked = alice.alone("tools/call", params, capabilities=ELICITATION).get("result") or {}
    state: str = asked.get("requestState") or ""
    trial.expect(state, f"alice is not asked: {str(asked)[:120]}")
    requests: dict[str, Any] = asked.get("inputRequests") or {}
    answers = {k: {"action": "accept", "content": accepted(q.get("params") or {})} for k, q in requests.items()}
    tries: dict[str, tuple[Caller, Json, str]] = {
        "bob": (bob, params, state),
        "nobody": (Caller(served.place), params, state),
        "other arguments": (alice, tool_call("sure", {"word": word + "x"}), state),
        "another tool": (alice, tool_call("erase", {"word": word}), state),
        "a changed byte": (alice, params, state[:-2] + ("A" if state[-2] != "A" else "B") + state[-1]),
        "a state cut short": (alice, params, state[: len(state) // 2]),
        "an empty state": (alice, params, ""),
        "a state of zeros": (alice, params, base64.urlsafe_b64encode(b"\0" * 200).decode()),
        "a huge state": (alice, params, "A" * 2_000_000),
    }
    for name, (caller, call, given) in tries.items():
        full = {**call, "inputResponses": answers, "requestState": given}
        reply = caller.alone("tools/call", full, capabilities=ELICITATION)
        trial.expect(not served.has_marked(word), f"{name}: it ran ({outcome(reply)})")


@FAMILY.attack("subscriptions and calls of another", Control(share_everything, "bob (cancelled|unsubscribed)"))
def _(trial: Trial) -> None:
    """Bob ends alice's subscription, cancels her call, and calls with the ids of her requests."""
    served = trial.arena.serve(KEYED)
    alice, bob = people(served)
    hers, own = HttpConversation(alice), bob.open(mgp_offer(SESSION))
    hers.open(mgp_offer(SESSION))
    made = hers.ask("mgp/events/subscribe", {"channels": ["tool.*"]}).get("result") or {}
    id = made.get("subscription_id", "x")
    stolen = own.ask("mgp/events/unsubscribe", {"subscription_id": id})
    trial.expect("error" in stolen, f"bob unsubscribed alice: {stolen}")
    stream = hers.stream("POST", message("tools/call", tool_call("slow", {"seconds": 2}), 77))
    for caller in (own, own.using(session=hers.caller.session), bob):
        for request in (77, "77", 77.0):
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request}}
            caller.post(note)
    stream.ends_within(6)
    trial.expect(served.has_marked("slept"), "bob cancelled alice's call")
    kept = hers.ask("mgp/events/unsubscribe", {"subscription_id": id})
    trial.expect("result" in kept, f"alice's own subscription: {kept}")


@FAMILY.attack("another's HTTP+SSE session", Control(share_everything, ": 202"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(KEYED)
    alice, bob = people(served)
    feed = SseConversation(alice)
    word = f"{trial.random.randrange(10**12)}"
    for caller in (bob, Caller(served.place)):
        for path in (feed.path, feed.path + "&session_id=x", feed.path.replace("session_id", "sessionId")):
            answer = caller.send("POST", message("tools/call", tool_call("strong", {"word": word})), path=path)
            trial.expect(answer is not None and answer.status in (400, 401, 404), f"{path}: {answer and answer.status}")
    trial.expect(not served.has_marked(word), "bob's call ran in alice's session")
    feed.close()


@FAMILY.attack(
    "who hears of whom", Control(tell_everybody, "^bob heard of alice"), Control(tell_everybody, "^bob replayed")
)
def _(trial: Trial) -> None:
    """Bob subscribes to everything there is, and hears nothing of alice's calls, or of what is meant for her."""
    served = trial.arena.serve(KEYED)
    alice, bob = people(served)
    his = HttpConversation(bob)
    his.open(mgp_offer(SESSION))
    his.ask("mgp/events/subscribe", {"channels": ["*", "tool.*", "security.*", "memo.*"]})
    his.ask("logging/setLevel", {"level": "debug"})
    own = his.stream("GET", Accept="text/event-stream")
    own.begun.wait(3)
    word, public = (f"{kind}{trial.random.randrange(10**12)}" for kind in ("secret", "public"))
    for _ in range(5):
        alice.call_alone("strong", word=word)
        alice.call_alone("nothing", word=word)
        alice.call_alone("note", word=word, everybody=False)
    alice.call_alone("note", word=public, everybody=True)
    # Whatever he is told of her calls comes before this, which he may hear.
    heard = his.notices + his.hear_until(lambda told: public in str(told), 5)
    trial.expect(public in str(heard), f"bob does not hear what is for everybody: {str(heard)[:200]}")
    hers = [told for told in heard if any(name in str(told) for name in (word, "alice", "'strong'", "'nothing'"))]
    trial.expect(not hers, f"bob heard of alice: {str(hers[:1])[:200]}")
    replayed = bob.alone("mgp/events/replay", {"channels": ["memo.*"]}, capabilities=mgp_offer("2026-07-28"))
    trial.expect(public in str(replayed), f"bob cannot replay what is for everybody: {str(replayed)[:200]}")
    trial.expect(word not in str(replayed) and "alice" not in str(replayed), f"bob replayed: {str(replayed)[:200]}")
    said = outcome(his.ask("tools/call", tool_call("echo", {"text": "his"})))
    trial.expect("his" in said, f"bob's own call: {said}")
    his.close()
