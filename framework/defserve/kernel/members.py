"""The servers of a kernel: what the file says of each, the backend that it became, its journal and its figures."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from defserve.base.secret_references import SecretReader
from defserve.client.link import ResolveHost
from defserve.client.mgp.server_claims import MgpClaims
from defserve.errors import DefserveError, UsageError
from defserve.kernel.config.entries import ServerEntry
from defserve.protocols.mgp import vocabulary
from defserve.proxying.backend import Backend
from defserve.proxying.calls import BackendCallSlots, CallTiming
from defserve.proxying.mounted import (
    TRANSITION_LOG_FORMAT,
    BackendOptions,
    BackendTransition,
    RestartRefusalReason,
    ToolChoice,
)
from defserve.proxying.mounts import Mounts
from defserve.proxying.targets import MIN_SECRET_LENGTH, BackendSecrets, BackendTarget, Command, Remote

MAX_CALLS_AT_ONCE = 64
OFFERED = ("security", "permissions", "tool_security", "lifecycle")
"""The extensions of MGP that a kernel uses in its own conversation with a server."""
MAX_WORD_LENGTH = 100
LAST_WORDS = "; its last words:"


class ServerCreator(NamedTuple):
    """Who registered a server, and why. It ends with the `session`, or with the kernel if there is none."""

    id: str
    justification: str
    session: object | None


class KernelMember:
    """One server of the file. Without a `backend` it cannot be started: `problem` says why, `fix` what helps.

    `hidden` takes everything out of a text that only the server may know. Whoever starts or ends it holds `changing`.
    It `is_stopped` if an operator ended it: then only an operator starts it. It has a `creator` if it was registered
    while the kernel runs; then `resolve` judges the addresses that it is reached at.
    """

    def __init__(
        self,
        entry: ServerEntry,
        environ: Mapping[str, str] = os.environ,
        resolve: ResolveHost | None = None,
        secrets: SecretReader | None = None,
    ) -> None:
        self.entry, self.environ, self._resolve = entry, environ, resolve
        self.secrets, self._used_secrets = secrets or SecretReader(), dict[str, str]()
        self.hidden = entry.launch.make_redactor(environ)
        self.backend: Backend | None = None
        self.problem, self.fix = "", ""
        self.is_stopped = False
        self.creator: ServerCreator | None = None
        self.health = ""
        self.changing = asyncio.Lock()
        self.share_command: Callable[[Command], Command] | None = None
        """Makes a command one that all kernels of a group use."""
        self.restarted = 0
        """How many orders to start it again this kernel has followed."""

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def said(self) -> MgpClaims | None:
        """What the server said of itself when it was opened last. None: it was not asked."""
        return self.backend.said if self.backend is not None else None

    @property
    def state(self) -> str:
        if self.backend is not None:
            return self.backend.state
        return "error" if self.problem else "registered"

    def prepare(self, mounts: Mounts, journal: ServerJournal) -> None:
        """Make the backend. If that is impossible, `problem` says why."""
        try:
            target = self.resolve_target()
        except UsageError as error:
            self.problem, self.fix = self.hidden(error.problem), error.fix
            journal.add_line(self.id, "problem", self.problem)
            return
        self.backend = mounts.add(self.id, target, self._options())
        self.problem = ""
        self._hide_from_clients(target)
        self.backend.on_stderr = lambda line: journal.add_line(self.id, "stderr", self.hidden(line))
        self.backend.on_lifecycle = lambda told: journal.add_line(
            self.id, "state", self.hidden(_format_claimed_transition(told))
        )
        self.backend.on_renewed = lambda reason: journal.add_line(
            self.id, "state", f"restarted without a gap: {reason}"
        )
        self.backend.watch(lambda change: journal.add_line(self.id, "state", self.hidden(_format_transition(change))))

    def resolve_target(self) -> BackendTarget:
        """Where the server is, with its variables filled in. Raises UsageError."""
        launch = self.entry.launch.fill_variables(self.environ, self.secrets)
        references = self.entry.launch.list_secret_references()
        self._used_secrets = {each: self.secrets.read_secret(each) for each in references}
        self.hidden = self.entry.launch.make_redactor(self.environ, self.secrets)
        how: Any = {"per": launch.per or None, "version": launch.version}
        if launch.url:
            return Remote(
                launch.url, token=launch.auth_token or None, headers=launch.headers, resolve=self._resolve, **how
            )
        command = Command(launch.command, *launch.args, env=launch.env, cwd=launch.cwd or None, **how)
        return command if self.share_command is None else self.share_command(command)

    @property
    def uses_secrets(self) -> bool:
        """Whether it was started with secrets that stand elsewhere."""
        return bool(self._used_secrets)

    def has_new_secrets(self) -> bool:
        """Whether a secret of its entry has changed since it was started. Programs are waited for."""
        return any(self.secrets.read_secret(each) != value for each, value in self._used_secrets.items())

    def apply_entry(self, entry: ServerEntry) -> None:
        """Take over what changed in the file and needs no restart."""
        self.entry = entry
        if self.backend is not None:
            self.backend.policy.policy = entry.restart

    async def relaunch(self, entry: ServerEntry, timeout: float) -> None:
        """Start it as the file says now. The old process serves until the new one is open.

        Raises UsageError if the new one does not open; then the old one stays.
        """
        assert self.backend is not None
        before, hidden = self.entry, self.hidden
        self.entry, self.hidden = entry, entry.launch.make_redactor(self.environ, self.secrets)
        try:
            target = await asyncio.to_thread(self.resolve_target)  # a program may have to print a secret
            self.backend.options = self._options()
            if self.is_stopped:
                self.backend.target = target
            else:
                await self.backend.renew("configuration_change", target, timeout=timeout, overlap=entry.overlap)
        except BaseException as error:
            # What the new one says may have what was filled in for it, which nobody hides from now on.
            told = UsageError(self.hidden(str(error))) if isinstance(error, DefserveError) else None
            self.entry, self.hidden = before, hidden
            self.backend.options = self._options()
            self._hide_from_clients(self.backend.target)
            if told is None:
                raise
            raise told from None
        self._hide_from_clients(target)
        self.backend.policy.policy = entry.restart

    def _hide_from_clients(self, target: BackendTarget) -> None:
        """Errors that clients read do not have what was filled in, wherever in the command line or address it was."""
        assert self.backend is not None
        known, filled = target.secrets, (value for value in self.hidden.values if len(value) >= MIN_SECRET_LENGTH)
        # The longest first: a secret may contain another.
        self.backend.secrets = BackendSecrets(
            tuple(sorted({*known.values, *filled}, key=len, reverse=True)), known.sure
        )

    def _options(self) -> BackendOptions:
        entry, launch = self.entry, self.entry.launch
        tools = ToolChoice(entry.tools.allow or None, entry.tools.deny, entry.tools.rename)
        return BackendOptions(
            prefix=entry.prefix,
            tools=tools,
            timeout=launch.timeout,
            in_flight=launch.in_flight or MAX_CALLS_AT_ONCE,
            spares=launch.spares,
            restarts=entry.restart,
            mgp=OFFERED,
        )

    def make_ps_row(self) -> dict[str, Any]:
        """What `ps` tells of it."""
        from defserve.base.redaction import redact_text

        backend, policy = self.backend, self.entry.restart
        row: dict[str, Any] = {
            "id": self.id,
            "state": self.state,
            "name": self.entry.display_name,
            # The command line or address as the file has it. Literal secrets in it are not shown.
            "where": redact_text(self.entry.launch.shown, limit=300),
            "prefix": self.entry.prefix,
            "trust_level": self.entry.mgp.trust_level if self.entry.mgp is not None else None,
            "created_by": self.creator.id if self.creator is not None else None,
            "start": self.entry.start,
            "stopped": self.is_stopped,
            "note": self.problem or ("" if self.entry.enabled else "not enabled in the file"),
        }
        if backend is None:
            return row
        return row | {
            "pid": backend.pid,
            "era": backend.era,
            "tools": backend.tools,
            "calls": backend.calls,
            "calls_total": backend.room.total,
            **make_call_figures(backend.room),
            "restarts": backend.restarts,
            "recent_restarts": backend.policy.recent,
            "max_restarts": policy.max_restarts,
            "restart": {
                "strategy": policy.strategy,
                "window_secs": policy.window,
                "backoff_secs": [policy.base, policy.cap],
            },
            "since": vocabulary.format_instant(datetime.fromtimestamp(backend.since, UTC)),
            "health": self.health,
            "note": self.hidden(backend.note) or row["note"],
            "gave_up": self._format_refusal(),
        }

    def _format_refusal(self) -> str:
        """Why the kernel does not start it again. What cannot start says so itself."""
        refusal = self.backend.refusal if self.backend is not None and self.state == "error" else None
        return "" if refusal is None or refusal.reason is RestartRefusalReason.IMPOSSIBLE else refusal.text


def _format_transition(change: BackendTransition) -> str:
    # What it wrote to standard error has lines of its own.
    reason = change.reason.partition(LAST_WORDS)[0]
    return f"{change.previous} → {change.new}: {'; '.join(line.strip() for line in reason.splitlines())}"


def is_transition_record(record: logging.LogRecord) -> bool:
    """Whether a line of the log tells of a change of state. Who shows these otherwise leaves them out."""
    return record.msg == TRANSITION_LOG_FORMAT


def _format_claimed_transition(params: Mapping[str, Any]) -> str:
    """What a server says of its own state. Only words: the kernel goes by what it sees."""
    words = [str(params.get(name, "?"))[:MAX_WORD_LENGTH] for name in ("previous_state", "new_state", "reason")]
    return "it says: {} → {}: {}".format(*words)


# -- What happened to a server: its standard error and its changes of state. Bounded, and without secrets.


KEPT: Final = 500
MAX_LINE_LENGTH: Final = 2_000
BEHIND: Final = 1_000
"""Lines that a follower may be behind before it misses some."""

Kind: TypeAlias = Literal["state", "stderr", "problem"]


class JournalLine(NamedTuple):
    """A line. `time` is that of the wall clock."""

    time: datetime
    id: str
    kind: Kind
    text: str

    def to_wire(self) -> dict[str, Any]:
        return {"time": vocabulary.format_instant(self.time), "id": self.id, "kind": self.kind, "text": self.text}


class ServerJournal:
    """The last lines of all servers, a bounded number for each. Followers get new ones as they come."""

    def __init__(self, clock: Callable[[], datetime] = vocabulary.utc_now) -> None:
        self._lines: dict[str, deque[JournalLine]] = {}
        self._followers: set[asyncio.Queue[JournalLine]] = set()
        self._clock = clock

    def add_line(self, id: str, kind: Kind, text: str) -> None:
        line = JournalLine(self._clock(), id, kind, text[:MAX_LINE_LENGTH])
        self._lines.setdefault(id, deque(maxlen=KEPT)).append(line)
        for follower in self._followers:
            if follower.full():
                follower.get_nowait()
            follower.put_nowait(line)

    def drop_server(self, id: str) -> None:
        """A server is gone for good."""
        self._lines.pop(id, None)

    def list_lines(self, id: str | None = None) -> list[JournalLine]:
        """The kept lines of one server, or of all, by time."""
        found = self._lines.get(id, ()) if id is not None else (line for kept in self._lines.values() for line in kept)
        return sorted(found, key=lambda line: line.time)

    async def follow_lines(self, id: str | None = None) -> AsyncGenerator[JournalLine]:
        """The kept lines, then new ones for ever."""
        follower: asyncio.Queue[JournalLine] = asyncio.Queue(BEHIND)
        self._followers.add(follower)
        try:
            for line in self.list_lines(id):
                yield line
            while True:
                line = await follower.get()
                if id is None or line.id == id:
                    yield line
        finally:
            self._followers.discard(follower)


# -- What is known of the calls of a server: how many a second, how long they take, how many fail.


RATE_SECONDS: Final = 10.0
STEP_SECONDS: Final = 15
STEPS: Final = 40


def make_call_figures(room: BackendCallSlots) -> dict[str, Any]:
    """Calls a second are those of the last ten seconds; times are those of the last calls that the room remembers."""
    now, times = perf_counter(), tuple(room.times)
    lasted = sorted(ended - began for began, ended, _ in times)
    return {
        "errors_total": room.errors,
        "calls_per_second": _rate(times, now, room.times.maxlen),
        "median_ms": _milliseconds(lasted, 0.5),
        "p95_ms": _milliseconds(lasted, 0.95),
    }


def summarize_call_history(room: BackendCallSlots) -> dict[str, Any]:
    """`steps` of the last ten minutes, the newest last: calls, errors, median in ms. None: not remembered."""
    now, times = perf_counter(), tuple(room.times)
    found: list[list[CallTiming]] = [[] for _ in range(STEPS)]
    for time in times:
        if 0 <= (age := int((now - time[1]) // STEP_SECONDS)) < STEPS:
            found[STEPS - 1 - age].append(time)
    forgotten = STEPS - 1 - int((now - times[0][1]) // STEP_SECONDS) if len(times) == room.times.maxlen else 0
    return {
        "step_secs": STEP_SECONDS,
        "steps": [None if at < forgotten else _step(each) for at, each in enumerate(found)],
    }


def _step(times: Sequence[CallTiming]) -> list[Any]:
    lasted = sorted(ended - began for began, ended, _ in times)
    return [len(times), sum(failed for _, _, failed in times), _milliseconds(lasted, 0.5)]


def _rate(times: Sequence[CallTiming], now: float, most: int | None) -> float:
    recent = [ended for _, ended, _ in times if now - ended <= RATE_SECONDS]
    # With more calls than are remembered, these are of a shorter time.
    span = now - recent[0] if len(recent) == most else RATE_SECONDS
    return round(len(recent) / max(span, 0.001), 1)


def _milliseconds(lasted: Sequence[float], share: float) -> float | None:
    """The time that this share of the calls took at most."""
    if not lasted:
        return None
    return round(lasted[min(len(lasted) - 1, int(len(lasted) * share))] * 1000, 2)
