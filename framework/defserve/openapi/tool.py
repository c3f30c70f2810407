"""A tool that is an operation of an API: its arguments, its request, its result."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from defserve.binding.arguments.explicit import ExplicitArguments, fits
from defserve.binding.arguments.schema import Arguments
from defserve.binding.docs import Docs
from defserve.binding.packers import NOTHING, PackedResult
from defserve.binding.signature import Signature
from defserve.openapi.documents.operations import Operation
from defserve.openapi.marks import IDEMPOTENT
from defserve.openapi.requests.auth import PerCaller
from defserve.openapi.requests.building import build
from defserve.openapi.requests.plan import RequestPlan
from defserve.openapi.requests.sending import ApiResponse
from defserve.openapi.responses.paging import next_page
from defserve.openapi.responses.reading import read
from defserve.openapi.responses.returns import ApiReturns
from defserve.openapi.schemas.checking import checker, unquoted
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.tools.tools import Tool, ToolOptions
from defserve.wire.jsonvalue import JsonSchema

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.openapi.api import Api

NEXT_KEY: Final = VENDOR + "next"
"""Where a result says which arguments the next page takes."""
LONGEST_CHECKED: Final = 256 * 1024
"""Bytes of a response that is compared with what the document says."""


@dataclass(frozen=True, slots=True)
class ApiResult:
    """What came back, and the arguments of the next page."""

    packed: PackedResult
    next: dict[str, Any] | None


class _OutsideName(str):
    """The name of an argument outside, sent through a transform as if it were a value."""

    __slots__ = ()


def _as_named_outside(arguments: Arguments | ExplicitArguments, given: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments of an operation under the names that callers use. None if a transform sets one of them itself."""
    names = {name: _OutsideName(name) for name in arguments.schema.get("properties", {})}
    outside = {own: name for own, name in arguments.validate(names).items() if isinstance(name, _OutsideName)}
    return {outside[own]: value for own, value in given.items()} if given.keys() <= outside.keys() else None


class OperationArguments(Arguments):
    """The arguments of an operation. Their schema, and what checks them, are made when they are first needed."""

    __slots__ = ("_make", "_plan", "_checker")

    def __init__(self, make: Callable[[], RequestPlan]) -> None:
        super().__init__((), ())
        self._make = make
        self._plan: RequestPlan | None = None
        self._checker: ExplicitArguments | None = None

    @property
    def plan(self) -> RequestPlan:
        if self._plan is None:
            self._plan = self._make()
        return self._plan

    @property
    def schema(self) -> JsonSchema:
        return self.plan.schema

    @property
    def may_annotate(self) -> bool:
        return False

    def validate(self, given: dict[str, Any] | None) -> dict[str, Any]:
        if given and any(isinstance(value, _OutsideName) for value in given.values()):
            return given  # see _as_named_outside
        properties = self.plan.properties
        meant = {
            name: unquoted(value, properties[name]) if name in properties else value
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
        self.signature = Signature(_operation, name, (), (), None, "async", Docs(None))
        self.arguments, self.injection, self.inline, self._send = arguments, None, False, send

    @property
    def streams(self) -> bool:
        return False

    def run(self, call: Call, kwargs: dict[str, Any], seconds: float) -> Awaitable[Any]:
        return call.session.engine.within(call, seconds, self._send(call, kwargs))


class OperationTool(Tool):
    """An operation as a tool."""

    __slots__ = ("_api", "_base", "_arguments", "operation")

    def __init__(self, name: str, options: ToolOptions, operation: Operation, api: Api, base: str) -> None:
        self.operation, self._api, self._base = operation, api, base
        hidden = (*api.pinned, *(api.auth.fills if api.auth is not None else ()))
        self._arguments = OperationArguments(lambda: RequestPlan(operation, api.schemas, hidden))
        returns = ApiReturns(operation, api.schemas, api.references)
        super().__init__(name, options, OperationFunction(name, self._arguments, self._send), returns, None)

    @property
    def where(self) -> str:
        return str(self.operation)

    def renamed(self, name: str) -> OperationTool:
        from copy import copy
        from dataclasses import replace

        renamed = copy(self)
        renamed.name, renamed.options = name, replace(self.options, name=name)
        return renamed

    async def _send(self, call: Call, arguments: dict[str, Any]) -> ApiResult:
        api, plan = self._api, self._arguments.plan
        request = build(self.operation, plan, self._base, arguments, api.slashes)
        request.headers |= api.headers
        secrets: tuple[str, ...] = ()
        if api.auth is not None and not self.operation.is_public:
            auth = await api.auth.of(call) if isinstance(api.auth, PerCaller) else api.auth
            secrets = auth.add_to(request)
        response = await api.sender.send(request, idempotent=self.operation.method in IDEMPOTENT)
        packed = read(response, request.url, secrets)
        self._keep_promise(packed, response)
        body = packed.structured if packed.structured is not NOTHING else None
        return ApiResult(packed, next_page(plan, arguments, response, body))

    def _keep_promise(self, packed: PackedResult, response: ApiResponse) -> None:
        """Clients refuse a result that does not fit its schema. If the API does not keep to it, promise none."""
        returns = self.returns
        assert isinstance(returns, ApiReturns)
        if (schema := returns.schema) is not None and not _fits(packed.structured, schema, len(response.body)):
            returns.forget()
            self._api.changed()

    def result(self, call: Call, value: Any) -> dict[str, Any]:
        assert isinstance(value, ApiResult)
        found = super().result(call, value.packed)
        if value.next and (more := _as_named_outside(self.function.arguments, value.next)):
            said = ", ".join(f"{name}={json.dumps(given, ensure_ascii=False)}" for name, given in more.items())
            found["content"].append({"type": "text", "text": f"There is more. Call again with {said}."})
            if "meta" in dialect_of(call).has:
                found["_meta"] = {**found.get("_meta", {}), NEXT_KEY: more}
        return found


def _fits(structured: Any, schema: JsonSchema, size: int) -> bool:
    if structured is NOTHING:
        return False
    if size > LONGEST_CHECKED:
        return True
    return fits(structured, schema)


async def _operation() -> None:
    """The function of an operation is at the API."""
