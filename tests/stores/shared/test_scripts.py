"""The scripts in any order that processes may run them, repeated, late, and by processes that are thought dead.

A script happens as a whole, so every interleaving of processes is an order of scripts: Hypothesis is the scheduler.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from defserve.stores.shared import lua_scripts

WORKERS = ("aa", "bb", "cc")
TTL = 600_000
BOUNDS = {"most_events": 1000, "most_bytes": 1_000_000, "most_held": 10_000_000, "most_ended": 1000}


class Stream:
    """What a stream should hold, and what its worker has sent."""

    def __init__(self, name: str, worker: str) -> None:
        self.name, self.worker = name, worker
        self.events: list[bytes] = []
        self.sent: dict[str, int] = {}
        self.result: bytes | None = None
        self.reader: str = ""


class Reader:
    """A client's response: the numbers it got, after the one it began with."""

    def __init__(self, stream: Stream, token: str, after: int) -> None:
        self.stream, self.token, self.start, self.cursor = stream, token, after, after
        self.got: list[bytes] = []


class SharedScripts(RuleBasedStateMachine):
    redis: Any = None
    prefixes = count()

    @initialize()
    def begin_session(self) -> None:
        self.prefix = f"{next(self.prefixes)}:"
        self.alive = set(WORKERS)
        for worker in WORKERS:
            self.run(lua_scripts.RENEW_LEASE, worker, TTL, "0-0", "0-0")
        assert self.run(lua_scripts.OPEN_SESSION, "s1", "aa", TTL, "me", "3", "opener", "x") == 1
        self.owner, self.is_over, self.made = "aa", False, count(1)
        self.own = Stream("s", "")
        self.streams = [self.own]
        self.readers: list[Reader] = []
        self.questions: dict[str, bool] = {}
        self.answers: dict[str, list[str]] = {}
        self.delivered: list[str] = []

    def run(self, script: str, *args: Any) -> Any:
        return self.redis.eval(script, 0, self.prefix, *args)

    def append(
        self, stream: Stream, producer: str, number: Any, kind: str = "message", **more: str
    ) -> tuple[Any, bytes]:
        data = f"{stream.name} {next(self.made)}".encode()
        fields = {"session": "s1", "stream": stream.name, "producer": producer, "number": number, "kind": kind}
        args = lua_scripts.append_arguments(data, **fields, asker="me", ttl=TTL, **more, **BOUNDS)
        return self.run(lua_scripts.APPEND_EVENT, *args), data

    def expected(self, stream: Stream, reply: Any, data: bytes, kind: str) -> None:
        if self.is_over:
            assert reply == [lua_scripts.SESSION_OVER]
        elif stream.result is not None:
            assert reply == [lua_scripts.STREAM_ENDED]
        else:
            assert reply[:3] == [lua_scripts.EVENT_ADDED, len(stream.events) + 1, len(stream.events)]
            stream.events.append(data)
            if kind == "result":
                stream.result = data

    # -- calls -------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_over)
    @rule(worker=st.sampled_from(WORKERS))
    def begin_call(self, worker: str) -> None:
        stream = Stream(f"{worker}.{next(self.made)}", worker)
        for _ in range(2):
            assert self.run(lua_scripts.BEGIN_STREAM, "s1", stream.name, worker, '"id"', "me", "", TTL) == 1
        self.streams.append(stream)

    @rule(data=st.data(), kind=st.sampled_from(("message", "message", "result")), times=st.integers(1, 2))
    def say(self, data: Any, kind: str, times: int) -> None:
        """Any process speaks in the session's own stream; in that of a call only the one that runs it."""
        stream = data.draw(st.sampled_from(self.streams))
        producer = stream.worker or data.draw(st.sampled_from(WORKERS))
        kind = "message" if stream is self.own else kind
        number = stream.sent.get(producer, 0) + 1
        for turn in range(times):
            reply, said = self.append(stream, producer, number, kind)
            if turn == 0:
                was_taken = stream.result is None and not self.is_over
                self.expected(stream, reply, said, kind)
                if was_taken:
                    stream.sent[producer] = number
            else:  # sent again, because the reply got lost
                assert reply in ([lua_scripts.EVENT_REPEATED], [lua_scripts.STREAM_ENDED], [lua_scripts.SESSION_OVER])

    @rule(data=st.data())
    def say_too_early(self, data: Any) -> None:
        """What was sent after something that is not there yet waits for it."""
        stream = data.draw(st.sampled_from(self.streams))
        producer = stream.worker or "bb"
        reply, _ = self.append(stream, producer, stream.sent.get(producer, 0) + 2)
        assert reply[0] in (lua_scripts.OUT_OF_ORDER, lua_scripts.STREAM_ENDED, lua_scripts.SESSION_OVER)

    @rule(worker=st.sampled_from(WORKERS))
    def die(self, worker: str) -> None:
        """Its lease ends. It may be only slow, and go on."""
        self.redis.delete(f"{self.prefix}lease:{worker}")
        self.alive.discard(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def live(self, worker: str) -> None:
        self.run(lua_scripts.RENEW_LEASE, worker, TTL, "0-0", "0-0")
        self.alive.add(worker)

    @rule(data=st.data())
    def interrupt(self, data: Any) -> None:
        """Somebody finds that a process is dead, and ends its call for it."""
        calls = self.streams[1:]
        if not calls:
            return
        stream = data.draw(st.sampled_from(calls))
        reply, said = self.append(stream, "", "", "result", dead=stream.worker)
        if not self.is_over and stream.worker in self.alive:
            assert reply == [lua_scripts.STREAM_ALIVE]
        else:
            self.expected(stream, reply, said, "result")

    # -- readers -----------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_over)
    @rule(data=st.data(), worker=st.sampled_from(WORKERS))
    def read_on(self, data: Any, worker: str) -> None:
        """A client comes, with the last number it has seen or none, and takes the place of who reads."""
        stream = data.draw(st.sampled_from(self.streams))
        seen = [0, *(reader.cursor for reader in self.readers if reader.stream is stream)]
        reader = Reader(stream, f"{worker}/{next(self.made)}", data.draw(st.sampled_from(seen)))
        assert self.run(lua_scripts.ATTACH_READER, "s1", stream.name, "nobody", reader.token, "me", TTL) == 0
        for _ in range(2):
            assert self.run(lua_scripts.ATTACH_READER, "s1", stream.name, stream.reader, reader.token, "me", TTL) == 1
        stream.reader = reader.token
        self.readers.append(reader)

    @precondition(lambda self: self.readers and not self.is_over)
    @rule(data=st.data(), most=st.integers(1, 3))
    def fetch(self, data: Any, most: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        entries, _, _ = self.run(lua_scripts.FETCH_EVENTS, "s1", reader.stream.name, reader.cursor, most)
        for place, fields in entries:
            reader.cursor = int(place.partition(b"-")[0])
            reader.got.append(fields[5])

    # -- questions, news, owners -------------------------------------------------------------------------

    @precondition(lambda self: not self.is_over)
    @rule(worker=st.sampled_from(WORKERS))
    def ask(self, worker: str) -> None:
        question, number = f"{worker}.{next(self.made)}", self.own.sent.get(worker, 0) + 1
        reply, said = self.append(self.own, worker, number, "request", question=question)
        self.expected(self.own, reply, said, "request")
        self.own.sent[worker] = number
        self.questions[question] = True

    @precondition(lambda self: self.questions)
    @rule(data=st.data())
    def answer(self, data: Any) -> None:
        question = data.draw(st.sampled_from(sorted(self.questions)))
        worker = question.partition(".")[0]
        was_open = self.questions[question] and not self.is_over
        assert self.run(lua_scripts.ANSWER_QUESTION, "s1", question, worker, question, "me") == int(was_open)
        if was_open:
            self.questions[question] = False
            self.answers.setdefault(worker, []).append(question)

    @precondition(lambda self: self.questions)
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        question = data.draw(st.sampled_from(sorted(self.questions)))
        self.run(lua_scripts.RELEASE_QUESTION, "s1", question)
        self.questions[question] = False

    @rule(worker=st.sampled_from(WORKERS))
    def load(self, worker: str) -> None:
        found = self.run(lua_scripts.LOAD_SESSION, "s1")
        assert (found is None) == self.is_over
        assert found is None or bool(found[1]) == (self.owner in self.alive)
        claims = [self.run(lua_scripts.CLAIM_SESSION, "s1", worker) for _ in range(2)]  # the first reply may get lost
        assert claims[0] == claims[1]
        if self.is_over:
            assert claims[0] is None
        elif self.owner != worker and self.owner not in self.alive:
            assert claims[0]
            self.owner = worker
        elif self.owner != worker:
            assert claims[0] is None

    @precondition(lambda self: not self.is_over)
    @rule(data=st.data(), worker=st.sampled_from(WORKERS), is_new=st.booleans())
    def deliver_news(self, data: Any, worker: str, is_new: bool) -> None:
        """Two processes may both think that they own it. Each piece of news is delivered once, in order."""
        id = f"{10 * len(self.delivered) + 10}-{worker == 'aa'}".replace("True", "2").replace("False", "10")
        if self.delivered and not is_new:
            id = data.draw(st.sampled_from(self.delivered))
        reply, said = self.append(self.own, worker, "", news=id)
        if id in self.delivered:
            assert reply == [lua_scripts.EVENT_REPEATED]
        else:
            self.delivered.append(id)
            self.expected(self.own, reply, said, "message")

    @precondition(lambda self: len(self.streams) > 3)
    @rule()
    def end(self) -> None:
        assert self.run(lua_scripts.END_SESSION, "s1") == int(not self.is_over)
        self.is_over = True
        assert not [key for key in self.redis.keys(f"{self.prefix}*") if b":s1" in key.removeprefix(b"session")]

    # -- what always holds -------------------------------------------------------------------------------

    @invariant()
    def a_stream_holds_what_was_taken_in_order_and_one_result(self) -> None:
        for stream in self.streams if not self.is_over else ():
            entries = self.redis.xrange(f"{self.prefix}events:s1:{stream.name}")
            assert [fields[b"d"] for _, fields in entries] == stream.events
            results = [fields[b"d"] for _, fields in entries if fields[b"k"] == b"result"]
            assert results == ([stream.result] if stream.result is not None else [])

    @invariant()
    def a_reader_has_every_event_once_and_in_order(self) -> None:
        for reader in self.readers:
            assert reader.got == reader.stream.events[reader.start : reader.cursor]

    @invariant()
    def an_answer_is_with_the_process_that_asked_and_only_once(self) -> None:
        for worker in WORKERS:
            mail = self.redis.xrange(f"{self.prefix}mail:{worker}")
            found = [fields[b"d"].decode() for _, fields in mail if fields[b"t"] == b"answer"]
            assert found == self.answers.get(worker, [])

    @invariant()
    def a_session_has_one_owner(self) -> None:
        if not self.is_over:
            assert self.redis.hget(f"{self.prefix}session:s1", "owner") == self.owner.encode()


@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_no_order_of_processes_loses_or_doubles_anything(redis: Any, examples: int):
    SharedScripts.redis = redis
    checks = list(HealthCheck)
    run_state_machine_as_test(
        SharedScripts,
        settings=settings(
            max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=checks, database=None
        ),
    )
