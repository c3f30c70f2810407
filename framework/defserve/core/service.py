"""A server as a whole: how far it is in being served, and which sessions are open. It knows no call, no extension."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from defserve.errors import LimitExceeded
from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.core.composition import Composition
    from defserve.core.messages import Params, RequestId
    from defserve.core.peer import PeerIdentity
    from defserve.core.session import Session


Phase: TypeAlias = Literal["idle", "starting", "serving", "draining", "stopped", "failed"]
StopCallback: TypeAlias = Callable[[float], None]


class ServiceLifecycle:
    """The phase of a composition that one or more runners serve.

    `phase` is `stopped` when the last runner has ended, and `idle` again when another begins. `reason` is the
    reason given for its end, `began` the monotonic time when serving began.
    """

    __slots__ = ("phase", "reason", "began", "_composition", "_runners")

    def __init__(self, composition: Composition) -> None:
        self.phase: Phase = "idle"
        self.reason, self.began = "", monotonic()
        self._composition = composition
        self._runners: list[StopCallback] = []

    # -- for runners -------------------------------------------------------------------------------------

    def add_runner(self, stop: StopCallback) -> None:
        """A runner begins. `stop(seconds)`, from any thread, makes it drain for so many seconds and then end."""
        if not self._runners:
            self.phase, self.reason, self.began = "idle", "", monotonic()
            self._composition.draining = False
            self._enter("starting")
        self._runners.append(stop)

    def mark_ready(self) -> None:
        """Calls are taken from now on."""
        if self.phase == "starting":
            self._enter("serving")

    def drain(self, reason: str = "") -> None:
        """Take no new calls. Extensions are told before the first call is refused."""
        if self.phase == "serving":
            self.reason = reason
            self._enter("draining")
        self._composition.draining = True

    def remove_runner(self, stop: StopCallback) -> None:
        """A runner has answered its last call and will close its conversations. Calling it again does nothing."""
        if stop not in self._runners:
            return
        self._runners.remove(stop)
        if self._runners:
            return
        if self.phase == "starting":
            self._enter("failed")
        else:
            self.drain()
            self._enter("stopped")

    # -- ending ------------------------------------------------------------------------------------------

    def stop(self, seconds: float, reason: str = "") -> None:
        """Drain, then end. Calls in flight get so many seconds. Call it on the loop of one of the runners."""
        self.drain(reason)
        for stop in list(self._runners):
            with suppress(RuntimeError):  # its loop is gone, and the runner with it
                stop(seconds)

    def _enter(self, phase: Phase) -> None:
        previous, self.phase = self.phase, phase
        for changed in self._composition.phase_watchers:
            try:
                changed(self._composition, previous)
            except Exception:
                from defserve.base.redaction import get_logger

                # A watcher that fails must not keep a server from ending.
                get_logger().exception("an extension failed at the phase %s", phase)


# -- The open sessions of a server, how many each caller may have, and which one gives way when there are too many.


class SessionHolder(Protocol):
    """Who keeps a session for its peer, between two requests."""

    def get_idle_seconds(self) -> tuple[bool, float] | None:
        """Whether it was never used, and the seconds since its peer was heard. None while a call or stream is open."""
        ...

    def evict(self) -> None:
        """End the session, because another one needs its place."""

    @property
    def sharer(self) -> SessionSharer | None:
        """Who shares the session with other processes, if somebody does."""
        ...


class SessionSharer(Protocol):
    """Other processes serve a session as well: what a protocol must know of that."""

    @property
    def id(self) -> str:
        """The name of the session in all processes."""
        ...

    @property
    def is_owner(self) -> bool:
        """Whether this process tells the session what happens. One process does."""
        ...

    @property
    def numbering(self) -> str:
        """How the ids of this process's requests to the peer begin."""
        ...

    @property
    def goes_on(self) -> bool:
        """Whether only this process has ended the session, and others go on with it."""
        ...

    def notify_elsewhere(self, question: RequestId, method: str, params: Params, identity: PeerIdentity | None) -> bool:
        """A notification belongs to a question that another process has asked. False: no other process has."""
        ...

    def is_asked_elsewhere(self, question: RequestId) -> bool:
        """Whether a question, if there is such a one, was asked by another process."""
        ...

    async def answer_elsewhere(self, question: RequestId, method: str, params: Params, identity: PeerIdentity) -> bool:
        """Give the answer to a question, once. False: nobody waits for it, or it is not this sender's to answer.

        Raises StoreUnavailable if it can be sent again later.
        """
        ...

    def cancel_elsewhere(self, id: RequestId, identity: PeerIdentity | None) -> None:
        """A call that does not run here is to be cancelled."""

    def mark_dirty(self) -> None:
        """What an extension keeps for the session has changed."""


class SessionTable:
    """The open sessions. Those of strangers are limited by address, all others by principal.

    A stranger's session gives way if it is idle: to another one from its address if that has too many, and to anybody
    if the table is full. Then the address with the most sessions is the first to give one.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.open: set[Session] = set()
        self._of_principal: dict[str, int] = {}
        self._of_address: dict[str, set[Session]] = {}

    def admit(self, session: Session) -> None:
        """Count a new session in, or raise LimitExceeded."""
        limits, address = self.limits, session.address
        mine = self._of_principal.get(session.principal, 0)
        if address is not None:
            if self._number_at(address) >= limits.sessions_per_address and not self._end_one((address,)):
                raise _too_many("sessions from this address", "sessions_per_address")
        elif mine >= limits.sessions_per_principal and not session.is_shared_identity:
            raise _too_many("sessions of this principal", "sessions_per_principal")
        if len(self.open) >= limits.sessions and not self._end_one(self._fullest(address)):
            raise _too_many("sessions", "sessions")
        self.open.add(session)
        if address is not None:
            self._of_address.setdefault(address, set()).add(session)
        else:
            self._of_principal[session.principal] = mine + 1

    def remove_session(self, session: Session) -> None:
        """Count a session out."""
        if session not in self.open:
            return
        self.open.remove(session)
        if session.address is not None:
            same = self._of_address[session.address]
            same.remove(session)
            if not same:
                del self._of_address[session.address]
        elif left := self._of_principal.pop(session.principal) - 1:
            self._of_principal[session.principal] = left

    def _number_at(self, address: str | None) -> int:
        return len(self._of_address.get(address, ())) if address is not None else 0

    def _fullest(self, newcomer: str | None) -> list[str]:
        """The addresses that may have to give a session, the fullest first. A stranger takes from none that has less
        than its own address."""
        least = self._number_at(newcomer)
        richer = [a for a, sessions in self._of_address.items() if len(sessions) > least or a == newcomer]
        return sorted(richer, key=self._number_at, reverse=True)

    def _end_one(self, addresses: Iterable[str]) -> bool:
        """End the session that has been idle for longest, at the first of these addresses that has an idle one."""
        for address in addresses:
            idle = [
                (rank, holder)
                for session in self._of_address.get(address, ())
                if (holder := session.holder) is not None and (rank := holder.get_idle_seconds()) is not None
            ]
            if idle:
                max(idle, key=lambda each: each[0])[1].evict()
                return True
        return False


def _too_many(what: str, limit: str) -> LimitExceeded:
    return LimitExceeded(f"too many {what}", data={"limit": limit, "retry_after_ms": 1000})
