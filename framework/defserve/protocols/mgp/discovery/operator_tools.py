"""The methods as tools, for operators whose clients know only MCP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from defserve.binding.arguments.explicit import ExplicitArguments
from defserve.binding.packers import PackedResult
from defserve.binding.results import Returns
from defserve.core.call import Call
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.tools.tools import Tool, ToolOptions
from defserve.protocols.mgp.discovery.discovery import DiscoverySection
from defserve.protocols.mgp.discovery.reading import LEVELS, STATUSES, TRANSPORTS
from defserve.wire.messages import Params

Answer: TypeAlias = Callable[[Call, Params], Awaitable[Params]]
Told: TypeAlias = Callable[[Params], str]

SERVERS, REGISTER, DEREGISTER = "mgp_servers", "mgp_server_register", "mgp_server_deregister"
_TEXT: Final[Params] = {"type": "string"}
_TEXTS: Final[Params] = {"type": "array", "items": _TEXT}


def object_schema(properties: Params, *required: str) -> Params:
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": list(required)}


class OperatorToolSpec(NamedTuple):
    """What a tool does, its input, and whether it changes something."""

    description: str
    schema: Params
    changes: bool


TOOLS: Final[dict[str, OperatorToolSpec]] = {
    SERVERS: OperatorToolSpec(
        "List the servers behind this one, their states and their tools.",
        object_schema(
            {"filter": object_schema({"extensions": _TEXTS, "permissions": _TEXTS, "status": {"enum": list(STATUSES)}})}
        ),
        False,
    ),
    REGISTER: OperatorToolSpec(
        "Add a server while this one runs: a command on the operator's list, or an address.",
        object_schema(
            {
                "id": _TEXT,
                "command": _TEXT,
                "args": _TEXTS,
                "url": _TEXT,
                "transport": {"enum": list(TRANSPORTS)},
                "mgp": object_schema(
                    {"extensions": _TEXTS, "permissions_required": _TEXTS, "trust_level": {"enum": list(LEVELS)}}
                ),
                "justification": _TEXT,
                "keep": {"type": "boolean", "description": "Keep it when this conversation ends"},
            },
            "id",
        ),
        True,
    ),
    DEREGISTER: OperatorToolSpec(
        "End a server that was added so.", object_schema({"id": _TEXT, "reason": _TEXT}, "id"), True
    ),
}


class OperatorTool(Tool):
    """A tool that checks itself whether its caller is an operator."""

    __slots__ = ()


def operator_tools(section: DiscoverySection, owner: Any) -> list[OperatorTool]:
    answers: dict[str, Answer] = {
        SERVERS: section.list,
        REGISTER: section.register,
        DEREGISTER: section.deregister,
    }
    return [operator_tool(name, TOOLS[name], answers[name], owner, _told) for name in TOOLS]


def operator_tool(name: str, spec: OperatorToolSpec, answer: Answer, owner: Any, told: Told) -> OperatorTool:
    """A method as a tool: `answer` gets what the client sent, `told` makes text of its answer."""

    async def run(call: Call, **given: Any) -> Any:
        return await answer(call, given)

    options = ToolOptions(
        name=name,
        description=spec.description,
        schema=spec.schema,
        annotations={"destructiveHint": True} if spec.changes else {"readOnlyHint": True},
        meta={VENDOR + "source": "kernel"},
    )
    arguments = ExplicitArguments.of_our_own(spec.schema)
    function = Function(run, lambda annotation: _itself if annotation is Call else None, schema=arguments)
    return OperatorTool(name, options, function, Returns(lambda value: PackedResult(told(value), value)), owner)


def _told(value: Params) -> str:
    lines = [f"{one['id']} {one['status']} {' '.join(one['tools'])}" for one in value.get("servers", ())]
    text = f"{value['id']}: {value['status']}. {value['message']}" if "id" in value else "\n".join(lines)
    return text or "There are no servers."


def _itself(call: Call) -> Call:
    return call
