"""Sessions over the network, which the HTTP transport asks for, and an ASGI app on a loopback port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from defserve.base.concurrency import wait_for_shared
from defserve.core.call import Call, FinalReply
from defserve.core.composition import Composition
from defserve.core.extension import OutgoingMessage
from defserve.core.messages import Params
from defserve.core.peer import PeerIdentity
from defserve.core.service import StopCallback
from defserve.core.session import Session, encode_failure_reply, make_reply_body_for_error, make_too_large_error
from defserve.limits import Limits
from defserve.serve.address import Address
from defserve.serve.asyncio_engine import AsyncioEngine
from defserve.serve.connection import get_session_arguments
from defserve.serve.lifespans import enter_lifespans, finish_calls, wait_for_calls
from defserve.serve.network import serve_sockets
from defserve.serve.sockets import Header, HeaderList, bind_sockets, get_client_network

SPARE = 64


class SessionOpener:
    """Opens sessions. A mounted app may get no start event; then it starts with the first request."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition
        self.limits: Limits = composition.limits
        self.offer_in = composition.offer_in
        self._engine: AsyncioEngine | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._over: asyncio.Event | None = None
        self._ready: asyncio.Future[None] | None = None
        self._spare: list[Session] = []
        self.hang_up: Callable[[], None] = lambda: None
        """Ends the streams that belong to no call. The transport sets it."""
        self.over: Callable[[float], None] = lambda seconds: None
        """Called when all is answered, with the seconds left to send the answers. A listener sets it."""

    @property
    def is_on_running_loop(self) -> bool:
        """Whether sessions can be opened on the running loop."""
        return self._engine is not None and self._engine.loop is asyncio.get_running_loop()

    async def start(self, ended: Callable[[], None]) -> None:
        """Enter the lifespans, once on each loop. `ended` is called on that loop when sessions must end."""
        loop = asyncio.get_running_loop()
        if self._engine is not None and self._engine.loop is loop:
            return
        if self._keeper is None or self._keeper.done() or self._keeper.get_loop() is not loop:
            self._keeper = loop.create_task(self._live(ready := loop.create_future(), ended))
            self._ready = ready
        # Shielded: the first request may be cancelled, and the others wait for the same start.
        assert self._ready is not None
        await wait_for_shared(self._ready)

    async def _live(self, ready: asyncio.Future[None], ended: Callable[[], None]) -> None:
        """Enter and leave the lifespans in the same task, because task groups in them need that.

        A mounted app may get no stop event: then the end of the loop cancels the task.
        """
        self._over = over = asyncio.Event()
        loop, service = asyncio.get_running_loop(), self.composition.service

        def stop(seconds: float) -> None:
            loop.call_soon_threadsafe(self._begin_to_finish, seconds, stop)

        service.add_runner(stop)
        try:
            async with enter_lifespans(self.composition) as engine:
                self._engine = engine
                service.mark_ready()
                ready.set_result(None)
                try:
                    await over.wait()
                finally:
                    self._engine = None
                    self._spare.clear()
                    service.remove_runner(stop)
                    await self._end_calls(ended)
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error if isinstance(error, Exception) else RuntimeError("stopped while starting"))
        finally:
            service.remove_runner(stop)

    def _begin_to_finish(self, seconds: float, stop: StopCallback) -> None:
        if self._engine is not None:
            self._engine.spawn(self._finish(self._engine, seconds, stop))

    async def _finish(self, engine: AsyncioEngine, seconds: float, stop: StopCallback) -> None:
        """Finish the running calls, then end the streams of the clients."""
        until = engine.loop.time() + seconds
        await finish_calls([call for call in self.composition.list_calls() if call.engine is engine], seconds)
        self.composition.service.remove_runner(stop)
        self.hang_up()
        self.over(until - engine.loop.time())

    async def _end_calls(self, ended: Callable[[], None]) -> None:
        """End the sessions. Cancelled calls have a moment to clean up, before the lifespans are left."""
        sessions = list(self.composition.sessions)
        ended()
        calls = [call for session in sessions if session.closed for call in session.in_flight.values()]
        await wait_for_calls(calls, self.limits.farewell)

    def request_stop(self) -> None:
        """A signal asks to end: drain for as long as the limits allow."""
        service = self.composition.service
        if self._engine is None:
            self.over(0)
        elif service.phase == "serving":
            service.stop(self.limits.drain)

    def drain(self) -> None:
        """Take no new calls, and stop calls that would never end by themselves."""
        self.composition.service.drain()
        for call in self.composition.list_calls():
            if call.endless:
                call.stop()

    async def stop(self) -> None:
        """End the sessions and leave the lifespans."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and self._over is not None:
            self._over.set()
            await keeper

    def open(self, outlet: Callable[[OutgoingMessage], None], *, principal: PeerIdentity, counted: bool) -> Session:
        """A new session. Raises LimitExceeded when there are too many."""
        spare = self._spare
        if not counted and spare and spare[-1].identity is principal:
            session = spare.pop()
            session.outlet = outlet
            self.composition.short_sessions.add(session)
            return session
        assert self._engine is not None
        # Limits hold for one machine. The id of a stranger is its kind and its address.
        is_stranger = counted and principal.kind == "anonymous"
        address = get_client_network(principal.id.partition(":")[2]) if is_stranger else None
        known = get_session_arguments(principal)
        return Session(self.composition, self._engine, outlet, counted=counted, address=address, **known)

    def open_for_one_request(
        self, outlet: Callable[[OutgoingMessage], None], *, principal: PeerIdentity, shape: ReplyEncoder
    ) -> ShapedSession:
        """A session for a single request; `shape` encodes its reply."""
        assert self._engine is not None
        session = ShapedSession(
            self.composition, self._engine, outlet, counted=False, **get_session_arguments(principal)
        )
        session.shape = shape
        return session

    def release_session(self, conversation: Session) -> None:
        """A session for a single request is over. If it holds nothing, its caller's next request uses it again."""
        if not conversation.is_untouched or conversation.engine is not self._engine:
            conversation.close()
            return
        self.composition.short_sessions.discard(conversation)
        self._spare.append(conversation)
        if len(self._spare) > SPARE:
            self._spare.pop(0).close()


# -- A conversation whose replies are not JSON-RPC. Each result is encoded once, in the form its caller reads.


class ReplyEncoder(Protocol):
    """How the reply to one request is encoded. The code beside the bytes is an HTTP status.

    Read `headers` after the reply was encoded. `kind` is the header of its media type. `later`, if there is one then,
    gives the reply that is sent instead: what takes long to encode is waited for, and does not hold up the loop.
    """

    @property
    def kind(self) -> Header: ...
    @property
    def headers(self) -> HeaderList: ...
    @property
    def later(self) -> Callable[[], Awaitable[FinalReply]] | None: ...

    def result(self, call: Call, result: Any) -> FinalReply:
        """If it raises, the call fails with that error."""
        ...

    def failure(self, call: Call, error: Params) -> FinalReply:
        """`error` is the rest of a JSON-RPC reply: `{"error": …}`, or `{"result": …}` if the model should read it."""
        ...


class ShapedSession(Session):
    """A session whose replies `shape` encodes. Set the shape right after making it."""

    __slots__ = ("shape",)

    shape: ReplyEncoder

    def settle(self, call: Call, result: Any) -> None:
        """Answer a call with the value it gave."""
        if call.settled:
            return
        try:
            data, code = self.shape.result(call, result)
            if len(data) > self.composition.limits.response:
                raise make_too_large_error(call)
        except Exception as error:
            call.unsendable = error
            data, code = encode_failure_reply(call, error, self._encode_failure)
        self._end(call, data, code)

    def _encode_failure(self, call: Call, error: BaseException) -> FinalReply:
        return self.shape.failure(call, make_reply_body_for_error(call, error))


# -- An ASGI app on a loopback port, on the running loop and for as long as a block runs.
#
# It listens as `run` does, with the same deadlines and limits, but without signals and an exit code.


HOST = "127.0.0.1"


@asynccontextmanager
async def serve_on_loopback(
    app: Any, limits: Limits, *, scheme: str = "http", parser: str = "auto", port: int = 0
) -> AsyncGenerator[str]:
    """The address of an app that answers at its root. Clients that are still connected at the end are cut off.

    Without a `port`, the system chooses one. Raises UsageError when the port is taken.
    """
    with bind_sockets(Address(scheme, HOST, port, "/")) as sockets:
        async with serve_sockets(app, limits, sockets):
            yield f"{scheme}://{HOST}:{sockets[0].getsockname()[1]}/"
