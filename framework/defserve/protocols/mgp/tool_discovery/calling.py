"""Calls of tools in a server that is searched: other spellings, `mgp_tools_call`, and what is loaded by being used."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from defserve.core.call import Call
from defserve.core.extension import Next
from defserve.errors import InvalidParams
from defserve.protocols.mcp.apps.facet import is_for_views
from defserve.protocols.mcp.failures import UnknownTool
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.params import fields, optional_fields, text
from defserve.protocols.mcp.tools.tools import Tools
from defserve.protocols.mgp.agreed import CalledAs
from defserve.protocols.mgp.tool_discovery.conversations import remembers, told
from defserve.protocols.mgp.tool_discovery.discovery import ToolDiscovery
from defserve.protocols.mgp.tool_discovery.levels import Levels
from defserve.protocols.mgp.tool_discovery.names import CALL, SPELLINGS
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params


class NamedCalls:
    """The outermost wrapper of `tools/call`: whatever stands inside sees the tool's own name and arguments."""

    def __init__(self, section: ToolDiscovery, levels: Levels, tools: Tools) -> None:
        self._section, self._levels, self._tools = section, levels, tools

    def __call__(self, call: Call, params: Params, following: Next) -> Awaitable[Any]:
        """Not a coroutine of its own: every call of a tool would pay for it."""
        name = params.get("name")
        # What other calls make is not what the model works with: its list stays as it is.
        is_learnt = isinstance(name, str) and call.outer is None and not self._levels.never_searched
        if is_learnt or not isinstance(name, str) or name in SPELLINGS:
            return self._named(call, params, following, is_learnt)
        return following(call, params)

    async def _named(self, call: Call, params: Params, following: Next, is_learnt: bool) -> Any:
        meant = named(params)
        if meant is not params:
            self._refuse(call, meant["name"])
            # Who asks its user does so by what its list says of the name that it calls.
            call.local(CalledAs).item = self._tools.registry.get(params["name"])
            # Seals, audits and grants read the call's params, and they too are about the tool itself.
            call.params = params = meant
        if not is_learnt:
            return await following(call, params)
        name: str = params["name"]
        loaded = self._section.loaded(call)
        before = frozenset(loaded.names)
        loaded.begin(name)
        try:
            result = await following(call, params)
        finally:
            loaded.end(name)
        if (tool := call.subject) is not None and tool.protects_itself:
            before = frozenset(loaded.names)  # whatever the tool loaded or evicted, it has told
        elif tool is not None and remembers(call):
            self._section.used(loaded, tool.name)
        more = told(call, loaded, before)
        if more and is_object(result):
            result["_meta"] = {**(result.get("_meta") or {}), **more}
        return result

    def _refuse(self, call: Call, name: str) -> None:
        """Raises InvalidParams for a tool that only its own name may call: hosts and proxies judge by that name.

        A host keeps tools of views from its model. A client repeats some arguments as headers, and has sent none.
        """
        if (tool := self._tools.registry.get(name)) is not None and is_for_views(tool):
            raise UnknownTool(f"Unknown tool: {name}", data={"tool": name})
        if call.envelope is not None and dialect_of(call).stateless and self._tools.param_headers(name):
            raise InvalidParams(f"Invalid params: {name} has arguments that go into headers; call it by its own name")


def named(params: Params) -> Params:
    """The params of the call that is meant. Raises InvalidParams for `mgp_tools_call` of itself."""
    name = params.get("name")
    known = SPELLINGS.get(name) if isinstance(name, str) else None
    if known is None:
        return params
    if known != CALL:
        return params if known == name else {**params, "name": known}
    given = fields(params, "arguments")
    if unknown := given.keys() - {"name", "arguments"}:
        raise InvalidParams(f"Invalid params: {CALL} takes name and arguments, not {sorted(unknown)[0][:64]!r}")
    inner, arguments = text(given, "name"), optional_fields(given, "arguments")
    meant = SPELLINGS.get(inner, inner)
    if meant == CALL:
        raise InvalidParams(f"Invalid params: {CALL} cannot call itself; name the tool")
    outer = {key: value for key, value in params.items() if key != "arguments"}
    return {**outer, "name": meant} | ({} if arguments is None else {"arguments": arguments})
