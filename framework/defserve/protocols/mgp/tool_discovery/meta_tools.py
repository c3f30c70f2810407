"""The methods as tools, for clients that know only MCP. They are called meta-tools, because they are about tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from defserve.base.hidden_characters import remove_hidden
from defserve.binding.arguments.explicit import ExplicitArguments
from defserve.binding.packers import PackedResult
from defserve.binding.results import Returns
from defserve.core.call import Call
from defserve.protocols.mcp.failures import SOURCE_KEY
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.tools.tools import Tool, ToolOptions
from defserve.protocols.mgp.tool_discovery.discovery import ToolDiscovery
from defserve.protocols.mgp.tool_discovery.names import CALL, DISCOVER, EVICT, REQUEST, SESSION
from defserve.protocols.mgp.tool_discovery.reading import MOST_RESULTS, REASONS
from defserve.search.entries import RISKS
from defserve.search.ranking import STRATEGIES
from defserve.wire.jsonvalue import as_list, is_array, is_object
from defserve.wire.messages import Params

TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
MAX_NAME: Final = 64
MAX_LINE: Final = 600
LINE_ENDS: Final = "\r\n\t\v\f\x85\u2028\u2029"

Answer: TypeAlias = Callable[[Call, Params], Awaitable[Params]]


def _object(properties: Params, *required: str) -> Params:
    made: Params = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": list(required)} if required else made


_TEXT: Params = {"type": "string"}
_TEXTS: Params = {"type": "array", "items": _TEXT}
_RISK: Params = {"enum": list(RISKS)}

SCHEMAS: dict[str, Params] = {
    DISCOVER: _object(
        {
            "query": {"type": "string", "description": "What the tool should do"},
            "strategy": {"enum": list(STRATEGIES)},
            "max_results": {"type": "integer", "minimum": 1, "maximum": MOST_RESULTS},
            "filter": _object({"categories": _TEXTS, "risk_level_max": _RISK, "status": _TEXT}),
        },
        "query",
    ),
    REQUEST: _object(
        {
            "reason": {"enum": list(REASONS)},
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
    CALL: _object({"name": _TEXT, "arguments": {"type": "object"}}, "name"),
    SESSION: _object({}),
    EVICT: _object({"tools": _TEXTS, "reason": _TEXT}, "tools"),
}
DESCRIPTIONS = {
    DISCOVER: "Search the tools of this server, which are not all listed. Returns the best with their parameters.",
    REQUEST: "Load tools that you lack for a task into your list. Name each capability.",
    CALL: "Call a tool that you found but that is not in your list.",
    SESSION: "Show which tools are loaded, and what they cost.",
    EVICT: "Take loaded tools out of your list.",
}


class MetaTool(Tool):
    """A tool that shows and does only what its caller may."""

    __slots__ = ()

    protects_itself = True


def meta_tools(section: ToolDiscovery, owner: Any) -> list[MetaTool]:
    """The tools over a section's methods. That of `mgp_tools_call` never runs: see `calling.py`."""

    async def session(call: Call, given: Params) -> Params:
        return section.session(call, given)

    async def evict(call: Call, given: Params) -> Params:
        return section.evict(call, given)

    async def unused(call: Call, given: Params) -> Params:
        raise AssertionError("the name of the tool is replaced before")

    return [
        _made(DISCOVER, section.discover, found_text, owner, changes=False),
        _made(REQUEST, section.request, loaded_text, owner, changes=False),
        _made(CALL, unused, str, owner, changes=True),
        _made(SESSION, session, _session_text, owner, changes=False),
        _made(EVICT, evict, _evicted_text, owner, changes=False),
    ]


def _made(name: str, answer: Answer, text: Callable[[Params], str], owner: Any, *, changes: bool) -> MetaTool:
    async def run(call: Call, **given: Any) -> Any:
        return await answer(call, given)

    def pack(value: Any) -> PackedResult:
        return PackedResult(text(value), {key: each for key, each in value.items() if key != "_meta"})

    options = ToolOptions(
        name=name,
        description=DESCRIPTIONS[name],
        schema=SCHEMAS[name],
        annotations={"destructiveHint": True} if changes else {"readOnlyHint": True},
        meta={SOURCE_KEY: "kernel"},
    )
    arguments = ExplicitArguments.of_our_own(SCHEMAS[name])
    function = Function(run, lambda annotation: _itself if annotation is Call else None, schema=arguments)
    return MetaTool(name, options, function, Returns(pack), owner)


def _itself(call: Call) -> Call:
    return call


# -- what the model reads ------------------------------------------------------------------------------------


def found_text(answer: Params) -> str:
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


def loaded_text(answer: Params) -> str:
    lines = [f"{answer['status']}: {len(answer['tools_loaded'])} loaded", *map(_line, answer["tools_loaded"])]
    return "\n".join([*lines, *(f"- {need['capability']}: {need['reason']}" for need in answer["tools_unavailable"])])


def _session_text(answer: Params) -> str:
    names = ", ".join((*answer["pinned"], *answer["cached"])) or "none"
    return f"{names} ({answer['total_tokens']} of {answer['max_tokens']} tokens)"


def _evicted_text(answer: Params) -> str:
    kept = f"; kept {', '.join(answer['kept'])}" if answer["kept"] else ""
    return f"evicted {', '.join(answer['evicted']) or 'nothing'}{kept}"


def _line(tool: Params) -> str:
    schema = tool["inputSchema"]
    required, properties = as_list(schema.get("required", ())), schema.get("properties")
    arguments = [
        f"{_on_one_line(name, MAX_NAME)}{'' if name in required else '?'}: {_type(about)}"
        for name, about in (properties.items() if is_object(properties) else ())
    ]
    said = _on_one_line(tool["description"], MAX_LINE)
    sentence = said[: said.find(". ") + 1] or said
    line = f"{tool['name']}({', '.join(arguments)[:MAX_LINE]}) [{tool['security']['risk_level']}] {sentence[:200]}"
    return _on_one_line(line, MAX_LINE * 2)


def _on_one_line(text: str, longest: int) -> str:
    """A text of a mounted server in a list with one line for each tool: no line of it may look like another tool."""
    return " ".join(remove_hidden(text[:longest], keep=LINE_ENDS).split())


def _type(schema: Any) -> str:
    if not is_object(schema):
        return "any"
    if is_array(choices := schema.get("enum")):
        return "|".join(_on_one_line(str(choice), 40) for choice in choices[:12])
    said = as_list(schema.get("type", "any"))
    return "|".join(one for one in said[: len(TYPES)] if isinstance(one, str) and one in TYPES) or "any"
