"""The Prompts panel: the list, and a prompt with its arguments as the messages that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.host.older.lacking import list_if_known
from defserve.inspector.inspection import Inspection
from defserve.inspector.items import named
from defserve.inspector.panels.resources import completes
from defserve.inspector.panels.verb import Verb, asking
from defserve.inspector.protocol import Request


async def list_prompts(inspection: Inspection, request: Request) -> Any:
    """`prompts`, and whether the server `completes` their arguments."""
    async with asking(inspection, request) as client:
        offered = "prompts" in client.capabilities
        prompts = (await list_if_known("prompts/list", client.prompts())).items if offered else []
        found = named(prompts, "name")
    return {"offered": offered, "prompts": found, "completes": completes(client)}


async def get(inspection: Inspection, request: Request) -> Any:
    """The whole result of a prompt. `arguments` are sent as they are, also wrong ones: refusals are worth testing."""
    params = {"name": request.text("prompt"), "arguments": request.object("arguments")}
    async with asking(inspection, request) as client:
        return await client.request("prompts/get", params)


VERBS: Final[Mapping[str, Verb]] = {
    "prompts.list": list_prompts,
    "prompts.get": get,
}
