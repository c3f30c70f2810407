"""A tool that is an operation of an API: its arguments, its request, its result."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from defserve.base.redaction import get_logger
from defserve.binding.arguments import ArgumentsSchema
from defserve.binding.content import Audio, Embedded, Image
from defserve.binding.explicit_schema import MAX_UNIQUE_ITEMS, ExplicitArgumentsSchema, is_valid_instance
from defserve.binding.json_schemas import ensure_properties, transform_subschemas, walk_schema
from defserve.binding.patterns import find_pattern_problem
from defserve.binding.results import NO_STRUCTURED_CONTENT, PackedResult, ResultPacker
from defserve.binding.signature import ParsedDocstring, Signature
from defserve.core.json_values import JsonSchema, as_list, find_infinity, is_array, is_object
from defserve.errors import ToolError, UsageError
from defserve.openapi.documents import DocumentReferences
from defserve.openapi.operations import IDEMPOTENT_METHODS, Operation
from defserve.openapi.request_building import RequestPlan, build_request
from defserve.openapi.schema_dialect import clean_and_cut_text, make_nullable
from defserve.openapi.schemas import SchemaConverter
from defserve.openapi.sending import ApiResponse, PerCaller
from defserve.protocols.mcp.errors import DEFSERVE_NAMESPACE
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mcp.tools import Tool, ToolOptions

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.openapi.api import ImportedApi


NEXT_KEY: Final = DEFSERVE_NAMESPACE + "next"
"""Where a result says which arguments the next page takes."""
MAX_CHECKED_BYTES: Final = 256 * 1024
"""Bytes of a response that is compared with what the document says."""


@dataclass(frozen=True, slots=True)
class ApiResult:
    """What came back, and the arguments of the next page."""

    packed: PackedResult
    next: dict[str, Any] | None


class _OutsideName(str):
    """The name of an argument outside, sent through a transform as if it were a value."""

    __slots__ = ()


def _as_named_outside(
    arguments: ArgumentsSchema | ExplicitArgumentsSchema, given: dict[str, Any]
) -> dict[str, Any] | None:
    """Arguments of an operation under the names that callers use. None if a transform sets one of them itself."""
    names = {name: _OutsideName(name) for name in arguments.schema.get("properties", {})}
    outside = {own: name for own, name in arguments.validate(names).items() if isinstance(name, _OutsideName)}
    return {outside[own]: value for own, value in given.items()} if given.keys() <= outside.keys() else None


class OperationArguments(ArgumentsSchema):
    """The arguments of an operation. Their schema, and what checks them, are made when they are first needed."""

    __slots__ = ("_make", "_plan", "_checker")

    def __init__(self, make: Callable[[], RequestPlan]) -> None:
        super().__init__((), ())
        self._make = make
        self._plan: RequestPlan | None = None
        self._checker: ExplicitArgumentsSchema | None = None

    @property
    def plan(self) -> RequestPlan:
        if self._plan is None:
            self._plan = self._make()
        return self._plan

    @property
    def schema(self) -> JsonSchema:
        return self.plan.schema

    def publish_schema(self, dialect: str | None = None) -> JsonSchema:
        """As the document has it, whatever the dialect."""
        return ensure_properties(self.schema)

    @property
    def may_annotate(self) -> bool:
        return False

    def validate(self, given: dict[str, Any] | None) -> dict[str, Any]:
        if given and any(isinstance(value, _OutsideName) for value in given.values()):
            return given  # see _as_named_outside
        properties = self.plan.properties
        meant = {
            name: unquote_value(value, properties[name]) if name in properties else value
            for name, value in (given or {}).items()
        }
        if self._checker is None:
            self._checker = make_cheap_validator(self.schema)
        return self._checker.validate(meant)


class OperationFunction(Function):
    """Stands where an author's function would: running it sends a request to the API."""

    __slots__ = ("_send",)

    def __init__(
        self, name: str, arguments: OperationArguments, send: Callable[[Call, dict[str, Any]], Coroutine[Any, Any, Any]]
    ) -> None:
        self.signature = Signature(_operation, name, (), (), None, "async", ParsedDocstring(None))
        self.arguments, self.injection, self.inline, self._send = arguments, None, False, send

    @property
    def streams(self) -> bool:
        return False

    def run(self, call: Call, kwargs: dict[str, Any], seconds: float) -> Awaitable[Any]:
        return call.session.engine.run_with_timeout(call, seconds, self._send(call, kwargs))


class OperationTool(Tool):
    """An operation as a tool."""

    __slots__ = ("_api", "_base", "_arguments", "operation")

    def __init__(self, name: str, options: ToolOptions, operation: Operation, api: ImportedApi, base: str) -> None:
        self.operation, self._api, self._base = operation, api, base
        hidden = (*api.pinned, *(api.auth.fills if api.auth is not None else ()))
        self._arguments = OperationArguments(lambda: RequestPlan(operation, api.schemas, hidden))
        returns = ApiResultSchema(operation, api.schemas, api.references)
        super().__init__(name, options, OperationFunction(name, self._arguments, self._send), returns, None)

    @property
    def where(self) -> str:
        return str(self.operation)

    def copy_as(self, name: str) -> OperationTool:
        from copy import copy
        from dataclasses import replace

        renamed = copy(self)
        renamed.name, renamed.options = name, replace(self.options, name=name)
        return renamed

    async def _send(self, call: Call, arguments: dict[str, Any]) -> ApiResult:
        api, plan = self._api, self._arguments.plan
        request = build_request(self.operation, plan, self._base, arguments, api.slashes)
        request.headers |= api.headers
        secrets: tuple[str, ...] = ()
        if api.auth is not None and not self.operation.is_public:
            auth = await api.auth.of(call) if isinstance(api.auth, PerCaller) else api.auth
            await auth.load_secrets()
            secrets = auth.add_to(request)
        response = await api.sender.send(request, idempotent=self.operation.method in IDEMPOTENT_METHODS)
        packed = read_response(response, request.url, secrets)
        self._keep_promise(packed, response)
        body = packed.structured if packed.structured is not NO_STRUCTURED_CONTENT else None
        more = find_next_page_arguments(plan, arguments, response, body) or {}
        # Some APIs repeat the whole query, the key in it too.
        return ApiResult(
            packed, {name: value for name, value in more.items() if MASK not in hide_secrets(str(value), secrets)}
        )

    def _keep_promise(self, packed: PackedResult, response: ApiResponse) -> None:
        """Clients refuse a result that does not fit its schema. If the API does not keep to it, promise none."""
        returns = self.returns
        assert isinstance(returns, ApiResultSchema)
        if (schema := returns.schema) is None:
            return
        is_unchecked = len(response.body) > MAX_CHECKED_BYTES
        if packed.structured is NO_STRUCTURED_CONTENT or not (
            is_unchecked or is_valid_instance(packed.structured, schema)
        ):
            returns.drop_schema()
            self._api.on_changed()

    def result(self, call: Call, value: Any) -> dict[str, Any]:
        assert isinstance(value, ApiResult)
        found = super().result(call, value.packed)
        if value.next and (more := _as_named_outside(self.function.arguments, value.next)):
            said = ", ".join(f"{name}={json.dumps(given, ensure_ascii=False)}" for name, given in more.items())
            found["content"].append({"type": "text", "text": f"There is more. Call again with {said}."})
            if "meta" in get_dialect(call).has:
                found["_meta"] = {**found.get("_meta", {}), NEXT_KEY: more}
        return found


async def _operation() -> None:
    """The function of an operation is at the API."""


# -- Arguments checked against a schema that a stranger wrote: nothing in it may make checking slow.


MAX_MATCHED_LENGTH: Final = 10_000
log = get_logger("openapi")


def make_cheap_validator(schema: JsonSchema) -> ExplicitArgumentsSchema:
    """Checks arguments as far as that is cheap. The API checks the rest; the log names the patterns that it has to."""
    for pattern, reason in iter_unenforced_patterns(schema):
        log.warning("the pattern %r %s: it stays published, and only the API enforces it", pattern[:200], reason)
    names = schema.get("properties", {})
    known: JsonSchema = {"type": "object", "properties": dict.fromkeys(names, True), "additionalProperties": False}
    loose = ExplicitArgumentsSchema.from_trusted_schema({**known, "required": schema.get("required", [])})
    try:
        return ExplicitArgumentsSchema(_cheap(schema), subject="input schema", otherwise=loose)
    except (UsageError, RecursionError):
        return loose


def iter_unenforced_patterns(schema: JsonSchema) -> Iterator[tuple[str, str]]:
    """The patterns in a schema that are not matched here, each once, and why."""
    found: dict[str, None] = {}
    for node in walk_schema(schema):
        found |= dict.fromkeys((node["pattern"],) if isinstance(node.get("pattern"), str) else ())
        found |= dict.fromkeys(node.get("patternProperties", ()))
    for pattern in found:
        if (problem := find_pattern_problem(pattern)) is not None:
            yield pattern, problem.reason


def _cheap(schema: JsonSchema) -> JsonSchema:
    made = transform_subschemas(schema, _cheap)
    pattern: Any = made.get("pattern")
    if isinstance(pattern, str):
        if find_pattern_problem(pattern) is not None:
            del made["pattern"]
        else:
            made.setdefault("maxLength", MAX_MATCHED_LENGTH)
    if made.get("uniqueItems") is True:
        made.setdefault("maxItems", MAX_UNIQUE_ITEMS)
        if made["maxItems"] > MAX_UNIQUE_ITEMS:
            del made["uniqueItems"]
    if any(map(find_pattern_problem, made.get("patternProperties", {}))):
        del made["patternProperties"]
        made.pop("additionalProperties", None)  # a name may fit a pattern that is not enforced
    return made


_READ: Final = {"object": dict, "array": list, "integer": int, "number": (int, float), "boolean": bool}


def unquote_value(value: Any, schema: JsonSchema) -> Any:
    """A value that a model has put into a text by mistake: `"[1, 2]"` where only a list fits."""
    kinds = as_list(schema.get("type", "string"))
    if not isinstance(value, str) or "string" in kinds or not any(kind in _READ for kind in kinds):
        return value
    try:
        meant = json.loads(value, parse_float=_read_finite_number, parse_constant=_read_finite_number)
    except (ValueError, RecursionError):
        return value
    wanted = tuple(t for k in kinds if k in _READ for t in (_READ[k] if isinstance(_READ[k], tuple) else (_READ[k],)))  # pyright: ignore
    return meant if isinstance(meant, wanted) else value


def _read_finite_number(text: str) -> float:
    """Raises ValueError for `NaN`, `Infinity` and `1e999`, which JSON cannot write."""
    if isfinite(number := float(text)):
        return number
    raise ValueError(f"JSON has no {text[:20]}")


# -- Every page of a list, for code that calls tools.


class CallsTools(Protocol):
    """A client, such as `defserve.client.Client`."""

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


# -- Responses of the API → results of a tool: structured content, text, pictures, files, errors, and the next page.


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
        text = hide_secrets(response.text, secrets)
        try:
            value = json.loads(text, parse_constant=_read_finite_number)
        except (ValueError, RecursionError):
            return PackedResult(text)
        # As data, what JSON cannot write would be null beside a text that says something else.
        return PackedResult(text, value) if find_infinity(value) is None else PackedResult(text)
    if media.startswith("text/") or media.endswith(("/xml", "+xml", "/yaml", "/javascript")):
        return PackedResult(hide_secrets(response.text, secrets))
    if media.startswith("image/") and "+" not in media:
        return PackedResult([Image(response.body, media)])
    if media.startswith("audio/"):
        return PackedResult([Audio(response.body, media)])
    return PackedResult([Embedded(url, data=response.body, mime_type=media or "application/octet-stream")])


def is_json(media: str) -> bool:
    return media in ("application/json", "text/json") or media.endswith("+json")


def response_error(response: ApiResponse, secrets: tuple[str, ...]) -> ToolError:
    """What a model reads of a failed request: the status, and the beginning of what the API says about it."""
    said = hide_secrets(response.text, secrets) if response.body else ""
    said = clean_and_cut_text(said, MAX_ERROR_LENGTH) if response.media != "text/html" else ""
    head = f"The API answers {response.status} {clean_and_cut_text(response.reason, 60)}".rstrip()
    if 300 <= response.status < 400:
        said = "it redirects to another address, which is not followed"
    data: dict[str, Any] = {"status": response.status}
    if wait := response.headers.get("retry-after", ""):
        data["retry_after"] = clean_and_cut_text(wait, 40)
        head += f" (try again after {data['retry_after']}{' s' if wait.isdecimal() else ''})"
    return ToolError(f"{head}: {said}" if said else f"{head}.", data=data)


def hide_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """A text without the credentials that were sent: some APIs repeat them, also with the escapes of JSON."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
            # The pattern of a whole token is long: its beginning is tried first.
            if "\\" in text and re.search(_match_escaped(secret[:8]), text):
                text = re.sub(_match_escaped(secret), MASK, text)
    return text


def _match_escaped(text: str) -> str:
    """A pattern for a text in JSON: each character as it is, as `\\u002f`, or after a backslash where JSON has that.

    No two of these begin alike and go on alike, so it never matches in two ways, which could take long.
    """
    return "".join(map(_match_escaped_character, text))


def _match_escaped_character(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    coded = "".join(f"\\\\u(?i:{units[at : at + 2].hex()})" for at in range(0, len(units), 2))
    short = rf"\\{re.escape(character)}|" if character in '"\\/' else ""
    plain = "" if character == "\\" else f"{re.escape(character)}|"
    return f"(?:{plain}{short}{coded})"


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
            with suppress(UsageError):  # one bad reference must not cost the whole document
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
    made = transform_subschemas({name: value for name, value in schema.items() if name not in _STRICT}, _loose_inside)
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
_MORE: Final = ("hasmore", "hasnext", "hasnextpage")
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
    members = (member for place in _places(body, _INSIDE) for member in place.items())
    if any(value is False and _plain(name) in _MORE for name, value in members):
        return None  # many APIs write the cursor of the last item on the last page, too
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
