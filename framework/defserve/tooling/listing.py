"""What a server says about itself and what it lists, in wire form: asked for, or read from a file, and checked.

A server in this process is not started for it. Below: documents made of a listing, for any server that answers
`tools/list`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from defserve.client.client import Client
from defserve.client.known_clients import check_server_id
from defserve.client.replies import ListedItems, list_if_supported
from defserve.core.composition import Composition
from defserve.core.engine import NoLoopEngine
from defserve.core.extension import OutgoingMessage
from defserve.core.json_values import find_limit_violation, is_array, is_mapping, is_object
from defserve.core.messages import encode
from defserve.core.session import Session
from defserve.errors import PeerError, UsageError
from defserve.protocols.mcp.app_policy import APPS_CAPABILITY as APPS_OFFER
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS
from defserve.protocols.mgp.terms import MGP_EXTENSION_ID, MGP_SECTIONS_BY_NAME, MGP_VERSION

Json = dict[str, Any]

SECURITY_KEY: Final = "dev.defserve/security"
CHARACTERS_PER_TOKEN: Final = 4

# Field of `ServerListing`, in its order → method, and the member of its result.
LIST_WIRE_NAMES: Final = {
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


def estimate_definition_tokens(tool: Mapping[str, Any]) -> int:
    """An estimate of what a tool costs: a quarter of the characters that hosts give to models."""
    given = {member: tool[member] for member in ("name", "description", "inputSchema") if member in tool}
    return -(-len(json.dumps(given, ensure_ascii=False, separators=(",", ":"))) // CHARACTERS_PER_TOKEN)


def get_security_block(wire: Mapping[str, Any]) -> Mapping[str, Any]:
    """The security block of a listed tool, wherever its server puts it; empty if it has none."""
    meta: Any = wire.get("_meta") or {}
    found: Any = wire.get("security") or meta.get(SECURITY_KEY)
    return found if is_mapping(found) else {}


def server_listing(composition: Composition) -> ServerListing | None:
    """What a server tells a local client that offers everything. No lifespan is entered and no code of the author runs.

    None if the author has wrapped a list, because that needs the event loop.
    """
    lists = {member: _pages(composition, *place) for member, place in LIST_WIRE_NAMES.items()}
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
        engine: Any = NoLoopEngine()
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


# -- The listing of a server that somebody is connected to.


# heading -> (the capability that it needs, its method, how a client asks for it)
LIST_FETCHERS: Final[dict[str, tuple[str, str, Callable[[Client], Any]]]] = {
    "tools": ("tools", "tools/list", Client.tools),
    "resources": ("resources", "resources/list", Client.resources),
    "templates": ("resources", "resources/templates/list", Client.templates),
    "prompts": ("prompts", "prompts/list", Client.prompts),
}


async def fetch_listing(client: Client) -> ServerListing:
    """What the server of this client says, and all of its lists. Raises PeerError."""
    notes: list[str] = []
    lists = await fetch_lists(client, notes)
    return ServerListing(make_initialize_result(client), **lists, notes=tuple(notes))


async def fetch_lists(client: Client, notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    """All lists of a server, by their heading; empty where it has no such capability. Raises PeerError.

    Where it has the capability and not the method, that is added to the `notes`.
    """
    lists: dict[str, list[dict[str, Any]]] = {}
    for kind, (needed, method, verb) in LIST_FETCHERS.items():
        items, note = (
            await list_if_supported(method, verb(client)) if needed in client.capabilities else ListedItems([])
        )
        lists[kind] = check_listed_items(kind, items)
        if note:
            notes.append(note)
    return lists


def make_initialize_result(client: Client) -> dict[str, Any]:
    """What the server said about itself, in the form of an `initialize` result."""
    result: dict[str, Any] = {
        "protocolVersion": client.version,
        "capabilities": client.capabilities,
        "serverInfo": client.server_info,
    }
    return result | ({"instructions": client.instructions} if client.instructions is not None else {})


# -- A listing that was saved: what `inspect --json` and `list --json` print, or the result of `tools/list`.


MAX_SNAPSHOT_BYTES: Final = 16 * 1024 * 1024
MAX_SNAPSHOT_DEPTH, MAX_SNAPSHOT_KEYS = 64, 10_000
SNAPSHOT_FIX: Final = "save one with: defserve inspect server.py --json > server.json"


def parse_snapshot(data: bytes, name: str) -> ServerListing:
    """The listing that a file called `name` holds. Raises UsageError if it holds none."""
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise UsageError(f"{name} has more than {MAX_SNAPSHOT_BYTES >> 20} MiB", fix=SNAPSHOT_FIX)
    try:
        found = from_json(data)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}", fix=SNAPSHOT_FIX) from None
    if problem := find_limit_violation(found, MAX_SNAPSHOT_DEPTH, MAX_SNAPSHOT_KEYS):
        raise UsageError(f"{name} cannot be used: {problem}", fix=SNAPSHOT_FIX)
    if not is_object(found) or not is_array(found.get("tools")):
        raise UsageError(f"{name} holds no list of tools", fix=SNAPSHOT_FIX)
    opening = found.get("initialize")
    if not is_object(opening):
        about = {"protocolVersion": "version", "serverInfo": "server", "instructions": "instructions"}
        opening = {member: found[told] for member, told in about.items() if found.get(told) is not None}
    for member in ("capabilities", "serverInfo"):
        if not is_object(opening.get(member, {})):
            raise UsageError(f"{name} cannot be used: {member} is not an object", fix=SNAPSHOT_FIX)
    lists: dict[str, list[Json]] = {}
    for field, (_, member) in LIST_WIRE_NAMES.items():
        items = found.get(member, found.get(field, []))
        if not is_array(items) or not all(map(is_object, items)):
            raise UsageError(f"{name} cannot be used: {member} is not a list of objects", fix=SNAPSHOT_FIX)
        try:
            lists[field] = check_listed_items(field, list(items))
        except PeerError as error:
            raise UsageError(f"{name} cannot be used: {error.message}", fix=SNAPSHOT_FIX) from None
    tools, resources, templates, prompts = lists.values()
    return ServerListing(opening, tools, resources, templates, prompts)


def to_snapshot(listed: ServerListing) -> Json:
    """A listing as it came over the wire: `initialize`, and each list under its wire name."""
    return {"initialize": listed.initialize} | {
        member: getattr(listed, field) for field, (_, member) in LIST_WIRE_NAMES.items()
    }


# -- Whether the items of a server's lists have the types that a command reads. A wrong one is named, not met later.


SHOWN: Final = 80
TYPES: Final[Mapping[type, str]] = {str: "a string", dict: "an object", list: "a list"}

# member -> (its type, whether null counts as none)
MEMBERS: Final[Mapping[str, tuple[type, bool]]] = {
    "name": (str, False),
    "uri": (str, False),
    "uriTemplate": (str, False),
    "title": (str, True),
    "description": (str, True),
    "mimeType": (str, True),
    "inputSchema": (dict, False),
    "outputSchema": (dict, True),
    "annotations": (dict, True),
    "_meta": (dict, True),
    "arguments": (list, True),
}
NAMED: Final[Mapping[str, str]] = {"tools": "name", "prompts": "name", "resources": "uri", "templates": "uriTemplate"}


def check_listed_items(kind: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a list, unchanged. Raises PeerError for one that has a member of a wrong type."""
    for number, item in enumerate(items):
        if (problem := next(iter(_problems(kind, item)), None)) is not None:
            name = item.get(NAMED[kind])
            which = repr(name[:SHOWN]) if isinstance(name, str) else f"number {number + 1}"
            raise PeerError(f"the server's list of {kind} is wrong: in {which}, {problem}")
    return items


def _problems(kind: str, item: dict[str, Any]) -> Iterable[str]:
    if NAMED[kind] not in item:
        yield f"{NAMED[kind]} is missing"
    for member, (type, is_optional) in MEMBERS.items():
        value = item.get(member)
        if member in item and not (isinstance(value, type) or (is_optional and value is None)):
            yield f"{member} is not {TYPES[type]}"
    schema = item.get("inputSchema")
    if is_object(schema):
        yield from _schema_problems(schema)
    for argument in item.get("arguments") or ():
        if not (is_object(argument) and isinstance(argument.get("name"), str)):
            yield "an argument has no name"


def _schema_problems(schema: dict[str, Any]) -> Iterable[str]:
    properties, required = schema.get("properties"), schema.get("required")
    if properties is not None and not is_object(properties):
        yield "properties of inputSchema is not an object"
    elif not all(is_object(one) or isinstance(one, bool) for one in (properties or {}).values()):
        yield "a property of inputSchema is not a schema"
    if required is not None and not (is_array(required) and all(isinstance(name, str) for name in required)):
        yield "required of inputSchema is not a list of names"


# -- Documents about a server, made from what it lists: a catalogue, JSON Schemas, an entry of `mgp.toml`.


def catalogue(
    info: Mapping[str, Any], tools: Iterable[Mapping[str, Any]], *, author: str = "", generated_at: str | None = None
) -> dict[str, Any]:
    """The catalogue of a server with this `info` and these `tools`.

    A tool's `meta={"category": …, "version": …, "deprecated": …, "author": …}` replaces the defaults: its first tag,
    the server's version, whether it is tagged `deprecated`, and `author`.
    """
    version = str(info.get("version") or "0")
    return {
        "name": str(info.get("name") or ""),
        "version": version,
        "generated_at": generated_at or now(),
        "tools": [_tool(tool, version, author or str(info.get("name") or "")) for tool in tools],
    }


def _tool(tool: Mapping[str, Any], version: str, author: str) -> dict[str, Any]:
    from defserve.server.openapi_document import get_input_schema, get_tool_tags, make_examples

    tags, schema = get_tool_tags(tool), get_input_schema(tool)
    return {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "inputSchema": schema,
        "tags": tags,
        "examples": make_examples(schema),
        "metadata": {
            "category": tags[0] if tags else "general",
            "version": version,
            "deprecated": "deprecated" in tags,
            "author": author,
            **_from_meta(tool),
        },
    }


def _from_meta(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the author's `meta=` that belong in a catalogue."""
    meta: Any = tool.get("_meta") or {}
    wanted = {"category": str, "version": str, "deprecated": bool, "author": str}
    return {name: meta[name] for name, kind in wanted.items() if isinstance(meta.get(name), kind)}


def now() -> str:
    """The time in RFC 3339. `SOURCE_DATE_EPOCH` fixes it for reproducible builds."""
    from datetime import UTC, datetime

    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(fixed), UTC) if fixed.isdecimal() else datetime.now(UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def collect_tool_schemas(tools: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON Schemas of every tool: `input`, and `output` if it has one."""
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        tool["name"]: {
            side: {**draft, **tool[member]}
            for side, member in (("input", "inputSchema"), ("output", "outputSchema"))
            if is_mapping(tool.get(member))
        }
        for tool in tools
    }


# -- The entry of a server in `mgp.toml` (MGP §15.2): what a kernel knows about it before it connects.


def format_mgp_entry(
    info: Mapping[str, Any],
    mgp: Mapping[str, Any],
    *,
    command: Sequence[str] = (),
    url: str = "",
    env: Sequence[str] = (),
) -> str:
    """The entry as TOML. `mgp` is what the server says at `initialize`; if it is empty, the section is left out.

    `env` names the variables that the server needs. The kernel fills them in. Raises UsageError for a server or a
    variable that cannot have its name there.
    """
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env {name[:60]!r} is not the name of a variable", fix="write --env NAME")
    sections: dict[str, Mapping[str, Any]] = {
        "[[servers]]": {
            "id": check_server_id(str(mgp.get("server_id") or info.get("name") or "server")),
            **({"url": url} if url else {"command": command[0], "args": list(command[1:])}),
            "transport": "http" if url else "stdio",
        },
        "[servers.mgp]": {
            name: mgp[name] for name in ("extensions", "permissions_required", "trust_level") if name in mgp
        },
        "[servers.env]": {name: f"${{{name}}}" for name in env},
    }
    written = [
        "\n".join([heading, *(f"{name} = {format_toml_value(value)}" for name, value in members.items())])
        for heading, members in sections.items()
        if members
    ]
    return "\n\n".join(written) + "\n"


def format_toml_value(value: Any) -> str:
    """A text, or a list of texts, as TOML. A text may also stand before the `=`."""
    if is_array(value):
        return f"[{', '.join(map(format_toml_value, value))}]"
    # A JSON string is a TOML string, except for the one control character that JSON does not escape.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
