"""Keeps a backend running: opens it, opens it again when it ends, ends it, and replaces it without a gap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from defserve.base.concurrency import BackgroundTasks, wait_for_shared
from defserve.base.redaction import get_logger
from defserve.client.link import ProgramMissing
from defserve.errors import PeerError, PeerGone, PeerTimeout
from defserve.protocols.mgp.lifecycle import DEFAULT_SHUTDOWN_REASON, SHUTDOWN_REASONS
from defserve.proxying.catalogue import BackendCatalogue, NameClash
from defserve.proxying.conversations import BackendChannels
from defserve.proxying.mounted import (
    ASLEEP_REASON,
    CLEAN_EXIT_REASON,
    BackendState,
    MountedServer,
    RestartCounter,
    RestartPolicy,
    RestartRefusal,
    ServerExit,
)

if TYPE_CHECKING:
    from defserve.proxying.backend import BackendChangeListener
    from defserve.proxying.calls import BackendCallSlots
    from defserve.proxying.channel import BackendChannel
    from defserve.proxying.conversations import ChannelPool
    from defserve.proxying.targets import BackendTarget


DRAIN_SECONDS: Final = 30.0
RETIRE_POLL_SECONDS: Final = 0.05
TELL_SECONDS: Final = 1.0

log = get_logger("proxying")


class BackendSupervision:
    """The life of one backend. Everything here runs on one event loop, that of `start`.

    `is_known` says whether what it offers was ever read, `restarts` how often it was started again.
    """

    def __init__(
        self,
        server: MountedServer,
        state: BackendState,
        conversations: BackendChannels,
        catalogue: BackendCatalogue,
        changes: BackendChangeListener,
        room: BackendCallSlots,
        policy: RestartCounter,
    ) -> None:
        self._server, self._state, self._conversations = server, state, conversations
        self._catalogue, self._changes, self._room, self._policy = catalogue, changes, room, policy
        self.restarts = 0
        self.is_known = False
        self._task: asyncio.Task[None] | None = None
        self._retiring, self._ending = BackgroundTasks(), BackgroundTasks()
        self._failed = ""
        self._join_loop()

    async def start(self) -> None:
        """Begin to connect, if it has not begun. Returns at once: `state` tells what became of it."""
        self._conversations.wake = None
        if self._task is None or self._task.done():
            self._join_loop()
            self._forget_restarts()
            self._state.enter_state("connecting", "started")
            self._begin()

    async def stop(self, reason: str = "operator_request", timeout: float = DRAIN_SECONDS) -> None:
        """Take no new calls, let those under way finish within `timeout` seconds, then end all conversations.

        Who is cancelled meanwhile does not wait for the calls. It ends all the same.
        """
        try:
            await self._drain(reason, timeout)
        finally:
            await self._finish_ending(self._end(reason))

    async def _end(self, reason: str) -> None:
        await self._close()
        self._conversations.wake = None
        self._catalogue.clear()
        self.is_known = False
        if self._state.now != "disconnected":
            self._state.enter_state("disconnected", reason)

    async def restart(self, reason: str = "operator_request", timeout: float = DRAIN_SECONDS) -> None:
        """End it as `stop` does, and start it again. What it offers stays listed. Who is cancelled has stopped it."""
        try:
            await self._drain(reason, timeout)
            await self._finish_ending(self._close())
        except BaseException:
            await self.stop(reason, 0)
            raise
        self._forget_restarts()
        self.restarts += 1
        self._state.enter_state("restarting", reason)
        self._begin()

    async def renew(
        self, reason: str, target: BackendTarget | None = None, *, timeout: float = DRAIN_SECONDS, overlap: bool = True
    ) -> None:
        """Start it again without a gap: open the next one, give it the new calls, and let the others finish.

        With another `target`, it is that from now on. Raises PeerError if the next one does not open; then nothing has
        changed. Without `overlap`, or if it is not connected, this is `restart`. If it ends or is stopped meanwhile,
        what comes next is as if it had not been renewed, save for the `target`.
        """
        server, conversations = self._server, self._conversations
        before, secrets, claims = server.target, server.secrets, (server.instructions, server.said)
        server.change_target(target or before)
        if not overlap or not self._is_up():
            await self.restart(reason, timeout)
            return
        try:
            main = await conversations.open_channel(None)
            try:
                # Its tools are compared with what was approved together with what it says of them.
                server.store_claims_of_terms(main.terms)
                await self._catalogue.refresh_lists(main)
            except BaseException:
                server.set_claims(*claims)
                await main.aclose()
                raise
        except BaseException:
            server.target, server.secrets = before, secrets
            raise
        if not self._is_up():
            await main.aclose()
            if not self.is_known:
                # It was stopped before its lists were read.
                self._catalogue.clear()
            return
        retiring = self._retiring.start(self._retire(*conversations.replace_main_channel(main), reason, timeout))
        server.store_terms(main.terms)
        await self._changes.listen(main)
        self._forget_restarts()
        self.restarts += 1
        self._state.since = time.time()
        log.info("server %r: renewed (%s)", server.id, reason)
        if server.on_renewed is not None:
            server.on_renewed(reason)
        # Not awaited itself: who gives up waiting leaves it to end the old one, and `stop` may cut it short.
        await asyncio.wait((retiring,))

    def _is_up(self) -> bool:
        main = self._conversations.main
        return main is not None and not main.is_over and self._state.now == "connected"

    def end_unresponsive(self, reason: str) -> None:
        """It runs and does not answer: end it, as if it had ended by itself. The policy says what comes then."""
        if self._conversations.main is not None and self._state.now == "connected":
            self._failed = reason
            # Ending a process that hangs takes seconds, and calls must not wait for them.
            self._state.enter_state("error", reason)
            self.main_gone.set()

    async def sleep(self) -> None:
        """End it until somebody needs it: what it offers stays listed, and the next call starts it.

        Does nothing while it has calls, subscriptions or tasks.
        """
        is_busy = any(
            channel.updates.uris or channel.exchanges or channel.event_listeners
            for channel in self._conversations.list_channels()
        )
        if self._state.now != "connected" or self._room.running or is_busy or self._retiring:
            return
        async with self._falling_asleep:
            self._conversations.wake = self._wake
            try:
                await self._drain("idle_timeout", 0)
            finally:
                await self._finish_ending(self._end_until_needed())

    async def _end_until_needed(self) -> None:
        await self._close()
        self._state.note = ASLEEP_REASON
        self._state.enter_state("disconnected", "idle_timeout")

    async def _wake(self) -> None:
        async with self._falling_asleep:
            if self._conversations.wake is not None:
                await self.start()

    def _join_loop(self) -> None:
        """Belong to the event loop that comes next: what waits must wait on that one."""
        self.main_gone = asyncio.Event()
        self._falling_asleep = asyncio.Lock()
        self._state.bind_to_next_loop()
        self._catalogue.bind_to_next_loop()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._supervise(), name=f"defserve backend {self._server.id}")

    async def _drain(self, reason: str, timeout: float) -> None:
        if self._state.now == "connected":
            self._state.enter_state("draining", reason)
            await self._room.wait_until_idle(timeout)
            await self._tell_end(self._conversations.main, reason)

    async def _retire(self, main: BackendChannel | None, pool: ChannelPool, reason: str, timeout: float) -> None:
        """End conversations that take no new calls, when those under way are done or the time is over."""
        channels = [*pool.list_channels(), *([main] if main is not None else [])]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    while any(one.exchanges for one in channels):  # noqa: ASYNC110 - rare, and many set no event
                        await asyncio.sleep(RETIRE_POLL_SECONDS)
            await self._tell_end(main, reason)
        finally:
            await pool.aclose()
            if main is not None:
                await main.aclose()

    async def _tell_end(self, main: BackendChannel | None, reason: str) -> None:
        """Tell a child that speaks MGP why it ends (§11.4). A server at an address is not ours to end."""
        said = self._server.said
        if main is None or said is None or "lifecycle" not in said.sections or not self._server.target.isolates:
            return
        known = reason if reason in SHUTDOWN_REASONS else DEFAULT_SHUTDOWN_REASON
        with suppress(PeerError):
            params = {"reason": known, "timeout_ms": int(TELL_SECONDS * 1000)}
            await main.request("mgp/lifecycle/shutdown", params, TELL_SECONDS)

    async def _finish_ending(self, ending: Coroutine[Any, Any, None]) -> None:
        """Wait for an end that has begun. Who is cancelled meanwhile waits for it too: half an end is none."""
        task = self._ending.start(ending)
        try:
            await wait_for_shared(task)
        except asyncio.CancelledError:
            await wait_for_shared(task)
            raise

    async def _close(self) -> None:
        self._changes.stop()
        self._catalogue.stop_refreshing()
        task, self._task = self._task, None
        ending = [*self._retiring, *([task] if task is not None else [])]
        for one in ending:
            one.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._conversations.aclose()

    async def _supervise(self) -> None:
        """Open it, and open it again whenever it ends, as the policy allows. One task for each backend."""
        while True:
            exit, note = await self._live()
            self._state.note = note
            verdict = self._policy.plan_restart(exit)
            if isinstance(verdict, RestartRefusal):
                self._state.refusal = verdict
                reason = note if exit is ServerExit.IMPOSSIBLE else f"{verdict.reason}: {note}"
                self._state.enter_state("disconnected" if exit is ServerExit.CLEAN else "error", reason)
                return
            if self._state.now != "error":
                self._state.enter_state("error", note)
            self._state.enter_state("restarting", f"again in {verdict:.1f} s", time.monotonic() + verdict)
            await asyncio.sleep(verdict)
            self.restarts += 1

    async def _live(self) -> tuple[ServerExit, str]:
        """One life of the backend: how it ended, and its last words."""
        conversations, hidden = self._conversations, self._server.redact_secrets
        self.main_gone.clear()
        try:
            conversations.main = main = await conversations.open_channel(None)
            self._server.store_terms(main.terms)
            await self._catalogue.refresh_lists(main, strict=True)
            self._changes.on_skills_read()
            self.is_known = True
            await self._changes.listen(main)
            self._state.enter_state("connected", "opened")
            conversations.open_spare_children()
            await self._until_gone()
            # Another one may have taken its place meanwhile.
            gone = conversations.main.gone
            is_clean = gone is not None and CLEAN_EXIT_REASON in gone.message
            return ServerExit.CLEAN if is_clean else ServerExit.FAILED, hidden(gone.message if gone else self._failed)
        except NameClash as clash:
            return ServerExit.IMPOSSIBLE, str(clash)
        except ProgramMissing as error:
            return ServerExit.IMPOSSIBLE, hidden(error.message)
        except PeerError as error:
            return ServerExit.FAILED, hidden(error.message)
        except Exception as error:
            log.exception("server %r could not be opened", self._server.id)
            return ServerExit.FAILED, hidden(f"{type(error).__name__}: {error}")
        finally:
            main, conversations.main = conversations.main, None
            conversations.close_spare_children()
            self._state.mark_unsettled()
            if main is not None:
                await main.aclose()

    async def _until_gone(self) -> None:
        if self._server.target.isolates:
            await self.main_gone.wait()
            return
        beating = asyncio.create_task(BackendHeartbeat(self._conversations, self._silent).run())
        try:
            await self.main_gone.wait()
        finally:
            beating.cancel()

    def _silent(self, channel: BackendChannel, reason: PeerGone) -> None:
        """A conversation has ended without a word."""
        if channel is self._conversations.main:
            self.end_unresponsive(self._server.redact_secrets(reason.message))
        else:
            channel.mark_gone(reason)

    def _forget_restarts(self) -> None:
        """An operator asked for a start."""
        self._policy.clear()
        self._conversations.forget_restarts()


def make_default_restart_policy(target: BackendTarget) -> RestartPolicy:
    """A child that fails is started again a few times; an address is tried for ever."""
    return RestartPolicy() if target.isolates else RestartPolicy("always", None)


# -- Asks the sessions of a server at an address, from time to time, whether it is still there.
#
# A link that was cut without a word looks like one on which nothing is said: only a question shows the difference. The
# end of a child's pipe is noticed without that, and a server without sessions has no link.


HEARTBEAT_SECONDS: Final = 15.0
SILENCE: Final = "it did not answer a ping within {:g} s"


class BackendHeartbeat:
    """Pings the sessions of one backend. `lost` is called with each conversation that has ended."""

    def __init__(
        self,
        conversations: BackendChannels,
        lost: Callable[[BackendChannel, PeerGone], None],
        seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._conversations, self._lost, self._seconds = conversations, lost, seconds

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.beat()

    async def beat(self) -> None:
        """Ping every session once, all at the same time."""
        channels = [one for one in self._conversations.list_channels() if one.pid is None and not one.stateless]
        await asyncio.gather(*(self._ping(channel) for channel in channels))

    async def _ping(self, channel: BackendChannel) -> None:
        calls = set(channel.exchanges)
        try:
            await channel.request("ping", {}, self._seconds)
        except PeerTimeout:
            # A server that does one thing at a time answers nothing while a call runs. That call has its own deadline.
            if not calls and not channel.exchanges:
                self._lost(channel, PeerGone(SILENCE.format(self._seconds)))
        except PeerGone as gone:
            self._lost(channel, gone)
        except PeerError:
            pass  # it does not know pings, and it has answered
