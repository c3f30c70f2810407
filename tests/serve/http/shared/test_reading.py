"""A reader gives its client every event once and in order, whatever it hears about them, how late, and how often."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.serve.http.shared.reading import SHARED_STANDALONE_STREAM_NAME, StreamReader
from tests.effort import examples


class Response:
    """Stands for the response of a client."""

    def __init__(self) -> None:
        self.gone = self.finished = False
        self.got: list[str | None] = []

    def push(self, message: Any, id: str | None = None) -> None:
        self.got.append(id)
        self.finished = message.answers
        if message.taken is not None:
            message.taken()

    def drop(self) -> None:
        self.finished = True


class Store:
    """The events of one stream, and the link that fetches them: slowly, and in small pages."""

    worker = "w"

    def __init__(self, waits: list[int]) -> None:
        self.events: list[tuple[int, bytes, bytes]] = []
        self.last, self._waits = 0, waits

    def append(self, kind: bytes) -> tuple[int, int]:
        self.last += 1
        self.events.append((self.last, kind, b"*"))
        return self.last, self.last - 1

    async def run_script(self, script: str, session: str, name: str, after: int, most: int) -> Any:
        for _ in range(self._waits.pop() if self._waits else 0):
            await asyncio.sleep(0)
        found = [each for each in self.events if each[0] > after][:most]
        last, is_done = self.last, any(kind == b"result" for _, kind, _ in self.events)
        for _ in range(self._waits.pop() if self._waits else 0):
            await asyncio.sleep(0)
        entries = [(b"%d-0" % number, [b"k", kind, b"a", audience, b"d", b"x"]) for number, kind, audience in found]
        return [entries, last, b"1" if is_done else b""]

    def queue_script(self, *args: Any) -> None: ...

    def new_token(self) -> str:
        return "w/1"


class Message:
    answers = asks = False
    data, taken = b"x", None


class Session:
    id, reading = "s1", dict[str, Any]()

    def __init__(self, store: Store) -> None:
        self.link = store
        self.new_token = store.new_token


# What happens: an event of another process with or without a word about it, one of this process, a word that is late.
STEPS = st.lists(st.sampled_from(("theirs", "silent", "ours", "again", "turn")), max_size=40)


@pytest.mark.slow
@given(steps=STEPS, waits=st.lists(st.integers(0, 4), max_size=40), own=st.booleans(), ends=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_every_event_is_given_once_and_in_order(steps: list[str], waits: list[int], own: bool, ends: bool) -> None:
    async def read() -> None:
        store, response = Store(list(waits)), Response()
        name = SHARED_STANDALONE_STREAM_NAME if own else "w.1"
        reader = StreamReader(cast(Any, Session(store)), name, cast(Any, response))
        for step in steps:
            if step == "turn":
                await asyncio.sleep(0)
            elif step == "again":
                reader.on_event_number(store.last)
            else:
                number, before = store.append(b"message")
                if step == "ours":
                    reader.on_event_appended(number, before, cast(Any, Message()))
                elif step == "theirs":
                    reader.on_event_number(number)
        if ends and not own:
            store.append(b"result")
        reader.on_event_number(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert response.got == [f"{name}-{number}" for number in range(1, store.last + 1)]
        assert response.finished == (ends and not own)

    asyncio.run(read())
