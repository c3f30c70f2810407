"""Calls that wait in a backend for an answer, while their client, which keeps no conversation, fetches it.

A backend of the handshake era asks in the middle of a call. A client of the stateless era is asked by ending its
request, and repeats the request with the answers. Meanwhile the call is parked here: it is never sent a second time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final

from pydantic_core import to_json

from defserve.host.fields import Json

PARKED_SECONDS: Final = 600.0
MOST_PARKED: Final = 256
MOST_OF_ONE: Final = 16
MOST_BYTES: Final = 256 * 1024


class Question:
    """A request of a backend that waits for its answer."""

    __slots__ = ("request", "answer")

    def __init__(self, method: str, params: Json) -> None:
        self.request: Json = {"method": method, "params": params}
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def size(self) -> int:
        return len(to_json(self.request))


class ParkedCall:
    """A call that goes on in its backend: `work` ends with its reply. `questions` are those not answered yet."""

    __slots__ = ("work", "questions", "asked", "who", "timer", "exchange", "_number")

    def __init__(self, work: asyncio.Task[Any], who: str, exchange: Any) -> None:
        self.work, self.who, self.exchange = work, who, exchange
        self.questions: dict[str, Question] = {}
        self.asked = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        self._number = 0

    def ask(self, method: str, params: Json) -> asyncio.Future[Any]:
        """Note a question. Raises ValueError if it is too large, or there are too many."""
        question = Question(method, params)
        if len(self.questions) >= MOST_OF_ONE or question.size > MOST_BYTES:
            raise ValueError("it asks too much at once")
        self._number += 1
        self.questions[f"{method.partition('/')[0]}-{self._number}"] = question
        self.asked.set()
        return question.answer

    def take_answers(self, answers: Json) -> None:
        """Hand the answers to the backend. Questions without one stay open."""
        for key in self.questions.keys() & answers.keys():
            question = self.questions.pop(key)
            if not question.answer.done():
                question.answer.set_result(answers[key])
        if not self.questions:
            self.asked.clear()

    def forget_cancelled(self) -> None:
        """Drop the questions that the backend no longer asks."""
        self.questions = {key: one for key, one in self.questions.items() if not one.answer.done()}
        if not self.questions:
            self.asked.clear()


class ParkingLot:
    """The parked calls of one backend, by handle. They are bounded in number, for each caller too, and in time."""

    def __init__(self, seconds: float = PARKED_SECONDS, most: int = MOST_PARKED) -> None:
        self._seconds, self._most = seconds, most
        self._parked: dict[str, ParkedCall] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def has_room(self, who: str) -> bool:
        """Whether one more call of a caller can wait."""
        own = sum(1 for parked in self._parked.values() if parked.who == who)
        return len(self._parked) < self._most and own < MOST_OF_ONE

    def put(self, parked: ParkedCall) -> str:
        """Keep a call until it is taken, or its time is over. Gives its handle."""
        handle = secrets.token_urlsafe(16)
        self._parked[handle] = parked
        parked.timer = asyncio.get_running_loop().call_later(self._seconds, self.end, handle)
        return handle

    def take(self, handle: Any) -> ParkedCall | None:
        """The call behind a handle, if it still waits."""
        parked = self._parked.pop(handle, None) if isinstance(handle, str) else None
        if parked is not None and parked.timer is not None:
            parked.timer.cancel()
        return parked

    def end(self, handle: str) -> None:
        """Nobody has come for it: cancel it in the backend."""
        if (parked := self.take(handle)) is not None:
            parked.work.cancel()

    def end_all(self, which: Callable[[ParkedCall], bool] = lambda parked: True) -> None:
        for handle, parked in list(self._parked.items()):
            if which(parked):
                self.end(handle)
