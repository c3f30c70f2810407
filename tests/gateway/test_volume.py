"""How much one participant may send: in bytes as well as in messages, and not at the expense of who reads."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.gateway import gateway as rules
from defserve.gateway.gateway import LOOK_AGAIN_SECONDS, MAX_READ_REFUSED, Gateway, TopicMember
from defserve.gateway.listener import GatewayConnection
from defserve.gateway.policy import Admission, GatewayLimits
from defserve.gateway.requests import GatewayRequest, RequestReader
from tests.effort import calls_of
from tests.gateway.in_memory import Ear, Nobody
from tests.gateway.topics import envelope, eventually, gateway

KIB = 1024


class Topic:
    """Members without sockets, and a clock that is set."""

    def __init__(self, **limits: Any) -> None:
        self.now = 100.0
        self.gateway = Gateway(Nobody(), GatewayLimits(**limits), clock=lambda: self.now)
        self.ears: dict[str, Ear] = {}
        self.members: dict[str, TopicMember] = {}
        for name in ("guest", "worker", "admin"):
            member = self.gateway.join_topic("demo", Admission(name, ("chat",)), ear := Ear())
            assert isinstance(member, TopicMember)
            self.members[name], self.ears[name] = member, ear

    def send(self, name: str, size: int) -> float:
        text = json.dumps(envelope("chat", name, {"text": ""}))
        return self.gateway.relay_frame(
            self.members[name], text.replace('"text": ""', f'"text": "{"x" * size}"').encode()
        )

    def heard(self, name: str) -> int:
        return sum(b'"chat"' in frame and b"system" not in frame for frame in self.ears[name].heard)


def test_a_long_frame_that_comes_too_fast_is_refused_unread(monkeypatch: pytest.MonkeyPatch):
    topic, lengths = Topic(rate=0.001, burst=1), list[int]()
    parse = rules.parse_envelope
    monkeypatch.setattr(rules, "parse_envelope", lambda data: lengths.append(len(data)) or parse(data))  # pyright: ignore
    for size in (10, 10, 500 * KIB, 500 * KIB):
        topic.send("guest", size)
    assert len(lengths) == 2 and max(lengths) <= MAX_READ_REFUSED
    assert sum(b"rate_limited" in frame for frame in topic.ears["guest"].heard) == 3


def test_who_has_sent_its_bytes_is_read_later_and_loses_nothing():
    topic = Topic(byte_rate=100.0 * KIB, byte_burst=1000 * KIB)
    assert [topic.send("guest", 400 * KIB) for _ in range(2)] == [0.0, 0.0]
    wait = topic.send("guest", 400 * KIB)
    assert 1 < wait < 3 and topic.heard("worker") == 2
    assert topic.send("admin", 400 * KIB) == 0.0
    topic.now += wait
    assert topic.send("guest", 400 * KIB) == 0.0 and topic.heard("worker") == 4


def test_a_frame_longer_than_a_burst_waits_for_a_whole_burst_and_not_forever():
    topic = Topic(byte_rate=100.0 * KIB, byte_burst=100 * KIB)
    assert topic.send("guest", 200 * KIB) == 0.0
    wait = topic.send("guest", 200 * KIB)
    topic.now += wait
    assert topic.send("guest", 200 * KIB) == 0.0


def test_who_sends_much_waits_for_a_reader_that_is_behind_and_who_sends_little_does_not():
    topic = Topic()
    topic.ears["worker"].unsent = topic.gateway.limits.waiting // 2 + 1
    assert topic.send("guest", 900 * KIB) == LOOK_AGAIN_SECONDS
    assert topic.send("admin", 10 * KIB) == 0.0
    assert (topic.heard("worker"), topic.ears["worker"].ended) == (1, None)
    topic.ears["worker"].unsent = 0
    assert topic.send("guest", 900 * KIB) == 0.0 and topic.heard("worker") == 2


def test_many_small_frames_are_much_as_well():
    topic = Topic(rate=1e6, burst=10_000)
    topic.ears["worker"].unsent = topic.gateway.limits.waiting // 2 + 1
    waits = [topic.send("guest", 10 * KIB) for _ in range(40)]
    assert waits[0] == 0.0 and waits[-1] == LOOK_AGAIN_SECONDS
    assert topic.heard("worker") * 10 * KIB < topic.gateway.limits.waiting / 8


def test_a_reader_that_stays_behind_is_dropped_when_patience_ends():
    topic = Topic(patience=2.0)
    topic.ears["worker"].unsent = topic.gateway.limits.waiting // 2 + 1
    while wait := topic.send("guest", 900 * KIB):
        topic.now += wait
        assert topic.now < 103
    assert topic.ears["worker"].ended == 1013 and topic.heard("admin") == 1


def test_patience_begins_anew_for_a_reader_that_has_caught_up():
    topic = Topic(patience=2.0)
    topic.ears["worker"].unsent = topic.gateway.limits.waiting // 2 + 1
    assert topic.send("guest", 900 * KIB)
    topic.ears["worker"].unsent = 0
    topic.now += 60
    assert not topic.send("guest", 900 * KIB)
    topic.ears["worker"].unsent = topic.gateway.limits.waiting // 2 + 1
    assert topic.send("guest", 900 * KIB) and topic.ears["worker"].ended is None


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_flood_of_long_frames_throws_nobody_out():
    limits = {"byte_rate": 1e9, "byte_burst": 10**9, "patience": 120}
    async with gateway(limits=limits) as running, running.joined("worker") as worker, running.joined("agent") as guest:
        worker.socket.transport.pause_reading()
        sent, is_over = list[str](), asyncio.Event()

        async def flood() -> None:
            while not is_over.is_set():
                sent.append(await guest.say("chat", {"text": "x" * 1_000_000}))

        async def hear_own() -> None:
            async for _ in guest.socket:
                pass

        flooding, hearing = asyncio.create_task(flood()), asyncio.create_task(hear_own())
        # Until the gateway reads no more of the guest, or has dropped the worker.
        members = running.gateway.topics["demo"].members
        wire = members["agent"].wire
        assert isinstance(wire, GatewayConnection)
        await eventually(lambda: bool(wire._held) or "worker" not in members)  # pyright: ignore[reportPrivateUsage]
        assert "worker" in members
        is_over.set()
        worker.socket.transport.resume_reading()
        heard = [(await worker.until("chat"))["id"] for _ in sent]
        await flooding
        heard += [(await worker.until("chat"))["id"] for _ in sent[len(heard) :]]
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        assert heard == sent


# -- plain requests, as their bytes come

HEAD = b"POST /v0.1/auth/token HTTP/1.1\r\n" + b"a:b\r\n" * 3000 + b"content-length: 2000\r\n\r\n"


def test_the_head_of_a_request_is_read_once_however_its_body_comes():
    reader = RequestReader()
    assert reader.feed(HEAD) is None

    def drip() -> None:
        for _ in range(1999):
            assert reader.feed(b"x") is None

    assert calls_of(drip) < 1999 * 10
    assert reader.feed(b"x") == RequestReader().feed(HEAD + b"x" * 2000)


def test_a_head_that_comes_in_single_bytes_is_searched_once():
    reader = RequestReader()

    def drip() -> None:
        for byte in HEAD[:10_000]:
            assert reader.feed(bytes([byte])) is None

    assert calls_of(drip) < 10_000 * 16


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_a_request_is_the_same_however_it_is_cut(cuts: list[int]):
    whole = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab\r\n\r\ncde"
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    reader, found = RequestReader(), None
    for begin, end in pairwise(places):
        assert found is None
        found = reader.feed(whole[begin:end])
    assert isinstance(found, GatewayRequest) and (found.verb, found.body) == ("POST", b"ab\r\n\r\ncde")
