"""The servers of a kernel: what the file says of each, and the backend that it became."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from defserve.errors import DefserveError, UsageError
from defserve.host.link import Resolve
from defserve.host.mgp.said import SaidMgp
from defserve.kernel.config.entries import ServerEntry, ServerLaunch
from defserve.kernel.figures import figures
from defserve.kernel.journal import Journal
from defserve.protocols.mgp import instants
from defserve.proxying.backend import Backend
from defserve.proxying.catalogue.names import ToolChoice
from defserve.proxying.mounted import BackendOptions
from defserve.proxying.mounts import Mounts
from defserve.proxying.states import Transition
from defserve.proxying.targets import SHORTEST_SECRET, Command, Remote, Secrets, Target

CALLS_AT_ONCE = 64
OFFERED = ("security", "permissions", "tool_security", "lifecycle")
"""The extensions of MGP that a kernel uses in its own conversation with a server."""
LONGEST_WORD = 100
LAST_WORDS = "; its last words:"


class Creator(NamedTuple):
    """Who registered a server, and why. It ends with the `session`, or with the kernel if there is none."""

    id: str
    justification: str
    session: object | None


class Member:
    """One server of the file. Without a `backend` it cannot be started: `problem` says why, `fix` what helps.

    `hidden` takes everything out of a text that only the server may know. Whoever starts or ends it holds `changing`.
    It `is_stopped` if an operator ended it: then only an operator starts it. It has a `creator` if it was registered
    while the kernel runs; then `resolve` judges the addresses that it is reached at.
    """

    def __init__(
        self, entry: ServerEntry, environ: Mapping[str, str] = os.environ, resolve: Resolve | None = None
    ) -> None:
        self.entry, self.environ, self._resolve = entry, environ, resolve
        self.hidden = entry.launch.hidden(environ)
        self.backend: Backend | None = None
        self.problem, self.fix = "", ""
        self.is_stopped = False
        self.creator: Creator | None = None
        self.health = ""
        self.changing = asyncio.Lock()

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def said(self) -> SaidMgp | None:
        """What the server said of itself when it was opened last. None: it was not asked."""
        return self.backend.said if self.backend is not None else None

    @property
    def state(self) -> str:
        if self.backend is not None:
            return self.backend.state
        return "error" if self.problem else "registered"

    def prepare(self, mounts: Mounts, journal: Journal) -> None:
        """Make the backend. If that is impossible, `problem` says why."""
        try:
            target = self.target()
        except UsageError as error:
            self.problem, self.fix = self.hidden(error.problem), error.fix
            journal.add(self.id, "problem", self.problem)
            return
        self.backend = mounts.add(self.id, target, self._options())
        self.problem = ""
        self._hide_from_clients(target)
        self.backend.on_stderr = lambda line: journal.add(self.id, "stderr", self.hidden(line))
        self.backend.on_lifecycle = lambda told: journal.add(self.id, "state", self.hidden(_told_itself(told)))
        self.backend.on_renewed = lambda reason: journal.add(self.id, "state", f"restarted without a gap: {reason}")
        self.backend.watch(lambda change: journal.add(self.id, "state", self.hidden(_told(change))))

    def target(self) -> Target:
        """Where the server is, with its variables filled in. Raises UsageError."""
        launch = self.entry.launch.filled(self.environ)
        how: Any = {"per": launch.per or None, "version": launch.version}
        if launch.url:
            return Remote(
                launch.url, token=launch.auth_token or None, headers=launch.headers, resolve=self._resolve, **how
            )
        return Command(launch.command, *launch.args, env=launch.env, cwd=launch.cwd or None, **how)

    def adjust(self, entry: ServerEntry) -> None:
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
        self.entry, self.hidden = entry, entry.launch.hidden(self.environ)
        try:
            target = self.target()
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

    def _hide_from_clients(self, target: Target) -> None:
        """Errors that clients read do not have what was filled in, wherever in the command line or address it was."""
        assert self.backend is not None
        known, filled = target.secrets, (value for value in self.hidden.values if len(value) >= SHORTEST_SECRET)
        # The longest first: a secret may contain another.
        self.backend.secrets = Secrets(tuple(sorted({*known.values, *filled}, key=len, reverse=True)), known.sure)

    def _options(self) -> BackendOptions:
        entry, launch = self.entry, self.entry.launch
        tools = ToolChoice(entry.tools.allow or None, entry.tools.deny, entry.tools.rename)
        return BackendOptions(
            prefix=entry.prefix,
            tools=tools,
            timeout=launch.timeout,
            in_flight=launch.in_flight or CALLS_AT_ONCE,
            restarts=entry.restart,
            mgp=OFFERED,
        )

    def row(self) -> dict[str, Any]:
        """What `ps` tells of it."""
        backend, policy = self.backend, self.entry.restart
        row: dict[str, Any] = {
            "id": self.id,
            "state": self.state,
            "name": self.entry.display_name,
            "where": _shown(self.entry.launch),
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
            "calls_total": backend.calls_total,
            **figures(backend.room),
            "restarts": backend.restarts,
            "recent_restarts": backend.policy.recent,
            "max_restarts": policy.max_restarts,
            "restart": {
                "strategy": policy.strategy,
                "window_secs": policy.window,
                "backoff_secs": [policy.base, policy.cap],
            },
            "since": instants.wire(datetime.fromtimestamp(backend.since, UTC)),
            "health": self.health,
            "note": self.hidden(backend.note) or row["note"],
        }


def _told(change: Transition) -> str:
    # What it wrote to standard error has lines of its own.
    reason = change.reason.partition(LAST_WORDS)[0]
    return f"{change.previous} → {change.new}: {'; '.join(line.strip() for line in reason.splitlines())}"


def _told_itself(params: Mapping[str, Any]) -> str:
    """What a server says of its own state. Only words: the kernel goes by what it sees."""
    words = [str(params.get(name, "?"))[:LONGEST_WORD] for name in ("previous_state", "new_state", "reason")]
    return "it says: {} → {}: {}".format(*words)


def _shown(launch: ServerLaunch) -> str:
    """The command line or address as the file has it. Literal secrets in it are not shown."""
    from defserve.redaction import redact_text

    return redact_text(launch.shown, limit=300)
