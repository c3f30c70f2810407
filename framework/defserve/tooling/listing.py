"""What a server says about itself and what it lists, in wire form. A server in this process is not started for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from defserve.core.composition import Composition
from defserve.core.engine import NoLoopYet
from defserve.core.extension import OutgoingMessage
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import encode
from defserve.core.session import Session
from defserve.errors import PeerError
from defserve.protocols.mcp.app_policy import APPS_CAPABILITY as APPS_OFFER
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS
from defserve.protocols.mgp.terms import MGP_EXTENSION_ID, MGP_SECTIONS_BY_NAME, MGP_VERSION

Json = dict[str, Any]

# Field of `ServerListing`, in its order → method, and the member of its result.
LISTS: Final = {
    "tools": ("tools/list", "tools"),
    "resources": ("resources/list", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts/list", "prompts"),
}

MGP_OFFER: Final[Mapping[str, Any]] = {"version": MGP_VERSION, "extensions": list(MGP_SECTIONS_BY_NAME)}

_EXTENSIONS: Final[Mapping[str, Any]] = {MGP_EXTENSION_ID: MGP_OFFER, **APPS_OFFER["extensions"]}

# A client that offers this is told everything: MGP and MCPL, in the places where each era has them, and views.
FULL_OFFER: Final[Mapping[str, Any]] = {
    "mgp": MGP_OFFER,
    "experimental": {"mcpl": {"version": "0.4"}},
    "extensions": _EXTENSIONS,
}
# A client that wants to see all tools does not offer MCPL: a host that speaks it sees only those it has enabled.
LISTING_OFFER: Final[Mapping[str, Any]] = {"mgp": MGP_OFFER, "extensions": _EXTENSIONS}


class ServerListing(NamedTuple):
    """An `initialize` result, and the lists of the same server."""

    initialize: Json
    tools: list[Json]
    resources: list[Json]
    templates: list[Json]
    prompts: list[Json]
    notes: tuple[str, ...] = ()
    """What there is to say about the lists: methods that the server lacks."""

    @property
    def info(self) -> Json:
        return self.initialize.get("serverInfo") or {}

    @property
    def capabilities(self) -> Json:
        return self.initialize.get("capabilities") or {}

    @property
    def mgp(self) -> Json:
        """What the server says about MGP; empty if it does not speak it."""
        return _member(self.capabilities, "mgp") or _member(self.capabilities, "extensions", MGP_EXTENSION_ID)

    @property
    def is_searched(self) -> bool:
        """Whether clients may search its tools, and need not read them all."""
        offered = self.mgp.get("extensions")
        return is_array(offered) and "tool_discovery" in offered

    @property
    def mcpl(self) -> Json:
        """What the server says about MCPL; empty if it does not speak it."""
        return _member(self.capabilities, "experimental", "mcpl")


def _member(value: Any, *path: str) -> Json:
    for name in path:
        value = value.get(name) if is_object(value) else None
    return value if is_object(value) else {}


def server_listing(composition: Composition) -> ServerListing | None:
    """What a server tells a local client that offers everything. No lifespan is entered and no code of the author runs.

    None if the author has wrapped a list, because that needs the event loop.
    """
    lists = {member: _pages(composition, *place) for member, place in LISTS.items()}
    if any(items is None for items in lists.values()):
        return None
    unstarted = UnstartedSession(composition, FULL_OFFER)
    unstarted.session.close()
    tools, resources, templates, prompts = (items or [] for items in lists.values())
    return ServerListing(unstarted.initialize, tools, resources, templates, prompts)


def _pages(composition: Composition, method: str, member: str) -> list[Json] | None:
    unstarted, items, cursor = UnstartedSession(composition, LISTING_OFFER), list[Json](), None
    try:
        while True:
            page = unstarted.request(method, {"cursor": cursor} if cursor else {})
            if page is None:
                return None
            items += page[member]
            cursor = page.get("nextCursor")
            if not cursor:
                return items
    finally:
        unstarted.session.close()


class UnstartedSession:
    """A conversation with a server that has not been started."""

    def __init__(self, composition: Composition, offer: Mapping[str, Any]) -> None:
        self._sent: list[OutgoingMessage] = []
        engine: Any = NoLoopYet()
        self.session = Session(composition, engine, self._sent.append, counted=False)
        about = {"protocolVersion": HANDSHAKE_VERSIONS[-1], "clientInfo": {"name": "defserve tooling", "version": "0"}}
        self.initialize = self.request("initialize", {**about, "capabilities": dict(offer)}) or {}

    def request(self, method: str, params: Json) -> Json | None:
        """The result, or None if the answer needs the event loop. Raises PeerError."""
        self._sent.clear()
        if not self.session.feed_bytes(encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})):
            return None
        reply = from_json(self._sent[-1].data)
        if "error" in reply:
            raise PeerError(reply["error"]["message"], code=reply["error"]["code"])
        return reply["result"]
