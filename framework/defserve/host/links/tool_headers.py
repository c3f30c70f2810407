"""Which arguments of which tools a call repeats in HTTP headers, learned from the tool lists that the server sends."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from defserve.host.fields import object_of
from defserve.host.links.request_headers import Mirrors, version_of
from defserve.protocols.mcp.tools.param_headers import param_headers
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Reply, Request

MOST_TOOLS: Final = 10_000
MOST_PAGES: Final = 100
NONE: Final[Mirrors] = {}

log = logging.getLogger("defserve.host")


class ToolHeaders:
    """Keeps only the tools that want headers."""

    __slots__ = ("_mirrors",)

    def __init__(self) -> None:
        self._mirrors: dict[str, Mirrors] = {}

    def mirrors(self, request: Request) -> Mirrors:
        """What a request must repeat in headers, as far as it is known."""
        return self._mirrors.get(str(request.params.get("name")), NONE) if request.method == "tools/call" else NONE

    def read(self, request: Request, reply: Reply) -> Reply:
        """Learn from the answer to a stateless `tools/list`. Gives back the answer.

        The specification says to leave out a tool that asks for a forbidden header.
        """
        if request.method != "tools/list" or version_of(request) is None:
            return reply
        result = object_of(reply.result)
        tools: Any = result.get("tools")
        if not is_array(tools):
            return reply
        fit = [tool for tool in tools if self._learn(object_of(tool))]
        return reply if len(fit) == len(tools) else Reply(reply.id, {**result, "tools": fit}, None)

    def _learn(self, tool: Mapping[str, Any]) -> bool:
        name = str(tool.get("name"))
        try:
            mirrors = param_headers(object_of(tool.get("inputSchema")))
        except ValueError as error:
            log.warning("the tool %s is left out: %s", name, error)
            return False
        if not mirrors:
            self._mirrors.pop(name, None)
        elif len(self._mirrors) < MOST_TOOLS:
            self._mirrors[name] = mirrors
        return True


class ToolPages:
    """Requests for the pages of the tool list, on behalf of `request` and with its envelope."""

    def __init__(self, request: Request) -> None:
        self._meta, self._id = object_of(request.params.get("_meta")), f"{request.id}-tools"
        self._cursor: Any = None
        self._more = True

    def __iter__(self) -> Iterator[Request]:
        for number in range(MOST_PAGES):
            if not self._more:
                return
            self._more = False
            params = {"_meta": self._meta} if self._cursor is None else {"_meta": self._meta, "cursor": self._cursor}
            yield Request(f"{self._id}-{number}", "tools/list", params, {})

    def turn(self, reply: Reply) -> None:
        """Read from the answer whether there is another page, and its cursor."""
        self._cursor = object_of(reply.result).get("nextCursor")
        self._more = self._cursor is not None
