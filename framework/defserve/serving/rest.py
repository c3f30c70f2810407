"""The REST mount of a server: its calls in the protocol's words, its answers in those of HTTP."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from defserve.host.values import read_text, tool_error
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.failures import ERROR_KEY
from defserve.protocols.mcp.lifecycle import CAPABILITIES_KEY, CLIENT_KEY, VERSION_KEY
from defserve.protocols.mcp.versions import STATELESS_VERSIONS
from defserve.serving.openapi.document import openapi
from defserve.transports.http.rest import RestFailure, RestRules
from defserve.version import VERSION
from defserve.wire.codec import encode
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params, Request

# A caller that can do nothing but wait for the answer.
ENVELOPE: Final[Params] = {
    VERSION_KEY: STATELESS_VERSIONS[-1],
    CAPABILITIES_KEY: {},
    CLIENT_KEY: {"name": "rest", "version": VERSION},
}


def rest_rules(mcp: MCP, *, authorized: bool) -> RestRules:
    """How the tools of a server are served to callers that speak no protocol."""
    dialect = mcp.lifecycle.dialects[STATELESS_VERSIONS[-1]]

    @lru_cache(maxsize=8)
    def document(tools: bytes, below: str) -> bytes:
        from pydantic_core import from_json

        described = openapi(mcp.lifecycle.identity.info(dialect), from_json(tools), base=below, authorized=authorized)
        return encode(described)

    def value(name: str, result: Params) -> Any:
        tool = mcp.tools.registry.get(name)
        return _value(result, tool.returns.scalar if tool is not None else None)

    return RestRules(
        call=lambda name, arguments: _request("tools/call", {"name": name, "arguments": arguments}),
        listing=lambda cursor: _request("tools/list", {"cursor": cursor} if cursor else {}),
        document=lambda tools, below: document(encode(tools), below),
        value=value,
        failure=_failure,
        scopes=mcp.tools.scopes,
    )


def _request(method: str, params: Params) -> Request:
    params["_meta"] = dict(ENVELOPE)
    return Request(1, method, params, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def _value(result: Params, scalar: Params | None) -> Any:
    """Structured content, a scalar, a text, or content blocks; None where there is nothing. Raises Failed."""
    if result.get("isError"):
        meta: Params = result.get("_meta") or {}
        detail: Params = meta.get(ERROR_KEY) or {}
        raise RestFailure(str(detail.get("error_type", "tool_error")), tool_error(result).message, detail)
    if result.get("resultType", "complete") != "complete":
        raise RestFailure("input_required", "this tool asks its caller something, and here nobody can be asked")
    if "structuredContent" in result:
        return result["structuredContent"]
    blocks: list[Params] = result.get("content") or []
    if len(blocks) == 1 and blocks[0].get("type") == "text":
        return read_text(blocks[0]["text"], scalar) if scalar is not None else blocks[0]["text"]
    return blocks or None


def _failure(error: Params, name: str) -> RestFailure:
    given: Any = error.get("data")
    detail: Params = given if is_object(given) else {}
    return RestFailure(str(detail.get("error_type", "internal_error")), str(error.get("message")), detail)
