"""An imported API: its tools, and what they share."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from defserve.errors import UsageError
from defserve.openapi.documents.loading import Document, load
from defserve.openapi.documents.operations import Operation, operations
from defserve.openapi.documents.references import References, bundled
from defserve.openapi.documents.servers import base_url_of, own_base, refuse_private
from defserve.openapi.marks import hints_of, security_of
from defserve.openapi.naming.tools import names_of
from defserve.openapi.naming.words import joined, words
from defserve.openapi.options import ImportOptions
from defserve.openapi.requests.auth import checked, pinned
from defserve.openapi.requests.in_process import InProcessApp
from defserve.openapi.requests.sending import Sender
from defserve.openapi.schemas.schemas import Schemas
from defserve.openapi.schemas.texts import OF_TOOL, cleaned, tool_description
from defserve.openapi.selection import chosen, patterns_of
from defserve.openapi.tool import OperationTool
from defserve.protocols.mcp.tools.tools import Tool, ToolOptions
from defserve.protocols.mcp.transforms.transform import Transform
from defserve.wire.jsonvalue import is_object

log = logging.getLogger("defserve.openapi")
MOST_TAGS = 5


class Api:
    """An API that is served as tools. `skipped` says which operations are left out although they were chosen."""

    def __init__(self, source: Any, options: ImportOptions) -> None:
        document = load(source)
        content = bundled(document) if options.remote_refs else document.content
        info = content.get("info")
        self._info: dict[str, Any] = info if is_object(info) else {}
        self.references = References(content)
        self.schemas = Schemas(self.references)
        self.auth = checked(options.auth)
        self.headers = dict(options.headers)
        self.pinned = frozenset(pinned(self.headers))
        self.slashes = frozenset(options.slashes)
        self.skipped: list[str] = []
        self.on_changed: Callable[[], None] = _nothing
        client = options.client
        if client is not None and not hasattr(client, "stream"):
            client = InProcessApp(client)
        self._app = client if isinstance(client, InProcessApp) else None
        base = base_url_of(document, options.base_url, options.variables)
        is_trusted = options.base_url is not None
        if not is_trusted and client is None:
            refuse_private(base)
        self.sender = Sender(base, options.timeout, options.retries, client, is_trusted=is_trusted)
        self.tools: list[Tool] = _transformed(self._tools(document, base, options), options.transform)

    def changed(self) -> None:
        """A tool is listed differently from now on."""
        self.on_changed()

    @property
    def name(self) -> str:
        """The API's title as a name for a server."""
        return joined(words(str(self._info.get("title", "")))) or "api"

    @property
    def about(self) -> dict[str, str]:
        """What the document says of the API, as options of a server."""
        said = {name: self._info.get(name) for name in ("title", "version", "description")}
        return {name: cleaned(text, OF_TOOL) for name, text in said.items() if isinstance(text, str) and text.strip()}

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Enter the lifespan of an app in this process; close connections at the end."""
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            if self._app is not None:
                await stack.enter_async_context(self._app.serving())
            await stack.enter_async_context(self.sender.serving())
            yield

    def _tools(self, document: Document, base: str, options: ImportOptions) -> list[OperationTool]:
        include = None if options.include is None else patterns_of(options.include, "include")
        exclude = patterns_of(options.exclude, "exclude")
        found = list(operations(self.references))
        made: list[OperationTool] = []
        for operation, name in zip(found, names_of(found), strict=True):
            if not chosen(operation, name, include, exclude):
                continue
            at = base if not operation.servers or options.base_url is not None else None
            at = at or own_base(operation.servers, base, options.variables, document.url)
            if at is None:
                self.skipped.append(f"{operation} is left out: it is at another origin than {base}")
                continue
            made.append(self._tool(operation, name, at, options))
        for problem in self.skipped:
            log.warning("%s", problem)
        if not made:
            raise UsageError(
                f"{document.shown}: none of its {len(found)} operations is served",
                fix="check include= and exclude=" if found else "check that it has paths",
            )
        return made

    def _tool(self, operation: Operation, name: str, base: str, options: ImportOptions) -> OperationTool:
        about = ToolOptions(
            name=name,
            description=tool_description(
                name, operation.summary, operation.description, deprecated=operation.deprecated, fallback=str(operation)
            ),
            annotations=hints_of(operation),
            security=security_of(operation, name, options.marks),
            tags=tuple(filter(None, map(_tag, operation.tags[:MOST_TAGS]))),
        )
        return OperationTool(name, about, operation, self, base)


def _transformed(tools: Sequence[Tool], transform: Transform | None) -> list[Tool]:
    if transform is None:
        return [*tools]
    transform.check(tool.name for tool in tools)
    return [made for tool in tools if (made := transform.transformed(tool)) is not None]


def _tag(tag: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", tag.strip().lower()).strip("-.")[:64]


def _nothing() -> None:
    """Nobody lists the tools yet."""
