"""Serving through a connection that the server opens itself. It serves every peer there, and reconnects."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from defserve.core.composition import Composition
from defserve.core.engine import Engine
from defserve.core.extension import Carrier
from defserve.core.identity import PeerIdentity
from defserve.errors import PeerError, PeerGone, PeerTimeout
from defserve.runner.connection import Connection
from defserve.runner.lifespans import close_connection, drain_connection, entered_lifespans
from defserve.runner.signals import Stopper
from defserve.runner.threads.pool import lowered_switch_interval
from defserve.transports.websocket.client import NORMAL, POLICY, WebSocketClient

FAILED = 1
ADMISSION_SECONDS = 10.0
LONGEST_SECONDS = 3600.0
# Two that fight for a place stay out for so long at most, one after the other.
FIGHT_SECONDS = 2 * LONGEST_SECONDS

log = logging.getLogger("defserve")


class GuestCarrier(Carrier, Protocol):
    """A carrier that is told when it is connected, and knows whether the place has let us in."""

    def connected(self, engine: Engine, send: Callable[[bytes], None]) -> None: ...
    def disconnected(self) -> None: ...
    def caller(self, peer: str) -> PeerIdentity: ...

    @property
    def admitted(self) -> asyncio.Event:
        """Set while the place has let us in."""
        ...


class Backoff:
    """How long to wait before the next attempt: twice as long each time, up to a limit, minus a random part.

    Only who loses its place to another waits longer than that limit: twice as long every time, up to an hour. If the
    last time was more than `FIGHT_SECONDS` ago, it begins anew.
    """

    def __init__(
        self, first: float = 0.5, longest: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.first, self.longest, self._clock = first, longest, clock
        self._next = first
        self._stays_out = longest
        self._replaced: float | None = None

    def reset(self) -> None:
        """The next wait is the shortest."""
        self._next = self.first

    def longer(self) -> None:
        """Another has taken the place: the next wait is a long one."""
        last, self._replaced = self._replaced, self._clock()
        if last is not None and self._replaced - last > FIGHT_SECONDS:
            self._stays_out = self.longest
        self._next = self._stays_out
        self._stays_out = min(self._stays_out * 2, LONGEST_SECONDS)

    def next(self) -> float:
        """Seconds to wait. Random, so that many servers that lost the same place do not come back at once."""
        seconds, self._next = self._next, min(self._next * 2, self.longest)
        return seconds * random.uniform(0.5, 1.0)


class Outbound:
    """One composition at one place. `stay` ends when `over` is set, or raises PeerError if it is never let in.

    `return_url` is for coming back after another connection took our place: there it must not take the place back.
    `on_admitted` is called each time that the place has let us in.
    """

    def __init__(
        self,
        composition: Composition,
        guest: GuestCarrier,
        url: str,
        *,
        token: str | None = None,
        return_url: str | None = None,
        backoff: Backoff | None = None,
        on_admitted: Callable[[], None] | None = None,
    ) -> None:
        self.composition, self.guest, self.url, self._token = composition, guest, url, token
        self.return_url, self._was_replaced = return_url or url, False
        self._on_admitted = on_admitted
        self.backoff = backoff or Backoff()
        self.over = asyncio.Event()
        self.seconds: float | None = None
        self._was_admitted = False

    def stop(self, seconds: float | None) -> None:
        """Finish the running calls, for at most so many seconds, and leave. Call it on the loop."""
        self.seconds = seconds
        self.over.set()

    async def stay(self, engine: Engine) -> None:
        while not self.over.is_set():
            try:
                await self._visit(engine)
            except PeerError as error:
                if not (isinstance(error, PeerGone) or self._was_admitted):
                    raise
                log.warning("%s", error.message)
            if not self.over.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.backoff.next()):
                        await self.over.wait()

    async def _visit(self, engine: Engine) -> None:
        limits = self.composition.limits
        transport = await self._open(limits.message)
        if transport is None:
            return
        ended = asyncio.Event()
        connection = Connection(self.composition, transport, carrier=self.guest, caller=self.guest.caller)
        connection.attach(engine)
        self.guest.connected(engine, transport.send)
        try:
            transport.start(asyncio.get_running_loop(), connection.received, ended.set)
            if await self._admitted(ended):
                await _first(ended, self.over)
            if self.over.is_set():
                await drain_connection(connection, limits.farewell if self.seconds is None else self.seconds)
                await transport.written(limits.farewell)
        finally:
            await close_connection(connection, limits.farewell)
            self.guest.disconnected()
            await transport.aclose()
        self._judge(*transport.end)

    async def _open(self, longest: int) -> WebSocketClient | None:
        """The connection. None if `over` was set first."""
        url = self.return_url if self._was_replaced else self.url
        opening = asyncio.create_task(WebSocketClient.open(url, token=self._token, longest=longest))
        over = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait((opening, over), return_when=asyncio.FIRST_COMPLETED)
            return opening.result() if opening.done() else None
        finally:
            over.cancel()
            opening.cancel()

    async def _admitted(self, ended: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(ADMISSION_SECONDS):
                await _first(self.guest.admitted, ended, self.over)
        except TimeoutError:
            raise PeerGone(f"not let in within {ADMISSION_SECONDS:g} s") from None
        if not self.guest.admitted.is_set():
            return False
        self._was_admitted = True
        self._was_replaced = False
        self.backoff.reset()
        log.info("connected to %s", self.url)
        if self._on_admitted is not None:
            self._on_admitted()
        return True

    def _judge(self, code: int, reason: str) -> None:
        if self.over.is_set():
            return
        if code == POLICY:
            raise PeerError(f"refused: {reason or 'policy'}", data={"code": code})
        if code == NORMAL:
            # Sent away on purpose, most likely for another process with the same name and token. If both came back at
            # once, they would replace each other for ever. So this one stays out, and each time for longer.
            self.backoff.longer()
            self._was_replaced = True
            raise PeerGone(f"sent away: {reason or 'no reason given'}. This process stays out until the name is free")
        raise PeerGone(f"the connection ended: {code} {reason}".rstrip())


@asynccontextmanager
async def outbound(outbound: Outbound) -> AsyncGenerator[Outbound]:
    """Serve on this loop, once the place has let us in. Raises PeerError if it does not."""
    composition, loop = outbound.composition, asyncio.get_running_loop()

    def stop(seconds: float) -> None:
        loop.call_soon_threadsafe(outbound.stop, seconds)

    async with entered_lifespans(composition) as engine:
        composition.service.begin(stop)
        staying = loop.create_task(outbound.stay(engine))
        try:
            admission = loop.create_task(outbound.guest.admitted.wait())
            await asyncio.wait((staying, admission), timeout=ADMISSION_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            admission.cancel()
            if staying.done():
                await staying
            if not outbound.guest.admitted.is_set():
                raise PeerTimeout(f"not let in within {ADMISSION_SECONDS:g} s")
            composition.service.ready()
            yield outbound
        finally:
            outbound.over.set()
            composition.service.end(stop)
            await asyncio.wait((staying,))
            if not staying.cancelled():
                staying.exception()


def serve_outbound(place: Outbound) -> int:
    """Serve until a signal ends it. Returns the exit code."""
    composition, loop = place.composition, asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        stop = Stopper(loop, composition)
        stop.listen()
        try:
            with lowered_switch_interval(composition.limits.threads):
                return loop.run_until_complete(_main(place, stop))
        except asyncio.CancelledError:
            return stop.exit_code  # a signal cut the lifespan short
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _main(place: Outbound, stop: Stopper) -> int:
    stop.main = asyncio.current_task()
    composition, service = place.composition, place.composition.service
    service.begin(stop.drain)
    try:
        async with entered_lifespans(composition) as engine:
            stop.serving = True
            service.ready()
            staying = asyncio.create_task(place.stay(engine))
            over = asyncio.create_task(stop.over.wait())
            await asyncio.wait((staying, over), return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            if not staying.done():
                place.stop(0 if stop.interrupted else stop.seconds)
                await stop.unless_asked_again(asyncio.wait((staying,)))
                staying.cancel()
                await asyncio.wait((staying,), timeout=composition.limits.farewell)
            service.end(stop.drain)
            stop.serving = False
            stop.give(composition.limits.drain)
    finally:
        service.end(stop.drain)
        stop.finish()
    error = staying.exception() if staying.done() and not staying.cancelled() else None
    if isinstance(error, PeerError):
        print(f"defserve: {error.message}", file=sys.stderr)
        return FAILED
    if error is not None:
        raise error
    return stop.exit_code


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
