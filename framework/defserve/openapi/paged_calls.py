"""Every page of a list, for code that calls tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from defserve.openapi.tool import NEXT_KEY


class CallsTools(Protocol):
    """A client, such as `defserve.host.Client`."""

    async def call_raw(self, name: str, arguments: dict[str, Any], /) -> dict[str, Any]: ...


async def pages(
    client: CallsTools, tool: str, arguments: dict[str, Any] | None = None, *, most: int = 100
) -> AsyncGenerator[dict[str, Any]]:
    """The results of a tool, page by page: `async for page in pages(client, "list_issues", {"state": "open"})`.

    Ends after the last page, after one that failed, and after `most` pages.
    """
    given = dict(arguments or {})
    for _ in range(most):
        result = await client.call_raw(tool, given)
        yield result
        more = result.get("_meta", {}).get(NEXT_KEY)
        if not more or result.get("isError"):
            return
        given |= more
