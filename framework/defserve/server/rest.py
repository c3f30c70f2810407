"""The REST mount of a server: how a call becomes a request, and how its outcome becomes a response."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from functools import partial
from html import escape
from typing import Any, Final
from urllib.parse import quote

from pydantic_core import from_json

from defserve.base.concurrency import wait_for_shared
from defserve.base.html_pages import render_error_page, render_html_page
from defserve.base.peer_bounds import ByteBoundedCache
from defserve.base.redaction import get_logger
from defserve.base.version import VERSION
from defserve.client.replies import make_tool_error, object_or_empty, parse_text_by_schema, unwrap_structured_content
from defserve.core.call import Call, FinalReply
from defserve.core.extension import Offer
from defserve.core.json_values import is_object, replace_surrogates
from defserve.core.messages import Params, Request, encode
from defserve.protocols.mcp.errors import ERROR_META_KEY
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mcp.tools import Tool
from defserve.protocols.mcp.versions import STATELESS_VERSIONS
from defserve.serve.http.exchange import HTML_CONTENT_TYPE, JSON_CONTENT_TYPE
from defserve.serve.http.other_endpoints import MakeApiPage, RestFailure, RestRules
from defserve.serve.sockets import HeaderList
from defserve.server.openapi_document import build_openapi_document
from defserve.server.page import COPY_BUTTON_HTML, escape_line, headers, read_page_script, render_parameters

log = get_logger()

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
        self._made = ByteBoundedCache[bytes](MAX_CACHE_BYTES)
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
            return wait_for_shared(making)
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
        return wait_for_shared(making)

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
        return unwrap_structured_content(result)
    blocks: list[Any] = result.get("content") or []  # a mounted server may have put anything in it
    if len(blocks) == 1 and is_object(block := blocks[0]) and block.get("type") == "text" and "text" in block:
        scalar = tool.returns.bare_scalar_schema
        return parse_text_by_schema(block["text"], scalar) if scalar is not None else block["text"]
    return blocks or None


# -- The page of a REST API at `/docs`, made from its OpenAPI document: each operation, and how to call it.


MAX_API_PAGE_BYTES: Final = 256 * 1024
MAX_TITLE, MAX_PATH, MAX_SUMMARY, MAX_EXAMPLE = 64, 144, 400, 2_000
VERBS: Final = ("get", "post", "put", "patch", "delete")


def make_api_page_opener(mcp: MCP) -> MakeApiPage:
    """The request whose answer is the page, for an API below a path and at an address."""
    documents = OpenApiDocumentCache(mcp, authorized=False)
    return lambda below, address: (make_list_request(), ApiPageWriter(documents, below, address))


class ApiPageWriter(DocumentWriter):
    """The reply that is the page of a document."""

    kind = HTML_CONTENT_TYPE

    def __init__(self, documents: OpenApiDocumentCache, below: str, address: str) -> None:
        super().__init__(documents, below)
        self._address = address
        self.headers = headers()

    def result(self, call: Call, result: Any) -> FinalReply:
        made, status = super().result(call, result)
        return self._render(made) if self.later is None and status is None else (made, status)

    async def _wait(self, making: Awaitable[bytes], most: int) -> FinalReply:
        made, status = await super()._wait(making, most)
        return self._render(made) if status is None else (made, status)

    def _write_failure(self, failed: RestFailure) -> FinalReply:
        return render_error_page(failed.status, failed.message), failed.status

    def _render(self, document: bytes) -> FinalReply:
        return render_api_page(from_json(document), self._address), None


def render_api_page(document: Mapping[str, Any], address: str) -> bytes:
    """The page of an OpenAPI document whose API is at `address`. It has as many operations as fit."""
    info = object_or_empty(document.get("info"))
    title = escape_line(info.get("title"), MAX_TITLE)
    version = escape_line(info.get("version"), MAX_TITLE)
    rows, room, left = list[str](), MAX_API_PAGE_BYTES, 0
    for row in _operations(document, address):
        room -= len(row.encode())
        if room >= 0:
            rows.append(row)
        else:
            left += 1
    listed = f"<div class=list>{''.join(rows)}</div>" if rows else "<p class=end>There are no operations.</p>"
    more = f"<p class=end>{left} more are in the document.</p>" if left else ""
    return render_html_page(
        f"{title} API",
        f"<h1>{title} API <small>{version}</small></h1>"
        "<p class=lead>Each tool is one POST. The body is a JSON object: the arguments by name.</p>"
        f'<div class="copy address"><code>{escape(address)}</code>{COPY_BUTTON_HTML}</div>'
        f"<h2>Operations</h2>{listed}{more}"
        "<p class=end>An answer is <code>{&quot;result&quot;: …}</code>, or <code>{&quot;error&quot;: …}</code> with"
        " the status of its kind. For programs: <a href=openapi.json>openapi.json</a>.</p>",
        script=read_page_script(),
    )


def _operations(document: Mapping[str, Any], address: str) -> Iterator[str]:
    for path, verbs in object_or_empty(document.get("paths")).items():
        for verb, operation in object_or_empty(verbs).items():
            # A path with a blank stands for the others.
            if verb in VERBS and is_object(operation) and "{" not in path:
                yield _operation(document, verb.upper(), path, operation, address)


def _operation(document: Mapping[str, Any], verb: str, path: str, operation: Mapping[str, Any], address: str) -> str:
    media = object_or_empty(
        object_or_empty(object_or_empty(operation.get("requestBody")).get("content")).get("application/json")
    )
    rows = "".join(render_parameters(_resolve(document, media.get("schema"))))
    examples = [object_or_empty(one).get("value") for one in object_or_empty(media.get("examples")).values()]
    # A server may be mounted below another path than its document says; clients call the address.
    name = quote(replace_surrogates(path.rpartition("/tools/")[2]))
    call = _curl(f"{address}/tools/{name}", examples[0] if examples else {})
    return (
        f"<details><summary class=op><span class=verb>{verb}</span> <code>{escape_line(path, MAX_PATH)}</code> "
        f"<span>{escape_line(operation.get('summary'), MAX_SUMMARY)}</span></summary>"
        f"<div>{f'<dl class=params>{rows}</dl>' if rows else '<p class=end>No parameters.</p>'}"
        f"<div class=copy><pre>{escape(call, quote=False)}</pre>{COPY_BUTTON_HTML}</div></div></details>"
    )


def _resolve(document: Mapping[str, Any], schema: Any) -> Any:
    """A schema of the document's own components, if it is a reference to one."""
    reference = object_or_empty(schema).get("$ref")
    if not isinstance(reference, str) or not reference.startswith(COMPONENTS):
        return schema
    known = object_or_empty(object_or_empty(document.get("components")).get("schemas"))
    return known.get(reference.removeprefix(COMPONENTS))


def _curl(url: str, example: Any) -> str:
    body = json.dumps(replace_surrogates(example), ensure_ascii=False)[:MAX_EXAMPLE]
    return f"curl {shlex.quote(url)} -H 'content-type: application/json' -d {shlex.quote(body)}"


COMPONENTS: Final = "#/components/schemas/"
