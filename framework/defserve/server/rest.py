"""The REST mount of a server: how a call becomes a request, and how its outcome becomes a response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from defserve.base.peer_bounds import ByteCache
from defserve.client.replies import parse_text, tool_error, unwrapped
from defserve.core.call import Call, Replied
from defserve.core.extension import Offer
from defserve.core.json_values import is_object
from defserve.core.messages import Params, Request, encode
from defserve.protocols.mcp.errors import ERROR_KEY
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.tools import Tool
from defserve.protocols.mcp.versions import STATELESS_VERSIONS
from defserve.serve.http.exchange import JSON
from defserve.serve.http.other_endpoints import RestFailure, RestRules
from defserve.serve.sockets import HeaderList
from defserve.server.openapi_document import openapi
from defserve.version import VERSION

# A caller that can do nothing but wait for the answer.
OFFER: Final = Offer(
    STATELESS_VERSIONS[-1], {}, {"name": "rest", "version": VERSION}, stateless=True, key=("rest", VERSION)
)
MOST_BYTES: Final = 8 * 1024 * 1024


def rest_rules(mcp: MCP, *, authorized: bool) -> RestRules:
    """How the tools of a server are served to callers that know only HTTP."""
    documents = ByteCache[bytes](MOST_BYTES)

    def document(below: str, call: Call) -> bytes:
        """The OpenAPI document of the tools that a caller sees. Callers with the same view share its bytes."""
        composition, dialect, registry = call.session.composition, dialect_of(call), mcp.tools.registry
        views = composition.views(call)
        key = below, views, registry.version
        found = documents.get(key)
        if found is None:
            tools = [
                composition.describe(tool, views, tool.describe(dialect))
                for tool in registry
                if composition.visible(call, tool)
            ]
            info = mcp.lifecycle.identity.info(dialect.version)
            found = encode(openapi(info, tools, base=below, authorized=authorized))
            documents.put(key, found, len(found) + len(below))
        return found

    return RestRules(
        offer=OFFER,
        call=lambda name, arguments: (
            _request("tools/call", {"name": name, "arguments": arguments}),
            RestWriter(lambda call, result: encode({"result": _value(result, call.subject)})),
        ),
        # A `tools/list` runs for its checks: who may not list the tools does not get the document. Its page is unused.
        document=lambda below: (_request("tools/list", {}), RestWriter(lambda call, page: document(below, call))),
        scopes=mcp.tools.scopes,
    )


class RestWriter:
    """The reply to one request: the result as `write` encodes it, or an error with its status and headers."""

    kind = JSON
    headers: HeaderList = ()

    def __init__(self, write: Callable[[Call, Any], bytes]) -> None:
        self._write = write

    def result(self, call: Call, result: Any) -> Replied:
        try:
            return self._write(call, result), None
        except RestFailure as failed:
            return self._failed(failed)

    def failure(self, call: Call, error: Params) -> Replied:
        if "result" in error:
            return self.result(call, error["result"])
        given: Any = error["error"].get("data")
        detail: Params = given if is_object(given) else {}
        is_unknown = "tool" in detail and detail["tool"] == call.params.get("name")
        kind = "unknown_tool" if is_unknown else str(detail.get("error_type", "internal_error"))
        return self._failed(RestFailure(kind, str(error["error"].get("message")), detail))

    def _failed(self, failed: RestFailure) -> Replied:
        self.headers = failed.headers()
        return failed.body(), failed.status


def _request(method: str, params: Params) -> Request:
    return Request(1, method, params, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def _value(result: Params, tool: Tool) -> Any:
    """Structured content, a scalar, a text, or content blocks; None if there is nothing. Raises RestFailure."""
    if result.get("isError"):
        meta: Params = result.get("_meta") or {}
        detail: Params = meta.get(ERROR_KEY) or {}
        raise RestFailure(str(detail.get("error_type", "tool_error")), tool_error(result).message, detail)
    if result.get("resultType", "complete") != "complete":
        raise RestFailure("input_required", "this tool asks its caller a question, which cannot be answered here")
    if "structuredContent" in result:
        return unwrapped(result)
    blocks: list[Params] = result.get("content") or []
    if len(blocks) == 1 and blocks[0].get("type") == "text":
        scalar = tool.returns.scalar
        return parse_text(blocks[0]["text"], scalar) if scalar is not None else blocks[0]["text"]
    return blocks or None
