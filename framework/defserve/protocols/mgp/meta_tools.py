"""What `Server(search=…)` adds: the methods of §16 as tools, for clients that know only MCP, and calls through them.

A call by a meta-tool is the call of the tool itself: its name is replaced before anything looks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from defserve.base.hidden_characters import remove_hidden_characters
from defserve.base.redaction import get_logger
from defserve.binding.results import PackedResult
from defserve.core.call import Call
from defserve.core.extension import Handler, Next
from defserve.core.json_values import as_list, is_array, is_object, read_required_names
from defserve.core.messages import Params
from defserve.errors import InvalidParams, UsageError, did_you_mean
from defserve.protocols.mcp.app_policy import is_view_only
from defserve.protocols.mcp.errors import UnknownTool, read_object_param, read_optional_object_param, read_text_param
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mcp.tools import Tools
from defserve.protocols.mgp.server_discovery import MethodTool, MethodToolSpec, make_method_tool
from defserve.protocols.mgp.terms import RequestedToolMarker
from defserve.protocols.mgp.tool_catalogue import (
    CALL_TOOL,
    DISCOVER_TOOL,
    EVICT_TOOL,
    META_TOOL_ALIASES,
    REQUEST_TOOL,
    SESSION_TOOL,
    SearchableToolCatalogue,
)
from defserve.protocols.mgp.tool_discovery import (
    MAX_SEARCH_RESULTS,
    TOOL_REQUEST_REASONS,
    ToolDiscovery,
    ToolListShortener,
    can_remember_loaded_tools,
    report_loaded_tools,
)
from defserve.search.entries import RISK_LEVELS
from defserve.search.ranking import SEARCH_STRATEGIES, Search

if TYPE_CHECKING:
    from defserve.protocols.mgp.audit import AuditTrail


class ToolSearch:
    """What `Server(search=…)` adds: the section's methods, an extension for the list, and a wrapper for calls."""

    def __init__(
        self, given: Any, tools: Tools, catalogue: SearchableToolCatalogue, audit: Callable[[], AuditTrail], owner: Any
    ) -> None:
        self._tools = tools
        self.section = ToolDiscovery(Search.of(given), catalogue, audit)
        self.list = ToolListShortener(self.section)
        self.calls = NamedCalls(self.section, tools)
        for tool in meta_tools(self.section, owner):
            tools.registry.add(tool.name, tool, where=tool.where)

    def check(self, *, is_whole: bool) -> None:
        """Raises UsageError if the pinned tools that are known cost more than is reserved for them.

        If all tools are there (`is_whole`), a pinned name that is not among them is warned about: one may still come.
        """
        options = self.section.options
        for name in options.pinned if is_whole else ():
            if self.section.catalogue.find_by_name(name) is None:
                fix = did_you_mean(name, (each for each, _ in self._tools.registry.items()), "check Search(pinned=…)")
                get_logger().warning("there is no tool %r to be pinned\n  fix: %s", name, fix)
        known = [self.section.catalogue.find_by_name(name) for name in options.pinned]
        tokens = {entry.name: entry.tokens for entry in known if entry is not None}
        reserve = options.budget.pinned_reserve
        if sum(tokens.values()) > reserve:
            costs = ", ".join(f"{name} {cost}" for name, cost in tokens.items())
            raise UsageError(
                f"the pinned tools cost {sum(tokens.values())} tokens ({costs}), more than pinned_reserve={reserve}",
                fix="pin fewer tools, or give Search(budget=ToolBudget(pinned_reserve=…, max_tokens=…))",
            )


# -- Calls of tools in a server that is searched: other spellings, `mgp_tools_call`, and what is loaded by being used.


class NamedCalls:
    """The outermost wrapper of `tools/call`: whatever stands inside sees the tool's own name and arguments."""

    def __init__(self, section: ToolDiscovery, tools: Tools) -> None:
        self._section, self._tools = section, tools

    def __call__(self, call: Call, params: Params, following: Next) -> Awaitable[Any]:
        """Not a coroutine of its own: every call of a tool would pay for it."""
        name = params.get("name")
        # What other calls make is not what the model works with: its list stays as it is.
        is_learnt = isinstance(name, str) and call.outer is None and not self._section.is_list_always_complete
        if is_learnt or not isinstance(name, str) or name in META_TOOL_ALIASES:
            return self._run_named_call(call, params, following, is_learnt)
        return following(call, params)

    async def _run_named_call(self, call: Call, params: Params, following: Next, is_learnt: bool) -> Any:
        meant = resolve_named_call(params)
        if meant is not params:
            self._refuse(call, meant["name"])
            # Who asks its user does so by what its list says of the name that it calls.
            call.local(RequestedToolMarker).item = self._tools.registry.get(params["name"])
            # Seals, audits and grants read the call's params, and they too are about the tool itself.
            call.params = params = meant
        if not is_learnt:
            return await following(call, params)
        name: str = params["name"]
        loaded = self._section.get_loaded_tools(call)
        before = frozenset(loaded.names)
        loaded.begin_call(name)
        try:
            result = await following(call, params)
        finally:
            loaded.end_call(name)
        if (tool := call.subject) is not None and tool.protects_itself:
            before = frozenset(loaded.names)  # whatever the tool loaded or evicted, it has told
        elif tool is not None and can_remember_loaded_tools(call):
            self._section.mark_used(loaded, tool.name)
        more = report_loaded_tools(call, loaded, before)
        if more and is_object(result):
            result["_meta"] = {**(result.get("_meta") or {}), **more}
        return result

    def _refuse(self, call: Call, name: str) -> None:
        """Raises InvalidParams for a tool that only its own name may call: hosts and proxies judge by that name.

        A host keeps tools of views from its model. A client repeats some arguments as headers, and has sent none.
        """
        if (tool := self._tools.registry.get(name)) is not None and is_view_only(tool):
            raise UnknownTool(f"Unknown tool: {name}", data={"tool": name})
        if call.envelope is not None and get_dialect(call).stateless and self._tools.param_headers(name):
            raise InvalidParams(f"Invalid params: {name} has arguments that go into headers; call it by its own name")


def resolve_named_call(params: Params) -> Params:
    """The params of the call that is meant. Raises InvalidParams for `mgp_tools_call` of itself."""
    name = params.get("name")
    known = META_TOOL_ALIASES.get(name) if isinstance(name, str) else None
    if known is None:
        return params
    if known != CALL_TOOL:
        return params if known == name else {**params, "name": known}
    given = read_object_param(params, "arguments")
    if unknown := given.keys() - {"name", "arguments"}:
        raise InvalidParams(f"Invalid params: {CALL_TOOL} takes name and arguments, not {sorted(unknown)[0][:64]!r}")
    inner, arguments = read_text_param(given, "name"), read_optional_object_param(given, "arguments")
    meant = META_TOOL_ALIASES.get(inner, inner)
    if meant == CALL_TOOL:
        raise InvalidParams(f"Invalid params: {CALL_TOOL} cannot call itself; name the tool")
    outer = {key: value for key, value in params.items() if key != "arguments"}
    return {**outer, "name": meant} | ({} if arguments is None else {"arguments": arguments})


# -- The methods as tools, for clients that know only MCP. They are called meta-tools, because they are about tools.


TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
MAX_NAME: Final = 64
MAX_LINE: Final = 600
LINE_ENDS: Final = "\r\n\t\v\f\x85\u2028\u2029"


def _object(properties: Params, *required: str) -> Params:
    made: Params = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": list(required)} if required else made


_TEXT: Params = {"type": "string"}
_TEXTS: Params = {"type": "array", "items": _TEXT}
_RISK: Params = {"enum": list(RISK_LEVELS)}

SCHEMAS: dict[str, Params] = {
    DISCOVER_TOOL: _object(
        {
            "query": {"type": "string", "description": "What the tool should do"},
            "strategy": {"enum": list(SEARCH_STRATEGIES)},
            "max_results": {"type": "integer", "minimum": 1, "maximum": MAX_SEARCH_RESULTS},
            "filter": _object({"categories": _TEXTS, "risk_level_max": _RISK, "status": _TEXT}),
        },
        "query",
    ),
    REQUEST_TOOL: _object(
        {
            "reason": {"enum": list(TOOL_REQUEST_REASONS)},
            "context": {"type": "string", "description": "The task at hand"},
            "requirements": _object(
                {
                    "capabilities": _TEXTS,
                    "input_types": _TEXTS,
                    "output_types": _TEXTS,
                    "preferred_risk_level": _RISK,
                }
            ),
            "task_trace_id": _TEXT,
        },
        "reason",
        "context",
        "requirements",
    ),
    CALL_TOOL: _object({"name": _TEXT, "arguments": {"type": "object"}}, "name"),
    SESSION_TOOL: _object({}),
    EVICT_TOOL: _object({"tools": _TEXTS, "reason": _TEXT}, "tools"),
}
DESCRIPTIONS = {
    DISCOVER_TOOL: "Search the tools of this server, which are not all listed. Returns the best with their parameters.",
    REQUEST_TOOL: "Load tools that you lack for a task into your list. Name each capability.",
    CALL_TOOL: "Call a tool that you found but that is not in your list.",
    SESSION_TOOL: "Show which tools are loaded, and what they cost.",
    EVICT_TOOL: "Take loaded tools out of your list.",
}


class MetaTool(MethodTool):
    """A tool that shows and does only what its caller may."""

    __slots__ = ()

    protects_itself = True


def meta_tools(section: ToolDiscovery, owner: Any) -> list[MetaTool]:
    """The tools over a section's methods. That of `mgp_tools_call` never runs: see `NamedCalls`."""

    def fail_unreachable(call: Call, given: Params) -> Params:
        raise AssertionError("the name of the tool is replaced before")

    return [
        _make_meta_tool(DISCOVER_TOOL, section.discover, format_matches, owner, changes=False),
        _make_meta_tool(REQUEST_TOOL, section.request, format_loaded_tools, owner, changes=False),
        _make_meta_tool(CALL_TOOL, fail_unreachable, str, owner, changes=True),
        _make_meta_tool(SESSION_TOOL, section.describe_session_tools, _session_text, owner, changes=False),
        _make_meta_tool(EVICT_TOOL, section.evict, _format_evicted_tools, owner, changes=False),
    ]


def _make_meta_tool(
    name: str, answer: Handler, text: Callable[[Params], str], owner: Any, *, changes: bool
) -> MetaTool:
    def pack(value: Any) -> PackedResult:
        return PackedResult(text(value), {key: each for key, each in value.items() if key != "_meta"})

    spec = MethodToolSpec(DESCRIPTIONS[name], SCHEMAS[name], changes)
    return make_method_tool(MetaTool, name, spec, answer, owner, pack)


# -- what the model reads ------------------------------------------------------------------------------------
def format_matches(answer: Params) -> str:
    """One line for each tool: its name, parameters and first sentence. Schemas would cost three times as much."""
    lines = [_line(tool) for tool in answer["tools"]]
    if not lines:
        lines = [f"No tool fits. There are {answer['total_available']}; try other words."]
    if cut := answer.get("results_cut"):
        lines.append(f"({cut} more did not fit: ask for fewer, or narrow the search.)")
    if answer.get("weak"):
        lines.append("(None of these fits well.)")
    if "fallback_strategy" in answer:
        lines.append(f"(Searched by {answer['fallback_strategy']}.)")
    return "\n".join(lines)


def format_loaded_tools(answer: Params) -> str:
    lines = [f"{answer['status']}: {len(answer['tools_loaded'])} loaded", *map(_line, answer["tools_loaded"])]
    return "\n".join([*lines, *(f"- {need['capability']}: {need['reason']}" for need in answer["tools_unavailable"])])


def _session_text(answer: Params) -> str:
    names = ", ".join((*answer["pinned"], *answer["cached"])) or "none"
    return f"{names} ({answer['total_tokens']} of {answer['max_tokens']} tokens)"


def _format_evicted_tools(answer: Params) -> str:
    kept = f"; kept {', '.join(answer['kept'])}" if answer["kept"] else ""
    return f"evicted {', '.join(answer['evicted']) or 'nothing'}{kept}"


def _line(tool: Params) -> str:
    schema = tool["inputSchema"]
    required, properties = read_required_names(schema), schema.get("properties")
    # More than that many, of two characters each, do not fit on the line.
    shown = islice(properties.items(), MAX_LINE // 2) if is_object(properties) else ()
    arguments = [
        f"{_on_one_line(name, MAX_NAME)}{'' if name in required else '?'}: {_type(about)}" for name, about in shown
    ]
    said = _on_one_line(tool["description"], MAX_LINE)
    sentence = said[: said.find(". ") + 1] or said
    line = f"{tool['name']}({', '.join(arguments)[:MAX_LINE]}) [{tool['security']['risk_level']}] {sentence[:200]}"
    return _on_one_line(line, MAX_LINE * 2)


def _on_one_line(text: str, longest: int) -> str:
    """A text of a mounted server in a list with one line for each tool: no line of it may look like another tool."""
    return " ".join(remove_hidden_characters(text[:longest], keep=LINE_ENDS).split())


def _type(schema: Any) -> str:
    if not is_object(schema):
        return "any"
    if is_array(choices := schema.get("enum")):
        return "|".join(_on_one_line(str(choice), 40) for choice in choices[:12])
    said = as_list(schema.get("type", "any"))
    return "|".join(one for one in said[: len(TYPES)] if isinstance(one, str) and one in TYPES) or "any"
