"""The page of a REST API at `/docs`, made from its OpenAPI document: each operation, what it takes, and how to call it.

It has what a caller without a token sees. Whatever the document says is text.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Iterator, Mapping
from html import escape
from typing import Any, Final
from urllib.parse import quote

from pydantic_core import from_json

from defserve.base.html_pages import render_error_page, render_html_page
from defserve.client.replies import object_or_empty
from defserve.core.call import Call, FinalReply
from defserve.core.json_values import is_object, replace_surrogates
from defserve.protocols.mcp.extension import MCP
from defserve.serve.http.exchange import HTML_CONTENT_TYPE
from defserve.serve.http.other_endpoints import MakeApiPage, RestFailure
from defserve.server.page import COPY, escape_line, headers, read_page_script, render_parameters
from defserve.server.rest import DocumentWriter, OpenApiDocumentCache, make_list_request

MAX_API_PAGE_BYTES: Final = 256 * 1024
MAX_TITLE, MAX_SUMMARY, MAX_EXAMPLE = 64, 400, 2_000
VERBS: Final = ("get", "post", "put", "patch", "delete")


def make_api_page_request(mcp: MCP) -> MakeApiPage:
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
        f'<div class="copy address"><code>{escape(address)}</code>{COPY}</div>'
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
        f"<details><summary class=op><span class=verb>{verb}</span> <code>{escape_line(path, MAX_TITLE)}</code> "
        f"<span>{escape_line(operation.get('summary'), MAX_SUMMARY)}</span></summary>"
        f"<div>{f'<dl class=params>{rows}</dl>' if rows else '<p class=end>No parameters.</p>'}"
        f"<div class=copy><pre>{escape(call, quote=False)}</pre>{COPY}</div></div></details>"
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
