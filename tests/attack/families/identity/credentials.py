"""Credentials that end: within five seconds their sockets, sessions, streams and subscriptions are gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import keep_what_is_open
from tests.attack.keys import create, revoke
from tests.attack.speaking.conversation import HttpConversation, SocketConversation, SseConversation, Stream
from tests.attack.speaking.mcp import STATELESS, Caller, message, stateless_params, tool_call
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("credentials")
SECONDS, GRACE = 5.0, 1.5


class Held:
    """Everything one credential can hold open at a time."""

    def __init__(self, served: Served, token: str) -> None:
        self.caller = Caller(served.place, token)
        self.socket = SocketConversation(self.caller)
        self.socket.open()
        self.session = HttpConversation(self.caller)
        self.session.open()
        self.own = self.session.stream("GET", Accept="text/event-stream")
        params = {**tool_call("ticking", {"seconds": 25}), "_meta": {"progressToken": 1}}
        self.call = self.session.stream("POST", message("tools/call", params, 9))
        alone = HttpConversation(self.caller)
        headers = {"Mcp-Protocol-Version": STATELESS, "Mcp-Method": "subscriptions/listen"}
        wanted = {"notifications": {"resourceSubscriptions": ["memo://a"], "toolsListChanged": True}}
        listen = message("subscriptions/listen", stateless_params(wanted, {}))
        self.listening = alone.stream("POST", listen, **headers)
        self.feed = SseConversation(self.caller)
        self.feed.open()
        self.streams: dict[str, Stream] = {
            "the session's stream": self.own, "a call's stream": self.call,
            "a subscription": self.listening, "HTTP+SSE": self.feed.stream,
        }  # fmt: skip
        for stream in self.streams.values():
            stream.begun.wait(5)

    def all_open(self) -> str:
        """Empty if everything is open; otherwise what is not."""
        gone = [name for name, stream in self.streams.items() if not stream.is_alive() or stream.status != 200]
        return ", ".join([*gone, *([] if self.socket.socket.is_open else ["the WebSocket"])])

    def expect_gone(self, trial: Trial, told: str, deadline: float) -> None:
        """Everything ends by that moment. What still works afterwards is tried, too."""

        def left() -> float:
            return max(deadline - time.monotonic(), 0.01)

        trial.expect(self.socket.ends_within(left()), f"{told}: the WebSocket goes on")
        for name, stream in self.streams.items():
            trial.expect(stream.ends_within(left()), f"{told}: {name} goes on")
        after = self.session.caller.ask("tools/call", tool_call("echo", {"text": "a"}))
        trial.expect(after["status"] == 401, f"{told}: a call in its session: {after['status']}")

    def close(self) -> None:
        for talk in (self.socket, self.session, self.feed):
            talk.close()
        self.listening.wire.socket.close()


def ended(
    trial: Trial, served: Served, token: str, told: str, end: Callable[[], Any], other: str | None = None
) -> None:
    """Open everything, end the credential, and see it all go."""
    held = Held(served, token)
    if not trial.expect(not (missing := held.all_open()), f"{told}: not open to begin with: {missing}"):
        return
    end()
    held.expect_gone(trial, told, time.monotonic() + SECONDS + GRACE)
    if other:
        reply = held.session.caller.using(token=other).ask("ping")
        trial.expect(reply["status"] == 404, f"{told}: its session for another key of the same user: {reply['status']}")
    held.close()


KEYED = Kind("keyed", ("--legacy-sse",))
GOES_ON = Control(keep_what_is_open, "goes on")


@FAMILY.attack("a revoked key", GOES_ON)
def _(trial: Trial) -> None:
    served = trial.arena.serve(KEYED)
    key, other = create(served, "alice", "ToolInvoke(*)"), create(served, "alice", "ToolInvoke(*)")
    bystander = Held(served, other.token)
    ended(trial, served, key.token, "revoked", lambda: revoke(trial.arena, served, key), other.token)
    trial.expect(not (gone := bystander.all_open()), f"another key of the same user has lost: {gone}")
    bystander.close()


@FAMILY.attack("an expired key", GOES_ON)
def _(trial: Trial) -> None:
    served = trial.arena.serve(KEYED)
    key = create(served, "alice", "ToolInvoke(*)", expires_in=3.0)
    expires = time.monotonic() + 3.0
    ended(trial, served, key.token, "expired", lambda: time.sleep(max(expires - time.monotonic(), 0)))


@FAMILY.attack("a JWT past its time", GOES_ON)
def _(trial: Trial) -> None:
    import jwt

    served = trial.arena.serve(KEYED.with_env(ATTACK_AUTH="jwt"))
    expires = time.time() + 4
    claims = {"sub": "alice", "aud": "attack", "iss": "attack", "exp": expires, "iat": time.time()}
    token = jwt.encode(claims, "the shared secret of the attack suite", "HS256")
    ended(trial, served, token, "JWT expired", lambda: time.sleep(max(expires - time.time(), 0)))


@FAMILY.attack("a token that its verifier no longer knows", GOES_ON)
def _(trial: Trial) -> None:
    served = trial.arena.serve(KEYED.with_env(ATTACK_AUTH="custom"))
    file = Path(served.folder) / "tokens"
    file.write_text("good-token\nother-token\n")
    ended(trial, served, "good-token", "forgotten", lambda: file.write_text("other-token\n"))


@FAMILY.attack("revoked in the middle", Control(keep_what_is_open, "was answered .* s later"))
def _(trial: Trial) -> None:
    """A key that is revoked while it floods: the last call that runs begins within five seconds of the end."""
    served = trial.arena.serve(KEYED)
    key = create(served, "alice", "ToolInvoke(*)")
    talk = SocketConversation(Caller(served.place, key.token))
    talk.open()
    over = Event()

    def flood() -> float:
        """When the last call was answered."""
        last = 0.0
        while not over.is_set():
            if "result" in talk.ask("tools/call", tool_call("echo", {"text": "a"}), seconds=1):
                last = time.monotonic()
            time.sleep(0.05)
        return last

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(flood)
        try:
            # However long the command takes, the flood goes on for longer than the key may be good afterwards.
            revoke(trial.arena, served, key)
            revoked = time.monotonic()
            time.sleep(SECONDS + GRACE)
        finally:
            over.set()
        last = running.result()
    trial.expect(last, "no call was answered at all")
    trial.expect(last < revoked + SECONDS, f"a call on its WebSocket was answered {last - revoked:.1f} s later")
    talk.close()
