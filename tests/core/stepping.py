"""A conversation without an event loop: a test says what the peer says, steps what runs, and reads what was sent."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import OutgoingMessage
from defserve.core.session import Session


class Gate:
    """What a handler awaits until the test opens it; also the `Pending` of the engine."""

    def __init__(self) -> None:
        self.opened, self.value, self.error = False, None, None

    def set_result(self, result: Any = None, /) -> None:
        self.opened, self.value = True, result

    def set_exception(self, exception: BaseException, /) -> None:
        self.opened, self.error = True, exception

    def done(self) -> bool:
        return self.opened

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return self.error

    def __await__(self) -> Generator[None, None, Any]:
        while not self.opened:
            yield
        if self.error is not None:
            raise self.error
        return self.value


class Timer:
    """Runs its action when the test says that the time has passed."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self.seconds, self._action, self._cancelled = seconds, action, False

    def cancel(self) -> None:
        self._cancelled = True

    def ring(self) -> None:
        if not self._cancelled:
            self._action()


class SteppedTask:
    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work, self.cancelling, self.over = work, False, False

    def cancel(self) -> None:
        self.cancelling = True

    def step(self) -> None:
        if self.over:
            return
        try:
            if self.cancelling:
                self.cancelling = False
                self.work.throw(asyncio.CancelledError())
            else:
                self.work.send(None)
        except StopIteration:
            self.over = True
        except asyncio.CancelledError:
            self.over = True


class SteppedEngine:
    """Runs tasks only when told to, to the first await that does not return."""

    ready = True

    def __init__(self) -> None:
        self.tasks: list[SteppedTask] = []
        self.soons: deque[Callable[[], None]] = deque()
        self.timers: list[Timer] = []

    def step(self) -> None:
        for task in self.tasks:
            task.step()
        while self.soons:
            self.soons.popleft()()
        for task in self.tasks:
            task.step()

    def start_call(self, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        async def settle() -> None:
            call.task = task
            try:
                result = await work
            except GeneratorExit:
                raise  # the test is over
            except BaseException as error:
                if call.suspension is None:
                    call.session.fail(call, error)
                    return
                result = None
            call.session.settle(call, result if call.suspension is None else call.suspension())

        task = self.spawn(settle())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> SteppedTask:
        self.tasks.append(SteppedTask(work))
        return self.tasks[-1]

    def call_soon(self, action: Callable[[], None]) -> None:
        self.soons.append(action)

    def time(self) -> float:
        return 0.0

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, action))
        return self.timers[-1]

    def create_future(self) -> Gate:
        return Gate()

    async def wait_for(self, pending: Gate, timeout: float | None) -> Any:
        return await pending

    async def run_with_timeout(self, call: Call, seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
        return await work

    def is_on_loop(self) -> bool:
        return True


class Talk:
    """One session and its peer."""

    def __init__(self, composition: Composition, **options: Any) -> None:
        self.engine = SteppedEngine()
        self.sent: list[bytes] = []
        self.session = Session(composition, self.engine, self._take, **options)  # pyright: ignore

    def _take(self, outgoing: OutgoingMessage) -> None:
        assert b"\n" not in outgoing.data
        if outgoing.data:  # an empty one says that a call is over without an answer
            self.sent.append(outgoing.data)

    def say(self, message: Any) -> list[Any]:
        """The peer says a message (a dict is given its jsonrpc member), bytes, or None for a frame that is too long."""
        if isinstance(message, dict):
            message = {"jsonrpc": "2.0", **message}
        assert self.session.feed_bytes(message if isinstance(message, bytes | None) else json.dumps(message).encode())
        return self.heard()

    def step(self) -> list[Any]:
        """Let everything run as far as it can; what was sent."""
        self.engine.step()
        return self.heard()

    def heard(self) -> list[Any]:
        sent, self.sent[:] = list(map(json.loads, self.sent)), []
        return sent

    def ask(self, id: Any, method: str, **params: Any) -> list[Any]:
        return self.say({"id": id, "method": method, "params": params})

    def call(self, id: Any, tool: str, **arguments: Any) -> list[Any]:
        """A tool call, taken to its first await."""
        return self.ask(id, "tools/call", name=tool, arguments=arguments) + self.step()

    def cancel(self, id: Any) -> list[Any]:
        return self.say({"method": "notifications/cancelled", "params": {"requestId": id}}) + self.step()

    def open(self, version: str = "2025-11-25", **capabilities: Any) -> Talk:
        about = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
        (reply,) = self.ask("open", "initialize", **about)
        assert reply["result"]["protocolVersion"] == version
        assert self.say({"method": "notifications/initialized"}) == []
        return self
