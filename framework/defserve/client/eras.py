"""The two ways to talk to a server: `initialize` (handshake), or an envelope on every request (stateless).

How it works: a conversation is opened in the newest era that the server knows. Servers that are silent at
`server/discover`, or leave, are remembered: that costs seconds once, then `initialize` comes first. News of a server
are an async iterator in both eras: one `subscriptions/listen` request, or the notifications of the session.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from defserve.base.concurrency import wait_for_shared
from defserve.base.peer_bounds import estimate_value_bytes
from defserve.client.conversation import ClientConversation, PendingRequest
from defserve.client.replies import Json, UnreadItemQueue, filter_strings, object_or_empty, string_or_none
from defserve.core.peer import make_peer_error
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError, did_you_mean
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS, get_version_features
from defserve.serve.address import AddressUnreachable, CredentialsRequired, SignInError

NEWEST_VERSION_BY_ERA: Final[Mapping[str, str]] = {
    "handshake": HANDSHAKE_VERSIONS[-1],
    "stateless": STATELESS_VERSIONS[-1],
}
"""The name of each era and its newest version. With the name alone, the server may answer with an older version."""

MCP_KEY_PREFIX: Final = "io.modelcontextprotocol/"
PROBE_SECONDS = 5.0
"""How long a server may be silent at `server/discover`, and then at `initialize`, before it is started again."""
UNSUPPORTED_VERSION = -32022
MAX_SERVER_NAME_LENGTH: Final = 256

# A server that answers the probe with one of these has understood it.
STATELESS_ERRORS: Final = frozenset((-32020, -32021, UNSUPPORTED_VERSION))


class ClientOffer(NamedTuple):
    """What the client says about itself. `by_era` has the capabilities whose place differs between the eras."""

    info: Json
    capabilities: Json
    by_era: Mapping[str, Mapping[str, Any]]

    def capabilities_for_era(self, era: str) -> Json:
        return merge_objects(self.by_era.get(era, {}), self.capabilities)


class SessionTerms:
    """What client and server agreed on, and what every request must carry (`envelope`)."""

    __slots__ = ("version", "stateless", "server_info", "capabilities", "instructions", "envelope")

    def __init__(self, version: str, result: Json, envelope: Json | None = None) -> None:
        meta = object_or_empty(result.get("_meta"))
        self.version, self.stateless, self.envelope = version, envelope is not None, envelope or {}
        self.server_info: Json = object_or_empty(result.get("serverInfo") or meta.get(MCP_KEY_PREFIX + "serverInfo"))
        self.capabilities: Json = object_or_empty(result.get("capabilities"))
        self.instructions = string_or_none(result.get("instructions"))

    @property
    def server_name(self) -> str:
        """The name by which people and logs know the server, cut: it is in each question and each record."""
        return str(self.server_info.get("name", "unknown"))[:MAX_SERVER_NAME_LENGTH]

    def make_extension_meta(self, extension: str) -> Json:
        """The `_meta` of a request that offers one more extension of MCP than the others do."""
        key = MCP_KEY_PREFIX + "clientCapabilities"
        return {
            key: merge_objects(
                object_or_empty(self.envelope.get(key)), {"extensions": {MCP_KEY_PREFIX + extension: {}}}
            )
        }

    def with_envelope(self, params: Mapping[str, Any], log_level: str | None) -> Mapping[str, Any]:
        """`params` with the envelope of this era in `_meta`. The caller's own members of `_meta` win."""
        if not self.stateless:
            return params
        level = {MCP_KEY_PREFIX + "logLevel": log_level} if log_level else {}
        return {**params, "_meta": {**self.envelope, **level, **object_or_empty(params.get("_meta"))}}


def check_result_type(method: str, result: Json, meta: Json, terms: SessionTerms) -> None:
    """Raises PeerError for a result that is not to be read as what was asked for, nor as a question.

    `meta` is what the request said. An extension that it offers may have types of its own. In a session, results have
    no types, and a server asks with requests of its own.
    """
    kind = result.get("resultType")
    if kind == "input_required" and not terms.stateless:
        raise PeerError(f"the result of {method} asks for input, which no result may in a session of {terms.version}")
    if kind in (None, "complete", "input_required") or not terms.stateless:
        return
    offered = object_or_empty(object_or_empty(meta.get(MCP_KEY_PREFIX + "clientCapabilities")).get("extensions"))
    if not (MCP_KEY_PREFIX + "tasks" in offered if kind == "task" else offered):
        raise PeerError(f"the result of {method} is of a type that this client did not offer to read: {kind!r:.80}")


async def open_conversation(
    conversation: ClientConversation,
    offer: ClientOffer,
    version: str | None,
    within: float | None,
    prepare: Callable[[SessionTerms], Awaitable[None]] | None = None,
) -> SessionTerms:
    """Agree on a version: the given one, the newest of the given era, or if it is None the newest that both speak.

    `prepare` is awaited after the server has answered and before it is told that we are ready.
    Raises PeerError if the server speaks no version of ours.
    """
    agreement = await _agree(conversation, offer, version, within)
    conversation.mark_open()
    if prepare is not None:
        await prepare(agreement)
    if not agreement.stateless:
        try:
            async with asyncio.timeout(within):
                await conversation.notify("notifications/initialized", {})
        except TimeoutError:
            raise PeerTimeout(f"the server did not take notifications/initialized within {within:g} s") from None
    return agreement


async def _agree(
    conversation: ClientConversation, offer: ClientOffer, version: str | None, within: float | None
) -> SessionTerms:
    if version == "handshake":
        return await _initialize(conversation, offer, None, within)
    if version == "stateless" and SILENT_SERVERS.is_silent(conversation.target):
        raise PeerTimeout("the server was silent at server/discover before: it speaks with a handshake only")
    version = NEWEST_VERSION_BY_ERA.get(version or "", version)
    if version in STATELESS_VERSIONS:
        return await _discover(conversation, offer, version, within)
    if version in HANDSHAKE_VERSIONS:
        return await _initialize(conversation, offer, version, within)
    if version is not None:
        known = (*NEWEST_VERSION_BY_ERA, *HANDSHAKE_VERSIONS, *STATELESS_VERSIONS)
        raise UsageError(
            f"there is no protocol version {version!r}",
            fix=did_you_mean(version, known, f"use one of {', '.join(known)}; without one, it is negotiated"),
        )
    return await _negotiate(conversation, offer, within)


async def _negotiate(conversation: ClientConversation, offer: ClientOffer, within: float | None) -> SessionTerms:
    if SILENT_SERVERS.is_silent(conversation.target):
        try:
            return await _initialize(conversation, offer, None, within)
        except (PeerGone, PeerTimeout):
            raise
        except PeerError:
            SILENT_SERVERS.discard(conversation.target)  # it is another one now
    patience, is_late, is_gone = PROBE_SECONDS if within is None else min(within, PROBE_SECONDS), False, False
    try:
        return await _discover(conversation, offer, STATELESS_VERSIONS[-1], patience)
    except PeerError as error:
        # Servers of the handshake era meet the probe with an error of any kind, with silence, or by exiting.
        if isinstance(error, CredentialsRequired | SignInError | AddressUnreachable):
            raise
        # An unsupported version is no refusal if the server names one of the handshake era.
        if error.code in STATELESS_ERRORS and not _list_supported(error, HANDSHAKE_VERSIONS):
            raise
        is_late, is_gone = isinstance(error, PeerTimeout), isinstance(error, PeerGone)
    can_restart = is_late and conversation.can_restart
    try:
        agreement = await _initialize(conversation, offer, None, patience if can_restart else within)
    except PeerGone:
        if not await conversation.reopen():
            raise
    except PeerTimeout:
        # The probe has stopped it: a silence is met as an exit is.
        if not can_restart:
            raise
        await conversation.restart()
    except PeerError:
        # It was slow to start, and has taken the probe for the beginning of the conversation meanwhile.
        if not is_late:
            raise
        return await _discover(conversation, offer, STATELESS_VERSIONS[-1], within)
    else:
        if is_late or is_gone:
            SILENT_SERVERS.add(conversation.target)
        return agreement
    agreement = await _initialize(conversation, offer, None, within)
    SILENT_SERVERS.add(conversation.target)
    return agreement


def _list_supported(error: PeerError, versions: Sequence[str]) -> list[str]:
    """Those of our versions that an unsupported-version error names, the oldest first."""
    supported = filter_strings(object_or_empty(error.data).get("supported"))
    return [version for version in versions if version in supported]


async def _discover(
    conversation: ClientConversation, offer: ClientOffer, version: str, within: float | None
) -> SessionTerms:
    try:
        return await _discover_once(conversation, offer, version, within)
    except PeerError as error:
        # A refusal that names a version we speak invites to ask again with it.
        if error.code != UNSUPPORTED_VERSION or not (named := _list_supported(error, STATELESS_VERSIONS)):
            raise
    return await _discover_once(conversation, offer, named[-1], within)


async def _discover_once(
    conversation: ClientConversation, offer: ClientOffer, version: str, within: float | None
) -> SessionTerms:
    envelope: Json = {
        MCP_KEY_PREFIX + "protocolVersion": version,
        MCP_KEY_PREFIX + "clientCapabilities": offer.capabilities_for_era("stateless"),
        MCP_KEY_PREFIX + "clientInfo": offer.info,
    }
    # Never cancelled: a server of the handshake era may fail on a notification before `initialize`.
    found = object_or_empty(
        await conversation.request("server/discover", {"_meta": envelope}, within=within, cancellable=False)
    )
    supported = filter_strings(found.get("supportedVersions"))
    if version not in supported:
        raise PeerError(
            f"the server does not speak {version}; it names {', '.join(supported) or 'no version'}",
            code=UNSUPPORTED_VERSION,
            data={"supported": supported, "requested": version},
        )
    return SessionTerms(version, found, envelope)


async def _initialize(
    conversation: ClientConversation, offer: ClientOffer, pinned: str | None, within: float | None
) -> SessionTerms:
    version = pinned or HANDSHAKE_VERSIONS[-1]
    params = {
        "protocolVersion": version,
        "capabilities": _capabilities_for(version, offer.capabilities_for_era("handshake")),
        "clientInfo": offer.info,
    }
    # The specification forbids cancelling `initialize`.
    agreed = object_or_empty(await conversation.request("initialize", params, within=within, cancellable=False))
    spoken = agreed.get("protocolVersion")
    if not isinstance(spoken, str) or spoken not in ((pinned,) if pinned else HANDSHAKE_VERSIONS):
        raise PeerError(f"the server wants to speak {spoken!r}, not {pinned or 'a version this client knows'}")
    return SessionTerms(spoken, agreed)


def merge_objects(base: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """Both objects merged, at every depth. If both have a value, `over` wins."""
    both = {**base, **over}
    for name in base.keys() & over.keys():
        if isinstance(base[name], dict) and isinstance(over[name], dict):
            both[name] = merge_objects(base[name], over[name])
    return both


def _capabilities_for(version: str, capabilities: Json) -> Json:
    """Elicitation modes exist since 2025-11-25. Before that, `{}` meant forms, and there was nothing else."""
    offer = copy.deepcopy(capabilities)
    if "elicitation" in offer and "elicitation_url" not in get_version_features(version):
        modes = offer.pop("elicitation")
        if not modes or "form" in modes:
            offer["elicitation"] = {}
    return offer


# -- News of a server as an async iterator.
#
# In the stateless era it is one `subscriptions/listen` request. In a session the notifications come anyway.


UPDATED: Final = "notifications/resources/updated"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
SUBSCRIPTION: Final = MCP_KEY_PREFIX + "subscriptionId"

MAX_QUEUED_NEWS: Final = 1_000

# kind of news -> (its notification, its name in the listen filter)
LIST_CHANGE_NOTIFICATIONS: Final = {
    "tools": ("notifications/tools/list_changed", "toolsListChanged"),
    "prompts": ("notifications/prompts/list_changed", "promptsListChanged"),
    "resources": ("notifications/resources/list_changed", "resourcesListChanged"),
    "events": ("notifications/events/list_changed", "eventsListChanged"),
}


class ServerUpdate:
    """One notification."""

    __slots__ = ("method", "params")

    def __init__(self, method: str, params: dict[str, Any]) -> None:
        self.method, self.params = method, params

    def __repr__(self) -> str:
        return f"ServerUpdate({self.method!r}, {self.params!r})"


NewsT = TypeVar("NewsT", bound=ServerUpdate)


class UpdateFilter(NamedTuple):
    """Which news a listener wants. If nobody reads them (`is_read` false), they only come for `on_notification`."""

    kinds: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    is_read: bool = True

    def to_wire(self) -> dict[str, Any]:
        wanted: dict[str, Any] = {LIST_CHANGE_NOTIFICATIONS[kind][1]: True for kind in self.kinds}
        named = {"resourceSubscriptions": list(self.uris), "taskIds": list(self.tasks)}
        return {**wanted, **{name: ids for name, ids in named.items() if ids}}

    def has_update(self, news: ServerUpdate) -> bool:
        if news.method == UPDATED:
            return news.params.get("uri") in self.uris
        return any(LIST_CHANGE_NOTIFICATIONS[kind][0] == news.method for kind in self.kinds)


class UpdateStream(ABC, Generic[NewsT]):
    """An async context manager and iterator. It ends when the server ends the stream or leaves.

    Unread news are kept up to a number and 16 MiB; then the oldest are dropped.
    """

    def __init__(self, wanted: UpdateFilter, listeners: set[UpdateStream[Any]]) -> None:
        self.wanted, self._listeners = wanted, listeners
        self.honoured: dict[str, Any] = wanted.to_wire()
        self._unread: UnreadItemQueue[NewsT] = UnreadItemQueue(MAX_QUEUED_NEWS)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Ask the server for news. Everything from now on is received."""
        # Before asking: the first notification may come before the reply.
        self._listeners.add(self)
        try:
            await self._begin()
        except BaseException:
            self._listeners.discard(self)
            raise

    async def close(self) -> None:
        """Stop listening, and tell the server so."""
        self._listeners.discard(self)
        self.end()
        await self._finish()

    @abstractmethod
    async def _begin(self) -> None: ...

    async def _finish(self) -> None:
        """Tell the server that we no longer listen, where it has to know."""

    @abstractmethod
    def receive_update(self, news: ServerUpdate) -> None:
        """Take a notification of the server, if it is one of ours."""

    def _queue_news(self, news: NewsT) -> None:
        # A slow reader must not fill the memory. The oldest news matter least.
        if self.wanted.is_read:
            self._unread.put(news, estimate_value_bytes(news.params))

    def end(self, reason: PeerError | None = None) -> None:
        """Let the reader finish the news that are there. Then iterating stops, or raises the reason."""
        self._unread.end(reason)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NewsT:
        return await self._unread.get()


class HandshakeUpdateStream(UpdateStream[ServerUpdate]):
    """Handshake era: list changes come to every session; each resource has a subscription of its own."""

    def __init__(
        self,
        wanted: UpdateFilter,
        listeners: set[UpdateStream[Any]],
        request: Callable[[str, Mapping[str, Any]], Awaitable[object]],
    ) -> None:
        super().__init__(wanted, listeners)
        self._request = request

    async def _begin(self) -> None:
        for place, uri in enumerate(self.wanted.uris):
            try:
                await self._request("resources/subscribe", {"uri": uri})
            except PeerError:
                await self._end_subscriptions(self.wanted.uris[:place])
                raise

    async def _finish(self) -> None:
        await self._end_subscriptions(self.wanted.uris)

    async def _end_subscriptions(self, uris: Sequence[str]) -> None:
        """Except those that another stream reads: there is one subscription of a resource in a session."""
        for uri in uris:
            # Asked each time: another stream may begin while the server answers.
            if not any(uri in other.wanted.uris for other in self._listeners if other is not self):
                try:
                    await self._request("resources/unsubscribe", {"uri": uri})
                except (PeerGone, PeerTimeout):
                    return
                except PeerError:
                    continue  # the server does not know it any more

    def receive_update(self, news: ServerUpdate) -> None:
        if self.wanted.has_update(news):
            self._queue_news(news)


class OpenRequestStream(UpdateStream[NewsT]):
    """News that come while one request of ours is open. Its id tags the notifications that belong to it."""

    def __init__(
        self,
        wanted: UpdateFilter,
        listeners: set[UpdateStream[Any]],
        conversation: ClientConversation,
        terms: SessionTerms,
        timeout: float | None,
    ) -> None:
        super().__init__(wanted, listeners)
        self._conversation, self._terms, self._timeout = conversation, terms, timeout
        self._pending: PendingRequest | None = None

    async def _open_request(self, method: str, params: Mapping[str, Any], late: str) -> None:
        """Send the request, and wait until the server says that news will come. `late` is the error if it does not."""
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending = self._conversation.start_request(method, self._terms.with_envelope(params, None))
        self._pending = pending
        pending.reply.add_done_callback(self._on_request_ended)
        try:
            await asyncio.wait((self._begun, pending.reply), timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._pending = None
            pending.reply.remove_done_callback(self._on_request_ended)  # it may be opened again
            self._conversation.cancel(pending, "no longer needed")
            raise
        if self._begun.done():
            return
        if not pending.reply.done():
            self._conversation.cancel(pending, "timed out")
            raise PeerTimeout(f"{late} within {self._timeout:g} s")
        raise make_peer_error(pending.reply.result().error or {"message": f"{method} ended before it began"})

    def _on_request_ended(self, reply: asyncio.Future[Any]) -> None:
        self._listeners.discard(self)
        if reply.cancelled():
            self.end()
        elif (error := reply.exception()) is not None:
            self.end(error if isinstance(error, PeerError) else None)
        else:
            answered = reply.result().error
            self.end(make_peer_error(answered) if answered else None)

    async def _finish(self) -> None:
        if self._pending is not None and (sent := self._conversation.cancel(self._pending, "no longer listening")):
            await wait_for_shared(sent)


class StatelessUpdateStream(OpenRequestStream[ServerUpdate]):
    """Stateless era: one open `subscriptions/listen` request."""

    async def _begin(self) -> None:
        meta = self._terms.make_extension_meta("tasks") if self.wanted.tasks else {}
        params = {"notifications": self.wanted.to_wire(), "_meta": meta}
        await self._open_request("subscriptions/listen", params, "no acknowledgement of subscriptions/listen")

    def receive_update(self, news: ServerUpdate) -> None:
        if self._pending is None or object_or_empty(news.params.get("_meta")).get(SUBSCRIPTION) != self._pending.id:
            return
        if news.method != ACKNOWLEDGED:
            self._queue_news(news)
        elif not self._begun.done():
            self.honoured = object_or_empty(news.params.get("notifications"))
            self._begun.set_result(None)


# -- Which servers are silent at `server/discover`, or leave: that costs seconds once, then `initialize` comes first.
#
# A program remembers for as long as it runs. The command line, which runs anew for each command, remembers in a file.


MAX_SERVERS: Final = 256
MAX_FILE_BYTES: Final = 64 * 1024
REMEMBERED_SECONDS: Final = 30 * 86_400.0
_KEY_LENGTH: Final = 32


class SilentServers:
    """Servers by their target: a command or an address. Only a digest is kept, because both may hold secrets."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._file = ""

    def remember_in_file(self, path: str) -> None:
        """Remember in a file too. One that cannot be read or written is as good as none."""
        if path != self._file:
            self._file = path
            self._since = {**_read_cache(path), **self._since}

    def is_silent(self, target: str) -> bool:
        """Whether a server was silent in the last days. An empty target is unknown."""
        since = self._since.get(_cache_key(target)) if target else None
        return since is not None and self._clock() - REMEMBERED_SECONDS < since <= self._clock()

    def add(self, target: str) -> None:
        if target and not self.is_silent(target):
            self._since[_cache_key(target)] = self._clock()
            while len(self._since) > MAX_SERVERS:
                del self._since[min(self._since, key=lambda key: self._since[key])]
            self._write()

    def discard(self, target: str) -> None:
        if self._since.pop(_cache_key(target), None) is not None:
            self._write()

    def clear(self) -> None:
        """Forget all, and the file."""
        self._since, self._file = {}, ""

    def _write(self) -> None:
        if self._file:
            draft = f"{self._file}.{os.getpid()}"
            with suppress(OSError):
                os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
                with open(draft, "w", encoding="utf-8") as file:
                    json.dump(self._since, file)
                os.replace(draft, self._file)


def _cache_key(target: str) -> str:
    return sha256(target.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_LENGTH]


def _read_cache(path: str) -> dict[str, float]:
    try:
        with open(path, "rb") as file:
            content: Any = json.loads(file.read(MAX_FILE_BYTES + 1))
    except (OSError, ValueError, RecursionError):
        return {}
    items = [
        (key, since)
        for key, since in object_or_empty(content).items()
        # An integer may be larger than any float.
        if len(key) == _KEY_LENGTH and type(since) in (int, float) and 0 <= since < 2**53
    ]
    return {key: float(since) for key, since in items[:MAX_SERVERS]}


SILENT_SERVERS: Final = SilentServers()
"""Those of this process."""


def get_silent_server_cache_path() -> str:
    """Where the command line remembers."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "defserve", "silent-servers.json")
