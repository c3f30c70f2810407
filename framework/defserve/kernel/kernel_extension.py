"""What a kernel does while it serves: it probes its servers, tells of their changes, can be operated, and reloads.

Operators reach it by the control socket and by MGP's methods (§6, §11.3, §11.4), which are below.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Next, Offer, Wrapper
from defserve.core.messages import Params
from defserve.core.shapes import MemberKind, is_number, make_checked_kind, read_member
from defserve.errors import DefserveError, InvalidParams, MethodNotFound, PeerError, PeerGone, PeerTimeout, UsageError
from defserve.kernel.control import open_control_socket
from defserve.kernel.governance.access import require_operator
from defserve.kernel.members import KernelMember
from defserve.kernel.operator_actions import (
    AUDIT,
    HEALTH,
    RESTART,
    add_operator_tools,
    answer_audit_replay,
    check_server_health,
)
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.errors import ServerNotFound, ServerNotReady
from defserve.protocols.mgp.lifecycle import (
    DEFAULT_SHUTDOWN_REASON,
    LIFECYCLE_TRANSITIONS,
    SHUTDOWN_REASONS,
    LifecycleState,
    notify_lifecycle_state,
    read_shutdown_reason,
)
from defserve.protocols.mgp.server_discovery import AsyncMethodHandler
from defserve.protocols.mgp.terms import get_agreed_sections, get_call_sections
from defserve.proxying.backend import Backend
from defserve.proxying.mounted import STATE_DESCRIPTIONS, BackendTransition, RestartRefusalReason
from defserve.server.server import Server

if TYPE_CHECKING:
    from defserve.kernel.kernel import Kernel

log = get_logger("kernel")

WATCH_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 0.2
"""A file that is not written any more for so long is complete."""
REPORTED_CHANGES: Final = ("added", "removed", "restarted", "adjusted", "failed", "needs_start")


# -- MGP §6, §11.3, §11.4 at a kernel: health and lifecycle of the server that `server_id` names, and the audit log.


class KernelExtension(Extension):
    """The kernel as an extension of its own server. It begins and ends with the server's lifespan."""

    name = "kernel"

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._replay_audit = kernel, partial(answer_audit_replay, kernel)
        # What clients without MGP find as tools.
        add_operator_tools(kernel.server, {HEALTH: self.health, RESTART: self.restart, AUDIT: self._replay_audit})
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reloads, self._stopping = BackgroundTasks(), BackgroundTasks()
        self._problem = ""

    def watch_member(self, member: KernelMember) -> None:
        """A server has a backend now."""
        assert member.backend is not None
        member.backend.watch(lambda change: notify_transition(self._kernel.server, member, change))
        if self._loop is not None:
            self._begin(member)

    def drop_server(self, member: KernelMember) -> None:
        """A server is gone for good."""
        for task in self._tasks.pop(member.id, ()):
            task.cancel()

    def negotiate(self, offer: Offer) -> object:
        return self

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        self._loop = asyncio.get_running_loop()
        for member in self._kernel.members.values():
            if member.backend is not None:
                self._begin(member)
            elif member.problem:
                log.warning("%s is not started: %s\n  fix: %s", member.id, member.problem, member.fix)
        watching = asyncio.create_task(self._watch_file(), name="defserve kernel file")
        hears = _on_hangup(self._loop, lambda: self._reloads.start(self._reload("SIGHUP")))
        try:
            async with open_control_socket(self._kernel.config.path, self._kernel):
                yield
        finally:
            if hears:
                self._loop.remove_signal_handler(signal.SIGHUP)
            self._loop = None
            tasks = [watching, *self._reloads, *(task for each in self._tasks.values() for task in each)]
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, member: KernelMember) -> None:
        self.drop_server(member)
        self._tasks[member.id] = [
            asyncio.create_task(work(member), name=f"defserve kernel {work.__name__} {member.id}")
            for work in (probe, end_when_idle)
        ]

    # -- reload --------------------------------------------------------------------------------------------

    async def _watch_file(self) -> None:
        """Reload when the file, or one that it includes, has changed and is complete. Whatever fails, this goes on."""
        known, tried = self._signature(), None
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self._refresh()
            await self._renew_secrets()
            found = self._signature()
            if not self._kernel.config.settings.watch:
                known = found
            elif found != known:
                await asyncio.sleep(SETTLE_SECONDS)
                if self._signature() == found:
                    await self._reload("it has changed")
                    # Not as the files are now: one may have been saved while old servers finished their calls.
                    known = {path: found.get(path, stamp) for path, stamp in self._signature().items()}
            elif found != tried and self._kernel.is_behind:
                # Once: a file that has a mistake by now does not do what it did not do before.
                tried = found
                await self._reload("an id in it is free now")

    async def _refresh(self) -> None:
        try:
            await self._kernel.refresh()
        except Exception as error:
            # Once, not every second.
            if repr(error) != self._problem:
                log.exception("what other kernels of %s have decided cannot be taken over", self._kernel.config.path)
            self._problem = repr(error)
        else:
            self._problem = ""

    async def _renew_secrets(self) -> None:
        """Secrets that stand elsewhere are looked at whether or not the file is watched: nobody else tells of them."""
        try:
            if renewed := await self._kernel.renew_secrets():
                log.warning("secrets have changed, so these were started again: %s", " ".join(renewed))
        except Exception as error:
            log.error("secrets cannot be read again: %s", type(error).__name__)

    def _signature(self) -> dict[Path, tuple[int, ...] | None]:
        return {path: read_file_stamp(path) for path in self._kernel.config.files}

    async def _reload(self, why: str) -> None:
        path = self._kernel.config.path
        try:
            done = await self._kernel.reload()
        except DefserveError as error:
            log.error("%s was read again (%s) and nothing is changed: %s", path, why, error)
        except Exception:
            log.exception("%s was read again (%s), and that failed", path, why)
        else:
            told = ", ".join(f"{name}: {' '.join(done[name])}" for name in REPORTED_CHANGES if done[name])
            level = logging.WARNING if told else logging.INFO
            log.log(level, "%s was read again (%s); %s", path, why, told or "no server has changed")

    # -- MGP's methods -------------------------------------------------------------------------------------

    def around(self) -> Mapping[str, Wrapper]:
        return {
            "mgp/health/ping": self._around(self._ping),
            "mgp/health/status": self._around(self._status),
            "mgp/lifecycle/shutdown": self._around(self._shutdown),
        }

    def methods(self) -> Mapping[str, Handler]:
        return {
            "mgp/lifecycle/restart": _where_agreed("lifecycle", self.restart),
            "mgp/audit/replay": _where_agreed("audit", self._replay_audit),
        }

    def _around(self, answer: Any) -> Wrapper:
        """Without a `server_id`, or with the kernel's own, the kernel itself is meant. Only operators name another."""

        async def wrapper(call: Call, params: Params, following: Next) -> Any:
            id = params.get("server_id")
            if id is None or id == self._kernel.server.mgp.server_id or "lifecycle" not in get_call_sections(call):
                return await following(call, params)
            return await answer(self._backend(call, id), params)

        return wrapper

    async def _ping(self, backend: Backend, params: Params) -> Params:
        return {
            "status": await self._health(backend),
            "timestamp": vocabulary.format_instant(vocabulary.utc_now()),
            "uptime_secs": int(time.time() - backend.since),
            "server_id": backend.id,
            "observed_at": vocabulary.format_instant(vocabulary.utc_now()),
        }

    async def _status(self, backend: Backend, params: Params) -> Params:
        return {
            "server_id": backend.id,
            "status": await self._health(backend),
            "state": backend.state,
            "uptime_secs": int(time.time() - backend.since),
            "tools_available": backend.tools,
            "tools_total": backend.tools,
            "pending_requests": backend.calls,
            "restarts": backend.restarts,
            "observed_at": vocabulary.format_instant(vocabulary.utc_now()),
        }

    async def _health(self, backend: Backend) -> str:
        """What it answers now. Raises ServerNotReady if it cannot be asked."""
        if backend.state != "connected":
            raise ServerNotReady(
                f"server {backend.id!r} is {backend.state}", data={"server_id": backend.id, "state": backend.state}
            )
        try:
            return await backend.ping(PING_SECONDS) or "healthy"
        except PeerError:
            return "unhealthy"

    async def _shutdown(self, backend: Backend, params: Params) -> Params:
        """Begin to drain and answer at once, with the true numbers."""
        reason, seconds = read_shutdown_reason(params), self._seconds(params)
        pending = backend.calls
        self._stopping.start(self._kernel.stop(backend.id, reason, seconds))
        return {
            "server_id": backend.id,
            "accepted": True,
            "pending_requests": pending,
            "estimated_drain_ms": int(seconds * 1000) if pending else 0,
        }

    async def health(self, call: Call, params: Params) -> Params:
        """The health of the server that `server_id` names, or of all."""
        require_operator(call, self._kernel.config.settings.admins)
        if (id := params.get("server_id")) is not None:
            self._member(id)
        return {"servers": await check_server_health(self._kernel, id)}

    async def restart(self, call: Call, params: Params) -> Params:
        """Start a server again."""
        backend = self._backend(call, params.get("server_id"))
        try:
            done = await self._kernel.restart(backend.id)
        except PeerError:
            raise ServerNotReady(f"server {backend.id!r} did not start again", data={"server_id": backend.id}) from None
        return {"id": backend.id, "status": done["state"]}

    # -- who and which -------------------------------------------------------------------------------------

    def _backend(self, call: Call, id: Any) -> Backend:
        """The server that is meant. Raises PermissionDenied for a caller who is no operator: first, so that it learns
        no ids."""
        require_operator(call, self._kernel.config.settings.admins)
        member = self._member(id)
        if member.backend is None:
            raise ServerNotReady(f"server {id!r} is {member.state}: {member.problem or 'it was not started'}")
        return member.backend

    def _member(self, id: Any) -> KernelMember:
        if not isinstance(id, str):
            raise InvalidParams("Invalid params: server_id must be the id of a server")
        try:
            return self._kernel.member(id)
        except UsageError as error:
            raise ServerNotFound(error.problem, details={"server_id": id[:128]}) from None

    def _seconds(self, params: Params) -> float:
        usual = self._kernel.config.settings.drain_secs * 1000
        return read_member(params, "timeout_ms", DRAIN_MILLISECONDS, usual, nullable=False) / 1000


def read_file_stamp(path: os.PathLike[str]) -> tuple[int, ...] | None:
    """What differs when a file does; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _on_hangup(loop: asyncio.AbstractEventLoop, reload: Callable[[], object]) -> bool:
    """Have SIGHUP reload. False where there is no such signal, or this is not the main thread."""
    try:
        loop.add_signal_handler(signal.SIGHUP, reload)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return False
    return True


# -- Whether servers that run still answer. One task for each server, so that a slow one delays no other.


JITTER: Final = 0.2
UNWATCHED_SECONDS: Final = 5.0
"""After so long a server without probes looks whether the file wants some now."""


async def probe(member: KernelMember) -> None:
    """Probe a server for ever, as its entry says at each moment. So many late answers in a row are its failure.

    A probe is no call: it is not counted, and it keeps no server awake.
    """
    late = 0
    while True:
        interval = member.entry.health.interval_secs
        await asyncio.sleep(interval * (1 - JITTER * random.random()) or UNWATCHED_SECONDS)
        rules, backend = member.entry.health, member.backend
        if not rules.interval_secs or backend is None or backend.state != "connected":
            late, member.health = 0, ""
            continue
        late = 0 if await _answers(member, rules.timeout_secs) else late + 1
        if late >= rules.failures:
            late = 0
            backend.fail(f"it did not answer {rules.failures} probes in a row")


async def _answers(member: KernelMember, seconds: float) -> bool:
    assert member.backend is not None
    said = None
    try:
        said = await member.backend.ping(seconds)
    except (PeerTimeout, PeerGone):
        member.health = "late"
        return False
    except PeerError:
        pass  # it knows no ping, and says so: that is an answer
    # A server that answers that it is not well still answers: that is shown, and is no reason to end it.
    member.health = said or "answers"
    return True


# -- Servers that nobody uses are ended until the next call. One task for each server.


MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.05, 5.0
SHARE: Final = 0.25
"""A server is looked at so often that it is ended at most this share of its time late."""


async def end_when_idle(member: KernelMember) -> None:
    """Put a server to sleep after the time that its entry says; a lazy one as soon as its tools are known."""
    loop = asyncio.get_running_loop()
    seen, since = 0, loop.time()
    while True:
        limit = member.entry.idle_stop
        await asyncio.sleep(min(max(limit * SHARE, MIN_POLL_SECONDS), MAX_POLL_SECONDS) if limit else MAX_POLL_SECONDS)
        backend, entry = member.backend, member.entry
        if backend is None or backend.state != "connected" or backend.calls or backend.room.total != seen:
            seen, since = backend.room.total if backend is not None else 0, loop.time()
            continue
        is_unused = entry.start == "lazy" and not backend.room.total
        if is_unused or (entry.idle_stop and loop.time() - since >= entry.idle_stop):
            async with member.changing:
                await backend.sleep()


# -- Tells peers and the audit trail how the servers of a kernel are (§11.4, §11.5).


# What a supervisor does besides the diagram of §11.2: an operator may start a server again.
STARTED: Final[tuple[LifecycleState, LifecycleState]] = ("registered", "connecting")

# The one of the five reasons of §11.4 that is nearest to too many restarts. `detail` says what really happened.
LIMIT_REASON: Final = "resource_limit"

# The events of §6.4 for the states that they are about.
EVENTS: Final = {"connected": "SERVER_CONNECTED", "disconnected": "SERVER_DISCONNECTED", "error": "SERVER_DISCONNECTED"}


def notify_transition(server: Server, member: KernelMember, change: BackendTransition) -> None:
    """Send `notifications/mgp.lifecycle` to the peers that negotiated it: a server has changed its state."""
    previous, new = change.previous, change.new
    if new == STARTED[1] and new not in LIFECYCLE_TRANSITIONS[previous]:
        # An operator started a server that had ended: to its peers that is a new one.
        previous = STARTED[0]
    text = member.hidden(change.reason)
    is_limit = text.startswith(RestartRefusalReason.LIMIT)
    params = {
        "server_id": member.id,
        "previous_state": previous,
        "new_state": new,
        "reason": change.reason
        if change.reason in SHUTDOWN_REASONS
        else LIMIT_REASON
        if is_limit
        else DEFAULT_SHUTDOWN_REASON,
        "detail": (STATE_DESCRIPTIONS if member.backend is None else member.backend.state_descriptions)[new],
        "timestamp": vocabulary.format_instant(vocabulary.utc_now()),
    }
    for session in server.composition.sessions:
        if session.terms is not None and "lifecycle" in get_agreed_sections(session.terms):
            notify_lifecycle_state(session, params)
    if (event := EVENTS.get(new)) is not None:
        details = {"previous_state": previous, "state": new, "reason": RestartRefusalReason.LIMIT if is_limit else text}
        server.mgp.audit.report_server_event(event, member.id, "SUCCESS" if new == "connected" else "ERROR", details)


PING_SECONDS: Final = 5.0
MAX_DRAIN_MS: Final = 3_600_000
DRAIN_MILLISECONDS: Final[MemberKind[float]] = make_checked_kind(
    f"a number from 0 to {MAX_DRAIN_MS}", lambda value: is_number(value) and 0 <= value <= MAX_DRAIN_MS
)


def _where_agreed(section: str, handler: AsyncMethodHandler) -> Handler:
    """A method that is not found where its section was not agreed on."""

    async def run(call: Call, params: Params) -> Any:
        if section not in get_call_sections(call):
            raise MethodNotFound(f"Method not found: {call.method}")
        return await handler(call, params)

    return run
