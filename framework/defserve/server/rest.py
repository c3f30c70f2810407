"""The REST mount of a server: how a call becomes a request, and how its outcome becomes a response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final

from defserve.base.peer_bounds import ByteCache
from defserve.base.version import VERSION
from defserve.client.replies import make_tool_error, parse_text_by_schema, unwrap_content
from defserve.core.call import Call, FinalReply
from defserve.core.extension import Offer
from defserve.core.json_values import is_object
from defserve.core.messages import Params, Request, encode
from defserve.protocols.mcp.errors import ERROR_META_KEY
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mcp.tools import Tool
from defserve.protocols.mcp.versions import STATELESS_VERSIONS
from defserve.serve.http.exchange import JSON_CONTENT_TYPE
from defserve.serve.http.other_endpoints import RestFailure, RestRules
from defserve.serve.sockets import HeaderList
from defserve.server.openapi_document import build_openapi_document

log = logging.getLogger("defserve")

# A caller that can do nothing but wait for the answer.
OFFER: Final = Offer(
    STATELESS_VERSIONS[-1], {}, {"name": "rest", "version": VERSION}, stateless=True, key=("rest", VERSION)
)
MAX_CACHE_BYTES: Final = 8 * 1024 * 1024

# Stands for a reply that is waited for.
PENDING: Final = b"{}"


def make_rest_rules(mcp: MCP, *, authorized: bool) -> RestRules:
    """How the tools of a server are served to callers that know only HTTP."""
    documents = OpenApiDocumentCache(mcp, authorized)
    return RestRules(
        offer=OFFER,
        call=lambda name, arguments: (
            _request("tools/call", {"name": name, "arguments": arguments}),
            RestWriter(lambda call, result: encode({"result": _value(result, call.subject)})),
        ),
        # A `tools/list` runs for its checks: who may not list the tools does not get the document. Its page is unused.
        document=lambda below: (make_list_request(), DocumentWriter(documents, below)),
        scopes=mcp.tools.scopes,
    )


class RestWriter:
    """The reply to one request: the result as `write` encodes it, or an error with its status and headers."""

    kind = JSON_CONTENT_TYPE
    headers: HeaderList = ()
    later: Callable[[], Awaitable[FinalReply]] | None = None

    def __init__(self, write: Callable[[Call, Any], bytes]) -> None:
        self._write = write

    def result(self, call: Call, result: Any) -> FinalReply:
        try:
            return self._write(call, result), None
        except RestFailure as failed:
            return self._write_failure(failed)

    def failure(self, call: Call, error: Params) -> FinalReply:
        if "result" in error:
            return self.result(call, error["result"])
        given: Any = error["error"].get("data")
        detail: Params = given if is_object(given) else {}
        is_unknown = "tool" in detail and detail["tool"] == call.params.get("name")
        kind = "unknown_tool" if is_unknown else str(detail.get("error_type", "internal_error"))
        return self._write_failure(RestFailure(kind, str(error["error"].get("message")), detail))

    def _write_failure(self, failed: RestFailure) -> FinalReply:
        self.headers = failed.headers()
        return failed.body(), failed.status


class OpenApiDocumentCache:
    """The OpenAPI documents of a server. Callers with the same view share the bytes, and the work of making them."""

    def __init__(self, mcp: MCP, authorized: bool) -> None:
        self._mcp, self._authorized = mcp, authorized
        self._made = ByteCache[bytes](MAX_CACHE_BYTES)
        self._being_made: dict[Hashable, asyncio.Future[bytes]] = {}

    def find(self, below: str, call: Call) -> bytes | Awaitable[bytes]:
        """The document of the tools that a caller sees. If it has to be made, that happens in a thread.

        A mounted server may have written the schemas: translating them takes its time, which is not the loop's.
        """
        composition, dialect, registry = call.session.composition, get_dialect(call), self._mcp.tools.registry
        views = composition.get_views(call)
        key = below, views, registry.version
        if (found := self._made.get(key)) is not None:
            return found
        making = self._being_made.get(key)
        if making is not None and making.get_loop() is asyncio.get_running_loop():
            return asyncio.shield(making)
        tools = [
            composition.describe(tool, views, tool.describe(dialect))
            for tool in registry
            if composition.visible(call, tool)
        ]
        info = self._mcp.lifecycle.identity.info(dialect.version)
        work = partial(build_openapi_document, info, tools, base=below, authorized=self._authorized)
        making = asyncio.ensure_future(self._make(key, call, lambda: encode(work()), len(below)))
        # Who asked may be gone when it fails.
        making.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._being_made[key] = making
        return asyncio.shield(making)

    async def _make(self, key: Hashable, call: Call, work: Callable[[], bytes], more: int) -> bytes:
        try:
            made = await call.engine.in_thread(work)
            self._made.store_value(key, made, len(made) + more)
            return made
        finally:
            self._being_made.pop(key, None)


class DocumentWriter(RestWriter):
    """The reply that is an OpenAPI document. `result` asks for it, and `later` waits for it."""

    def __init__(self, documents: OpenApiDocumentCache, below: str) -> None:
        super().__init__(self._find)
        self._documents, self._below = documents, below

    def _find(self, call: Call, page: Any) -> bytes:
        found = self._documents.find(self._below, call)
        if isinstance(found, bytes):
            return found
        self.later = partial(self._wait, found, call.session.composition.limits.response)
        return PENDING

    async def _wait(self, making: Awaitable[bytes], most: int) -> FinalReply:
        try:
            made = await making
        except Exception:
            log.exception("the OpenAPI document could not be made")
            return self._write_failure(
                RestFailure("internal_error", "the document could not be made; the log says why")
            )
        if len(made) <= most:
            return made, None
        return self._write_failure(RestFailure("limit_exceeded", f"the document is larger than {most} bytes"))


def make_list_request() -> Request:
    """The `tools/list` that is run before a document is given out."""
    return _request("tools/list", {})


def _request(method: str, params: Params) -> Request:
    return Request(1, method, params, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def _value(result: Params, tool: Tool) -> Any:
    """Structured content, a scalar, a text, or content blocks; None if there is nothing. Raises RestFailure."""
    if result.get("isError"):
        meta: Params = result.get("_meta") or {}
        detail: Params = meta.get(ERROR_META_KEY) or {}
        raise RestFailure(str(detail.get("error_type", "tool_error")), make_tool_error(result).message, detail)
    if result.get("resultType", "complete") != "complete":
        raise RestFailure("input_required", "this tool asks its caller a question, which cannot be answered here")
    if "structuredContent" in result:
        return unwrap_content(result)
    blocks: list[Params] = result.get("content") or []
    if len(blocks) == 1 and blocks[0].get("type") == "text":
        scalar = tool.returns.scalar_schema
        return parse_text_by_schema(blocks[0]["text"], scalar) if scalar is not None else blocks[0]["text"]
    return blocks or None
