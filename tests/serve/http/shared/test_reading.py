"""A reader gives its client every event once and in order, whatever it hears about them, how late, and how often."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.auth.principals import Principal
from defserve.serve.http.exchange import UnreadMessage, UnreadMessages
from defserve.serve.http.session_log import EventPage
from defserve.serve.http.streams import StreamReader
from defserve.stores.stream_events import StoredEvent
from tests.effort import examples


class Response(UnreadMessages):
    """Stands for the response of a client, who reads all in the end."""

    principal = Principal("reader")

    def push(self, message: Any, id: str | None = None) -> None:
        self.unread.append(UnreadMessage(message, id))
        self.finished = message.answers

    def end_without_answer(self) -> None:
        self.finished = True


class Log:
    """The events of one stream, which are fetched slowly."""

    standalone = "s"

    def __init__(self, waits: list[int]) -> None:
        self.events: list[StoredEvent] = []
        self._waits = waits

    @property
    def last(self) -> int:
        return len(self.events)

    def append(self, kind: str) -> tuple[int, int]:
        self.events.append(StoredEvent(self.last + 1, kind, b"x", ()))
        return self.last, self.last - 1

    async def fetch_events(self, name: str, after: int, most: int) -> EventPage:
        for _ in range(self._waits.pop() if self._waits else 0):
            await asyncio.sleep(0)
        page = EventPage(self.events[after : after + most], self.last, self._is_over)
        for _ in range(self._waits.pop() if self._waits else 0):
            await asyncio.sleep(0)
        return page

    @property
    def _is_over(self) -> bool:
        return any(event.kind == "result" for event in self.events)

    def make_reader_token(self) -> str:
        return "w/1"


class Message:
    answers = asks = bulk = False
    data, taken, replaces, audience = b"x", None, None, ()


class Session:
    id, reading, primed = "s1", dict[str, Any](), False

    def __init__(self, log: Log) -> None:
        self.log = log


# What happens: an event of another process with or without a word about it, one of this process, a word that is late.
STEPS = st.lists(st.sampled_from(("theirs", "silent", "ours", "again", "turn")), max_size=40)


@pytest.mark.slow
@given(steps=STEPS, waits=st.lists(st.integers(0, 4), max_size=40), own=st.booleans(), ends=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_every_event_is_given_once_and_in_order(steps: list[str], waits: list[int], own: bool, ends: bool) -> None:
    async def read() -> None:
        log, response = Log(list(waits)), Response()
        name = log.standalone if own else "w.1"
        reader = StreamReader(cast(Any, Session(log)), name, cast(Any, response))
        for step in steps:
            if step == "turn":
                await asyncio.sleep(0)
            elif step == "again":
                reader.on_event_number(log.last)
            else:
                number, before = log.append("message")
                if step == "ours":
                    reader.on_event_appended(number, before, cast(Any, Message()))
                elif step == "theirs":
                    reader.on_event_number(number)
        if ends and not own:
            log.append("result")
        reader.on_event_number(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert [item.id for item in response.unread] == [f"{name}-{number}" for number in range(1, log.last + 1)]
        assert response.finished == (ends and not own)

    asyncio.run(read())
