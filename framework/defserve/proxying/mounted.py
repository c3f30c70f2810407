"""A server as it is mounted: how it is mounted, what it said of itself, and the names of its tools and prompts outside.

Also the state that it is in (MGP §11.2), and whether and when it is started again after it ended (§11.5). Nothing here
waits or connects: a clock goes in, a verdict comes out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from defserve.base.backoff import compute_backoff
from defserve.base.hidden_characters import is_printable_line
from defserve.base.redaction import get_logger
from defserve.client.mgp.server_claims import MgpClaims, parse_mgp_claims
from defserve.client.replies import Json
from defserve.errors import UsageError, explain_arguments
from defserve.protocols.mcp.transforms import MountPrefix
from defserve.proxying.targets import BackendSecrets, BackendTarget

if TYPE_CHECKING:
    from defserve.client.eras import SessionTerms
    from defserve.core.call import Call
    from defserve.core.session import PeerIdentity, Session
    from defserve.protocols.mcp.telemetry import TelemetryOptions
    from defserve.protocols.mcp.transforms import Transform
    from defserve.proxying.conversations import DecidePermissions


MAX_NAME_LENGTH: Final = 64
"""Several model APIs take no longer names."""
HASH_LENGTH: Final = 6
NAME_ALPHABET: Final = re.compile(r"[A-Za-z0-9_./-]+")
"""What MCP lets the names of tools be made of; `/` by its older versions."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools of a backend are offered, and as what: `allow` and `deny` are patterns, `rename` is new for old."""

    allow: Sequence[str] | None = None
    deny: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def from_option(cls, given: ToolChoice | Mapping[str, Any] | Sequence[str] | None) -> ToolChoice:
        """Read `tools=`: a list of names to allow, or a mapping with allow, deny and rename."""
        if given is None:
            return cls()
        if isinstance(given, ToolChoice):
            return given
        if isinstance(given, Mapping):
            if unknown := sorted(set(given) - {"allow", "deny", "rename"}):
                raise UsageError(f"tools={{{unknown[0]!r}: …}} is not known", fix="use allow, deny and rename")
            return cls(**given)
        return cls(allow=(given,) if isinstance(given, str) else tuple(given))

    def is_offered(self, name: str) -> bool:
        allowed = self.allow is None or any(fnmatchcase(name, pattern) for pattern in self.allow)
        return allowed and not any(fnmatchcase(name, pattern) for pattern in self.deny)

    def get_offered_name(self, name: str) -> str:
        return self.rename.get(name, name)


def make_outer_name(prefix: MountPrefix, name: str) -> str:
    """The name outside. If it were too long, the prefix is shortened to a part of it and a hash, always the same."""
    whole = prefix.prefix_name(name)
    if len(whole) <= MAX_NAME_LENGTH or not prefix.text:
        return whole
    digest = sha256(prefix.text.encode()).hexdigest()[:HASH_LENGTH]
    room = MAX_NAME_LENGTH - len(name) - HASH_LENGTH - 1
    return f"{prefix.text[: max(room, 0)]}{digest}_{name}"


def find_name_problem(name: Any) -> str | None:
    """Why a name cannot be offered."""
    if not isinstance(name, str) or not name:
        return "it has no name"
    if len(name) > 4 * MAX_NAME_LENGTH:
        return f"its name is longer than {4 * MAX_NAME_LENGTH} characters"
    return None if is_printable_line(name) else "its name has characters that cannot be seen"


def find_tool_name_problem(name: str) -> str | None:
    """Why a tool cannot be listed by this name. MCP's alphabet has no letters that look like others."""
    if NAME_ALPHABET.fullmatch(name) is not None:
        return None
    return "its name may hold only ASCII letters, digits and _ - . / (rename it with `rename`)"


# -- A server as it is mounted: where it is, how it is mounted, and what it said of itself.


STDERR_LINES: Final = 200


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """How a backend is mounted.

    `children` is how many conversations there are at once, each with a process if it is a command, and `spares` how
    many processes more wait for callers (see `SpareChildren`). Without `restarts`, a child is started again 5 times in
    300 s, and an address is tried for ever. `mgp` are the extensions of MGP that are offered in its own conversation,
    the one in which no front's calls are made.
    """

    prefix: str | None = None
    tools: ToolChoice = field(default_factory=ToolChoice)
    timeout: float | None = None
    in_flight: int = 64
    children: int = 64
    spares: int | None = None
    idle: float = 300.0
    restarts: RestartPolicy | None = None
    mgp: tuple[str, ...] = ()
    transform: Transform | None = None


class MountedServer:
    """`id` names it in errors and logs; `era` is the protocol version that it speaks, `said` its words about MGP.

    `said` is None as long as it was not asked.
    """

    def __init__(self, id: str, target: BackendTarget, options: BackendOptions) -> None:
        self.id, self.options = id, options
        self.target: BackendTarget = target
        self.secrets: BackendSecrets = target.secrets
        self.prefix, self.timeout = MountPrefix(options.prefix), options.timeout
        self.era: str | None = None
        self.info: Json = {}
        self.instructions: str | None = None
        self.hides_instructions = False
        """Whether nobody is shown its instructions, until an operator has read them."""
        self.capabilities: Json = {}
        self.said: MgpClaims | None = None
        self.on_lifecycle: Callable[[Json], None] | None = None
        """Called when it tells of a state of its own (MGP §11.4)."""
        self.on_renewed: Callable[[str], None] | None = None
        """Called with the reason when another process or connection has taken its place without a gap."""
        self.on_claims: Callable[[], None] | None = None
        """Called when what it says of itself was read."""
        self.open_to: Callable[[Session | None, PeerIdentity | None], bool] | None = None
        """Whether a caller may use the server at all, in a session or none. None: everybody may."""
        self.decides: DecidePermissions | None = None
        """What it is told of the permissions that it needs (MGP §3). None: it is told nothing."""
        self.telemetry: TelemetryOptions | None = None
        """What is traced of the messages to it. None: nothing."""
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self.on_stderr: Callable[[str], None] | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the operator lets callers share a conversation, whoever they are."""
        return self.target.per == "shared"

    @property
    def state_descriptions(self) -> Mapping[BackendStateName, str]:
        """What anybody may read of each state."""
        return STATE_DESCRIPTIONS if self.target.isolates else REMOTE_STATE_DESCRIPTIONS

    def is_open_to(self, call: Call) -> bool:
        """Whether it may be used by who calls."""
        return self.open_to is None or self.open_to(call.session, call.identity)

    def store_terms(self, terms: SessionTerms) -> None:
        """Keep what it says of itself when it is opened."""
        self.era, self.info, self.capabilities = terms.version, terms.server_info, terms.capabilities
        self.store_claims_of_terms(terms)

    def store_claims_of_terms(self, terms: SessionTerms) -> None:
        """Keep what it tells models, and what it says of all its tools. `on_claims` is called at once."""
        is_asked = self.options.mgp and (terms.stateless or self.offers_mgp_in_sessions)
        self.set_claims(terms.instructions, parse_mgp_claims(terms, self.options.mgp) if is_asked else None)

    def set_claims(self, instructions: str | None, said: MgpClaims | None) -> None:
        self.instructions, self.said = instructions, said
        if self.on_claims is not None:
            self.on_claims()

    @property
    def offers_mgp_in_sessions(self) -> bool:
        """Not in a session that fronts share: there MGP would change what their calls mean."""
        return self.target.per != "shared"

    def change_target(self, target: BackendTarget) -> None:
        """It is somewhere else from now on."""
        self.target, self.secrets = target, target.secrets

    def add_stderr_line(self, line: str) -> None:
        """A child wrote a line on its stderr."""
        shown = self.redact_secrets(line)
        self.stderr.append(shown)
        if self.on_stderr is not None:
            self.on_stderr(shown)

    def redact_secrets(self, text: str) -> str:
        """A text without its secrets."""
        return self.secrets.redact_text(text)


# -- The state that a server behind this one is in (MGP §11.2), and who is told when it changes.


BackendStateName: TypeAlias = Literal[
    "registered", "connecting", "connected", "draining", "disconnected", "restarting", "error"
]

CLEAN_EXIT_REASON: Final = "exited with code 0"
ASLEEP_REASON: Final = "asleep; the next call starts it"

# What clients are told. Why a server failed is for operators: its last words name paths, commands and more.
STATE_DESCRIPTIONS: Final[Mapping[BackendStateName, str]] = {
    "registered": "it has not been started",
    "connecting": "it is being started",
    "connected": "it is connected",
    "draining": "it is shutting down",
    "disconnected": "it is stopped",
    "restarting": "it is being restarted",
    "error": "it does not run; its operator finds the reason in the log",
}

REMOTE_STATE_DESCRIPTIONS: Final[Mapping[BackendStateName, str]] = {
    **STATE_DESCRIPTIONS,
    "connecting": "it is being connected",
    "restarting": "it cannot be reached now; the connection is tried again",
    "error": "it cannot be reached; its operator finds the reason in the log",
}
"""The same of a server at an address: nobody here starts it."""

log = get_logger("proxying")
TRANSITION_LOG_FORMAT: Final = "server %r: %s (%s)"
"""How changes of states are logged. Who shows them otherwise can leave them out."""


@dataclass(frozen=True, slots=True)
class BackendTransition:
    """A backend went from one state to another. `reason` is for people, without secrets."""

    previous: BackendStateName
    new: BackendStateName
    reason: str


class BackendState:
    """The state of one backend: `now`, since the time `since`. `note` has its last words, which are for operators.
    With a `refusal` it stays as it is until an operator starts it. `next_try` is when it is tried again, by the
    monotonic clock, while it is restarting."""

    def __init__(self, id: str) -> None:
        self._id = id
        self.now: BackendStateName = "registered"
        self.note = ""
        self.refusal: RestartRefusal | None = None
        self.next_try = 0.0
        self.since = time.time()
        self._watchers: dict[object, Callable[[BackendTransition], None]] = {}
        self.bind_to_next_loop()

    def bind_to_next_loop(self) -> None:
        """Belong to the event loop that comes next: what waits must wait on that one."""
        self.settled = asyncio.Event()

    def enter_state(self, state: BackendStateName, reason: str, next_try: float = 0.0) -> None:
        """The backend is in this state from now on."""
        previous, self.now, self.next_try = self.now, state, next_try
        self.since = time.time()
        if state in ("connected", "error", "disconnected"):
            self.settled.set()
        elif state in ("connecting", "restarting"):
            self.settled.clear()
            self.refusal = None
        if state == "connected":
            self.note = ""
        log.log(logging.WARNING if state == "error" else logging.INFO, TRANSITION_LOG_FORMAT, self._id, state, reason)
        transition = BackendTransition(previous, state, reason)
        for changed in list(self._watchers.values()):
            try:
                changed(transition)
            except Exception:
                log.exception("a watcher of server %r failed", self._id)

    def mark_unsettled(self) -> None:
        """It has left, and what comes of that is not known yet. Who needs it waits."""
        if self.now == "connected":
            self.settled.clear()

    def watch_state_changes(self, changed: Callable[[BackendTransition], None]) -> Callable[[], None]:
        """Call `changed` after each change. Returns the function that ends it."""
        key = object()
        self._watchers[key] = changed
        return lambda: self._watchers.pop(key, None) and None

    async def wait_until_ready(self, seconds: float) -> None:
        """Wait until it is connected, or has failed; at most so many seconds, and not if it is not tried before."""
        is_tried_later = self.now == "restarting" and self.next_try > time.monotonic() + seconds
        if not self.settled.is_set() and not is_tried_later:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.settled.wait()


# -- Whether and when a server that ended is started again (MGP §11.5). Pure: a clock goes in, a verdict comes out.


RestartStrategy: TypeAlias = Literal["never", "on_failure", "always"]
RESTART_STRATEGIES: Final[tuple[RestartStrategy, ...]] = get_args(RestartStrategy)

JITTER: Final = 0.2
"""A wait is at most this share shorter than the back-off says, so that servers do not all start at the same moment."""

MAX_RESTARTS: Final = 1000
"""The largest limit: the times of so many restarts are kept."""

MAX_KEYS: Final = 1000


class ServerExit(StrEnum):
    """How a server ended."""

    CLEAN = "clean"
    """By itself, with exit code 0."""
    FAILED = "failed"
    """With another exit code, by a signal, by a lost connection, while it was opened, or by failed health probes."""
    STOPPED = "stopped"
    """Because an operator asked for it."""
    IMPOSSIBLE = "impossible"
    """It never ran, and another try would end the same way: there is no such program, or a name is taken."""


@explain_arguments
@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a server is started again. Times are seconds.

    More than `max_restarts` within any `window` is too many. None means that there is no limit, as for an address
    that may come back at any time. The wait doubles with each restart in the window, from `base` up to `cap`.
    """

    strategy: RestartStrategy = "on_failure"
    max_restarts: int | None = 5
    window: float = 300
    base: float = 1
    cap: float = 30

    def __post_init__(self) -> None:
        if self.strategy not in RESTART_STRATEGIES:
            raise UsageError(
                f"a restart policy cannot be {self.strategy!r}", fix=f"use one of {', '.join(RESTART_STRATEGIES)}"
            )
        if self.max_restarts is not None and not 0 <= self.max_restarts <= MAX_RESTARTS:
            raise UsageError(
                f"max_restarts cannot be {self.max_restarts}", fix=f"give a number from 0 to {MAX_RESTARTS}"
            )
        if not 0 < self.window < math.inf or not 0 <= self.base <= self.cap < math.inf:
            raise UsageError(
                "a restart policy needs a window above 0, and a base from 0 up to its cap",
                fix="RestartPolicy(window=300, base=1, cap=30)",
            )


class RestartRefusalReason(StrEnum):
    """Why a server is not started again."""

    POLICY = "restart_policy"
    STOPPED = "operator_request"
    LIMIT = "restart_limit_exceeded"
    IMPOSSIBLE = "cannot_start"


@dataclass(frozen=True, slots=True)
class RestartRefusal:
    """The server stays down until an operator starts it. `text` says why."""

    reason: RestartRefusalReason
    text: str


class RestartCounter:
    """The restarts of one server. `policy` may be replaced at any time.

    A successful start does not clear the count: only time and an operator do. So a server that dies soon after each
    start meets its limit. Nothing here sleeps or starts anything.
    """

    def __init__(
        self,
        policy: RestartPolicy,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._chance = chance
        self._times: deque[float] = deque(maxlen=MAX_RESTARTS)

    @property
    def recent(self) -> int:
        """The restarts within the window that ends at this moment."""
        begin = self._clock() - self.policy.window
        while self._times and self._times[0] <= begin:
            self._times.popleft()
        return len(self._times)

    def plan_restart(self, exit: ServerExit) -> float | RestartRefusal:
        """The seconds to wait before the next start, which is counted; or why there is none."""
        policy = self.policy
        if exit is ServerExit.STOPPED:
            return RestartRefusal(RestartRefusalReason.STOPPED, "an operator stopped it")
        if exit is ServerExit.IMPOSSIBLE:
            return RestartRefusal(RestartRefusalReason.IMPOSSIBLE, "it cannot start until that is fixed")
        if policy.strategy == "never" or (policy.strategy == "on_failure" and exit is ServerExit.CLEAN):
            return RestartRefusal(
                RestartRefusalReason.POLICY, f"not restarted, because its policy is {policy.strategy}"
            )
        count = self.recent
        if policy.max_restarts is not None and count >= policy.max_restarts:
            restarts = f"{count} restart{'' if count == 1 else 's'}"
            return RestartRefusal(RestartRefusalReason.LIMIT, f"gave up after {restarts} in {policy.window:g} s")
        self._times.append(self._clock())
        return compute_backoff(count, policy.base, policy.cap) * (1 - JITTER * self._chance())

    def clear(self) -> None:
        """Forget the restarts so far, because an operator asked for a start."""
        self._times.clear()


class RestartCountersByKey:
    """The same for processes of which each belongs to somebody: a client whose process fails harms no other client.

    `policy` gives the policy of the moment. What is known of a key that was not used for long may be forgotten.
    """

    def __init__(self, policy: Callable[[], RestartPolicy], clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._clock = policy, clock
        self._known: dict[Hashable, tuple[RestartCounter, float | RestartRefusal]] = {}

    def record_failure(self, key: Hashable) -> None:
        """The process of this key has failed."""
        restarts = self._known.pop(key)[0] if key in self._known else RestartCounter(self._policy(), self._clock)
        restarts.policy = self._policy()
        verdict = restarts.plan_restart(ServerExit.FAILED)
        while len(self._known) >= MAX_KEYS:
            del self._known[next(iter(self._known))]
        self._known[key] = restarts, verdict if isinstance(verdict, RestartRefusal) else self._clock() + verdict

    def get_restart_delay(self, key: Hashable) -> float | RestartRefusal:
        """The seconds until the next one may start, 0 for at once; or why there is none."""
        if key not in self._known:
            return 0.0
        restarts, verdict = self._known[key]
        if not isinstance(verdict, RestartRefusal):
            return max(verdict - self._clock(), 0.0)
        limit = self._policy().max_restarts
        is_below = limit is None or restarts.recent < limit
        return 0.0 if verdict.reason is RestartRefusalReason.LIMIT and is_below else verdict

    def drop_failures(self, which: Callable[[Hashable], bool] = lambda key: True) -> None:
        """Forget failures: all of them, because an operator asked for a start, or those of who has left."""
        self._known = {key: known for key, known in self._known.items() if not which(key)}
