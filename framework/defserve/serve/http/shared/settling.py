"""A call is answered when the store has what it has changed, and what it has told all processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from defserve.serve.sockets import FinalReply, WaitingCall


class PersistedCall:
    """A call that waits, and then for `settle`. Until that is done nobody gets its reply."""

    __slots__ = ("_call", "_settle", "_is_wanted", "rest", "reply")

    def __init__(self, call: WaitingCall, settle: Callable[[], Awaitable[None]]) -> None:
        self._call, self._settle, self._is_wanted = call, settle, False
        self.rest: Coroutine[Any, Any, None] | None = self._run()
        self.reply: FinalReply | None = None

    async def _run(self) -> None:
        assert self._call.rest is not None
        try:
            await self._call.rest
            await self._settle()
        finally:
            self.reply = self._call.reply
            if self._is_wanted:
                self._call.send_reply()

    def send_reply(self) -> None:
        self._is_wanted = True
        if self.reply is not None:
            self._call.send_reply()
