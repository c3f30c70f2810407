"""One stranger takes all it can get: sessions, sockets, calls. Others are served all the same."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import (
    count_no_addresses,
    let_busy_sessions_give_way,
    let_nobody_give_way,
    let_strangers_take_places,
    serve_the_first_in_line_only,
    wait_for_tools,
)
from tests.attack.keys import create
from tests.attack.speaking.conversation import HttpConversation
from tests.attack.speaking.http import Wire, head
from tests.attack.speaking.mcp import Caller, message, opening, outcome, stateless_params, tool_call, works
from tests.attack.speaking.sockets import Place
from tests.attack.speaking.websocket import WebSocket, frame, upgrade
from tests.attack.trial import Control, Family, MissingFeature, NotTried, Trial

FAMILY = Family("sessions")
# The table of the attacked server has room for 2,000 sessions; one address may have 1,000 of them.
FLOOD, SMALL = 2_500, Kind().with_env(ATTACK_LIMITS='{"sessions": 2000}')
# One with room for 400 connections, of which one address may have 100: what takes 5,000 otherwise takes 500 here.
NARROW = '{"connections": 400, "sessions_per_address": 100}'
OTHER = "127.0.0.2"


def elsewhere(served: Served, token: str | None = None) -> Caller:
    """Somebody at another address."""
    return Caller(replace(served.place, source=OTHER), token)


def opened(wire: Wire, place_head: bytes, count: int) -> int:
    """Open that many sessions on one connection, as fast as it goes; how many were given."""
    given = 0
    for _ in range(count // 50):
        if not wire.send(place_head * 50):
            break
        for _ in range(50):
            answer = wire.response(20)
            given += answer is not None and answer.status == 200
    return given


def opening_request(served: Served) -> bytes:
    body = json.dumps(opening()).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    return head("POST", "/mcp", served.place, {**headers, "Content-Length": str(len(body))}) + body


@FAMILY.attack("2,500 handshakes of one address", Control(count_no_addresses, "gets no session"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(SMALL)
    kept = HttpConversation(elsewhere(served))
    kept.open()
    with Wire(served.place) as wire:
        given = opened(wire, opening_request(served), FLOOD)
    trial.notes.append(f"{given:,} of {FLOOD:,} were given")
    other = HttpConversation(elsewhere(served))
    trial.expect("result" in other.open(), "somebody at another address gets no session")
    said = outcome(other.ask("tools/call", tool_call("echo", {"text": "other"})))
    trial.expect("other" in said, f"a call of somebody at another address: {said}")
    said = outcome(kept.ask("tools/call", tool_call("echo", {"text": "kept"})))
    trial.expect("kept" in said, f"a session of another address that was open before: {said}")
    same = HttpConversation(Caller(served.place))
    trial.expect("result" in same.open(), "an honest caller at the same address gets no session")
    said = works(Caller(served.place))
    trial.expect(not said, f"a request that stands alone: {said}")


@FAMILY.attack(
    "a session in use among 2,500", Control(let_busy_sessions_give_way, "of an honest caller|the session with a stream")
)
def _(trial: Trial) -> None:
    """Idle sessions give way first: not the one with a call that runs, not the one with a stream that is read."""
    served = trial.arena.serve(SMALL, fresh=True)
    reading, calling = HttpConversation(Caller(served.place)), HttpConversation(Caller(served.place))
    reading.open()
    stream = reading.stream("GET")
    trial.expect(stream.begun.wait(5) and stream.status == 200, f"a stream is not opened: {stream.status}")
    calling.open()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(calling.ask, "tools/call", tool_call("slow", {"seconds": 8}), seconds=25)
        with Wire(served.place) as wire:
            opened(wire, opening_request(served), FLOOD)
        trial.expect(stream.is_alive(), "the stream of an honest caller was ended")
        said = outcome(answer.result())
    trial.expect("slept" in said, f"the call of an honest caller: {said}")
    said = outcome(reading.ask("tools/call", tool_call("echo", {"text": "kept"})))
    trial.expect("kept" in said, f"the session with a stream: {said}")


def sockets(trial: Trial, kind: Kind, request: Callable[[Place], bytes]) -> None:
    """One address opens as many as it gets. Its oldest give way to its newest, so others find room."""
    sizes = {"5,000": (5_000, kind), "500": (500, kind.with_env(ATTACK_LIMITS=NARROW))}
    for told, (count, one) in trial.choose(sizes):
        _need_descriptors(count)
        served = trial.arena.serve(one)
        made = list[Wire]()
        try:
            for _ in range(count):
                wire = Wire(served.place, patience=30)
                made.append(wire)
                wire.send(request(served.place))
            given = 0
            for wire in made:
                if wire.more(2):
                    given += b" 101 " in wire.read[:40] or b" 200 " in wire.read[:40]
            trial.notes.append(f"{given:,} of {told} were opened")
            # Without this, whatever was refused took no room, and the others show nothing.
            trial.expect(given * 2 > count, f"only {given:,} of {told} were opened")
            said = works(elsewhere(served))
            trial.expect(not said, f"{told}: somebody at another address: {said}")
            talk = HttpConversation(elsewhere(served))
            trial.expect("result" in talk.open(), f"{told}: somebody at another address gets no session")
            with WebSocket(replace(served.place, source=OTHER)) as socket:
                trial.expect(socket.is_open, f"{told}: somebody at another address gets no WebSocket: {socket.status}")
        finally:
            for wire in made:
                wire.socket.close()


def _need_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 500:
        if hard != resource.RLIM_INFINITY and hard < count + 500:
            raise MissingFeature(f"only {hard} open files are allowed here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 500, hard))


CROWDED = Control(let_nobody_give_way, "^somebody at another address: ")
HELD_OPEN = Control(count_no_addresses, "^500: somebody at another address: ", "500")
FAMILY.add("5,000 WebSockets of one address", lambda t: sockets(t, Kind(), upgrade), HELD_OPEN, growth=300)
FAMILY.add(
    "5,000 event streams of one address",
    lambda t: sockets(
        t, Kind(options=("--legacy-sse",)), lambda place: head("GET", "/sse", place, {"Accept": "text/event-stream"})
    ),
    HELD_OPEN,
    growth=300,
)


@FAMILY.attack("5,000 connections that say nothing", CROWDED, growth=300)
def _(trial: Trial) -> None:
    _need_descriptors(5_000)
    served = trial.arena.serve(Kind())
    made = [Wire(served.place, patience=5) for _ in range(5_000)]
    try:
        said = works(elsewhere(served))
        trial.expect(not said, f"somebody at another address: {said}")
    finally:
        for wire in made:
            wire.socket.close()


# Calls that take longer than two seconds are ended; a call waits for room for five.
IMPATIENT = Kind().with_env(ATTACK_LIMITS='{"tool": 2}')


@FAMILY.attack(
    "calls that take for ever",
    Control(wait_for_tools, "^another address: "),
    Control(serve_the_first_in_line_only, "^another address: "),
)
def _(trial: Trial) -> None:
    """One address fills every place for calls, and lets seven times as many wait; another still gets one."""
    served = trial.arena.serve(IMPATIENT)
    many = [WebSocket(served.place) for _ in range(24)]
    try:
        params = stateless_params(tool_call("slow", {"seconds": 30}), {})
        for socket in many:
            for id in range(300):
                socket.send(frame(1, json.dumps(message("tools/call", params, id)).encode()))
        reply = elsewhere(served).alone("tools/call", tool_call("echo", {"text": "other"}))
        trial.expect("other" in outcome(reply), f"another address: {outcome(reply)}")
    finally:
        for socket in many:
            socket.socket.close()


@FAMILY.attack(
    "strangers before those who are known", Control(let_strangers_take_places, "a known caller gets no session")
)
def _(trial: Trial) -> None:
    """A server with keys: bad tokens and missing ones take no place from good ones."""
    served = trial.arena.serve(Kind("keyed"))
    alice = Caller(served.place, create(served, "alice", "ToolInvoke(*)").token)
    if works(alice):
        raise NotTried(f"a good key does not work: {works(alice)}")
    with Wire(served.place) as wire:
        for _ in range(20):
            wire.send(opening_request(served) * 50)
            for _ in range(50):
                wire.response(10)
    talk = HttpConversation(alice)
    trial.expect("result" in talk.open(), "a known caller gets no session")
    trial.expect(not (said := works(alice)), f"a known caller: {said}")
