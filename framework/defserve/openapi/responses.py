"""Responses of the API → results of a tool: structured content, text, pictures, files, errors, and the next page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from defserve.binding.content import Audio, Embedded, Image
from defserve.binding.json_schemas import rebuild_schema
from defserve.binding.results import PackedResult, ResultPacker
from defserve.core.json_values import JsonSchema, as_list, is_array, is_object
from defserve.errors import ToolError
from defserve.openapi.documents import DocumentReferences
from defserve.openapi.operations import Operation
from defserve.openapi.request_plan import RequestPlan
from defserve.openapi.schema_dialect import clean_text, make_nullable
from defserve.openapi.schemas import SchemaConverter
from defserve.openapi.sending import ApiResponse

MAX_ERROR_LENGTH: Final = 2_000
MASK: Final = "[redacted]"


def read_response(response: ApiResponse, url: str, secrets: tuple[str, ...]) -> PackedResult:
    """The result of a response. Raises ToolError for one that says that something went wrong."""
    if response.status >= 300:
        raise response_error(response, secrets)
    media = response.media
    if not response.body:
        return PackedResult(f"Done ({response.status}).")
    if is_json(media):
        text = hidden(response.text, secrets)
        try:
            return PackedResult(text, json.loads(text))
        except (ValueError, RecursionError):
            return PackedResult(text)
    if media.startswith("text/") or media.endswith(("/xml", "+xml", "/yaml", "/javascript")):
        return PackedResult(hidden(response.text, secrets))
    if media.startswith("image/") and "+" not in media:
        return PackedResult([Image(response.body, media)])
    if media.startswith("audio/"):
        return PackedResult([Audio(response.body, media)])
    return PackedResult([Embedded(url, data=response.body, mime_type=media or "application/octet-stream")])


def is_json(media: str) -> bool:
    return media in ("application/json", "text/json") or media.endswith("+json")


def response_error(response: ApiResponse, secrets: tuple[str, ...]) -> ToolError:
    """What a model reads of a failed request: the status, and the beginning of what the API says about it."""
    said = hidden(response.text, secrets) if response.body else ""
    said = clean_text(said, MAX_ERROR_LENGTH) if response.media != "text/html" else ""
    head = f"The API answers {response.status} {clean_text(response.reason, 60)}".rstrip()
    if 300 <= response.status < 400:
        said = "it redirects to another address, which is not followed"
    data: dict[str, Any] = {"status": response.status}
    if wait := response.headers.get("retry-after", ""):
        data["retry_after"] = clean_text(wait, 40)
        head += f" (try again after {data['retry_after']}{' s' if wait.isdecimal() else ''})"
    return ToolError(f"{head}: {said}" if said else f"{head}.", data=data)


def hidden(text: str, secrets: tuple[str, ...]) -> str:
    """A text without the credentials that were sent: some APIs repeat them."""
    for secret in secrets:
        if len(secret) >= 4 and secret in text:
            text = text.replace(secret, MASK)
    return text


# -- What a tool says that it returns: the schema of its JSON, if the document states it and it is short.


MAX_RETURN_SCHEMA: Final = 4_000
"""Bytes of an output schema. Models read it with every request."""

_STRICT: Final = frozenset(
    "required enum const pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength"
    " maxLength minItems maxItems uniqueItems minProperties maxProperties additionalProperties default not".split()
)


class ApiResultSchema(ResultPacker):
    """The result of an operation is packed where its response is read. The schema is made when it is listed."""

    __slots__ = ("_operation", "_schemas", "_references", "_known", "_made")

    def __init__(self, operation: Operation, schemas: SchemaConverter, references: DocumentReferences) -> None:
        super().__init__(lambda value: value)
        self._operation, self._schemas, self._references = operation, schemas, references
        self._known: JsonSchema | None = None
        self._made = False

    @property
    def schema(self) -> JsonSchema | None:
        if not self._made:
            self._made = True
            self._known = _find_response_schema(self._operation, self._schemas, self._references)
            self.wraps = self._known is not None and self._known["type"] == "array"
        return self._known

    def publish_schema(self, dialect: str | None = None) -> JsonSchema | None:
        """As the document has it, whatever the dialect."""
        return None if (schema := self.schema) is None else self.wrap_schema(schema)

    def drop_schema(self) -> None:
        """The API does not keep to its document: promise nothing."""
        self._made, self._known, self.wraps = True, None, False


def _find_response_schema(
    operation: Operation, schemas: SchemaConverter, references: DocumentReferences
) -> JsonSchema | None:
    """The schema of the successful response, if it is an object or a list."""
    for status in ("200", "201", "202", "203", "2XX", "2xx", "default"):
        response = references.resolve_value(operation.responses.get(status))
        content = response.get("content") if is_object(response) else None
        if not is_object(content) or not content:
            continue
        if len(content) > 1 or not is_json(next(iter(content)).partition(";")[0].strip().lower()):
            return None
        described = references.resolve_value(next(iter(content.values())))
        found = schemas.convert_root(described.get("schema"), "response") if is_object(described) else {}
        kind = found.get("type")
        if (kind, True) not in (("object", "properties" in found), ("array", "items" in found)):
            return None
        whole = {**_loose(schemas.convert_with_definitions(found, "response", MAX_RETURN_SCHEMA)), "type": kind}
        return whole if len(json.dumps(whole)) <= MAX_RETURN_SCHEMA else None
    return None


def _loose(schema: JsonSchema) -> JsonSchema:
    """What a document says of values, without what APIs do not keep to. Clients check results against it."""
    made = rebuild_schema({name: value for name, value in schema.items() if name not in _STRICT}, _loose_inside)
    if "oneOf" in made:  # without what told them apart, several may fit
        made["anyOf"] = made.pop("oneOf")
    if "$defs" in schema:
        made["$defs"] = {name: _loose(inner) for name, inner in schema["$defs"].items()}
    if as_list(made.get("type")) == ["integer"]:
        made["type"] = "number"
    return made


def _loose_inside(schema: JsonSchema) -> JsonSchema:
    made = _loose(schema)
    return make_nullable(made) if "type" in made else made


# -- The next page: found in the `Link` header or in the body, and said as the arguments of the next call.


MAX_CURSOR: Final = 2_000
_LINK: Final = re.compile(r"<([^<>]{1,4000})>([^<]{0,500})")
_NEXT: Final = re.compile(r"rel\s*=\s*\"?[^\";,]{0,60}\bnext\b", re.IGNORECASE)
_INSIDE: Final = ("meta", "metadata", "response_metadata", "pagination", "paging", "page_info", "pageInfo", "cursors")
_ADDRESSES: Final = ("next", "next_url", "next_page_url", "nextLink", "@odata.nextLink", "next_page")
_CURSORS: Final = ("nextcursor", "nextpagetoken", "nexttoken", "endcursor", "continuationtoken", "nextpage", "after")
_TAKES: Final = (
    "cursor", "pagetoken", "nexttoken", "continuationtoken", "continuation", "after", "startcursor", "page", "marker",
)  # fmt: skip


def find_next_page_arguments(
    plan: RequestPlan, arguments: dict[str, Any], response: ApiResponse, body: Any
) -> dict[str, Any] | None:
    """The arguments that change for the next page; None if there is none, or if it cannot be told."""
    links = _LINK.findall(response.headers.get("link", "")[:16_000])
    for url in (*(url for url, about in links if _NEXT.search(about)), *_addresses(body)):
        if found := _of_address(plan, arguments, url):
            return found
    return _of_cursor(plan, arguments, body)


def _addresses(body: Any) -> Iterator[str]:
    for place in _places(body, (*_INSIDE, "links", "_links")):
        for name in _ADDRESSES:
            url = place.get(name)
            url = url.get("href") if is_object(url) else url
            if isinstance(url, str) and ("?" in url or "/" in url):
                yield url


def _places(body: Any, inside: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The object itself, and those in which APIs put what concerns pages."""
    pending: list[Any] = [body]
    while pending:
        here = pending.pop(0)
        if is_object(here):
            yield here
            pending += [here[name] for name in inside if name in here]


def _of_address(plan: RequestPlan, arguments: dict[str, Any], url: str) -> dict[str, Any]:
    """What the query of an address says for arguments of this tool. The address itself is never followed."""
    try:
        given = dict(parse_qsl(urlsplit(url).query, max_num_fields=200))
    except ValueError:
        return {}
    changed: dict[str, Any] = {}
    for argument in plan.parameters:
        if argument.parameter.place == "query" and (text := given.get(argument.parameter.name)) is not None:
            value = _parse_as_type(text, plan.properties[argument.name])
            if value is not None and arguments.get(argument.name) != value and len(text) <= MAX_CURSOR:
                changed[argument.name] = value
    return changed


def _parse_as_type(text: str, schema: Any) -> Any:
    kinds = as_list(schema.get("type", "string"))
    if "string" in kinds or "type" not in schema:
        return text
    if "integer" in kinds or "number" in kinds:
        return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else None
    return None  # a list or an object stays as it is


def _of_cursor(plan: RequestPlan, arguments: dict[str, Any], body: Any) -> dict[str, Any] | None:
    takes = {_plain(a.parameter.name): a.name for a in plan.parameters if a.parameter.place == "query"}
    for place in _places(body, _INSIDE):
        for name, value in place.items():
            plain = _plain(name)
            if plain not in _CURSORS or isinstance(value, bool) or not isinstance(value, str | int) or value == "":
                continue
            wanted = (plain, plain.removeprefix("next"), *_TAKES)
            argument = next((takes[key] for key in wanted if key in takes), None)
            if argument is not None and len(str(value)) <= MAX_CURSOR and arguments.get(argument) != value:
                typed = _parse_as_type(str(value), plan.properties[argument])
                return {argument: typed} if typed is not None else None
    return _after_the_last(takes, body)


def _after_the_last(takes: dict[str, str], body: Any) -> dict[str, Any] | None:
    """Lists that say only that there is more, and take the id of the last item."""
    if not is_object(body) or body.get("has_more") is not True or "startingafter" not in takes:
        return None
    items = body.get("data")
    last = items[-1] if is_array(items) and items else None
    return {takes["startingafter"]: last["id"]} if is_object(last) and isinstance(last.get("id"), str) else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())
