"""The Tools panel: the list with what each definition costs and needs, calls, and calls saved as code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.host.client import Client
from defserve.host.fields import object_of, text_of
from defserve.host.mgp.security.tool_security import ListedSecurity, tool_security
from defserve.inspector.calls.calling import call
from defserve.inspector.calls.saving import command_line, pytest_test
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb, asking
from defserve.inspector.protocol import Json, Request
from defserve.tooling.lint.definitions import tokens
from defserve.wire.jsonvalue import is_object

FEATURE_SET: Final = "featureSet"
LOOKED_AT: Final = 20_000
MOST_TIMES: Final = 120


async def list_tools(inspection: Inspection, request: Request) -> Any:
    """Every tool, as `about` says. What has no name cannot be called, and is left out: `odd` counts those."""
    async with asking(inspection, request) as client:
        found = await client.tools() if "tools" in client.capabilities else []
    named = [tool for tool in found if is_object(tool) and isinstance(tool.get("name"), str)]
    tools = [about(tool, client) for tool in named]
    return {"tools": tools, "odd": len(found) - len(named), "searched": _is_searched(client)}


def about(tool: Json, client: Client) -> Json:
    """A tool for the page: its `definition` as it came, and what is read of it, of the right type whatever came."""
    security = tool_security(str(tool["name"]), tool)
    held = client.mgp.grants if client.mgp is not None else {}
    needs = security.permissions or []
    return {
        "name": tool["name"],
        "title": text_of(tool.get("title")) or "",
        "about": text_of(tool.get("description")) or "",
        "schema": object_of(tool.get("inputSchema")),
        "output": object_of(tool.get("outputSchema")) or None,
        "hints": object_of(tool.get("annotations")),
        "definition": tool,
        "tokens": tokens(tool),
        "mark": security.risk if security.is_marked else None,
        "needs": [{"name": name, "decision": held.get(name, "deferred")} for name in needs],
        "guard": guard if (guard := security.validator) != "none" else None,
        "confirms": _confirms(security),
        "set": text_of(object_of(tool.get("_meta")).get(FEATURE_SET)),
    }


def _confirms(security: ListedSecurity) -> bool:
    """Whether the person is asked before it is called."""
    if security.risk == "dangerous":
        return security.confirmation_required is not False or not security.permissions
    return security.confirmation_required is True


def _is_searched(client: Client) -> bool:
    """Whether clients may search its tools, and need not read them all."""
    return client.mgp is not None and "tool_discovery" in client.mgp.extensions


async def call_tool(inspection: Inspection, request: Request) -> Any:
    async with asking(inspection, request) as client:
        return await call(inspection, request, client)


async def save(inspection: Inspection, request: Request) -> Any:
    """A call as code: the `command` that repeats it, and a `test` for pytest that expects its result."""
    tool, arguments = request.text("tool"), request.object("arguments")
    words = inspection.target.words
    return {
        "command": command_line(words, tool, arguments),
        "test": pytest_test(words, tool, arguments, request.arguments.get("result")),
    }


async def latency(inspection: Inspection, request: Request) -> Any:
    """How long the newest calls of a tool took, oldest first."""
    tool, recorder = request.text("tool"), inspection.recorder
    found = [
        {"ms": entry.ms, "era": entry.era, "error": entry.error is not None}
        for entry in recorder.slice(max(recorder.first, recorder.count - LOOKED_AT), recorder.count)
        if entry.kind == "request" and entry.method == "tools/call" and entry.about == tool and entry.ms is not None
    ]
    return {"calls": found[-MOST_TIMES:]}


VERBS: Final[Mapping[str, Verb]] = {
    "tools.list": list_tools,
    "tools.call": call_tool,
    "tools.save": save,
    "tools.latency": latency,
}
