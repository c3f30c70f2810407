"""MCP lifecycle (base protocol: initialize, server/discover): how a conversation opens, and in which dialect.

Also who this server says it is (`Implementation`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from defserve.base.frozen import FrozenDataclass
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Listener, Offer
from defserve.core.json_values import is_object
from defserve.core.messages import EncodedJson, Notification, Params, Request, RequestId, encode_at_startup
from defserve.core.peer import Profile
from defserve.errors import InvalidParams, InvalidRequest, MethodNotFound, ProtocolError, UsageError
from defserve.protocols.mcp import errors
from defserve.protocols.mcp.errors import read_optional_object_param, read_text_param
from defserve.protocols.mcp.versions import (
    HANDSHAKE_VERSIONS,
    PROTOCOL_VERSIONS,
    STATELESS_VERSIONS,
    ProtocolVersion,
    get_version_features,
)

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from defserve.protocols.mcp.asking.server_secret import ServerSecret
    from defserve.protocols.mcp.server_card import ServerProfile


MCP_NAMESPACE = "io.modelcontextprotocol/"
PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY = (
    MCP_NAMESPACE + "protocolVersion",
    MCP_NAMESPACE + "clientCapabilities",
)
CLIENT_INFO_META_KEY, SERVER_INFO_META_KEY, LOG_LEVEL_META_KEY = (
    MCP_NAMESPACE + "clientInfo",
    MCP_NAMESPACE + "serverInfo",
    MCP_NAMESPACE + "logLevel",
)

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

# Of an offer: the most bytes of capabilities that a session keeps, and the most of an offer that others may share.
MAX_CAPABILITIES_BYTES = 16 * 1024
MAX_KEY_LENGTH, MAX_NAME_LENGTH = 4 * 1024, 256


class Dialect(Profile):
    """One protocol version: what it knows (`has`) and how its replies look. The base protocol's profile."""

    __slots__ = ("version", "stateless", "has", "secret", "_identity", "_own_meta")

    def __init__(self, version: ProtocolVersion, identity: ServerDescription, secret: ServerSecret) -> None:
        super().__init__(batches=version.batches, null_id=version.null_id, calls_back=not version.stateless)
        self.version, self.stateless, self.has = version.name, version.stateless, get_version_features(version.name)
        self._identity, self.secret = identity, secret
        self._own_meta: Params | None = None

    def result(self, call: Call, result: Any) -> Any:
        if not self.stateless or type(result) is EncodedJson:
            return result
        if "resultType" not in result:
            result["resultType"] = "complete"
        if (own := self._own_meta) is None:
            # Done late, because finding the version of a distribution takes a while.
            own = self._own_meta = {SERVER_INFO_META_KEY: self._identity.info(self.version)}
        result["_meta"] = {**result["_meta"], **own} if result.get("_meta") else own
        return result

    def failure(self, call: Call, error: BaseException) -> Params:
        body = errors.build_failure_reply(call, error, self.stateless)
        if "result" in body:
            body["result"] = self.result(call, body["result"])
        return body

    def withdrawal(self, id: RequestId) -> tuple[str, Params] | None:
        return None if self.stateless else ("notifications/cancelled", {"requestId": id, "reason": "no longer needed"})


class McpLifecycle(Extension):
    """Opens sessions and reads the offer of requests that need none."""

    def __init__(self, identity: ServerDescription, secret: ServerSecret) -> None:
        self.identity = identity
        self.dialects = {version.name: Dialect(version, identity, secret) for version in PROTOCOL_VERSIONS}
        self._last_offer: Offer | None = None
        self.more_instructions: Callable[[Call], Iterable[str]] | None = None

    def methods(self) -> Mapping[str, Handler]:
        return {"initialize": self.initialize, "ping": self.ping, "server/discover": self.discover}

    def notifications(self) -> Mapping[str, Listener]:
        return {"notifications/initialized": self.on_initialized}

    # -- handshake era -----------------------------------------------------------------------------------

    def initialize(self, call: Call, params: Params) -> Params:
        require_handshake(call)
        session = call.session
        if session.terms is not None:
            raise InvalidRequest("Invalid request: this session is already initialized")
        asked = read_text_param(params, "protocolVersion")
        capabilities, info = (
            read_optional_object_param(params, "capabilities"),
            read_optional_object_param(params, "clientInfo"),
        )
        version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        if len(encode_at_startup(capabilities or {})) > MAX_CAPABILITIES_BYTES:
            raise InvalidParams(f"Invalid params: capabilities may have at most {MAX_CAPABILITIES_BYTES} bytes")
        offer = _offer(version, capabilities or {}, _short_info(info or {}), stateless=False)
        call.terms = session.open(offer)
        return {
            "protocolVersion": version,
            "capabilities": session.composition.capabilities(offer),
            "serverInfo": self.identity.info(version),
            **self._instructions(call),
        }

    def on_initialized(self, session: Any, params: Params) -> None:
        session.ready = True

    def ping(self, call: Call, params: Params) -> Params:
        require_handshake(call)
        return {}

    # -- stateless era -----------------------------------------------------------------------------------

    def offer_in(self, message: Request | Notification) -> Offer | None:
        meta: Any = message.params.get("_meta")
        if meta.__class__ is not dict or PROTOCOL_VERSION_META_KEY not in meta:
            return None
        last = self._last_offer
        version, capabilities, info = (
            meta[PROTOCOL_VERSION_META_KEY],
            meta.get(CLIENT_CAPABILITIES_META_KEY),
            meta.get(CLIENT_INFO_META_KEY, _NOBODY),
        )
        # Most requests come from a client that has just sent another.
        if (
            last is not None
            and version == last.version
            and capabilities == last.capabilities
            and info == last.info
            and LOG_LEVEL_META_KEY not in meta
        ):
            return last
        if not isinstance(version, str):
            raise InvalidParams(f"Invalid params: _meta[{PROTOCOL_VERSION_META_KEY!r}] must be a string")
        if not is_object(capabilities):
            raise InvalidParams(
                f"Invalid params: _meta[{CLIENT_CAPABILITIES_META_KEY!r}] is required and must be an object"
            )
        if not is_object(info):
            raise InvalidParams(f"Invalid params: _meta[{CLIENT_INFO_META_KEY!r}] must be an object")
        if version not in STATELESS_VERSIONS:
            raise UnsupportedVersion(version)
        if LOG_LEVEL_META_KEY in meta and meta[LOG_LEVEL_META_KEY] not in LOG_LEVELS:
            raise InvalidParams(f"Invalid params: _meta[{LOG_LEVEL_META_KEY!r}] must be one of {', '.join(LOG_LEVELS)}")
        offer = _offer(version, capabilities, info, stateless=True)
        self._last_offer = offer if offer.key is not None else None
        return offer

    def discover(self, call: Call, params: Params) -> Params:
        dialect = require_stateless(call)
        offer = call.terms.offer
        assert offer is not None
        return {
            "supportedVersions": list(STATELESS_VERSIONS),
            "capabilities": call.session.composition.capabilities(offer),
            **build_cache_hints(dialect),
            **self._instructions(call),
        }

    def _instructions(self, call: Call) -> Params:
        text = self.identity.instructions or ""
        if self.more_instructions is not None:
            text = "\n\n".join(filter(None, (text, *self.more_instructions(call))))
        return {"instructions": text} if text else {}


class UnsupportedVersion(ProtocolError):
    """-32022: the request names a version that is not spoken without a handshake."""

    code = -32022

    def __init__(self, requested: str) -> None:
        data = {"supported": list(STATELESS_VERSIONS), "requested": requested[:64]}
        super().__init__(f"Unsupported protocol version: {requested[:64]}", data=data)


def get_dialect(call: Call) -> Dialect:
    """The version a call is answered in."""
    profile = call.terms.profile
    assert isinstance(profile, Dialect)
    return profile


def require_stateless(call: Call) -> Dialect:
    """The dialect of a method that only the stateless era has; MethodNotFound in the other."""
    profile = call.terms.profile
    if not isinstance(profile, Dialect) or not profile.stateless:
        raise MethodNotFound(f"Method not found: {call.method} (without _meta[{PROTOCOL_VERSION_META_KEY!r}])")
    return profile


def require_handshake(call: Call) -> None:
    """MethodNotFound for a method that the stateless era has removed."""
    profile = call.terms.profile
    if isinstance(profile, Dialect) and profile.stateless:
        raise MethodNotFound(f"Method not found: {call.method}")


def build_cache_hints(dialect: Dialect, ttl_ms: int = 0) -> Params:
    """`ttlMs` and `cacheScope`, if the version has them."""
    return {"ttlMs": ttl_ms, "cacheScope": "private"} if dialect.stateless else {}


_NOBODY: Params = {}


def _offer(version: str, capabilities: Mapping[str, Any], info: Mapping[str, Any], *, stateless: bool) -> Offer:
    key = (version, encode_at_startup(capabilities), encode_at_startup(info))
    # An offer without a key is not remembered.
    is_long = len(key[1]) + len(key[2]) > MAX_KEY_LENGTH
    return Offer(version, capabilities, info, stateless=stateless, key=None if is_long else key)


def _short_info(info: Params) -> Params:
    """What a session keeps of `clientInfo`. Icons may be whole pictures."""
    if len(encode_at_startup(info)) <= MAX_KEY_LENGTH:
        return info
    known = ((name, info.get(name)) for name in ("name", "title", "version"))
    return {name: value[:MAX_NAME_LENGTH] for name, value in known if isinstance(value, str)}


# -- MCP `Implementation`: who this server says it is (schema: serverInfo, icons, instructions).


class Icon(FrozenDataclass):
    """An icon of a server, tool, resource or prompt. `src` is an https: or data: URI."""

    src: str
    mime_type: str | None = None
    sizes: Sequence[str] = ()
    theme: str | None = None

    def __post_init__(self) -> None:
        if self.theme not in (None, "light", "dark"):
            raise UsageError(f"Icon(theme={self.theme!r}) is not possible", fix="use one of 'light', 'dark'")
        src, sizes = cast("Any", (self.src, self.sizes))
        if not isinstance(src, str):
            raise UsageError(f"Icon({src!r}) is not possible", fix="give an https: or data: URI")
        if isinstance(sizes, str):  # as MCP had it in a draft
            raise UsageError(f"Icon(sizes={sizes!r}) is not possible", fix=f"write sizes={sizes.split()!r}")

    def to_wire(self) -> dict[str, Any]:
        """The icon for the wire, without empty fields."""
        fields = {"src": self.src, "mimeType": self.mime_type, "sizes": list(self.sizes), "theme": self.theme}
        return {key: value for key, value in fields.items() if value}


def encode_icons(icons: Sequence[Icon | str | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Icons in any of the forms authors write, for the wire."""
    return [
        icon.to_wire() if isinstance(icon, Icon) else {"src": icon} if isinstance(icon, str) else dict(icon)
        for icon in icons
    ]


class ServerDescription:
    """Name, version and the rest; the version is looked up when first asked for (importlib.metadata costs 36 ms)."""

    def __init__(
        self,
        name: str,
        version: str | None = None,
        *,
        title: str | None = None,
        instructions: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon | str | Mapping[str, Any]] | None = None,
        distribution: str | None = None,
    ) -> None:
        self.name, self._version, self.title = name, version, title
        self.instructions, self.description, self.website_url = instructions, description, website_url
        self.icons, self._distribution = tuple(icons or ()), distribution
        self._wire: dict[str, dict[str, Any]] = {}

    @property
    def version(self) -> str:
        if self._version is None:
            found = self.find_distribution()
            self._version = found.version if found is not None else "0.0.0"
        return self._version

    @cached_property
    def profile(self) -> ServerProfile:
        """What everybody may know of this server without a token. All documents about it are made from this."""
        from defserve.protocols.mcp.server_card import make_running_server_profile

        return make_running_server_profile(self)

    def find_distribution(self) -> Distribution | None:
        """The installed distribution that the server's module belongs to; None for a loose script."""
        return _find_distribution(self._distribution)

    def info(self, version: str) -> dict[str, Any]:
        """`Implementation` as a version of the protocol knows it."""
        if (known := self._wire.get(version)) is None:
            known = self._wire[version] = self._info(get_version_features(version))
        return known

    def _info(self, has: frozenset[str]) -> dict[str, Any]:
        info: dict[str, Any] = {"name": self.name, "version": self.version}
        if self.title and "titles" in has:
            info["title"] = self.title
        if "website" in has:
            more = {"description": self.description, "websiteUrl": self.website_url, "icons": encode_icons(self.icons)}
            info |= {key: value for key, value in more.items() if value}
        return info


def _find_distribution(module: str | None) -> Distribution | None:
    if not module or module == "__main__":
        return None
    package = module.partition(".")[0]
    origin = getattr(sys.modules.get(package), "__file__", None) or ""
    is_installed = "-packages" in origin
    if not is_installed and not _has_distribution_folder(package):
        return None  # a loose script: most servers are one when they are started by hand
    from importlib import metadata

    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError:
        pass
    # Finding a distribution with another name reads the files of all of them (40 to 170 ms); a loose script has none.
    names = metadata.packages_distributions().get(package) if is_installed else None
    return metadata.distribution(names[0]) if names else None


def _has_distribution_folder(package: str) -> bool:
    """Whether a distribution of this name may be installed. Their folders are named after them."""
    wanted = re.sub("_+", "-", package.lower())
    for place in sys.path:
        try:
            names = os.listdir(place or os.curdir)
        except NotADirectoryError:  # an archive: its folders are not listed here
            return True
        except OSError:
            continue
        for name in names:
            stem, _, kind = name.lower().rpartition(".")
            if kind in ("dist-info", "egg-info") and re.sub("[-_.]+", "-", stem.partition("-")[0]) == wanted:
                return True
    return False
