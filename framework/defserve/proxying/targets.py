"""Where a mounted server is: a command to start (`Command`), or an address (`Remote`). Secrets stay inside.

Also children that are started before anybody needs them (`SpareChildren`).
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit, urlunsplit

from pydantic_core import to_json

from defserve.base.backoff import Backoff
from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import get_logger, is_secret_name, redact_text
from defserve.client.replies import RawReply
from defserve.client.targets import RemoteServer as Address
from defserve.client.targets import is_server_address
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import encode
from defserve.errors import PeerError, UsageError, explain_arguments

if TYPE_CHECKING:
    from defserve.client.link import ClientAuth, ClientLink, ResolveHost
    from defserve.core.messages import Reply

ChannelSharing: TypeAlias = Literal["client", "shared", "call"]
PERS: Final[tuple[ChannelSharing, ...]] = get_args(ChannelSharing)

MASK: Final = "[redacted]"
MIN_SECRET_LENGTH = 4
MAX_TEXT_LENGTH = 2_000

log = get_logger("proxying")


@dataclass(frozen=True, slots=True)
class BackendSecrets:
    """The values that only the backend may see.

    All `values` are taken out of errors and logs. Results lose only those that are `sure`: a token, or what has the
    name of a secret. Another value of its environment, such as a folder, may be what it was asked for.
    """

    values: tuple[str, ...] = field(default=(), repr=False)
    sure: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def from_values(cls, sure: Iterable[str | None], others: Iterable[str] = ()) -> BackendSecrets:
        known = {value for value in sure if value is not None and len(value) >= MIN_SECRET_LENGTH}
        more = {value for value in others if len(value) >= 2 * MIN_SECRET_LENGTH}
        # The longest first: a secret may contain another.
        return cls(*(tuple(sorted(found, key=len, reverse=True)) for found in (known | more, known)))

    def redact_reply(self, reply: Reply) -> Any:
        """The result of a reply, without the secrets that are sure."""
        if not self.sure:
            return reply.result
        # An escape that is not needed spells a character in another way, as some writers do with every slash.
        raw = (reply.raw if isinstance(reply, RawReply) else encode(reply.result)).decode(errors="replace")
        is_suspect = "\\u" in raw or "\\/" in raw or any(value in raw for value in self._spelled)
        return self.redact_sure_secrets(reply.result) if is_suspect else reply.result

    def redact_sure_secrets(self, value: Any) -> Any:
        """A JSON value without the secrets that are sure."""
        return BackendSecrets(self.sure).redact_value(value) if self.sure else value

    @property
    def _spelled(self) -> tuple[str, ...]:
        """The sure ones as JSON writes them."""
        return tuple(to_json(value).decode()[1:-1] for value in self.sure)

    def redact_text(self, text: str) -> str:
        return redact_text(self.redact_value(text), limit=MAX_TEXT_LENGTH, multiline=True)

    def redact_value(self, value: Any) -> Any:
        """A JSON value without the secrets. Nothing else of it changes."""
        if isinstance(value, str):
            for secret in self.values:
                value = value.replace(secret, MASK)
            return value
        if is_object(value):
            return {self.redact_value(name): self.redact_value(member) for name, member in value.items()}
        if is_array(value):
            return [self.redact_value(member) for member in value]
        return value


@explain_arguments
class Remote(Address):
    """A server at an address: `Remote("https://wiki.example.org/mcp", token=…)`.

    token    sent to this server as a bearer token, and shown to nobody else
    headers  further headers for this server
    per      who shares a conversation: see `Server.mount`
    version  the protocol version to speak; None takes the newest that both sides know
    resolve  gives the addresses that each connection may go to, and refuses others
    auth     gets a token when the server asks for one: `StoredSignIn()`, `ClientCredentials(…)`
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        per: ChannelSharing | None = None,
        version: str | None = None,
        resolve: ResolveHost | None = None,
        auth: ClientAuth | None = None,
    ) -> None:
        if not is_server_address(url):
            raise UsageError(f"Remote({url!r}) is not an address", fix="write http://…, https://…, ws://… or wss://…")
        super().__init__(url, headers=headers, token=token, auth=auth)
        self.per: ChannelSharing | None = _check_per(per)
        self.version, self._resolve = version, resolve

    @property
    def shown(self) -> str:
        """The address without user, password and query, which may hold secrets."""
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return urlunsplit((parts.scheme, f"{parts.hostname or ''}{port}", parts.path, "", ""))

    @property
    def secrets(self) -> BackendSecrets:
        parts = urlsplit(self.url)
        headers = self._headers or {}
        # A header may be "Bearer secret": the secret alone must be recognised too.
        sure = [word for name, value in headers.items() if is_secret_name(name) for word in value.split()[-1:]]
        pairs = [pair.partition("=") for pair in parts.query.split("&")]
        sure += [value for name, _, value in pairs if is_secret_name(name)]
        others = [*headers.values(), *(value for _, _, value in pairs)]
        return BackendSecrets.from_values((self._token, parts.password, *sure), others)

    @property
    def isolates(self) -> bool:
        """Whether another conversation is another process."""
        return False

    async def link(self, on_stderr: Callable[[str], None], key: str = "") -> ClientLink:
        """Connect. Raises PeerError or PeerGone if there is no way to. The `key` is that of `Command.link`."""
        from defserve.client.targets import connect_url

        return await connect_url(
            self.url, headers=self._headers, token=self._token, resolve=self._resolve, auth=self._auth
        )

    def __repr__(self) -> str:
        return f"Remote({self.shown!r})"


@explain_arguments
class Command:
    """A server that is started as a child process: `Command("uvx", "mailer", env={"TOKEN": …})`.

    env      added to a bare environment: the child sees PATH, HOME, LANG, the folder for temporary files, and this
    cwd      the folder it runs in
    per      who shares a process: see `Server.mount`
    version  the protocol version to speak; None takes the newest that both sides know
    """

    __slots__ = ("program", "args", "env", "cwd", "per", "version")

    def __init__(
        self,
        program: str | os.PathLike[str],
        *args: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        per: ChannelSharing | None = None,
        version: str | None = None,
    ) -> None:
        if not program:
            raise UsageError("Command() names no program", fix='write Command("uvx", "some-server")')
        self.program, self.args = os.fspath(program), tuple(os.fspath(arg) for arg in args)
        self.env, self.cwd = dict(env or {}), cwd
        self.per: ChannelSharing | None = _check_per(per)
        self.version = version

    @property
    def shown(self) -> str:
        """The program alone: arguments may hold secrets."""
        return os.path.basename(self.program) or self.program

    @property
    def secrets(self) -> BackendSecrets:
        flags = [value for name, value in zip(self.args, self.args[1:], strict=False) if is_secret_name(name)]
        pairs = [value for arg in self.args for name, _, value in [arg.partition("=")] if is_secret_name(name)]
        named = [value for name, value in self.env.items() if is_secret_name(name)]
        return BackendSecrets.from_values((*named, *flags, *pairs), self.env.values())

    @property
    def isolates(self) -> bool:
        """Whether another conversation is another process."""
        return True

    @property
    def is_joined(self) -> bool:
        """Whether links with the same key lead to one process."""
        return False

    async def link(self, on_stderr: Callable[[str], None], key: str = "") -> ClientLink:
        """Start the child. Raises PeerGone if it cannot be started.

        The `key` says whom it is for, where several processes of this front share a child; empty: for nobody else.
        """
        from defserve.client.links.stdio import ProcessLink

        return await ProcessLink.spawn(
            self.program,
            self.args,
            env=self.env,
            cwd=self.cwd,
            bare=True,
            on_stderr=on_stderr,
            ends_with_us=True,
        )

    def __repr__(self) -> str:
        return f"Command({self.shown!r}, …)" if self.args else f"Command({self.shown!r})"


BackendTarget: TypeAlias = Remote | Command


def parse_mount_target(given: str | BackendTarget | Address) -> BackendTarget:
    """What `mount` was given: a text with `://` is an address, any other text is a command line."""
    if isinstance(given, Remote | Command):
        return given
    if isinstance(given, Address):
        raise UsageError("defserve.client.RemoteServer cannot be mounted", fix="use defserve.Remote(url, token=…)")
    if is_server_address(given):
        return Remote(given)
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise UsageError(f"the command line {given!r} cannot be read: {error}", fix="close its quotes") from None
    if not words:
        raise UsageError("the command line is empty", fix='write server.mount("npx -y some-server")')
    return Command(*words)


def _check_per(per: Any) -> ChannelSharing | None:
    if per is not None and per not in PERS:
        raise UsageError(f"per={per!r} is not possible", fix=f"use one of {', '.join(PERS)}")
    return per


# -- Children that are started before anybody needs them.


AUTOMATIC_SPARES: Final = 2
"""How many there are if nobody says a number, once a caller without a session or key has come."""
MAX_SPARE_BYTES: Final = 1024 * 1024 * 1024
"""What the spares of one server may weigh together, each taken to weigh as much as the server does."""
FIRST_PAUSE, MAX_PAUSE_SECONDS = 1.0, 60.0


class SpareChildren:
    """Children of one server to which nobody has said a word. Each is given to one caller, and ends with its calls.

    With a number as `wanted` there are so many as long as the server is connected. Without one there are some while
    callers come that need a child for each call, and for `idle` seconds after the last. `find_room` says how many more
    the server may have, `find_pid` which process tells what one weighs.
    """

    def __init__(
        self,
        id: str,
        start: Callable[[], Awaitable[ClientLink]],
        wanted: int | None,
        idle: float,
        find_room: Callable[[], int],
        find_pid: Callable[[], int | None],
    ) -> None:
        self._id, self._start, self._wanted, self._idle = id, start, wanted, idle
        self._find_room, self._find_pid = find_room, find_pid
        self._links: list[ClientLink] = []
        self._is_open = self._is_asked_for = self._is_limit_told = False
        self._filling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ending = BackgroundTasks()

    def __len__(self) -> int:
        return len(self._links)

    @property
    def pids(self) -> list[int]:
        return [pid for link in self._links if (pid := getattr(link, "pid", None)) is not None]

    def open(self) -> None:
        """The server is connected: begin to start some."""
        self._is_open = True
        self._fill_soon()

    def take_child(self, *, is_for_one_call: bool) -> ClientLink | None:
        """A child that nobody else gets, if there is one. Another is started in its place."""
        if is_for_one_call and self._wanted is None:
            self._is_asked_for = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._rest)
        link = None
        while link is None and self._links:
            link = self._links.pop(0)
            if getattr(link, "returncode", None) is not None:  # it has ended while it waited
                self._ending.start(link.aclose())
                link = None
        self._fill_soon()
        return link

    async def aclose(self) -> None:
        """End them all, and start no more until `open` is called."""
        self._is_open = False
        self._rest()
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _rest(self) -> None:
        """Nobody has needed one for a while."""
        self._is_asked_for = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._links:
            self._ending.start(self._links.pop().aclose())

    def _count_missing(self) -> int:
        wanted = self._wanted if self._wanted is not None else AUTOMATIC_SPARES if self._is_asked_for else 0
        if not self._is_open or not wanted:
            return 0
        weight = read_resident_bytes(self._find_pid())
        if weight and wanted > (fitting := MAX_SPARE_BYTES // weight):
            if not self._is_limit_told:
                self._is_limit_told = True
                log.warning(
                    "server %r has %d spare processes, not %d: each takes %d MB, and together they may take %d MB",
                    *(self._id, fitting, wanted, weight >> 20, MAX_SPARE_BYTES >> 20),
                )
            wanted = fitting
        return min(wanted - len(self._links), self._find_room())

    def _fill_soon(self) -> None:
        if (self._filling is None or self._filling.done()) and self._count_missing() > 0:
            self._filling = asyncio.create_task(self._fill(), name="defserve.proxying spares")

    async def _fill(self) -> None:
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE_SECONDS)
        while self._count_missing() > 0:
            try:
                link = await self._start()
            except PeerError as error:
                if backoff.is_reset:
                    log.warning("server %r: a spare process could not be started: %s", self._id, error.message)
                await asyncio.sleep(backoff.next_wait())
                continue
            if self._count_missing() > 0:
                self._links.append(link)
            else:  # it was closed meanwhile, or others took the room
                self._ending.start(link.aclose())


def read_resident_bytes(pid: int | None) -> int:
    """The memory that a process has; 0 if that cannot be known."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0
