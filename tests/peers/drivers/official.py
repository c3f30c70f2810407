"""The official Python client, of either major version: `ClientSession` of 1.x, `Client` of 2.x."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from typing import Any

import mcp
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from telling import GUEST, PLAN, STATELESS, drive, texts
from touring import eventually, tour

IS_OLD = version("mcp").startswith("1.")
types = import_module("mcp.types" if IS_OLD else "mcp_types")
httpx = import_module("httpx" if IS_OLD else "httpx2")
# Name of the list in the result, and of each in it.
LISTS = {
    "tools": ("list_tools", "tools", "name"),
    "prompts": ("list_prompts", "prompts", "name"),
    "resources": ("list_resources", "resources", "uri"),
    "templates": (
        "list_resource_templates",
        *(("resourceTemplates", "uriTemplate") if IS_OLD else ("resource_templates", "uri_template")),
    ),
}


class Official:
    def __init__(self, session: Any, version: str | None, heard: list[tuple[str, str]]):
        self.session = session
        self.version = version
        self.heard = heard

    async def names(self) -> list[str]:
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        result = await self.session.call_tool(tool, arguments, progress_callback=note)
        return texts(result.content), result.structuredContent if IS_OLD else result.structured_content

    async def read(self, uri: str) -> str:
        return (await self.session.read_resource(uri)).contents[0].text

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        return [message.role for message in (await self.session.get_prompt(name, arguments)).messages]

    async def prompted(self, name: str, arguments: dict[str, str]) -> str:
        return texts(message.content for message in (await self.session.get_prompt(name, arguments)).messages)

    async def listed(self, kind: str) -> list[str]:
        method, several, one = LISTS[kind]
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = {"params": types.PaginatedRequestParams(cursor=cursor)} if IS_OLD else {"cursor": cursor}
            result = await getattr(self.session, method)(**page)
            found += [str(getattr(item, one)) for item in getattr(result, several)]
            cursor = result.nextCursor if IS_OLD else result.next_cursor
            if cursor is None:
                return found

    async def complete(self, ref: dict[str, str], argument: str, value: str) -> list[str]:
        wanted = {"name": argument, "value": value}
        return (await self.session.complete(types.PromptReference(**ref), wanted)).completion.values

    @asynccontextmanager
    async def listening(self, uri: str | None) -> AsyncGenerator[None]:
        if self.version != STATELESS:
            if uri is not None:
                await self.session.subscribe_resource(uri)
            yield
            return
        lists = {f"{kind}_list_changed": True for kind in ("tools", "prompts", "resources")}
        async with self.session.listen(resource_subscriptions=[uri] if uri else [], **lists) as events:
            hearing = asyncio.create_task(self._hear(events))
            yield
            hearing.cancel()

    async def _hear(self, events: Any) -> None:
        async for event in events:
            note(self.heard, type(event).__name__, getattr(event, "uri", ""))

    async def give_up(self, tool: str, arguments: dict[str, Any]) -> None:
        steps: list[float] = []
        calling = asyncio.create_task(self.call(tool, arguments, steps))
        await eventually(lambda: bool(steps) or calling.done())
        if IS_OLD:
            # It has no method for this: its users send the notification.
            params = types.CancelledNotificationParams(requestId=self.session._request_id - 1)
            await self.session.send_notification(
                types.ClientNotification(types.CancelledNotification(method="notifications/cancelled", params=params))
            )
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling


def note(heard: list[tuple[str, str]], kind: str, uri: Any = "") -> None:
    """Put down what a notification of either spelling says."""
    if "Updated" in kind:
        heard.append(("updated", str(uri)))
    elif "Changed" in kind:
        heard.append(("changed", kind.lower()))


async def elicited(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content=GUEST)


async def sampled(context: Any, params: Any) -> Any:
    content = types.TextContent(type="text", text="short")
    return types.CreateMessageResult(role="assistant", content=content, model="m")


async def rooted(context: Any) -> Any:
    return types.ListRootsResult(roots=[types.Root(uri=PLAN["root"], name="desk")])


def handlers(heard: list[tuple[str, str]]) -> dict[str, Any]:
    async def logged(params: Any) -> None:
        heard.append(("log", str(params.data)))

    async def told(message: Any) -> None:
        message = getattr(message, "root", message)
        note(heard, type(message).__name__, getattr(getattr(message, "params", None), "uri", ""))

    answers = {"elicitation_callback": elicited, "sampling_callback": sampled, "list_roots_callback": rooted}
    return {**answers, "logging_callback": logged, "message_handler": told}


def transport(url: str | None, headers: dict[str, str]) -> Any:
    if url or PLAN["transport"] == "http":
        client = httpx.AsyncClient(headers=headers or PLAN["headers"], timeout=httpx.Timeout(30, read=60))
        return streamable_http_client(url or PLAN["url"], http_client=client)
    if PLAN["transport"] == "sse":
        return sse_client(PLAN["sse"])
    command, *args = PLAN["command"]
    return stdio_client(StdioServerParameters(command=command, args=args))


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Official]:
    way, heard = transport(url, headers), list[tuple[str, str]]()
    if IS_OLD:
        async with way as streams, mcp.ClientSession(*streams[:2], **handlers(heard)) as session:
            official = Official(session, (await session.initialize()).protocolVersion, heard)
            yield official
            await _tour(official, url)
    else:
        is_new = PLAN["version"] == STATELESS
        level = {"log_level": "debug"} if is_new else {}
        async with mcp.Client(way, mode="auto" if is_new else "legacy", **level, **handlers(heard)) as client:
            official = Official(client, client.protocol_version, heard)
            yield official
            await _tour(official, url)


async def _tour(official: Official, url: str | None) -> None:
    if url is None:
        if official.version != STATELESS:
            await official.session.set_logging_level("debug")
        await tour(official)


drive(opened)
