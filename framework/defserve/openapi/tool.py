"""A tool that is an operation of an API: its arguments, its request, its result."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from defserve.binding.arguments import ArgumentsSchema
from defserve.binding.explicit_schema import MAX_UNIQUE_ITEMS, ExplicitArgumentsSchema, is_valid_instance
from defserve.binding.json_schemas import ensure_properties, rebuild_schema, walk_schema
from defserve.binding.patterns import find_json_pattern_problem
from defserve.binding.results import NO_STRUCTURED_CONTENT, PackedResult
from defserve.binding.signature import ParsedDocstring, Signature
from defserve.core.json_values import JsonSchema, as_list
from defserve.errors import UsageError
from defserve.openapi.credentials import PerCaller
from defserve.openapi.operations import IDEMPOTENT_METHODS, Operation
from defserve.openapi.request_building import build_request
from defserve.openapi.request_plan import RequestPlan
from defserve.openapi.responses import ApiResultSchema, find_next_page_arguments, read_response
from defserve.openapi.sending import ApiResponse
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
            self._checker = checker(self.schema)
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
        return ApiResult(packed, find_next_page_arguments(plan, arguments, response, body))

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
log = logging.getLogger("defserve.openapi")


def checker(schema: JsonSchema) -> ExplicitArgumentsSchema:
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
        if (problem := find_json_pattern_problem(pattern)) is not None:
            yield pattern, problem.reason


def _cheap(schema: JsonSchema) -> JsonSchema:
    made = rebuild_schema(schema, _cheap)
    pattern: Any = made.get("pattern")
    if isinstance(pattern, str):
        if find_json_pattern_problem(pattern) is not None:
            del made["pattern"]
        else:
            made.setdefault("maxLength", MAX_MATCHED_LENGTH)
    if made.get("uniqueItems") is True:
        made.setdefault("maxItems", MAX_UNIQUE_ITEMS)
        if made["maxItems"] > MAX_UNIQUE_ITEMS:
            del made["uniqueItems"]
    if any(map(find_json_pattern_problem, made.get("patternProperties", {}))):
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
        meant = json.loads(value)
    except (ValueError, RecursionError):
        return value
    wanted = tuple(t for k in kinds if k in _READ for t in (_READ[k] if isinstance(_READ[k], tuple) else (_READ[k],)))  # pyright: ignore
    return meant if isinstance(meant, wanted) else value


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
