"""What a tool says that it returns: the schema of its JSON, if the document states it and it is short."""

from __future__ import annotations

import json
from typing import Any, Final

from defserve.binding.arguments.compact import rebuilt
from defserve.binding.packers import PackedResult
from defserve.binding.results import Returns
from defserve.openapi.documents.operations import Operation
from defserve.openapi.documents.references import References
from defserve.openapi.responses.reading import is_json
from defserve.openapi.schemas.dialect import nullable
from defserve.openapi.schemas.schemas import Schemas
from defserve.wire.jsonvalue import JsonSchema, as_list, is_object

LONGEST: Final = 4_000
"""Bytes of an output schema. Models read it with every request."""

_STRICT: Final = frozenset(
    "required enum const pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength"
    " maxLength minItems maxItems uniqueItems minProperties maxProperties additionalProperties default not".split()
)


class ApiReturns(Returns):
    """The result of an operation is packed where its response is read. The schema is made when it is listed."""

    __slots__ = ("_operation", "_schemas", "_references", "_known", "_made")

    def __init__(self, operation: Operation, schemas: Schemas, references: References) -> None:
        super().__init__(_as_read)
        self._operation, self._schemas, self._references = operation, schemas, references
        self._known: JsonSchema | None = None
        self._made = False

    @property
    def schema(self) -> JsonSchema | None:
        if not self._made:
            self._made = True
            self._known = _stated(self._operation, self._schemas, self._references)
            self.wraps = self._known is not None and self._known["type"] == "array"
        return self._known

    def forget(self) -> None:
        """The API does not keep to its document: promise nothing."""
        self._made, self._known, self.wraps = True, None, False


def _as_read(value: Any) -> PackedResult:
    return value


def _stated(operation: Operation, schemas: Schemas, references: References) -> JsonSchema | None:
    """The schema of the successful response, if it is an object or a list."""
    for status in ("200", "201", "202", "203", "2XX", "2xx", "default"):
        response = references.resolved(operation.responses.get(status))
        content = response.get("content") if is_object(response) else None
        if not is_object(content) or not content:
            continue
        if len(content) > 1 or not is_json(next(iter(content)).partition(";")[0].strip().lower()):
            return None
        described = references.resolved(next(iter(content.values())))
        found = schemas.root(described.get("schema"), "response") if is_object(described) else {}
        kind = found.get("type")
        if (kind, True) not in (("object", "properties" in found), ("array", "items" in found)):
            return None
        whole = {**_loose(schemas.whole(found, "response", LONGEST)), "type": kind}
        return whole if len(json.dumps(whole)) <= LONGEST else None
    return None


def _loose(schema: JsonSchema) -> JsonSchema:
    """What a document says of values, without what APIs do not keep to. Clients check results against it."""
    made = rebuilt({name: value for name, value in schema.items() if name not in _STRICT}, _loose_inside)
    if "oneOf" in made:  # without what told them apart, several may fit
        made["anyOf"] = made.pop("oneOf")
    if "$defs" in schema:
        made["$defs"] = {name: _loose(inner) for name, inner in schema["$defs"].items()}
    if as_list(made.get("type")) == ["integer"]:
        made["type"] = "number"
    return made


def _loose_inside(schema: JsonSchema) -> JsonSchema:
    made = _loose(schema)
    return nullable(made) if "type" in made else made
