"""The two ways to open a conversation: `initialize` (handshake), or an envelope on every request (stateless).

No other module of the host tells protocol versions apart.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError, did_you_mean
from defserve.host.conversation import ClientConversation
from defserve.host.fields import Json, object_of, texts_of
from defserve.host.older.silent_servers import SILENT_SERVERS
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS, features
from defserve.transports.client_errors import Challenged, SignInError, Unreachable

ERAS: Final[Mapping[str, str]] = {"handshake": HANDSHAKE_VERSIONS[-1], "stateless": STATELESS_VERSIONS[-1]}
"""The name of each era and its newest version. With the name alone, the server may answer with an older version."""

PREFIX: Final = "io.modelcontextprotocol/"
PROBE_SECONDS = 5.0
"""How long a server may be silent at `server/discover`, and then at `initialize`, before it is started again."""
UNSUPPORTED_VERSION = -32022
# A server that answers the probe with one of these has understood it.
STATELESS_ERRORS: Final = frozenset((-32020, -32021, UNSUPPORTED_VERSION))


class ClientOffer(NamedTuple):
    """What the client says about itself. `by_era` has the capabilities whose place differs between the eras."""

    info: Json
    capabilities: Json
    by_era: Mapping[str, Mapping[str, Any]]

    def of_era(self, era: str) -> Json:
        return merged(self.by_era.get(era, {}), self.capabilities)


class SessionTerms:
    """What client and server agreed on, and what every request must carry (`envelope`)."""

    __slots__ = ("version", "stateless", "server_info", "capabilities", "instructions", "envelope")

    def __init__(self, version: str, result: Json, envelope: Json | None = None) -> None:
        meta = object_of(result.get("_meta"))
        self.version, self.stateless, self.envelope = version, envelope is not None, envelope or {}
        self.server_info: Json = object_of(result.get("serverInfo") or meta.get(PREFIX + "serverInfo"))
        self.capabilities: Json = object_of(result.get("capabilities"))
        self.instructions: str | None = result.get("instructions")

    def offering(self, extension: str) -> Json:
        """The `_meta` of a request that offers one more extension of MCP than the others do."""
        key = PREFIX + "clientCapabilities"
        return {key: merged(object_of(self.envelope.get(key)), {"extensions": {PREFIX + extension: {}}})}

    def with_envelope(self, params: Mapping[str, Any], log_level: str | None) -> Mapping[str, Any]:
        """`params` with the envelope of this era in `_meta`. The caller's own members of `_meta` win."""
        if not self.stateless:
            return params
        level = {PREFIX + "logLevel": log_level} if log_level else {}
        return {**params, "_meta": {**self.envelope, **level, **object_of(params.get("_meta"))}}


Prepare: TypeAlias = Callable[[SessionTerms], Awaitable[None]]


async def open_conversation(
    conversation: ClientConversation,
    offer: ClientOffer,
    version: str | None,
    within: float | None,
    prepare: Prepare | None = None,
) -> SessionTerms:
    """Agree on a version: the given one, the newest of the given era, or if it is None the newest that both speak.

    `prepare` is awaited after the server has answered and before it is told that we are ready.
    Raises PeerError if the server speaks no version of ours.
    """
    agreement = await _agree(conversation, offer, version, within)
    conversation.opened()
    if prepare is not None:
        await prepare(agreement)
    if not agreement.stateless:
        await _say_ready(conversation, within)
    return agreement


async def _say_ready(conversation: ClientConversation, within: float | None) -> None:
    try:
        async with asyncio.timeout(within):
            await conversation.notify("notifications/initialized", {})
    except TimeoutError:
        raise PeerTimeout(f"the server did not take notifications/initialized within {within:g} s") from None


async def _agree(
    conversation: ClientConversation, offer: ClientOffer, version: str | None, within: float | None
) -> SessionTerms:
    if version == "handshake":
        return await _initialize(conversation, offer, None, within)
    if version == "stateless" and SILENT_SERVERS.has(conversation.target):
        raise PeerTimeout("the server was silent at server/discover before: it speaks with a handshake only")
    version = ERAS.get(version or "", version)
    if version in STATELESS_VERSIONS:
        return await _discover(conversation, offer, version, within)
    if version in HANDSHAKE_VERSIONS:
        return await _initialize(conversation, offer, version, within)
    if version is not None:
        known = (*ERAS, *HANDSHAKE_VERSIONS, *STATELESS_VERSIONS)
        all_of_them = f"use one of {', '.join(known)}; without one, it is negotiated"
        raise UsageError(f"there is no protocol version {version!r}", fix=did_you_mean(version, known, all_of_them))
    return await _negotiate(conversation, offer, within)


async def _negotiate(conversation: ClientConversation, offer: ClientOffer, within: float | None) -> SessionTerms:
    if SILENT_SERVERS.has(conversation.target):
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
        if isinstance(error, Challenged | SignInError | Unreachable):
            raise
        if error.code in STATELESS_ERRORS and not _invites_handshake(error):
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


def _invites_handshake(error: PeerError) -> bool:
    """Whether an unsupported-version error names a handshake version among those the server does support."""
    supported = texts_of(object_of(error.data).get("supported"))
    return any(version in supported for version in HANDSHAKE_VERSIONS)


async def _discover(
    conversation: ClientConversation, offer: ClientOffer, version: str, within: float | None
) -> SessionTerms:
    try:
        return await _discover_once(conversation, offer, version, within)
    except PeerError as error:
        # A refusal that names a version we speak invites to ask again with it.
        if error.code != UNSUPPORTED_VERSION or (named := _named_version(error)) is None:
            raise
    return await _discover_once(conversation, offer, named, within)


def _named_version(error: PeerError) -> str | None:
    """The newest stateless version of ours that an unsupported-version error names."""
    supported = texts_of(object_of(error.data).get("supported"))
    named = [version for version in STATELESS_VERSIONS if version in supported]
    return named[-1] if named else None


async def _discover_once(
    conversation: ClientConversation, offer: ClientOffer, version: str, within: float | None
) -> SessionTerms:
    envelope: Json = {
        PREFIX + "protocolVersion": version,
        PREFIX + "clientCapabilities": offer.of_era("stateless"),
        PREFIX + "clientInfo": offer.info,
    }
    # Never cancelled: a server of the handshake era may fail on a notification before `initialize`.
    found = object_of(
        await conversation.request("server/discover", {"_meta": envelope}, within=within, cancellable=False)
    )
    supported = texts_of(found.get("supportedVersions"))
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
        "capabilities": _capabilities_for(version, offer.of_era("handshake")),
        "clientInfo": offer.info,
    }
    # The specification forbids cancelling `initialize`.
    agreed = object_of(await conversation.request("initialize", params, within=within, cancellable=False))
    spoken = agreed.get("protocolVersion")
    if not isinstance(spoken, str) or spoken not in ((pinned,) if pinned else HANDSHAKE_VERSIONS):
        raise PeerError(f"the server wants to speak {spoken!r}, not {pinned or 'a version this client knows'}")
    return SessionTerms(spoken, agreed)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """Both objects merged, at every depth. If both have a value, `over` wins."""
    both = {**base, **over}
    for name in base.keys() & over.keys():
        if isinstance(base[name], dict) and isinstance(over[name], dict):
            both[name] = merged(base[name], over[name])
    return both


def _capabilities_for(version: str, capabilities: Json) -> Json:
    """Elicitation modes exist since 2025-11-25. Before that, `{}` meant forms, and there was nothing else."""
    offer = copy.deepcopy(capabilities)
    if "elicitation" in offer and "elicitation_url" not in features(version):
        modes = offer.pop("elicitation")
        if not modes or "form" in modes:
            offer["elicitation"] = {}
    return offer
