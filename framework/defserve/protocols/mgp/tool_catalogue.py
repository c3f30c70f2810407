"""The tools that can be found, as the section sees them; and the catalogue of a server's own registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from defserve.core.call import Call
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.protocols.mcp.app_policy import is_view_only
from defserve.protocols.mcp.tools import Tool
from defserve.protocols.mgp.terms import derive_security, get_tool_security
from defserve.search.entries import (
    ToolEntry,
    derive_categories,
    estimate_tokens,
    extract_parameter_texts,
    normalize_labels,
)

if TYPE_CHECKING:
    from defserve.core.registry import Registry


DISCOVER_METHOD = "mgp/tools/discover"
TOOL_DIGEST_BYTES = 6


def digest_tool_name(name: str) -> bytes:
    """A short stand-in for a tool's name."""
    return blake2b(name.encode(), digest_size=TOOL_DIGEST_BYTES).digest()


class SearchableToolCatalogue:
    """The tools in a server's registry, mounted ones included. A tool is read once and again when it is replaced.

    A caller is shown nothing that it may not see.
    """

    def __init__(
        self,
        tools: Registry[Tool],
        server_id: str,
        describe: Callable[[Tool], Params],
        missing: Callable[[Call, Sequence[str], str], Mapping[str, str]],
    ) -> None:
        self._tools, self._server_id = tools, server_id
        self._describe, self._missing = describe, missing
        self._entries: Mapping[Tool, ToolEntry] = {}
        self._by_name: Mapping[str, Tool] = {}
        self._by_digest: Mapping[bytes, ToolEntry] = {}
        self._tokens = 0
        self._version = -1

    def visible(self, call: Call) -> Sequence[ToolEntry]:
        """The tools that a caller may see, in the order of the list, without the meta-tools."""
        composition, asker = call.session.composition, recast_call_as_search(call)
        return [entry for tool, entry in self._refresh_entries().items() if composition.visible(asker, tool)]

    def list_all_tools(self) -> Sequence[ToolEntry]:
        """Every tool but the meta-tools, for the operator of the server."""
        return list(self._refresh_entries().values())

    def describe_tool(self, entry: ToolEntry) -> Params | None:
        """What a search tells of a tool: its name, description, schema and security. None if it is gone."""
        entries, tool = self._refresh_entries(), self._by_name.get(entry.name)
        if tool is None or entries.get(tool) is not entry:
            return None
        described = self._describe(tool)
        found: Params = {
            "name": entry.name,
            "server_id": entry.server_id,
            "description": tool.description,
            "inputSchema": _schema(described),
            "security": _security(tool),
        }
        for optional in ("title", "outputSchema", "annotations"):
            if optional in described:
                found[optional] = described[optional]
        return found if entry.status == "connected" else {**found, "status": entry.status}

    def find_missing_permissions(self, call: Call, entry: ToolEntry) -> Mapping[str, str]:
        """The permissions that the tool needs and this caller does not have, each `denied` or `deferred`."""
        return self._missing(call, entry.permissions, entry.server_id) if entry.permissions else {}

    def find_by_name(self, name: str) -> ToolEntry | None:
        entries, tool = self._refresh_entries(), self._by_name.get(name)
        return entries.get(tool) if tool is not None else None

    def find_by_digest(self, digest: bytes) -> ToolEntry | None:
        """The tool with this digest of its name, if there is one."""
        self._refresh_entries()
        return self._by_digest.get(digest)

    @property
    def tokens(self) -> int:
        """What a list of all tools costs."""
        self._refresh_entries()
        return self._tokens

    def _refresh_entries(self) -> Mapping[Tool, ToolEntry]:
        version = self._tools.version
        if version != self._version:
            known = self._entries
            tools = [
                tool
                for tool in self._tools
                if not (tool.protects_itself or tool.name in META_TOOL_ALIASES or is_view_only(tool))
            ]
            entries = {tool: self._current(tool, known.get(tool)) for tool in tools}
            self._by_name = {tool.name: tool for tool in tools}
            self._by_digest = {digest_tool_name(entry.name): entry for entry in entries.values()}
            self._tokens = sum(entry.tokens for entry in entries.values())
            self._entries, self._version = entries, version
        return self._entries

    def _current(self, tool: Tool, known: ToolEntry | None) -> ToolEntry:
        if known is None:
            return self._entry(tool)
        status = _status(tool)
        return known if known.status == status else replace(known, status=status)

    def _entry(self, tool: Tool) -> ToolEntry:
        described, options = self._describe(tool), tool.options
        # A tool of another server names that one; one that was declared here names the server it was declared on.
        server_id: str = tool.server_id or getattr(tool.owner, "name", None) or self._server_id
        security = _security(tool)
        # A tool that declares nothing is not safe, whatever it says of itself.
        only_says_safe = security["risk_level"] == "safe" and get_tool_security(tool) is None
        return ToolEntry(
            tool_id=f"{server_id}.{tool.name}",
            server_id=server_id,
            name=tool.name,
            title=options.title or "",
            description=tool.description,
            categories=derive_categories(server_id, options.tags),
            keywords=normalize_labels(options.keywords),
            parameters=extract_parameter_texts(_schema(described)),
            risk="moderate" if only_says_safe else security["risk_level"],
            permissions=tuple(security["permissions_required"]),
            tokens=estimate_tokens(len(to_json(described))),
            status=_status(tool),
        )


def recast_call_as_search(call: Call) -> Call:
    """The call as a search, which is what decides who sees what: a call of a tool finds even those it may not use."""
    if call.method == DISCOVER_METHOD:
        return call
    asker = Call(call.session, call.id, DISCOVER_METHOD, call.params, call.raw, call.terms)
    asker.identity = call.identity
    return asker


def _schema(described: Params) -> dict[str, Any]:
    """The input schema of a listed tool. Another server may list anything."""
    found = described.get("inputSchema")
    return found if is_object(found) else {"type": "object", "properties": {}}


def _status(tool: Tool) -> str:
    """The state of the server behind a tool; our own are always connected."""
    return "connected" if tool.backend is None else tool.backend.state


def _security(tool: Tool) -> dict[str, Any]:
    found = get_tool_security(tool)
    return found.security.to_wire() if found is not None else derive_security(tool.options.annotations)


# -- The names of the meta-tools, in every spelling that is taken.


DISCOVER_TOOL, REQUEST_TOOL, CALL_TOOL = "mgp_tools_discover", "mgp_tools_request", "mgp_tools_call"
SESSION_TOOL, EVICT_TOOL = "mgp_tools_session", "mgp_tools_evict"

# Spelling → the name in lists, which has no dots and slashes because some models take none.
META_TOOL_ALIASES = {
    name.replace("_", mark): name
    for name in (DISCOVER_TOOL, REQUEST_TOOL, CALL_TOOL, SESSION_TOOL, EVICT_TOOL)
    for mark in "_./"
} | {
    "mgp/tools/session/evict": EVICT_TOOL,
    "mgp.tools.session.evict": EVICT_TOOL,
}
