"""Bad tokens are slowed down; good ones never are, whoever else is at their address."""

from __future__ import annotations

from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import count_no_failures, let_everybody_in, slow_addresses_down
from tests.attack.keys import create
from tests.attack.speaking.mcp import Caller
from tests.attack.speaking.websocket import WebSocket
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("throttling")
BAD = "0" * 16 + "." + "a" * 43
MANY = 60


def statuses(caller: Caller, count: int) -> list[int | None]:
    return [caller.call_alone("echo", text="a")["status"] for _ in range(count)]


def good_ways(trial: Trial, served: Served, caller: Caller, told: str) -> None:
    """A good token over every way in."""
    trial.expect(statuses(caller, 3) == [200] * 3, f"{told}: calls with a good token: {statuses(caller, 1)}")
    rest = caller.send("POST", {"text": "a"}, path="/tools/echo")
    trial.expect(rest is not None and rest.status == 200, f"{told}: REST: {rest and rest.status}")
    trial.expect(caller.open().session, f"{told}: no session")
    with WebSocket(served.place, {**caller.headers, "Authorization": f"Bearer {caller.token}"}) as socket:
        trial.expect(socket.is_open, f"{told}: WebSocket: {socket.status}")


@FAMILY.attack("good tokens after bad ones", Control(slow_addresses_down, "calls with a good token"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind("keyed", ("--rest",)))
    key = create(served, "alice", "ToolInvoke(*)")
    good = Caller(served.place, key.token)
    bad = {
        "unknown keys": [Caller(served.place, f"{n:016x}." + "a" * 43) for n in range(MANY)],
        "one unknown key": [Caller(served.place, BAD)] * MANY,
        "its own id with another secret": [Caller(served.place, f"{key.id}." + "a" * 43)] * MANY,
        "no token": [Caller(served.place)] * MANY,
        "not a bearer token": [Caller(served.place, headers={"Authorization": "Basic YTpi"})] * MANY,
        "two tokens": [Caller(served.place, headers={"Authorization": f"Bearer {BAD}, Bearer {BAD}"})] * MANY,
    }
    for name, callers in bad.items():
        for caller in callers:
            caller.call_alone("echo", text="a")
        good_ways(trial, served, good, f"after {MANY} times {name}")
    for _ in range(MANY):
        with WebSocket(served.place, {"Authorization": f"Bearer {BAD}"}):
            pass
        Caller(served.place, BAD).send("POST", {"text": "a"}, path="/tools/echo")
    good_ways(trial, served, good, "after bad tokens over WebSocket and REST")


@FAMILY.attack("behind a proxy", Control(count_no_failures, "never slowed down"))
def _(trial: Trial) -> None:
    """The forwarded address counts, and its failures are slowed down; nobody's good token is."""
    served = trial.arena.serve(Kind("keyed", ("--rest", "--trusted-proxy")))
    token = create(served, "alice", "ToolInvoke(*)").token
    here, there = ({"X-Forwarded-For": address} for address in ("203.0.113.9", "198.51.100.7"))
    failed = statuses(Caller(served.place, BAD, here), MANY)
    trial.expect(429 in failed, f"{MANY} bad tokens of one address are never slowed down: {set(failed)}")
    trial.expect(set(failed) <= {401, 429}, f"bad tokens: {set(failed)}")
    good_ways(trial, served, Caller(served.place, token, here), "the same address with a good token")
    good_ways(trial, served, Caller(served.place, token, there), "another address")
    good_ways(trial, served, Caller(served.place, token), "the proxy itself")
    trial.expect(statuses(Caller(served.place, BAD, there), 1) == [401], "another address with a first bad token")


@FAMILY.attack("the cost of bad tokens", Control(let_everybody_in, ": 200$"))
def _(trial: Trial) -> None:
    """Huge and odd tokens: refused, without keeping them."""
    served = trial.arena.serve(Kind("keyed"))
    for token in ("x" * 7_000, "." * 7_000, "a.b.c" * 1_000, "\xff" * 100, "eyJhbGciOiJub25lIn0.e30.", "Bearer x", " "):
        for n in range(100):
            reply = Caller(served.place, f"{token}{n}").call_alone("echo", text="a")
            trial.expect(reply["status"] in (400, 401, 429, 431), f"{token[:20]!r}: {reply['status']}")
