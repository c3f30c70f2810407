"""The log in memory: who speaks to a session itself waits until somebody has listened who may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from defserve.auth.principals import Principal
from defserve.serve.http.exchange import UnreadMessages
from defserve.serve.http.session_log import MemoryLog
from defserve.serve.http.streams import StoredMessage, StreamReader
from defserve.stores.stream_events import EventBudget

pytestmark = pytest.mark.anyio

ADA, BOB = Principal("ada"), Principal("bob")


class Session:
    """A session that Ada has opened."""

    opener, primed = ADA, False

    def __init__(self) -> None:
        self.reading: dict[str, StreamReader] = {}
        self.log = MemoryLog(cast(Any, self), EventBudget())

    async def listen(self, who: Principal) -> Response:
        response = Response(who)
        reader = StreamReader(cast(Any, self), self.log.standalone, cast(Any, response))
        self.reading[reader.name] = reader
        await reader.begin()
        return response


class Response(UnreadMessages):
    def __init__(self, principal: Principal) -> None:
        super().__init__()
        self.principal = principal

    def push(self, message: Any, id: str | None = None) -> None:
        self.add_message(message, id)

    def read(self) -> list[bytes]:
        return [item.message.data for item in self.take_unread()]


def message(data: bytes, taken: Callable[[], None]) -> Any:
    return StoredMessage(data, "message", taken)


async def test_a_message_is_taken_when_its_reader_has_it_and_not_before():
    session, taken = Session(), list[str]()
    session.log.append(session.log.standalone, message(b"early", lambda: taken.append("early")))
    assert taken == []
    response = await session.listen(ADA)
    session.log.append(session.log.standalone, message(b"late", lambda: taken.append("late")))
    assert taken == []
    assert response.read() == [b"early", b"late"]
    assert taken == ["early", "late"]


async def test_a_message_that_a_reader_may_not_see_waits_for_one_who_may():
    session, taken = Session(), list[str]()
    session.log.append(session.log.standalone, message(b"early", lambda: taken.append("early")))
    stranger = await session.listen(BOB)
    session.log.append(session.log.standalone, message(b"late", lambda: taken.append("late")))
    assert (stranger.read(), taken) == ([], [])
    assert (await session.listen(ADA)).read() == [b"early", b"late"]
    assert taken == ["early", "late"]


async def test_who_waits_hears_when_the_session_ends():
    session, taken = Session(), list[str]()
    session.log.append(session.log.standalone, message(b"early", lambda: taken.append("early")))
    session.log.close()
    assert taken == ["early"]
